"""Queries on sessions: their descriptions, messages, turns, queues, usage and blobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import codec, validation
from holdfast.clock import to_datetime
from holdfast.cost import from_pico
from holdfast.errors import (
    BadQuery,
    Damaged,
    NotFound,
    SessionNotFound,
)
from holdfast.ids import turn_id
from holdfast.operations.history import (
    DamageCallback,
    MessageFilter,
    last_covered_seq,
    newest_summary,
    read_matching,
    read_row,
    read_span,
)
from holdfast.operations.positions import check_position, find_message, resolve_position
from holdfast.operations.queue import queued_message
from holdfast.operations.records import read_record
from holdfast.operations.session_fields import to_info
from holdfast.operations.turns import is_abandoned
from holdfast.storage.ancestry import Segment, cut_segment, record_ranges, seq_range
from holdfast.storage.prefetch import Prefetch, Prefetched
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import HeadRow, QueueRow, SessionRow, ToolRow, TurnRow
from holdfast.values import (
    Activity,
    Damage,
    Head,
    MeasuredTokens,
    Message,
    MessageRef,
    ModelUsage,
    QueuedInput,
    Record,
    Role,
    SessionInfo,
    SessionState,
    ToolRecord,
    TurnInfo,
    Usage,
    UsageReport,
)

_MAX_MEASURED_ROWS: Final = 64
_MAX_PREFETCH_MESSAGES: Final = 500  # messages; more are read when needed
_FIRST_PAGE_MESSAGES: Final = 32
_MAX_PAGE_MESSAGES: Final = 512
RowT = TypeVar("RowT", SessionRow, SessionRow | None)

# ------------------------------------------------------------------------------------- sessions


def info(session: int) -> Query[SessionInfo]:
    """Return the description of a session."""

    def run(snapshot: Snapshot) -> SessionInfo:
        return describe(snapshot, require_row(snapshot, session), _require_head(snapshot, session))

    return Prefetched(run, Prefetch(session, items=("session",)))


def describe(
    snapshot: Snapshot, row: SessionRow, head: HeadRow, *, forks: int | None = None
) -> SessionInfo:
    """Return the description of a session from its rows; raise `Damaged` if they are invalid.

    `forks` is the number of its forks, if the caller has counted them already.
    """
    counted = snapshot.count_forks([row.id]).get(row.id, 0) if forks is None else forks
    try:
        return to_info(row, head, _state(snapshot, head), counted)
    except ValueError as error:
        raise Damaged(
            f"session {row.id} cannot be described ({type(error).__name__}); run store.verify()."
        ) from error


def _state(snapshot: Snapshot, head: HeadRow) -> SessionState:
    if head.open_turn is None:
        return "done"
    turn = snapshot.turn(head.session, head.open_turn)
    return "open" if turn and not is_abandoned(snapshot, turn) else "interrupted"


def find_with_interrupted(find: Query[RowT]) -> Query[tuple[RowT, bool]]:
    """Return the session that `find` returns, and whether a crash left a turn to recover in it."""

    def run(snapshot: Snapshot) -> tuple[RowT, bool]:
        row = find(snapshot)
        if row is None:
            return row, False
        head = snapshot.head(row.n)
        if head is None:
            raise Damaged(f"the head of session {row.id} is missing; run store.verify().")
        return row, _state(snapshot, head) == "interrupted"

    return run


def activity(since: int) -> Query[list[Activity]]:
    """Return the sessions written to since an activity number, in order of activity."""

    def run(snapshot: Snapshot) -> list[Activity]:
        return [
            Activity(number, session_id, Head(branch, seq))
            for number, session_id, branch, seq in snapshot.activity_after(since, 1000)
        ]

    return Prefetched(run)


# -------------------------------------------------------------------------------------- records


def record(
    session: int, kind: str, key: str | None, *, at: MessageRef | None, report: DamageCallback
) -> Query[Record | None]:
    """Return the newest record of a kind and key, as of a position."""
    validation.check_name(kind, "kind")
    if key is not None:
        validation.check_name(key, "key")
    position = check_position(at, "at")

    def run(snapshot: Snapshot) -> Record | None:
        head = _require_head(snapshot, session)
        ranges = record_ranges(snapshot.path(head.branch))
        if position is not None:
            found_at = resolve_position(snapshot, head, position)
            ranges = record_ranges(snapshot.path(found_at.branch), found_at.seq)
        found = snapshot.records(ranges, kind=kind, key=key, limit=1)
        return read_record(snapshot, found[0][1], found[0][0], report) if found else None

    names = ((kind, key),) if position is None else ()
    return Prefetched(run, Prefetch(session, record_names=names))


class RecordFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records to read: of a kind and key, the newest `limit` of those `before` one."""

    kind: str | None = None
    key: str | UnsetType | None = UNSET
    prefix: str | None = None
    before: str | None = None
    limit: int | None = None
    all_branches: bool = False


