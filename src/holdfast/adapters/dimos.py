"""dimos' session store over a Holdfast store: the functions of its `session_store`, as methods.

A run is a session: its key is the run id, its scope the blueprint. A run that continues another
begins with that one's history, which both share. `save_session` may be called after every message:
it appends what is new. A save that does not continue what is stored under its run id is that of
another run, such as one that started in the same second, and becomes a session of its own.

Messages are LangChain's, as objects or as dicts `{"type": …, "data": …}`; they come back as they
were saved. LangChain is imported only when objects are loaded.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast import Message, Session, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import (
    AmbiguousRef,
    BadMessage,
    BadRef,
    Damaged,
    HeadMoved,
    IdConflict,
    KeyTaken,
    SessionNotFound,
    install_command,
)
from holdfast.formats import keep, kept, openai, with_data
from holdfast.values import JSON, Part, Relation, Role, SessionChanges, SessionInfo

Item: TypeAlias = dict[str, Any]

SOURCE: Final = "dimos"
_ABOUT: Final = "dimos"  # In the metadata of a session: what is known of its run.
_ROLES: Final[dict[str, Role]] = {
    "AIMessageChunk": "assistant",
    "ai": "assistant",
    "developer": "system",
    "human": "user",
    "system": "system",
    "tool": "tool",
}
_TYPES: Final = {"assistant": "ai", "system": "system", "tool": "tool", "user": "human"}
_INVALID: Final = "invalid_tool_calls"
_log: Final = logging.getLogger("holdfast")


class Run(NamedTuple):
    """The run that a process is part of, as dimos passes it to its workers."""

    run_id: str
    blueprint: str
    started_at: str | None


def current_run(environment: Mapping[str, str] | None = None) -> Run | None:
    """Return the run that the environment names; None outside of one."""
    given = os.environ if environment is None else environment
    run_id = given.get("DIMOS_RUN_ID")
    if not run_id:
        return None
    return Run(run_id, given.get("DIMOS_BLUEPRINT", ""), given.get("DIMOS_STARTED_AT") or None)


class DimosSessions:
    """The sessions of dimos' runs in an open Holdfast store; the caller closes the store."""

    def __init__(self, store: Store, *, agent: str | None = None) -> None:
        self.store = store
        self._agent = agent

    def save_session(  # noqa: PLR0917 - dimos' signature
        self,
        run_id: str,
        blueprint: str,
        model: str,
        started_at: str | None,
        original_argv: list[str],
        history: Sequence[Any],
        parent_session_id: str | None = None,
    ) -> None:
        """Store what is new of a run's history, and what is known of the run."""
        about: dict[str, JSON] = {
            "run_id": run_id,
            "blueprint": blueprint,
            "model": model,
            "started_at": started_at,
            "ended_at": datetime.now(UTC).isoformat(),
            "original_argv": [*original_argv],
            "parent_session_id": parent_session_id,
            "objects": any(not isinstance(message, Mapping) for message in history),
        }
        items = [_to_item(message) for message in history]
        keys = (run_id if n == 1 else f"{run_id}~{n}" for n in count(1))
        key = next(keys)
        while (saved := self._save(key, {**about, "run_id": key}, items)) is not True:
            key = next(keys) if saved is None else key

    def _save(self, key: str, about: dict[str, JSON], items: Sequence[Item]) -> bool | None:
        """Store a run under a key; False if another was faster, None if it is another run's."""
        session = self._find(key)
        if session is not None:
            return self._add(session, about, items)
        given = {"scope": about["blueprint"], "model": about["model"], "agent": self._agent}
        fields: dict[str, Any] = {name: value for name, value in given.items() if value}
        fields["metadata"] = {_ABOUT: about}
        try:
            return self._create(
                self._find(str(about["parent_session_id"] or "")), key, items, fields
            )
        except KeyTaken:
            return False

    def _add(self, session: Session, about: dict[str, JSON], items: Sequence[Item]) -> bool | None:
        """Append what is new to a session, if it is this run's."""
        info = session.info()
        started = {_about(info)["started_at"], about["started_at"]} - {None}
        head, history = session.head(), session.messages()
        shared, used = self._compare(history, items)
        if shared < len(history) or len(started) > 1:
            return None
        new = _to_messages(items, used, str(about["run_id"]), history)
        try:
            session.append(*new, expect=head, update={"metadata": {_ABOUT: about}})
        except HeadMoved:
            return False
        except IdConflict:
            return None
        return True

    def _create(
        self, parent: Session | None, key: str, items: Sequence[Item], fields: dict[str, Any]
    ) -> bool:
        """Create a session that begins with what it shares; False if the parent moved meanwhile."""
        history = [] if parent is None else parent.messages()
        shared, used = self._compare(history, items)
        new = _to_messages(items, used, key, history[:shared])
        if parent is None or not shared:
            relation: Relation = "continue" if parent is None else "reset"
            self.store.create(key=key, parent=parent, relation=relation, entries=new, **fields)
        elif shared < len(history):
            update = SessionChanges(scope=fields.pop("scope", None))
            fields.pop("agent", None)
            at = history[shared - 1].id
            parent.fork(at, exact=True, key=key, entries=new, update=update, **fields)
        else:
            made = self.store.create(key=key, parent=parent, entries=new, **fields)
            if made.head().seq != shared + len(new):
                self.store.trash(made.id)
                return False
        return True

    def _compare(self, history: Sequence[Message], items: Sequence[Item]) -> tuple[int, int]:
        """Return how many messages the items begin with, and how many items these are."""
        used = 0
        for shared, message in enumerate(history):
            own = [] if message.status == "erased" else _to_items(message, self.store)
            given = items[used : used + len(own)]
            same = len(given) == len(own) and all(map(_is_same, given, own))
            if message.status == "damaged" or not same:
                return shared, used
            used += len(own)
        return len(history), used

    def load_session(self, run_id: str) -> tuple[list[Any], dict[str, object]]:
        """Return a run's messages and what is known of it.

        Raise `FileNotFoundError` if there is no such run, `Damaged` if it cannot be read.
        """
        session = self._find(run_id)
        if session is None:
            raise FileNotFoundError(f"no run with the id {run_id!r} is stored in {self.store.url}")
        messages = [message for message in session.messages() if message.status != "erased"]
        for message in messages:
            if message.status == "damaged":
                raise Damaged(f"message {message.seq} of run {run_id!r} cannot be read")
        items = [item for message in messages for item in _to_items(message, self.store)]
        about = _about(session.info())
        return (_to_objects(items) if about.pop("objects") else items), about

    def find_latest_session(self, blueprint: str) -> str | None:
        """Return the id of the run of a blueprint that was saved last; None if there is none."""
        session = self.store.latest(scope=blueprint) if blueprint else None
        return None if session is None else session.key or session.id

    def restore_session(
        self,
        blueprint: str,
        restore_session_id: str | None,
        no_restore: bool,  # noqa: FBT001
    ) -> tuple[list[Any], str | None]:
        """Return the history to continue, and its run id; `([], None)` if there is none.

        One that cannot be read is none, too; the log has a warning, and it is kept as it is.
        """
        if no_restore or not blueprint:
            return [], None
        run_id = restore_session_id or self.find_latest_session(blueprint)
        if not run_id:
            return [], None
        try:
            history, about = self.load_session(run_id)
        except (BadMessage, Damaged, FileNotFoundError) as problem:
            _log.warning("run %r is not restored, a new history begins: %s", run_id, problem)
            return [], None
        return history, str(about["run_id"])

    def _find(self, run_id: str) -> Session | None:
        """Open a session by its key, or by its whole id."""
        if not run_id:
            return None
        found = find_session(self.store, run_id)
        if found is not None:
            return found
        try:
            session = self.store.get(run_id)
        except (AmbiguousRef, BadRef, SessionNotFound):
            return None
        return recovered(session) if session.id == run_id else None


