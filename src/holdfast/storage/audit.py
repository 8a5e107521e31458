"""Checks and counts of a whole store, by the reads of a snapshot.

They are the `verify` and `stats` of a backend that has no statements of its own for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast import codec
from holdfast.clock import to_day
from holdfast.cost import sum_by_day
from holdfast.errors import Damaged
from holdfast.storage.ancestry import Segment
from holdfast.storage.rows import BranchRow, HeadRow, MessageRow, SessionRow, UnreadableSession
from holdfast.values import Damage, Growth, Stats

if TYPE_CHECKING:
    from holdfast.storage.protocol import Snapshot

_PAGE_MESSAGES: Final = 500
_DAY_US: Final = 86_400_000_000

BlobUses: TypeAlias = Callable[[int, int], Collection[str]]


def own_messages(snapshot: Snapshot, branch: BranchRow) -> Iterator[MessageRow]:
    """Return the messages on a branch itself, a page at a time.

    Pages grow where there are none: a damaged head may be very far away.
    """
    first, size = branch.fork_seq + 1, _PAGE_MESSAGES
    while first <= branch.last_seq:
        last = min(branch.last_seq, first + size - 1)
        span = Segment(branch.n, first, last, branch.session_id)
        found = [row for _, rows in snapshot.messages([span]) for row in rows]
        yield from found
        first, size = last + 1, _PAGE_MESSAGES if found else size * 2


def find_damage(snapshot: Snapshot, recorded: BlobUses | None = None) -> Iterator[Damage]:
    """Return what is damaged: sessions, their queues and branches, messages, and their blobs.

    `recorded` returns the hashes of the blobs that are recorded as used by a message, given its
    branch and seq.
    """
    blobs = _BlobChecker(snapshot)
    for item in snapshot.all_sessions():
        if isinstance(item, UnreadableSession):
            yield Damage(what=item.why, session_id=item.id)
        else:
            yield from _queue_damage(snapshot, *item)
    unreadable: dict[int, Damaged] = {}
    branches = list(_all_branches(snapshot, unreadable))
    yield from (Damage(what=str(error)) for error in unreadable.values())
    known = {None, *unreadable, *(branch.n for branch in branches)}
    for branch in branches:
        if branch.parent not in known:
            missing = f"the branch on which branch {branch.number} starts is missing"
            yield Damage(what=missing, session_id=branch.session_id)
        expected = branch.fork_seq + 1
        for row in own_messages(snapshot, branch):
            yield from _missing(branch, expected, row.seq)
            expected = row.seq + 1
            if codec.checksum(row.id, row.turn, row.body) != row.crc:
                yield _damage(branch, row.seq, f"message {row.seq} does not match its checksum")
            for what in blobs.check(row.body):
                yield _damage(branch, row.seq, what, blocking=False)
            if recorded is not None and not blobs.all_in(row.body, recorded, branch.n, row.seq):
                what = "the message references a blob that is not recorded for it"
                yield _damage(branch, row.seq, what)
        yield from _missing(branch, expected, branch.last_seq + 1)


def _queue_damage(snapshot: Snapshot, session: SessionRow, head: HeadRow) -> Iterator[Damage]:
    """Return what is damaged of queued input: its number, and the blobs that it needs."""
    try:
        rows = snapshot.queue(session.n)
    except Damaged as error:
        yield Damage(what=str(error), session_id=session.id)
        return
    found = []
    if len(rows) != head.queued:
        found.append(f"the session counts {head.queued} queued inputs and has {len(rows)}")
    for row in rows:
        own = dict(row.blobs)
        if any(codec.intact(sha256, data) is None for sha256, data in own.items()):
            found.append("a file attached to queued input does not match its hash")
        needed = {*chain(*codec.blob_hashes(row.body))} - own.keys()
        if any(snapshot.blob(sha256) is None for sha256 in needed):
            found.append("a file attached to queued input is missing")
    yield from (Damage(what=what, session_id=session.id) for what in found)


class _BlobChecker:
    """Compares each blob with its hash, once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._intact: dict[str, bool | None] = {}  # `None`: it is missing

    def check(self, body: bytes) -> Iterator[str]:
        """Return what is damaged of the blobs that a stored body refers to."""
        parts, files = codec.blob_hashes(body)
        for sha256 in (*parts, *files):
            intact = self._is_intact(sha256)
            if intact is False:
                yield f"blob {sha256} does not match its hash"
            # The data of a file may have been missing when the message was imported.
            elif intact is None and sha256 in parts:
                yield f"blob {sha256} is missing"

    def all_in(self, body: bytes, recorded: BlobUses, branch: int, seq: int) -> bool:
        """True if the blobs that a stored body refers to, and that exist, are recorded for it."""
        needed = [name for name in chain(*codec.blob_hashes(body)) if self._is_intact(name)]
        return not needed or set(needed) <= set(recorded(branch, seq))

    def _is_intact(self, sha256: str) -> bool | None:
        if sha256 not in self._intact:
            data = self._snapshot.stored_blob(sha256)
            self._intact[sha256] = None if data is None else codec.sha256_hex(data) == sha256
        return self._intact[sha256]


