"""hermes-agent: the part of its `SessionDB` that an ACP session manager and its agent write with.

A Hermes session is the session whose key is its id. Its messages are messages, with the dict of
each kept beside its parts; the columns of its row are the session's title, model and cwd, and
metadata named `hermes.COLUMN`, each changed by itself. What is replaced or compacted stays on its
branch, and a session that is deleted is in the trash.

A session that another program wrote is read by its key: as one of the source `acp`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from holdfast import Message, Record, Session, Store, Thinking, ToolResult
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import KeyTaken, PreconditionFailed
from holdfast.formats import keep, kept, openai, with_data
from holdfast.values import JSON, Part, Relation, SessionChanges, SessionInfo

SOURCE: Final = "hermes"
ACP: Final = "acp"
Item: TypeAlias = dict[str, Any]

_FIELDS: Final = ("role", "content", "tool_calls", "tool_call_id")
_PREFIX: Final = "hermes."
_PROMPT: Final = "hermes.system_prompt"
_PREVIEW_CHARS: Final = 60


class SessionDB:
    """The rows and messages of Hermes sessions in a store, which the caller opens and closes."""

    def __init__(self, store: Store, *, scope: str | None = None) -> None:
        self._store = store
        self._scope = scope
        self.writer = uuid.uuid4().hex  # With this begin the ids of what it stores.

    # ------------------------------------------------------------------------------- sessions

    def create_session(
        self,
        session_id: str,
        source: str,
        *,
        model: str | None = None,
        model_config: Mapping[str, JSON] | None = None,
        system_prompt: str | None = None,
        parent_session_id: str | None = None,
        cwd: str | None = None,
        **columns: JSON,
    ) -> str:
        """Create a session, or fill in the columns that it does not have yet; return its id."""
        session = self._open_or_create(session_id, parent_session_id, model_config or {})
        info = session.info()
        given = {
            "source": source,
            "model_config": json.dumps(model_config) if model_config else None,
            "parent_session_id": parent_session_id,
            **columns,
        }
        changes: SessionChanges = {
            "metadata": {
                _PREFIX + name: value
                for name, value in given.items()
                if value is not None and _PREFIX + name not in info.metadata
            }
        }
        if info.model is None and model:
            changes["model"] = model
        if info.cwd is None and (cwd or (model_config or {}).get("cwd")):
            changes["cwd"] = cwd or str((model_config or {})["cwd"])
        session.update(**changes)
        if system_prompt and session.record(_PROMPT) is None:
            session.append(Record(_PROMPT, data=system_prompt))
        return session_id

    def _open_or_create(
        self, session_id: str, parent_id: str | None, config: Mapping[str, JSON]
    ) -> Session:
        parent = self.find(parent_id) if parent_id else None
        found = self.find(session_id)
        if found is not None or parent is None:
            return found or self._store.session(session_id, scope=self._scope)
        # What a compression or a branch starts with is written to it: the history is not shared.
        relation: Relation = "delegate" if config.get("_delegate_from") else "reset"
        try:
            return self._store.create(
                key=session_id, parent=parent, relation=relation, scope=self._scope
            )
        except KeyTaken:  # by another process, meanwhile
            return self.open(session_id)

    def find(self, session_id: str) -> Session | None:
        """Return the session with this id; None if there is none."""
        return find_session(self._store, session_id) if session_id else None

    def open(self, session_id: str) -> Session:
        """Return the session with this id; raise `SessionNotFound` if there is none."""
        return recovered(self._store.session(session_id, create=False))

    def get_session(self, session_id: str) -> Item | None:
        """Return the row of a session; None if there is none."""
        session = self.find(session_id)
        if session is None:
            return None
        prompt = session.record(_PROMPT)
        return {**_row(session.info()), "system_prompt": prompt and prompt.data}

    def update_session_meta(
        self, session_id: str, model_config_json: str, model: str | None = None
    ) -> None:
        """Set the `model_config` of a session, and its model unless that is None."""
        changes: SessionChanges = {"metadata": {_PREFIX + "model_config": model_config_json}}
        cwd = json.loads(model_config_json).get("cwd")
        if cwd:
            changes["cwd"] = cwd
        if model:
            changes["model"] = model
        self.open(session_id).update(**changes)

    def update_system_prompt(self, session_id: str, system_prompt: str) -> None:
        """Set the system prompt of a session."""
        self.open(session_id).append(Record(_PROMPT, data=system_prompt))

    def update_token_counts(
        self,
        session_id: str,
        *,
        model: str | None = None,
        absolute: bool = False,
        **columns: JSON,
    ) -> None:
        """Add counts to a session's, or set them if they are `absolute`; set its other columns."""
        self.create_session(session_id, "unknown", model=model)
        session = self.open(session_id)
        while True:
            old = session.info().metadata
            before = {_PREFIX + name: old.get(_PREFIX + name) for name in columns}
            after = {
                _PREFIX + name: value if absolute else _sum(old.get(_PREFIX + name), value)
                for name, value in columns.items()
                if value is not None
            }
            try:
                session.update(metadata=after, expect_metadata=before)
            except PreconditionFailed:  # Another process counted meanwhile.
                continue
            return

    def end_session(self, session_id: str, end_reason: str) -> None:
        """Mark a session as ended; the first reason stays until it is reopened."""
        row = self.get_session(session_id)
        if row is not None and row["ended_at"] is None:
            self._set(session_id, ended_at=datetime.now(UTC).timestamp(), end_reason=end_reason)

    def reopen_session(self, session_id: str) -> None:
        """Mark a session as not ended."""
        self._set(session_id, ended_at=None, end_reason=None)

    def _set(self, session_id: str, **columns: JSON) -> None:
        metadata = {_PREFIX + name: value for name, value in columns.items()}
        self.open(session_id).update(metadata=metadata)

    def get_session_title(self, session_id: str) -> str | None:
        """Return the title of a session; None if it has none."""
        row = self.get_session(session_id)
        return None if row is None else row["title"]

    def set_session_title(self, session_id: str, title: str) -> bool:
        """Set the title of a session, or remove it; False if there is no such session."""
        session = self.find(session_id)
        if session is not None:
            session.update(title=" ".join(title.split()) or None)
        return session is not None

    def list_sessions_rich(
        self, source: str | None = None, *, limit: int = 20, offset: int = 0
    ) -> list[Item]:
        """Return rows with their preview, the newest session first; no sub-agents."""
        infos = sorted(self._listed(source), key=lambda info: info.created_at, reverse=True)
        return [_row(info) for info in infos[offset : offset + limit]]

    def search_sessions(
        self, source: str | None = None, limit: int = 20, offset: int = 0
    ) -> list[Item]:
        """Return rows, the session written to last first; sub-agents too."""
        infos = self._listed(source, delegates=True)
        return [_row(info) for info in islice(infos, offset, offset + limit)]

    def _listed(self, source: str | None, *, delegates: bool = False) -> Iterable[SessionInfo]:
        wanted: dict[str, JSON] | None = None if source is None else {_PREFIX + "source": source}
        cursor = None
        while True:
            page = self._store.sessions(
                scope=self._scope, metadata=wanted, delegates=delegates, limit=500, cursor=cursor
            )
            yield from (info for info in page if info.key is not None)
            if (cursor := page.cursor) is None:
                return

    def delete_session(self, session_id: str) -> bool:
        """Move a session and its sub-agents' to the trash; False if there is none."""
        session = self.find(session_id)
        if session is None:
            return False
        for link in session.children():
            if link.relation == "delegate" and link.state == "live":
                self._store.trash(link.session_id)
        self._store.trash(session.id)
        return True

    # ------------------------------------------------------------------------------- messages

    def append_message(
        self, session_id: str, role: str, content: JSON = None, **fields: JSON
    ) -> int:
        """Store a message, durable on return; return its seq."""
        given = {name: value for name, value in fields.items() if value not in (None, False)}
        if "platform_message_id" in given:
            given["message_id"] = given.pop("platform_message_id")
        message = self._message({"role": role, "content": content, **given})
        return self.open(session_id).append(message).seq

    def _message(self, item: Mapping[str, Any]) -> Message:
        return to_message(item, id=f"{self.writer}-{uuid.uuid4().hex}")

    def replace_messages(
        self,
        session_id: str,
        messages: Sequence[Mapping[str, Any]],
        active_only: bool = False,  # noqa: ARG002, FBT001, FBT002 - as in Hermes; nothing is lost
    ) -> None:
        """Continue with these messages; the earlier ones stay on their branch."""
        self.open(session_id).replace([self._message(item) for item in messages])

    def archive_and_compact(
        self, session_id: str, compacted_messages: Sequence[Mapping[str, Any]]
    ) -> int:
        """Continue with the compacted messages; return their number."""
        self.replace_messages(session_id, compacted_messages)
        return len(compacted_messages)

    def has_archived_messages(self, session_id: str) -> bool:
        """True if messages of the session are on a branch that was left."""
        session = self.find(session_id)
        branches = [] if session is None else session.branches()
        return any(not branch.active and branch.seq > branch.fork_seq for branch in branches)

    def get_messages_as_conversation(
        self, session_id: str, *, repair_alternation: bool = False
    ) -> list[Item]:
        """Return the messages as Hermes wrote them; those of other programs as chat messages."""
        session = self.find(session_id)
        items = [] if session is None else self.conversation(session.messages())
        return repaired(items) if repair_alternation else items

    def conversation(self, messages: Iterable[Message]) -> list[Item]:
        """Return messages of the store as the dicts of a conversation."""
        return [item for message in messages for item in to_items(message, self._store.blob)]


