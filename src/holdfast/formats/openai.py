"""Messages of OpenAI's chat completions, and of every server with a compatible API.

`decode` reads one message of a request, or a whole reply, of which the first choice becomes the
message; `encode` writes what a request may hold, and with `reply=True` exactly what was read. A
message from another provider is encoded as far as this format allows:

* text, images, WAV and MP3 audio and PDF files are pieces of content in user messages; in other
  roles, and for other types, a file becomes its breadcrumb (`[image: cat.png]`);
* reasoning, and other providers' pieces, are omitted;
* a summary becomes a user message; characters not allowed in names are replaced;
* one message may become several chat messages, because each tool result is a chat message of its
  own: `encode_all` returns them in order, `encode` rejects such a message.

Legacy calls (`function_call`, role `function`) have no ids. They get one made from the function's
name, so that call and result can be paired. `upgrade_legacy_calls` turns them into tool calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

import msgspec

from holdfast.errors import BadMessage
from holdfast.formats.common import (
    JSONObject,
    breadcrumb,
    copied,
    from_base64,
    from_data_url,
    json_object,
    mime_of,
    name_of,
    raw_object,
    read_arguments,
    to_base64,
    to_data_url,
    token_count,
    with_reply_fields,
    write_arguments,
)
from holdfast.formats.openai_passthrough import (
    AUDIO_FORMATS,
    IMAGES,
    Noted,
    Piece,
    from_audio,
    kind_note,
    merge_note,
    message_note,
    part_note,
    to_audio,
    with_notes,
)
from holdfast.formats.originals import keep, kept
from holdfast.formats.registry import Format
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Raw,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)

SOURCE: Final = "openai"

_ROLES: Final[dict[str, Role]] = {
    "assistant": "assistant",
    "developer": "system",
    "system": "system",
    "user": "user",
}
# The role of a message that holds neither a call nor a result. Other content of a tool message, and
# a summary of what tools and strangers said, must not be trusted more than a user's text.
_SENT_ROLES: Final = {
    "assistant": "assistant",
    "summary": "user",
    "system": "system",
    "tool": "user",
    "user": "user",
}
_PIECES: Final = {
    "file": {"user"},
    "image_url": {"user"},
    "input_audio": {"user"},
    "refusal": {"assistant"},
    "text": set[str](),  # A verbatim text piece is one that could not be decoded: never sent.
}
_LEGACY_KINDS: Final = frozenset({"function", "function_call"})
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME_CHARS: Final = 64
_MAX_ID_CHARS: Final = 40
# Pieces that compatible servers send for a model's thinking.
_THINKING: Final = frozenset({"reasoning", "redacted_thinking", "thinking"})


# -------------------------------------------------------------------------------------- decoding


def decode(item: Mapping[str, JSON]) -> Message:
    """Decode one message or a whole reply; `BadMessage` if it is not valid."""
    original = json_object(item, "a chat message")
    message = _decode_reply(original) if "choices" in original else _decode_message(original)
    return keep(message, SOURCE, original)


def _decode_reply(given: JSONObject) -> Message:
    """Decode the first choice of a reply; one without any, as a filter leaves it, is empty."""
    choices = given["choices"]
    if not isinstance(choices, list):
        raise BadMessage(f"choices: expected a list, got {type(choices).__name__}")
    message = Message(role="assistant")
    if choices:
        inner = _object(choices[0]).get("message")
        if not isinstance(inner, dict):
            raise BadMessage("choices[0].message: expected a message; a chunk of a stream has none")
        message = _decode_message(inner)
    usage = given.get("usage")
    return with_reply_fields(
        message,
        id=given.get("id"),
        model=given.get("model"),
        usage=usage_of(usage) if isinstance(usage, dict) else None,
    )


def usage_of(given: JSONObject) -> Usage:
    """Return the usage, also as compatible servers report it."""
    prompt = given.get("prompt_tokens_details")
    return Usage(
        input=token_count(given, "prompt_tokens"),
        output=token_count(given, "completion_tokens"),
        cache_read=token_count(prompt, "cached_tokens")
        or token_count(given, "prompt_cache_hit_tokens"),
        cache_write=token_count(prompt, "cache_write_tokens"),
        reasoning=token_count(given.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _decode_message(item: JSONObject) -> Message:
    role = item.get("role")
    if role == "tool" or role == "function":  # noqa: PLR1714 (mypy narrows by ==)
        return _decode_result(item, role)
    if not isinstance(role, str) or role not in _ROLES:
        raise BadMessage(f"role: {role!r} is not a role of chat completions")
    parts: list[Part] = [*_decode_content(item.get("content"))]
    if role == "assistant":
        parts += _decode_calls(item)
    name = item.get("name")
    message = Message(
        role=_ROLES[role],
        parts=tuple(parts),
        name=name if isinstance(name, str) and name else None,
    )
    return _with_note(message, item)


def _decode_result(item: Mapping[str, JSON], role: str) -> Message:
    """Decode the result of a tool, or of a legacy function."""
    name = item.get("name")
    name = name if isinstance(name, str) else None
    call_id = item.get("tool_call_id") if role == "tool" else _legacy_call_id(name or "")
    if not isinstance(call_id, str):
        raise BadMessage("tool_call_id: a tool message needs the id of its call")
    given = item.get("content")
    content = given if isinstance(given, str) else tuple(_decode_content(given))
    parts: list[Part] = [ToolResult(call_id, content or "", name=name)]
    if role == "function":
        parts.append(Raw(SOURCE, {"part": {}, "of": "function"}))
    return _with_note(Message(role="tool", parts=tuple(parts)), item)


def _with_note(message: Message, item: Mapping[str, JSON]) -> Message:
    """Append a note with the message's fields beyond its parts, if there are any."""
    ours = encode(message)
    given = _sendable({key: value for key, value in item.items() if key not in ours})
    if item["role"] != ours["role"]:
        given["role"] = item["role"]
    extra: JSONObject = {"fields": copied(given)} if given else {}
    if shape := _shape(item, ours):
        extra["shape"] = shape
    last = message_note(SOURCE, extra, str(ours["role"]))
    if last is None:
        return message
    return msgspec.structs.replace(message, parts=(*message.parts, last))


