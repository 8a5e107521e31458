"""Messages of langchain-core as Holdfast's, and back: for the adapters of LangChain and LangGraph.

A message's content becomes parts, its tool calls follow it, and its dict is kept beside them, so
that `from_message` returns an equal message. One that another program wrote is built from its
parts: thinking is omitted, since only the model that wrote it takes it back; a call whose arguments
are no object is an invalid one; a summary is a human message.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from holdfast import File, Message, Raw, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.shared_session import is_for_models
from holdfast.errors import BadMessage, install_command
from holdfast.formats import anthropic, keep, kept, openai, with_data
from holdfast.formats.common import token_count

try:
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
        messages_from_dict,
    )
except ImportError as error:
    raise ImportError(
        f"this adapter needs langchain-core: {install_command('langchain')}", name=error.name
    ) from error

SOURCE: Final = "langchain"
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | File | Raw
BlobReader: TypeAlias = Callable[[str], bytes]

# By the type of a message, without the `MessageChunk` of one that was streamed.
_ROLES: Final[Mapping[str, Role]] = {
    "AI": "assistant",
    "ai": "assistant",
    "Chat": "user",
    "chat": "user",
    "Function": "tool",
    "function": "tool",
    "Human": "user",
    "human": "user",
    "remove": "user",
    "System": "system",
    "system": "system",
    "Tool": "tool",
    "tool": "tool",
}
# The roles of a `ChatMessage`, which may have any; one that is not known is trusted as a user's.
_CHAT_ROLES: Final[Mapping[str, Role]] = {
    "ai": "assistant",
    "assistant": "assistant",
    "developer": "system",
    "model": "assistant",
    "system": "system",
}
_SUMMARY: Final = "Summary of the conversation so far:\n"
# Blocks that repeat a message's `tool_calls`.
_CALLS: Final = frozenset({"function_call", "input_json_delta", "tool_call", "tool_use"})


def to_message(message: BaseMessage) -> Message:
    """Return a message as Holdfast's, with its id; `BadMessage` if it is not JSON."""
    if not isinstance(message, BaseMessage):
        raise BadMessage(f"expected a message of LangChain, got {type(message).__name__}")
    role = _ROLES.get(message.type.removesuffix("MessageChunk"))
    if role is None:
        raise BadMessage(f"type: {message.type!r} is not a type of LangChain's messages")
    if message.type.lower().startswith("chat"):
        role = _CHAT_ROLES.get(str(getattr(message, "role", "")).lower(), "user")
    data = message.model_dump(exclude_defaults=True)
    made = Message(role=role, parts=tuple(_parts_of(message, role)), **_fields_of(message))
    return keep(made, SOURCE, {"type": message.type, "data": data})


def from_messages(
    messages: Iterable[Message], *, blob: BlobReader | None = None
) -> list[BaseMessage]:
    """Return messages as LangChain's; one that holds several results becomes several.

    Omitted are those that are erased, damaged, or by another program and hidden from models. See
    `formats.kept` for `blob`.
    """
    return [found for message in messages for found in _from_any(message, blob)]


def from_message(message: Message, *, blob: BlobReader | None = None) -> BaseMessage:
    """Return a message as LangChain's; `BadMessage` if it takes several: use `from_messages`."""
    found = _from_any(message, blob)
    if len(found) != 1:
        raise BadMessage(f"message {message.id!r} takes {len(found)} messages of LangChain")
    return found[0]


# ----------------------------------------------------------------------------- from LangChain


