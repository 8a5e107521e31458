"""The order of roles, and the alphabet of ids and names.

Blocks become messages again: calls, then a message for each of their results. Ids of calls are
unique within a window; ids and tool names use only characters that the provider allows. Where a
result has no error flag, its text says that it is an error. Where user and assistant must
alternate, consecutive messages of one side are merged, results count as the user's, and the user
begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast import codec
from holdfast.formats.common import filter_parts, has_raw_key, raw_object, with_error_mark
from holdfast.formats.registry import PROVIDERS, Format, format_of
from holdfast.values import File, Message, Part, Raw, Role, Text, Thinking, ToolCall, ToolResult
from holdfast.windows.pairing import MessageBlock, PairedResult

OPENING_USER_TEXT: Final = "(The conversation begins with the assistant.)"
_ID_LENGTH: Final = 24
_CONTENT_TYPES: Final = (Text, File, ToolCall)


class OrderedMessages(msgspec.Struct, frozen=True):
    """Messages in a valid order, leading instructions, and the original id of each call id.

    `sources` has the ids of the stored messages that a message is made of, by its own; one that was
    added has none. `callers` has those of the calls that were joined to others, by call.
    `before_user` has the ids of what is omitted because it precedes the first user message.
    """

    messages: list[Message]
    system: list[Message]
    call_ids: dict[str, str]
    sources: dict[str, tuple[str, ...]]
    callers: dict[str, str]
    before_user: set[str]


def apply_rules(
    blocks: Sequence[MessageBlock],
    note: Message | None,
    format: Format,
    lead: Sequence[MessageBlock] = (),
) -> OrderedMessages:
    """Return the messages of blocks, valid in this format; `lead` goes before the summary."""
    mapper = _IdMapper(format)
    has_system = format.encode_system is not None
    system, rest = _instructions(blocks) if has_system else ([], list(blocks))
    body = _start_with_user(rest, format, noted=note is not None or bool(lead))
    result = [message for block in lead for message in mapper.messages(block)]
    if note is not None:
        result.append(note)
        mapper.sources[note.id] = (note.id,)
    for block in body:
        result.extend(mapper.messages(block))
    if has_system:
        result = [_system_as_user(message) for message in result]
    result = _drop_unfollowed_thinking(result, format)
    if format.alternates_roles:
        result = _merged(map(_without_message_note, result), mapper.sources)
        if result and result[0].role == "assistant":
            result.insert(0, Message(role="user", parts=(Text(OPENING_USER_TEXT),)))
        if result and result[-1].role == "assistant":
            result[-1] = _as_prefill(result[-1])
    before = sources_of(rest) - sources_of(body) if len(body) < len(rest) else set[str]()
    return OrderedMessages(result, system, mapper.origins, mapper.sources, mapper.callers, before)


def sources_of(blocks: Iterable[MessageBlock]) -> set[str]:
    """Return the ids of the stored messages that blocks are made of."""
    return {source for block in blocks for source in block.sources}


def split_by_caller(message: Message, callers: dict[str, str]) -> Iterable[tuple[str, Message]]:
    """Split a message before each call that was joined to it; each piece with its source's id."""
    pieces: list[tuple[str, list[Part]]] = [(message.id, [])]
    for part in message.parts:
        if isinstance(part, ToolCall) and part.id in callers:
            pieces.append((callers[part.id], []))
        pieces[-1][1].append(part)
    return [(source, message.with_parts(parts)) for source, parts in pieces]


def _instructions(blocks: Sequence[MessageBlock]) -> tuple[list[Message], list[MessageBlock]]:
    """Split off the leading system messages; one with a file stays among the messages."""
    for at, block in enumerate(blocks):
        if block.message.role != "system" or any(isinstance(p, File) for p in block.message.parts):
            return [b.message for b in blocks[:at]], list(blocks[at:])
    return [block.message for block in blocks], []


