"""Entries of Claude Code's transcripts as messages and records, and back.

An entry of a user, a tool or the model is a message, its `uuid` the message's id; any other entry
is a record, with its type as the key. The entry is kept beside the message, and comes back as it
was. A message that another program wrote becomes an entry made of its parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from holdfast import Message, Record, Usage
from holdfast.adapters.shared_session import is_for_models
from holdfast.errors import BadMessage
from holdfast.formats import anthropic, keep, kept
from holdfast.values import is_original

NAME: Final = "claude_agent_sdk"
Entry: TypeAlias = dict[str, Any]
Blobs: TypeAlias = Mapping[str, bytes]

_MAX_NAME_BYTES: Final = 4096
_MAX_TITLE_CHARS: Final = 500


def is_name(value: object) -> bool:
    """True if a value can be an id, a key or a directory of a session."""
    return (
        isinstance(value, str)
        and 0 < len(value.encode("utf-8", "surrogatepass")) <= _MAX_NAME_BYTES
    )


def by_id(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return entries by the ids they are stored under: the `uuid` of those that have one.

    In a batch with such entries the ids of others follow from the first one and from what they say,
    so that a batch that is sent again is stored once.
    """
    given = [_uuid_of(entry) for entry in entries]
    first = next(filter(None, given), None)
    found: dict[str, Entry] = {}
    for id, entry in zip(given, entries, strict=True):
        found.setdefault(id or _new_id(first, entry, found), entry)
    return found


def _uuid_of(entry: object) -> str | None:
    id = entry.get("uuid") if isinstance(entry, dict) else None
    return id if is_name(id) else None


def _new_id(first: str | None, entry: object, taken: Mapping[str, Entry]) -> str:
    if first is None:
        return Record(NAME).id
    text = json.dumps([first, entry], sort_keys=True, default=repr)
    digest = hashlib.sha256(text.encode()).hexdigest()
    numbered = (f"{digest}/{number}" for number in range(len(taken) + 1))
    return next(id for id in numbered if id not in taken)


def to_stored(id: str, entry: Entry, *, delegate: bool) -> Message | Record:
    """Return an entry as a message, or as a record if it is not a message of Anthropic's."""
    message = _to_message(entry)
    if message is None:
        kind = entry.get("type") if isinstance(entry, dict) else None
        return Record(NAME, key=kind if is_name(kind) else None, data=entry, id=id)
    # What a sub-agent said in between is not sent to the model of the session.
    hidden = entry.get("isSidechain") is True and not delegate
    time = _time_of(entry.get("timestamp"))
    metadata = {"hidden": True} if hidden else {}
    message = msgspec.structs.replace(message, id=id, created_at=time, metadata=metadata)
    return keep(message, NAME, entry)


def _to_message(entry: Entry) -> Message | None:
    if not isinstance(entry, dict) or entry.get("type") not in {"assistant", "user"}:
        return None
    given = entry.get("message")
    if not isinstance(given, dict) or given.get("role") != entry["type"]:
        return None
    try:
        return anthropic.decode(given)
    except BadMessage:
        return None


def _time_of(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def titles_in(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the newest titles that a user or the model gave the session."""
    titles: dict[str, str] = {}
    for entry in entries:
        for field, name in (("customTitle", "title"), ("aiTitle", "auto_title")):
            given = entry.get(field) if isinstance(entry, dict) else None
            if isinstance(given, str) and (title := " ".join(given.split())):
                titles[name] = title[:_MAX_TITLE_CHARS]
    return titles


# ------------------------------------------------------------------------- messages to entries


def to_entries(items: Iterable[Message | Record], blobs: Blobs, about: Entry) -> Iterator[Entry]:
    """Iterate over the entries of a transcript; those made of messages also say `about`."""
    parent = None
    for item in items:
        if isinstance(item, Record):
            entry: Any = item.data
        else:
            entry = _original(item, blobs) or _made_entry(
                item, blobs, {**about, "parentUuid": parent}
            )
        if isinstance(entry, dict) and bool(entry.get("isSidechain")) == about["isSidechain"]:
            parent = entry.get("uuid") or parent
        if entry is not None or isinstance(item, Record):
            yield entry


def _original(message: Message, blobs: Blobs) -> Entry | None:
    try:
        return kept(message, NAME, blob=blobs.__getitem__)
    except BadMessage:
        return None  # It was changed since: an entry is made of its parts.


def _made_entry(message: Message, blobs: Blobs, about: Entry) -> Entry | None:
    """Return an entry made of a message's parts; None if it has nothing for the model."""
    parts = [part for part in message.parts if not is_original(part)]
    encoded: Any = kept(message.with_parts(parts), "anthropic", blob=blobs.__getitem__)
    if message.status in {"damaged", "erased"}:  # Later entries refer to it.
        encoded["content"] = [{"type": "text", "text": f"[{message.status}]"}]
    elif not encoded["content"] or not is_for_models(message):
        return None
    said = encoded if encoded["role"] == "assistant" else {**encoded, "role": "user"}
    if message.role == "assistant":
        said |= _reply_fields(message)
    time = message.created_at
    return {
        "type": said["role"],
        "uuid": message.id,
        "timestamp": None if time is None else f"{time:%Y-%m-%dT%H:%M:%S}.{time:%f}"[:23] + "Z",
        "userType": "external",
        **about,
        "message": said,
    }


def _reply_fields(message: Message) -> Entry:
    usage = message.usage or Usage()
    return {
        "id": message.id,
        "type": "message",
        "model": message.model or "unknown",
        "stop_reason": "tool_use" if message.tool_calls else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": max(usage.input - usage.cache_read - usage.cache_write, 0),
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": usage.output,
        },
    }
