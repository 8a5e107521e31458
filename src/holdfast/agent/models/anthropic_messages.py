"""Anthropic's Messages API: request bodies and stream parsing.

A reply is a sequence of blocks: text and thinking are emitted as they arrive, a call when its block
ends. Everything else of a block (the signature of thinking, redacted thinking, citations) is kept
for the provider, which requires it to be sent back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from holdfast.agent.models.chat_completions import CONTINUE
from holdfast.agent.models.protocol import (
    Delta,
    ModelRequest,
    ReplyEnd,
    ReplyRaw,
    ReplySize,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    ReplyUsage,
    StopReason,
    ToolSpec,
)
from holdfast.agent.models.surrogates import SurrogateJoiner, join_surrogates
from holdfast.formats import anthropic
from holdfast.formats.passthrough import parsed_object
from holdfast.values import JSON, Raw, is_original

JSONObject: TypeAlias = dict[str, JSON]

_REASONS: Final[Mapping[str, StopReason]] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "stop_sequence": "stop",
    "tool_use": "calls",
}
_USAGE: Final = (
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "input_tokens",
    "output_tokens",
    "output_tokens_details",
)


# ---------------------------------------------------------------------------------------- requests


def encode_messages(request: ModelRequest) -> list[JSON]:
    """Return the messages to send."""
    messages: list[JSON] = [*request.window.messages]
    if not request.continuing:
        return messages
    more: JSONObject = {"type": "text", "text": CONTINUE}
    last = messages[-1] if messages else None
    if isinstance(last, dict) and last.get("role") == "user":
        # User and assistant must alternate.
        content = last.get("content")
        blocks: list[JSON] = (
            content if isinstance(content, list) else [{"type": "text", "text": content}]
        )
        return [*messages[:-1], {**last, "content": [*blocks, more]}]
    return [*messages, {"role": "user", "content": [more]}]


def encode_tools(tools: Sequence[ToolSpec]) -> list[JSON]:
    """Return the tools as the API takes them."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in tools
    ]


def encode_past_tools(messages: Sequence[JSON]) -> list[JSON]:
    """Return stubs of the tools called in these messages: the API requires them to be defined."""
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


# ----------------------------------------------------------------------------------------- replies


class _PartialBlock:
    """A block that is being assembled: its start event, and what was streamed since."""

    def __init__(self, start: JSONObject) -> None:
        self.start = start
        # Joined once: there may be a million pieces.
        self.texts: dict[str, list[str]] = {
            "text": [],
            "thinking": [],
            "signature": [],
            "partial_json": [],
        }
        self.citations: list[JSON] = []
        self.surrogates = SurrogateJoiner()

    def build(self) -> JSONObject:
        """Return the block as a reply without streaming would have it."""
        block = dict(self.start)
        for key in ("text", "thinking", "signature"):
            if text := "".join(self.texts[key]):
                block[key] = join_surrogates(f"{block.get(key, '')}{text}")
        if self.citations:
            block["citations"] = self.citations
        if block.get("type") in {"tool_use", "server_tool_use", "mcp_tool_use"}:
            block["input"] = self._arguments()
        return block

    def _arguments(self) -> JSON:
        text = join_surrogates("".join(self.texts["partial_json"]))
        if not text.strip():
            given = self.start.get("input")
            return given if isinstance(given, dict) else {}
        found = parsed_object(text)
        return text if found is None else found


