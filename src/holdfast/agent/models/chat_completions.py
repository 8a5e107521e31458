"""OpenAI's chat completions API, as many servers implement it: request bodies and stream parsing.

Servers deviate in the chunks they stream: calls without an index or an id, or several with the same
index; repeated names; reasoning under three field names; `stop` as the reason after calls. The
parser reads plain JSON and assumes nothing.

A reply is complete when a chunk has a finish reason. Only then are its calls emitted: before that,
the last one may be incomplete, and no call of a cut-off reply may run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from holdfast.agent.models.protocol import (
    MAX_CALL_NAME_CHARS,
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
from holdfast.agent.text_tools import to_text_messages
from holdfast.formats.common import write_arguments
from holdfast.formats.openai import SOURCE, usage_of
from holdfast.formats.openai_passthrough import message_note, part_note
from holdfast.formats.passthrough import parsed_object
from holdfast.values import JSON

JSONObject: TypeAlias = dict[str, JSON]

CONTINUE: Final = (
    "Your reply was cut off. Go on exactly where it stopped, without repeating anything."
)
_REASONS: Final[Mapping[str, StopReason]] = {
    "content_filter": "refused",
    "function_call": "calls",
    "length": "length",
    "max_tokens": "length",
    "stop": "stop",
    "tool_calls": "calls",
}
# Finish reasons of a reply that the server aborted: it counts as cut off, not as complete.
_ABORT_REASONS: Final = frozenset({"abort", "error", "insufficient_system_resource"})
_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "function_call"}
)
_CALL_FIELDS: Final = frozenset({"id", "type", "function", "custom"})


class ServerFields(msgspec.Struct, frozen=True):
    """Fields that a server adds to messages and calls, and requires to be sent back with them."""

    message: frozenset[str] = frozenset()
    call: frozenset[str] = frozenset()


NO_SERVER_FIELDS: Final = ServerFields()


# ---------------------------------------------------------------------------------------- requests


def encode_messages(
    request: ModelRequest, *, own: ServerFields = NO_SERVER_FIELDS, as_text: bool = False
) -> list[JSON]:
    """Return the messages to send. `as_text`: calls and results are written as text.

    Fields that other servers added to messages are omitted: many servers reject unknown fields.
    """
    messages = [_without_unknown_fields(message, own) for message in request.window.messages]
    if as_text:
        messages = to_text_messages(messages)
    if request.continuing:
        messages.append({"role": "user", "content": CONTINUE})
    return [*messages]


def _without_unknown_fields(message: JSONObject, own: ServerFields) -> JSONObject:
    known = {key: value for key, value in message.items() if key in _FIELDS | own.message}
    calls = known.get("tool_calls")
    if isinstance(calls, list):
        known["tool_calls"] = [
            {key: value for key, value in call.items() if key in _CALL_FIELDS | own.call}
            for call in calls
            if isinstance(call, dict)
        ]
    return known


def flatten_text(messages: Iterable[JSON]) -> list[JSON]:
    """Join content that is only text into one text: not every server accepts a list of pieces."""
    return [
        {**message, "content": _joined(message["content"])}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _joined(content: JSON) -> JSON:
    pieces = content if isinstance(content, list) else []
    texts = [
        text
        for piece in pieces
        if isinstance(piece, dict) and isinstance(text := piece.get("text"), str)
    ]
    return "\n".join(texts) if len(texts) == len(pieces) else content


def encode_tools(tools: Sequence[ToolSpec]) -> list[JSON]:
    """Return the tools as the API takes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


# ----------------------------------------------------------------------------------------- replies


