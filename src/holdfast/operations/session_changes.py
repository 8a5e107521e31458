"""Changes of a session's fields: checked, compared with what is stored, and applied.

They are a write of their own, or part of one that stores messages or moves the head: then both are
stored, or neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from holdfast import codec, validation
from holdfast.errors import BadMessage, PreconditionFailed, SessionNotFound
from holdfast.operations.session_fields import (
    check_fields,
    check_goal,
    encode_json,
    stored_json,
    to_columns,
)
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.rows import SessionRow
from holdfast.titles import may_retitle
from holdfast.values import JSON, SessionChanges


def check_update(changes: SessionChanges | None) -> SessionUpdate | None:
    """Return the update that makes these changes; raise if they are not valid."""
    return None if changes is None else SessionUpdate(changes)


class SessionUpdate:
    """Changes that one write makes to a session's fields.

    A write may run twice. One that stores messages or a branch finds these again. One that stores
    nothing else remembers the row: if the session is as an earlier run left it, the update is
    stored, and neither compares nor changes anything again.
    """

    def __init__(self, changes: SessionChanges) -> None:
        """Check the changes; raise for an unknown field or a wrong type, naming the field."""
        self._changes = _check_changes(changes)
        self._applied: SessionRow | None = None

    def is_stored(self, row: SessionRow) -> bool:
        """True if the row is as an earlier run of this write left it."""
        return row == self._applied

    def apply_to(self, row: SessionRow) -> SessionRow:
        """Return the row with the changes; `PreconditionFailed` if a field is not as expected.

        `metadata` is merged; a `None` in it removes a key.
        """
        if not self.is_stored(row):
            _check_expected(row, self._changes)
            row = _apply_changes(row, self._changes)
        return row

    def remember(self, row: SessionRow) -> None:
        """Note the row that a run of this write leaves, which stores nothing else."""
        self._applied = row

    def forget(self) -> None:
        """Forget what was noted: it was rolled back."""
        self._applied = None


def require_session(snapshot: Snapshot, session: int) -> SessionRow:
    """Return a session's identity; raise `SessionNotFound` if there is none."""
    row = snapshot.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store; nothing was stored.")
    return row


def updated_row(
    snapshot: Snapshot, session: int, update: SessionUpdate | None
) -> SessionRow | None:
    """Return a session's row with an update, to be stored; `None` if nothing changes."""
    if update is None:
        return None
    row = require_session(snapshot, session)
    changed = update.apply_to(row)
    return None if changed == row else changed


def put_update(
    tx: Transaction, update: SessionUpdate | None, updated: SessionRow | None, *, alone: bool
) -> None:
    """Store the row that `updated_row` returned; `alone` if the write stores nothing else."""
    if update is None or updated is None:
        return
    tx.put_session(updated)
    if alone:
        update.remember(updated)


def _check_changes(changes: SessionChanges) -> SessionChanges:
    """Return the changes, with JSON as it is stored; raise for one that is not valid."""
    if not isinstance(changes, Mapping):
        raise BadMessage('update: expected fields and their values, such as {"title": "…"}')
    unknown = changes.keys() - SessionChanges.__annotations__.keys()
    if unknown:
        raise BadMessage(f"{min(map(str, unknown))}: a session has no such field to update")
    changes = cast("SessionChanges", check_fields(changes))
    if changes.get("auto_title") is not None:
        validation.check_name(changes["auto_title"], "auto_title")
    if changes.get("expect_goal") is not None:
        check_goal(changes["expect_goal"], "expect_goal")
    if "expect_metadata" in changes:
        expected = validation.check_json_object(changes["expect_metadata"], "expect_metadata")
        changes = {**changes, "expect_metadata": expected}
    return changes


def _check_expected(row: SessionRow, changes: SessionChanges) -> None:
    if "expect_goal" in changes and stored_json(row, "goal") != changes["expect_goal"]:
        raise PreconditionFailed(
            "the goal was changed meanwhile; nothing was stored. Read it with session.info() and "
            "try again."
        )
    stored = stored_json(row, "metadata") if "expect_metadata" in changes else {}
    for name, value in changes.get("expect_metadata", {}).items():
        if not codec.is_same_json(stored.get(name), value):
            raise PreconditionFailed(
                f"metadata {name!r} is not as expected; nothing was stored. Read it with "
                "session.info() and try again."
            )


def _apply_changes(row: SessionRow, changes: SessionChanges) -> SessionRow:
    changed = to_columns(changes)
    if "title" in changes:
        changed["title_by"] = "user" if changes["title"] else None
    elif "auto_title" in changes and may_retitle(row.title_by, "auto"):
        changed["title"] = changes["auto_title"]
        changed["title_by"] = "auto" if changes["auto_title"] else None
    if "metadata" in changes:
        changed["metadata"] = merged_metadata(row, changes["metadata"])
    return msgspec.structs.replace(row, **changed)


def merged_metadata(row: SessionRow, changes: dict[str, JSON]) -> bytes:
    """Return the metadata of a row with changes; those that are `None` are removed."""
    merged = {**stored_json(row, "metadata"), **changes}
    kept = {name: value for name, value in merged.items() if value is not None}
    return encode_json(kept, "metadata")
