"""Parser for tool calls that a model wrote as text.

Small models, and servers without tool support, return calls as text: JSON between `<tool_call>`
tags, in a code fence, or as the whole answer.

Text between tags is always a call; if it cannot be read, the call is answered with an error. JSON
elsewhere is a call only if it has the shape of one and names an available tool, so that an ordinary
answer in JSON stays an answer. Calls inside the model's thinking are ignored. Slightly malformed
JSON (a trailing comma, a missing last bracket) is repaired; text that was cut off within a value is
not, because the rest of the value is unknown.

Model output is untrusted: every step takes linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NoReturn

import msgspec

from holdfast import validation
from holdfast.errors import BadMessage
from holdfast.values import JSON

UNREADABLE_CALL: Final = "unreadable_call"  # The name given to a call that names no tool.
_MAX_CALLS: Final = 64
_MAX_BROKEN_VALUES: Final = 8
_CLOSING_TAGS: Final = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<function_call>": "</function_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|python_tag|>": "<|eom_id|>",
    "[TOOL_CALLS]": "[/TOOL_CALLS]",
}
_MARKER: Final = re.compile("|".join(["```", "~~~", *map(re.escape, _CLOSING_TAGS)]))
_AFTER_FENCE: Final = re.compile(r"[`~]*[ \t]*[\w+.-]*\s*")
_FENCE_END: Final = re.compile(r"[`~]+")
_SPACE: Final = re.compile(r"\s*")
_BETWEEN: Final = re.compile(r"[\s,;]*")
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
_REPAIRABLE: Final = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"?|,\s*(?=[}\]])|\b(?:True|False|None)\b|[{}\[\]]', re.DOTALL
)
_JSON_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}
_CLOSING_BRACKETS: Final = {"{": "}", "[": "]"}
_THINK_TAGS: Final = ("<think>", "</think>")

_NAME_KEYS: Final = ("name", "tool", "tool_name", "function", "function_name", "action")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "params", "input", "action_input")
_IGNORED_KEYS: Final = frozenset({"id", "type", "index", "call_id"})


class TextCall(msgspec.Struct, frozen=True):
    """A parsed call: its arguments are JSON, or the text if it is not valid JSON."""

    name: str
    arguments: JSON


class ParsedReply(msgspec.Struct, frozen=True):
    """The calls in a reply, and the text around them."""

    text: str
    calls: tuple[TextCall, ...]


def parse_reply(text: str, names: Collection[str]) -> ParsedReply:
    """Parse the calls in a model's text; `names` are the available tools."""
    start = end_of_thinking(text)
    bare = _bare_calls(text, start, names)
    if bare:
        return ParsedReply(text[:start].strip(), tuple(bare[:_MAX_CALLS]))
    reading = _Scanner(text, start, names)
    if not reading.calls:
        return ParsedReply(text, ())
    return ParsedReply(reading.text_without_calls().strip(), tuple(reading.calls[:_MAX_CALLS]))


def end_of_thinking(text: str) -> int:
    """Return the end of a `<think>` block that a text starts with; 0 if there is none.

    A block that is not closed ends with the text.
    """
    opening, closing = _THINK_TAGS
    begin = _SPACE.match(text, 0)
    if begin is None or not text.startswith(opening, begin.end()):
        return 0
    end = text.find(closing, begin.end())
    return len(text) if end < 0 else end + len(closing)


def _bare_calls(text: str, start: int, names: Collection[str]) -> list[TextCall] | None:
    """Parse an answer that consists only of calls in JSON; `None` if it does not."""
    found: list[TextCall] = []
    at = _skip(_SPACE, text, start)
    while at < len(text):
        end = _value_end(text, at)
        # Only the last value may be unterminated.
        calls = _calls_of(_parse_json(text[at : len(text) if end is None else end]), names)
        if calls is None:
            return None
        found += calls
        at = len(text) if end is None else _skip(_BETWEEN, text, end)
    return found


# --------------------------------------------------------------------------- tags and fences


