"""All errors that Holdfast raises.

HoldfastError
├── NotFound
│   ├── SessionNotFound
│   └── MessageNotFound
├── AmbiguousRef
├── Conflict              another writer was first; nothing of this call was stored
│   ├── HeadMoved
│   ├── PreconditionFailed  a record, metadata or goal is not as the call expects
│   ├── IdConflict
│   ├── SessionBusy
│   ├── TurnLost
│   ├── KeyTaken
│   └── Diverged          the target of a copy has other content under the same ids
├── StorageError          the store failed
│   ├── StoreUnavailable  not stored; try again
│   ├── StoreFull         not stored
│   ├── StoreMoved        the file or its log was moved or replaced; not stored
│   ├── ReadOnly
│   ├── SchemaTooNew
│   ├── Damaged
│   └── OutcomeUnknown    may or may not be stored; retry with the same ids
├── AgentError            a model failed; what was stored before is safe
│   ├── ModelMissing      it cannot be used here: no key, no package, no file
│   └── ModelFailed       a call failed; `retryable` is whether a retry may succeed
│       └── ContextTooLong
└── Invalid               the call or an argument is not valid; nothing was stored
    ├── BadConfig
    ├── BadMessage
    ├── BadQuery
    ├── BadRef
    ├── TooLarge
    └── UnknownBackend

Every message says what happened, what is safe, and what to do next. None contains text of a
conversation (the candidates of an `AmbiguousRef` have titles and previews; its message has only
their ids).
"""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from holdfast.values import Candidate, Head, Holder

_MAX_REASONS: Final = 5
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class HoldfastError(Exception):
    """The base class of all errors that Holdfast raises on purpose."""


class NotFound(HoldfastError):
    """What was named is not in this store."""


class SessionNotFound(NotFound):
    """No session matches this reference; `store.sessions()` lists those that exist."""


class MessageNotFound(NotFound):
    """This history has no such message."""


class AmbiguousRef(HoldfastError):
    """Several sessions match this reference: `candidates`, the one written to last first."""

    def __init__(self, what: str, candidates: tuple[Candidate, ...] = ()) -> None:
        super().__init__(what)
        self.candidates = candidates


class Conflict(HoldfastError):
    """Another writer was first. Nothing of this call was stored."""


class HeadMoved(Conflict):
    """The session's head is no longer the one that was passed as `expect`."""

    def __init__(self, expected: Head, actual: Head) -> None:
        super().__init__(
            f"expected branch {expected.branch} at seq {expected.seq}, but the session is on "
            f"branch {actual.branch} at seq {actual.seq}; nothing was stored. Read what is new "
            "and try again with expect=session.head()."
        )
        self.expected = expected
        self.actual = actual


class PreconditionFailed(Conflict):
    """What `after`, `expect_metadata` or `expect_goal` compares with is not as expected.

    Read it again and repeat the change. Other conflicts do not end by that.
    """


class IdConflict(Conflict):
    """This id is already stored, queued or in the batch, with another body."""

    def __init__(self, message_id: str, seq: int) -> None:
        where = f"is already stored at seq {seq}" if seq else "is already in use"
        super().__init__(
            f"id {message_id!r} {where} with another body; nothing was stored. Messages and "
            "records never change: give the new one an id of its own."
        )
        self.message_id = message_id
        self.seq = seq


class SessionBusy(Conflict):
    """Another holder's turn is open in this session."""

    def __init__(self, session_id: str, holder: Holder, since: datetime) -> None:
        super().__init__(
            f"session {session_id} has an open turn, held by pid {holder.pid} on {holder.host} "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC; nothing was stored. Wait with turn(wait=…), "
            "use session.append() or session.enqueue(), or end that process."
        )
        self.session_id = session_id
        self.holder = holder
        self.host = holder.host
        self.pid = holder.pid
        self.since = since


class TurnLost(Conflict):
    """This turn is over: it ended, or another holder took the session over."""

    def __init__(self, turn_id: str, why: str) -> None:
        super().__init__(
            f"turn {turn_id} {why}; nothing was stored. What it wrote before is kept. Open a new "
            "turn with session.turn() to go on."
        )
        self.turn_id = turn_id


class KeyTaken(Conflict):
    """Another session already has this key."""


