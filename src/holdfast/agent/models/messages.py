"""Anthropic's Messages API: what is sent, and what comes back.

A reply comes as blocks, one after the other: text and thinking as they are said, calls when their
block is over. Whatever a block has beyond that (the seal of a thought, thinking that is hidden,
sources of a quotation) is kept for the provider, which wants to see it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from holdfast.agent.models.base import (
    Called,
    Delta,
    Kept,
    Request,
    Said,
    Spent,
    Stopped,
    StopReason,
    Thought,
    ToolSpec,
)
from holdfast.agent.models.chat import CONTINUE
from holdfast.agent.models.halves import Halves, whole
from holdfast.checks import MAX_COUNT
from holdfast.formats import anthropic
from holdfast.formats.beside import parsed_object
from holdfast.records import JSON, Raw, Usage

JSONObject: TypeAlias = dict[str, JSON]

_REASONS: Final[Mapping[str, StopReason]] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "stop_sequence": "stop",
    "tool_use": "calls",
}


# ------------------------------------------------------------------------------------- what is sent


def messages_of(request: Request) -> list[JSON]:
    """Return the messages to send."""
    messages: list[JSON] = [*request.window.messages]
    if not request.continuing:
        return messages
    more: JSONObject = {"type": "text", "text": CONTINUE}
    last = messages[-1] if messages else None
    if isinstance(last, dict) and last.get("role") == "user":
        # User and assistant take turns.
        content = last.get("content")
        said: list[JSON] = (
            content if isinstance(content, list) else [{"type": "text", "text": content}]
        )
        return [*messages[:-1], {**last, "content": [*said, more]}]
    return [*messages, {"role": "user", "content": [more]}]


def tools_of(tools: Sequence[ToolSpec]) -> list[JSON]:
    """Tell of tools."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in tools
    ]


def past_tools_of(messages: Sequence[JSON]) -> list[JSON]:
    """Tell of the tools that were called before: the provider wants to know of them even then."""
    names = {
        str(block["name"]): None
        for message in messages
        if isinstance(message, dict) and isinstance(blocks := message.get("content"), list)
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "tool_use"
    }
    return [
        {"name": name, "description": "Not to be used now.", "input_schema": {"type": "object"}}
        for name in names
    ]


# ---------------------------------------------------------------------------------- what comes back


class _Block:
    """A block that is being put together: as it began, and what came to it."""

    def __init__(self, began: JSONObject) -> None:
        self.began = began
        self.texts = {"text": "", "thinking": "", "signature": "", "partial_json": ""}
        self.citations: list[JSON] = []
        self.halves = Halves()

    def whole(self) -> JSONObject:
        """Return the block as a reply that does not stream would have it."""
        block = dict(self.began)
        for key in ("text", "thinking", "signature"):
            if self.texts[key]:
                block[key] = whole(f"{block.get(key, '')}{self.texts[key]}")
        if self.citations:
            block["citations"] = self.citations
        if block.get("type") in {"tool_use", "server_tool_use", "mcp_tool_use"}:
            block["input"] = self._arguments()
        return block

    def _arguments(self) -> JSON:
        text = whole(self.texts["partial_json"])
        if not text.strip():
            given = self.began.get("input")
            return given if isinstance(given, dict) else {}
        found = parsed_object(text)
        return text if found is None else found