def _start_with_user(
    blocks: list[MessageBlock], format: Format, *, noted: bool
) -> list[MessageBlock]:
    """Begin with a user message; the reply directly before it stays if the format allows that."""
    first = next((at for at, b in enumerate(blocks) if b.message.role == "user"), None)
    if first is None or noted:
        return blocks
    lead = [block for block in blocks[:first] if block.message.role == "system"]
    reply = blocks[first - 1 : first] if first else []
    if format.alternates_roles or not reply or reply[0].results:
        reply = []
    return [*lead, *(b for b in reply if b.message.role == "assistant"), *blocks[first:]]


def _system_as_user(message: Message) -> Message:
    """Return a system message in mid-conversation as a user message with a label."""
    if message.role != "system":
        return message
    files = (part for part in message.parts if isinstance(part, File))
    text = Text(f"[system note] {message.text}".rstrip())
    return msgspec.structs.replace(message, role="user", parts=(text, *files))


def _drop_unfollowed_thinking(messages: Sequence[Message], format: Format) -> list[Message]:
    """Omit thinking that no text or call follows."""
    kept: list[Message] = []
    for message in reversed(messages):
        continues = bool(kept) and kept[-1].role == "assistant"
        if message.role != "assistant" or continues:
            kept.append(message)
        elif (ended := _drop_trailing_thinking(message, format)) is not None:
            kept.append(ended)
    return kept[::-1]


def _drop_trailing_thinking(message: Message, format: Format) -> Message | None:
    """Omit the thinking after the last content; `None` if there is no content."""
    last = max((i for i, p in enumerate(message.parts) if _is_content(p, format)), default=None)
    if last is None:
        return None
    parts = (*message.parts[: last + 1], *_without_thinking(message.parts[last + 1 :]))
    return message if parts == message.parts else msgspec.structs.replace(message, parts=parts)


def _is_content(part: Part, format: Format) -> bool:
    """True if a part is content to send: text, a file, a call, or this provider's own piece."""
    if not isinstance(part, Raw):
        return isinstance(part, _CONTENT_TYPES)
    if part.source != format.provider or _is_thinking(part):
        return False
    return (
        has_raw_key(part, "content")
        or has_raw_key(part, "item")
        or format.has_content(raw_object(part, "fields") or {})
    )


def _is_thinking(part: Part) -> bool:
    """True if a part is thinking, as a `Thinking` part or in its provider's own form."""
    if not isinstance(part, Raw):
        return isinstance(part, Thinking)
    piece = raw_object(part, "content") or raw_object(part, "item")
    if piece is None or part.source not in PROVIDERS:
        return False
    return format_of(part.source).is_thinking(piece)


def _as_prefill(message: Message) -> Message:
    """Make a reply at the very end one the model can continue: no thinking, no trailing blanks."""
    parts = _without_thinking(message.parts)
    last = max((i for i, p in enumerate(parts) if not isinstance(p, Raw)), default=None)
    if last is not None and isinstance(text := parts[last], Text):
        parts[last] = Text(text.text.rstrip())
    return msgspec.structs.replace(message, parts=tuple(parts))


def _merged(messages: Iterable[Message], sources: dict[str, tuple[str, ...]]) -> list[Message]:
    """Merge consecutive messages of one side into one; tool results are the user's."""
    merged: list[tuple[Message, list[Part], list[str]]] = []
    for message in messages:
        side: Role = "assistant" if message.role == "assistant" else "user"
        if merged and merged[-1][0].role == side:
            merged[-1][1].extend(_without_thinking(message.parts))
            merged[-1][2].extend(sources[message.id])
        else:
            first = msgspec.structs.replace(message, role=side)
            merged.append((first, list(message.parts), [*sources[message.id]]))
    for first, _, made_of in merged:
        sources[first.id] = tuple(dict.fromkeys(made_of))
    return [msgspec.structs.replace(first, parts=tuple(parts)) for first, parts, _ in merged]


