"""Checks and counts of a whole store, by the reads of a snapshot.

They are the `verify` and `stats` of a backend that has no statements of its own for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from holdfast import codec
from holdfast.clock import to_day
from holdfast.cost import sum_by_day
from holdfast.storage.ancestry import Segment
from holdfast.storage.rows import BranchRow, HeadRow, MessageRow, SessionRow, UnreadableSession
from holdfast.values import Damage, Growth, Stats

if TYPE_CHECKING:
    from holdfast.storage.protocol import Snapshot

_PAGE_MESSAGES: Final = 500
_DAY_US: Final = 86_400_000_000


def own_messages(snapshot: Snapshot, branch: BranchRow) -> Iterator[MessageRow]:
    """Return the messages on a branch itself, a page at a time."""
    for first in range(branch.fork_seq + 1, branch.last_seq + 1, _PAGE_MESSAGES):
        last = min(branch.last_seq, first + _PAGE_MESSAGES - 1)
        for _, rows in snapshot.messages([Segment(branch.n, first, last, branch.session_id)]):
            yield from rows


def find_damage(snapshot: Snapshot) -> Iterator[Damage]:
    """Return what is damaged: sessions, branches, messages, and the blobs they refer to."""
    for item in snapshot.all_sessions():
        if isinstance(item, UnreadableSession):
            yield Damage(what=item.why, session_id=item.id)
    branches = list(_all_branches(snapshot))
    known = {None, *(branch.n for branch in branches)}
    blobs = _BlobChecker(snapshot)
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
            yield from (_damage(branch, row.seq, what) for what in blobs.check(row.body))
        yield from _missing(branch, expected, branch.last_seq + 1)


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

    def _is_intact(self, sha256: str) -> bool | None:
        if sha256 not in self._intact:
            data = self._snapshot.blob(sha256)
            self._intact[sha256] = None if data is None else codec.sha256_hex(data) == sha256
        return self._intact[sha256]


def _missing(branch: BranchRow, first: int, end: int) -> Iterator[Damage]:
    for seq in range(first, end):
        yield _damage(branch, seq, f"message {seq} is missing")


def _damage(branch: BranchRow, seq: int, what: str) -> Damage:
    return Damage(what=what, session_id=branch.session_id, seq=seq)


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
                (name, len(snapshot.blob(name) or b""))
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


def _all_branches(snapshot: Snapshot) -> Iterator[BranchRow]:
    """Return the branches of all sessions, and those of purged sessions that they start on."""
    known: set[int] = set()
    for session, _ in _readable(snapshot):
        for branch in snapshot.branches(session=session.n):
            current: BranchRow | None = branch
            while current is not None and current.n not in known:
                known.add(current.n)
                yield current
                current = None if current.parent is None else snapshot.find_branch(current.parent)
