"""Messages of Pydantic AI as Holdfast's, and back.

A response is an assistant message. A request is a message for each run of its parts that have the
same role: instructions, input of the user, results of tools. Only the last of these has the id of
the entry; the metadata of those before it names that entry, so that they are put together again.
The JSON of each is kept beside its parts, and the framework gets the same JSON back.

A message that another program wrote is built from its parts: a summary becomes a compaction, and
thinking keeps its signature if it is surely Claude's.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from holdfast import File, Message, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.adapters.shared_session import is_for_models
from holdfast.errors import BadMessage, install_command
from holdfast.formats import keep, kept, openai
from holdfast.values import JSON, WHOLE_OUTPUT, Part, Role

try:
    from pydantic_ai.messages import (
        BinaryContent,
        CompactionPart,
        FilePart,
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.usage import RequestUsage
except ImportError as error:
    raise ImportError(
        f"pydantic-ai-slim 2.66 or newer is not installed: {install_command('pydantic-ai')}",
        name=error.name,
    ) from error

SOURCE: Final = "pydantic_ai"
BlobReader: TypeAlias = Callable[[str], bytes]
Fields: TypeAlias = dict[str, Any]

_ROLES: Final[Mapping[str, Role]] = {
    "compaction": "user",
    "retry-feedback": "user",
    "speech": "user",
    "system-prompt": "system",
    "tool-return": "tool",
    "user-prompt": "user",
}
_BINARY_FIELDS: Final = frozenset({"data", "identifier", "kind", "media_type", "vendor_metadata"})
_TOKENS: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
    "reasoning": "output_reasoning_tokens",
}
_UNKNOWN_TOOL: Final = "unknown"
_CUT_OFF: Final = frozenset({"incomplete", "interrupted"})


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return what `dump_python` returned as the JSON that is stored.

    As in the framework's own JSON, a number that JSON does not have is null. The data of files is
    in the alphabet that `keep` finds it by.
    """
    return _mapped(value, lambda data: b64encode(data).decode("ascii"))