def _without_thinking(parts: Iterable[Part]) -> list[Part]:
    """Return parts to be sent after others: thinking is allowed only at the beginning."""
    return list(filter_parts(parts, lambda part: not _is_thinking(part)))


def _without_message_note(message: Message) -> Message:
    """Omit a message's own note, and thinking that is not at its beginning."""
    parts = tuple(part for part in message.parts if not _is_message_note(part))
    if parts and not _is_thinking(parts[0]):
        parts = tuple(_without_thinking(parts))
    return message if parts == message.parts else msgspec.structs.replace(message, parts=parts)


def _is_message_note(part: Part) -> bool:
    """True if a part is a message note with fields, not only with the form of the content."""
    if not isinstance(part, Raw) or not has_raw_key(part, "fields"):
        return False
    return bool(raw_object(part, "fields") or raw_object(part, "made"))


class _IdMapper:
    """Maps call ids and tool names to the provider's alphabet; each id is used once."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self.origins: dict[str, str] = {}
        self.sources: dict[str, tuple[str, ...]] = {}
        self.callers: dict[str, str] = {}
        self._used: set[str] = set()
        self._collisions: dict[str, int] = {}

    def messages(self, block: MessageBlock) -> list[Message]:
        """Return the messages of a block: one for each result, because each has its own source."""
        made_of = dict.fromkeys((block.message.id, *block.callers.values()))
        self.sources[block.message.id] = tuple(made_of)
        if not block.results:
            return [block.message]
        names = {call: self._id(call) for call in block.results}
        self.callers |= {names[call]: caller for call, caller in block.callers.items()}
        parts = tuple(self._calls(block.message.parts, names))
        sent = [msgspec.structs.replace(block.message, parts=parts)]
        for call, result in block.results.items():
            if result is not None:
                answer = Message(role="tool", parts=tuple(self._result(result, names[call])))
                self.sources[answer.id] = () if result.source is None else (result.source,)
                sent.append(answer)
        return sent

    def _calls(self, parts: Iterable[Part], names: dict[str, str]) -> Iterable[Part]:
        last = ""
        for part in parts:
            if isinstance(part, ToolCall):
                last = part.id
                yield ToolCall(names[last], self._name(part.name), part.arguments)
            else:
                yield _with_new_id(part, last, names.get(last, last))

    def _result(self, result: ToolResult, call_id: str) -> Iterable[Part]:
        name = None if result.name is None else self._name(result.name)
        marked = with_error_mark(result) if self._format.errors_in_text and result.error else result
        yield ToolResult(call_id, marked.content, error=result.error, name=name)
        if isinstance(result, PairedResult):
            for note in result.notes:
                yield _with_new_id(note, result.call_id, call_id)

    def _id(self, call: str) -> str:
        """Return a valid id for a call; an id that another exchange has used gets another one."""
        valid = call
        while not self._format.call_id.fullmatch(valid) or valid in self._used:
            again = self._collisions[call] = self._collisions.get(call, 0) + 1
            valid = "call_" + codec.sha256_hex(codec.encode_text(f"{again}:{call}"))[:_ID_LENGTH]
        self._used.add(valid)
        self.origins[valid] = call
        return valid

    def _name(self, name: str) -> str:
        if self._format.tool_name.fullmatch(name) and len(name) <= self._format.max_name_chars:
            return name
        plain = re.sub(r"[^a-zA-Z0-9_-]", "_", name) or "_"
        if not self._format.tool_name.fullmatch(plain):
            plain = f"_{plain}"
        return plain[: self._format.max_name_chars]


def _with_new_id(part: Part, before: str, after: str) -> Part:
    """Return a note whose invented id is replaced by the call's new one."""
    if before == after or not isinstance(part, Raw) or not has_raw_key(part, "part"):
        return part
    made = raw_object(part, "made") or {}
    if not isinstance(part.data, dict) or made.get("id") != before:
        return part
    return Raw(part.source, {**part.data, "made": {**made, "id": after}})