class MessagesReading:
    """Makes deltas of the events of one reply."""

    def __init__(self) -> None:
        """Begin a reply."""
        self._blocks: dict[int, _Block] = {}
        self._used: JSONObject = {}
        self._reason: StopReason | None = None
        self.said = False

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` while it is not whole."""
        return self._reason

    def take(self, event: object) -> list[Delta]:
        """Read an event."""
        match event:
            case {"type": "message_start", "message": {"usage": dict(usage)}}:
                return self._spent(usage)
            case {"type": "content_block_start", "index": int(at), "content_block": dict(began)}:
                return self._begin(at, began)
            case {"type": "content_block_delta", "index": int(at), "delta": dict(delta)}:
                return self._more(self._blocks[at], delta) if at in self._blocks else []
            case {"type": "content_block_stop", "index": int(at)}:
                return self._over(self._blocks.pop(at)) if at in self._blocks else []
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}, "usage": usage}:
                self._reason = _REASONS.get(reason, "other")
                return self._spent(usage) if isinstance(usage, dict) else []
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                self._reason = _REASONS.get(reason, "other")
        return []

    def end(self) -> list[Delta]:
        """End the reply; one that is not whole just ends."""
        return [] if self._reason is None else [Stopped(self._reason)]

    def _begin(self, at: int, began: JSONObject) -> list[Delta]:
        """Begin a block, and give what it begins with: nothing, as a rule."""
        if not isinstance(began.get("type"), str):
            return []
        block = _Block({key: value for key, value in began.items() if value is not None})
        self._blocks[at] = block
        match block.began:
            case {"type": "text", "text": str(text)}:
                return self._spoken(Said, block.halves.joined(text))
            case {"type": "thinking", "thinking": str(text)}:
                return self._spoken(Thought, block.halves.joined(text))
        return []

    def _more(self, block: _Block, delta: JSONObject) -> list[Delta]:
        for key in block.texts:
            if isinstance(text := delta.get(key), str):
                block.texts[key] += text
        if isinstance(cited := delta.get("citation"), dict):
            block.citations.append(cited)
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return self._spoken(Said, block.halves.joined(text))
            case {"type": "thinking_delta", "thinking": str(text)}:
                return self._spoken(Thought, block.halves.joined(text))
        return []

    def _spoken(self, kind: type[Said | Thought], text: str) -> list[Delta]:
        self.said = self.said or (kind is Said and bool(text))
        return [kind(text)] if text else []

    def _over(self, block: _Block) -> list[Delta]:
        """Return what is known of a block only when it is over."""
        made = block.whole()
        rest = block.halves.rest()
        match made:
            case {"type": "text"}:
                return [*self._spoken(Said, rest), *(_kept(made) if "citations" in made else [])]
            case {"type": "thinking"}:
                # Without its seal a thought cannot go back.
                seal = str(made.get("signature", ""))
                sealed = [Thought("", seal), *_kept(made)] if seal else []
                return [*self._spoken(Thought, rest), *sealed]
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": arguments}:
                self.said = True
                more = _kept(made) if isinstance(arguments, dict) else []
                return [Called(id, name, arguments), *more]
            case {"type": "tool_use"}:  # Nobody could answer it.
                return []
        return _kept(made)

    def _spent(self, usage: JSONObject) -> list[Delta]:
        """Tell what was used so far: later events repeat only what has changed."""
        self._used.update({key: value for key, value in usage.items() if value is not None})
        spent = _usage(self._used)
        return [Spent(spent)] if spent.total else []


def _usage(used: JSONObject) -> Usage:
    details = used.get("output_tokens_details")
    read, wrote = (
        _count(used, "cache_read_input_tokens"),
        _count(used, "cache_creation_input_tokens"),
    )
    return Usage(
        # What came from the cache, or went there, is a part of what was sent.
        input=_count(used, "input_tokens") + read + wrote,
        output=_count(used, "output_tokens"),
        cache_read=read,
        cache_write=wrote,
        reasoning=_count(details, "thinking_tokens") if isinstance(details, dict) else 0,
    )


def _kept(block: JSONObject) -> list[Delta]:
    """Return what a block has beyond what is said in it."""
    parts = anthropic.decode({"role": "assistant", "content": [block]}).parts
    return [Kept(part) for part in parts if isinstance(part, Raw)]


def _count(given: Mapping[str, JSON], key: str) -> int:
    value = given.get(key)
    return value if type(value) is int and 0 < value <= MAX_COUNT // 4 else 0