def _mapped(value: Any, written: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON with the data of its files as it is `written`."""
    if isinstance(value, list):
        return [_mapped(inner, written) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, dict):
        return value
    data = _file_data(value)
    fields = {key: _mapped(inner, written) for key, inner in value.items()}
    return fields if data is None else {**fields, "data": written(data)}


def _file_data(value: object) -> bytes | None:
    """Return the data of a file, a `BinaryContent` as JSON; None for any other value."""
    if not isinstance(value, dict) or value.get("kind") != "binary":
        return None
    text, mime = value.get("data"), value.get("media_type")
    if not (isinstance(text, str) and isinstance(mime, str) and value.keys() <= _BINARY_FIELDS):
        return None
    try:
        data = b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        return None
    return data if text in {b64encode(data).decode(), urlsafe_b64encode(data).decode()} else None


def _files_in(value: object) -> Iterator[File]:
    """Yield the files anywhere in JSON."""
    data = _file_data(value)
    if isinstance(value, dict) and data is not None:
        yield File(mime=value["media_type"], data=data)
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _files_in(inner)


# -------------------------------------------------------------------------------------- to store


def to_messages(entry_id: str, message: ModelMessage) -> list[Message]:
    """Return the messages of an entry; the last of them has its id."""
    given = plain(ModelMessagesTypeAdapter.dump_python([message], mode="json")[0])
    if isinstance(message, ModelResponse):
        return [_stored_response(entry_id, message, given)]
    time = _time(message.timestamp)
    sections = _sections(given["parts"])
    last = len(sections) - 1
    return [
        _stored(
            Message(
                id=entry_id if number == last else f"{entry_id}/{number}",
                role=role,
                created_at=time,
                metadata={} if number == last else {SOURCE: {"entry": entry_id}},
            ),
            {**given, "parts": parts} if number == last else {"parts": parts},
        )
        for number, (role, parts) in enumerate(sections)
    ]


def _stored_response(entry_id: str, message: ModelResponse, given: Fields) -> Message:
    counts = {ours: max(0, getattr(message.usage, name)) for ours, name in _TOKENS.items()}
    bare = Message(
        id=entry_id,
        role="assistant",
        created_at=_time(message.timestamp),
        status="partial" if message.state in _CUT_OFF else "complete",
        model=message.model_name,
        usage=Usage(**counts) if any(counts.values()) else None,
        cost=message.usage.cost,
    )
    return _stored(bare, given)


def _stored(bare: Message, given: Fields) -> Message:
    """Return a message with the parts of `given`, and with what these lack beside them."""
    parts = [part for piece in given["parts"] for part in _parts_of(piece)]
    originals: JSON = [_kept_part(piece) for piece in given["parts"]]
    return keep(bare.with_parts(parts), SOURCE, {**given, "parts": originals})


def _sections(parts: Sequence[Fields]) -> list[tuple[Role, list[Fields]]]:
    """Return the runs of a request's parts; a part that is no message belongs to the one before."""
    found: list[tuple[Role | None, list[Fields]]] = []
    for part in parts:
        role = _role_of(part)
        before = found[-1][0] if found else None
        if found and (role is None or before is None or role == before):
            found[-1] = (role or before, [*found[-1][1], part])
        else:
            found.append((role, [part]))
    return [(role or "user", run) for role, run in found or [(None, [])]]


def _role_of(part: Fields) -> Role | None:
    if part["part_kind"] == "retry-prompt":
        return "user" if part.get("tool_name") is None else "tool"
    return _ROLES.get(part["part_kind"])


def _time(value: datetime | None) -> datetime | None:
    return value if value is not None and value.utcoffset() is not None else None


def _parts_of(given: Fields) -> Sequence[Part]:
    """Return the parts of a part; none for state that no other program would show."""
    match given:
        case {"part_kind": "tool-call"}:
            return (_call(given),)
        case {"part_kind": "tool-return"} | {"part_kind": "retry-prompt", "tool_name": str()}:
            return (_result(given),)
        case {"part_kind": "thinking", "content": str(text)}:
            return (Thinking(text, given.get("signature")),)
        case {"part_kind": "user-prompt" | "file", "content": content}:
            return _content(content if isinstance(content, list) else [content])
        case {"part_kind": "speech"}:
            spoken = (given.get("transcript"), given.get("audio"))
            return _content([piece for piece in spoken if piece is not None])
        case {"part_kind": "retry-feedback" | "retry-prompt", "content": content}:
            return (Text(_text(content)),)
        case {"part_kind": "text" | "system-prompt" | "compaction", "content": str(text)}:
            return (Text(text),)
    return ()


def _content(pieces: Iterable[Any]) -> list[Text | File]:
    """Return the content of a prompt; a link is its address."""
    found: list[Text | File] = []
    for piece in pieces:
        if isinstance(piece, str):
            found.append(Text(piece))
        elif piece["kind"] == "binary":
            found += _files_in(piece)
        elif isinstance(text := piece.get("content", piece.get("url")), str):
            found.append(Text(text))
    return found


def _call(given: Fields) -> ToolCall:
    id, name, arguments = given["tool_call_id"], given["tool_name"], given["args"]
    if not isinstance(arguments, str):
        return ToolCall(id, name, arguments)
    function: dict[str, JSON] = {"name": name, "arguments": arguments}
    call: dict[str, JSON] = {"id": id, "type": "function", "function": function}
    return openai.decode({"role": "assistant", "tool_calls": [call]}).tool_calls[0]


def _result(given: Fields) -> ToolResult:
    content = given["content"]
    pieces = tuple(piece for item in _items(content) for piece in _result_pieces(item))
    return ToolResult(
        given["tool_call_id"],
        pieces if any(_files_in(content)) else _text(content),
        error=given.get("outcome", "failed") != "success",
        name=given["tool_name"],
    )


def _items(content: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    return content if isinstance(content, list) else [content]


def _result_pieces(item: Any) -> list[Text | File]:  # noqa: ANN401 - any JSON
    files = [*_files_in(item)]
    if _file_data(item) is not None:
        return [*files]
    return [Text(_text(_mapped(item, lambda _: None) if files else item)), *files]


def _text(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Return a value as text: a text as it is, any other as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kept_part(given: Fields) -> Fields:
    """Return a part as it is kept: JSON that the text of its result holds is a text there, too."""
    if given["part_kind"] != "tool-return":
        return given
    content = given["content"]
    if isinstance(content, list) and any(_files_in(content)):
        return {**given, "content": [_kept_item(item) for item in content]}
    return {**given, "content": _kept_item(content)}


def _kept_item(item: Any) -> Any:  # noqa: ANN401 - any JSON
    return item if isinstance(item, str) or any(_files_in(item)) else {"json": _text(item)}


# ------------------------------------------------------------------------------------ from store


def grouped(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages of each entry; a message that another program wrote is one."""
    group: list[Message] = []
    for message in messages:
        if group and _entry_of(group[-1]) not in {_entry_of(message), message.id}:
            yield group
            group = []
        group.append(message)
        if _entry_of(message) is None:
            yield group
            group = []
    if group:
        yield group


def _entry_of(message: Message) -> JSON:
    """Return the id of the entry that a message begins; None if it is one or ends one."""
    found = message.metadata.get(SOURCE)
    return found.get("entry") if isinstance(found, dict) else None


def from_messages(
    messages: Sequence[Message], names: Mapping[str, str], blob: BlobReader
) -> ModelMessage:
    """Return the messages of one entry as the framework's; `names` are those of tools, by call."""
    originals = [_original(message, blob) for message in messages]
    if None in originals:
        built = [_built(message, names, blob) for message in messages]
        if len(built) == 1:
            return built[0]
        return ModelRequest(
            [part for one in built for part in one.parts], timestamp=built[0].timestamp
        )
    parts = [_restored_part(part) for given in originals for part in given["parts"]]
    given = _mapped({"kind": "request", **originals[-1], "parts": parts}, lambda data: data)
    return ModelMessagesTypeAdapter.validate_python([given])[0]


def _original(message: Message, blob: BlobReader) -> Any:  # noqa: ANN401 - any JSON
    """Return the JSON of a message; None if it is another program's, or was amended by one."""
    try:
        return kept(message, SOURCE, blob=blob)
    except BadMessage:
        return None


def _restored_part(given: Fields) -> Fields:
    if given["part_kind"] != "tool-return":
        return given
    content = given["content"]
    if isinstance(content, list):
        return {**given, "content": [_restored_item(item) for item in content]}
    return {**given, "content": _restored_item(content)}


def _restored_item(item: Any) -> Any:  # noqa: ANN401 - any JSON
    match item:
        case {"json": str(text)} if len(item) == 1:
            return json.loads(text)
    return item


def _built(message: Message, names: Mapping[str, str], blob: BlobReader) -> ModelMessage:
    """Return a message that is made from the parts alone: empty if no model may be sent them."""
    if not is_for_models(message):
        message = message.with_parts(())
    if message.role != "assistant":
        return ModelRequest(_request_parts(message, names, blob), timestamp=message.created_at)
    usage = message.usage or Usage()
    return ModelResponse(
        [built for part in message.parts for built in _response_parts(part, message, blob)],
        usage=RequestUsage(**{name: getattr(usage, ours) for ours, name in _TOKENS.items()}),
        model_name=message.model,
        timestamp=message.created_at,
        state="interrupted" if message.status == "partial" else "complete",
    )


def _request_parts(message: Message, names: Mapping[str, str], blob: BlobReader) -> list[Any]:
    time = message.created_at
    results = [
        ToolReturnPart(
            result.name or names.get(result.call_id) or _UNKNOWN_TOOL,
            _returned(result, blob),
            result.call_id,
            timestamp=time,
            outcome="failed" if result.error else "success",
        )
        for result in message.tool_results
    ]
    content = _read(message.parts, blob)
    texts = [piece for piece in content if isinstance(piece, str)]
    if not content:
        return results
    if message.role == "system":
        return [*results, *(SystemPromptPart(text, timestamp=time) for text in texts)]
    if message.role == "summary":
        return [*results, CompactionPart("\n".join(texts))]
    return [*results, UserPromptPart(_single(content), timestamp=time)]


def _returned(result: ToolResult, blob: BlobReader) -> Any:  # noqa: ANN401 - any content
    if isinstance(result.content, str):
        return result.content
    return _single(_read(result.content, blob)) or ""


def _single(content: list[Any]) -> Any:  # noqa: ANN401 - any content
    return content[0] if len(content) == 1 and isinstance(content[0], str) else content


def _read(parts: Iterable[Part], blob: BlobReader) -> list[str | BinaryContent]:
    """Return texts and files; the whole output of a tool is left out, as in windows."""
    found: list[str | BinaryContent] = []
    for part in parts:
        if isinstance(part, Text):
            found.append(part.text)
        elif isinstance(part, File) and part.mime != WHOLE_OUTPUT:
            found.append(_binary(part, blob))
    return found


def _binary(file: File, blob: BlobReader) -> BinaryContent:
    data = file.data if file.sha256 is None else blob(file.sha256)
    return BinaryContent(data or b"", media_type=file.mime or "application/octet-stream")


def _response_parts(part: Part, message: Message, blob: BlobReader) -> Iterator[Any]:
    match part:
        case Text(text):
            yield TextPart(text)
        case Thinking(text, signature):
            signed = signature if message.model and "claude" in message.model.lower() else None
            yield ThinkingPart(
                text, signature=signed, provider_name="anthropic" if signed else None
            )
        case ToolCall(id, name, arguments):
            plain_form = arguments is None or isinstance(arguments, str | dict)
            yield ToolCallPart(name, arguments if plain_form else _text(arguments), id)
        case File():
            yield FilePart(_binary(part, blob))