def repaired(items: list[Item]) -> list[Item]:
    """Return a conversation whose roles alternate, as Hermes sends it."""
    from agent.agent_runtime_helpers import (  # noqa: PLC0415 - heavy
        repair_message_sequence,
    )

    repair_message_sequence(None, items)
    return items


def _sum(before: JSON, value: JSON) -> JSON:
    """Return the sum of two numbers; the value if it is none."""
    if isinstance(value, int | float) and isinstance(before, int | float):
        return before + value
    return value


def _row(info: SessionInfo) -> Item:
    preview = info.preview or ""
    row: Item = dict.fromkeys(("model_config", "parent_session_id", "ended_at", "end_reason"))
    row |= dict.fromkeys(("user_id", "billing_provider", "billing_base_url"))
    own = {
        name.removeprefix(_PREFIX): value
        for name, value in info.metadata.items()
        if name.startswith(_PREFIX)
    }
    return {
        "source": ACP,
        "input_tokens": info.usage.input,
        "output_tokens": info.usage.output,
        **row,
        **own,
        "id": info.key,
        "model": info.model,
        "title": info.title,
        "cwd": info.cwd,
        "started_at": info.created_at.timestamp(),
        "last_active": info.updated_at.timestamp(),
        "message_count": info.messages,
        "archived": int(info.archived),
        "preview": preview[:_PREVIEW_CHARS] + ("..." if len(preview) > _PREVIEW_CHARS else ""),
    }


