"""The event log: events, one JSON line each, and how they are written and read."""

import hashlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.values import BranchReason, Head, MessageRef

OperationName: TypeAlias = Literal[
    "append", "summarize", "replace", "rewind", "undo", "redo", "clear", "fork"
]
APPEND_OPERATIONS: Final = frozenset(
    {"append", "summarize"}
)  # the operations that keep the head's branch


class BadHistory(ValueError):
    """The event log contradicts itself: fix the harness; the store was not checked."""


# --- events -------------------------------------------------------------------------------------


class Event(
    msgspec.Struct,
    frozen=True,
    tag_field="event",
    tag=str.lower,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """An event recorded by a worker or by the harness: one line of its file."""


class Invoked(Event, frozen=True):
    """A write began. `op` is unique per worker; `expect` is the seq of the expected head.

    A move may have a target position `to` or a number of `turns` to undo, and records the branch of
    the expected head.
    """

    worker: str
    op: int | str
    session: str
    ids: tuple[str, ...]
    digests: tuple[str, ...]
    at: int
    expect: int | None = None
    fence: int | None = None
    operation: OperationName = msgspec.field(default="append", name="verb")
    expect_branch: int | None = None
    to: int | str | None = None
    to_branch: int | None = None
    turns: int = 1

    def __post_init__(self) -> None:
        """Refuse a batch that is empty or whose digests do not match its ids."""
        needed = self.operation in APPEND_OPERATIONS
        if (needed and not self.ids) or len(self.ids) != len(self.digests):
            raise BadHistory(
                f"a write needs one digest per id: {len(self.ids)} ids, {len(self.digests)}"
            )


class Acked(Event, frozen=True):
    """A write returned. `seqs` has one seq per id; or only `last`, the seq of the last id.

    With `branch` it is the head that was returned. A fork returns the `child` it created instead.
    `duplicate`: the store reported a retry; this is counted, and no rule relies on it.
    """

    worker: str
    op: int | str
    session: str
    seqs: tuple[int, ...]
    at: int
    last: int | None = None
    duplicate: bool = False
    branch: int | None = None
    child: str | None = None


class Refused(Event, frozen=True):
    """A write was refused by a typed error: it must have stored nothing."""

    worker: str
    op: int | str
    session: str
    error: str
    at: int


class Unknown(Event, frozen=True):
    """A write whose outcome is not known: stored whole, or not at all."""

    worker: str
    op: int | str
    session: str
    at: int


class Read(Event, frozen=True):
    """What a read returned: the whole history (`complete`) or the newest part of it.

    In a session whose head moves, `branch` is the branch that was read.
    """

    worker: str
    session: str
    began: int
    ended: int
    ids: tuple[str, ...]
    seqs: tuple[int, ...]
    complete: bool
    digests: tuple[str, ...] = ()
    branch: int | None = None

    def __post_init__(self) -> None:
        """Refuse a read whose columns differ in length."""
        size = len(self.ids)
        if len(self.seqs) != size or len(self.digests) not in {0, size}:
            raise BadHistory(f"a read needs one seq per id: {size} ids, {len(self.seqs)} seqs")


class Fenced(Event, frozen=True):
    """A takeover with this fence was acknowledged: lower fences may not write from now on."""

    session: str
    fence: int
    at: int


class Killed(Event, frozen=True):
    """The harness ended this worker with SIGKILL."""

    worker: str
    at: int


class TornLine(Event, frozen=True):
    """A file whose last line was cut by a kill; what was being recorded there is not known."""

    path: str


_Line = Invoked | Acked | Refused | Unknown | Read | Fenced | Killed
End = Acked | Refused | Unknown


class Stored(msgspec.Struct, frozen=True):
    """One message as the store returned it; `role` and `turn` determine where an undo ends."""

    id: str
    seq: int
    digest: str
    role: str = ""
    turn: str | None = None


class Branch(msgspec.Struct, frozen=True):
    """One branch as the store returned it, with its whole history.

    Its messages 1 to `fork_seq` are shared; `asked_seq` is the position the caller requested.
    """

    number: int
    reason: BranchReason
    fork_seq: int
    asked_seq: int
    history: tuple[Stored, ...]


def digest(body: str | bytes) -> str:
    """Return a short digest of a message's body."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return hashlib.sha256(data).hexdigest()[:24]


def now() -> int:
    """Return the current time for an event; call this *before* a read begins."""
    return time.monotonic_ns()


class Recorder:
    """Writes one worker's events to a file that must not exist yet.

    Each event is a single `write` to a file opened for appending: a kill can tear only the last
    line, and nothing waits in a buffer. Every thread, and every life of a restarted process, needs
    a name and a file of its own: operations are numbered per recorder.
    """

    def __init__(self, path: str | Path, worker: str) -> None:
        """Create the file."""
        self.worker = worker
        self._ops = itertools.count(1)
        self._encoder = msgspec.json.Encoder()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)

    def invoked(
        self,
        session: str,
        ids: Sequence[str],
        digests: Sequence[str],
        *,
        expect: int | None = None,
        fence: int | None = None,
    ) -> Invoked:
        """Record that a write begins; pass what this returns to the method that ends it."""
        op = next(self._ops)
        invoked = Invoked(
            self.worker, op, session, tuple(ids), tuple(digests), now(), expect, fence
        )
        self._record(invoked)
        return invoked

    def invoked_operation(
        self,
        session: str,
        operation: OperationName,
        ids: Sequence[str] = (),
        digests: Sequence[str] = (),
        *,
        to: MessageRef | None = None,
        turns: int = 1,
        expect: Head | None = None,
    ) -> Invoked:
        """Record that an operation, of any kind, begins on a session whose head moves."""
        invoked = Invoked(
            self.worker,
            next(self._ops),
            session,
            tuple(ids),
            tuple(digests),
            now(),
            expect=None if expect is None else expect.seq,
            operation=operation,
            expect_branch=None if expect is None else expect.branch,
            to=to.seq if isinstance(to, Head) else to,
            to_branch=to.branch if isinstance(to, Head) else None,
            turns=turns,
        )
        self._record(invoked)
        return invoked

    def acked(
        self,
        write: Invoked,
        seqs: Sequence[int] = (),
        *,
        last: int | None = None,
        duplicate: bool = False,
    ) -> None:
        """Record that a write returned, with a seq per id or the `last` one only."""
        end = Acked(self.worker, write.op, write.session, tuple(seqs), now(), last, duplicate)
        self._record(end)

    def acked_head(self, write: Invoked, head: Head) -> None:
        """Record that an operation returned this head."""
        at, where = now(), (self.worker, write.op, write.session)
        self._record(Acked(*where, (), at, last=head.seq, branch=head.branch))

    def acked_fork(self, write: Invoked, child: str) -> None:
        """Record that a fork returned this session."""
        self._record(Acked(self.worker, write.op, write.session, (), now(), child=child))

    def refused(self, write: Invoked, error: str) -> None:
        """Record that a write was refused by an error that guarantees nothing was stored."""
        self._record(Refused(self.worker, write.op, write.session, error, now()))

    def unknown(self, write: Invoked) -> None:
        """Record that it is not known whether a write was stored."""
        self._record(Unknown(self.worker, write.op, write.session, now()))

    def read(
        self,
        session: str,
        began: int,
        seen: Iterable[Stored],
        *,
        complete: bool,
        branch: int | None = None,
    ) -> None:
        """Record what a read that began at `began` returned."""
        ended = now()
        rows = list(seen)
        ids, seqs, digests = (tuple(map(attrgetter(name), rows)) for name in _STORED_FIELDS)
        self._record(Read(self.worker, session, began, ended, ids, seqs, complete, digests, branch))

    def fenced(self, session: str, fence: int) -> None:
        """Record that a takeover with this fence was acknowledged."""
        self._record(Fenced(session, fence, now()))

    def killed(self, worker: str) -> None:
        """Record, in the harness's own file, that `worker` was killed and has exited."""
        self._record(Killed(worker, now()))

    def close(self) -> None:
        """Close the file; no event is lost if this is never called."""
        os.close(self._fd)

    def _record(self, event: Event) -> None:
        line = self._encoder.encode(event) + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError(f"short write to the event file of {self.worker}; the disk may be full")


_STORED_FIELDS = ("id", "seq", "digest")


def load(paths: Iterable[str | Path]) -> list[Event]:
    """Read event files; a torn last line becomes a `TornLine`, any other damage `BadHistory`."""
    decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
    return [event for path in paths for event in _load_file(Path(path), decoder)]


def _load_file(path: Path, decoder: "msgspec.json.Decoder[_Line]") -> Iterator[Event]:
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BadHistory(f"{path}:{number} is not an event: {error}") from error
    # Without its newline even a line that parses was not written whole. Skipping it is safe: a
    # write it announced never started, and an end it recorded becomes an unknown outcome.
    if rest:
        yield TornLine(str(path))
