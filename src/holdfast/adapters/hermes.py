"""hermes-agent: the `SessionManager` of its ACP server, with sessions in a store.

It is Hermes' own manager, which still makes and configures the agents; what it saves and how it
finds sessions again is replaced. Saving appends what is new since the session was read. A history
that was rewritten (`/reset`, `/compact`) becomes a new branch. What another process appended
meanwhile is kept, and is in the state's history afterwards. A session that cannot be read or
written raises: it is never taken for an empty one.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Final

import msgspec

from holdfast import Head, Message, Session, Store
from holdfast.adapters.changed_list import matched, split
from holdfast.adapters.hermes_db import ACP, Item, SessionDB, repaired, to_message
from holdfast.errors import BadMessage, HeadMoved, install_command
from holdfast.values import JSON, SessionChanges

try:
    from acp_adapter.session import (
        SessionManager as HermesSessionManager,
    )
    from acp_adapter.session import (
        SessionState,
        _normalize_cwd_for_compare,
        _register_task_cwd,
    )
    from hermes_constants import translate_cwd_for_wsl_backend
except ImportError as error:
    raise ImportError(
        f"hermes-agent is not installed: {install_command('hermes')}", name=error.name
    ) from error

__all__ = ["SessionDB", "SessionManager"]

_COMPARED: Final = ("role", "content", "tool_calls", "tool_call_id")
_CONFIG: Final = ("provider", "base_url", "api_mode")
_ID_CHARS: Final = 32
_ALL: Final = sys.maxsize


class _Saved(msgspec.Struct, frozen=True):
    """Up to where a state has seen what is stored in a session, and a digest of each message."""

    session_id: str
    head: Head
    digests: tuple[str, ...]


class SessionManager(HermesSessionManager):
    """The ACP sessions of a store, of one scope or of none."""

    def __init__(
        self,
        store: Store,
        agent_factory: Callable[[], Any] | None = None,
        *,
        scope: str | None = None,
    ) -> None:
        self._db = SessionDB(store, scope=scope)
        self._saved: dict[str, _Saved] = {}
        self._saving = threading.RLock()
        super().__init__(agent_factory, self._db)

    # ------------------------------------------------------------------------------- sessions

    def fork_session(self, session_id: str, cwd: str = ".") -> SessionState | None:
        """Fork a session at its newest message, which both share; None if there is none."""
        original = self.get_session(session_id)
        if original is None:
            return None
        self._persist(original)
        cwd = translate_cwd_for_wsl_backend(str(cwd))
        session = self._db.open(session_id)
        row = self._db.get_session(session_id) or {}
        config = json.dumps({**_config(row), "cwd": cwd})
        metadata: dict[str, JSON] = {"hermes.source": ACP, "hermes.model_config": config}
        fork = session.fork(key=str(uuid.uuid4()), exact=True, cwd=cwd, metadata=metadata)
        return self.get_session(str(fork.key))

    def list_sessions(self, cwd: str | None = None) -> list[Item]:
        """Return the sessions that have messages, of one directory or of all, newest first."""
        wanted = _normalize_cwd_for_compare(cwd) if cwd else None
        with self._lock:
            states = dict(self._sessions)
        rows = self._db.search_sessions(ACP, limit=_ALL)
        found = [_listed(row, states.get(row["id"])) for row in rows]
        return [
            item
            for item in found
            if item["history_len"] > 0
            and (wanted is None or _normalize_cwd_for_compare(item["cwd"]) == wanted)
        ]

    def cleanup(self) -> None:
        """Move all ACP sessions to the trash."""
        with self._lock:
            ids = set(self._sessions)
        ids.update(row["id"] for row in self._db.search_sessions(ACP, limit=_ALL))
        for session_id in ids:
            self.remove_session(session_id)

    # ------------------------------------------------------- what Hermes' manager calls to store

    def _delete_persisted(self, session_id: str) -> bool:
        with self._saving:
            self._saved.pop(session_id, None)
            return self._db.delete_session(session_id)

    def _restore(self, session_id: str) -> SessionState | None:
        session = self._db.find(session_id)
        row = None if session is None else self._db.get_session(session_id)
        if session is None or row is None or row["source"] != ACP:
            return None
        config = _config(row)
        cwd = config.get("cwd") or row["cwd"] or "."
        agent = self._make_agent(
            session_id=session_id,
            cwd=cwd,
            model=row["model"],
            requested_provider=config.get("provider") or row["billing_provider"],
            base_url=config.get("base_url") or row["billing_base_url"],
            api_mode=config.get("api_mode"),
        )
        model = row["model"] or getattr(agent, "model", "") or ""
        state = SessionState(session_id=session_id, agent=agent, cwd=cwd, model=model)
        state.cancel_event = threading.Event()
        with self._saving:
            if (known := self._sessions.get(session_id)) is not None:
                return known
            self._read(state, session, session.head())
            with self._lock:
                self._sessions[session_id] = state
        _register_task_cwd(session_id, cwd)
        return state

    def _read(self, state: SessionState, session: Session, head: Head) -> None:
        """Set the state's history to what is stored up to a head."""
        messages = session.messages(upto=head) if head.seq else []
        state.history = repaired(self._db.conversation(messages))
        self._saved[state.session_id] = _Saved(session.id, head, _digests(state.history))

    def _persist(self, state: SessionState) -> None:
        with self._saving:
            session = self._db.find(state.session_id)
            if session is None:
                session = self._db.open(self._db.create_session(state.session_id, ACP))
            saved = self._saved.get(state.session_id)
            if saved is None or saved.session_id != session.id:
                saved = _Saved(session.id, Head(1, 0), ())
            digests = _digests(state.history)
            known = len(saved.digests)
            if digests[:known] != saved.digests:
                self._rewrite(state, session, saved, digests)
                return
            if self._stores_itself(state.agent):
                session.update(**_changes(state))
                self._saved[state.session_id] = _Saved(session.id, saved.head, digests)
                return
            new = self._new(state, saved, digests)
            head = _append(session, new, _changes(state))
            self._saved[state.session_id] = _Saved(session.id, head, digests)
            if head != _after(saved.head, len(new)):
                self._read(state, session, head)

    def _rewrite(
        self, state: SessionState, session: Session, saved: _Saved, digests: tuple[str, ...]
    ) -> None:
        """Continue with a history that was rewritten, and what others said meanwhile."""
        head = session.head()
        stored = session.messages(upto=head) if head.seq else []
        found = [self._digests(message) for message in stored]
        if [digest for one in found for digest in one] == [*digests]:
            # The agent rewrote it itself.
            head = _append(session, (), _changes(state))
            self._saved[state.session_id] = _Saved(session.id, head, digests)
            return
        pairs = enumerate(zip(found, digests, strict=False))
        same = next(
            (n for n, (one, digest) in pairs if one != (digest,)), min(len(found), len(digests))
        )
        known, others = split(session, stored[same:], saved.head, self._is_own)
        places = matched([(one,) for one in digests[same:]], map(self._digests, known))
        own = [
            self._message(item, uuid.uuid4().hex) if place is None else known[place]
            for item, place in zip(state.history[same:], places, strict=True)
        ]
        messages = [*stored[:same], *own, *others]
        try:
            moved = session.replace(messages, expect=head, update=_changes(state))
        except HeadMoved:  # Another process wrote meanwhile.
            self._rewrite(state, session, saved, digests)
            return
        self._saved[state.session_id] = _Saved(session.id, moved, digests)
        if others:
            self._read(state, session, moved)

    def _new(self, state: SessionState, saved: _Saved, digests: Sequence[str]) -> Sequence[Message]:
        """Return what was added since a save, with the same ids until it is stored."""
        found = []
        for place in range(len(saved.digests), len(digests)):
            origin = f"{state.session_id!r} {saved.head} {place} {digests[place]}"
            name = hashlib.sha256(origin.encode()).hexdigest()[:_ID_CHARS]
            found.append(self._message(state.history[place], name))
        return found

    def _is_own(self, message: Message) -> bool:
        return message.id.startswith(self._db.writer)

    def _message(self, item: Item, name: str) -> Message:
        return to_message(item, id=f"{self._db.writer}-{name}")

    def _digests(self, message: Message) -> tuple[str, ...]:
        return _digests(self._db.conversation([message]))

    def _stores_itself(self, agent: object) -> bool:
        """True if the agent stores each message as it comes."""
        owned = getattr(agent, "_session_db", None) is self._db
        return owned and bool(getattr(agent, "_session_db_created", False))


