"""PraisonAI's messages as Holdfast's, and back.

Its messages are those of chat completions with a timestamp and metadata. The dict of each is kept
beside the parts; a message of another program is built from its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from praisonaiagents.session.store import SessionData, SessionMessage

from holdfast import Message
from holdfast.formats import keep, kept, openai, with_data

SOURCE: Final = "praisonai"
PARTIAL: Final = "partial"
Item: TypeAlias = dict[str, Any]
BlobReader: TypeAlias = Callable[[str], bytes]


class ChatAgent(Protocol):
    """What is used of an agent: the history it is given and adds to, and its reply."""

    chat_history: list[Item]

    @property
    def chat(self) -> Callable[..., Any]:
        """Return the function that asks it."""


_CHAT: Final = ("role", "content", "tool_calls", "tool_call_id")


def to_message(item: Mapping[str, Any], *, id: str) -> Message:
    """Return a dict of a history as a message that keeps it; `BadMessage` if it is not one."""
    message = openai.decode({name: item[name] for name in _CHAT if item.get(name) is not None})
    metadata, time = item.get("metadata"), item.get("timestamp")
    message = msgspec.structs.replace(
        message,
        id=id,
        metadata=dict(metadata) if isinstance(metadata, Mapping) else {},
        created_at=_moment(time),
    )
    return keep(message, SOURCE, item)


def _moment(time: object) -> datetime | None:
    """Return a time in seconds; None if it is no time, or not one of ours."""
    with suppress(OSError, OverflowError, ValueError):
        return datetime.fromtimestamp(time, UTC) if isinstance(time, int | float) else None
    return None


def to_session_messages(message: Message, blob: BlobReader) -> list[SessionMessage]:
    """Return a message as PraisonAI has it: as several if it holds several results of tools."""
    if message.role == "summary" or message.status == "erased":
        return []
    original = kept(message, SOURCE, blob=blob)
    items = _built(message, blob) if original is None else [original]
    found = []
    for item in items:
        if not isinstance(item.get("timestamp"), int | float) and message.created_at is not None:
            item["timestamp"] = message.created_at.timestamp()
        one = SessionMessage.from_dict(item)
        if message.status == "partial":
            one.metadata = {**one.metadata, PARTIAL: True}
        found.append(one)
    return found


def to_history(
    messages: Iterable[Message], blob: BlobReader, limit: int | None = None
) -> list[Item]:
    """Return messages as a model is sent them: the newest, from a whole exchange with tools on."""
    found = [one for message in messages for one in to_session_messages(message, blob)]
    return SessionData(session_id="", messages=found).get_chat_history(limit)


def _built(message: Message, blob: BlobReader) -> list[Item]:
    return [
        {**item, "content": item.get("content") or "", "metadata": message.metadata}
        for item in openai.encode_all(with_data(message, blob))
    ]