def _fields_of(message: BaseMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": message.name}
    if message.type == "remove":
        return {"metadata": {"hidden": True}}  # Its id is that of another message.
    if message.id:
        fields["id"] = message.id
    model = message.response_metadata.get("model_name") or message.response_metadata.get("model")
    if isinstance(model, str):
        fields["model"] = model
    if usage := getattr(message, "usage_metadata", None):
        fields["usage"] = _usage_of(usage)
    return fields


def _usage_of(given: dict[str, Any]) -> Usage:
    read = given.get("input_token_details")
    return Usage(
        input=token_count(given, "input_tokens"),
        output=token_count(given, "output_tokens"),
        cache_read=token_count(read, "cache_read"),
        cache_write=token_count(read, "cache_creation"),
        reasoning=token_count(given.get("output_token_details"), "reasoning"),
    )


def _parts_of(message: BaseMessage, role: Role) -> list[Part]:
    calls = [_call_of(call) for call in getattr(message, "tool_calls", ())]
    calls += [_call_of(call) for call in getattr(message, "invalid_tool_calls", ())]
    ids = {call.id for call in calls}
    parts = [*_thinking_of(message), *_content_parts(message.content, role, ids)]
    if role == "tool":
        return [_result_of(message, parts)]
    return [*parts, *calls]


def _thinking_of(message: BaseMessage) -> list[Part]:
    text = message.additional_kwargs.get("reasoning_content")
    return [Thinking(text)] if isinstance(text, str) and text else []


def _call_of(call: Mapping[str, Any]) -> ToolCall:
    return ToolCall(call.get("id") or "", call.get("name") or "", call.get("args"))


def _result_of(message: BaseMessage, parts: list[Part]) -> ToolResult:
    inside = tuple(part for part in parts if isinstance(part, Text | File | Raw))
    whole = message.content if isinstance(message.content, str) else inside
    error = getattr(message, "status", "success") == "error"
    # The result of a legacy function has no id, only the function's name.
    call_id = getattr(message, "tool_call_id", None) or message.name or ""
    return ToolResult(call_id, whole, error=error, name=message.name)


def _content_parts(content: object, role: Role, calls: set[str]) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for block in content if isinstance(content, list) else ():
        if isinstance(block, str):
            yield Text(block)
        elif not _repeats_call(block, calls):
            yield from _block_parts(block, role)


def _repeats_call(block: Mapping[str, Any], calls: set[str]) -> bool:
    kind, ids = block.get("type"), [block.get("id"), block.get("call_id")]
    return kind in _CALLS and (kind == "input_json_delta" or any(id in ids for id in calls))


def _block_parts(block: dict[str, Any], role: Role) -> tuple[Part, ...]:
    """Return a block of content as parts: LangChain's own, OpenAI's or Anthropic's, else as is."""
    sender = "assistant" if role == "assistant" else "user"
    match block:
        case {"type": "text", "text": str(text)}:
            return (Text(text),)
        case {"type": "reasoning", "reasoning": str(text)}:
            return (Thinking(text),)
        case {"base64": str(data), "mime_type": str(mime)}:
            return (_file_of(block, data, mime),)
        case {"source_type": "base64", "data": str(data), "mime_type": str(mime)}:
            return (_file_of(block, data, mime),)
        case {"type": "image_url"} | {"type": "input_audio"} | {"type": "file", "file": dict()}:
            return openai.decode({"role": sender, "content": [block]}).parts
        case {"type": "thinking" | "redacted_thinking" | "image" | "document"}:
            return anthropic.decode({"role": sender, "content": [block]}).parts
    return (Raw(SOURCE, block),)


def _file_of(block: dict[str, Any], text: str, mime: str) -> File | Raw:
    try:
        return File(mime=mime, data=b64decode(text, validate=True))
    except ValueError:
        return Raw(SOURCE, block)


# ------------------------------------------------------------------------------- to LangChain


def _from_any(message: Message, blob: BlobReader | None) -> list[BaseMessage]:
    """Return a message as it came from LangChain, or as one message for each result it holds."""
    whole = with_data(message, blob)
    original = _original(whole)
    if original is not None:
        return [_from_original(original)]
    if not is_for_models(message):
        return []
    whole = openai.upgrade_legacy_calls(whole)
    if message.role == "summary":
        whole = message.with_parts([Text(_SUMMARY + message.text)])
    items = openai.encode_all(whole)
    made = [_from_item(item, whole) for item in items]
    for number, one in enumerate(made):
        one.id = message.id if number == 0 else f"{message.id}/{number}"
    return made


def _original(message: Message) -> dict[str, Any] | None:
    """Return the dict of a message; None if it is another program's, or was amended by one."""
    try:
        return kept(message, SOURCE)
    except BadMessage:
        return None


def _from_original(original: dict[str, Any]) -> BaseMessage:
    (found,) = messages_from_dict([original])
    if isinstance(found, AIMessage):  # Calls that were taken away are not made again.
        found.tool_calls = original["data"].get("tool_calls", [])
        found.invalid_tool_calls = original["data"].get("invalid_tool_calls", [])
    return found


def _from_item(item: Mapping[str, Any], message: Message) -> BaseMessage:
    """Return one message of chat completions, which `message` was encoded as, as LangChain's."""
    fields: dict[str, Any] = {"content": item.get("content") or "", "name": item.get("name")}
    match item["role"]:
        case "tool":
            return _tool_message(item, message)
        case "assistant":
            return AIMessage(**fields, **_reply_fields(message))
        case "system" | "developer":
            return SystemMessage(**fields)
    return HumanMessage(**fields)


def _tool_message(item: Mapping[str, Any], message: Message) -> ToolMessage:
    id = item["tool_call_id"]
    result = next(result for result in message.tool_results if result.call_id == id)
    status: Literal["error", "success"] = "error" if result.error else "success"
    return ToolMessage(item["content"], tool_call_id=id, name=result.name, status=status)


def _reply_fields(message: Message) -> dict[str, Any]:
    """Return the calls of a reply, its model and its usage."""
    arguments = [_arguments(call) for call in message.tool_calls]
    calls = list(zip(message.tool_calls, arguments, strict=True))
    fields: dict[str, Any] = {
        "tool_calls": [_call(call, given) for call, given in calls if given is not None],
        "invalid_tool_calls": [
            _call(call, str(call.arguments)) | {"error": None}
            for call, given in calls
            if given is None
        ],
    }
    if message.model is not None:
        fields["response_metadata"] = {"model_name": message.model}
    if message.usage is not None:
        fields["usage_metadata"] = _usage_metadata(message.usage)
    return fields


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    """Return the arguments of a call, which may be JSON as text; None if they are no object."""
    found: Any = call.arguments or {}
    if isinstance(found, str):
        with suppress(ValueError):
            found = json.loads(found)
    return found if isinstance(found, dict) else None


def _call(call: ToolCall, arguments: object) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "args": arguments}


def _usage_metadata(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.total,
        "input_token_details": {
            "cache_read": usage.cache_read,
            "cache_creation": usage.cache_write,
        },
        "output_token_details": {"reasoning": usage.reasoning},
    }
