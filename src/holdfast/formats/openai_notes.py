"""What both shapes of OpenAI have in common: notes beside parts, and sound.

A provider's message holds more than our parts do. What is left over is kept in `Raw` parts, each of
which has one of these keys:

    content   a piece of content that has no part of ours, as it was
    call      a tool call that cannot be read (chat), as it was
    item      an item that has no part of ours (responses), as it was
    part      fields of the part directly before it; `of` names the kind of piece they belong to
    fields    fields of the message itself; `of` names its role

A note never repeats what a part says. It is laid over what the part alone would give, adds keys to
it, and replaces none but the few in `_CHANGEABLE`: so a part may be shortened or given another id,
and its note still fits. A note that stands beside a part of another kind is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from holdfast.formats.shared import copied, from_base64, mime_of, to_base64
from holdfast.records import JSON, File, Part, Raw, Text, Thinking

JSONObject: TypeAlias = dict[str, JSON]
Noted: TypeAlias = tuple[Part, JSONObject]
Piece: TypeAlias = Text | File | Raw

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
AUDIO_FORMATS: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}
AUDIO_MIMES: Final = {form: mime for mime, form in AUDIO_FORMATS.items()}

_CHANGEABLE: Final = frozenset({"annotations", "detail"})
_REMOVABLE: Final = frozenset({"annotations", "detail", "filename"})


# ----------------------------------------------------------------------------------------- notes


def noted(parts: Iterable[Part], source: str) -> list[Noted]:
    """Return each part with the note that stands directly behind it; leave out what is foreign."""
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


def note(source: str, given: Mapping[str, JSON], ours: JSONObject, of: str) -> Raw | None:
    """Note what a piece of content has beyond what its part gives; None when that is nothing."""
    return _note(source, "part", beyond(given, ours), of)


def forced_note(source: str, given: Mapping[str, JSON], ours: JSONObject, of: str) -> Raw:
    """Note what a piece has beyond `ours`, and, even if it is nothing, of which kind it was."""
    return Raw(source, {"part": {}, "of": of, **_renamed(beyond(given, ours), "part")})


def message_note(source: str, extra: JSONObject, of: str) -> Raw | None:
    """Note what a message has beyond what its parts give; None when that is nothing."""
    return _note(source, "fields", extra, of)


def _note(source: str, key: str, extra: JSONObject, of: str) -> Raw | None:
    return Raw(source, {key: {}, "of": of, **_renamed(extra, key)}) if extra else None


def _renamed(extra: JSONObject, key: str) -> JSONObject:
    return {(key if name == "fields" else name): value for name, value in extra.items()}


def beyond(given: Mapping[str, JSON], ours: Mapping[str, JSON]) -> JSONObject:
    """Return what must be laid over `ours` to get what was given: fields to add, keys to remove."""
    found: JSONObject = {}
    if added := _added(given, ours):
        found["fields"] = added
    if missing := _missing(given, ours, ""):
        found["without"] = missing
    return found


def _added(given: Mapping[str, JSON], ours: Mapping[str, JSON]) -> JSONObject:
    added: JSONObject = {}
    for key, value in given.items():
        mine = ours.get(key)
        if key not in ours:
            added[key] = copied(value)
        elif isinstance(value, dict) and isinstance(mine, dict):
            if inner := _added(value, mine):
                added[key] = inner
        elif value != mine and key in _CHANGEABLE:
            added[key] = copied(value)
    return added


def _missing(given: Mapping[str, JSON], ours: Mapping[str, JSON], path: str) -> list[JSON]:
    missing: list[JSON] = []
    for key, mine in ours.items():
        value = given.get(key)
        if key not in given and key in _REMOVABLE:
            missing.append(path + key)
        elif isinstance(mine, dict) and isinstance(value, dict):
            missing.extend(_missing(value, mine, f"{path}{key}."))
    return missing


def laid_over(ours: JSONObject, noted: JSONObject, key: str = "part") -> JSONObject:
    """Lay a note's fields over what we would write, and take out what it says was not there."""
    fields = noted.get(key)
    whole = _laid(ours, fields) if isinstance(fields, dict) else ours
    without = noted.get("without")
    for path in without if isinstance(without, list) else ():
        if isinstance(path, str):
            _remove(whole, path)
    return whole


def _laid(ours: JSONObject, fields: JSONObject) -> JSONObject:
    whole = dict(ours)
    for key, value in fields.items():
        mine = whole.get(key)
        if key not in whole or (key in _CHANGEABLE and isinstance(value, type(mine) | None)):
            whole[key] = copied(value)
        elif isinstance(mine, dict) and isinstance(value, dict):
            whole[key] = _laid(mine, value)
    return whole


def _remove(whole: JSONObject, path: str) -> None:
    *way, last = path.split(".")
    inner: JSON = whole
    for key in way:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if isinstance(inner, dict) and last in _REMOVABLE:
        inner.pop(last, None)


def raw_object(part: Raw, key: str) -> JSONObject | None:
    """Return the object that a Raw part keeps under this key."""
    value = part.data.get(key) if isinstance(part.data, dict) else None
    return value if isinstance(value, dict) else None


# ----------------------------------------------------------------------------------------- audio


def from_audio(piece: Mapping[str, JSON]) -> File | None:
    """Read a piece of audio that was put in."""
    audio = piece.get("input_audio")
    if not isinstance(audio, dict) or not isinstance(audio.get("format"), str):
        return None
    mime, data = AUDIO_MIMES.get(str(audio["format"])), from_base64(audio.get("data"))
    return None if mime is None or data is None else File(mime=mime, data=data)


def to_audio(file: File) -> JSONObject:
    """Write audio; both shapes have the same piece for it."""
    sound: JSONObject = {"data": to_base64(file), "format": AUDIO_FORMATS.get(mime_of(file), "wav")}
    return {"type": "input_audio", "input_audio": sound}