def check_record_filter(wanted: RecordFilter) -> RecordFilter:
    """Return the filter; raise, naming the field, if a value is not valid."""
    for field in ("kind", "key", "prefix", "before"):
        value = getattr(wanted, field)
        if value is not None and value is not UNSET:
            validation.check_name(value, field)
    for field, is_given in (("key", wanted.key is not UNSET), ("prefix", wanted.prefix)):
        if is_given and wanted.kind is None:
            raise BadQuery(f"{field}: pass kind as well, keys are those of a kind")
    if wanted.prefix is not None and wanted.key is not UNSET:
        raise BadQuery("prefix: pass either a key or the beginning of one")
    if wanted.limit is not None:
        validation.check_number(wanted.limit, "limit")
    validation.check_flag(wanted.all_branches, "all_branches", optional=False)
    return wanted


def records(session: int, wanted: RecordFilter, report: DamageCallback) -> Query[list[Record]]:
    """Return records of the current history, or of all branches, in the order of storing."""

    def run(snapshot: Snapshot) -> list[Record]:
        head = _require_head(snapshot, session)
        branches = [head.branch]
        ranges: list[Segment] = []
        if wanted.all_branches:
            # A session never returns to a branch, so later branches have later records.
            *later, first = reversed(snapshot.all_branches(session))
            ranges = [row.own() for row in later]
            branches = [*(row.n for row in later), first.n]
        ranges += record_ranges(snapshot.path(branches[-1]))
        if wanted.before is not None:
            ranges = _ranges_before(snapshot, branches, ranges, wanted.before)
        found = snapshot.records(
            ranges, kind=wanted.kind, key=wanted.key, prefix=wanted.prefix, limit=wanted.limit
        )
        return [read_record(snapshot, row, owner, report) for owner, row in reversed(found)]

    return Prefetched(run, Prefetch(session))


def _ranges_before(
    snapshot: Snapshot, branches: list[int], ranges: list[Segment], record_id: str
) -> list[Segment]:
    """Return the ranges up to a record; raise `BadQuery` if these branches do not have it."""
    histories = (snapshot.stored_records(branch, [record_id]) for branch in branches)
    row = next((found[record_id] for found in histories if record_id in found), None)
    if row is None:
        raise BadQuery(f"before: there is no record {record_id!r} among those to read")
    for at, segment in enumerate(ranges):
        upto = cut_segment(segment, row.seq, row.number)
        if segment.first - 1 <= row.seq and snapshot.records([upto], limit=1) == [
            (segment.session_id, row)
        ]:
            return [cut_segment(upto, None, row.number - 1), *ranges[at + 1 :]]
    raise Damaged(f"record {record_id!r} is not where its history has it; run store.verify().")


def store_record(
    kind: str, key: str | None, *, scope: str | None, report: DamageCallback
) -> Query[Record | None]:
    """Return the current record of the store with this scope, kind and key."""
    validation.check_name(kind, "kind")
    for field, value in (("key", key), ("scope", scope)):
        if value is not None:
            validation.check_name(value, field)

    def run(snapshot: Snapshot) -> Record | None:
        row = snapshot.store_record(scope, kind, key)
        return None if row is None else read_record(snapshot, row, report=report)

    return Prefetched(run)


# ------------------------------------------------------------------------------------- messages


def head(session: int) -> Query[Head]:
    """Return the head of a session."""

    def run(snapshot: Snapshot) -> Head:
        row = _require_head(snapshot, session)
        return Head(row.branch_no, row.seq)

    return Prefetched(run, Prefetch(session))


class HistoryBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of which history to read; see `Session.messages`."""

    before: int | None = None
    after: int | None = None
    branch: int | None = None
    upto: MessageRef | None = None


_WHOLE: Final = HistoryBounds()


def check_bounds(bounds: HistoryBounds) -> HistoryBounds:
    """Return the bounds; raise, naming the field, if a value is not valid."""
    for name in ("before", "after"):
        value = getattr(bounds, name)
        if value is not None:
            validation.check_number(value, name)
    branch = bounds.branch
    if branch is not None:
        branch = validation.check_number(branch, "branch", lowest=1)
    upto = check_position(bounds.upto, "upto")
    return msgspec.structs.replace(bounds, branch=branch, upto=upto)


def messages(
    session: int,
    bounds: HistoryBounds,
    *,
    limit: int | None,
    wanted: MessageFilter | None,
    report: DamageCallback,
) -> Query[list[Message]]:
    """Return part of a history, oldest first; see `seq_range` for which part.

    Of the messages that are `wanted`, pages are read until there are `limit`.
    """
    bounds = check_bounds(bounds)
    after = bounds.after
    if limit is not None:
        validation.check_number(limit, "limit")

    def run(snapshot: Snapshot) -> list[Message]:
        row, end = _locate(snapshot, _require_head(snapshot, session), bounds)
        if wanted is None:
            span = seq_range(row.seq, limit=limit, before=end, after=after)
            return read_messages(snapshot, row, span, report=report)
        reader = _FilteredReader(snapshot, row, wanted, report)
        span = seq_range(row.seq, limit=None, before=end, after=after)
        if limit is None:
            return reader.read(span)
        return reader.next(span, limit) if _is_forward(after, end) else reader.newest(span, limit)

    newest = _prefetched_messages(limit, wanted) if bounds == _WHOLE and limit is not None else 0
    return Prefetched(run, Prefetch(session, newest=newest))


class HistoryPart(msgspec.Struct, frozen=True):
    """Messages `first` to `last` of one branch's history, of which `size` are read next."""

    branch: int
    first: int
    last: int
    size: int


def history_page(
    session: int,
    part: HistoryPart | HistoryBounds,
    wanted: MessageFilter | None,
    report: DamageCallback,
) -> Query[tuple[list[Message], HistoryPart]]:
    """Return the first messages of a part of a history, and the part that remains.

    Messages of a branch stay, so what remains is whole whatever is written between two pages.
    """

    def run(snapshot: Snapshot) -> tuple[list[Message], HistoryPart]:
        head = _require_head(snapshot, session)
        rest = part if isinstance(part, HistoryPart) else _part(snapshot, head, part)
        span = (rest.first, min(rest.last, rest.first + rest.size - 1))
        path = snapshot.path(rest.branch, rest.first)
        last = (head.branch, head.seq) == (rest.branch, span[1])
        if wanted is None:
            found = read_span(snapshot, path, span, last=last, report=report)
        else:
            found = read_matching(snapshot, path, span, wanted, last=last, report=report)
        return found, HistoryPart(rest.branch, span[1] + 1, rest.last, _next_page(rest.size))

    return Prefetched(run, Prefetch(session))


def _part(snapshot: Snapshot, head: HeadRow, bounds: HistoryBounds) -> HistoryPart:
    row, end = _locate(snapshot, head, bounds)
    first, last = seq_range(row.seq, limit=None, before=end, after=bounds.after)
    return HistoryPart(row.branch, first, last, _FIRST_PAGE_MESSAGES)


def _locate(snapshot: Snapshot, head: HeadRow, bounds: HistoryBounds) -> tuple[HeadRow, int | None]:
    """Return the history that the bounds name, and the seq that the part ends before."""
    row = _on_branch(snapshot, head, bounds.branch)
    if bounds.upto is None:
        return row, bounds.before
    row, seq = _at(snapshot, row, bounds.upto, bounds.branch)
    return row, seq + 1 if bounds.before is None else min(bounds.before, seq + 1)


def _prefetched_messages(limit: int, wanted: MessageFilter | None) -> int:
    if wanted is not None:
        return min(_first_page(limit), _MAX_PREFETCH_MESSAGES) if limit else 0
    return limit if limit <= _MAX_PREFETCH_MESSAGES else 0


def _is_forward(after: int | None, before: int | None) -> bool:
    """Return whether the next messages are read, and not the newest; as in `seq_range`."""
    return after is not None and before is None


def _at(
    snapshot: Snapshot, row: HeadRow, upto: MessageRef, branch: int | None
) -> tuple[HeadRow, int]:
    """Return the history that has a position, and its seq there."""
    found = resolve_position(snapshot, row, upto)
    if branch is not None and found.branch != row.branch:
        raise BadQuery(f"upto: this message is not on branch {branch}; pass it without `branch`")
    return msgspec.structs.replace(row, branch=found.branch, seq=found.end), found.seq


