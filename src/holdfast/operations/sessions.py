"""Creating sessions, and updating their identity (never their messages)."""

from __future__ import annotations

from typing import Unpack, get_args

import msgspec

from holdfast import codec, validation
from holdfast.errors import BadMessage, Conflict, Invalid, KeyTaken, SessionNotFound
from holdfast.operations.append import check_expected_head, find_head, to_head, with_preview
from holdfast.operations.positions import preview_at, resolve_position, start_at
from holdfast.operations.queries import describe
from holdfast.operations.session_fields import (
    check_fields,
    check_goal,
    encode_json,
    stored_json,
    to_columns,
    to_row,
)
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, SessionRow
from holdfast.titles import may_retitle
from holdfast.values import (
    JSON,
    Head,
    MessageRef,
    Relation,
    SessionChanges,
    SessionFields,
    SessionInfo,
    SessionProvenance,
)


def new_row(*, id: str, key: str | None = None, **fields: Unpack[SessionFields]) -> SessionRow:
    """Validate the fields of a new session and return its row, without a number and a time."""
    given = {name: value for name, value in {"key": key, **fields}.items() if value is not None}
    check_fields(given)
    row = to_row({**given, "id": id, "title_by": "user" if "title" in given else None})
    return msgspec.structs.replace(row, metadata=_merged_metadata(row, {}))


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The parent of a new session, the relation to it, and the position in its history."""

    parent: int
    relation: Relation
    at: MessageRef | None = None
    expect: Head | None = None


def check_relation(relation: object, *, parent: bool) -> None:
    """Raise `Invalid` for an unknown relation, and for one without a parent."""
    if relation not in get_args(Relation):
        raise Invalid(f"relation: must be one of {', '.join(get_args(Relation))}")
    if not parent and relation != "continue":
        raise Invalid("relation: needs parent=…, the session that the new one comes from")


def create(
    new: SessionRow, *, reuse: bool = False, origin: Origin | None = None
) -> Operation[SessionRow]:
    """Create a session. If its key is taken: with `reuse` return that session, else `KeyTaken`.

    A session that forks or continues another shares the history of that one; see `Relation`.
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
        if origin is not None:
            return _create_child(tx, row, origin)
        return msgspec.structs.replace(row, n=tx.add_session(row, BranchStart(token=row.id)))

    return run


def _create_child(tx: Transaction, row: SessionRow, origin: Origin) -> SessionRow:
    """Create a session that has a parent."""
    head, parent = find_head(tx, origin.parent), tx.session(origin.parent)
    if parent is None:
        raise SessionNotFound("the parent is no longer in the store; nothing was stored.")
    check_expected_head(origin.expect, to_head(head))
    row = msgspec.structs.replace(row, parent=parent.id, relation=origin.relation)
    if origin.relation in {"fork", "continue", "reset"}:
        row = _with_inherited_fields(row, parent)
    if origin.relation not in {"fork", "continue"}:
        return msgspec.structs.replace(row, n=tx.add_session(row, BranchStart(token=row.id)))
    start = start_at(tx, head, resolve_position(tx, head, origin.at), origin.relation, row.id)
    shown = preview_at(tx, head, start)
    row = msgspec.structs.replace(row, n=tx.add_session(row, start))
    if shown.text is not None:
        tx.put_head(with_preview(find_head(tx, row.n), shown))
    return row


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


def check_changes(changes: SessionChanges) -> SessionChanges:
    """Return the changes; raise for an unknown field or a wrong type, naming the field."""
    unknown = changes.keys() - SessionChanges.__annotations__.keys()
    if unknown:
        raise BadMessage(f"{min(unknown)}: a session has no such field to update")
    check_fields(changes)
    if changes.get("auto_title") is not None:
        validation.check_name(changes["auto_title"], "auto_title")
    if changes.get("expect_goal") is not None:
        check_goal(changes["expect_goal"], "expect_goal")
    return changes


def update(session: int, changes: SessionChanges) -> Operation[SessionInfo]:
    """Update the fields of a session. `metadata` is merged; a `None` in it removes a key."""

    def run(tx: Transaction) -> SessionInfo:
        row = tx.session(session)
        if row is None:
            raise SessionNotFound("this session is no longer in the store; nothing was stored.")
        _check_expected(row, changes)
        changed = _apply_changes(row, changes)
        # Described before the write: a later read could fail with the change already stored.
        described = describe(tx, changed, find_head(tx, session))
        if changed != row:
            tx.put_session(changed)
        return described

    return run


def _check_expected(row: SessionRow, changes: SessionChanges) -> None:
    if "expect_goal" not in changes:
        return
    if stored_json(row, "goal") != changes["expect_goal"]:
        raise Conflict(
            "the goal was changed meanwhile; nothing was stored. Read it with session.info() and "
            "try again."
        )


def _apply_changes(row: SessionRow, changes: SessionChanges) -> SessionRow:
    changed = to_columns(changes)
    if "title" in changes:
        changed["title_by"] = "user" if changes["title"] else None
    elif "auto_title" in changes and may_retitle(row.title_by, "auto"):
        changed["title"] = changes["auto_title"]
        changed["title_by"] = "auto" if changes["auto_title"] else None
    if "metadata" in changes:
        changed["metadata"] = _merged_metadata(row, changes["metadata"])
    return msgspec.structs.replace(row, **changed)


def _merged_metadata(row: SessionRow, changes: dict[str, JSON]) -> bytes:
    merged = {**stored_json(row, "metadata"), **changes}
    kept = {name: value for name, value in merged.items() if value is not None}
    return encode_json(kept, "metadata")
