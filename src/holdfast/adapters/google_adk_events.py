"""Google ADK's events as messages or records, and back.

An event that says something is a message, with its dict kept beside the parts; any other is a
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast import Message, Record, errors
from holdfast.adapters.shared_session import is_for_models
from holdfast.formats import gemini, keep, kept, with_data

try:
    from google.adk.errors.input_validation_error import InputValidationError
    from google.adk.events import Event
    from google.adk.sessions import State
    from pydantic_core import to_jsonable_python
except ImportError as error:
    raise ImportError(
        f"google-adk is not installed: {errors.install_command('google-adk')}", name=error.name
    ) from error

EVENT: Final = "google_adk.event"
_SOURCE: Final = "google_adk"
_ROLES: Final = frozenset({"user", "model", "function"})


def to_entry(event: Event) -> Message | Record:
    """Return an event as a message; as a record, if there is nothing in it to say."""
    data = _to_dict(event)
    if not (event.content and event.content.parts):
        return Record(EVENT, key=event.id, id=f"event {event.id}", data=data)
    message = gemini.decode({**data["content"], "role": _role(event)})
    usage = data.get("usageMetadata")
    message = msgspec.structs.replace(
        message,
        id=event.id,
        name=event.author if event.author and message.role == "assistant" else None,
        model=event.model_version,
        usage=gemini.decode({"usageMetadata": usage}).usage if usage else None,
        created_at=_moment(event),
    )
    return keep(message, _SOURCE, data)


def _moment(event: Event) -> datetime:
    try:
        return datetime.fromtimestamp(event.timestamp, UTC)
    except (OSError, OverflowError, ValueError) as error:
        raise InputValidationError(f"the timestamp of event {event.id}: {error}") from error


def _to_dict(event: Event) -> dict[str, Any]:
    """Return an event as JSON, without the state that is not to be stored."""
    data = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    changed = data["actions"].get("stateDelta", {})
    data["actions"]["stateDelta"] = {
        name: value for name, value in changed.items() if not name.startswith(State.TEMP_PREFIX)
    }
    found: dict[str, Any] = to_jsonable_python(data, inf_nan_mode="null")
    return found


def _role(event: Event) -> str:
    """Return the role of a content; one that is not Gemini's follows from the author."""
    role = event.content.role
    if role in _ROLES:
        return str(role)
    return "user" if event.author == "user" or event.get_function_responses() else "model"


def to_event(
    entry: Message | Record, names: Mapping[str, str], blobs: Mapping[str, bytes], author: str
) -> Event | None:
    """Return the event that was stored, or one made of what another program stored.

    None if that has nothing for ADK: it is hidden from models, erased, damaged, or only thinking.
    """
    if isinstance(entry, Record):
        return Event.model_validate(entry.data)
    with suppress(errors.BadMessage):  # Its parts were changed: they count, not the original.
        original = kept(entry, _SOURCE, blob=blobs.__getitem__)
        if original is not None:
            return Event.model_validate(original)
    content = gemini.encode(with_data(entry, blobs.__getitem__), names=names)
    if not content["parts"] or not is_for_models(entry):
        return None
    data: dict[str, Any] = {
        "content": content,
        "id": entry.id,
        "invocationId": entry.turn_id or entry.id,
        "author": (entry.name or author) if entry.role in {"assistant", "tool"} else "user",
    }
    if entry.created_at is not None:
        data["timestamp"] = entry.created_at.timestamp()
    return Event.model_validate(data)