def message_filter(
    role: Role | Sequence[Role] | None,
    hidden: bool | None,  # noqa: FBT001 - as callers pass it
) -> MessageFilter | None:
    """Return the filter for these roles and hidden messages; `None` if it excludes none."""
    validation.check_flag(hidden, "hidden", optional=True)
    if role is None and hidden is None:
        return None
    known = get_args(Role)
    given: object = known if role is None else (role,) if isinstance(role, str) else role
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise BadQuery(f"role: expected one or several of {', '.join(known)}")
    roles = list(given)
    if not roles or any(one not in known for one in roles):
        raise BadQuery(f"role: expected one or several of {', '.join(known)}")
    return MessageFilter(frozenset(roles), hidden)


class _FilteredReader:
    """Reads the messages of a history that match a filter, page by page, as far as needed."""

    def __init__(
        self, snapshot: Snapshot, row: HeadRow, wanted: MessageFilter, report: DamageCallback
    ) -> None:
        self._snapshot = snapshot
        self._row = row
        self._wanted = wanted
        self._report = report

    def read(self, span: tuple[int, int]) -> list[Message]:
        """Read all that match in `span`."""
        path, last = self._snapshot.path(self._row.branch, span[0]), span[1] == self._row.seq
        return read_matching(
            self._snapshot, path, span, self._wanted, last=last, report=self._report
        )

    def newest(self, span: tuple[int, int], limit: int) -> list[Message]:
        """Read the newest `limit` that match, backwards."""
        (low, high), size = span, _first_page(limit)
        found: list[Message] = []
        while low <= high and len(found) < limit:
            found = self.read((max(low, high - size + 1), high)) + found
            high, size = high - size, _next_page(size)
        return found[-limit:] if limit else []

    def next(self, span: tuple[int, int], limit: int) -> list[Message]:
        """Read the first `limit` that match, forwards."""
        (low, high), size = span, _first_page(limit)
        found: list[Message] = []
        while low <= high and len(found) < limit:
            found += self.read((low, min(high, low + size - 1)))
            low, size = low + size, _next_page(size)
        return found[:limit]


def _first_page(limit: int) -> int:
    """Return how many messages to read first: more than are wanted, since not all match."""
    return min(max(2 * limit, _FIRST_PAGE_MESSAGES), _MAX_PAGE_MESSAGES)


def _next_page(size: int) -> int:
    return min(2 * size, _MAX_PAGE_MESSAGES)


def _on_branch(snapshot: Snapshot, row: HeadRow, number: int | None) -> HeadRow:
    if number is None or number == row.branch_no:
        return row
    found = snapshot.branch(row.session, number)
    if found is None:
        raise BadQuery(f"branch: this session has no branch {number}")
    return msgspec.structs.replace(row, branch=found.n, branch_no=number, seq=found.last_seq)


def read_messages(
    snapshot: Snapshot,
    row: HeadRow,
    span: tuple[int, int],
    *,
    report: DamageCallback | None = None,
    strict: bool = False,
) -> list[Message]:
    """Read the messages of `span` in the history that ends at `row`; see `read_span`."""
    # A row after the head means that the head is wrong, so at the end read one more.
    path, last = snapshot.path(row.branch, span[0]), span[1] == row.seq
    return read_span(snapshot, path, span, last=last, report=report, strict=strict)


def message(session: int, message_id: str, report: DamageCallback) -> Query[Message]:
    """Return one message by its id, of the current history or else of another branch."""
    validation.check_name(message_id, "id")

    def run(snapshot: Snapshot) -> Message:
        head_row = _require_head(snapshot, session)
        _, owner, row = find_message(snapshot, head_row, message_id)
        return read_row(snapshot, owner, row, report)

    return Prefetched(run, Prefetch(session))


def find_with_message(
    find: Query[SessionRow], message_id: str, report: DamageCallback
) -> Query[tuple[SessionRow, bool, Message]]:
    """Return the session that `find` returns, as `find_with_interrupted`, and a message of it."""
    find_session = find_with_interrupted(find)

    def run(snapshot: Snapshot) -> tuple[SessionRow, bool, Message]:
        row, interrupted = find_session(snapshot)
        return row, interrupted, message(row.n, message_id, report)(snapshot)

    return run


# ------------------------------------------------------------------- turns, queue, usage, blobs


def summary(session: int, report: DamageCallback) -> Query[Message | None]:
    """Return the newest summary of a history."""
    return lambda snapshot: newest_summary(snapshot, _require_head(snapshot, session), report)


def covered(session: int, report: DamageCallback) -> Query[int]:
    """Return the last seq that the newest summary covers; 0 without a summary."""

    def run(snapshot: Snapshot) -> int:
        row = _require_head(snapshot, session)
        found = newest_summary(snapshot, row, report)
        return 0 if found is None else last_covered_seq(snapshot, row, found)

    return run


