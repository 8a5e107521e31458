"""The lists and searches of PraisonAI's session store: over all sessions of a store or a scope."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from praisonaiagents.session.protocols import SessionHit, SessionSummary
from praisonaiagents.session.store import SessionData, SessionMessage

from holdfast import Store
from holdfast.adapters.praisonai.session_message import Item, to_history
from holdfast.values import JSON, Hit, ListOptions, SessionInfo

OWN: Final = "praisonai."

_PAGE: Final = 200
_BOOKENDS: Final = 2
# Of one session there may be many hits; of these the best counts.
_HITS: Final = 10
_MAX_HITS: Final = 100
# What a listed session has of its metadata, and what an older name for it is.
_LISTED: Final = ("source", "parent_id", "parent_session_id", "agent_key", "total_tokens", "cost")


class SessionCatalog(ABC):
    """What can be asked of many sessions; those without a key have no id in PraisonAI."""

    def __init__(self, store: Store, scope: str | None) -> None:
        self._store = store
        self._scope = scope

    @abstractmethod
    def _whole(self, session_id: str) -> SessionData:
        """Return a session whole; an empty one if there is none."""

    def list_sessions(self, limit: int = 50) -> list[Item]:
        """Return the sessions written to last, newest first."""
        return [_listed(info) for info in islice(self._infos(), limit)]

    def recent(self, *, limit: int = 10) -> list[SessionSummary]:
        """Return summaries of the sessions written to last, newest first."""
        return [
            SessionSummary(
                session_id=item["session_id"],
                title=item["agent_name"] or item["session_id"],
                when=item["updated_at"],
                message_count=item["message_count"],
            )
            for item in self.list_sessions(limit)
        ]

    def list_sessions_by_agent(self, agent_name: str, limit: int = 50) -> list[str]:
        """Return the ids of an agent's sessions, the one written to last first."""
        return self._ids({OWN + "agent_name": agent_name}, limit)

    def get_sessions_by_agent(self, agent_name: str, limit: int = 10) -> list[SessionData]:
        """Return an agent's sessions, the one written to last first."""
        return [self._whole(id) for id in self.list_sessions_by_agent(agent_name, limit)]

    def get_agent_chat_history(
        self, agent_name: str, max_messages: int | None = None, max_sessions: int = 5
    ) -> list[Item]:
        """Return the messages of an agent's sessions, each with the id of its session."""
        return [
            {**message, "session_id": session.session_id, "agent_name": agent_name}
            for session in self.get_sessions_by_agent(agent_name, max_sessions)
            for message in session.get_chat_history(max_messages)
        ]

    def get_by_gateway_session(self, gateway_session_id: str) -> SessionData | None:
        """Return the session that is linked to a gateway's; None if none is."""
        ids = self._ids({OWN + "gateway_session_id": gateway_session_id}, 1)
        return self._whole(ids[0]) if ids else None

    def list_sessions_by_gateway_agent(self, agent_id: str, limit: int = 50) -> list[str]:
        """Return the ids of the sessions that are linked to a gateway's agent."""
        return self._ids({OWN + "agent_id": agent_id}, limit)

    def search(self, query: str, *, limit: int = 5, window: int = 5) -> list[SessionHit]:
        """Return the sessions that match best, each with the messages around its best match."""
        found: dict[str, SessionHit] = {}
        if not query.strip():
            return []
        for hit in self._store.search(
            query, scope=self._scope, literal=True, limit=min(limit * _HITS, _MAX_HITS)
        ):
            session = self._store.get(hit.session_id)
            if session.key is None or session.key in found or hit.message_id is None:
                continue
            before = to_history(session.messages(upto=hit.message_id), self._store.blob)
            found[session.key] = self._hit(session.key, hit, len(before) - 1, window)
            if len(found) == limit:
                break
        return [*found.values()]

    def _hit(self, id: str, hit: Hit, anchor: int, window: int) -> SessionHit:
        session = self._whole(id)
        items = _projected(session.messages)
        said = [item for item in items if item["role"] in {"user", "assistant"}]
        closing = said[-_BOOKENDS:] if len(said) > _BOOKENDS else []
        return SessionHit(
            session_id=id,
            title=session.metadata.get("title") or session.agent_name or id,
            when=session.updated_at,
            snippet=hit.snippet,
            score=hit.score,
            anchor_index=anchor,
            messages=_around(items, anchor, window),
            bookends={"opening": said[:_BOOKENDS], "closing": closing} if said else {},
        )

    def window(
        self, session_id: str, around_message_id: str | None = None, *, window: int = 5
    ) -> list[Item]:
        """Return the messages around one, which is given by its index; the last by default."""
        items = _projected(self._whole(session_id).messages)
        try:
            anchor = int(around_message_id or len(items) - 1)
        except ValueError:
            anchor = len(items) - 1
        return _around(items, max(0, min(anchor, len(items) - 1)), window)

    def _ids(self, metadata: dict[str, JSON], limit: int) -> list[str]:
        found = self._infos(metadata)
        return [str(info.key) for info in islice(found, limit)]

    def _infos(self, metadata: dict[str, JSON] | None = None) -> Iterator[SessionInfo]:
        wanted: ListOptions = {"scope": self._scope, "limit": _PAGE, "metadata": metadata}
        while True:
            page = self._store.sessions(**wanted)
            yield from (info for info in page if info.key is not None)
            if page.cursor is None:
                return
            wanted["cursor"] = page.cursor


def iso(time: datetime) -> str:
    """Return a time as PraisonAI writes it."""
    return time.isoformat()


def _listed(info: SessionInfo) -> Item:
    given = info.metadata
    return {
        "session_id": info.key,
        "id": info.key,
        "agent_name": given.get(OWN + "agent_name", info.agent),
        "title": given.get("title") or info.title,
        "agent_id": given.get(OWN + "agent_id") or given.get("agent_id"),
        **{name: given.get(name) for name in _LISTED},
        "created_at": iso(info.created_at),
        "updated_at": iso(info.updated_at),
        "message_count": info.messages,
        "model": given.get("model") or given.get("llm") or info.model,
    }


def _projected(messages: list[SessionMessage]) -> list[Item]:
    return [
        {
            "index": index,
            "role": message.role,
            "content": message.content,
            "timestamp": message.timestamp,
            "archived": False,
        }
        for index, message in enumerate(messages)
    ]


def _around(items: list[Item], anchor: int, window: int) -> list[Item]:
    return items[max(0, anchor - window) : anchor + window + 1] if anchor >= 0 else []
