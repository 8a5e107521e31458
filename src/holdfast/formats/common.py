"""Helpers for all provider formats: files in base64, arguments as JSON text, notes, replies.

A value is parsed only if writing it gives the same text again. Text that would not survive (a data
URL with parameters, JSON with spaces) is kept unchanged, so that storing a message alters nothing.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn, TypeAlias

import msgspec

from holdfast.errors import BadMessage
from holdfast.validation import MAX_TOKEN_COUNT, check_json_object
from holdfast.values import JSON, File, Message, Part, Raw, Text, ToolResult, Usage

JSONObject: TypeAlias = dict[str, JSON]

ERROR_MARK: Final = "[error]"

_MIMES: Final = {
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "mp3": "audio/mpeg",
    "pdf": "application/pdf",
    "png": "image/png",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webp": "image/webp",
}
_ALIASES: Final = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)
# Results that already read as errors; those in brackets are Holdfast's own texts.
_ERROR_TEXT: Final = re.compile(
    r"\s*(?:error\b|\[(?:error|failed|interrupted|not run|no result)\b)", re.IGNORECASE
)
# The store's limits for JSON, less the levels around arguments; those beyond them stay text.
MAX_ARGUMENTS_DEPTH: Final = 190
_MAX_DIGITS: Final = 2400
# Ids that some servers count or draw from a small range are shorter than a provider's random ones.
_MIN_ID_CHARS: Final = 20
_MAX_ID_CHARS: Final = 1_000


def copied(value: JSON) -> JSON:
    """Return a deep copy of JSON, so that changing a payload never changes a message."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    return value


def json_object(item: object, noun: str) -> JSONObject:
    """Return a copy of a provider's dict; `BadMessage` if it is not one, or is not JSON."""
    if not isinstance(item, Mapping):
        hint = "; pass its model_dump()" if hasattr(item, "model_dump") else ""
        raise BadMessage(f"expected {noun}, got {type(item).__name__}{hint}")
    return {key: copied(value) for key, value in check_json_object(dict(item), noun).items()}


# --------------------------------------------------------------------------------------- replies


def with_reply_fields(
    message: Message, *, id: JSON = None, model: JSON = None, usage: Usage | None = None
) -> Message:
    """Return a message with what its provider says of it; an id only if it is surely unique."""
    has_id = isinstance(id, str) and _MIN_ID_CHARS <= len(id) <= _MAX_ID_CHARS
    return msgspec.structs.replace(
        message,
        id=id if has_id else message.id,
        model=model if isinstance(model, str) else None,
        usage=usage,
    )


def token_count(given: JSON, key: str) -> int:
    """Return a number of tokens that a provider reports; 0 if it is not plausible."""
    value = given.get(key) if isinstance(given, dict) else None
    return value if type(value) is int and 0 < value <= MAX_TOKEN_COUNT // 4 else 0


# ----------------------------------------------------------------------------------------- files


def to_base64(file: File) -> str:
    """Return a file's data in base64."""
    return b64encode(file.data or b"").decode("ascii")


def to_data_url(file: File) -> str:
    """Return a file as a data URL."""
    return f"data:{(file.mime or mime_of(file)).lower()};base64,{to_base64(file)}"


def from_base64(text: JSON) -> bytes | None:
    """Decode base64; None if encoding the bytes again would give a different text."""
    if not isinstance(text, str):
        return None
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    return data if b64encode(data).decode("ascii") == text else None


def from_data_url(url: JSON, name: str | None = None) -> File | None:
    """Parse a data URL; None if it is not one, or if writing it again would change it."""
    head = _DATA_URL.match(url) if isinstance(url, str) else None
    if head is None or not isinstance(url, str) or head[1] != head[1].lower():
        return None
    data = from_base64(url[head.end() :])
    return None if data is None else File(name=name, mime=head[1], data=data)


def mime_of(file: File) -> str:
    """Return a file's MIME type: its own, or one guessed from its name."""
    if file.mime is not None:
        mime = file.mime.lower()
        return _ALIASES.get(mime, mime)
    ending = (file.name or "").lower().rpartition(".")[2]
    return _MIMES.get(ending, "application/octet-stream")


def name_of(file: File) -> str:
    """Return a file's name, or a generic one that fits its MIME type."""
    if file.name is not None:
        return file.name
    kind = mime_of(file)
    return next((f"file.{ending}" for ending, mime in _MIMES.items() if mime == kind), "file")


def breadcrumb(file: File) -> str:
    """Return the text that stands for a file where the file itself cannot be sent."""
    what = "image" if mime_of(file).startswith("image/") else "file"
    name = " ".join((file.name or "").split())
    return f"[{what}: {name}]" if name else f"[{what}]"


# ------------------------------------------------------------------------------------- arguments


def read_arguments(text: str) -> JSON:
    """Return a call's arguments: an object if writing it gives the same text, else the text."""
    try:
        value: JSON = json.loads(text, parse_constant=_refuse, parse_int=_short_int)
        same = isinstance(value, dict) and write_arguments(value) == text
    except (ValueError, RecursionError):
        return text
    return value if same and not is_deeper(value, MAX_ARGUMENTS_DEPTH) else text


def write_arguments(value: JSON) -> str:
    """Return a call's arguments as JSON text."""
    if isinstance(value, str):
        return value
    return json.dumps({} if value is None else value, ensure_ascii=False, separators=(",", ":"))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _short_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("too long a number")
    return int(digits)


def is_deeper(value: object, depth: int) -> bool:
    """True if a JSON value is nested more than `depth` deep."""
    if isinstance(value, dict):
        return depth == 0 or any(is_deeper(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth == 0 or any(is_deeper(inner, depth - 1) for inner in value)
    return False


# ------------------------------------------------------------------------------ provider-only parts


def filter_parts(parts: Iterable[Part], stays: Callable[[Part], bool]) -> tuple[Part, ...]:
    """Return the parts for which `stays` is true; a part's note goes with it."""
    kept: list[Part] = []
    omitted = False
    for part in parts:
        if has_raw_key(part, "part"):
            if not omitted:
                kept.append(part)
            continue
        omitted = not stays(part)
        if not omitted:
            kept.append(part)
    return tuple(kept)


def has_raw_key(part: Part, of: str) -> bool:
    """True if this is a provider's `Raw` part with this key: `part` or `fields` for a note."""
    return isinstance(part, Raw) and isinstance(part.data, dict) and of in part.data


def raw_object(part: Raw, key: str) -> JSONObject | None:
    """Return the object that a `Raw` part keeps under this key; None if there is none."""
    value = part.data.get(key) if isinstance(part.data, dict) else None
    return value if isinstance(value, dict) else None


# ----------------------------------------------------------------------------------- error results


def with_error_mark(result: ToolResult) -> ToolResult:
    """Prefix a result's text with the error mark, unless it already reads as an error."""
    if _ERROR_TEXT.match(result.text):
        return result
    if isinstance(result.content, str):
        return msgspec.structs.replace(result, content=f"{ERROR_MARK} {result.content}")
    pieces = list(result.content)
    for at, piece in enumerate(pieces):
        if isinstance(piece, Text):
            pieces[at] = Text(f"{ERROR_MARK} {piece.text}")
            return msgspec.structs.replace(result, content=tuple(pieces))
    return msgspec.structs.replace(result, content=(Text(ERROR_MARK), *pieces))