def _shape(item: Mapping[str, JSON], ours: JSONObject) -> str | None:
    """Return how the content was written, where that does not follow from its parts."""
    if "content" not in item:
        return "absent"
    if item["content"] is None and ours["content"] is not None:
        return "null"
    as_list = isinstance(item["content"], list) and item["content"]
    return "list" if as_list and isinstance(ours["content"], str) else None


def _decode_content(content: JSON) -> list[Piece]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise BadMessage(f"content: expected text or a list, got {type(content).__name__}")
    return [part for piece in content for part in _decode_piece(piece)]


def _decode_piece(piece: JSON) -> list[Piece]:
    """Decode a piece: a part, with a note for extra fields; a verbatim piece if no part fits."""
    if not isinstance(piece, dict):
        return [Raw(SOURCE, {"content": copied(piece)})]
    kind = piece.get("type")
    if kind == "text" and isinstance(piece.get("text"), str):
        return _text_parts(piece, str(piece["text"]))
    if kind == "file":
        return _file_parts(piece)
    file = _read_file(piece)
    if file is None:
        return [Raw(SOURCE, {"content": copied(piece)})]
    return _file_with_note(file, str(kind), piece, _write_file(file, str(kind)))


def _text_parts(piece: JSONObject, text: str) -> list[Piece]:
    more = part_note(SOURCE, piece, {"type": "text", "text": text}, "text")
    return [Text(text)] if more is None else [Text(text), more]


def _read_file(piece: JSONObject) -> File | None:
    if piece.get("type") == "input_audio":
        return from_audio(piece)
    image = piece.get("image_url")
    if piece.get("type") == "image_url" and isinstance(image, dict):
        return from_data_url(image.get("url"))
    return None


def _file_parts(piece: JSONObject) -> list[Piece]:
    """Decode a file whose data is a data URL or bare base64."""
    given = piece.get("file")
    inner = given if isinstance(given, dict) and "file_id" not in given else {}
    name = inner.get("filename")
    name = name if isinstance(name, str) else None
    file = from_data_url(inner.get("file_data"), name)
    if file is not None:
        return _file_with_note(file, "file", piece, _write_file(file, "file"))
    data = from_base64(inner.get("file_data"))
    if data is None:
        return [Raw(SOURCE, {"content": copied(piece)})]
    file = File(name=name, mime=mime_of(File(name=name)), data=data)
    ours = _write_file(file, "file", bare=True)
    kept = kind_note(SOURCE, piece, ours, "file")
    return [file, Raw(SOURCE, {**_object(kept.data), "bare": True})]


