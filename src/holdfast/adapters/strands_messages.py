"""Messages of Strands and Holdfast's messages, to and from each other.

A block becomes the part that says the same; the whole of it is kept beside the parts
(`holdfast.formats.keep`), so that a message of Strands comes back as it was given. One that Strands
did not write is made of its parts.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from holdfast import File, Message, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.shared_session import is_for_models
from holdfast.errors import BadMessage, install_command
from holdfast.formats import keep, kept
from holdfast.formats.common import token_count

try:
    from strands.types.content import Message as StrandsMessage
    from strands.types.session import SessionMessage
except ImportError as error:
    raise ImportError(
        f"strands-agents is not installed: {install_command('strands')}", name=error.name
    ) from error

JSON: TypeAlias = Any
Block: TypeAlias = dict[str, Any]
Part: TypeAlias = Text | Thinking | ToolCall | ToolResult | File
Blobs: TypeAlias = Callable[[str], bytes]

_SOURCE: Final = "strands"
_HAS_TRACKING_ID: Final = "tracking_id" in StrandsMessage.__annotations__
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_MIMES: Final = {
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": f"{_OFFICE}wordprocessingml.document",
    "html": "text/html",
    "md": "text/markdown",
    "mp3": "audio/mpeg",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "xls": "application/vnd.ms-excel",
    "xlsx": f"{_OFFICE}spreadsheetml.sheet",
}
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9 ()\[\]-]+")


def to_message(given: SessionMessage, id: str | None = None) -> Message:
    """Return a message of Strands as ours, with what was redacted in place of the rest."""
    original: Block = given.to_dict()
    for each in _messages_of(original):
        _check_shape(each)
    _change_json(original, _encoded_json)
    if original.get("redact_message") is not None:
        original["message"] = original["redact_message"]
    shown: Block = original["message"]
    content = shown["content"]
    only_results = bool(content) and all("toolResult" in block for block in content)
    message = Message(
        id=id or shown.get("tracking_id") or f"strands {given.created_at} {given.message_id}",
        role="tool" if only_results else shown["role"],
        parts=tuple(part for block in content for part in _parts_of(block)),
        created_at=_time_of(given.created_at),
        usage=_usage_of(shown.get("metadata")),
    )
    return keep(message, _SOURCE, original)


def _messages_of(original: Block) -> list[Block]:
    redacted = original.get("redact_message")
    return [original["message"], *([] if redacted is None else [redacted])]


def _check_shape(message: Block) -> None:
    if not isinstance(message, dict) or message.get("role") not in {"assistant", "user"}:
        raise BadMessage("role: must be user or assistant")
    content = message.get("content")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise BadMessage("content: expected a list of blocks")


def _change_json(original: Block, change: Callable[[Any], Any]) -> None:
    """Change the JSON values among the results of tools, in place."""
    blocks = [block for message in _messages_of(original) for block in message["content"]]
    for piece in (piece for block in blocks for piece in _result_pieces(block)):
        if isinstance(piece, dict) and "json" in piece:
            piece["json"] = change(piece["json"])


def _result_pieces(block: Block) -> Sequence[Any]:
    """Return what a result of a tool consists of; nothing for other blocks."""
    match block:
        case {"toolResult": {"content": [*pieces]}}:
            return pieces
    return ()


def _encoded_json(value: JSON) -> Block:
    """Return a JSON value as the text that the part of it has, so that it is stored once."""
    try:
        return {"__json_encoded__": True, "data": json.dumps(value, ensure_ascii=False)}
    except (TypeError, ValueError) as error:
        raise BadMessage(f"toolResult: {error}") from error


def _parts_of(block: Block) -> Iterator[Part]:
    """Return the parts of a block; what no part can hold is in the original alone."""
    match block:
        case {"text": str(text)} | {"guardContent": {"text": {"text": str(text)}}}:
            yield Text(text)
        case {"json": {"__json_encoded__": True, "data": str(text)}}:
            yield Text(text)
        case {"citationsContent": {"content": list(pieces)}}:
            yield from (part for piece in pieces for part in _parts_of(piece))
        case {"reasoningContent": {"reasoningText": dict(given)}}:
            yield Thinking(given.get("text") or "", given.get("signature"))
        case {"toolUse": {"toolUseId": str(id), "name": str(name), "input": arguments}}:
            yield ToolCall(id, name, arguments)
        case {"toolResult": {"toolUseId": str(id)} as given}:
            pieces = [part for piece in _result_pieces(block) for part in _parts_of(piece)]
            inside = tuple(part for part in pieces if isinstance(part, Text | File))
            error = given.get("status") == "error"
            yield ToolResult(id, inside or "", error=error)
        case (
            {"audio": dict(given)}
            | {"document": dict(given)}
            | {"image": dict(given)}
            | {"video": dict(given)}
        ):
            yield from _files_of(next(iter(block)), given)


def _files_of(kind: str, given: Block) -> Iterator[File]:
    """Return the file of a block with data; one that is elsewhere is in the original alone."""
    match given:
        case {"format": str(format), "source": {"bytes": {"data": str(data)}}}:
            mime = _MIMES.get(format, f"{kind}/{format}")
            yield File(name=given.get("name"), mime=mime, data=b64decode(data))


def _time_of(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _usage_of(metadata: JSON) -> Usage | None:
    """Return the usage; the input of some models lacks what was read from a cache."""
    given = metadata.get("usage") if isinstance(metadata, dict) else None
    if not given:
        return None
    output = token_count(given, "outputTokens")
    return Usage(
        input=max(token_count(given, "inputTokens"), token_count(given, "totalTokens") - output),
        output=output,
        cache_read=token_count(given, "cacheReadInputTokens"),
        cache_write=token_count(given, "cacheWriteInputTokens"),
    )


# ------------------------------------------------------------------------------ from us to Strands


def from_messages(messages: Sequence[Message], *, blob: Blobs) -> list[SessionMessage]:
    """Return messages as Strands has them, without those of which it could send nothing.

    Results of one reply's calls that Strands did not write become one message, as it has them.
    """
    listed: list[SessionMessage] = []
    after_result = False
    for message in messages:
        original = _original_of(message, blob)
        found = _made(message, blob) if original is None else _given(message, original)
        if found is None:
            continue
        is_result = original is None and message.role == "tool"
        if is_result and after_result:
            found.message["content"][:0] = listed.pop().message["content"]
        listed.append(found)
        after_result = is_result
    return listed


def _original_of(message: Message, blob: Blobs) -> Block | None:
    try:
        return kept(message, _SOURCE, blob=blob)
    except BadMessage:  # Another program changed its parts: they say what holds.
        return None


def _given(message: Message, original: Block) -> SessionMessage:
    _change_json(original, lambda value: json.loads(value["data"]))
    return SessionMessage.from_dict({**original, "message_id": (message.seq or 0) - 1})


def _made(message: Message, blob: Blobs) -> SessionMessage | None:
    """Return a message that Strands did not write; None if there is nothing to send of it."""
    if message.role == "summary" or message.created_at is None or not is_for_models(message):
        return None
    encoded: Block = kept(message, "anthropic", blob=blob) or {}
    content = [made for block in _pieces(encoded) for made in _block_of(block)]
    if not content:
        return None
    role = "assistant" if message.role == "assistant" else "user"
    item: StrandsMessage = {"role": role, "content": content}
    if _HAS_TRACKING_ID:
        item["tracking_id"] = message.id
    at = message.created_at.isoformat()
    return SessionMessage(item, (message.seq or 0) - 1, created_at=at, updated_at=at)


def _pieces(encoded: Block) -> list[Block]:
    content = encoded.get("content") or []
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _block_of(block: Block) -> Iterator[Block]:
    """Return a block of Anthropic's format, in which our parts have a counterpart, as Strands'."""
    match block:
        case {"type": "text", "text": text}:
            yield {"text": text}
        case {"type": "thinking", "thinking": text, "signature": signature}:
            yield {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}
        case {"type": "tool_use", "id": id, "name": name, "input": arguments}:
            yield {"toolUse": {"toolUseId": id, "name": name, "input": arguments}}
        case {"type": "tool_result", "tool_use_id": id}:
            content = [made for piece in _pieces(block) for made in _block_of(piece)]
            status = "error" if block.get("is_error") else "success"
            yield {"toolResult": {"toolUseId": id, "status": status, "content": content}}
        case {"type": "image", "source": {"media_type": mime, "data": data}}:
            format = mime.partition("/")[2]
            yield {"image": {"format": format, "source": {"bytes": b64decode(data)}}}
        case {"type": "document", "source": {"type": type, "data": data}}:
            name = _NOT_IN_NAMES.sub("-", block.get("title") or "").strip("-") or "document"
            format, found = ("txt", data.encode()) if type == "text" else ("pdf", b64decode(data))
            yield {"document": {"name": name, "format": format, "source": {"bytes": found}}}