def _append(session: Session, messages: Sequence[Message], changes: SessionChanges) -> Head:
    if messages:
        return session.append(*messages, update=changes)
    session.update(**changes)
    return session.head()


def _after(head: Head, messages: int) -> Head:
    return Head(head.branch, head.seq + messages)


def _digests(items: Sequence[Item]) -> tuple[str, ...]:
    """Return a digest of what each message says; times and other notes are left out."""
    return tuple(
        hashlib.sha256(_to_json([item.get(name) for name in _COMPARED]).encode()).hexdigest()
        for item in items
    )


def _to_json(value: object) -> str:
    try:
        return json.dumps(value)
    except TypeError as error:
        raise BadMessage(f"a message of a conversation: {error}") from error


def _config(row: Item) -> Item:
    found = json.loads(row["model_config"] or "{}")
    return found if isinstance(found, dict) else {}


def _changes(state: SessionState) -> SessionChanges:
    config = {"cwd": state.cwd}
    for name in _CONFIG:
        value = getattr(state.agent, name, None)
        if isinstance(value, str) and value.strip():
            config[name] = value.strip()
    changes: SessionChanges = {
        "cwd": state.cwd,
        "metadata": {"hermes.source": ACP, "hermes.model_config": json.dumps(config)},
    }
    if state.model:
        changes["model"] = str(state.model)
    return changes


def _listed(row: Item, state: SessionState | None) -> Item:
    """Return an item of the list, as the state is if it is in memory."""
    cwd = (_config(row).get("cwd") or row["cwd"] or ".") if state is None else state.cwd
    title = (row["title"] or row["preview"]).strip() or PurePath(cwd).name
    return {
        "session_id": row["id"],
        "cwd": cwd,
        "model": (row["model"] or "") if state is None else state.model,
        "history_len": row["message_count"] if state is None else len(state.history),
        "title": title or "New thread",
        "updated_at": datetime.fromtimestamp(row["last_active"], UTC).isoformat(),
    }