def _file_with_note(file: File, kind: str, piece: JSONObject, ours: JSONObject) -> list[Piece]:
    """Return a file, with a note if it has extra fields or would be encoded as another kind."""
    if _kind_of(file) != kind:
        return [file, kind_note(SOURCE, piece, ours, kind)]
    more = part_note(SOURCE, piece, ours, kind)
    return [file] if more is None else [file, more]


def _object(value: JSON) -> JSONObject:
    return value if isinstance(value, dict) else {}


def _decode_calls(item: Mapping[str, JSON]) -> list[Part]:
    calls = item.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise BadMessage(f"tool_calls: expected a list, got {type(calls).__name__}")
    parts = [part for call in calls or () for part in _decode_call(call)]
    old = item.get("function_call")
    return parts if old is None else [*parts, *_decode_legacy_call(old)]


def _decode_call(call: JSON) -> list[Part]:
    """Decode a call. One without a name, an id or arguments is kept verbatim, and never sent."""
    if not isinstance(call, dict):
        return [Raw(SOURCE, {"call": copied(call)})]
    kind, key = ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    inner = _object(call.get(kind))
    id, name, text = call.get("id"), inner.get("name"), inner.get(key)
    if not (isinstance(id, str) and isinstance(name, str) and isinstance(text, str)):
        return [Raw(SOURCE, {"call": copied(call)})]
    if kind == "custom":
        parsed = ToolCall(id, name, text)
        return [parsed, kind_note(SOURCE, call, _write_custom(parsed), "custom")]
    parsed = ToolCall(id, name, read_arguments(text))
    more = part_note(SOURCE, call, _write_call(parsed), "function_tool")
    return [parsed] if more is None else [parsed, more]


def _decode_legacy_call(call: JSON) -> list[Part]:
    name, text = _object(call).get("name"), _object(call).get("arguments")
    if not (isinstance(name, str) and isinstance(text, str)):
        return [Raw(SOURCE, {"call": copied(call)})]
    parsed = ToolCall(_legacy_call_id(name), name, read_arguments(text))
    return [parsed, kind_note(SOURCE, _object(call), _write_function(parsed), "function_call")]


def _legacy_call_id(name: str) -> str:
    return f"function_call_{name}"[:_MAX_ID_CHARS]


# -------------------------------------------------------------------------------------- encoding


def encode(message: Message, *, reply: bool = False) -> dict[str, JSON]:
    """Encode a message; `BadMessage` if it takes several chat messages.

    With `reply`, return exactly what was decoded, also what is never sent.
    """
    if reply and (original := kept(message, SOURCE)) is not None:
        return original
    written = encode_all(message)
    if len(written) != 1:
        raise BadMessage(
            f"message {message.id!r} holds tool results together with other parts, which takes "
            f"{len(written)} chat messages; use encode_all."
        )
    return written[0]


def encode_all(message: Message) -> list[dict[str, JSON]]:
    """Encode a message as one chat message for each result, and one for the parts in between.

    Calls always go into an assistant message, whatever the role of the message they are in.
    """
    sent_role = _SENT_ROLES[message.role]
    written: list[dict[str, JSON]] = []
    group: list[Noted] = []
    role = sent_role
    for part, more in with_notes(message.parts, SOURCE):
        part_role = _role_for(part, sent_role, role)
        if group and (part_role != role or isinstance(part, ToolResult)):
            written.append(_write(role, group, message))
            group = []
        role = part_role
        group.append((part, more))
    if group or not written:
        written.append(_write(role, group, message))
    return written


def upgrade_legacy_calls(message: Message) -> Message:
    """Return a message whose legacy function calls and results are tool calls with ids."""
    kept = tuple(part for part in message.parts if not _is_legacy_note(part))
    return message if len(kept) == len(message.parts) else message.with_parts(kept)


