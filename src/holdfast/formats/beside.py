"""What Anthropic's and Gemini's shapes have in common: what stands beside our parts.

A provider's message holds more than our parts do. What is left over is kept in `Raw` parts of that
provider, and each of them has one of these keys:

    content   a piece that has no part of ours, as it was
    part      fields of the part directly before it (`PartNote`)
    fields    fields of the message itself (`MessageNote`), at the message's end

A note never repeats what a part says, and what the part says goes before it: a part may be
shortened or given another id, and its note still fits. A note is not used when the part before it
is of another kind than the one it was made for.

Some parts a provider takes only as its own: a thought, text that is blank. Such a part is written
only if a note of that provider stands behind it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.records import JSON, Part, Raw, Role, ToolCall

JSONObject: TypeAlias = dict[str, JSON]
N = TypeVar("N", bound=msgspec.Struct)

_MAX_DEPTH: Final = 190  # as deep as the store takes arguments, with room for what is around them
# How the roles that neither provider has among its messages are told to the model.
_MARKS: Final[dict[Role, str]] = {
    "system": "[system note]",
    "summary": "[summary of the conversation so far]",
}


class PartNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider's piece has beyond the part of ours before it.

    `of` names the kind of part, `fields` belong to the piece, `inner` to the object inside it that
    says the most. Of `inner`, what we had to make up (an id) is in `made`, to be taken out again.
    `form` tells which of several ways of writing the same was used.
    """

    of: str
    fields: JSONObject = msgspec.field(name="part")
    inner: JSONObject = {}
    made: JSONObject = {}
    form: str | None = None


class MessageNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider's message has beyond its parts.

    `made` and `form` are as for a part. `reply` is what only a reply has: kept, and never sent.
    """

    fields: JSONObject
    made: JSONObject = {}
    form: str | None = None
    reply: JSONObject = {}


Noted: TypeAlias = tuple[Part, PartNote | None]


# ----------------------------------------------------------------------------------------- notes


def to_raw(source: str, note: PartNote | MessageNote) -> Raw:
    """Write a note as a part."""
    return Raw(source, msgspec.to_builtins(note))


def verbatim(source: str, piece: JSONObject) -> Raw:
    """Keep a piece that has no part of ours."""
    return Raw(source, {"content": piece})


def kept_piece(part: Raw) -> JSONObject | None:
    """Return the piece that `verbatim` kept."""
    piece = part.data.get("content") if isinstance(part.data, dict) else None
    return piece if isinstance(piece, dict) else None


def kind_of(part: Part) -> str:
    """Name the kind of a part."""
    return str(part.__struct_config__.tag)


def with_notes(source: str, parts: Sequence[Part]) -> list[Noted]:
    """Each part with the note behind it. Notes themselves and what is foreign are left out."""
    return [
        (part, _part_note(source, part, behind))
        for part, behind in zip_longest(parts, parts[1:])
        if not isinstance(part, Raw) or (part.source == source and kept_piece(part) is not None)
    ]


def _part_note(source: str, part: Part, behind: Part | None) -> PartNote | None:
    if not isinstance(behind, Raw) or behind.source != source:
        return None
    note = _read(behind, "part", PartNote)
    return note if note is not None and note.of == kind_of(part) else None


def message_note(source: str, parts: Sequence[Part]) -> MessageNote:
    """Return the message's own note: the newest, if messages were joined."""
    for part in reversed(parts):
        if isinstance(part, Raw) and part.source == source:
            note = _read(part, "fields", MessageNote)
            if note is not None:
                return note
    return MessageNote({})


def _read(part: Raw, key: str, kind: type[N]) -> N | None:
    if not isinstance(part.data, dict) or key not in part.data:
        return None
    try:
        return msgspec.convert(part.data, kind)
    except msgspec.ValidationError:  # Somebody else's data under the same name says nothing to us.
        return None


def beyond(given: Mapping[str, JSON], ours: Mapping[str, JSON]) -> tuple[JSONObject, JSONObject]:
    """Return what makes `ours` what was given: fields to put in, and fields to take out."""
    fields = {key: value for key, value in given.items() if key not in ours or ours[key] != value}
    made = {key: value for key, value in ours.items() if key not in given or given[key] != value}
    return fields, made


def laid_under(fields: JSONObject, made: JSONObject, ours: JSONObject) -> JSONObject:
    """Put `fields` under `ours`, of which what was `made` up is left out while it is the same."""
    said = {key: value for key, value in ours.items() if key not in made or made[key] != value}
    return {**fields, **said}


# ----------------------------------------------------------------------------- what is said of it


def introduced(role: Role, pieces: list[JSONObject], blank: JSONObject) -> list[JSON]:
    """Say before a system message, or a summary, what it is; `blank` is a text without its text."""
    mark = _MARKS.get(role)
    if mark is None or not pieces:
        return [*pieces]
    first, *rest = pieces
    if isinstance(text := first.get("text"), str):
        return [{**first, "text": f"{mark}\n{text}"}, *rest]
    return [{**blank, "text": mark}, *pieces]


def arguments_of(call: ToolCall) -> JSONObject:
    """Return a call's arguments as the object both providers want.

    Text that is a JSON object becomes that object, and no arguments at all become an empty one.
    Anything else is wrapped: `{"input": …}`.
    """
    arguments = call.arguments
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if arguments is None or arguments == "":
        return {}
    return arguments if isinstance(arguments, dict) else {"input": arguments}


def _parsed(text: str) -> JSON:
    found = parsed_object(text)
    return text if found is None else found


def parsed_object(text: str) -> JSONObject | None:
    """Read a JSON object; None if the text is none, or none that could be sent."""
    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deeper(value, _MAX_DEPTH) else None


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refused(digits)


def _is_deeper(value: JSON, depth: int) -> bool:
    if isinstance(value, dict):
        return depth == 0 or any(_is_deeper(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth == 0 or any(_is_deeper(inner, depth - 1) for inner in value)
    return False
