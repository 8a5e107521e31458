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

UNREADABLE: Final = "unreadable_call"  # The name given to a call that names no tool.
_MOST: Final = 64
_MOST_BROKEN: Final = 8
_CLOSED: Final = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<function_call>": "</function_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|python_tag|>": "<|eom_id|>",
    "[TOOL_CALLS]": "[/TOOL_CALLS]",
}
_MARKER: Final = re.compile("|".join(["```", "~~~", *map(re.escape, _CLOSED)]))
_AFTER_FENCE: Final = re.compile(r"[`~]*[ \t]*[\w+.-]*\s*")
_FENCE_END: Final = re.compile(r"[`~]+")
_SPACE: Final = re.compile(r"\s*")
_BETWEEN: Final = re.compile(r"[\s,;]*")
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
_MENDED: Final = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"?|,\s*(?=[}\]])|\b(?:True|False|None)\b|[{}\[\]]', re.DOTALL
)
_INSTEAD: Final = {"True": "true", "False": "false", "None": "null"}
_CLOSING: Final = {"{": "}", "[": "]"}
_THOUGHTS: Final = ("<think>", "</think>")

_NAMES: Final = ("name", "tool", "tool_name", "function", "function_name", "action")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "params", "input", "action_input")
_BESIDE: Final = frozenset({"id", "type", "index", "call_id"})


class Written(msgspec.Struct, frozen=True):
    """A parsed call: its arguments are JSON, or the text if it is not valid JSON."""

    name: str
    arguments: JSON


class Understood(msgspec.Struct, frozen=True):
    """The calls in a reply, and the text around them."""

    text: str
    calls: tuple[Written, ...]


def understand(text: str, names: Collection[str]) -> Understood:
    """Parse the calls in a model's text; `names` are the available tools."""
    start = after_thoughts(text)
    bare = _bare(text, start, names)
    if bare:
        return Understood(text[:start].strip(), tuple(bare[:_MOST]))
    reading = _Reading(text, start, names)
    if not reading.calls:
        return Understood(text, ())
    return Understood(reading.rest().strip(), tuple(reading.calls[:_MOST]))


def after_thoughts(text: str) -> int:
    """Return the end of a `<think>` block that a text starts with; 0 if there is none.

    A block that is not closed ends with the text.
    """
    opening, closing = _THOUGHTS
    begin = _SPACE.match(text, 0)
    if begin is None or not text.startswith(opening, begin.end()):
        return 0
    end = text.find(closing, begin.end())
    return len(text) if end < 0 else end + len(closing)


def _bare(text: str, start: int, names: Collection[str]) -> list[Written] | None:
    """Parse an answer that consists only of calls in JSON; `None` if it does not."""
    found: list[Written] = []
    at = _skip(_SPACE, text, start)
    while at < len(text):
        end = _value_end(text, at)
        # Only the last value may be unterminated.
        calls = _calls_of(_parsed(text[at : len(text) if end is None else end]), names)
        if calls is None:
            return None
        found += calls
        at = len(text) if end is None else _skip(_BETWEEN, text, end)
    return found


# --------------------------------------------------------------------------- tags and fences


class _Reading:
    """Scans a text once, from marker to marker."""

    def __init__(self, text: str, start: int, names: Collection[str]) -> None:
        self._text = text
        self._names = names
        self._broken = 0
        self._absent: set[str] = set()
        self._taken: list[tuple[int, int]] = []
        self.calls: list[Written] = []
        at = start
        while len(self.calls) < _MOST and (marker := _MARKER.search(text, at)) is not None:
            at = self._tagged(marker) if marker[0] in _CLOSED else self._fenced(marker)

    def rest(self) -> str:
        """Return the text without the calls."""
        pieces: list[str] = []
        at = 0
        for begin, end in self._taken:
            pieces.append(self._text[at:begin])
            at = end
        return "".join([*pieces, self._text[at:]])

    def _take(self, begin: int, end: int, calls: Sequence[Written]) -> int:
        self._taken.append((begin, end))
        self.calls += calls
        return end

    def _fenced(self, marker: re.Match[str]) -> int:
        """Parse a code fence; return where to continue."""
        inside = _skip(_AFTER_FENCE, self._text, marker.end())
        tag = _MARKER.match(self._text, inside)
        if tag is not None and tag[0] in _CLOSED:
            return self._tagged(tag, begin=marker.start())
        values, end = self._values(inside)
        closed = self._text.startswith(marker[0], end)
        if values and (closed or end == len(self._text)):
            calls = [_calls_of(_parsed(value), self._names) for value in values]
            end = self._over_fence(end)
            if None in calls:
                return end
            return self._take(marker.start(), end, [c for made in calls for c in made or ()])
        closing = self._find(marker[0], inside)
        return len(self._text) if closing < 0 else self._over_fence(closing)

    def _tagged(self, marker: re.Match[str], begin: int | None = None) -> int:
        """Parse the text between tags; return where to continue."""
        begin = marker.start() if begin is None else begin
        inside = _skip(_SPACE, self._text, marker.end())
        if self._text.startswith(("```", "~~~"), inside):
            inside = _skip(_AFTER_FENCE, self._text, inside)
        values, end = self._values(inside)
        closing = _CLOSED[marker[0]]
        if not values:
            end = self._find(closing, inside)
            if end < 0:
                return marker.end()  # Unclosed: the text only mentions the tag.
            values = [self._text[inside:end].strip()]
        calls = [call for value in values for call in _certain(value, self._names)]
        end = self._over_fence(end)
        if self._text.startswith(closing, end):
            end += len(closing)
        return self._take(begin, self._over_fence(end), calls)

    def _find(self, mark: str, at: int) -> int:
        """Find a mark; remember one that is absent, so that it is searched for only once."""
        found = -1 if mark in self._absent else self._text.find(mark, at)
        if found < 0:
            self._absent.add(mark)
        return found

    def _over_fence(self, at: int) -> int:
        """Skip the end of a fence, if there is one at this position."""
        after = _skip(_SPACE, self._text, at)
        if not self._text.startswith(("```", "~~~"), after):
            return at
        return _skip(_FENCE_END, self._text, after)

    def _values(self, at: int) -> tuple[list[str], int]:
        """Return consecutive JSON values as text, and the position after them."""
        values: list[str] = []
        while self._text.startswith(("{", "["), at) and self._broken < _MOST_BROKEN:
            end = _value_end(self._text, at)
            if end is None:
                self._broken += 1
                end = self._give_up(at)
            values.append(self._text[at:end])
            at = _skip(_BETWEEN, self._text, end)
        return values, at

    def _give_up(self, at: int) -> int:
        """Return where unterminated JSON ends: at the next marker of any kind."""
        ends = (self._find(mark, at) for mark in ("```", "~~~", *_CLOSED.values()))
        return min((end for end in ends if end >= 0), default=len(self._text))


