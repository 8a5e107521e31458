"""Everything that can go wrong, in one tree.

HoldfastError
├── NotFound
│   ├── SessionNotFound
│   └── MessageNotFound
├── AmbiguousRef
├── Conflict              somebody else was there; nothing of yours was stored
│   ├── HeadMoved
│   ├── IdConflict
│   ├── SessionBusy
│   ├── TurnLost
│   ├── KeyTaken
│   └── Diverged          a copy would meet something else under the same ids
├── StorageError          the store could not do it
│   ├── StoreUnavailable  not stored; try again
│   ├── StoreFull         not stored
│   ├── StoreMoved        not stored where you think
│   ├── ReadOnly
│   ├── SchemaTooNew
│   ├── Damaged
│   └── OutcomeUnknown    may or may not be stored; retry with the same ids
├── AgentError            a model could not do its part; what was stored before is safe
│   ├── ModelMissing      it cannot be used here: no key, no package, no file
│   └── ModelFailed       a call failed; `retryable` says whether another may go well
│       └── ContextTooLong
└── Invalid               what was asked makes no sense
    ├── BadConfig
    ├── BadMessage
    ├── BadQuery
    ├── BadRef
    ├── TooLarge
    └── UnknownBackend

Every message says what happened, what is safe, and what to do next. None of them carries the text
of a conversation (the candidates of an `AmbiguousRef` have titles and previews, its message only
their ids).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from holdfast.records import Candidate, Head, Holder

_MOST_REASONS: Final = 5


class HoldfastError(Exception):
    """The root: catch this to catch everything Holdfast raises on purpose."""


class NotFound(HoldfastError):
    """There is no such thing in this store."""


class SessionNotFound(NotFound):
    """No session goes by this name; `store.sessions()` lists those that exist."""


class MessageNotFound(NotFound):
    """This history has no such message."""


class AmbiguousRef(HoldfastError):
    """Several sessions go by this name: `candidates`, the one written to last first."""

    def __init__(self, what: str, candidates: tuple[Candidate, ...] = ()) -> None:
        """Remember what could be meant."""
        super().__init__(what)
        self.candidates = candidates


class Conflict(HoldfastError):
    """Somebody else was there first. Nothing of this call was stored."""


class HeadMoved(Conflict):
    """The history grew since the head that was passed as `expect`."""

    def __init__(self, expected: Head, actual: Head) -> None:
        """Remember both heads."""
        super().__init__(
            f"expected branch {expected.branch} at seq {expected.seq}, but the session is on "
            f"branch {actual.branch} at seq {actual.seq}; nothing was stored. Read what is new "
            "and try again with expect=session.head()."
        )
        self.expected = expected
        self.actual = actual


class IdConflict(Conflict):
    """A message with this id is already there, with another body."""

    def __init__(self, message_id: str, seq: int) -> None:
        """Remember which message it was."""
        where = f"is already stored at seq {seq}" if seq else "is already in use"
        super().__init__(
            f"message id {message_id!r} {where} with another body; nothing was stored. Messages "
            "never change: give the new one an id of its own."
        )
        self.message_id = message_id
        self.seq = seq


class SessionBusy(Conflict):
    """Another holder's turn is open in this session."""

    def __init__(self, session_id: str, holder: Holder, since: datetime) -> None:
        """Remember who holds it, and since when."""
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
        """Remember which turn, and what became of it."""
        super().__init__(
            f"turn {turn_id} {why}; nothing was stored. What it wrote before is kept. Open a new "
            "turn with session.turn() to go on."
        )
        self.turn_id = turn_id


class KeyTaken(Conflict):
    """Another session already has this key."""


class Diverged(Conflict):
    """The target has something else under the ids of the source: `reasons`, by session id.

    What was there is as it was.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        """Remember which sessions, and in which way."""
        told = [f"session {id}: {why}" for id, why in list(reasons.items())[:_MOST_REASONS]]
        more = len(reasons) - len(told)
        rest = f"; and {more} more" if more else ""
        super().__init__(
            f"the target has something else under the same ids ({'; '.join(told)}{rest}); nothing "
            "of that was changed. Copy to another store, or erase these sessions there."
        )
        self.reasons = dict(reasons)


class StorageError(HoldfastError):
    """The store could not do it."""


class StoreUnavailable(StorageError):
    """The store cannot be reached or written now. Nothing was stored; trying again is safe."""


class StoreFull(StorageError):
    """There is no space left. Nothing of this call was stored; what was stored before is safe."""


class StoreMoved(StorageError):
    """The store's file was moved, deleted or replaced while open; what is written would be lost."""


class ReadOnly(StorageError):
    """This store was opened for reading only."""


class SchemaTooNew(StorageError):
    """The store was written by a newer Holdfast. It was left untouched: update this program."""


class Damaged(StorageError):
    """The store has unreadable data. It is not written to any more; see `Store.salvage`."""


class OutcomeUnknown(StorageError):
    """The write may or may not be stored. Retry it with the same ids: it will be there once."""


class AgentError(HoldfastError):
    """A model could not do its part. What was stored before is safe."""


class ModelMissing(AgentError):
    """This model cannot be used here; the error says what it needs."""


class ModelFailed(AgentError):
    """A call of a model failed. `retryable`: another may go well, after `retry_after` seconds."""

    def __init__(
        self,
        what: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        """Remember what the provider answered."""
        super().__init__(what)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class ContextTooLong(ModelFailed):
    """The window has more tokens than the model takes: `limit`, if the provider said how many."""

    def __init__(self, what: str, *, status: int | None = None, limit: int | None = None) -> None:
        """Remember the limit."""
        super().__init__(what, status=status)
        self.limit = limit


class Invalid(HoldfastError):
    """What was asked makes no sense. Nothing was stored."""


class BadConfig(Invalid):
    """The configuration says something that makes no sense; the error names file and key."""


class BadMessage(Invalid):
    """A message cannot be stored as it is; the error names the field."""


class BadQuery(Invalid):
    """A question to the store makes no sense."""


class BadRef(Invalid):
    """This cannot name a session."""


class TooLarge(Invalid):
    """Over a documented limit."""


class UnknownBackend(Invalid):
    """No backend goes by this URL."""
