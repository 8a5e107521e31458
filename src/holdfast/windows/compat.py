"""Compatibility filter: the last step before messages are encoded for a provider.

Formats encode one message at a time. Some rules of a provider span the messages of a window and
concern only the provider's own pieces:

* `openai`: legacy function calls have no ids, and become tool calls with ids;
* `openai-responses`: items must be sent with the items they depend on (see `openai_compat`);
* `anthropic`: the result of a server tool follows its call in the same message, and every such call
  has a result, except at the very end, where the server may continue; thinking is allowed only at
  the beginning of a message, counting only blocks that can be sent; a result flagged as an error
  holds text only, so an error with an image is marked in its text instead;
* `gemini`: a response has an id if and only if its call has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.formats import anthropic, gemini, openai_chat
from holdfast.formats.passthrough import (
    JSONObject,
    PartNote,
    kind_of,
    to_raw,
    verbatim_piece,
    with_notes,
)
from holdfast.values import Message, Part, Provider, Raw, Text, Thinking, ToolCall, ToolResult
from holdfast.windows import openai_compat
from holdfast.windows.pairing import filter_parts
from holdfast.windows.roles import ERROR_MARK, with_error_mark

_SERVER_CALLS: Final = frozenset({"mcp_tool_use", "server_tool_use"})
_SERVER_RESULT_SUFFIX: Final = "_tool_result"
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_INTERRUPTED_TEXT: Final = (
    "[interrupted]"  # The text of a message of which nothing else can be sent.
)


def make_compatible(provider: Provider, messages: Sequence[Message]) -> list[Message]:
    """Return the messages, changed so that this provider accepts them in this order."""
    return _FILTERS[provider](messages)


def _replaced(message: Message, parts: Iterable[Part]) -> Message:
    changed = tuple(parts)
    return message if changed == message.parts else msgspec.structs.replace(message, parts=changed)


# ------------------------------------------------------------------------------------- anthropic


def _anthropic(messages: Sequence[Message]) -> list[Message]:
    last = len(messages) - 1
    return [
        _drop_misplaced_thinking(_drop_unpaired_server_tools(message, is_last=at == last))
        if message.role == "assistant"
        else _replaced(message, map(_with_valid_error_flag, message.parts))
        for at, message in enumerate(messages)
    ]


def _with_valid_error_flag(part: Part) -> Part:
    """Mark an error that holds more than text in its text instead of by the flag."""
    if not isinstance(part, ToolResult) or not part.error:
        return part
    kinds = _result_block_types(part)
    if not kinds:
        return msgspec.structs.replace(part, content=ERROR_MARK)
    return (
        part if kinds == {"text"} else msgspec.structs.replace(with_error_mark(part), error=False)
    )


def _result_block_types(result: ToolResult) -> set[str]:
    """Return the types of the blocks that a result is encoded as."""
    match anthropic.encode(Message(role="tool", parts=(result,))):
        case {"content": [{"content": str()}]}:
            return {"text"}
        case {"content": [{"content": list(blocks)}]}:
            return {str(block["type"]) for block in blocks if isinstance(block, dict)}
    return set()


def _drop_unpaired_server_tools(message: Message, *, is_last: bool) -> Message:
    """Omit results of server tools without their calls, and calls without results."""
    called: set[str] = set()
    answered: set[str] = set()
    kept: list[Part] = []
    for part in message.parts:
        block = _anthropic_block(part)
        if (call := _server_call_id(block)) is not None:
            called.add(call)
        elif (answer := _server_result_id(block)) is not None:
            if answer not in called - answered:
                continue
            answered.add(answer)
        kept.append(part)
    waiting = called - answered if not is_last else set[str]()
    parts = [part for part in kept if _server_call_id(_anthropic_block(part)) not in waiting]
    if len(parts) < len(message.parts) and not _has_valid_ending(parts):
        parts.append(Text(_INTERRUPTED_TEXT))
    return _replaced(message, parts)


def _has_valid_ending(parts: Sequence[Part]) -> bool:
    """True if the last piece may end a message: there is one, and it is not thinking."""
    pieces = [part for part in parts if not isinstance(part, Raw) or _anthropic_block(part)]
    if not pieces or isinstance(pieces[-1], Thinking):
        return False
    return _anthropic_block(pieces[-1]).get("type") != "redacted_thinking"


def _drop_misplaced_thinking(message: Message) -> Message:
    """Omit all thinking from a message whose encoded form does not begin with it."""
    if not any(map(_is_thinking, message.parts)):
        return message
    kinds = _block_types(message)
    if _THINKING.isdisjoint(kinds) or kinds[0] in _THINKING:
        return message
    return _replaced(message, filter_parts(message.parts, lambda part: not _is_thinking(part)))


def _block_types(message: Message) -> list[str]:
    """Return the types of the blocks that a message is encoded as, in order."""
    blocks = anthropic.encode(message)["content"]
    if not isinstance(blocks, list):
        return []
    return [str(block["type"]) for block in blocks if isinstance(block, dict)]


def _is_thinking(part: Part) -> bool:
    return isinstance(part, Thinking) or _anthropic_block(part).get("type") in _THINKING


def _anthropic_block(part: Part) -> JSONObject:
    own = isinstance(part, Raw) and part.source == anthropic.SOURCE
    return (verbatim_piece(part) or {}) if own and isinstance(part, Raw) else {}


def _server_call_id(block: JSONObject) -> str | None:
    return str(block.get("id")) if block.get("type") in _SERVER_CALLS else None


def _server_result_id(block: JSONObject) -> str | None:
    is_answer = str(block.get("type", "")).endswith(_SERVER_RESULT_SUFFIX)
    return str(block.get("tool_use_id")) if is_answer else None


# ---------------------------------------------------------------------------------------- gemini


def _gemini(messages: Sequence[Message]) -> list[Message]:
    """Send a response with an id if and only if its call is sent with one."""
    without_id = {
        part.id
        for message in messages
        for part, note in with_notes(gemini.SOURCE, message.parts)
        if isinstance(part, ToolCall) and note is not None and note.made.get("id") == part.id
    }
    return [
        _replaced(message, _with_ids(message.parts, without_id))
        if message.tool_results
        else message
        for message in messages
    ]


def _with_ids(parts: Sequence[Part], without_id: set[str]) -> Iterable[Part]:
    for part, note in with_notes(gemini.SOURCE, parts):
        yield part
        if not isinstance(part, ToolResult):
            changed = note
        else:
            changed = _with_id(part, note or PartNote(kind_of(part), {}), without_id)
        if changed is not None and (note is not None or changed.made):
            yield to_raw(gemini.SOURCE, changed)


def _with_id(result: ToolResult, note: PartNote, without_id: set[str]) -> PartNote:
    made = {key: value for key, value in note.made.items() if key != "id"}
    if result.call_id in without_id:
        made["id"] = result.call_id
    return msgspec.structs.replace(note, made=made)


_FILTERS: Final[dict[Provider, Callable[[Sequence[Message]], list[Message]]]] = {
    "anthropic": _anthropic,
    "gemini": _gemini,
    "openai": lambda messages: [openai_chat.upgrade_legacy_calls(message) for message in messages],
    "openai-responses": openai_compat.make_compatible,
}
