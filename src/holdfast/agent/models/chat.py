"""OpenAI's chat completions, as very many servers speak them: what is sent, and what comes back.

What comes back are chunks, and servers take liberties with them: calls without numbers or ids, or
several under one number; names that are repeated; thinking under three names; a `stop` after
calls. Everything here reads plain JSON and takes nothing for granted.

A reply is whole when a chunk says why it ends. Calls are given then, and not before: until then
the last of them may be half written, and of a reply that is cut off none is to be run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

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
from holdfast.agent.models.halves import Halves, whole
from holdfast.agent.telling import in_words
from holdfast.checks import MAX_COUNT
from holdfast.formats.beside import parsed_object
from holdfast.formats.openai_chat import SOURCE
from holdfast.formats.openai_notes import message_note, note
from holdfast.formats.shared import write_arguments
from holdfast.records import JSON, Usage

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
# So ends a reply that the server gave up: it was cut off, and nothing says that it is whole.
_GIVEN_UP: Final = frozenset({"abort", "error", "insufficient_system_resource"})
_FIELDS: Final = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "function_call"}
)
_CALL_FIELDS: Final = frozenset({"id", "type", "function", "custom"})
_PIECE_FIELDS: Final = frozenset({*_CALL_FIELDS, "index"})


class Own(msgspec.Struct, frozen=True):
    """Fields that a server adds to messages and calls, and wants to see again with them."""

    message: frozenset[str] = frozenset()
    call: frozenset[str] = frozenset()


NOTHING_OWN: Final = Own()


# ------------------------------------------------------------------------------------- what is sent


def messages_of(request: Request, *, own: Own = NOTHING_OWN, words: bool = False) -> list[JSON]:
    """Return the messages to send. `words`: to a model that knows no calls, they are told in words.

    Fields that other servers added to their messages are left out: many refuse what they do not
    know.
    """
    messages = [_known(message, own) for message in request.window.messages]
    if words:
        messages = in_words(messages)
    if request.continuing:
        messages.append({"role": "user", "content": CONTINUE})
    return [*messages]


def _known(message: JSONObject, own: Own) -> JSONObject:
    known = {key: value for key, value in message.items() if key in _FIELDS | own.message}
    calls = known.get("tool_calls")
    if isinstance(calls, list):
        known["tool_calls"] = [
            {key: value for key, value in call.items() if key in _CALL_FIELDS | own.call}
            for call in calls
            if isinstance(call, dict)
        ]
    return known


def flat(messages: Iterable[JSON]) -> list[JSON]:
    """Write content that is nothing but text as one text: not every server takes it in pieces."""
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


def tools_of(tools: Sequence[ToolSpec]) -> list[JSON]:
    """Tell of tools."""
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


# ---------------------------------------------------------------------------------- what comes back


class _Call:
    """A call that is being put together."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.text = ""
        self.extra: JSONObject = {}

    def add(self, piece: Mapping[str, JSON]) -> None:
        function = _object(piece.get("function"))
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(id := piece.get("id"), str) and not self.id:
            self.id = id
        # Some repeat the name with every piece.
        if isinstance(name, str) and not self.text and name != self.name:
            self.name += name
        if isinstance(arguments, str):
            self.text += arguments
        elif arguments is not None:
            self.text = write_arguments(arguments)
        self.extra.update({k: v for k, v in piece.items() if k not in _PIECE_FIELDS})

    @property
    def arguments(self) -> JSON:
        """An object if it is one, else the text."""
        text = whole(self.text)
        if not text.strip():
            return {}
        found = parsed_object(text)
        return text if found is None else found


