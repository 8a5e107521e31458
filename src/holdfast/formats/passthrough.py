"""Passthrough fields of Anthropic and Gemini messages: provider data that no part can hold.

A provider's message carries more than Holdfast's parts do. The remainder is kept in `Raw` parts of
that provider, so that decoding and encoding is lossless. Each of them has one of these keys:

    content   a piece of content that no part can represent, verbatim
    part      a note: extra fields of the part directly before it (`PartNote`)
    fields    a note: extra fields of the message (`MessageNote`), the last part of the message

A note never repeats what its part holds, and the part takes precedence: a part may be shortened or
get another id, and its note still applies. A note is ignored if the part before it is of another
kind than the one the note was made for.

Some parts are accepted only by the provider that produced them (thinking, blank text). Such a part
is encoded only if a note of that provider follows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.formats.common import MAX_ARGUMENTS_DEPTH, JSONObject, is_deeper, raw_object
from holdfast.values import JSON, Part, Raw, Role, ToolCall

N = TypeVar("N", bound=msgspec.Struct)

# Neither provider has these roles among its messages; the label tells the model what it reads.
_ROLE_LABELS: Final[dict[Role, str]] = {
    "system": "[system note]",
    "summary": "[summary of the conversation so far]",
}


class PartNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider's extra fields for the part before it.

    `of` is the kind of part, `fields` are fields of the piece, `inner` fields of its main nested
    object. `made` holds values that decoding invented (an id) and encoding removes again. `form`
    names which of several equivalent encodings was used.
    """

    of: str
    fields: JSONObject = msgspec.field(name="part")
    inner: JSONObject = {}
    made: JSONObject = {}
    form: str | None = None


class MessageNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider's extra fields for a whole message.

    `made` and `form` are as for a part.
    """

    fields: JSONObject
    made: JSONObject = {}
    form: str | None = None


Noted: TypeAlias = tuple[Part, PartNote | None]


# ----------------------------------------------------------------------------------------- notes


def to_raw(source: str, note: PartNote | MessageNote) -> Raw:
    """Return a note as a `Raw` part."""
    return Raw(source, msgspec.to_builtins(note))


def verbatim(source: str, piece: JSONObject) -> Raw:
    """Return a `Raw` part that keeps a piece that no other part can represent."""
    return Raw(source, {"content": piece})


def verbatim_piece(part: Raw) -> JSONObject | None:
    """Return the piece that `verbatim` kept; None if the part holds none."""
    return raw_object(part, "content")


def kind_of(part: Part) -> str:
    """Return the kind (the tag) of a part."""
    return str(part.__struct_config__.tag)


def with_notes(source: str, parts: Sequence[Part]) -> list[Noted]:
    """Return each part with its note. Omits the notes themselves and other providers' parts."""
    return [
        (part, _part_note(source, part, following))
        for part, following in zip_longest(parts, parts[1:])
        if not isinstance(part, Raw) or (part.source == source and verbatim_piece(part) is not None)
    ]


def _part_note(source: str, part: Part, following: Part | None) -> PartNote | None:
    if not isinstance(following, Raw) or following.source != source:
        return None
    note = _read(following, "part", PartNote)
    return note if note is not None and note.of == kind_of(part) else None


def message_note(source: str, parts: Sequence[Part]) -> MessageNote:
    """Return the note of the whole message; the newest if several messages were merged."""
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
    except msgspec.ValidationError:  # Another program's data under the same key is ignored.
        return None


def diff_fields(
    given: Mapping[str, JSON], ours: Mapping[str, JSON]
) -> tuple[JSONObject, JSONObject]:
    """Return the difference from `ours` to `given`: fields to add, and fields to remove."""
    fields = {key: value for key, value in given.items() if key not in ours or ours[key] != value}
    made = {key: value for key, value in ours.items() if key not in given or given[key] != value}
    return fields, made


def merge_under(fields: JSONObject, made: JSONObject, ours: JSONObject) -> JSONObject:
    """Merge `ours` over `fields`, without the values of `ours` that still equal those in `made`."""
    kept = {key: value for key, value in ours.items() if key not in made or made[key] != value}
    return {**fields, **kept}


# --------------------------------------------------------------------------------------- content


def with_role_label(role: Role, pieces: list[JSONObject], blank: JSONObject) -> list[JSON]:
    """Prefix a system message or a summary with its label; `blank` is a text piece without text."""
    mark = _ROLE_LABELS.get(role)
    if mark is None or not pieces:
        return [*pieces]
    first, *rest = pieces
    if isinstance(text := first.get("text"), str):
        return [{**first, "text": f"{mark}\n{text}"}, *rest]
    return [{**blank, "text": mark}, *pieces]


def arguments_of(call: ToolCall) -> JSONObject:
    """Return a call's arguments as the JSON object that both providers require.

    Text that is a JSON object becomes that object; no arguments become an empty object. Anything
    else is wrapped: `{"input": …}`.
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
    """Parse a JSON object; None if the text is not one, or is nested too deeply to be sent."""
    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not is_deeper(value, MAX_ARGUMENTS_DEPTH) else None


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refused(digits)
