"""Messages of Anthropic's Messages API.

`decode` reads one message of a request, or a whole reply; `encode` writes what a request may hold,
and with `reply=True` exactly what was read: a reply's id, model, stop reason and usage are stored,
and never sent. A user message that holds only tool results becomes a `tool` message.

A message from another provider is encoded as far as this format allows:

* thinking is sent if it is signed and nothing shows that another provider signed it. Other
  thinking, blank text and other providers' pieces are omitted. If nothing remains, `content` is an
  empty list: such a message must not be sent;
* images, PDF and text files are blocks in user messages; in assistant messages, for files of other
  types, and for files without data, a breadcrumb text stands for the file;
* a call's arguments become an object (see `arguments_of`);
* a system message or a summary becomes a user message that begins with a label. Only a system
  message decoded from this format is sent as one: not every model accepts the role.

`content` is a list of blocks, except for a user message of a single text: then it is that text.

In a window, the result of a server tool follows its call in the same message, and every such call
has a result, except at the very end, where the server may continue; thinking is allowed only at the
beginning of a message, counting only blocks that can be sent; a result flagged as an error holds
text only, so an error with an image is marked in its text instead.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.errors import BadMessage
from holdfast.formats.common import (
    ERROR_MARK,
    JSONObject,
    breadcrumb,
    copied,
    filter_parts,
    from_base64,
    json_object,
    mime_of,
    token_count,
    with_error_mark,
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
    to_raw,
    verbatim,
    verbatim_piece,
    with_notes,
    with_role_label,
)
from holdfast.formats.registry import PROVIDERS, Format
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

SOURCE: Final = "anthropic"

_ROLES: Final[dict[str, Role]] = {"assistant": "assistant", "system": "system", "user": "user"}
_IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_PDF: Final = "application/pdf"
_PLAIN: Final = "text/plain"
_OTHERS: Final = frozenset(PROVIDERS) - {SOURCE}
_BLANK: Final[JSONObject] = {"type": "text"}
# The two encodings of content that is a single text.
_STRING: Final = "string"
_BLOCKS: Final = "blocks"
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_SERVER_CALLS: Final = frozenset({"mcp_tool_use", "server_tool_use"})
_SERVER_RESULT_SUFFIX: Final = "_tool_result"
# The text of a message of which nothing else can be sent.
_INTERRUPTED_TEXT: Final = "[interrupted]"


# -------------------------------------------------------------------------------------- decoding


def decode(item: Mapping[str, JSON]) -> Message:
    """Decode one message or a whole reply; `BadMessage` if it is not valid."""
    original = json_object(item, "a message")
    return keep(_decode(original), SOURCE, original)


def _decode(original: JSONObject) -> Message:
    given = dict(original)
    role = given.pop("role", None)
    if not isinstance(role, str) or role not in _ROLES:
        raise BadMessage("role: must be user, assistant or system")
    content = given.pop("content", None)
    blocks = _blocks_of(content)
    parts = [part for block in blocks for part in _decode_block(block, role)]
    is_reply = given.get("type") == "message"
    note = _note_of({} if is_reply else given, role, content, blocks)
    if note != MessageNote({}):
        parts.append(to_raw(SOURCE, note))
    only_results = all(block.get("type") == "tool_result" for block in blocks)
    message = Message(
        role="tool" if role == "user" and blocks and only_results else _ROLES[role],
        parts=tuple(parts),
    )
    if not is_reply:
        return message
    usage = given.get("usage")
    return with_reply_fields(
        message,
        id=given.get("id"),
        model=given.get("model"),
        usage=usage_of(usage) if isinstance(usage, dict) else None,
    )


def _blocks_of(content: JSON) -> list[JSONObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise BadMessage("content: expected text or a list of blocks")
    blocks: list[JSONObject] = []
    for number, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise BadMessage(f"content[{number}]: expected an object with a type")
        blocks.append(block)
    return blocks


def _note_of(
    fields: JSONObject, role: str, content: JSON, blocks: Sequence[JSONObject]
) -> MessageNote:
    """Return a note with the message's fields beyond its blocks."""
    made: JSONObject = {}
    if role == "system":
        fields, made = {**fields, "role": "system"}, {"role": "user"}
    form = None
    if _is_one_text(blocks) and isinstance(content, str) == (role == "assistant"):
        form = _STRING if isinstance(content, str) else _BLOCKS
    return MessageNote(fields, made, form)