class ChatReading:
    """Makes deltas of the chunks of one reply."""

    def __init__(self, own: Own = NOTHING_OWN) -> None:
        """Begin a reply; `own` are fields to keep for the server."""
        self._own = own
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        self._text = Halves()
        self._thoughts = Halves()
        self._fields: JSONObject = {}
        self._reason: StopReason | None = None
        self.said = False

    @property
    def reason(self) -> StopReason | None:
        """Why the reply ended; `None` while it is not whole."""
        return self._reason

    def take(self, chunk: object) -> list[Delta]:
        """Read a chunk."""
        if not isinstance(chunk, dict):
            return []
        deltas: list[Delta] = []
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices:
            deltas += self._choice(_object(choices[0]))
        usage = chunk.get("usage")
        if isinstance(usage, dict) and (spent := _usage(usage)).total:
            deltas.append(Spent(spent))
        return deltas

    def end(self) -> list[Delta]:
        """End the reply: give its calls, and why it ended. One that is not whole just ends."""
        deltas: list[Delta] = [*self._spoken(Said, self._text.rest())]
        if self._reason is None:
            return deltas
        calls = self._whole_calls()
        for call in calls:
            self.said = True
            deltas.append(Called(whole(call.id), whole(call.name), call.arguments))
            extra = {key: value for key, value in call.extra.items() if key in self._own.call}
            if (kept := note(SOURCE, extra, {}, "function_tool")) is not None:
                deltas.append(Kept(kept))
        if self._fields:
            about = message_note(SOURCE, {"fields": self._fields}, "assistant")
            deltas += [] if about is None else [Kept(about)]
        ended = self._reason in {"stop", "other"}
        return [*deltas, Stopped("calls" if calls and ended else self._reason)]

    def _whole_calls(self) -> list[_Call]:
        """Return the calls; of a reply that grew too long those that can be read."""
        if self._reason != "length":
            return self._calls
        return [call for call in self._calls if isinstance(call.arguments, dict) and call.text]

    def _choice(self, choice: Mapping[str, JSON]) -> list[Delta]:
        delta = _object(choice.get("delta"))
        deltas = [*self._thinking(delta)]
        if isinstance(content := delta.get("content"), list):
            deltas += [found for piece in content for found in self._piece(_object(piece))]
        elif isinstance(content, str):
            deltas += self._spoken(Said, self._text.joined(content))
        # What is said instead of an answer is said all the same.
        if isinstance(refusal := delta.get("refusal"), str):
            deltas += self._spoken(Said, self._text.joined(refusal))
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            self._call_for(_object(piece)).add(_object(piece))
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish and finish not in _GIVEN_UP:
            self._reason = _REASONS.get(finish, "other")
        return deltas

    def _thinking(self, delta: Mapping[str, JSON]) -> list[Delta]:
        for name in ("reasoning_content", "reasoning"):
            text = delta.get(name)
            if isinstance(text, str) and text:
                if name in self._own.message:
                    self._fields[name] = f"{self._fields.get(name, '')}{text}"
                return self._spoken(Thought, self._thoughts.joined(text))
        return []

    def _piece(self, piece: Mapping[str, JSON]) -> list[Delta]:
        """Read a piece of content, as Mistral sends them."""
        if isinstance(text := piece.get("text"), str):
            return self._spoken(Said, self._text.joined(text))
        thinking = piece.get("thinking")
        inside = thinking if isinstance(thinking, list) else ()
        texts = [_object(inner).get("text") for inner in inside]
        joined = "".join(text for text in texts if isinstance(text, str))
        return self._spoken(Thought, self._thoughts.joined(joined))

    def _spoken(self, kind: type[Said | Thought], text: str) -> list[Delta]:
        self.said = self.said or (kind is Said and bool(text))
        return [kind(text)] if text else []

    def _call_for(self, piece: Mapping[str, JSON]) -> _Call:
        """Find the call that a piece belongs to, or begin one."""
        index = piece.get("index")
        last = self._calls[-1] if self._calls else None
        known = self._at.get(index) if isinstance(index, int) else last
        if known is not None and self._goes_on(known, piece):
            return known
        call = _Call()
        self._calls.append(call)
        if isinstance(index, int):
            self._at[index] = call
        return call

    def _goes_on(self, call: _Call, piece: Mapping[str, JSON]) -> bool:
        """Return whether a piece goes on with a call: some number all of their calls 0, or none."""
        id = piece.get("id")
        if isinstance(id, str) and id and call.id:
            return id == call.id
        if isinstance(piece.get("index"), int):
            return True
        return not _object(piece.get("function")).get("name")


def _object(value: JSON) -> JSONObject:
    return value if isinstance(value, dict) else {}


def _usage(given: JSONObject) -> Usage:
    """Read what was used; some say so with every chunk."""
    sent, said = _object(given.get("prompt_tokens_details")), given.get("completion_tokens_details")
    return Usage(
        input=_count(given, "prompt_tokens"),
        output=_count(given, "completion_tokens"),
        cache_read=_count(sent, "cached_tokens") or _count(given, "prompt_cache_hit_tokens"),
        cache_write=_count(sent, "cache_write_tokens"),
        reasoning=_count(_object(said), "reasoning_tokens"),
    )


def _count(given: Mapping[str, JSON], key: str) -> int:
    value = given.get(key)
    return value if type(value) is int and 0 < value <= MAX_COUNT // 4 else 0
