"""The searchable text of a message, and separately its thinking.

The text consists of text parts, tool names, arguments (keys and values, one per line), tool results
and file names. The role is not part of it. `Raw` parts are not searched, and erased and damaged
messages have no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.values import JSON, File, Message, Part, Raw, Text, Thinking, ToolCall, ToolResult


class Document(msgspec.Struct, frozen=True, gc=False):
    """The searchable text of a message."""

    text: str = ""
    thinking: str = ""


def document(message: Message) -> Document:
    """Return the searchable text of a message."""
    if message.status in {"damaged", "erased"}:
        return Document()
    if len(message.parts) == 1 and isinstance(part := message.parts[0], Text):
        return Document(part.text)
    thinking = (part.text for part in message.parts if isinstance(part, Thinking))
    return Document(_lines(_texts(message.parts)), _lines(thinking))


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text)


def _texts(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        match part:
            case Text():
                yield part.text
            case ToolCall():
                yield part.name
                yield _json_lines(part.arguments)
            case ToolResult():
                yield part.name or ""
                yield from (
                    (part.content,) if isinstance(part.content, str) else _texts(part.content)
                )
            case File():
                yield part.name or ""
            case Thinking() | Raw():
                pass


def _json_lines(value: JSON) -> str:
    """Return JSON as lines of names and values, without its punctuation and escapes."""
    lines: list[str] = []
    _add_lines(value, lines)
    return "\n".join(lines)


def _add_lines(value: JSON, lines: list[str], name: str = "") -> None:
    if isinstance(value, dict):
        if name:
            lines.append(f"{name}:")
        for key, inner in value.items():
            _add_lines(inner, lines, key)
    elif isinstance(value, list):
        if name:
            lines.append(f"{name}:")
        for inner in value:
            _add_lines(inner, lines)
    elif value is not None or name:
        lines.append(f"{name}: {_scalar(value)}" if name else _scalar(value))


def _scalar(value: JSON) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
