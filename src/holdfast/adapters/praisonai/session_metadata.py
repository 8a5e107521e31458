"""The fields of PraisonAI's sessions: each is changed by itself, so two writers keep both changes.

The user's are metadata of their names; the others' names begin with `praisonai.`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from holdfast import Session
from holdfast.adapters.praisonai.session_catalog import OWN, SessionCatalog
from holdfast.adapters.praisonai.session_message import Item
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import PreconditionFailed
from holdfast.values import JSON, SessionInfo

OWN_FIELDS: Final = ("agent_name", "user_id", "agent_id", "gateway_session_id")

_RUNTIME: Final = OWN + "runtime_state "


class SessionMetadata(SessionCatalog):
    """What is known of a session besides its messages."""

    def update_session_metadata(self, session_id: str, **fields: JSON) -> bool:
        """Set these fields and no others; one that is None stays as it is. Return True."""
        given = {name: value for name, value in fields.items() if value is not None}
        own: dict[str, JSON] = {
            OWN + name: value for name, value in given.items() if name in OWN_FIELDS[:3]
        }
        if given:
            self._open(session_id).update(metadata={**given, **own})
        return True

    def merge_session_metadata_map(
        self,
        session_id: str,
        key: str,
        updates: dict[str, Any],
        *,
        defaults: dict[str, Any] | None = None,
    ) -> bool:
        """Merge entries into the map that a field is; return True."""
        session = self._open(session_id)
        while True:
            current = session.info().metadata.get(key)
            known = current if isinstance(current, dict) else {}
            merged: dict[str, JSON] = {key: {**(defaults or {}), **known, **updates}}
            try:
                session.update(metadata=merged, expect_metadata={key: current})
            except PreconditionFailed:  # Another writer was first.
                continue
            return True

    def rename_session(self, session_id: str, title: str) -> bool:
        """Set the title, or remove it if it is blank; return True."""
        name = (title or "").strip() or None
        self._open(session_id).update(title=name, metadata={"title": name})
        return True

    def set_agent_info(
        self, session_id: str, agent_name: str | None = None, user_id: str | None = None
    ) -> bool:
        """Set the agent and the user of a session; return True."""
        return self._set(session_id, agent_name=agent_name, user_id=user_id)

    def set_gateway_info(
        self,
        session_id: str,
        gateway_session_id: str | None = None,
        agent_id: str | None = None,
    ) -> bool:
        """Link a session to one of a gateway; return True."""
        return self._set(session_id, gateway_session_id=gateway_session_id, agent_id=agent_id)

    def _set(self, session_id: str, **fields: str | None) -> bool:
        given: dict[str, JSON] = {OWN + name: value for name, value in fields.items() if value}
        self._open(session_id).update(metadata=given)
        return True

    def get_session_model(self, session_id: str) -> str | None:
        """Return the model of a session, or of its newest message that has one."""
        session = self._find(session_id)
        model = None if session is None else session.info().model
        return self._recorded(session_id, "model", "llm") or model

    def get_session_reasoning_effort(self, session_id: str) -> str | None:
        """Return the reasoning effort of a session, or of its newest message that has one."""
        return self._recorded(session_id, "reasoning_effort")

    def _recorded(self, session_id: str, *names: str) -> str | None:
        found = self._whole(session_id)
        metadata = [found.metadata.get(name) for name in names]
        told = [message.metadata.get(names[0]) for message in reversed(found.messages)]
        values = [value for value in (*metadata, *told) if value and isinstance(value, str)]
        return values[0] if values else None

    # ------------------------------------------------------------------------------- run state

    def set_runtime_state(
        self,
        session_id: str,
        runtime_id: str,
        turn_id: str,
        state: dict[str, Any],
        mirror_enabled: bool = True,  # noqa: FBT001, FBT002 - as in PraisonAI
    ) -> bool:
        """Set what a runtime keeps of a turn; return True."""
        if mirror_enabled:
            name = _RUNTIME + json.dumps([runtime_id, turn_id])
            self._open(session_id).update(metadata={name: state})
        return True

    def get_runtime_state(
        self, session_id: str, runtime_id: str, turn_id: str | None = None
    ) -> Item:
        """Return what a runtime keeps of a turn, or of each of its turns."""
        session = self._find(session_id)
        found = {} if session is None else runtime_state(session.info())
        turns = found.get(runtime_id, {})
        return turns if turn_id is None else turns.get(turn_id, {})

    def clear_runtime_state(self, session_id: str, runtime_id: str | None = None) -> bool:
        """Remove the state of a runtime, or of all; return True."""
        session = self._open(session_id)
        cleared: dict[str, JSON] = {
            _RUNTIME + json.dumps([runtime, turn]): None
            for runtime, turns in runtime_state(session.info()).items()
            if runtime_id in {None, runtime}
            for turn in turns
        }
        session.update(metadata=cleared)
        return True

    def _find(self, session_id: str) -> Session | None:
        return find_session(self._store, session_id)

    def _open(self, session_id: str) -> Session:
        return recovered(self._store.session(session_id, scope=self._scope))


def public_metadata(info: SessionInfo) -> Item:
    """Return the fields of a session that are not the store's own."""
    given = {name: value for name, value in info.metadata.items() if not name.startswith(OWN)}
    if info.title is not None:
        given.setdefault("title", info.title)
    return given


def runtime_state(info: SessionInfo) -> dict[str, Item]:
    """Return what runtimes keep: of each, by turn."""
    found: dict[str, Item] = {}
    for name, state in info.metadata.items():
        if name.startswith(_RUNTIME):
            runtime, turn = json.loads(name.removeprefix(_RUNTIME))
            found.setdefault(runtime, {})[turn] = state
    return found
