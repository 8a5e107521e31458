"""Contents of Google's Gemini API, with the field names of its REST interface (`functionCall`).

`decode` reads one content, or a whole reply, of which the first candidate becomes the message;
`encode` writes the content, and with `reply=True` exactly what was read. A user content that holds
only function responses becomes a `tool` message, and so does one with the legacy role `function`.

Calls often have no ids in this format: a response is matched to its call by name and order. To
pair them, the k-th call of a function within a content gets the id `name-k`, and so does the k-th
response. Encoding removes such ids again.

A function response is an object. If it is `{"output": …}`, `{"result": …}` or `{"error": …}` with a
text, that text is the result; otherwise the result is the object as JSON.

Any part may have a signature. It is kept in the part's note, never in `Thinking.signature`.

A message from another provider is encoded as far as this format allows:

* thinking, empty text and other providers' pieces are omitted. If nothing remains, `parts` is an
  empty list: such a message must not be sent;
* images, audio, video, PDF and text files are sent with their data; a breadcrumb text stands for
  files of other types and for files without data;
* a call's arguments become an object (see `arguments_of`), a result becomes `{"output": text}` or
  `{"error": text}`, and its files become parts of the response;
* a result without a function name takes it from `names` (call id to name), else it is `unknown`;
* a system message or a summary becomes a user content that begins with a label.

In a window, a response has an id if and only if its call has one.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.errors import BadMessage
from holdfast.formats.common import (
    JSONObject,
    breadcrumb,
    copied,
    from_base64,
    json_object,
    mime_of,
    token_count,
    with_reply_fields,
)
from holdfast.formats.originals import keep, kept
from holdfast.formats.passthrough import (
    MessageNote,
    PartNote,
    arguments_of,
    diff_fields,
    kind_of,
    merge_under,
    message_note,
    parsed_object,
    to_raw,
    verbatim,
    verbatim_piece,
    with_notes,
    with_role_label,
)
from holdfast.formats.registry import Format
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Raw,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

SOURCE: Final = "gemini"

_ROLES: Final[dict[str, Role]] = {"function": "tool", "model": "assistant", "user": "user"}
_MEDIA: Final = ("application/pdf", "audio/", "image/", "text/", "video/")
_MEDIA_IN_RESULTS: Final = ("application/pdf", "image/", "text/plain")
# The Python package's spellings of fields that the REST interface spells in camel case.
_PYTHON_NAMES: Final = frozenset(
    {"code_execution_result", "executable_code", "file_data", "function_call"}
    | {"function_response", "inline_data", "thought_signature", "tool_call", "tool_response"}
)
# Fields that only a whole reply has, and their Python spellings.
_REPLY_FIELDS: Final = frozenset(
    {"candidates", "modelVersion", "promptFeedback", "responseId", "usageMetadata"}
)
_PYTHON_REPLY_FIELDS: Final = frozenset(
    {"model_version", "prompt_feedback", "response_id", "sdk_http_response", "usage_metadata"}
)
# The main nested object of a part.
_INNER: Final = ("functionCall", "functionResponse", "inlineData")
_TEXT_KEYS: Final = frozenset({"error", "output", "result"})
_UNKNOWN: Final = "unknown"
_JSON: Final = "json"
_RESULT: Final = "result"
_URLSAFE: Final = "urlsafe"


# -------------------------------------------------------------------------------------- decoding


def decode(item: Mapping[str, JSON]) -> Message:
    """Decode one content or a whole reply; `BadMessage` if it is not valid."""
    original = json_object(item, "a content")
    _refuse_python_names(original, _PYTHON_REPLY_FIELDS, "reply")
    is_reply = "parts" not in original and not _REPLY_FIELDS.isdisjoint(original)
    message = _decode_reply(original) if is_reply else _decode_content(original)
    return keep(message, SOURCE, original)


def _decode_reply(given: JSONObject) -> Message:
    """Decode the first candidate of a reply; one without any, as a filter leaves it, is empty."""
    candidates = given.get("candidates")
    if not isinstance(candidates, list | None):
        raise BadMessage("candidates: expected a list")
    content = None
    if candidates:
        if not isinstance(candidates[0], dict):
            raise BadMessage("candidates[0]: expected an object")
        content = candidates[0].get("content")
    if not isinstance(content, dict | None):
        raise BadMessage("candidates[0].content: expected a content")
    content = content or {}
    message = _decode_content({**content, "role": content.get("role") or "model"})
    usage = given.get("usageMetadata")
    return with_reply_fields(
        message,
        id=given.get("responseId"),
        model=given.get("modelVersion"),
        usage=_usage_of(usage) if isinstance(usage, dict) else None,
    )


def _usage_of(given: JSONObject) -> Usage:
    """Return the usage. Gemini counts thoughts, and what its tools read, separately."""
    thoughts = token_count(given, "thoughtsTokenCount")
    tools = token_count(given, "toolUsePromptTokenCount")
    return Usage(
        input=token_count(given, "promptTokenCount") + tools,
        output=token_count(given, "candidatesTokenCount") + thoughts,
        cache_read=token_count(given, "cachedContentTokenCount"),
        reasoning=thoughts,
    )


def _decode_content(original: JSONObject) -> Message:
    given = dict(original)
    role = given.get("role") or "user"
    if not isinstance(role, str) or role not in _ROLES:
        raise BadMessage("role: must be user, model or function")
    pieces = _pieces_of(given.get("parts"))
    ids = _IdGenerator()
    parts = [part for piece in pieces for part in _decode_piece(piece, ids)]
    only_results = bool(pieces) and all("functionResponse" in piece for piece in pieces)
    ours = "tool" if role == "user" and only_results else _ROLES[role]
    given.pop("parts", None)  # The interface treats missing parts and an empty list alike.
    fields, made = diff_fields(given, {"role": _role_of(ours)})
    if fields or made:
        parts.append(to_raw(SOURCE, MessageNote(fields, made)))
    return Message(role=ours, parts=tuple(parts))


def _pieces_of(given: JSON) -> list[JSONObject]:
    pieces: list[JSONObject] = []
    if given is not None and not isinstance(given, list):
        raise BadMessage("parts: expected a list")
    for number, piece in enumerate(given or ()):
        if not isinstance(piece, dict):
            raise BadMessage(f"parts[{number}]: expected an object")
        _refuse_python_names(piece, _PYTHON_NAMES, f"parts[{number}]")
        pieces.append(piece)
    return pieces


def _refuse_python_names(given: JSONObject, names: frozenset[str], where: str) -> None:
    if foreign := names.intersection(given):
        raise BadMessage(
            f"{where}: {min(foreign)} is not a field of the REST interface; "
            'use model_dump(mode="json", by_alias=True, exclude_none=True)'
        )


class _IdGenerator:
    """Generates ids for the calls and responses of one content that have none."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    def next(self, name: str) -> str:
        self._used[name] += 1
        return f"{name}-{self._used[name]}"