def _is_one_text(blocks: Sequence[JSONObject]) -> bool:
    return len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and _is_text(blocks[0])


def _is_text(block: JSONObject) -> bool:
    return block["type"] == "text" and isinstance(block.get("text"), str)


def usage_of(given: JSONObject) -> Usage:
    """Return the usage. Holdfast counts tokens read from or written to the cache as input."""
    read = token_count(given, "cache_read_input_tokens")
    wrote = token_count(given, "cache_creation_input_tokens")
    return Usage(
        input=token_count(given, "input_tokens") + read + wrote,
        output=token_count(given, "output_tokens"),
        cache_read=read,
        cache_write=wrote,
        reasoning=token_count(given.get("output_tokens_details"), "thinking_tokens"),
    )


def _text_or_none(value: JSON) -> str | None:
    return value if isinstance(value, str) else None


def _decode_block(block: JSONObject, role: str) -> tuple[Part, ...]:
    """Decode a block: a part, with a note for extra fields; a verbatim piece if no part fits."""
    part = _read_block(block, role)
    if part is None:
        return (verbatim(SOURCE, block),)
    plain = _encode_part(part, None, role)
    if plain == block and not isinstance(part, Thinking):
        return (part,)
    bare = PartNote(kind_of(part), {})
    fields, made = diff_fields(block, _encode_part(part, bare, role) or {})
    if made:  # The part cannot represent the block exactly.
        return (verbatim(SOURCE, block),)
    return part, to_raw(SOURCE, PartNote(bare.of, fields))


def _read_block(block: JSONObject, role: str) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "thinking", "thinking": str(text), "signature": str(signature)}:
            return Thinking(text, signature)
        case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(arguments)}:
            return ToolCall(id, name, arguments)
        case {"type": "tool_result", "tool_use_id": str(call_id)}:
            return _read_result(block, call_id)
        case {"type": "image" | "document", "source": dict(source)} if role != "assistant":
            return _read_file(block, source)
    return None


def _read_result(block: JSONObject, call_id: str) -> ToolResult | None:
    content, error = block.get("content"), block.get("is_error")
    if isinstance(content, str):
        return ToolResult(call_id, content, error=error is True)
    if content is not None and not isinstance(content, list):
        return None
    inside: list[Text | File | Raw] = []
    for piece in content or ():
        if not isinstance(piece, dict) or not isinstance(piece.get("type"), str):
            return None
        inside += _read_inside(piece)
    return ToolResult(call_id, tuple(inside) or "", error=error is True)


def _read_inside(piece: JSONObject) -> list[Text | File | Raw]:
    parts = _decode_block(piece, "user")
    kept = [part for part in parts if isinstance(part, Text | File | Raw)]
    return kept if len(kept) == len(parts) else [verbatim(SOURCE, piece)]


def _read_file(block: JSONObject, source: JSONObject) -> File | None:
    """Decode a file with inline data; None for a reference (a URL, an uploaded file)."""
    title = _text_or_none(block.get("title")) if block["type"] == "document" else None
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(text)}:
            data = from_base64(text)
        case {"type": "text", "media_type": "text/plain" as mime, "data": str(text)}:
            data = _utf8(text)
        case _:
            return None
    return None if data is None else File(name=title or None, mime=mime, data=data)


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


# -------------------------------------------------------------------------------------- encoding


def encode(message: Message, *, reply: bool = False) -> JSONObject:
    """Encode a message. If nothing of it can be sent, its content is an empty list.

    With `reply`, return exactly what was decoded, also what is never sent.
    """
    if reply and (original := kept(message, SOURCE)) is not None:
        return original
    note = message_note(SOURCE, message.parts)
    role = "assistant" if message.role == "assistant" else "user"
    encoded = merge_under(note.fields, note.made, {"role": role})
    is_native = message.role == "system" and encoded.get("role") == "system"
    if not is_native:
        encoded["role"] = role
    label_role = "user" if is_native else message.role
    content = with_role_label(label_role, _encode_parts(message, role), _BLANK)
    usual = _BLOCKS if role == "assistant" else _STRING
    encoded["content"] = _content_of(content, note.form or usual)
    return {key: copied(value) for key, value in encoded.items()}


