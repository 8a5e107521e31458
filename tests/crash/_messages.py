"""Messages whose content is a function of their id, so that any can be recreated for a retry."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from hashlib import sha256

from holdfast import File, Message, Text, ToolCall, ToolResult, Usage
from holdfast.codec import BLOB_THRESHOLD
from holdfast.proof.checker import digest


@lru_cache
def message(id: str) -> Message:
    """Return the message with this id; the part before the dash is its kind."""
    kind, _, rest = id.partition("-")
    if kind == "call":
        return Message.assistant("a moment", tool_calls=[ToolCall(rest, "look", {"at": id})], id=id)
    if kind == "result":
        return Message.tool(rest, f"found {id}", id=id)
    if kind == "reply":
        return Message.assistant(
            f"{id} it is", id=id, usage=Usage(input=30, output=7), cost=Decimal("0.5")
        )
    if kind == "file":
        return Message.user(["see", File(name="small.txt", data=id.encode() * 900)], id=id)
    if kind == "huge":
        return Message.user(["see", File(name="huge.txt", data=id.encode() * 200_000)], id=id)
    if kind == "big":
        text = f"{id} " * (BLOB_THRESHOLD // len(id))
        return Message.user([text, File(name="big.txt", data=text[:5_000].encode())], id=id)
    return Message.user(f"{id} says hello", id=id)


def looks(given: Message) -> str:
    """Return a message's content as a short text; equal texts mean equal contents."""
    seen = []
    for part in given.parts:
        if isinstance(part, Text):
            seen.append(f"text {digest(part.text)}")
        elif isinstance(part, File):
            seen.append(f"file {part.name} {part.sha256 or _sha256(part)}")
        elif isinstance(part, ToolCall | ToolResult):
            seen.append(repr(part))
        else:
            seen.append(f"unexpected {type(part).__name__}")
    return f"{given.role} {given.status}: {', '.join(seen)}"


def _sha256(file: File) -> str:
    return sha256(file.data or b"").hexdigest()
