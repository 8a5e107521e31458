"""What may be sent together: the last step before messages are written in a provider's shape.

Formats read and write one message at a time. Some things a provider demands can be seen only where
all messages of a window stand side by side, and concern only pieces of its own:

* `openai`: function calls of the first kind have no ids, and become calls like any other;
* `openai-responses`: items need their companions (see `openai_fitting`);
* `anthropic`: the result of a server's tool has its call before it in the same message, and every
  such call its result, except at the very end, where the server may be asked to go on; a message
  has thinking only if it begins with it, of what can be sent at all; a result with the flag of an
  error holds text only, so one with an image says in words that it is one;
* `gemini`: a response has an id if its call has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.core.windows.exchanging import kept_parts
from holdfast.core.windows.shaping import ERROR, marked_error
from holdfast.formats import anthropic, gemini, openai_chat, openai_fitting
from holdfast.formats.beside import JSONObject, PartNote, kept_piece, kind_of, to_raw, with_notes
from holdfast.records import Message, Part, Provider, Raw, Text, Thinking, ToolCall, ToolResult

_SERVER_CALLS: Final = frozenset({"mcp_tool_use", "server_tool_use"})
_SERVER_RESULT: Final = "_tool_result"
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_GONE: Final = "[interrupted]"  # What a message says of which nothing else could be sent.


def fitted(provider: Provider, messages: Sequence[Message]) -> list[Message]:
    """Return messages that this provider may be sent in this order."""
    return _FITTED[provider](messages)


def _replaced(message: Message, parts: Iterable[Part]) -> Message:
    now = tuple(parts)
    return message if now == message.parts else msgspec.structs.replace(message, parts=now)


# ------------------------------------------------------------------------------------- anthropic


def _anthropic(messages: Sequence[Message]) -> list[Message]:
    last = len(messages) - 1
    return [
        _with_thoughts_first(_with_whole_pairs(message, is_last=at == last))
        if message.role == "assistant"
        else _replaced(message, map(_flagged, message.parts))
        for at, message in enumerate(messages)
    ]


def _flagged(part: Part) -> Part:
    """Let an error that holds more than text tell so in words, not by the flag."""
    if not isinstance(part, ToolResult) or not part.error:
        return part
    kinds = _kinds_inside(part)
    if not kinds:
        return msgspec.structs.replace(part, content=ERROR)
    return part if kinds == {"text"} else msgspec.structs.replace(marked_error(part), error=False)


def _kinds_inside(result: ToolResult) -> set[str]:
    """Say of which kinds the blocks are that a result is written as."""
    match anthropic.encode(Message(role="tool", parts=(result,))):
        case {"content": [{"content": str()}]}:
            return {"text"}
        case {"content": [{"content": list(blocks)}]}:
            return {str(block["type"]) for block in blocks if isinstance(block, dict)}
    return set()


def _with_whole_pairs(message: Message, *, is_last: bool) -> Message:
    """Leave out results of a server's tools without their calls, and calls without results."""
    called: set[str] = set()
    answered: set[str] = set()
    kept: list[Part] = []
    for part in message.parts:
        block = _own_block(part)
        if (call := _server_call(block)) is not None:
            called.add(call)
        elif (answer := _server_answer(block)) is not None:
            if answer not in called - answered:
                continue
            answered.add(answer)
        kept.append(part)
    waiting = called - answered if not is_last else set[str]()
    parts = [part for part in kept if _server_call(_own_block(part)) not in waiting]
    if len(parts) < len(message.parts) and not _ends_with_words(parts):
        parts.append(Text(_GONE))
    return _replaced(message, parts)


def _ends_with_words(parts: Sequence[Part]) -> bool:
    """Return whether there is something that may stand at the end of a message."""
    pieces = [part for part in parts if not isinstance(part, Raw) or _own_block(part)]
    if not pieces or isinstance(pieces[-1], Thinking):
        return False
    return _own_block(pieces[-1]).get("type") != "redacted_thinking"


def _with_thoughts_first(message: Message) -> Message:
    """Leave all thinking out of a message that does not begin with it once it is written."""
    if not any(map(_is_thought, message.parts)):
        return message
    kinds = _kinds_of(message)
    if _THINKING.isdisjoint(kinds) or kinds[0] in _THINKING:
        return message
    return _replaced(message, kept_parts(message.parts, lambda part: not _is_thought(part)))


def _kinds_of(message: Message) -> list[str]:
    """Say of which kinds the blocks are that a message is written as, in order."""
    blocks = anthropic.encode(message)["content"]
    if not isinstance(blocks, list):
        return []
    return [str(block["type"]) for block in blocks if isinstance(block, dict)]


def _is_thought(part: Part) -> bool:
    return isinstance(part, Thinking) or _own_block(part).get("type") in _THINKING


def _own_block(part: Part) -> JSONObject:
    own = isinstance(part, Raw) and part.source == anthropic.SOURCE
    return (kept_piece(part) or {}) if own and isinstance(part, Raw) else {}


def _server_call(block: JSONObject) -> str | None:
    return str(block.get("id")) if block.get("type") in _SERVER_CALLS else None


def _server_answer(block: JSONObject) -> str | None:
    is_answer = str(block.get("type", "")).endswith(_SERVER_RESULT)
    return str(block.get("tool_use_id")) if is_answer else None


# ---------------------------------------------------------------------------------------- gemini


def _gemini(messages: Sequence[Message]) -> list[Message]:
    """Let a response have an id only if its call is sent with one, and the other way round."""
    nameless = {
        part.id
        for message in messages
        for part, note in with_notes(gemini.SOURCE, message.parts)
        if isinstance(part, ToolCall) and note is not None and note.made.get("id") == part.id
    }
    return [
        _replaced(message, _with_ids(message.parts, nameless)) if message.tool_results else message
        for message in messages
    ]


def _with_ids(parts: Sequence[Part], nameless: set[str]) -> Iterable[Part]:
    for part, note in with_notes(gemini.SOURCE, parts):
        yield part
        if not isinstance(part, ToolResult):
            now = note
        else:
            now = _with_id(part, note or PartNote(kind_of(part), {}), nameless)
        if now is not None and (note is not None or now.made):
            yield to_raw(gemini.SOURCE, now)


def _with_id(result: ToolResult, note: PartNote, nameless: set[str]) -> PartNote:
    made = {key: value for key, value in note.made.items() if key != "id"}
    if result.call_id in nameless:
        made["id"] = result.call_id
    return msgspec.structs.replace(note, made=made)


_FITTED: Final[dict[Provider, Callable[[Sequence[Message]], list[Message]]]] = {
    "anthropic": _anthropic,
    "gemini": _gemini,
    "openai": lambda messages: [openai_chat.modern(message) for message in messages],
    "openai-responses": openai_fitting.fitted,
}