class _PartialCall:
    """A call that is being assembled from its pieces, with the server's own fields."""

    def __init__(self, size: ReplySize, own: frozenset[str]) -> None:
        self.id = ""
        self.name = ""
        self._size = size
        self._own = own
        self.extra: JSONObject = {}
        self._pieces: list[str] = []  # Joined once: there may be a million.

    def add(self, piece: Mapping[str, JSON]) -> None:
        function = _object(piece.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(id := piece.get("id"), str) and not self.id:
            self.id = id
        # Some servers repeat the name with every piece.
        if isinstance(name, str) and not self._pieces and name != self.name:
            self.name = (self.name + name)[:MAX_CALL_NAME_CHARS]
        if isinstance(arguments, str) and arguments:
            self._size.add_text(arguments)
            self._pieces.append(arguments)
        elif arguments is not None and not isinstance(arguments, str):
            self._pieces = [write_arguments(arguments)]
        self.extra.update({k: v for k, v in piece.items() if k in self._own})

    @property
    def has_arguments(self) -> bool:
        """True if any came."""
        return bool(self._pieces)

    @property
    def arguments(self) -> JSON:
        """The arguments as an object, or as text if they are not one."""
        text = join_surrogates("".join(self._pieces))
        if not text.strip():
            return {}
        found = parsed_object(text)
        return text if found is None else found


class ChatStreamParser:
    """Parses the chunks of one reply into deltas; `own` names fields to keep for the server."""

    def __init__(self, own: ServerFields = NO_SERVER_FIELDS) -> None:
        self._server_fields = own
        self._size = ReplySize()
        self._calls: list[_PartialCall] = []
        self._calls_by_index: dict[int, _PartialCall] = {}
        self._text = SurrogateJoiner()
        self._thoughts = SurrogateJoiner()
        self._fields: dict[str, list[str]] = {}
        self._reason: StopReason | None = None
        self.has_output = False

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` until it is complete."""
        return self._reason

    def feed(self, chunk: object) -> list[Delta]:
        """Return the deltas of a chunk."""
        if not isinstance(chunk, dict):
            return []
        deltas: list[Delta] = []
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            deltas += self._choice(_object(choices[0]))
        usage = chunk.get("usage")
        if isinstance(usage, dict) and (spent := usage_of(usage)).total:
            deltas.append(ReplyUsage(spent))
        return deltas

    def finish(self) -> list[Delta]:
        """Return the final deltas: the calls, and why the reply ended, unless it was cut off."""
        deltas: list[Delta] = [*self._text_delta(ReplyText, self._text.flush())]
        if self._reason is None:
            return deltas
        calls = self._complete_calls()
        for call in calls:
            self.has_output = True
            deltas.append(
                ReplyToolCall(join_surrogates(call.id), join_surrogates(call.name), call.arguments)
            )
            if (kept := part_note(SOURCE, call.extra, {}, "function_tool")) is not None:
                deltas.append(ReplyRaw(kept))
        if self._fields:
            fields: JSONObject = {name: "".join(texts) for name, texts in self._fields.items()}
            about = message_note(SOURCE, {"fields": fields}, "assistant")
            deltas += [] if about is None else [ReplyRaw(about)]
        ended = self._reason in {"stop", "other"}
        return [*deltas, ReplyEnd("calls" if calls and ended else self._reason)]

    def _complete_calls(self) -> list[_PartialCall]:
        """Return the calls; if the reply reached its length limit, only those that parse."""
        if self._reason != "length":
            return self._calls
        return [
            call for call in self._calls if isinstance(call.arguments, dict) and call.has_arguments
        ]

    def _choice(self, choice: Mapping[str, JSON]) -> list[Delta]:
        delta = _object(choice.get("delta"))
        deltas = [*self._thinking(delta)]
        if isinstance(content := delta.get("content"), list):
            deltas += [found for piece in content for found in self._piece(_object(piece))]
        elif isinstance(content, str):
            deltas += self._text_delta(ReplyText, self._text.feed(content))
        # A refusal is shown as text.
        if isinstance(refusal := delta.get("refusal"), str):
            deltas += self._text_delta(ReplyText, self._text.feed(refusal))
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            self._call_for(_object(piece)).add(_object(piece))
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish and finish not in _ABORT_REASONS:
            self._reason = _REASONS.get(finish, "other")
        return deltas

    def _thinking(self, delta: Mapping[str, JSON]) -> list[Delta]:
        for name in ("reasoning_content", "reasoning"):
            text = delta.get(name)
            if isinstance(text, str) and text:
                if name in self._server_fields.message:
                    self._fields.setdefault(name, []).append(text)
                return self._text_delta(ReplyThinking, self._thoughts.feed(text))
        return []

    def _piece(self, piece: Mapping[str, JSON]) -> list[Delta]:
        """Return the deltas of a piece of content in Mistral's format."""
        if isinstance(text := piece.get("text"), str):
            return self._text_delta(ReplyText, self._text.feed(text))
        thinking = piece.get("thinking")
        inside = thinking if isinstance(thinking, list) else ()
        texts = [_object(inner).get("text") for inner in inside]
        joined = "".join(text for text in texts if isinstance(text, str))
        return self._text_delta(ReplyThinking, self._thoughts.feed(joined))

    def _text_delta(self, kind: type[ReplyText | ReplyThinking], text: str) -> list[Delta]:
        self._size.add_text(text)
        self.has_output = self.has_output or (kind is ReplyText and bool(text))
        return [kind(text)] if text else []

    def _call_for(self, piece: Mapping[str, JSON]) -> _PartialCall:
        """Return the call that a piece belongs to; begin one if there is none."""
        index = piece.get("index")
        last = self._calls[-1] if self._calls else None
        known = self._calls_by_index.get(index) if isinstance(index, int) else last
        if known is not None and self._continues_call(known, piece):
            return known
        call = _PartialCall(self._size, self._server_fields.call)
        self._size.add_part()
        self._calls.append(call)
        if isinstance(index, int):
            self._calls_by_index[index] = call
        return call

    def _continues_call(self, call: _PartialCall, piece: Mapping[str, JSON]) -> bool:
        """True if a piece continues a call: some servers send index 0 for all calls, or none."""
        id = piece.get("id")
        if isinstance(id, str) and id and call.id:
            return id == call.id
        if isinstance(piece.get("index"), int):
            return True
        return not _object(piece.get("function")).get("name")


def _object(value: JSON) -> JSONObject:
    return value if isinstance(value, dict) else {}
