"""Creating sessions, and updating their identity (never their messages)."""

from __future__ import annotations

from typing import TypedDict, Unpack, get_args

import msgspec

from holdfast import codec, validation
from holdfast.errors import BadMessage, Conflict, Invalid, KeyTaken, SessionNotFound
from holdfast.operations.append import check_expected_head, find_head, to_head, with_preview
from holdfast.operations.positions import preview_at, resolve_position, start_at
from holdfast.operations.queries import describe
from holdfast.storage.protocol import BranchStart, Operation, SessionRow, Transaction
from holdfast.titles import may_retitle
from holdfast.values import JSON, Goal, Head, MessageRef, Relation, SessionFields, SessionInfo


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a new session that a caller can set."""

    id: str
    key: str | None
    scope: str | None
    title: str | None
    agent: str | None
    model: str | None
    cwd: str | None
    metadata: bytes


def make_identity(*, id: str, key: str | None = None, **fields: Unpack[SessionFields]) -> Identity:
    """Validate the fields of a new session and return them."""
    metadata = fields.get("metadata")
    if metadata is not None:
        validation.check_json_object(metadata, "metadata")
    check_optional_text(key, "key")
    for field in ("scope", "title", "agent", "model", "cwd"):
        check_optional_text(fields.get(field), field)
    return Identity(
        id=id,
        key=key,
        scope=fields.get("scope"),
        title=fields.get("title"),
        agent=fields.get("agent"),
        model=fields.get("model"),
        cwd=fields.get("cwd"),
        metadata=_merge(b"{}", metadata or {}),
    )


def check_optional_text(value: object, field: str) -> None:
    """Raise unless a value is `None` or a short text."""
    if value is not None:
        validation.check_name(value, field)


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
    fields: Identity, *, reuse: bool = False, origin: Origin | None = None
) -> Operation[SessionRow]:
    """Create a session. If its key is taken: with `reuse` return that session, else `KeyTaken`.

    A session that forks or continues another shares the history of that one; see `Relation`.
    """

    def run(tx: Transaction) -> SessionRow:
        created = tx.find_session(id=fields.id)  # By an earlier attempt.
        if created is not None:
            return created
        if fields.key is not None:
            taken = tx.find_session(key=fields.key)
            if taken is not None and reuse:
                return taken
            if taken is not None:
                raise KeyTaken(
                    f"session {taken.id} already has this key; nothing was stored. "
                    "store.session(key) opens it."
                )
        row = new_row(fields, tx.now())
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
    """Return the row with the parent's scope, agent, model and cwd where it has none."""
    return msgspec.structs.replace(
        row,
        scope=parent.scope if row.scope is None else row.scope,
        agent=parent.agent if row.agent is None else row.agent,
        model=parent.model if row.model is None else row.model,
        cwd=parent.cwd if row.cwd is None else row.cwd,
    )


def new_row(fields: Identity, now: int) -> SessionRow:
    """Return the row of a new session."""
    return SessionRow(
        n=0,
        id=fields.id,
        key=fields.key,
        scope=fields.scope,
        agent=fields.agent,
        title=fields.title,
        title_by=None if fields.title is None else "user",
        model=fields.model,
        cwd=fields.cwd,
        created_at=now,
        pinned=False,
        archived=False,
        trashed_at=None,
        goal=None,
        metadata=fields.metadata,
        parent=None,
        relation=None,
    )


def stub_row(row: SessionRow, purged_at: int) -> SessionRow:
    """Return the row that stays of a purged session while forks need its branches."""
    return msgspec.structs.replace(
        new_row(make_identity(id=row.id), row.created_at),
        n=row.n,
        parent=row.parent,
        relation=row.relation,
        purged_at=purged_at,
    )


class Changes(TypedDict, total=False):
    """The fields that `update` can change; a missing one stays as it is.

    With `expect_goal` nothing is changed unless this is the current goal.
    """

    title: str | None
    auto_title: str | None
    model: str | None
    cwd: str | None
    scope: str | None
    pinned: bool
    archived: bool
    goal: Goal | None
    expect_goal: Goal | None
    metadata: dict[str, JSON]


def check_changes(changes: Changes) -> Changes:
    """Return the changes; raise for an unknown field or a wrong type, naming the field."""
    unknown = changes.keys() - Changes.__annotations__.keys()
    if unknown:
        raise BadMessage(f"{min(unknown)}: a session has no such field to update")
    for field in ("title", "auto_title", "model", "cwd", "scope"):
        check_optional_text(changes.get(field), field)
    for field in ("pinned", "archived"):
        if not isinstance(changes.get(field, False), bool):
            raise BadMessage(f"{field}: expected true or false")
    for goal in (changes.get("goal"), changes.get("expect_goal")):
        if goal is not None:
            _check_goal(goal)
    validation.check_json_object(changes.get("metadata", {}), "metadata")
    return changes


def _check_goal(goal: object) -> None:
    if not isinstance(goal, Goal):
        raise BadMessage("goal: expected a holdfast.Goal")
    try:
        kept = codec.from_json(codec.to_json(goal), Goal)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadMessage(f"goal: cannot be stored: {error}") from error
    if kept != goal:
        raise BadMessage(
            "goal: cannot be stored as it is; its times need a time zone, its texts must be strings"
        )


def update(session: int, changes: Changes) -> Operation[SessionInfo]:
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


def _check_expected(row: SessionRow, changes: Changes) -> None:
    if "expect_goal" not in changes:
        return
    goal = None if row.goal is None else codec.from_json(row.goal, Goal)
    if goal != changes["expect_goal"]:
        raise Conflict(
            "the goal was changed meanwhile; nothing was stored. Read it with session.info() and "
            "try again."
        )


def _apply_changes(row: SessionRow, changes: Changes) -> SessionRow:
    kept = {
        name: value
        for name, value in changes.items()
        if name in {"model", "cwd", "scope", "pinned", "archived"}
    }
    row = msgspec.structs.replace(row, **kept)
    if "title" in changes:
        title = changes["title"]
        row = msgspec.structs.replace(row, title=title, title_by="user" if title else None)
    elif "auto_title" in changes and may_retitle(row.title_by, "auto"):
        title = changes["auto_title"]
        row = msgspec.structs.replace(row, title=title, title_by="auto" if title else None)
    if "goal" in changes:
        goal = changes["goal"]
        row = msgspec.structs.replace(row, goal=None if goal is None else codec.to_json(goal))
    if "metadata" in changes:
        row = msgspec.structs.replace(row, metadata=_merge(row.metadata, changes["metadata"]))
    return row


def _merge(stored: bytes, changes: dict[str, JSON]) -> bytes:
    merged = {**codec.from_json(stored, dict[str, object]), **changes}
    return codec.to_json({name: value for name, value in merged.items() if value is not None})
