"""Checks and counts of a whole store, by the reads of a snapshot.

They are the `verify` and `stats` of a backend that has no statements of its own for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast import codec
from holdfast.clock import to_day
from holdfast.cost import sum_by_day
from holdfast.errors import Damaged
from holdfast.storage.ancestry import Segment
from holdfast.storage.rows import (
    BranchRow,
    HeadRow,
    MessageRow,
    RecordRow,
    SessionRow,
    UnreadableSession,
)
from holdfast.values import Damage, Growth, Stats

if TYPE_CHECKING:
    from holdfast.storage.protocol import Snapshot

_PAGE_MESSAGES: Final = 500
_PAGE_RECORDS: Final = 500
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


def own_records(snapshot: Snapshot, branch: BranchRow) -> Iterator[RecordRow]:
    """Return the records on a branch itself, a page at a time, the newest first."""
    last: int | None = None
    while snapshot.has_records(branch.n, branch.last_seq):
        found = [row for _, row in snapshot.records([branch.own(last)], limit=_PAGE_RECORDS)]
        yield from found
        if len(found) < _PAGE_RECORDS:
            return
        last = found[-1].number - 1


def find_damage(
    snapshot: Snapshot, recorded: BlobUses | None = None, of_records: BlobUses | None = None
) -> Iterator[Damage]:
    """Return what is damaged: sessions, queues, branches, messages, records, and their blobs.

    `recorded` returns the hashes of the blobs that are recorded as used by a message, given its
    branch and seq; `of_records` those of a record, given its branch and number.
    """
    blobs = _BlobChecker(snapshot)
    counted: dict[int, int] = {}  # The records that heads count, by branch.
    for item in snapshot.all_sessions():
        if isinstance(item, UnreadableSession):
            yield Damage(what=item.why, session_id=item.id)
        else:
            counted[item[1].branch] = item[1].records or 0
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
            hashes = codec.blob_hashes(row.body)
            for what in blobs.check(*hashes):
                yield _damage(branch, row.seq, what, blocking=False)
            if any(hashes) and recorded and not blobs.all_in(recorded(branch.n, row.seq), *hashes):
                what = "the message references a blob that is not recorded for it"
                yield _damage(branch, row.seq, what)
        yield from _missing(branch, expected, branch.last_seq + 1)
        records = own_records(snapshot, branch)
        yield from _record_damage(branch, records, blobs, counted.get(branch.n), of_records)
    yield from _store_record_damage(snapshot, blobs)


def _store_record_damage(snapshot: Snapshot, blobs: _BlobChecker) -> Iterator[Damage]:
    for row in snapshot.store_records():
        if not row.is_intact:
            yield Damage(what=f"record {row.id!r} does not match its checksum")
        for what in blobs.check(*codec.record_blob_hashes(row.body or b"")):
            yield Damage(what=what, blocking=False)


def _record_damage(
    branch: BranchRow,
    newest_first: Iterable[RecordRow],
    blobs: _BlobChecker,
    counted: int | None,
    recorded: BlobUses | None,
) -> Iterator[Damage]:
    """Return what is damaged of a branch's records: their bodies, order, number and blobs."""
    end = branch.last_seq
    for row in newest_first:
        hashes = codec.record_blob_hashes(row.body)
        found = []
        if not row.is_intact:
            found.append("does not match its checksum")
        if not branch.fork_seq <= row.seq <= end:
            found.append("is not in order")
        if counted is not None and row.number > counted:
            found.append("is not counted by the head")
        if any(hashes) and recorded and not blobs.all_in(recorded(branch.n, row.number), *hashes):
            found.append("references a blob that is not recorded for it")
        end = min(end, row.seq)
        yield from (_damage(branch, row.seq, f"record {row.id!r} {what}") for what in found)
        for what in blobs.check(*hashes):
            yield _damage(branch, row.seq, what, blocking=False)


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

    def check(self, parts: Collection[str], files: Collection[str]) -> Iterator[str]:
        """Return what is damaged of the blobs that a body refers to: its parts and files."""
        for sha256 in (*parts, *files):
            intact = self._is_intact(sha256)
            if intact is False:
                yield f"blob {sha256} does not match its hash"
            # The data of a file may have been missing when the message was imported.
            elif intact is None and sha256 in parts:
                yield f"blob {sha256} is missing"

    def all_in(
        self, recorded: Collection[str], parts: Collection[str], files: Collection[str]
    ) -> bool:
        """True if those of these blobs that exist are recorded for what refers to them."""
        return {name for name in (*parts, *files) if self._is_intact(name)} <= set(recorded)

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
    names: set[str] = set()
    branches = list(_all_branches(snapshot))
    for branch in branches:
        for row in own_messages(snapshot, branch):
            messages[branch.session] += 1
            names.update(chain(*codec.blob_hashes(row.body)))
        for record in own_records(snapshot, branch):
            names.update(chain(*codec.record_blob_hashes(record.body)))
    for shared in snapshot.store_records():
        names.update(chain(*codec.record_blob_hashes(shared.body or b"")))
    blobs = [len(snapshot.stored_blob(name) or b"") for name in names]
    usage = [row for session, _ in sessions for row in snapshot.usage(session=session.n)]
    return Stats(
        sessions=len(sessions),
        trashed=sum(session.trashed_at is not None for session, _ in sessions),
        branches=len(branches),
        messages=messages.total(),
        turns=sum(head.turns for _, head in sessions),
        open_turns=sum(head.open_turn is not None for _, head in sessions),
        blobs=len(blobs),
        blob_bytes=sum(blobs),
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
