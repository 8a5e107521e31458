"""Items of OpenAI's Responses API: the `input` of a request, and the `output` of a reply.

`decode` reads one item, or a whole reply; `encode` writes a message as items, in the order of its
parts. The parts of several items may therefore be joined in one message, and still give the same
items: so are those of a reply. With `reply=True`, `encode` returns exactly what was read.

* a message becomes text and files, then a note with its id, status and phase;
* a call and its output become a `ToolCall` and a `ToolResult`; the note after each keeps the item's
  id, and whether it belongs to a custom tool;
* reasoning is kept whole as a `Raw` item (with its encrypted content, which only OpenAI can read);
  the `Thinking` part before it holds the readable text, and is never sent;
* items of built-in tools, references, and items of unknown types are `Raw` items.

A message from another provider is encoded as far as this format allows: images and documents are
sent in user and system messages and in tool results; elsewhere, and for other types, a file becomes
its breadcrumb (`[image: cat.png]`). Other providers' reasoning is omitted. A summary becomes a
user message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

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
from holdfast.formats.openai_items import SOURCE, make_compatible
from holdfast.formats.openai_passthrough import (
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
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

_ROLES: Final[dict[str, Role]] = {
    "assistant": "assistant",
    "developer": "system",
    "system": "system",
    "user": "user",
}
# The role that a message is sent with. Other content of a tool message, and a summary of what tools
# and strangers said, must not be trusted more than a user's text.
_SENT_ROLES: Final = {
    "assistant": "assistant",
    "summary": "user",
    "system": "system",
    "tool": "user",
    "user": "user",
}
_FROM_SYSTEM: Final = frozenset({"additional_tools", "compaction_trigger", "configuration_update"})
_FROM_TOOLS: Final = ("_output", "_response")
_CALLS: Final = {"custom_tool_call": "input", "function_call": "arguments"}
_OUTPUTS: Final = frozenset({"custom_tool_call_output", "function_call_output"})
_OUTPUT_PIECES: Final = frozenset({"output_text", "refusal"})
_INPUT_PIECES: Final = frozenset({"input_file", "input_image", "input_text"})
_FILE_KINDS: Final = frozenset({"input_audio", "input_file", "input_image"})
_DOCUMENTS: Final = frozenset(
    {
        "application/json",
        "application/msword",
        "application/pdf",
        "application/rtf",
        "application/vnd.ms-excel",
        "application/vnd.ms-powerpoint",
        "application/vnd.oasis.opendocument.text",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "application/xml",
    }
)


# -------------------------------------------------------------------------------------- decoding


def decode(item: Mapping[str, JSON]) -> Message:
    """Decode one item or a whole reply; `BadMessage` if it is not valid."""
    original = json_object(item, "an item of the Responses API")
    if original.get("object") == "response":
        return keep(_decode_reply(original), SOURCE, original)
    message = _decode_item(original)
    if not _is_reference(original):
        message = with_reply_fields(message, id=original.get("id"))
    return keep(message, SOURCE, original)


def _decode_reply(given: JSONObject) -> Message:
    """Decode the items of a reply as one message."""
    output = given.get("output")
    if not isinstance(output, list):
        raise BadMessage(f"output: expected a list, got {type(output).__name__}")
    parts: list[Part] = []
    for number, item in enumerate(output):
        if not isinstance(item, dict):
            raise BadMessage(f"output[{number}]: expected an item, got {type(item).__name__}")
        parts += _decode_item(item).parts
    usage = given.get("usage")
    return with_reply_fields(
        Message(role="assistant", parts=tuple(parts)),
        id=given.get("id"),
        model=given.get("model"),
        usage=_usage_of(usage) if isinstance(usage, dict) else None,
    )


def _usage_of(given: JSONObject) -> Usage:
    read = given.get("input_tokens_details")
    return Usage(
        input=token_count(given, "input_tokens"),
        output=token_count(given, "output_tokens"),
        cache_read=token_count(read, "cached_tokens"),
        cache_write=token_count(read, "cache_write_tokens"),
        reasoning=token_count(given.get("output_tokens_details"), "reasoning_tokens"),
    )


def _decode_item(item: JSONObject) -> Message:
    kind = item.get("type")
    if kind == "message" or (kind is None and "role" in item):
        return _decode_message(item)
    if isinstance(kind, str) and kind in _CALLS:
        return Message(role="assistant", parts=tuple(_decode_call(item, kind)))
    if isinstance(kind, str) and kind in _OUTPUTS:
        return Message(role="tool", parts=tuple(_decode_output(item, kind)))
    kept = _object(copied(dict(item)))
    if not _has_required_fields(kept):
        raise BadMessage(
            f"type: {kind!r} is not an item of the Responses API, or lacks required fields"
        )
    parts: list[Part] = [Raw(SOURCE, {"item": kept})]
    if thought := _reasoning_text(kept):
        parts.insert(0, Thinking(thought))
    return Message(role=_role_of(kind), parts=tuple(parts))


def _role_of(kind: JSON) -> Role:
    if not isinstance(kind, str):
        return "assistant"
    if kind in _FROM_SYSTEM:
        return "system"
    return "tool" if kind.endswith(_FROM_TOOLS) else "assistant"


def _reasoning_text(item: JSONObject) -> str:
    """Return the readable text of a reasoning item: the reasoning itself, or else its summary."""
    if item.get("type") != "reasoning":
        return ""
    content = item.get("content") or item.get("summary")
    pieces = [_object(piece).get("text") for piece in content] if isinstance(content, list) else []
    return "\n\n".join(text for text in pieces if isinstance(text, str))


def _decode_message(item: Mapping[str, JSON]) -> Message:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadMessage(f"role: {role!r} is not a role of the Responses API")
    content = item.get("content")
    if not isinstance(content, str | list):
        raise BadMessage(f"content: expected text or a list, got {type(content).__name__}")
    own_role = _ROLES[role]
    parts: list[Part] = [*_decode_content(content, own_role)]
    fields: JSONObject = {
        key: copied(value) for key, value in item.items() if key not in {"content", "role"}
    }
    if role != own_role:
        fields["role"] = role
    extra: JSONObject = {"fields": fields} if fields else {}
    if content == []:
        extra["shape"] = "empty"
    elif isinstance(content, list) and isinstance(_write_content(parts, own_role), str):
        extra["shape"] = "list"
    last = message_note(SOURCE, extra, own_role)
    return Message(role=own_role, parts=(*parts, last) if last else tuple(parts))


def _write_content(parts: Sequence[Part], role: str) -> JSON:
    return _content_of(_write_pieces(with_notes(parts, SOURCE), role), role, shape=None)


def _decode_content(content: str | list[JSON], role: str) -> list[Piece]:
    if isinstance(content, str):
        return [Text(content)]
    return [part for piece in content for part in _decode_piece(piece, role)]


def _decode_piece(piece: JSON, role: str) -> list[Piece]:
    """Decode a piece: a part, with a note for extra fields; a verbatim piece if no part fits."""
    if not isinstance(piece, dict):
        return [Raw(SOURCE, {"content": copied(piece)})]
    kind, text = piece.get("type"), piece.get("text")
    if isinstance(text, str) and str(kind) in {"input_text", "output_text"}:
        return _text_parts(piece, text, role)
    file, bare = _read_file(piece)
    if file is None:
        return [Raw(SOURCE, {"content": copied(piece)})]
    ours = _write_file(file, str(kind), bare=bare)
    if bare:
        kept = _object(kind_note(SOURCE, piece, ours, str(kind)).data)
        return [file, Raw(SOURCE, {**kept, "bare": True})]
    if _kind_of(file) != kind:
        return [file, kind_note(SOURCE, piece, ours, str(kind))]
    more = part_note(SOURCE, piece, ours, str(kind))
    return [file] if more is None else [file, more]


def _text_parts(piece: JSONObject, text: str, role: str) -> list[Piece]:
    """Decode text. The role alone decides how it is sent: only assistant text is `output_text`."""
    ours = _write_text(text, role)
    more = (
        part_note(SOURCE, piece, ours, str(ours["type"])) if piece["type"] == ours["type"] else None
    )
    return [Text(text)] if more is None else [Text(text), more]


def _read_file(piece: JSONObject) -> tuple[File | None, bool]:
    """Decode a file; the flag is true if its data is bare base64 instead of a data URL."""
    if piece.get("type") == "input_audio":
        return from_audio(piece), False
    if piece.get("type") == "input_image" and "file_id" not in piece:
        return from_data_url(piece.get("image_url")), False
    if piece.get("type") != "input_file" or {"file_id", "file_url"} & piece.keys():
        return None, False
    name = piece.get("filename")
    name = name if isinstance(name, str) else None
    if file := from_data_url(piece.get("file_data"), name):
        return file, False
    data = from_base64(piece.get("file_data"))
    if data is None:
        return None, False
    return File(name=name, mime=mime_of(File(name=name)), data=data), True


def _decode_call(item: Mapping[str, JSON], kind: str) -> list[Part]:
    id, name, text = item.get("call_id"), item.get("name"), item.get(_CALLS[kind])
    if not (isinstance(id, str) and isinstance(name, str) and isinstance(text, str)):
        raise BadMessage(f"{kind}: call_id, name and {_CALLS[kind]} are required, all text")
    if kind == "custom_tool_call":
        call = ToolCall(id, name, text)
        return [call, kind_note(SOURCE, item, _write_call(call, kind), kind)]
    call = ToolCall(id, name, read_arguments(text))
    more = part_note(SOURCE, item, _write_call(call, kind), kind)
    return [call] if more is None else [call, more]


def _decode_output(item: Mapping[str, JSON], kind: str) -> list[Part]:
    id, output, name = item.get("call_id"), item.get("output"), item.get("name")
    if not isinstance(output, str | list):
        raise BadMessage(f"{kind}: output: expected text or a list, got {type(output).__name__}")
    if not isinstance(id, str):  # Output of a program's own call: there is no call to pair it with.
        return [Raw(SOURCE, {"item": copied(dict(item))})]
    content = output if isinstance(output, str) else tuple(_decode_content(output, "tool"))
    result = ToolResult(id, content, name=name if isinstance(name, str) else None)
    ours = _write_result(result, kind)
    if kind == "custom_tool_call_output":
        return [result, kind_note(SOURCE, item, ours, kind)]
    more = part_note(SOURCE, item, ours, kind)
    return [result] if more is None else [result, more]


def _object(value: JSON) -> JSONObject:
    return value if isinstance(value, dict) else {}


# -------------------------------------------------------------------------------------- encoding


def encode(message: Message, *, reply: bool = False) -> list[dict[str, JSON]]:
    """Encode a message as items; an empty list if nothing of it can be sent.

    With `reply`, return exactly what was decoded, also what is never sent: the reply itself, or the
    item.
    """
    if reply and (original := kept(message, SOURCE)) is not None:
        return [original]
    role = _SENT_ROLES[message.role]
    items: list[dict[str, JSON]] = []
    content: list[Noted] = []
    for part, more in with_notes(message.parts, SOURCE):
        about = _message_note_data(part)
        if about is None and not _is_item(part):
            content.append((part, more))
            continue
        items += _write_message(content, role, about or {})
        items += _write_item(part, more)
        content = []
    return items + _write_message(content, role, {})


def _message_note_data(part: Part) -> JSONObject | None:
    """Return the data of a message note; None if the part is not one."""
    if not isinstance(part, Raw) or raw_object(part, "fields") is None:
        return None
    return _object(part.data)


def _is_item(part: Part) -> bool:
    kept = isinstance(part, Raw) and raw_object(part, "item") is not None
    return kept or isinstance(part, ToolCall | ToolResult)


def _write_item(part: Part, more: JSONObject) -> list[JSONObject]:
    """Encode a part that is an item by itself; an empty list if it is not valid."""
    given = more.get("of")
    if isinstance(part, ToolCall):
        kind = "custom_tool_call" if given == "custom_tool_call" else "function_call"
        return [merge_note(_write_call(part, kind), more if given == kind else {})]
    if isinstance(part, ToolResult):
        custom = given == "custom_tool_call_output"
        kind = "custom_tool_call_output" if custom else "function_call_output"
        return [merge_note(_write_result(part, kind), more if given == kind else {})]
    kept = raw_object(part, "item") if isinstance(part, Raw) else None
    return [_object(copied(kept))] if kept is not None and _has_required_fields(kept) else []


def _has_required_fields(item: JSONObject) -> bool:
    """True if a verbatim item is valid: it has the fields its type requires.

    Types that parts represent are never kept verbatim, except an output without a call.
    """
    kind, id = item.get("type"), item.get("id")
    if _is_reference(item):
        return isinstance(id, str) and (kind is not None or item.keys() <= {"id", "type"})
    if kind == "reasoning":
        return isinstance(id, str) and isinstance(item.get("summary"), list)
    if kind == "function_call_output":
        return item.get("call_id") is None and isinstance(item.get("output"), str | list)
    return isinstance(kind, str) and kind not in {"message", *_CALLS, *_OUTPUTS}


def _is_reference(item: JSONObject) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item)


def _write_call(call: ToolCall, kind: str) -> JSONObject:
    text = write_arguments(call.arguments)
    return {"type": kind, "call_id": call.id, "name": call.name, _CALLS[kind]: text}


def _write_result(result: ToolResult, kind: str) -> JSONObject:
    output: JSON = result.content if isinstance(result.content, str) else ""
    if not isinstance(result.content, str):
        output = [*_write_pieces(with_notes(result.content, SOURCE), "tool")] or ""
    return {"type": kind, "call_id": result.call_id, "output": output}


def _write_message(content: Sequence[Noted], role: str, about: JSONObject) -> list[JSONObject]:
    """Encode content as a message; empty content gives none, unless it was decoded as empty."""
    pieces = _write_pieces(content, role)
    fits = about.get("of") == role
    shape = about.get("shape") if fits else None
    if not pieces and shape != "empty":
        return []
    ours: JSONObject = {"role": role, "content": _content_of(pieces, role, shape=shape)}
    if not fits:
        return [ours]
    fields = _object(copied(about.get("fields")))
    if fields.pop("role", None) == "developer" and role == "system":
        ours["role"] = "developer"
    if fields.get("type", "message") != "message":
        del fields["type"]
    return [{**fields, **ours}]


def _content_of(pieces: Sequence[JSONObject], role: str, *, shape: JSON) -> JSON:
    """Return plain text if the content is a single text, else the list of its pieces."""
    if len(pieces) == 1 and shape != "list":
        text = pieces[0].get("text")
        if isinstance(text, str) and pieces[0] == _write_text(text, role):
            return text
    return [*pieces]


def _write_pieces(content: Sequence[Noted], role: str) -> list[JSONObject]:
    return [piece for part, more in content for piece in _write_piece(part, more, role)]


def _write_piece(part: Part, more: JSONObject, role: str) -> list[JSONObject]:
    if isinstance(part, Text):
        ours = _write_text(part.text, role)
        return [merge_note(ours, more) if more.get("of") == ours["type"] else ours]
    if isinstance(part, File):
        return [_write_file_or_breadcrumb(part, more, role)]
    kept = raw_object(part, "content") if isinstance(part, Raw) else None
    if kept is None or not _is_piece(kept, role):
        return []
    return [_object(copied(kept))]


def _is_piece(piece: JSONObject, role: str) -> bool:
    """True if a verbatim piece is allowed in this role and has the fields its type requires."""
    kind = piece.get("type")
    if not isinstance(kind, str) or kind in {"input_text", "output_text"}:
        return False  # A verbatim text piece is one that could not be decoded.
    if kind == "refusal" and not isinstance(piece.get("refusal"), str):
        return False
    return kind not in (_INPUT_PIECES if role == "assistant" else _OUTPUT_PIECES)


def _write_text(text: str, role: str) -> JSONObject:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _write_file_or_breadcrumb(file: File, more: JSONObject, role: str) -> JSONObject:
    """Encode a file: as the kind in its note, else as the kind of its type, else a breadcrumb."""
    given = more.get("of")
    kind = given if isinstance(given, str) and given in _FILE_KINDS else _kind_of(file)
    if kind is None or file.data is None or role == "assistant":
        return _write_text(breadcrumb(file), role)
    ours = _write_file(file, kind, bare=more.get("bare") is True)
    return merge_note(ours, more) if kind == given else ours


def _kind_of(file: File) -> str | None:
    mime = mime_of(file)
    if mime in IMAGES:
        return "input_image"
    return "input_file" if mime in _DOCUMENTS or mime.startswith("text/") else None


def _write_file(file: File, kind: str, *, bare: bool = False) -> JSONObject:
    if kind == "input_audio":
        return to_audio(file)
    if kind == "input_image":
        return {"type": "input_image", "image_url": to_data_url(file), "detail": "auto"}
    data = to_base64(file) if bare else to_data_url(file)
    return {"type": "input_file", "filename": name_of(file), "file_data": data}


# ------------------------------------------------------------------------------- rules of a window


def _has_content(item: JSONObject) -> bool:
    return bool(item.get("content")) or item.get("type", "message") != "message"


FORMAT: Final = Format(
    provider=SOURCE,
    encode=encode,
    decode=decode,
    has_content=_has_content,
    is_thinking=lambda item: item.get("type") == "reasoning",
    make_compatible=make_compatible,
    encode_system=None,
    alternates_roles=False,
    errors_in_text=True,
    call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    tool_name=re.compile(r"[a-zA-Z0-9_-]+"),
    max_name_chars=64,
    item_noun="item",
)