def _about(info: SessionInfo) -> dict[str, Any]:
    """Return what is known of a run; of a session of another program, what there is."""
    given = info.metadata.get(_ABOUT)
    return {
        "blueprint": info.scope or "",
        "model": info.model or "",
        "started_at": info.created_at.isoformat(),
        "ended_at": info.updated_at.isoformat(),
        "original_argv": [],
        "parent_session_id": info.parent,
        "objects": True,
        **(given if isinstance(given, dict) else {}),
        "run_id": info.key or info.id,
    }


# ---------------------------------------------------------------------------------------- messages


def _to_item(message: Any) -> Item:  # noqa: ANN401 - LangChain's, or a dict
    """Return a message as LangChain writes it, as plain JSON."""
    if not isinstance(message, Mapping):
        message = {"type": message.type, "data": message.model_dump()}
    item: Item = json.loads(json.dumps(dict(message)))
    if not isinstance(item.get("type"), str) or not isinstance(item.get("data"), dict):
        raise BadMessage('history: a message is a LangChain object or {"type": …, "data": {…}}')
    return item


def _is_same(first: Item, second: Item) -> bool:
    """True if two items are one message, whatever fields a version of LangChain adds."""
    ids = {item["data"].get("id") for item in (first, second)} - {None}
    return len(ids) < 2 and _words(first) == _words(second)  # noqa: PLR2004 - two items


def _words(item: Item) -> tuple[object, ...]:
    data = item["data"]
    calls = [*(data.get("tool_calls") or ()), *(data.get(_INVALID) or ())]
    named = [
        [call.get(name) for name in ("id", "name", "args")] if isinstance(call, dict) else call
        for call in calls
    ]
    role = _ROLES.get(item["type"], item["type"])
    return role, data.get("content"), data.get("tool_call_id"), named