# ------------------------------------------------------------------------------------ conversion


def to_message(item: Mapping[str, Any], *, id: str) -> Message:
    """Return a dict of a conversation as a message that keeps it; `BadMessage` if it is not one."""
    given = {name: value for name, value in item.items() if not name.startswith("_")}
    chat = {name: given[name] for name in _FIELDS if given.get(name) is not None}
    message = openai.decode(chat)
    name, thought = given.get("tool_name"), given.get("reasoning")
    if isinstance(name, str) and name:
        message = message.with_parts([_named(part, name) for part in message.parts])
    if isinstance(thought, str) and thought:
        message = message.with_parts((Thinking(thought), *message.parts))
    time = given.get("timestamp")
    if isinstance(time, datetime):
        time = given["timestamp"] = time.timestamp()
    message = msgspec.structs.replace(message, id=id, created_at=_moment(time))
    return keep(message, SOURCE, given)


def _moment(time: object) -> datetime | None:
    """Return a time in seconds; None if it is no time, or not one of ours."""
    with suppress(OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(time, UTC) if isinstance(time, int | float) else None
    return None


def to_items(message: Message, blob: Callable[[str], bytes]) -> list[Item]:
    """Return a message as the dict it was made from, or as those that it takes in a chat."""
    if message.status == "erased":
        return []
    original = kept(message, SOURCE, blob=blob)
    items = _built(message, blob) if original is None else [original]
    for item in items:
        if message.created_at is not None:
            item.setdefault("timestamp", message.created_at.timestamp())
    return items


def _built(message: Message, blob: Callable[[str], bytes]) -> list[Item]:
    items: list[Item] = [*openai.encode_all(with_data(message, blob))]
    thought = "\n".join(part.text for part in message.parts if isinstance(part, Thinking))
    if thought and items[0]["role"] == "assistant":
        items[0]["reasoning"] = thought
    names = {result.call_id: result.name for result in message.tool_results}
    for item in items:
        if names.get(item.get("tool_call_id", "")):
            item["tool_name"] = names[item["tool_call_id"]]
    return items


def _named(part: Part, name: str) -> Part:
    return msgspec.structs.replace(part, name=name) if isinstance(part, ToolResult) else part