class _Scanner:
    """Scans a text once, from marker to marker."""

    def __init__(self, text: str, start: int, names: Collection[str]) -> None:
        self._text = text
        self._names = names
        self._broken = 0
        self._absent: set[str] = set()
        self._call_spans: list[tuple[int, int]] = []
        self.calls: list[TextCall] = []
        at = start
        while len(self.calls) < _MAX_CALLS and (marker := _MARKER.search(text, at)) is not None:
            at = self._scan_tags(marker) if marker[0] in _CLOSING_TAGS else self._scan_fence(marker)

    def text_without_calls(self) -> str:
        """Return the text without the calls."""
        pieces: list[str] = []
        at = 0
        for begin, end in self._call_spans:
            pieces.append(self._text[at:begin])
            at = end
        return "".join([*pieces, self._text[at:]])

    def _add_calls(self, begin: int, end: int, calls: Sequence[TextCall]) -> int:
        self._call_spans.append((begin, end))
        self.calls += calls
        return end

    def _scan_fence(self, marker: re.Match[str]) -> int:
        """Parse a code fence; return where to continue."""
        inside = _skip(_AFTER_FENCE, self._text, marker.end())
        tag = _MARKER.match(self._text, inside)
        if tag is not None and tag[0] in _CLOSING_TAGS:
            return self._scan_tags(tag, begin=marker.start())
        values, end = self._json_values(inside)
        closed = self._text.startswith(marker[0], end)
        if values and (closed or end == len(self._text)):
            calls = [_calls_of(_parse_json(value), self._names) for value in values]
            end = self._skip_fence_end(end)
            if None in calls:
                return end
            return self._add_calls(marker.start(), end, [c for made in calls for c in made or ()])
        closing = self._find(marker[0], inside)
        return len(self._text) if closing < 0 else self._skip_fence_end(closing)

    def _scan_tags(self, marker: re.Match[str], begin: int | None = None) -> int:
        """Parse the text between tags; return where to continue."""
        begin = marker.start() if begin is None else begin
        inside = _skip(_SPACE, self._text, marker.end())
        if self._text.startswith(("```", "~~~"), inside):
            inside = _skip(_AFTER_FENCE, self._text, inside)
        values, end = self._json_values(inside)
        closing = _CLOSING_TAGS[marker[0]]
        if not values:
            end = self._find(closing, inside)
            if end < 0:
                return marker.end()  # Unclosed: the text only mentions the tag.
            values = [self._text[inside:end].strip()]
        calls = [call for value in values for call in _tagged_calls(value, self._names)]
        end = self._skip_fence_end(end)
        if self._text.startswith(closing, end):
            end += len(closing)
        return self._add_calls(begin, self._skip_fence_end(end), calls)

    def _find(self, mark: str, at: int) -> int:
        """Find a mark; remember one that is absent, so that it is searched for only once."""
        found = -1 if mark in self._absent else self._text.find(mark, at)
        if found < 0:
            self._absent.add(mark)
        return found

    def _skip_fence_end(self, at: int) -> int:
        """Skip the end of a fence, if there is one at this position."""
        after = _skip(_SPACE, self._text, at)
        if not self._text.startswith(("```", "~~~"), after):
            return at
        return _skip(_FENCE_END, self._text, after)

    def _json_values(self, at: int) -> tuple[list[str], int]:
        """Return consecutive JSON values as text, and the position after them."""
        values: list[str] = []
        while self._text.startswith(("{", "["), at) and self._broken < _MAX_BROKEN_VALUES:
            end = _value_end(self._text, at)
            if end is None:
                self._broken += 1
                end = self._end_of_broken_value(at)
            values.append(self._text[at:end])
            at = _skip(_BETWEEN, self._text, end)
        return values, at

    def _end_of_broken_value(self, at: int) -> int:
        """Return where unterminated JSON ends: at the next marker of any kind."""
        ends = (self._find(mark, at) for mark in ("```", "~~~", *_CLOSING_TAGS.values()))
        return min((end for end in ends if end >= 0), default=len(self._text))


def _skip(what: re.Pattern[str], text: str, at: int) -> int:
    found = what.match(text, at)
    return at if found is None else found.end()


# ------------------------------------------------------------------------------------------ calls


def _tagged_calls(value: str, names: Collection[str]) -> list[TextCall]:
    """Return the calls in tagged text; an unreadable one becomes `UNREADABLE_CALL`."""
    parsed = _parse_json(value)
    calls = _calls_of(parsed, names) or _calls_of(parsed, None)
    if calls:
        return calls
    return [TextCall(UNREADABLE_CALL, value if isinstance(parsed, _NotJSON) else parsed)]