def turns(session: int, limit: int | None) -> Query[list[TurnInfo]]:
    """Return the newest turns, oldest first."""
    limit = None if limit is None else validation.check_number(limit, "limit")

    def run(snapshot: Snapshot) -> list[TurnInfo]:
        owner = require_row(snapshot, session)
        return [
            _turn_info(owner.id, row, snapshot.tools(session, row.number))
            for row in snapshot.turns(session, limit=limit)
        ]

    return run


def _turn_info(session_id: str, row: TurnRow, tools: list[ToolRow]) -> TurnInfo:
    ended = row.ended_at
    return TurnInfo(
        id=turn_id(session_id, row.number),
        state=row.state,
        run_id=row.run_id,
        model=row.model,
        started_at=to_datetime(row.started_at),
        ended_at=None if ended is None else to_datetime(ended),
        latency_ms=None if ended is None else max(0, ended - row.started_at) // 1000,
        usage=row.usage,
        cost=from_pico(row.cost),
        error=row.error,
        tools=tuple(_tool_record(tool) for tool in tools),
    )


def _tool_record(row: ToolRow) -> ToolRecord:
    return ToolRecord(
        call_id=row.call_id,
        name=row.name,
        outcome=row.outcome,
        started_at=None if row.started_at is None else to_datetime(row.started_at),
        ended_at=None if row.ended_at is None else to_datetime(row.ended_at),
    )


def queued(session: int, *, held: bool = False) -> Query[list[QueuedInput]]:
    """Return the input queued for the next turn, or that which is held."""

    def run(snapshot: Snapshot) -> list[QueuedInput]:
        require_row(snapshot, session)
        return [
            queued_input(queued_message(snapshot, row), row)
            for row in snapshot.queue(session)
            if bool(row.held) is held
        ]

    return run


def queued_input(message: Message, row: QueueRow) -> QueuedInput:
    """Return queued input as callers see it."""
    return QueuedInput(id=row.id, message=message, created_at=to_datetime(row.created_at))


def usage(session: int) -> Query[UsageReport]:
    """Return the usage and cost of a session, in total and by model."""

    def run(snapshot: Snapshot) -> UsageReport:
        require_row(snapshot, session)
        sums: dict[str | None, tuple[Usage, int]] = {}
        for row in snapshot.usage(session=session):
            spent, cost = sums.get(row.model, (Usage(), 0))
            sums[row.model] = (spent + row.usage, cost + row.cost)
        by_model = tuple(
            ModelUsage(model, spent, from_pico(cost)) for model, (spent, cost) in sums.items()
        )
        total = sum((item.usage for item in by_model), Usage())
        return UsageReport(total, from_pico(sum(cost for _, cost in sums.values())), by_model)

    return run


def blobs(hashes: Sequence[str], report: DamageCallback) -> Query[dict[str, bytes]]:
    """Return blobs by their hashes; raise `NotFound` naming those that are not stored.

    Raise `Damaged`, and report them, if some do not match their hashes.
    """
    for sha256 in hashes:
        if type(sha256) is not str:
            raise BadQuery("sha256: expected the hash of a blob as text")

    def run(snapshot: Snapshot) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(hashes))
        stored = snapshot.stored_blobs(wanted)
        missing = [sha256 for sha256 in wanted if sha256 not in stored]
        if missing:
            raise NotFound(f"this store has no blob {', '.join(missing)}.")
        damaged = [sha256 for sha256 in wanted if codec.intact(sha256, stored[sha256]) is None]
        for sha256 in damaged:
            report(Damage(what=_not_matching(sha256), blocking=False))
        if damaged:
            raise Damaged(
                f"{_not_matching(', '.join(damaged))}; run store.verify() to check the rest. "
                "Storing the same data again repairs it.",
                blocking=False,
            )
        return {sha256: stored[sha256] for sha256 in wanted}

    return run


def _not_matching(blob: str) -> str:
    return f"blob {blob} does not match its hash"


def measured_tokens(snapshot: Snapshot, model: str) -> MeasuredTokens:
    """Sum the reported and estimated tokens of a model's newest rows of usage."""
    rows = snapshot.usage(model=model, limit=_MAX_MEASURED_ROWS)
    return sum((row.measured for row in rows), MeasuredTokens())


def require_row(snapshot: Snapshot, session: int) -> SessionRow:
    """Return a session's identity for a read; raise `SessionNotFound` if there is none."""
    row = snapshot.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return row


def _require_head(snapshot: Snapshot, session: int) -> HeadRow:
    row = snapshot.head(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return row