def _skip(what: re.Pattern[str], text: str, at: int) -> int:
    found = what.match(text, at)
    return at if found is None else found.end()


# ------------------------------------------------------------------------------------------ calls


def _certain(value: str, names: Collection[str]) -> list[Written]:
    """Return the calls in tagged text; an unreadable one becomes `UNREADABLE_CALL`."""
    parsed = _parsed(value)
    calls = _calls_of(parsed, names) or _calls_of(parsed, None)
    if calls:
        return calls
    return [Written(UNREADABLE, value if isinstance(parsed, _NotJSON) else parsed)]


def _calls_of(value: JSON | _NotJSON, names: Collection[str] | None) -> list[Written] | None:
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
    return inner if isinstance(inner, dict) and value.keys() <= {"function", *_BESIDE} else value


def _call_of(value: dict[str, JSON], names: Collection[str] | None) -> Written | None:
    for key in _NAMES:
        name = _offered(value.get(key), names)
        if name is None:
            continue
        rest = {k: v for k, v in value.items() if k != key and k not in _BESIDE}
        given = [k for k in _ARGUMENTS if k in rest]
        if given:
            return Written(name, _arguments(rest[given[0]]))
        if not rest:
            return Written(name, {})
        # `{"tool": "read_file", "path": …}`; an object with `name` need not be a call.
        return Written(name, rest) if key != "name" else None
    return _by_key(value, names)


def _by_key(value: dict[str, JSON], names: Collection[str] | None) -> Written | None:
    """Return the call in `{"read_file": {"path": …}}`; `None` if it is not one."""
    if names is None or len(value) != 1:
        return None
    ((key, given),) = value.items()
    name = _offered(key, names)
    return Written(name, given) if name is not None and isinstance(given, dict) else None


def _offered(name: JSON, names: Collection[str] | None) -> str | None:
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
        parsed = _parsed(given)
        return given if isinstance(parsed, _NotJSON) else parsed
    return given


# ------------------------------------------------------------------------------------------- JSON


class _NotJSON(msgspec.Struct, frozen=True):
    """The result of parsing text that is not valid JSON."""


_NONE: Final = _NotJSON()


def _value_end(text: str, at: int) -> int | None:
    """Return the end of the object or list that starts here; `None` if it has no end."""
    if not text.startswith(("{", "["), at):
        return None
    depth = 0
    for token in _TOKEN.finditer(text, at):
        if token[0] in _CLOSING:
            depth += 1
        elif token[0] in {"}", "]"}:
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _parsed(text: str) -> JSON | _NotJSON:
    """Parse an object or a list, repairing it if necessary."""
    text = text.strip()
    if not text.startswith(("{", "[")):
        return _NONE
    for attempt in _attempts(text):
        try:
            value: JSON = json.loads(attempt, strict=False, parse_constant=_refuse)
            return validation.check_json(value, "call")
        except (ValueError, RecursionError, BadMessage):
            continue
    return _NONE


def _attempts(text: str) -> Iterator[str]:
    yield text
    open_ones: list[str] = []

    def mend(token: re.Match[str]) -> str:
        found = token[0]
        if found in _CLOSING:
            open_ones.append(_CLOSING[found])
        elif found in {"}", "]"} and open_ones:
            open_ones.pop()
        return "" if found.startswith(",") else _INSTEAD.get(found, found)

    mended = _MENDED.sub(mend, text)
    # Only after a complete value: the rest of one that was cut off is unknown.
    if mended.endswith(("}", "]", '"')):
        mended += "".join(reversed(open_ones))
    yield mended


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
