"""A made-up provider's format, for the test of the recipe: lines of text by named speakers.

A call is a line of the model with `call`, a result one of the tool with `answers`. Files become
their breadcrumbs; everything else but text is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.errors import BadMessage
from holdfast.formats.common import JSONObject, breadcrumb, read_arguments, write_arguments
from holdfast.formats.registry import Format
from holdfast.values import JSON, File, Message, Part, Role, Text, ToolCall, ToolResult

_SPEAKERS: Final[dict[Role, str]] = {
    "assistant": "model",
    "summary": "host",
    "system": "host",
    "tool": "tool",
    "user": "guest",
}
_ROLES: Final = {speaker: role for role, speaker in _SPEAKERS.items()}


def decode(line: Mapping[str, JSON]) -> Message:
    """Decode one line; `BadMessage` if it is not valid."""
    speaker, text = line.get("speaker"), line.get("text")
    if not isinstance(speaker, str) or speaker not in _ROLES or not isinstance(text, str):
        raise BadMessage("expected a line with a speaker and a text")
    part: Part = Text(text)
    if isinstance(call := line.get("call"), str):
        part = ToolCall(call, str(line.get("name")), read_arguments(text))
    elif isinstance(answered := line.get("answers"), str):
        part = ToolResult(answered, text)
    return Message(role=_ROLES[speaker], parts=(part,))


def encode(message: Message) -> list[JSONObject]:
    """Encode a message as a line for each part; an empty list if nothing of it can be sent."""
    return [{"speaker": _SPEAKERS[message.role], **line} for line in _lines(message)]


def _lines(message: Message) -> Iterator[JSONObject]:
    for part in message.parts:
        if isinstance(part, Text | File):
            yield {"text": _text(part)}
        elif isinstance(part, ToolCall):
            yield {"text": write_arguments(part.arguments), "call": part.id, "name": part.name}
        elif isinstance(part, ToolResult):
            inside = (Text(part.content),) if isinstance(part.content, str) else part.content
            texts = [_text(piece) for piece in inside if isinstance(piece, Text | File)]
            yield {"text": "\n".join(texts) or "-", "answers": part.call_id}


def _text(part: Text | File) -> str:
    return part.text if isinstance(part, Text) else breadcrumb(part)


FORMAT: Final = Format(
    provider="teletype",  # type: ignore[arg-type]  # Registered in the test's copy of the package.
    encode=encode,
    decode=decode,
    has_content=lambda line: bool(line.get("text")),
    is_thinking=lambda _: False,
    make_compatible=list,
    encode_system=None,
    alternates_roles=False,
    errors_in_text=True,
    call_id=re.compile(r"[a-z0-9_]{1,32}"),
    tool_name=re.compile(r"[a-zA-Z0-9_-]+"),
    max_name_chars=64,
    item_noun="line",
)
