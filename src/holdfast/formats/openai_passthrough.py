"""Passthrough fields of both OpenAI formats (chat completions and responses), and audio.

A provider's message carries more than Holdfast's parts do. The remainder is kept in `Raw` parts,
each of which has one of these keys:

    content   a piece of content that no part can represent, verbatim
    call      a tool call that cannot be parsed (chat completions), verbatim
    item      an item that no part can represent (responses), verbatim
    part      a note: extra fields of the part directly before it; `of` is the kind of piece
    fields    a note: extra fields of the message; `of` is its role

A note never repeats what its part holds. It is merged over the encoded part, adds keys, and
replaces only the few in `_CHANGEABLE`: a part may be shortened or get another id, and its note
still applies. A note after a part of another kind is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from holdfast.formats.common import JSONObject, copied, from_base64, mime_of, to_base64
from holdfast.values import JSON, File, Part, Raw, Text, Thinking

Noted: TypeAlias = tuple[Part, JSONObject]
Piece: TypeAlias = Text | File | Raw

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
AUDIO_FORMATS: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}
AUDIO_MIMES: Final = {form: mime for mime, form in AUDIO_FORMATS.items()}

_CHANGEABLE: Final = frozenset({"annotations", "detail"})
_REMOVABLE: Final = frozenset({"annotations", "detail", "filename"})


# ----------------------------------------------------------------------------------------- notes


def with_notes(parts: Iterable[Part], source: str) -> list[Noted]:
    """Return each part with the note directly after it; omit thinking and foreign pieces."""
    found: list[Noted] = []
    for part in parts:
        if isinstance(part, Thinking) or (isinstance(part, Raw) and part.source != source):
            continue
        if isinstance(part, Raw) and isinstance(part.data, dict) and "part" in part.data:
            if found and not found[-1][1]:
                found[-1] = (found[-1][0], part.data)
        else:
            found.append((part, {}))
    return found


def part_note(source: str, given: Mapping[str, JSON], ours: JSONObject, of: str) -> Raw | None:
    """Return a note with a piece's fields beyond those of its part; None if there are none."""
    return _note(source, "part", diff_fields(given, ours), of)


def kind_note(source: str, given: Mapping[str, JSON], ours: JSONObject, of: str) -> Raw:
    """Return a note with a piece's fields beyond `ours`; even without any, it records the kind."""
    return Raw(source, {"part": {}, "of": of, **_renamed(diff_fields(given, ours), "part")})


def message_note(source: str, extra: JSONObject, of: str) -> Raw | None:
    """Return a note with a message's fields beyond those of its parts; None if there are none."""
    return _note(source, "fields", extra, of)


def _note(source: str, key: str, extra: JSONObject, of: str) -> Raw | None:
    return Raw(source, {key: {}, "of": of, **_renamed(extra, key)}) if extra else None


def _renamed(extra: JSONObject, key: str) -> JSONObject:
    return {(key if name == "fields" else name): value for name, value in extra.items()}


def diff_fields(given: Mapping[str, JSON], ours: Mapping[str, JSON]) -> JSONObject:
    """Return the difference from `ours` to `given`: fields to add, keys to remove."""
    found: JSONObject = {}
    if added := _added(given, ours):
        found["fields"] = added
    if missing := _missing(given, ours, ""):
        found["without"] = missing
    return found


def _added(given: Mapping[str, JSON], ours: Mapping[str, JSON]) -> JSONObject:
    added: JSONObject = {}
    for key, value in given.items():
        current = ours.get(key)
        if key not in ours:
            added[key] = copied(value)
        elif isinstance(value, dict) and isinstance(current, dict):
            if inner := _added(value, current):
                added[key] = inner
        elif value != current and key in _CHANGEABLE:
            added[key] = copied(value)
    return added


def _missing(given: Mapping[str, JSON], ours: Mapping[str, JSON], path: str) -> list[JSON]:
    missing: list[JSON] = []
    for key, current in ours.items():
        value = given.get(key)
        if key not in given and key in _REMOVABLE:
            missing.append(path + key)
        elif isinstance(current, dict) and isinstance(value, dict):
            missing.extend(_missing(value, current, f"{path}{key}."))
    return missing


def merge_note(ours: JSONObject, data: JSONObject, key: str = "part") -> JSONObject:
    """Merge a note's fields over an encoded part, and remove the keys the note marks as absent."""
    fields = data.get(key)
    merged = _laid(ours, fields) if isinstance(fields, dict) else ours
    without = data.get("without")
    for path in without if isinstance(without, list) else ():
        if isinstance(path, str):
            _remove(merged, path)
    return merged


def _laid(ours: JSONObject, fields: JSONObject) -> JSONObject:
    merged = dict(ours)
    for key, value in fields.items():
        current = merged.get(key)
        if key not in merged or (key in _CHANGEABLE and isinstance(value, type(current) | None)):
            merged[key] = copied(value)
        elif isinstance(current, dict) and isinstance(value, dict):
            merged[key] = _laid(current, value)
    return merged


def _remove(target: JSONObject, path: str) -> None:
    *parents, last = path.split(".")
    inner: JSON = target
    for key in parents:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and last in _REMOVABLE:
        inner.pop(last, None)


# ----------------------------------------------------------------------------------------- audio


def from_audio(piece: Mapping[str, JSON]) -> File | None:
    """Decode a piece of input audio; None if its format or data cannot be read."""
    audio = piece.get("input_audio")
    if not isinstance(audio, dict) or not isinstance(audio.get("format"), str):
        return None
    mime, data = AUDIO_MIMES.get(str(audio["format"])), from_base64(audio.get("data"))
    return None if mime is None or data is None else File(mime=mime, data=data)


def to_audio(file: File) -> JSONObject:
    """Encode audio; both formats use the same piece for it."""
    sound: JSONObject = {"data": to_base64(file), "format": AUDIO_FORMATS.get(mime_of(file), "wav")}
    return {"type": "input_audio", "input_audio": sound}
