"""Builds the log of each session from the events and the final state.

A session's *log* is what was stored in it, in order: the own messages of its branches, by branch
number. Since every move of the head opens the next branch and branches only grow, that is the order
in which the messages were stored, however often the head moved.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TypeVar

import msgspec

from holdfast.proof.checker.event_log import (
    Acked,
    BadHistory,
    Branch,
    End,
    Event,
    Fenced,
    Invoked,
    Killed,
    Read,
    Refused,
    Stored,
    TornLine,
    Unknown,
)
from holdfast.proof.checker.verdict import Finding, ViolationKind

_T = TypeVar("_T")


class EventsByType(msgspec.Struct, frozen=True):
    """All events, by type."""

    invoked: list[Invoked]
    ends: list[End]
    reads: list[Read]
    fences: list[Fenced]
    kills: list[Killed]
    torn: list[TornLine]


class WriteAttempt(msgspec.Struct, frozen=True):
    """One operation: its beginning joined with its end, if it had one."""

    invoked: Invoked
    end: End | None

    @property
    def refused(self) -> bool:
        """True if the write was refused: then it stored nothing."""
        return isinstance(self.end, Refused)


class SessionLog(msgspec.Struct, frozen=True):
    """Everything known about one session; positions are indexes into its log, `stored`."""

    session: str
    writes: list[WriteAttempt]
    reads: list[Read]
    fences: list[Fenced]  # by time
    branches: Sequence[Branch]
    moves: bool  # True if its branches were passed; otherwise it has one, which only grows
    stored: Sequence[Stored]
    store_written: frozenset[str]
    positions: dict[str, int]  # id -> its first position
    writers: dict[str, list[WriteAttempt]]  # id -> the writes that may have stored it
    settled: dict[str, int]  # id -> the first time that an acknowledgement or a read reported it

    def acks(self) -> Iterator[tuple[Invoked, Acked]]:
        """Yield the acknowledged writes."""
        for write in self.writes:
            if isinstance(write.end, Acked):
                yield write.invoked, write.end

    def finding(self, kind: ViolationKind, detail: str, *ids: str) -> Finding:
        """Return a finding about this session."""
        return Finding(kind, self.session, detail, ids)


def sort_by_type(events: Iterable[Event]) -> EventsByType:
    """Sort events by type; they may come in any order."""
    log = EventsByType([], [], [], [], [], [])
    for event in events:
        match event:
            case Invoked():
                log.invoked.append(event)
            case Acked() | Refused() | Unknown():
                log.ends.append(event)
            case Read():
                log.reads.append(event)
            case Fenced():
                log.fences.append(event)
            case Killed():
                log.kills.append(event)
            case TornLine():
                log.torn.append(event)
    return log


def join_writes(log: EventsByType) -> list[WriteAttempt]:
    """Join each invocation with its end; raise `BadHistory` if they do not match."""
    invoked = {(event.worker, event.op): event for event in log.invoked}
    if len(invoked) != len(log.invoked):
        raise BadHistory(
            "two writes share worker and op: use a unique name for every life of a worker"
        )
    ends: dict[tuple[str, int | str], End] = {}
    for end in log.ends:
        key = (end.worker, end.op)
        if key in ends:
            raise BadHistory(f"op {end.op} of worker {end.worker!r} ended twice")
        _match(invoked.get(key), end)
        ends[key] = end
    return [WriteAttempt(event, ends.get(key)) for key, event in invoked.items()]


def _match(invoked: Invoked | None, end: End) -> None:
    where = f"op {end.op} of worker {end.worker!r}"
    if invoked is None:
        msg = f"{where} ended and never began"
    elif invoked.session != end.session or invoked.at > end.at:
        msg = f"{where} ended in another session, or before it began"
    elif isinstance(end, Acked) and len(end.seqs) not in {0, len(invoked.ids)}:
        msg = f"{where} was acknowledged with {len(end.seqs)} seqs for {len(invoked.ids)} ids"
    else:
        return
    raise BadHistory(msg)


class FinalState(msgspec.Struct, frozen=True):
    """The store's final state: plain histories, or all branches of a session."""

    final: Mapping[str, Sequence[Stored]]
    branches: Mapping[str, Sequence[Branch]]
    own: frozenset[str]

    def branches_of(self, session: str) -> tuple[Sequence[Branch], bool]:
        """Return a session's branches, and whether they were passed as such."""
        if session in self.branches:
            return self.branches[session], True
        return [Branch(1, "start", 0, 0, tuple(self.final.get(session, ())))], False


def session_logs(
    log: EventsByType, writes: list[WriteAttempt], kept: FinalState
) -> list[SessionLog]:
    """Build the log of each session."""
    by_writes = _group(writes, lambda write: write.invoked.session)
    by_reads = _group(log.reads, lambda read: read.session)
    by_fences = _group(sorted(log.fences, key=attrgetter("at")), lambda fence: fence.session)
    sessions = dict.fromkeys([*by_writes, *by_reads, *by_fences, *kept.final, *kept.branches])
    return [_history(s, by_writes[s], by_reads[s], by_fences[s], kept) for s in sessions]


def _group(items: Iterable[_T], key: Callable[[_T], str]) -> defaultdict[str, list[_T]]:
    groups: defaultdict[str, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _history(
    session: str,
    writes: list[WriteAttempt],
    reads: list[Read],
    fences: list[Fenced],
    kept: FinalState,
) -> SessionLog:
    branches, moves = kept.branches_of(session)
    stored = [message for branch in branches for message in branch.history[branch.fork_seq :]]
    positions: dict[str, int] = {}
    for position, message in enumerate(stored):
        positions.setdefault(message.id, position)
    writers: dict[str, list[WriteAttempt]] = {}
    for write in writes:
        if not write.refused:
            # An id may occur twice in one batch; it still has one writer there.
            for id_ in dict.fromkeys(write.invoked.ids):
                writers.setdefault(id_, []).append(write)
    return SessionLog(
        session,
        writes,
        reads,
        fences,
        branches,
        moves,
        stored,
        kept.own,
        positions,
        writers,
        _settled(writes, reads),
    )


def _settled(writes: list[WriteAttempt], reads: list[Read]) -> dict[str, int]:
    reports = [(w.end.at, w.invoked.ids) for w in writes if isinstance(w.end, Acked)]
    reports += [(read.ended, read.ids) for read in reads]
    settled: dict[str, int] = {}
    for at, ids in sorted(reports, key=itemgetter(0)):
        for id_ in ids:
            settled.setdefault(id_, at)
    return settled