def _decode_piece(piece: JSONObject, ids: _IdGenerator) -> tuple[Part, ...]:
    """Decode a piece: a part, with a note for extra fields; a verbatim piece if no part fits."""
    part, form = _read_piece(piece, ids)
    if part is None:
        return (verbatim(SOURCE, piece),)
    if form is None and _encode_part(part, None) == piece:
        return (part,)
    return part, to_raw(SOURCE, _note_of(piece, part, form))


def _note_of(piece: JSONObject, part: Part, form: str | None) -> PartNote:
    kind = kind_of(part)
    ours = _encode_part(part, PartNote(kind, {}, form=form)) or {}
    fields, _ = diff_fields(piece, ours)
    inner: JSONObject = {}
    made: JSONObject = {}
    for key in _INNER:
        given, encoded = piece.get(key), ours.get(key)
        if isinstance(given, dict) and isinstance(encoded, dict):
            inner, made = diff_fields(given, encoded)
            fields.pop(key, None)
    return PartNote(kind, fields, inner, made, form)


def _read_piece(piece: JSONObject, ids: _IdGenerator) -> tuple[Part | None, str | None]:
    """Return the part for a piece (None if no part fits), and its form if not the usual one."""
    fields = {key: value for key, value in piece.items() if value is not None}
    match fields:
        case {"functionCall": dict(call)}:
            return _read_call(call, ids), None
        case {"functionResponse": dict(response)}:
            return _read_response(response, ids)
        case {"inlineData": dict(blob)}:
            return _read_blob(blob)
        case {"text": str(text)}:
            return (Thinking(text) if fields.get("thought") is True else Text(text)), None
    return None, None


