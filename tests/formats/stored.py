"""The round trip of a message through the store: written, read, with the data of its files."""

from datetime import UTC, datetime

import msgspec

from holdfast import codec
from holdfast.values import File, Message, Part, ToolResult


def stored(message: Message) -> Message:
    """Return what the store gives back, with the data of its files."""
    item = codec.encode(message, datetime(2026, 1, 1, tzinfo=UTC))
    blobs = dict(item.blobs)
    read = codec.decode(item.body, id=item.id, seq=1, turn_id=None, blob=blobs.get)
    parts = tuple(_filled(part, blobs) for part in read.parts)
    return msgspec.structs.replace(read, parts=parts, seq=None, created_at=None)


def _filled(part: Part, blobs: dict[str, bytes]) -> Part:
    if isinstance(part, File):
        return _filled_file(part, blobs)
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        inside = tuple(
            _filled_file(inner, blobs) if isinstance(inner, File) else inner
            for inner in part.content
        )
        return ToolResult(part.call_id, inside, error=part.error, name=part.name)
    return part


def _filled_file(file: File, blobs: dict[str, bytes]) -> File:
    data = None if file.sha256 is None else blobs[file.sha256]
    return File(file.name, file.mime, data, file.sha256, file.size)