def _is_legacy_note(part: Part) -> bool:
    return (
        isinstance(part, Raw)
        and part.source == SOURCE
        and isinstance(part.data, dict)
        and str(part.data.get("of")) in _LEGACY_KINDS
    )


def _role_for(part: Part, sent_role: str, role: str) -> str:
    """Return the role of the chat message a part goes into; a message note stays with `role`."""
    if isinstance(part, ToolResult):
        return "tool"
    if isinstance(part, ToolCall):
        return "assistant"
    return role if isinstance(part, Raw) and raw_object(part, "fields") is not None else sent_role


def _write(role: str, group: Sequence[Noted], message: Message) -> dict[str, JSON]:
    about = _message_note_data(group)
    if group and isinstance(group[0][0], ToolResult):
        ours = _write_result(group[0][0], group[0][1], about)
    else:
        ours = _write_message(role, group, about)
        name = _sanitized_name(message.name) if role == _SENT_ROLES[message.role] else None
        if name:
            ours["name"] = name
    if about.get("of") != ours["role"]:
        return ours
    fields = _object(about.get("fields"))
    if fields.get("role") == "developer" and ours["role"] == "system":
        ours["role"] = "developer"
    return {**_object(copied(_sendable(fields))), **ours}


def _message_note_data(group: Sequence[Noted]) -> JSONObject:
    """Return the message note in a group; empty if there is none."""
    for part, _ in group:
        if isinstance(part, Raw) and raw_object(part, "fields") is not None:
            return _object(part.data)
    return {}


def _sendable(fields: JSONObject) -> JSONObject:
    """Omit fields that only parts may set, and fields that every request would be rejected for."""
    return {key: value for key, value in fields.items() if _is_sendable(key, value)}


def _is_sendable(key: str, value: JSON) -> bool:
    if key in {"content", "role", "tool_call_id", "tool_calls"}:
        return False
    if key == "name":
        return isinstance(value, str) and _is_valid_name(value)
    if value is None:
        return True
    if key == "refusal":
        return isinstance(value, str)
    if key == "audio":
        return isinstance(value, dict) and isinstance(value.get("id"), str)
    return key != "function_call"


def _sanitized_name(name: str | None) -> str:
    return (
        _NOT_IN_NAMES.sub("_", name or "").strip("_")[:_MAX_NAME_CHARS]
        if not _is_valid_name(name)
        else name
    )


def _is_valid_name(name: str | None) -> TypeGuard[str]:
    return (
        bool(name) and len(name or "") <= _MAX_NAME_CHARS and not _NOT_IN_NAMES.search(name or "")
    )


def _write_message(role: str, group: Sequence[Noted], about: JSONObject) -> JSONObject:
    ours: JSONObject = {"role": role}
    calls = [(part, more) for part, more in group if isinstance(part, ToolCall)]
    content = _write_content(group, role, about)
    shape = about.get("shape") if role == "assistant" else None
    if content is not None:
        ours["content"] = content
    elif shape != "absent":
        ours["content"] = None if calls or shape == "null" else ""
    return {**ours, **_write_calls(calls)}


def _write_content(group: Sequence[Noted], role: str, about: JSONObject) -> JSON:
    """Encode content: plain text if it is a single text, else a list of pieces; None if empty."""
    pieces = [piece for part, more in group for piece in _write_piece(part, more, role)]
    if not pieces:
        return None
    if len(pieces) == 1 and pieces[0].keys() == {"type", "text"} and about.get("shape") != "list":
        return pieces[0]["text"]
    return [*pieces]


def _write_piece(part: Part, more: JSONObject, role: str) -> list[JSONObject]:
    if isinstance(part, Text):
        piece: JSONObject = {"type": "text", "text": part.text}
        return [merge_note(piece, more) if more.get("of") == "text" else piece]
    if isinstance(part, File):
        return [_write_file_or_breadcrumb(part, more, role)]
    kept = raw_object(part, "content") if isinstance(part, Raw) else None
    if kept is None or not isinstance(kept.get("type"), str):
        return []
    fits = role in _PIECES.get(str(kept["type"]), {role})
    return [_object(copied(kept))] if fits and _has_required_fields(kept) else []


