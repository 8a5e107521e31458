"""Creating sessions, and updating their identity (never their messages)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, get_args

import msgspec

from holdfast import codec
from holdfast.codec import EncodedMessage, EncodedRecord
from holdfast.errors import Invalid, KeyTaken, SessionNotFound
from holdfast.operations.append import (
    check_expected_head,
    find_head,
    insert_messages,
    messages_after,
    to_head,
    with_preview,
)
from holdfast.operations.file_refs import check_file_refs
from holdfast.operations.positions import preview_at, resolve_position, start_at
from holdfast.operations.queries import describe
from holdfast.operations.records import first_records
from holdfast.operations.session_changes import (
    SessionUpdate,
    merged_metadata,
    put_update,
    require_session,
)
from holdfast.operations.session_fields import check_fields, stored_json, to_row
from holdfast.storage.prefetch import Prefetched
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, SessionRow
from holdfast.titles import Preview
from holdfast.values import (
    Head,
    MessageRef,
    Relation,
    SessionFields,
    SessionInfo,
    SessionProvenance,
)


def new_row(*, id: str, key: str | None = None, **fields: Unpack[SessionFields]) -> SessionRow:
    """Validate the fields of a new session and return its row, without a number and a time."""
    given = {name: value for name, value in {"key": key, **fields}.items() if value is not None}
    given = check_fields(given)
    row = to_row({**given, "id": id, "title_by": "user" if "title" in given else None})
    return msgspec.structs.replace(row, metadata=merged_metadata(row, {}))


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The parent of a new session, the relation to it, and the position in its history."""

    parent: int
    relation: Relation
    at: MessageRef | None = None
    exact: bool = False
    expect: Head | None = None


def check_relation(relation: object, *, parent: bool) -> None:
    """Raise `Invalid` for an unknown relation, and for one without a parent."""
    if relation not in get_args(Relation):
        raise Invalid(f"relation: must be one of {', '.join(get_args(Relation))}")
    if not parent and relation != "continue":
        raise Invalid("relation: needs parent=…, the session that the new one comes from")


def create(
    new: SessionRow,
    *,
    reuse: bool = False,
    origin: Origin | None = None,
    batch: Sequence[EncodedMessage] = (),
    records: Sequence[EncodedRecord] = (),
    update: SessionUpdate | None = None,
) -> Operation[SessionRow]:
    """Create a session. If its key is taken: with `reuse` return that session, else `KeyTaken`.

    A session that forks or continues another shares the history of that one; see `Relation`. With
    it are stored its first messages and records, and the changes of `update`.
    """

    def run(tx: Transaction) -> SessionRow:
        created = tx.find_session(id=new.id)  # By an earlier attempt.
        if created is not None:
            return created
        if new.key is not None:
            taken = tx.find_session(key=new.key)
            if taken is not None and reuse:
                return taken
            if taken is not None:
                raise KeyTaken(
                    f"session {taken.id} already has this key; nothing was stored. "
                    "store.session(key) opens it."
                )
        row = msgspec.structs.replace(new, created_at=tx.now())
        start, shown = BranchStart(token=row.id), Preview()
        if origin is not None:
            row, start, shown = _derive(tx, row, origin)
        if update is not None:
            row = update.apply_to(row)
        fresh = messages_after(tx, start.parent, start.fork_seq, batch)
        state = first_records(tx, start, records)
        check_file_refs(tx, fresh)
        row = msgspec.structs.replace(row, n=tx.add_session(row, start))
        if fresh or state:
            head = with_preview(find_head(tx, row.n), shown)
            insert_messages(tx, head, fresh, state=state, among=batch)
        elif shown.text is not None:
            tx.put_head(with_preview(find_head(tx, row.n), shown))
        return row

    return run


def _derive(
    tx: Transaction, row: SessionRow, origin: Origin
) -> tuple[SessionRow, BranchStart, Preview]:
    """Return the row of a session that has a parent, where it starts, and its preview there."""
    head, parent = find_head(tx, origin.parent), tx.session(origin.parent)
    if parent is None:
        raise SessionNotFound("the parent is no longer in the store; nothing was stored.")
    check_expected_head(origin.expect, to_head(head))
    row = msgspec.structs.replace(row, parent=parent.id, relation=origin.relation)
    if origin.relation in {"fork", "continue", "reset"}:
        row = _with_inherited_fields(row, parent)
    if origin.relation not in {"fork", "continue"}:
        return row, BranchStart(token=row.id), Preview()
    position = resolve_position(tx, head, origin.at)
    lowest = position.seq if origin.exact else 0
    start = start_at(tx, head, position, origin.relation, row.id, lowest=lowest)
    return row, start, preview_at(tx, head, start)


def _with_inherited_fields(row: SessionRow, parent: SessionRow) -> SessionRow:
    """Return the row with the parent's scope, agent, model and cwd where it has none.

    With the parent's history it also has its provenance.
    """
    return msgspec.structs.replace(
        row,
        provenance=None if row.relation == "reset" else _continued_provenance(parent),
        scope=parent.scope if row.scope is None else row.scope,
        agent=parent.agent if row.agent is None else row.agent,
        model=parent.model if row.model is None else row.model,
        cwd=parent.cwd if row.cwd is None else row.cwd,
    )


def _continued_provenance(row: SessionRow) -> bytes | None:
    """Return the provenance of a session that the user has continued."""
    known: SessionProvenance | None = stored_json(row, "provenance")
    return None if known is None else codec.to_json(msgspec.structs.replace(known, head=None))


def stub_row(row: SessionRow, purged_at: int) -> SessionRow:
    """Return the row that stays of a purged session while forks need its branches."""
    return SessionRow(
        n=row.n,
        id=row.id,
        created_at=row.created_at,
        parent=row.parent,
        relation=row.relation,
        purged_at=purged_at,
    )


def update(
    session: int, update: SessionUpdate, *, expect: Head | None = None
) -> Operation[SessionInfo]:
    """Update the fields of a session, if its head is the expected one."""

    def run(tx: Transaction) -> SessionInfo:
        row, head = require_session(tx, session), find_head(tx, session)
        if not update.is_stored(row):
            check_expected_head(expect, to_head(head))
        changed = update.apply_to(row)
        # Described before the write: a later read could fail with the change already stored.
        described = describe(tx, changed, head)
        if changed != row:
            put_update(tx, update, changed, alone=True)
        return described

    return Prefetched(run, forget=update.forget)
