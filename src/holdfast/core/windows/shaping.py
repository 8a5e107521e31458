"""Who may speak after whom, and in which alphabet.

The blocks become messages again: calls, then one message with all their results. Ids of calls are
unique within a window and spelled as the provider wants them; so are the names of tools. Where user
and assistant must take turns, neighbours of one side become one message, results belong to the
user's side, and the user begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from holdfast import codec
from holdfast.core.windows.exchanging import Block, is_note, kept_parts
from holdfast.core.windows.rules import Rules
from holdfast.records import File, Message, Part, Role, Text, Thinking, ToolCall, ToolResult

BEGINNING: Final = "(The conversation begins with the assistant.)"
_ID_LENGTH: Final = 24
_SAID: Final = (Text, File, ToolCall)


class Shaped(msgspec.Struct, frozen=True):
    """Messages in legal order, instructions that stood at their beginning, and the ids' origins."""

    messages: list[Message]
    system: list[str]
    call_ids: dict[str, str]
    before: int


def shape(
    blocks: Sequence[Block], note: Message | None, rules: Rules, lead: Sequence[Block] = ()
) -> Shaped:
    """Make messages of blocks, legal for the provider with these rules; `lead` is before the note.

    `before` counts the messages that were left out because they came before the user's first.
    """
    spelled = _Spelling(rules)
    system, rest = _instructions(blocks) if rules.system_apart else ([], list(blocks))
    began = _begin(rest, rules, noted=note is not None or bool(lead))
    said = [message for block in lead for message in spelled.messages(block)]
    if note is not None:
        role: Role = "user" if rules.system_apart else "system"
        said.append(msgspec.structs.replace(note, role=role))
    for block in began:
        said.extend(spelled.messages(block))
    if rules.system_apart:
        said = [_as_note(message) for message in said]
    said = _without_loose_thoughts(said)
    if rules.alternate:
        said = _merged(map(_plain, said))
        if said and said[0].role == "assistant":
            said.insert(0, Message(role="user", parts=(Text(BEGINNING),)))
        if said and said[-1].role == "assistant":
            said[-1] = _begun(said[-1])
    before = sum(b.messages for b in rest) - sum(b.messages for b in began)
    return Shaped(said, system, spelled.origins, before)


def _instructions(blocks: Sequence[Block]) -> tuple[list[str], list[Block]]:
    """Take the system's messages from the beginning."""
    for at, block in enumerate(blocks):
        if block.said.role != "system":
            return [b.said.text for b in blocks[:at]], list(blocks[at:])
    return [block.said.text for block in blocks], []


def _begin(blocks: list[Block], rules: Rules, *, noted: bool) -> list[Block]:
    """Begin with the user; what was said directly before may stay where that is legal."""
    first = next((at for at, b in enumerate(blocks) if b.said.role == "user"), None)
    if first is None or noted:
        return blocks
    lead = [block for block in blocks[:first] if block.said.role == "system"]
    delivery = blocks[first - 1 : first] if first else []
    if rules.alternate or not delivery or delivery[0].results:
        delivery = []
    return [*lead, *(b for b in delivery if b.said.role == "assistant"), *blocks[first:]]


def _as_note(message: Message) -> Message:
    """Say what the system said in between as a note to the user's side."""
    if message.role != "system":
        return message
    return msgspec.structs.replace(
        message, role="user", parts=(Text(f"[system note] {message.text}"),)
    )


def _without_loose_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Leave out thoughts that nothing came of: something must be said behind them."""
    kept: list[Message] = []
    for message in reversed(messages):
        said_next = bool(kept) and kept[-1].role == "assistant"
        if message.role != "assistant" or said_next:
            kept.append(message)
        elif (ended := _without_last_thoughts(message)) is not None:
            kept.append(ended)
    return kept[::-1]


def _without_last_thoughts(message: Message) -> Message | None:
    """Leave out the thoughts behind the last words; `None` if there are no words."""
    last = max((i for i, p in enumerate(message.parts) if isinstance(p, _SAID)), default=None)
    if last is None:
        return None
    parts = (*message.parts[: last + 1], *_behind(message.parts[last + 1 :]))
    return message if parts == message.parts else msgspec.structs.replace(message, parts=parts)


def _begun(message: Message) -> Message:
    """Make a reply at the very end one that the model may go on with: no thoughts, no blank end."""
    parts = _behind(message.parts)
    if parts and isinstance(parts[-1], Text):
        parts[-1] = Text(parts[-1].text.rstrip())
    return msgspec.structs.replace(message, parts=tuple(parts))


def _merged(messages: Iterable[Message]) -> list[Message]:
    """Make neighbours of one side one message; results come first on the user's side."""
    merged: list[Message] = []
    for message in messages:
        side = "assistant" if message.role == "assistant" else "user"
        if merged and merged[-1].role == side:
            parts = (*merged[-1].parts, *_behind(message.parts))
            merged[-1] = msgspec.structs.replace(merged[-1], parts=parts)
        else:
            merged.append(msgspec.structs.replace(message, role=side))
    return merged


def _behind(parts: Iterable[Part]) -> list[Part]:
    """Give parts that come behind others: thinking may stand at the beginning only."""
    return list(kept_parts(parts, lambda part: not isinstance(part, Thinking)))


def _plain(message: Message) -> Message:
    """Leave out what a provider said of a message as a whole, and thoughts behind first words."""
    parts = tuple(part for part in message.parts if not is_note(part, "fields"))
    if parts and not isinstance(parts[0], Thinking):
        parts = tuple(_behind(parts))
    return message if parts == message.parts else msgspec.structs.replace(message, parts=parts)


class _Spelling:
    """Spells ids and names, each once."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.origins: dict[str, str] = {}
        self._used: set[str] = set()
        self._again: dict[str, int] = {}

    def messages(self, block: Block) -> list[Message]:
        """Give the messages of a block."""
        if not block.results:
            return [block.said]
        names = {call: self._id(call) for call in block.results}
        parts = tuple(self._call(part, names) for part in block.said.parts)
        results = tuple(
            self._result(result, names[call])
            for call, result in block.results.items()
            if result is not None
        )
        answer = Message(id=f"{block.said.id}/results", role="tool", parts=results)
        return [msgspec.structs.replace(block.said, parts=parts), answer]

    def _call(self, part: Part, names: dict[str, str]) -> Part:
        if not isinstance(part, ToolCall):
            return part
        return ToolCall(names[part.id], self._name(part.name), part.arguments)

    def _result(self, result: ToolResult, call_id: str) -> ToolResult:
        name = None if result.name is None else self._name(result.name)
        return ToolResult(call_id, result.content, error=result.error, name=name)

    def _id(self, call: str) -> str:
        """Spell an id; the same one again in another exchange is another id."""
        wanted = call
        while not self._rules.call_id.fullmatch(wanted) or wanted in self._used:
            again = self._again[call] = self._again.get(call, 0) + 1
            wanted = "call_" + codec.digest(codec.encode_text(f"{again}:{call}"))[:_ID_LENGTH]
        self._used.add(wanted)
        self.origins[wanted] = call
        return wanted

    def _name(self, name: str) -> str:
        if self._rules.name.fullmatch(name) and len(name) <= self._rules.longest_name:
            return name
        plain = re.sub(r"[^a-zA-Z0-9_-]", "_", name) or "_"
        if not self._rules.name.fullmatch(plain):
            plain = f"_{plain}"
        return plain[: self._rules.longest_name]