class MessagesStreamParser:
    """Parses the events of one reply into deltas."""

    def __init__(self) -> None:
        self._blocks: dict[int, _PartialBlock] = {}
        self._size = ReplySize()
        self._used: JSONObject = {}
        self._reason: StopReason | None = None
        self.has_output = False

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` until it is complete."""
        return self._reason

    def feed(self, event: object) -> list[Delta]:
        """Return the deltas of an event."""
        match event:
            case {"type": "message_start", "message": {"usage": dict(usage)}}:
                return self._usage_delta(usage)
            case {"type": "content_block_start", "index": int(at), "content_block": dict(began)}:
                return self._start_block(at, began)
            case {"type": "content_block_delta", "index": int(at), "delta": dict(delta)}:
                return self._extend_block(self._blocks[at], delta) if at in self._blocks else []
            case {"type": "content_block_stop", "index": int(at)}:
                return self._finish_block(self._blocks.pop(at)) if at in self._blocks else []
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}, "usage": usage}:
                self._reason = _REASONS.get(reason, "other")
                return self._usage_delta(usage) if isinstance(usage, dict) else []
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                self._reason = _REASONS.get(reason, "other")
        return []

    def finish(self) -> list[Delta]:
        """Return why the reply ended; nothing if it was cut off."""
        return [] if self._reason is None else [ReplyEnd(self._reason)]

    def _start_block(self, at: int, start: JSONObject) -> list[Delta]:
        """Begin a block; return the deltas of its initial text, which is usually empty."""
        if not isinstance(start.get("type"), str):
            return []
        block = _PartialBlock({key: value for key, value in start.items() if value is not None})
        self._size.add_part()
        self._size.add_json(block.start)
        self._blocks[at] = block
        match block.start:
            case {"type": "text", "text": str(text)}:
                return self._text_delta(ReplyText, block.surrogates.feed(text))
            case {"type": "thinking", "thinking": str(text)}:
                return self._text_delta(ReplyThinking, block.surrogates.feed(text))
        return []

    def _extend_block(self, block: _PartialBlock, delta: JSONObject) -> list[Delta]:
        for key in block.texts:
            if isinstance(text := delta.get(key), str):
                self._size.add_text(text)
                block.texts[key].append(text)
        if isinstance(cited := delta.get("citation"), dict):
            self._size.add_json(cited)
            block.citations.append(cited)
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                return self._text_delta(ReplyText, block.surrogates.feed(text))
            case {"type": "thinking_delta", "thinking": str(text)}:
                return self._text_delta(ReplyThinking, block.surrogates.feed(text))
        return []

    def _text_delta(self, kind: type[ReplyText | ReplyThinking], text: str) -> list[Delta]:
        self.has_output = self.has_output or (kind is ReplyText and bool(text))
        return [kind(text)] if text else []

    def _finish_block(self, block: _PartialBlock) -> list[Delta]:
        """Return the deltas that depend on the complete block."""
        complete = block.build()
        rest = block.surrogates.flush()
        match complete:
            case {"type": "text"}:
                return [
                    *self._text_delta(ReplyText, rest),
                    *(_raw_deltas(complete) if "citations" in complete else []),
                ]
            case {"type": "thinking"}:
                # Thinking without its signature cannot be sent back.
                signature = str(complete.get("signature", ""))
                signed = [ReplyThinking("", signature), *_raw_deltas(complete)] if signature else []
                return [*self._text_delta(ReplyThinking, rest), *signed]
            case {"type": "tool_use", "id": str(id), "name": str(name), "input": arguments}:
                self.has_output = True
                more = _raw_deltas(complete) if isinstance(arguments, dict) else []
                return [ReplyToolCall(id, name, arguments), *more]
            case {"type": "tool_use"}:  # Without id and name it cannot be answered.
                return []
        return _raw_deltas(complete)

    def _usage_delta(self, usage: JSONObject) -> list[Delta]:
        """Return the usage so far: later events repeat only the values that changed."""
        self._used.update({key: usage[key] for key in _USAGE if usage.get(key) is not None})
        spent = anthropic.usage_of(self._used)
        return [ReplyUsage(spent)] if spent.total else []


def _raw_deltas(block: JSONObject) -> list[Delta]:
    """Return the provider's own pieces of a block: its fields beyond text, thinking and call."""
    parts = anthropic.decode({"role": "assistant", "content": [block]}).parts
    return [ReplyRaw(part) for part in parts if isinstance(part, Raw) and not is_original(part)]