def _read_call(call: JSONObject, ids: _IdGenerator) -> ToolCall | None:
    name, id, arguments = call.get("name"), call.get("id"), call.get("args")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        return None
    return ToolCall(id if id and isinstance(id, str) else ids.next(name), name, arguments or {})


def _read_response(given: JSONObject, ids: _IdGenerator) -> tuple[ToolResult | None, str | None]:
    name, id, response = given.get("name"), given.get("id"), given.get("response")
    pieces = given.get("parts")
    if not isinstance(name, str | None) or not isinstance(response, dict | None):
        return None, None
    inside = _read_inside(pieces)
    if inside is None:
        return None, None
    text, error, form = _read_response_text(response)
    call_id = id if id and isinstance(id, str) else ids.next(name or _UNKNOWN)
    content = (Text(text), *inside) if inside else text
    return ToolResult(call_id, content, error=error, name=name), form


def _read_response_text(response: JSONObject | None) -> tuple[str, bool, str | None]:
    """Return the text of a response, whether it is an error, and its form."""
    if response is None:
        return "", False, None
    error = "error" in response and "output" not in response
    [key, value] = next(iter(response.items()), ("", None))
    if len(response) == 1 and key in _TEXT_KEYS and isinstance(value, str):
        return value, error, _RESULT if key == "result" else None
    return json.dumps(response, ensure_ascii=False), error, _JSON


def _read_inside(pieces: JSON) -> list[File | Raw] | None:
    """Decode the parts of a response; None if they are not valid."""
    inside: list[File | Raw] = []
    if pieces is None:
        return inside
    if not isinstance(pieces, list):
        return None
    for piece in pieces:
        if not isinstance(piece, dict):
            return None
        parts = _decode_piece(piece, _IdGenerator())
        kept = [part for part in parts if isinstance(part, File | Raw)]
        inside += kept if len(kept) == len(parts) else [verbatim(SOURCE, piece)]
    return inside


def _read_blob(blob: JSONObject) -> tuple[File | None, str | None]:
    mime, text, name = blob.get("mimeType"), blob.get("data"), blob.get("displayName")
    if not isinstance(mime, str) or not isinstance(text, str):
        return None, None
    data, form = from_base64(text), None
    if data is None:
        data, form = _from_urlsafe(text), _URLSAFE
    if data is None:
        return None, None
    return File(name=name if isinstance(name, str) else None, mime=mime, data=data), form


def _from_urlsafe(text: str) -> bytes | None:
    """Decode URL-safe base64, which Google's Python package writes."""
    try:
        data = urlsafe_b64decode(text)
    except ValueError:
        return None
    return data if urlsafe_b64encode(data).decode("ascii") == text else None


# -------------------------------------------------------------------------------------- encoding


def encode(
    message: Message, *, names: Mapping[str, str] | None = None, reply: bool = False
) -> JSONObject:
    """Encode a message. If nothing of it can be sent, its `parts` are an empty list.

    With `reply`, return exactly what was decoded, also what is never sent.
    """
    if reply and (original := kept(message, SOURCE)) is not None:
        return original
    note = message_note(SOURCE, message.parts)
    noted = with_notes(SOURCE, message.parts)
    pieces = [_encode_part(part, part_note, names or {}) for part, part_note in noted]
    role = _role_of(message.role)
    parts = with_role_label(message.role, [piece for piece in pieces if piece is not None], {})
    content = merge_under(note.fields, note.made, {"role": role})
    if content.get("role") not in (None, role, "function" if message.role == "tool" else role):
        content["role"] = role
    content["parts"] = parts
    return {key: copied(value) for key, value in content.items()}


def _role_of(role: Role) -> str:
    return "model" if role == "assistant" else "user"


def _encode_part(
    part: Part, note: PartNote | None, names: Mapping[str, str] | None = None
) -> JSONObject | None:
    """Encode a part; None if it cannot be sent."""
    if isinstance(part, Raw):
        return verbatim_piece(part)
    if isinstance(part, File):
        piece = _encode_file(part, _MEDIA, note)
        return {"text": breadcrumb(part)} if piece is None else _merge_note(note, piece)
    if isinstance(part, Text):
        return _merge_note(note, {"text": part.text}) if part.text or note else None
    if isinstance(part, Thinking):
        return _merge_note(note, {"text": part.text, "thought": True}) if note else None
    if isinstance(part, ToolCall):
        call: JSONObject = {"id": part.id} if part.id else {}
        call |= {"name": part.name, "args": arguments_of(part)}
        return _merge_note(note, {"functionCall": call})
    return _merge_note(note, {"functionResponse": _encode_result(part, note, names or {})})


