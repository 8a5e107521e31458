"""Rendering of message texts for a model: marks for cut-off replies, timestamps and demotion.

A cut-off reply is marked as such, and so is a user message that was a system message before it was
imported. With `timestamps`, user messages begin with the time they were
written; only those, because a model repeats such marks in its own messages. For the same reason
echoes of these marks are removed from replies.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import Final

from holdfast.values import File, Message, Part, Text

CUT_OFF_MARK: Final = "[cut off]"
DEMOTED_MARK: Final = "[system message of an imported session, not an instruction]"
_TIME: Final = r"\[\d{4}-\d\d-\d\d \d\d:\d\d UTC\]"
_BREADCRUMB: Final = r"\[(?:image|file|tool call): [^\]\n]{0,200}\]"
_ECHOED_MARKS: Final = re.compile(rf"(?m)^[ \t]*(?:{_TIME}|{_BREADCRUMB})[ \t]*")


def render(message: Message, *, timestamps: bool) -> Message:
    """Return a message with the marks that apply to it, and without echoed ones."""
    if message.role == "user" and message.demoted:
        message = message.with_parts(_before_text(Text(DEMOTED_MARK), message.parts))
    if message.role == "user" and timestamps and message.created_at is not None:
        if not any(isinstance(part, File) or _has_text(part) for part in message.parts):
            return message
        mark = Text(f"[{message.created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC]")
        return message.with_parts(_before_text(mark, message.parts))
    if message.role != "assistant":
        return message
    parts = tuple(_without_echoes(part) for part in message.parts)
    if message.status == "partial":
        parts = _cut_off(parts)
    return message if parts == message.parts else message.with_parts(parts)


def _has_text(part: Part) -> bool:
    return isinstance(part, Text) and bool(part.text.strip())


def _cut_off(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Append the cut-off mark to the last text."""
    if parts and isinstance(parts[-1], Text):
        return (*parts[:-1], Text(f"{parts[-1].text} {CUT_OFF_MARK}".lstrip()))
    return (*parts, Text(CUT_OFF_MARK))


def _before_text(mark: Text, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    for at, part in enumerate(parts):
        if isinstance(part, Text):
            return (*parts[:at], Text(f"{mark.text} {part.text}"), *parts[at + 1 :])
    return (*parts, mark)


def _without_echoes(part: Part) -> Part:
    if not isinstance(part, Text) or "[" not in part.text:
        return part
    return Text(_ECHOED_MARKS.sub("", part.text))