def _to_objects(items: Sequence[Item]) -> list[Any]:
    try:
        from langchain_core.messages import messages_from_dict  # noqa: PLC0415 - not all need it
    except ImportError as error:
        raise ImportError(
            f"langchain-core is not installed: {install_command('langchain')}", name=error.name
        ) from error
    found: list[Any] = messages_from_dict([*items])
    return found


def _to_messages(
    items: Sequence[Item], used: int, key: str, history: Sequence[Message]
) -> list[Message]:
    """Return the items after the first ones as messages, with ids that the history has not.

    One without an id of its own is named by its place in the history, which no other has.
    """
    taken = {message.id for message in history}
    new = []
    for number, item in enumerate(items[used:], start=len(history) + 1):
        own = item["data"].get("id")
        id = own if isinstance(own, str) and own and own not in taken else f"{key}#{number}"
        taken.add(id)
        new.append(_to_message(item, id))
    return new


def _to_message(item: Item, id: str) -> Message:
    """Return an item as a message; of one of an unknown type, only a text is a part."""
    data = item["data"]
    role = _ROLES.get(item["type"])
    chat = {"role": role, "content": data.get("content"), "tool_call_id": data.get("tool_call_id")}
    try:
        parts = _reply_parts(data) if role == "assistant" else openai.decode(chat).parts
    except BadMessage:
        role, parts = "user", _texts(data.get("content"))
    more = data.get("response_metadata")
    name = data.get("name")
    message = Message(
        id=id,
        role=role or "user",
        parts=tuple(_with_outcome(part, data) for part in parts),
        name=name if isinstance(name, str) and name else None,
        model=_model(more if isinstance(more, dict) else {}) if role == "assistant" else None,
        usage=_usage(data.get("usage_metadata")),
    )
    return keep(message, SOURCE, item)


def _texts(content: object) -> tuple[Part, ...]:
    return (Text(content),) if isinstance(content, str) and content else ()


def _reply_parts(data: Item) -> tuple[Part, ...]:
    content = data.get("content")
    parts = [*_texts(content)]
    for block in content if isinstance(content, list) else ():
        match block:
            case str() | {"type": "text", "text": str()}:
                parts.append(Text(block if isinstance(block, str) else block["text"]))
            case {"type": "thinking", "thinking": str(text), **rest}:
                signature = rest.get("signature")
                parts.append(Thinking(text, signature if isinstance(signature, str) else None))
    for call in data.get("tool_calls") or ():
        match call:
            case {"id": str(id), "name": str(name), "args": arguments} if id and name:
                parts.append(ToolCall(id, name, arguments))
    return tuple(parts)


def _with_outcome(part: Part, data: Item) -> Part:
    """Return a tool's result with its name and outcome; any other part as it is."""
    if not isinstance(part, ToolResult):
        return part
    name = data.get("name")
    named = name if isinstance(name, str) and name else None
    return ToolResult(part.call_id, part.content, error=data.get("status") == "error", name=named)


def _model(more: Mapping[str, object]) -> str | None:
    names = (more.get("model_name"), more.get("model"))
    return next((name for name in names if isinstance(name, str) and name), None)


def _usage(given: object) -> Usage | None:
    if not isinstance(given, dict):
        return None
    inner, outer = given.get("input_token_details"), given.get("output_token_details")
    return Usage(
        input=_tokens(given, "input_tokens"),
        output=_tokens(given, "output_tokens"),
        cache_read=_tokens(inner, "cache_read"),
        cache_write=_tokens(inner, "cache_creation"),
        reasoning=_tokens(outer, "reasoning"),
    )


def _tokens(counts: object, name: str) -> int:
    found = counts.get(name) if isinstance(counts, dict) else None
    return found if type(found) is int and found >= 0 else 0


def _to_items(message: Message, store: Store) -> list[Item]:
    """Return a message as LangChain's: dimos' own, or made of what another program wrote."""
    original = kept(message, SOURCE, blob=store.blob)
    if original is not None:
        return [original]
    whole = with_data(message, store.blob)
    return [_from_chat(chat, message) for chat in openai.encode_all(whole)]


def _from_chat(chat: Mapping[str, Any], message: Message) -> Item:
    data: Item = {"content": chat.get("content") or "", "id": message.id}
    if chat["role"] == "tool":
        result = next(r for r in message.tool_results if r.call_id == chat["tool_call_id"])
        status = "error" if result.error else "success"
        data |= {"tool_call_id": result.call_id, "name": result.name, "status": status}
    calls = {call["id"] for call in chat.get("tool_calls", ())}
    for call in message.tool_calls if calls else ():
        known = isinstance(call.arguments, dict)
        kind, args = ("tool_calls", call.arguments) if known else (_INVALID, str(call.arguments))
        written = {"name": call.name, "args": args, "id": call.id}
        data.setdefault(kind, []).append(written | {"type": kind[:-1]})
    return {"type": _TYPES[chat["role"]], "data": data}