def _merge_note(note: PartNote | None, ours: JSONObject) -> JSONObject:
    """Merge an encoded part over the fields of its note."""
    if note is None:
        return ours
    for key in _INNER:
        if isinstance(inner := ours.get(key), dict):
            ours = {**ours, key: merge_under(note.inner, note.made, inner)}
    return merge_under(note.fields, {}, ours)


def _encode_result(
    result: ToolResult, note: PartNote | None, names: Mapping[str, str]
) -> JSONObject:
    content = (Text(result.content),) if isinstance(result.content, str) else result.content
    texts: list[str] = []
    pieces: list[JSON] = []
    for part, part_note in with_notes(SOURCE, content):
        piece = _encode_inside(part, part_note)
        if piece is not None:
            pieces.append(piece)
        elif isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, File):
            texts.append(breadcrumb(part))
    given: JSONObject = {"id": result.call_id} if result.call_id else {}
    given["name"] = result.name or names.get(result.call_id) or _UNKNOWN
    given["response"] = _encode_response("\n".join(texts), result, note.form if note else None)
    return {**given, "parts": pieces} if pieces else given


def _encode_inside(part: Part, note: PartNote | None) -> JSONObject | None:
    """Encode a piece of a response that is not text; None if it cannot be sent there."""
    if isinstance(part, Raw):
        return verbatim_piece(part)
    if not isinstance(part, File):
        return None
    piece = _encode_file(part, _MEDIA_IN_RESULTS, note)
    return None if piece is None else _merge_note(note, piece)


def _encode_response(text: str, result: ToolResult, form: str | None) -> JSONObject:
    if form == _JSON:
        parsed = parsed_object(text)
        if parsed is not None:
            return parsed
    if result.error:
        return {"error": text}
    return {"result" if form == _RESULT else "output": text}


def _encode_file(file: File, kinds: Sequence[str], note: PartNote | None) -> JSONObject | None:
    """Encode a file with its data; None if only its breadcrumb can be sent."""
    if file.data is None or not (file.data or note):
        return None
    mime = file.mime if note and file.mime is not None else mime_of(file)
    if note is None and not mime.startswith(tuple(kinds)):
        return None
    write = urlsafe_b64encode if note and note.form == _URLSAFE else b64encode
    return {"inlineData": {"mimeType": mime, "data": write(file.data).decode("ascii")}}


# ------------------------------------------------------------------------------- rules of a window


def _make_compatible(messages: Sequence[Message]) -> list[Message]:
    """Send a response with an id if and only if its call is sent with one."""
    without_id = {
        part.id
        for message in messages
        for part, note in with_notes(SOURCE, message.parts)
        if isinstance(part, ToolCall) and note is not None and note.made.get("id") == part.id
    }
    return [
        message.with_parts([*_with_ids(message.parts, without_id)])
        if message.tool_results
        else message
        for message in messages
    ]


def _with_ids(parts: Sequence[Part], without_id: set[str]) -> Iterable[Part]:
    for part, note in with_notes(SOURCE, parts):
        yield part
        if not isinstance(part, ToolResult):
            changed = note
        else:
            changed = _with_id(part, note or PartNote(kind_of(part), {}), without_id)
        if changed is not None and (note is not None or changed.made):
            yield to_raw(SOURCE, changed)


def _with_id(result: ToolResult, note: PartNote, without_id: set[str]) -> PartNote:
    made = {key: value for key, value in note.made.items() if key != "id"}
    if result.call_id in without_id:
        made["id"] = result.call_id
    return msgspec.structs.replace(note, made=made)


FORMAT: Final = Format(
    provider=SOURCE,
    encode=lambda message: [encode(message)],
    decode=decode,
    has_content=lambda item: bool(item.get("parts")),
    is_thinking=lambda piece: piece.get("thought") is True,
    make_compatible=_make_compatible,
    encode_system=lambda text: {"parts": [{"text": text}]},
    alternates_roles=True,
    errors_in_text=False,
    call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    tool_name=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*"),
    max_name_chars=64,
)