def _encode_parts(message: Message, role: str) -> list[JSONObject]:
    noted = with_notes(SOURCE, message.parts)
    if _is_foreign(message):
        noted = [(part, note) for part, note in noted if note or not isinstance(part, Thinking)]
    blocks = [_encode_part(part, note, role) for part, note in noted]
    return [block for block in blocks if block is not None]


def _is_foreign(message: Message) -> bool:
    """True if the thinking in a message, unless noted as Anthropic's, is another provider's."""
    if message.model is not None and "claude" not in message.model.lower():
        return True
    return any(isinstance(part, Raw) and part.source in _OTHERS for part in message.parts)


def _content_of(blocks: list[JSON], form: str) -> JSON:
    match blocks:
        case [{"type": "text", "text": str(text), **rest}] if form == _STRING and not rest:
            return text
    return blocks


def _encode_part(part: Part, note: PartNote | None, role: str) -> JSONObject | None:
    """Encode a part; None if it cannot be sent."""
    if isinstance(part, Raw):
        kept = verbatim_piece(part)
        return kept if kept is not None and isinstance(kept.get("type"), str) else None
    if isinstance(part, File):
        block = _encode_file(part, role, noted=note is not None)
        if block is None:
            return {**_BLANK, "text": breadcrumb(part)}
    else:
        block = _encode_block(part, noted=note is not None)
    return block if block is None or note is None else merge_under(note.fields, {}, block)


def _encode_block(
    part: Text | Thinking | ToolCall | ToolResult, *, noted: bool
) -> JSONObject | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text} if noted or part.text.strip() else None
    if isinstance(part, Thinking):
        if not part.signature and not noted:
            return None
        return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
    if isinstance(part, ToolCall):
        call: JSONObject = {"id": part.id, "name": part.name, "input": arguments_of(part)}
        return {"type": "tool_use", **call}
    return _encode_result(part)


def _encode_result(result: ToolResult) -> JSONObject:
    block: JSONObject = {"type": "tool_result", "tool_use_id": result.call_id}
    if isinstance(result.content, str):
        if result.content:
            block["content"] = result.content
    else:
        inside = [
            _encode_part(part, note, "user") for part, note in with_notes(SOURCE, result.content)
        ]
        if pieces := [piece for piece in inside if piece is not None]:
            block["content"] = [*pieces]
    if result.error:
        block["is_error"] = True
    return block


def _encode_file(file: File, role: str, *, noted: bool) -> JSONObject | None:
    """Encode a file with its data; None if only its breadcrumb can be sent."""
    if role == "assistant" or file.data is None or not (file.data or noted):
        return None
    mime = mime_of(file).partition(";")[0].strip()
    if mime in _IMAGES:
        return {"type": "image", "source": _base64_source(mime, file.data)}
    source = _document_source(mime, bytes(file.data), noted=noted)
    if source is None:
        return None
    return {"type": "document", "source": source, **({"title": file.name} if file.name else {})}


def _document_source(mime: str, data: bytes, *, noted: bool) -> JSONObject | None:
    if mime == _PDF:
        return _base64_source(mime, data)
    if not mime.startswith("text/"):
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.strip() and not noted:
        return None
    return {"type": "text", "media_type": _PLAIN, "data": text}


def _base64_source(mime: str, data: bytes) -> JSONObject:
    return {"type": "base64", "media_type": mime, "data": b64encode(data).decode("ascii")}


# ------------------------------------------------------------------------------- rules of a window


def _make_compatible(messages: Sequence[Message]) -> list[Message]:
    """Omit server tools without a counterpart and misplaced thinking; mend error flags."""
    last = len(messages) - 1
    return [
        _drop_misplaced_thinking(_drop_unpaired_server_tools(message, is_last=at == last))
        if message.role == "assistant"
        else message.with_parts([*map(_with_valid_error_flag, message.parts)])
        for at, message in enumerate(messages)
    ]


