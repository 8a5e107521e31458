"""Queries on sessions: their descriptions, messages, turns, queues, usage and blobs."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from holdfast import codec, validation
from holdfast.clock import to_datetime
from holdfast.cost import from_pico
from holdfast.errors import (
    BadQuery,
    Damaged,
    MessageNotFound,
    SessionNotFound,
)
from holdfast.ids import turn_id
from holdfast.operations.history import DamageCallback, last_covered_seq, newest_summary, read_span
from holdfast.operations.queue import queued_message
from holdfast.operations.session_fields import info_fields
from holdfast.operations.turns import is_abandoned
from holdfast.storage.ancestry import seq_range
from holdfast.storage.prefetch import Prefetch, Prefetched
from holdfast.storage.protocol import Query, Snapshot
from holdfast.storage.rows import HeadRow, QueueRow, SessionRow, ToolRow, TurnRow
from holdfast.values import (
    Activity,
    Damage,
    Head,
    MeasuredTokens,
    Message,
    ModelUsage,
    QueuedInput,
    SessionInfo,
    SessionState,
    ToolRecord,
    TurnInfo,
    Usage,
    UsageReport,
)

_MAX_MEASURED_ROWS: Final = 64
_MAX_PREFETCH_MESSAGES: Final = 500  # messages; more are read when needed
RowT = TypeVar("RowT", SessionRow, SessionRow | None)

# ------------------------------------------------------------------------------------- sessions


def info(session: int) -> Query[SessionInfo]:
    """Return the description of a session."""

    def run(snapshot: Snapshot) -> SessionInfo:
        return describe(snapshot, _require_row(snapshot, session), _require_head(snapshot, session))

    return Prefetched(run, Prefetch(session, items=("session",)))


def describe(
    snapshot: Snapshot, row: SessionRow, head: HeadRow, *, forks: int | None = None
) -> SessionInfo:
    """Return the description of a session from its rows; raise `Damaged` if they are invalid.

    `forks` is the number of its forks, if the caller has counted them already.
    """
    counted = snapshot.count_forks([row.id]).get(row.id, 0) if forks is None else forks
    try:
        return _describe(row, head, _state(snapshot, head), counted)
    except ValueError as error:
        raise Damaged(
            f"session {row.id} cannot be described ({type(error).__name__}); run store.verify()."
        ) from error


def _describe(row: SessionRow, head: HeadRow, state: SessionState, forks: int) -> SessionInfo:
    return SessionInfo(
        **info_fields(row),
        state=state,
        updated_at=to_datetime(head.updated_at),
        turns=head.turns,
        messages=head.seq,
        usage=head.usage,
        cost=from_pico(head.cost),
        preview=head.preview,
        trashed=row.trashed_at is not None,
        branches=head.branch_no,
        forks=forks,
        interrupted=state == "interrupted",
    )


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
        return row, _state(snapshot, _require_head(snapshot, row.n)) == "interrupted"

    return run


def activity(since: int) -> Query[list[Activity]]:
    """Return the sessions written to since an activity number, in order of activity."""

    def run(snapshot: Snapshot) -> list[Activity]:
        return [
            Activity(number, session_id, Head(branch, seq))
            for number, session_id, branch, seq in snapshot.activity_after(since, 1000)
        ]

    return Prefetched(run)


# ------------------------------------------------------------------------------------- messages


def head(session: int) -> Query[Head]:
    """Return the head of a session."""

    def run(snapshot: Snapshot) -> Head:
        row = _require_head(snapshot, session)
        return Head(row.branch_no, row.seq)

    return Prefetched(run, Prefetch(session))


def messages(
    session: int,
    *,
    limit: int | None,
    before: int | None,
    after: int | None,
    branch: int | None,
    report: DamageCallback,
) -> Query[list[Message]]:
    """Return part of a history, oldest first; see `seq_range` for which part."""
    for name, value in (("limit", limit), ("before", before), ("after", after)):
        if value is not None:
            validation.check_number(value, name)
    if branch is not None:
        branch = validation.check_number(branch, "branch", lowest=1)

    def run(snapshot: Snapshot) -> list[Message]:
        row = _on_branch(snapshot, _require_head(snapshot, session), branch)
        span = seq_range(row.seq, limit=limit, before=before, after=after)
        return read_messages(snapshot, row, span, report=report)

    at_the_end = before is None and after is None and branch is None
    newest = limit if at_the_end and limit is not None and limit <= _MAX_PREFETCH_MESSAGES else 0
    return Prefetched(run, Prefetch(session, newest=newest))


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
    """Return one message of a history by its id."""

    def run(snapshot: Snapshot) -> Message:
        row = _require_head(snapshot, session)
        found = snapshot.stored(row.branch, [message_id])
        if message_id not in found:
            raise MessageNotFound(f"this history has no message {message_id!r}.")
        seq = found[message_id][1].seq
        return read_messages(snapshot, row, (seq, seq), report=report)[0]

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
        owner = _require_row(snapshot, session)
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
        _require_row(snapshot, session)
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
        _require_row(snapshot, session)
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


def blob(sha256: str, report: DamageCallback) -> Query[bytes]:
    """Return a blob; raise `Damaged`, and report it, if it does not match its hash."""
    validation.check_filter(sha256, "sha256")

    def run(snapshot: Snapshot) -> bytes:
        stored = snapshot.stored_blob(sha256)
        if stored is None:
            raise MessageNotFound(f"this store has no blob {sha256}.")
        data = codec.intact(sha256, stored)
        if data is None:
            what = f"blob {sha256} does not match its hash"
            report(Damage(what=what, blocking=False))
            raise Damaged(
                f"{what}; run store.verify() to check the rest. Storing the same data again "
                "repairs it.",
                blocking=False,
            )
        return data

    return run


def measured_tokens(snapshot: Snapshot, model: str) -> MeasuredTokens:
    """Sum the reported and estimated tokens of a model's newest rows of usage."""
    rows = snapshot.usage(model=model, limit=_MAX_MEASURED_ROWS)
    return sum((row.measured for row in rows), MeasuredTokens())


def _require_row(snapshot: Snapshot, session: int) -> SessionRow:
    row = snapshot.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return row


def _require_head(snapshot: Snapshot, session: int) -> HeadRow:
    row = snapshot.head(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return row
