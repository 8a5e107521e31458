"""PraisonAI's `DbSessionAdapter`, on a store of Holdfast in place of its `PraisonDB`.

Metadata is stored field by field when it is set, and is there after a restart; what is said by a
tool keeps the name and arguments of its call in the metadata of the message.
"""

from __future__ import annotations

import uuid
from typing import Any

from praisonaiagents.session.store import SessionData

from holdfast.adapters.praisonai.session_message import Item
from holdfast.adapters.praisonai.session_store import DefaultSessionStore


class DbSessionAdapter(DefaultSessionStore):
    """A session store with the metadata methods that PraisonAI's managed agents look for."""

    def add_message(  # noqa: PLR0917 - as in PraisonAI
        self,
        session_id: str,
        role: str,
        content: str,
        metadata: dict[str, Any] | None = None,
        tool_calls: list[Item] | None = None,
        tool_call_id: str | None = None,
    ) -> bool:
        """Append a message, durable on return; a result of a tool without a call gets an id."""
        if role == "tool" and tool_call_id is None:
            tool_call_id = str((metadata or {}).get("tool_call_id") or f"call_{uuid.uuid4().hex}")
        return super().add_message(session_id, role, content, metadata, tool_calls, tool_call_id)

    def get_chat_history(self, session_id: str, max_messages: int | None = None) -> list[Item]:
        """Return the newest messages, or all, each as its role and content."""
        found = super().get_chat_history(session_id)[-(max_messages or 0) :]
        return [{"role": item["role"], "content": item["content"]} for item in found]

    def set_metadata(self, session_id: str, metadata: dict[str, Any]) -> None:
        """Set these fields of a session, and no others."""
        self.update_session_metadata(session_id, **metadata)

    def get_metadata(self, session_id: str) -> Item:
        """Return the fields of a session; none if there is no such session."""
        return dict(self._whole(session_id).metadata)

    def get_session(self, session_id: str) -> SessionData | None:
        """Return a session whole; None if there is none."""
        return self._whole(session_id) if self.session_exists(session_id) else None
