"""What an import without trust changes: a stranger's session is read, and decides nothing here.

A file says who said what. It must not say what the model is told as instructions, what an agent
does next or where it works, nor which session a caller finds by a key, a scope or a directory. So:

* the session has no `cwd`, key, scope, agent or pin; `SessionInfo.provenance` keeps what it had.
  An active goal is paused;
* a system message becomes a user message, marked by `Provenance.role`, and every message says that
  it was imported;
* data of a provider (`Raw`), which would be sent to it verbatim, gets a source that no format has,
  and so does an original, which a program would take for what it said itself (`formats.kept`);
* queued input is held;
* a record gets a kind that no program looks for as its own, and those of the store are left out;
* the token counts that calibrate estimates for the whole store are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from holdfast import codec
from holdfast.formats.registry import PROVIDERS
from holdfast.operations.sessions import stub_row
from holdfast.storage.rows import SessionRow
from holdfast.values import (
    Demotion,
    Goal,
    Message,
    Part,
    Provenance,
    Raw,
    Record,
    SessionProvenance,
    ToolResult,
    is_original,
)

P = TypeVar("P", bound=Part)
_SOURCE: Final = "import"
_RAW_PREFIX: Final = "imported "
_KIND_PREFIX: Final = "imported:"


def demote_session(row: SessionRow, source: str) -> tuple[SessionRow, Demotion]:
    """Return a session's row without what it decides, and what was taken; `source` is the file."""
    if row.purged_at is not None:
        return stub_row(row, row.purged_at), Demotion(session_id=row.id)
    known = SessionProvenance(source)
    if row.provenance is not None:
        known = codec.from_json(row.provenance, SessionProvenance)
    provenance = SessionProvenance(
        source=known.source,
        cwd=row.cwd or known.cwd,
        key=row.key or known.key,
        scope=row.scope or known.scope,
        agent=row.agent or known.agent,
        pinned=row.pinned or known.pinned,
    )
    goal = None if row.goal is None else codec.from_json(row.goal, Goal)
    active = goal if goal is not None and goal.state == "active" else None
    taken = Demotion(
        session_id=row.id,
        cwd=row.cwd,
        key=row.key,
        scope=row.scope,
        agent=row.agent,
        pinned=row.pinned,
        goal=None if active is None else active.objective,
    )
    demoted = msgspec.structs.replace(
        row, cwd=None, key=None, scope=None, agent=None, pinned=False,
        provenance=codec.to_json(provenance),
    )  # fmt: skip
    if active is not None:
        paused = msgspec.structs.replace(active, state="paused")
        demoted = msgspec.structs.replace(demoted, goal=codec.to_json(paused))
    return demoted, taken


def import_provenance(session: str) -> Provenance:
    """Return the provenance of a message that had none; `session` is the one it was said in.

    It does not depend on the file, so that a file may be imported again under another name.
    """
    return Provenance(_SOURCE, session)


def demote_message(message: Message, session: str) -> Message:
    """Return a message as a user's, if it was a system message, and marked as imported."""
    provenance = message.provenance or import_provenance(session)
    is_system = message.role == "system"
    return msgspec.structs.replace(
        message,
        role="user" if is_system else message.role,
        parts=demote_parts(message.parts),
        provenance=msgspec.structs.replace(provenance, role="system") if is_system else provenance,
    )


def demote_record(record: Record) -> Record:
    """Return a record of a kind that only imported ones have."""
    if record.kind.startswith(_KIND_PREFIX):
        return record
    return msgspec.structs.replace(record, kind=_KIND_PREFIX + record.kind)


def demote_parts(parts: Iterable[P]) -> tuple[P, ...]:
    """Return parts none of which is sent to a provider verbatim."""
    return tuple(map(_demote_part, parts))


def _demote_part(part: P) -> P:
    if isinstance(part, Raw) and (part.source in PROVIDERS or is_original(part)):
        return msgspec.structs.replace(part, source=_RAW_PREFIX + part.source)
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        return msgspec.structs.replace(part, content=demote_parts(part.content))
    return part