def _has_required_fields(piece: JSONObject) -> bool:
    """True if a verbatim piece has the fields that its type requires."""
    match piece["type"]:
        case "image_url":
            return isinstance(_object(piece.get("image_url")).get("url"), str)
        case "input_audio" | "file" as kind:
            return isinstance(piece.get(kind), dict)
        case "refusal":
            return isinstance(piece.get("refusal"), str)
        case _:
            return True


def _write_file_or_breadcrumb(file: File, more: JSONObject, role: str) -> JSONObject:
    """Encode a file: as the kind in its note, else as the kind of its type, else a breadcrumb."""
    given = more.get("of")
    kind = given if isinstance(given, str) and given in _FILE_KINDS else _kind_of(file)
    if kind is None or file.data is None or role != "user":
        return {"type": "text", "text": breadcrumb(file)}
    ours = _write_file(file, kind, bare=more.get("bare") is True)
    return merge_note(ours, more) if kind == given else ours


_FILE_KINDS: Final = frozenset({"file", "image_url", "input_audio"})


def _kind_of(file: File) -> str | None:
    mime = mime_of(file)
    if mime in IMAGES:
        return "image_url"
    if mime in AUDIO_FORMATS:
        return "input_audio"
    return "file" if mime == "application/pdf" else None


def _write_file(file: File, kind: str, *, bare: bool = False) -> JSONObject:
    if kind == "input_audio":
        return to_audio(file)
    if kind == "image_url":
        return {"type": "image_url", "image_url": {"url": to_data_url(file)}}
    data = to_base64(file) if bare else to_data_url(file)
    return {"type": "file", "file": {"filename": name_of(file), "file_data": data}}


def _write_calls(calls: Sequence[tuple[ToolCall, JSONObject]]) -> JSONObject:
    """Encode calls; a legacy call is possible only if it is the only one."""
    if not calls:
        return {}
    first, more = calls[0]
    if len(calls) == 1 and more.get("of") == "function_call":
        return {"function_call": merge_note(_write_function(first), more)}
    return {"tool_calls": [_write_noted_call(call, more) for call, more in calls]}


def _write_noted_call(call: ToolCall, more: JSONObject) -> JSONObject:
    if more.get("of") == "custom":
        return merge_note(_write_custom(call), more)
    ours = _write_call(call)
    return merge_note(ours, more) if more.get("of") == "function_tool" else ours


def _write_call(call: ToolCall) -> JSONObject:
    return {"id": call.id, "type": "function", "function": _write_function(call)}


def _write_function(call: ToolCall) -> JSONObject:
    return {"name": call.name, "arguments": write_arguments(call.arguments)}


def _write_custom(call: ToolCall) -> JSONObject:
    custom: JSONObject = {"name": call.name, "input": write_arguments(call.arguments)}
    return {"id": call.id, "type": "custom", "custom": custom}


def _write_result(result: ToolResult, more: JSONObject, about: JSONObject) -> JSONObject:
    content: JSON = result.content if isinstance(result.content, str) else None
    if not isinstance(result.content, str):
        inside = with_notes(result.content, SOURCE)
        pieces = [piece for part, extra in inside for piece in _write_piece(part, extra, "tool")]
        content = [*pieces] if pieces else ""
    if more.get("of") != "function":
        return {"role": "tool", "tool_call_id": result.call_id, "content": content}
    old = None if about.get("shape") == "null" and not content else content
    return {"role": "function", "name": result.name or "", "content": old}


# ------------------------------------------------------------------------------- rules of a window


def _make_compatible(messages: Sequence[Message]) -> list[Message]:
    """Send legacy function calls, which have no ids, as tool calls with ids."""
    return [upgrade_legacy_calls(message) for message in messages]


FORMAT: Final = Format(
    provider=SOURCE,
    encode=encode_all,
    decode=decode,
    has_content=lambda item: any(map(item.get, ("content", "refusal", "audio"))),
    is_thinking=lambda piece: str(piece.get("type")) in _THINKING,
    make_compatible=_make_compatible,
    encode_system=None,
    alternates_roles=False,
    errors_in_text=True,
    call_id=re.compile(rf"[a-zA-Z0-9_-]{{1,{_MAX_ID_CHARS}}}"),
    tool_name=re.compile(r"[a-zA-Z0-9_-]+"),
    max_name_chars=_MAX_NAME_CHARS,
)
