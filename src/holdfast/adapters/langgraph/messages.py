"""Chat messages of a channel as Holdfast's, and back, exactly.

Most messages are text, calls of tools and a few fields beside them. Those fields are kept in the
message's metadata, which is quick to read: a thread has thousands. A message with more in it is
kept as `langchain_messages` does, and one that is not JSON (an artifact that is a Python object) as
the bytes of the saver's serializer beside its text.

What the metadata adds is believed only of messages that were not imported: it could say otherwise
than the parts that a reader sees.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from holdfast import File, Message, Text, ToolCall
from holdfast.adapters.langchain_messages import from_messages, to_message
from holdfast.adapters.langgraph.serialization import Foreign, Serializer, is_plain
from holdfast.errors import BadMessage
from holdfast.formats import keep, kept
from holdfast.values import is_original

SOURCE: Final = "langgraph"
Snapshot: TypeAlias = tuple[dict[str, Any], dict[str, Any] | None]
_FIELDS: Final = "langchain"  # the name in the metadata

_TEMPLATES: Final[Mapping[str, BaseMessage]] = {
    kind: type(message).model_construct(**vars(message))
    for kind, message in {
        "ai": AIMessage(""),
        "human": HumanMessage(""),
        "system": SystemMessage(""),
        "tool": ToolMessage("", tool_call_id=""),
    }.items()
}
_ROLES: Final = {"ai": "assistant", "human": "user", "system": "system", "tool": "tool"}
# What the metadata may add; all else is what the parts say.
_KEPT: Final = frozenset(
    {
        "additional_kwargs",
        "artifact",
        "id",
        "invalid_tool_calls",
        "response_metadata",
        "usage_metadata",
    }
)
# The fields of the usual types that may hold what can be changed in place.
_MUTABLE: Final = {
    type(template): tuple(name for name in vars(template) if name not in {"id", "name", "type"})
    for template in _TEMPLATES.values()
}
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_EMPTY: Final[Mapping[type, Any]] = {dict: {}, list: []}
_NOT_SHOWN: Final = frozenset({"damaged", "erased"})


class MessageCodec:
    """Converts messages; `blobs` reads the data of files, as `Store.blobs` does."""

    def __init__(self, serializer: Serializer, blobs: Callable[..., dict[str, bytes]]) -> None:
        self._serializer = serializer
        self._blobs = blobs

    def encode(self, message: BaseMessage, id: str) -> Message:
        """Return a message as Holdfast's, under an id that may differ from its own."""
        try:
            made = msgspec.structs.replace(to_message(message), id=id)
        except BadMessage:
            return self._encode_opaque(message, id)
        small = _with_fields(made, message)
        if small is not None:
            return small
        found = from_messages([made], blob=_data_of(made).__getitem__)
        return made if _are_same(found, [message]) else self._encode_opaque(message, id)

    def _encode_opaque(self, message: BaseMessage, id: str) -> Message:
        kind, data = self._serializer.dumps(message)
        text = message.text if isinstance(message.text, str) else str(message.content)
        shown = to_message(_shown(message, text))
        original = {"type": kind, "data": b64encode(data).decode("ascii")}
        bare = shown.with_parts([part for part in shown.parts if not is_original(part)])
        return keep(msgspec.structs.replace(bare, id=id), SOURCE, original)

    def decode(self, messages: Sequence[Message]) -> list[BaseMessage | list[BaseMessage]]:
        """Return what each message is in a channel; a list if it is not one: none, or several.

        One that is erased is none. One by another program is one for each result that it holds.
        """
        found = [_from_fields(message) for message in messages]
        if type(None) not in set(map(type, found)):  # `in` would compare each message.
            return [*found]
        rest = [message for message, one in zip(messages, found, strict=True) if one is None]
        names = {file.sha256 for message in rest for file in message.files if file.data is None}
        read = self._blobs(*names) if names else {}
        return [
            self._decode_slowly(message, read.__getitem__) if one is None else one
            for message, one in zip(messages, found, strict=True)
        ]

    def decode_one(self, message: Message) -> BaseMessage | None:
        """Return what a message is in a channel; `None` if it is not one message there."""
        (found,) = self.decode([message])
        return None if isinstance(found, list) else found

    def is_same(self, stored: Message, one: BaseMessage) -> bool:
        """Return whether a message is this one in a channel."""
        found = self.decode_one(stored)
        return found is not None and is_unchanged(found, type(one), snapshot(one))

    def _decode_slowly(
        self, message: Message, blob: Callable[[str], bytes]
    ) -> BaseMessage | list[BaseMessage]:
        if message.status in _NOT_SHOWN or message.role == "summary":
            return []
        original = kept(message, SOURCE, blob=blob)
        if original is None:
            found = from_messages([message], blob=blob)
            return found[0] if len(found) == 1 else found
        data = b64decode(str(original["data"]))
        return self._serializer.loads(str(original["type"]), data)


def is_message_list(value: object, *, is_known: bool) -> bool:
    """Return whether a value is a list of nothing but chat messages.

    One that was such a list before may be empty.
    """
    if type(value) is not list or not (value or is_known):
        return False
    return all(issubclass(kind, BaseMessage) for kind in set(map(type, value)))