def _missing(branch: BranchRow, first: int, end: int) -> Iterator[Damage]:
    if first < end:
        one, several = f"message {first} is missing", f"messages {first} to {end - 1} are missing"
        yield _damage(branch, first, one if first + 1 == end else several)


def _damage(branch: BranchRow, seq: int, what: str, *, blocking: bool = True) -> Damage:
    return Damage(what=what, session_id=branch.session_id, seq=seq, blocking=blocking)


def count_rows(snapshot: Snapshot) -> Stats:
    """Count what is stored; the size of files is 0."""
    sessions = _readable(snapshot)
    messages: Counter[int] = Counter()
    blobs: dict[str, int] = {}
    branches = list(_all_branches(snapshot))
    for branch in branches:
        for row in own_messages(snapshot, branch):
            messages[branch.session] += 1
            blobs.update(
                (name, len(snapshot.stored_blob(name) or b""))
                for name in chain(*codec.blob_hashes(row.body))
            )
    usage = [row for session, _ in sessions for row in snapshot.usage(session=session.n)]
    return Stats(
        sessions=len(sessions),
        trashed=sum(session.trashed_at is not None for session, _ in sessions),
        branches=len(branches),
        messages=messages.total(),
        turns=sum(head.turns for _, head in sessions),
        open_turns=sum(head.open_turn is not None for _, head in sessions),
        blobs=len(blobs),
        blob_bytes=sum(blobs.values()),
        file_bytes=0,
        growth=_growth([session for session, _ in sessions], messages),
        days=sum_by_day((row.day, row.model, row.usage, row.cost) for row in usage),
    )


def _growth(sessions: list[SessionRow], messages: Counter[int]) -> tuple[Growth, ...]:
    created: Counter[int] = Counter()
    written: Counter[int] = Counter()
    for session in sessions:
        day = session.created_at // _DAY_US
        created[day] += 1
        written[day] += messages[session.n]
    return tuple(Growth(to_day(day), created[day], written[day]) for day in sorted(created))


def _readable(snapshot: Snapshot) -> list[tuple[SessionRow, HeadRow]]:
    """Return all sessions that can be read, those in the trash too."""
    listed = snapshot.all_sessions()
    return [item for item in listed if not isinstance(item, UnreadableSession)]


def _all_branches(
    snapshot: Snapshot, unreadable: dict[int, Damaged] | None = None
) -> Iterator[BranchRow]:
    """Return the branches of all sessions, and those that they start on, of purged ones too.

    Those that cannot be read are added to `unreadable`; without it they are an error.
    """
    known: set[int] = set()
    for session, _ in _readable(snapshot):
        for branch in snapshot.branches(session=session.n):
            current: BranchRow | None = branch
            while current is not None and current.n not in known:
                known.add(current.n)
                yield current
                current = _parent(snapshot, current, unreadable)


def _parent(
    snapshot: Snapshot, branch: BranchRow, unreadable: dict[int, Damaged] | None
) -> BranchRow | None:
    if branch.parent is None:
        return None
    try:
        return snapshot.find_branch(branch.parent)
    except Damaged as error:
        if unreadable is None:
            raise
        unreadable[branch.parent] = error
        return None