class Diverged(Conflict):
    """The target of a copy has other content under the source's ids: `reasons`, by session id.

    A reason without a session is one of the store's records. The target's content was not changed.
    """

    def __init__(self, reasons: Mapping[str | None, str]) -> None:
        some = list(reasons.items())[:_MAX_REASONS]
        shown = [why if id is None else f"session {id}: {why}" for id, why in some]
        more = len(reasons) - len(shown)
        rest = f"; and {more} more" if more else ""
        super().__init__(
            f"the target has other content under the same ids ({'; '.join(shown)}{rest}); it was "
            "not changed. Copy to another store, or erase these sessions there."
        )
        self.reasons = dict(reasons)


class StorageError(HoldfastError):
    """The store failed."""


class StoreUnavailable(StorageError):
    """The store cannot be reached or written now. Nothing was stored; a retry is safe."""


class StoreFull(StorageError):
    """There is no space left. Nothing of this call was stored; what was stored before is safe."""


class StoreMoved(StorageError):
    """A file of the store was moved, deleted or replaced while open; writes would be lost."""


class ReadOnly(StorageError):
    """This store was opened for reading only, or it is on storage that cannot be written to."""


class SchemaTooNew(StorageError):
    """The store was written by a newer Holdfast. Nothing was changed; update this program."""


class Damaged(StorageError):
    """The store has unreadable data, and accepts no writes where it is; see `Store.salvage`.

    Not `blocking` is a blob: writes go on, and storing the same content again repairs it.
    """

    def __init__(self, what: str, *, blocking: bool = True) -> None:
        super().__init__(what)
        self.blocking = blocking


class OutcomeUnknown(StorageError):
    """The write may or may not be stored. Retry it with the same ids: it will be stored once."""


class AgentError(HoldfastError):
    """A model failed. What was stored before is safe."""


class ModelMissing(AgentError):
    """This model cannot be used here; the error says what it needs."""


class ModelFailed(AgentError):
    """A call of a model failed; if `retryable`, a retry after `retry_after` s may succeed."""

    def __init__(
        self,
        what: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class ContextTooLong(ModelFailed):
    """The window has more tokens than the model accepts: `limit`, if the provider reported it."""

    def __init__(self, what: str, *, status: int | None = None, limit: int | None = None) -> None:
        super().__init__(what, status=status)
        self.limit = limit


class Invalid(HoldfastError):
    """The call or one of its arguments is not valid. Nothing was stored."""


class BadConfig(Invalid):
    """The configuration is not valid; the error names the file and the key."""


class BadMessage(Invalid):
    """A message is not valid; the error names the field."""


class BadQuery(Invalid):
    """An argument of a query is not valid; the error names it."""


class BadRef(Invalid):
    """This is not a valid session reference."""


class TooLarge(Invalid):
    """A documented limit was exceeded."""


class UnknownBackend(Invalid):
    """There is no backend for this URL, or the URL is not valid."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for errors about a missing package."""
    return f"pip install 'holdfast[{extra}]'"


def system_error(error: OSError, what: str, effect: str) -> StorageError:
    """Return a system's error as one of Holdfast's: `what` failed, `effect` is its consequence."""
    detail = f"{what} ({error})"
    if error.errno in _FULL:
        limit = error.errno == errno.EFBIG
        full = "the file may not grow further" if limit else "the disk is full"
        remedy = "Raise the limit (ulimit -f)" if limit else "Free some space"
        return StoreFull(f"{full}: {detail}; {effect} {remedy} and try again.")
    if error.errno in _TOO_MANY_FILES:
        return too_many_files(effect)
    if error.errno in _READ_ONLY:
        return ReadOnly(f"{detail}; {effect}")
    return StoreUnavailable(f"{detail}; {effect}")


def too_many_files(effect: str) -> StoreUnavailable:
    """Return the error of a call that needed one more file than the process may open."""
    return StoreUnavailable(
        f"this process has too many open files; {effect} Close some, or raise the limit "
        "(ulimit -n), and try again."
    )


@contextmanager
def system_errors(what: str, effect: str) -> Iterator[None]:
    """Translate the system's errors in the block."""
    try:
        yield
    except OSError as error:
        raise system_error(error, what, effect) from error


def import_errors() -> AbstractContextManager[None]:
    """Translate the system's errors of an import that was deferred to the first use."""
    return system_errors("a module cannot be loaded", "nothing was changed.")