def _with_valid_error_flag(part: Part) -> Part:
    """Mark an error that holds more than text in its text instead of by the flag."""
    if not isinstance(part, ToolResult) or not part.error:
        return part
    kinds = _result_block_types(part)
    if not kinds:
        return msgspec.structs.replace(part, content=ERROR_MARK)
    return (
        part if kinds == {"text"} else msgspec.structs.replace(with_error_mark(part), error=False)
    )


def _result_block_types(result: ToolResult) -> set[str]:
    """Return the types of the blocks that a result is encoded as."""
    match encode(Message(role="tool", parts=(result,))):
        case {"content": [{"content": str()}]}:
            return {"text"}
        case {"content": [{"content": list(blocks)}]}:
            return {str(block["type"]) for block in blocks if isinstance(block, dict)}
    return set()


def _drop_unpaired_server_tools(message: Message, *, is_last: bool) -> Message:
    """Omit results of server tools without their calls, and calls without results."""
    called: set[str] = set()
    answered: set[str] = set()
    kept: list[Part] = []
    for part in message.parts:
        block = _own_block(part)
        if (call := _server_call_id(block)) is not None:
            called.add(call)
        elif (answer := _server_result_id(block)) is not None:
            if answer not in called - answered:
                continue
            answered.add(answer)
        kept.append(part)
    waiting = called - answered if not is_last else set[str]()
    parts = [part for part in kept if _server_call_id(_own_block(part)) not in waiting]
    if len(parts) < len(message.parts) and not _has_valid_ending(parts):
        parts.append(Text(_INTERRUPTED_TEXT))
    return message.with_parts(parts)


def _has_valid_ending(parts: Sequence[Part]) -> bool:
    """True if the last piece may end a message: there is one, and it is not thinking."""
    pieces = [part for part in parts if not isinstance(part, Raw) or _own_block(part)]
    if not pieces or isinstance(pieces[-1], Thinking):
        return False
    return _own_block(pieces[-1]).get("type") != "redacted_thinking"


def _drop_misplaced_thinking(message: Message) -> Message:
    """Omit all thinking from a message whose encoded form does not begin with it."""
    if not any(map(_is_thinking, message.parts)):
        return message
    kinds = _block_types(message)
    if _THINKING.isdisjoint(kinds) or kinds[0] in _THINKING:
        return message
    return message.with_parts(filter_parts(message.parts, lambda part: not _is_thinking(part)))


def _block_types(message: Message) -> list[str]:
    """Return the types of the blocks that a message is encoded as, in order."""
    blocks = encode(message)["content"]
    if not isinstance(blocks, list):
        return []
    return [str(block["type"]) for block in blocks if isinstance(block, dict)]


def _is_thinking(part: Part) -> bool:
    return isinstance(part, Thinking) or str(_own_block(part).get("type")) in _THINKING


def _own_block(part: Part) -> JSONObject:
    own = isinstance(part, Raw) and part.source == SOURCE
    return (verbatim_piece(part) or {}) if own and isinstance(part, Raw) else {}


def _server_call_id(block: JSONObject) -> str | None:
    return str(block.get("id")) if str(block.get("type")) in _SERVER_CALLS else None


def _server_result_id(block: JSONObject) -> str | None:
    is_answer = str(block.get("type", "")).endswith(_SERVER_RESULT_SUFFIX)
    return str(block.get("tool_use_id")) if is_answer else None


FORMAT: Final = Format(
    provider=SOURCE,
    encode=lambda message: [encode(message)],
    decode=decode,
    has_content=lambda item: bool(item.get("content")),
    is_thinking=lambda block: str(block.get("type")) in _THINKING,
    make_compatible=_make_compatible,
    encode_system=lambda text: text,
    alternates_roles=True,
    errors_in_text=False,
    call_id=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    tool_name=re.compile(r"[a-zA-Z0-9_-]+"),
    max_name_chars=128,
)
