"""Reading: what a session is, what was said, and which sessions there are."""

from __future__ import annotations

import msgspec

from holdfast import checks, codec
from holdfast.backends.base import (
    HeadRow,
    Listed,
    Listing,
    Query,
    QueueRow,
    SessionRow,
    Snapshot,
    ToolRow,
    TurnRow,
    Unreadable,
)
from holdfast.clock import to_datetime
from holdfast.core.branches import interval
from holdfast.core.spending import from_pico
from holdfast.errors import (
    AmbiguousRef,
    BadQuery,
    BadRef,
    Damaged,
    MessageNotFound,
    SessionNotFound,
)
from holdfast.ids import turn_id
from holdfast.records import (
    Activity,
    Damage,
    Goal,
    Head,
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
from holdfast.verbs.appending import queued_message
from holdfast.verbs.histories import Report, read_span
from holdfast.verbs.turns import is_abandoned

_SHORTEST_PREFIX = 4

# ------------------------------------------------------------------------------------- sessions


def find(ref: str) -> Query[SessionRow]:
    """Find a session by id, key, unique id prefix, run id or title, in this order."""
    _check_ref(ref)
    return lambda snapshot: _only(ref, _found(snapshot, ref))


def find_in_trash(ref: str) -> Query[SessionRow]:
    """Find a session that is in the trash, also by the key or title it had; else any."""
    _check_ref(ref)

    def run(snapshot: Snapshot) -> SessionRow:
        found = [row for row in _found(snapshot, ref) if row.trashed_at is not None]
        return _only(ref, found or _thrown_away(snapshot, ref) or _found(snapshot, ref))

    return run


def find_anywhere(ref: str) -> Query[SessionRow]:
    """Find a session, in the trash or not; if there is one in both, the name is ambiguous."""
    _check_ref(ref)

    def run(snapshot: Snapshot) -> SessionRow:
        found = {row.id: row for row in (*_found(snapshot, ref), *_thrown_away(snapshot, ref))}
        exact = snapshot.find_session(id=ref)
        return exact or _only(ref, list(found.values()))

    return run


def find_by_id(session_id: str) -> Query[SessionRow]:
    """Find a session by its whole id."""

    def run(snapshot: Snapshot) -> SessionRow:
        found = snapshot.find_session(id=session_id)
        return _only(session_id, [] if found is None else [found])

    return run


def _check_ref(ref: object) -> None:
    if not isinstance(ref, str) or not ref.strip() or ref == "-":
        raise BadRef("an empty name cannot name a session; use an id, a key or a title.")


def _only(ref: str, found: list[SessionRow]) -> SessionRow:
    if not found:
        raise SessionNotFound(f"no session goes by {ref!r}; store.sessions() lists them.")
    if len(found) > 1:
        names = ", ".join(row.id for row in found)
        raise AmbiguousRef(f"{ref!r} may be any of {names}; use more characters of the id.")
    return found[0]


def _thrown_away(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    by_key = snapshot.find_trashed(key=ref, title=None)
    return by_key or snapshot.find_trashed(key=None, title=ref)


def _found(snapshot: Snapshot, ref: str) -> list[SessionRow]:
    exact = snapshot.find_session(id=ref) or snapshot.find_session(key=ref)
    if exact is not None:
        return [exact]
    prefixed = len(ref) >= _SHORTEST_PREFIX and snapshot.find_sessions(prefix=ref, title=None)
    return prefixed or snapshot.find_run(ref) or snapshot.find_sessions(prefix=None, title=ref)


def find_by_key(key: str) -> Query[SessionRow | None]:
    """Find a session by its key."""
    checks.check_name(key, "key")
    return lambda snapshot: snapshot.find_session(key=key)


def info(session: int) -> Query[SessionInfo]:
    """Tell what a session is and where it stands."""

    def run(snapshot: Snapshot) -> SessionInfo:
        return describe(snapshot, _row(snapshot, session), _head(snapshot, session))

    return run


def describe(snapshot: Snapshot, row: SessionRow, head: HeadRow) -> SessionInfo:
    """Put a session's rows together; `Damaged` if they make no sense."""
    try:
        return _describe(row, head, _state(snapshot, head))
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise Damaged(
            f"session {row.id} cannot be described ({type(error).__name__}); run store.verify()."
        ) from error


def _describe(row: SessionRow, head: HeadRow, state: SessionState) -> SessionInfo:
    return SessionInfo(
        id=row.id,
        key=row.key,
        scope=row.scope,
        title=row.title,
        title_by=row.title_by,
        agent=row.agent,
        model=row.model,
        cwd=row.cwd,
        state=state,
        created_at=to_datetime(row.created_at),
        updated_at=to_datetime(head.updated_at),
        turns=head.turns,
        messages=head.seq,
        usage=head.usage,
        cost=from_pico(head.cost),
        preview=head.preview,
        pinned=row.pinned,
        archived=row.archived,
        trashed=row.trashed_at is not None,
        goal=None if row.goal is None else codec.from_json(row.goal, Goal),
        metadata={} if row.metadata == b"{}" else codec.from_json(row.metadata, dict),
        parent=row.parent,
        relation=row.relation,
        interrupted=state == "interrupted",
    )


def _state(snapshot: Snapshot, head: HeadRow) -> SessionState:
    if head.open_turn is None:
        return "done"
    turn = snapshot.turn(head.session, head.open_turn)
    return "open" if turn and not is_abandoned(turn, snapshot.now()) else "interrupted"


def is_interrupted(session: int) -> Query[bool]:
    """Say whether a crash left something to recover."""
    return lambda snapshot: _state(snapshot, _head(snapshot, session)) == "interrupted"


def latest(listing: Listing, report: Report) -> Query[SessionRow | None]:
    """Find the newest session that can be read; one that cannot is reported and passed over."""

    def run(snapshot: Snapshot) -> SessionRow | None:
        before: int | None = None
        while True:
            found = snapshot.list_sessions(listing, before=before, limit=20)
            for item in found:
                if isinstance(item, Unreadable):
                    report(Damage(what=item.why))
                    before = item.activity
                    continue
                row, head = item
                try:
                    describe(snapshot, row, head)
                    read_messages(snapshot, head, (max(1, head.seq), head.seq), strict=True)
                except Damaged as error:
                    report(Damage(what=str(error), session_id=row.id))
                else:
                    return row
                before = head.activity
            if not found:
                return None

    return run


def page(
    listing: Listing, *, limit: int, cursor: str | None, report: Report
) -> Query[tuple[tuple[SessionInfo, ...], str | None]]:
    """List sessions, newest first, and give the cursor of the next page."""
    limit = checks.check_number(limit, "limit", lowest=1)
    before = None
    if cursor is not None:
        if not isinstance(cursor, str) or not cursor.isascii() or not cursor.isdecimal():
            raise BadQuery("cursor: not one that a page gave")
        before = checks.check_number(int(cursor[:20]), "cursor")

    def run(snapshot: Snapshot) -> tuple[tuple[SessionInfo, ...], str | None]:
        found = snapshot.list_sessions(listing, before=before, limit=limit + 1)
        items = []
        for item in found[:limit]:
            if isinstance(item, Unreadable):
                report(Damage(what=item.why))
                continue
            try:
                items.append(describe(snapshot, *item))
            except Damaged as error:
                report(Damage(what=str(error), session_id=item[0].id))
        more = len(found) > limit
        return tuple(items), str(_activity(found[limit - 1])) if more else None

    return run


def _activity(item: Listed) -> int:
    return item.activity if isinstance(item, Unreadable) else item[1].activity


def activity(since: int) -> Query[list[Activity]]:
    """List which sessions were written to since then, in order."""

    def run(snapshot: Snapshot) -> list[Activity]:
        return [
            Activity(number, session_id, Head(branch, seq))
            for number, session_id, branch, seq in snapshot.activity_after(since, 1000)
        ]

    return run


# ------------------------------------------------------------------------------------- messages


def head(session: int) -> Query[Head]:
    """Tell where a history ends."""

    def run(snapshot: Snapshot) -> Head:
        row = _head(snapshot, session)
        return Head(row.branch_no, row.seq)

    return run


def messages(
    session: int,
    *,
    limit: int | None,
    before: int | None,
    after: int | None,
    branch: int | None,
    report: Report,
) -> Query[list[Message]]:
    """Read part of a history, oldest first; see `core.branches.interval` for which part."""
    for name, value in (("limit", limit), ("before", before), ("after", after)):
        if value is not None:
            checks.check_number(value, name)
    if branch is not None:
        branch = checks.check_number(branch, "branch", lowest=1)

    def run(snapshot: Snapshot) -> list[Message]:
        row = _on_branch(snapshot, _head(snapshot, session), branch)
        span = interval(row.seq, limit=limit, before=before, after=after)
        return read_messages(snapshot, row, span, report=report)

    return run


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
    report: Report | None = None,
    strict: bool = False,
) -> list[Message]:
    """Read the seqs of `span` of the history that ends at `row`; see `histories.read_span`."""
    # A row behind the head would mean that the head is wrong, so look one further there.
    path, last = snapshot.path(row.branch, span[0]), span[1] == row.seq
    return read_span(snapshot, path, span, last=last, report=report, strict=strict)


def message(session: int, message_id: str, report: Report) -> Query[Message]:
    """Read one message of a history by its id."""

    def run(snapshot: Snapshot) -> Message:
        row = _head(snapshot, session)
        found = snapshot.stored(row.branch, [message_id])
        if message_id not in found:
            raise MessageNotFound(f"this history has no message {message_id!r}.")
        seq = found[message_id][1].seq
        return read_messages(snapshot, row, (seq, seq), report=report)[0]

    return run


# ------------------------------------------------------------------- turns, queue, usage, blobs


def turns(session: int, limit: int | None) -> Query[list[TurnInfo]]:
    """Tell how the newest turns went, oldest first."""
    limit = None if limit is None else checks.check_number(limit, "limit")

    def run(snapshot: Snapshot) -> list[TurnInfo]:
        owner = _row(snapshot, session)
        return [
            _turn_info(owner.id, row, snapshot.tools(session, row.number))
            for row in snapshot.turns(session, limit)
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


def queued(session: int) -> Query[list[QueuedInput]]:
    """List input that waits for the next turn."""

    def run(snapshot: Snapshot) -> list[QueuedInput]:
        _row(snapshot, session)
        return [as_queued(queued_message(snapshot, row), row) for row in snapshot.queue(session)]

    return run


def as_queued(message: Message, row: QueueRow) -> QueuedInput:
    """Show waiting input."""
    return QueuedInput(id=row.id, message=message, created_at=to_datetime(row.created_at))


def usage(session: int) -> Query[UsageReport]:
    """Sum up what a session used and cost, by model."""

    def run(snapshot: Snapshot) -> UsageReport:
        _row(snapshot, session)
        sums: dict[str | None, tuple[Usage, int]] = {}
        for row in snapshot.usage(session):
            spent, cost = sums.get(row.model, (Usage(), 0))
            sums[row.model] = (spent + row.usage, cost + row.cost)
        by_model = tuple(
            ModelUsage(model, spent, from_pico(cost)) for model, (spent, cost) in sums.items()
        )
        total = sum((item.usage for item in by_model), Usage())
        return UsageReport(total, from_pico(sum(cost for _, cost in sums.values())), by_model)

    return run


def blob(sha256: str) -> Query[bytes]:
    """Read a blob, and check that it is what its name says."""
    checks.check_filter(sha256, "sha256")

    def run(snapshot: Snapshot) -> bytes:
        data = snapshot.blob(sha256)
        if data is None:
            raise MessageNotFound(f"this store has no blob {sha256}.")
        if codec.digest(data) != sha256:
            raise Damaged(f"blob {sha256} does not fit its hash; store.verify() tells the rest.")
        return data

    return run


def _row(snapshot: Snapshot, session: int) -> SessionRow:
    row = snapshot.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return row


def _head(snapshot: Snapshot, session: int) -> HeadRow:
    row = snapshot.head(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return row