def snapshot(message: BaseMessage) -> Snapshot:
    """Return what `is_unchanged` compares a message with, which may be changed in place."""
    extra: Foreign = message.__pydantic_extra__
    fields = vars(message).copy()
    for name in _MUTABLE.get(type(message), fields):
        value = fields[name]
        if type(value) not in _ATOMS:
            fields[name] = _fixed(value)
    return fields, _copied(extra) if extra else extra


def is_unchanged(message: BaseMessage, kind: type, before: Snapshot) -> bool:
    """Return whether a message equals the one of this type that a snapshot was taken of."""
    fields, extra = before
    more: Foreign = message.__pydantic_extra__
    return type(message) is kind and vars(message) == fields and (more or {}) == (extra or {})


def _are_same(found: Sequence[BaseMessage], given: Sequence[BaseMessage]) -> bool:
    return len(found) == len(given) and all(
        is_unchanged(one, type(other), snapshot(other))
        for one, other in zip(found, given, strict=True)
    )


# ------------------------------------------------------------------------- kept in the metadata


def _with_fields(made: Message, message: BaseMessage) -> Message | None:
    """Return a message whose metadata has what its parts lack; `None` if that is not enough."""
    template = _TEMPLATES.get(message.type)
    if template is None or type(message) is not type(template):
        return None
    default = vars(template)
    more = {name: getattr(message, name) for name in _KEPT & default.keys()}
    fields = {name: value for name, value in more.items() if value != default[name]}
    if message.id == made.id:
        del fields["id"]
    elif message.id is None:
        fields["id"] = None
    if not is_plain(fields):
        return None
    metadata = {**made.metadata, _FIELDS: {"type": message.type, **fields}}
    parts = tuple(part for part in made.parts if not is_original(part))
    small = msgspec.structs.replace(made, parts=parts, metadata=metadata)
    found = _from_fields(small)
    return small if found is not None and _are_same([found], [message]) else None


def _from_fields(message: Message) -> BaseMessage | None:
    """Return a message whose metadata has what its parts lack; `None` if it is no such message."""
    more = message.metadata.get(_FIELDS)
    if type(more) is not dict or message.provenance is not None or message.status in _NOT_SHOWN:
        return None
    kind = more.get("type")
    if kind not in _ROLES or _ROLES[kind] != message.role:
        return None
    fields = _from_parts(message, kind)
    if fields is None:
        return None
    for name in more:
        if name in _KEPT:
            fields[name] = more[name]
    found = _TEMPLATES[kind].__copy__()
    vars(found).update(fields)
    return found


def _from_parts(message: Message, kind: str) -> dict[str, Any] | None:
    """Return the fields that the parts of a message say; `None` if it has others."""
    fields: dict[str, Any] = {
        "id": message.id,
        "name": message.name,
        "additional_kwargs": {},
        "response_metadata": {},
    }
    if kind == "tool":
        return _from_result(message, fields)
    parts = message.parts
    fields["content"] = ""
    if parts and type(parts[0]) is Text:
        fields["content"], parts = parts[0].text, parts[1:]
    if kind == "ai":
        fields["invalid_tool_calls"] = []
        fields["tool_calls"] = calls = []
        for part in parts:
            if type(part) is not ToolCall:
                return None
            calls.append(
                {"name": part.name, "args": part.arguments, "id": part.id} | {"type": "tool_call"}
            )
        return fields
    return None if parts else fields


def _from_result(message: Message, fields: dict[str, Any]) -> dict[str, Any] | None:
    results = message.tool_results
    if len(results) != 1 or len(message.parts) != 1 or type(results[0].content) is not str:
        return None
    fields["content"] = results[0].content
    fields["tool_call_id"] = results[0].call_id
    fields["status"] = "error" if results[0].error else "success"
    return fields


def _fixed(value: Foreign) -> Foreign:
    """Return a value that is not changed when the given one is."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return value
    return _copied(value) if value else _EMPTY[kind]


def _copied(value: Foreign) -> Foreign:
    """Return a copy of a value: of its lists and dicts, and of what is in them."""
    kind = type(value)
    if kind is dict:
        copy = value.copy()
        for name, one in value.items():
            if type(one) not in _ATOMS:
                copy[name] = _copied(one)
        return copy
    return [_copied(one) for one in value] if kind is list else value


def _shown(message: BaseMessage, text: str) -> BaseMessage:
    """Return the part of a message that is JSON in any case."""
    match message:
        case AIMessage():
            return AIMessage(text, tool_calls=[c for c in message.tool_calls if is_plain(c)])
        case ToolMessage():
            return ToolMessage(text, tool_call_id=message.tool_call_id, status=message.status)
        case SystemMessage():
            return SystemMessage(text)
    return HumanMessage(text)


def _data_of(message: Message) -> dict[str | None, bytes]:
    """Return the data of a message's files, which has no hashes before it is stored."""
    return {
        file.sha256: file.data for file in message.files if isinstance(file, File) and file.data
    }