def _calls_of(value: JSON | _NotJSON, names: Collection[str] | None) -> list[TextCall] | None:
    """Return the call or calls in a value; `None` if any part of it is not a call.

    Without `names` any tool name is accepted.
    """
    if isinstance(value, list) and value:
        made = [_calls_of(item, names) for item in value if not isinstance(item, list)]
        if len(made) < len(value) or None in made:
            return None
        return [call for calls in made for call in calls or ()]
    if not isinstance(value, dict):
        return None
    several = value.get("tool_calls")
    if isinstance(several, list) and "name" not in value:
        return None if not several else _calls_of(several, names)
    call = _call_of(_unwrapped(value), names)
    return None if call is None else [call]


def _unwrapped(value: dict[str, JSON]) -> dict[str, JSON]:
    """Return the inner call of `{"type": "function", "function": {…}}`."""
    inner = value.get("function")
    return (
        inner if isinstance(inner, dict) and value.keys() <= {"function", *_IGNORED_KEYS} else value
    )


def _call_of(value: dict[str, JSON], names: Collection[str] | None) -> TextCall | None:
    for key in _NAME_KEYS:
        name = _tool_name(value.get(key), names)
        if name is None:
            continue
        rest = {k: v for k, v in value.items() if k != key and k not in _IGNORED_KEYS}
        given = [k for k in _ARGUMENT_KEYS if k in rest]
        if given:
            return TextCall(name, _arguments(rest[given[0]]))
        if not rest:
            return TextCall(name, {})
        # `{"tool": "read_file", "path": …}`; an object with `name` need not be a call.
        return TextCall(name, rest) if key != "name" else None
    return _call_by_key(value, names)


def _call_by_key(value: dict[str, JSON], names: Collection[str] | None) -> TextCall | None:
    """Return the call in `{"read_file": {"path": …}}`; `None` if it is not one."""
    if names is None or len(value) != 1:
        return None
    ((key, given),) = value.items()
    name = _tool_name(key, names)
    return TextCall(name, given) if name is not None and isinstance(given, dict) else None


def _tool_name(name: JSON, names: Collection[str] | None) -> str | None:
    if not isinstance(name, str) or not name.strip():
        return None
    if names is None or name in names:
        return name
    last = name.strip().rpartition(".")[2]  # `functions.read_file`
    return last if last in names else None


def _arguments(given: JSON) -> JSON:
    """Return the arguments; an object that is encoded as a string is decoded."""
    if given is None:
        return {}
    if isinstance(given, str) and given.strip().startswith("{"):
        parsed = _parse_json(given)
        return given if isinstance(parsed, _NotJSON) else parsed
    return given


# ------------------------------------------------------------------------------------------- JSON


class _NotJSON(msgspec.Struct, frozen=True):
    """The result of parsing text that is not valid JSON."""


_NOT_JSON: Final = _NotJSON()


def _value_end(text: str, at: int) -> int | None:
    """Return the end of the object or list that starts here; `None` if it has no end."""
    if not text.startswith(("{", "["), at):
        return None
    depth = 0
    for token in _TOKEN.finditer(text, at):
        if token[0] in _CLOSING_BRACKETS:
            depth += 1
        elif token[0] in {"}", "]"}:
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _parse_json(text: str) -> JSON | _NotJSON:
    """Parse an object or a list, repairing it if necessary."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        return _NOT_JSON
    for attempt in _with_repair(text):
        try:
            value: JSON = json.loads(attempt, strict=False, parse_constant=_refuse)
            return validation.check_json(value, "call")
        except (ValueError, RecursionError, BadMessage):
            continue
    return _NOT_JSON


def _with_repair(text: str) -> Iterator[str]:
    yield text
    open_ones: list[str] = []

    def repair(token: re.Match[str]) -> str:
        found = token[0]
        if found in _CLOSING_BRACKETS:
            open_ones.append(_CLOSING_BRACKETS[found])
        elif found in {"}", "]"} and open_ones:
            open_ones.pop()
        return "" if found.startswith(",") else _JSON_LITERALS.get(found, found)

    repaired = _REPAIRABLE.sub(repair, text)
    # Only after a complete value: the rest of one that was cut off is unknown.
    if repaired.endswith(("}", "]", '"')):
        repaired += "".join(reversed(open_ones))
    yield repaired


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
