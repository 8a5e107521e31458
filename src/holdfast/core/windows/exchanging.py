"""Every call with exactly one result directly behind it.

An *exchange* is an assistant's message with its calls, and their results in the order of the calls.
It stands where the calls were made: what others said before all results were there comes behind it.
Calls that were made at once, but stored in messages of their own, are one exchange.
A call that nobody answered gets a result that says so; a second result for a call, and a result for
no call, are left out; so are calls without a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from holdfast import tokens
from holdfast.records import (
    File,
    Message,
    Part,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolOutcome,
    ToolResult,
)

UNKNOWN: Final = "[interrupted: the outcome of this call is unknown]"
NOT_RUN: Final = "[not run: this call was never started]"
_NOTHING: Final = "[no output]"
_FAILED: Final = "[failed without a word]"
_PENDING: Final = "[no result yet]"


class Answer(ToolResult, frozen=True):
    """A result, what its provider said beside it, and what it costs, if that was stored."""

    notes: tuple[Part, ...] = ()
    tokens: int | None = None

    def saying(self, content: str | tuple[Text | File | Raw, ...]) -> Answer:
        """Return it with other content; what it then costs is not known."""
        return msgspec.structs.replace(self, content=content, tokens=None)


class Block(msgspec.Struct):
    """Messages that stay together: one alone, or calls and their results.

    `messages` is how many of the history it is made of, `tokens` what it costs, once estimated.
    """

    said: Message
    results: dict[str, Answer | None] = {}
    messages: int = 1
    tokens: int | None = None


Outcomes: TypeAlias = Mapping[tuple[str | None, str], ToolOutcome]  # by turn and call


def size(block: Block) -> int:
    """Count the messages that are sent for a block."""
    return 1 + len(block.results)


def exchanges(
    messages: Iterable[Message],
    left_out: Counter[str],
    is_sent: Callable[[Message], bool] = lambda _: False,
) -> list[Block]:
    """Put calls and results together; messages that do not fit are counted in `left_out`.

    Of a message that has no words, files or calls, `is_sent` tells whether this provider would be
    sent anything of it.
    """
    blocks: list[Block] = []
    waiting: dict[str, Block] = {}
    asking: Block | None = None  # The message before made calls, and there is no result yet.
    for message in messages:
        said = _said(message)
        block = None
        if said is not None:
            block = Block(_cleaned(said))
            for call in block.said.tool_calls:
                block.results[call.id] = None
            if asking is not None and _goes_on(asking.said, block.said):
                block = _join(asking, block)
            elif any(map(_is_said, block.said.parts)) or is_sent(block.said):
                blocks.append(block)
            else:
                left_out["call without a name" if said.tool_calls else "empty"] += 1
            waiting.update(dict.fromkeys((call.id for call in block.said.tool_calls), block))
        asking = block if block is not None and block.results else None
        answered = _answer(message, waiting)
        if said is None and answered is not None:
            answered.messages += 1
        elif said is None:
            left_out["result without a call" if message.tool_results else "empty"] += 1
    return blocks


def _said(message: Message) -> Message | None:
    """Return what a message says beside its tool results."""
    if message.role == "tool":
        # The outputs of a provider's own tools are items of their own.
        rest = tuple(part for part in message.parts if is_note(part, "item"))
    elif not message.tool_results:
        return message
    else:
        rest = kept_parts(message.parts, lambda part: not isinstance(part, ToolResult))
    return message.with_parts(rest) if rest else None


def _goes_on(before: Message, message: Message) -> bool:
    """Return whether a message holds nothing but more of the calls that the one before made."""
    calls = message.tool_calls
    return (
        bool(calls)
        and before.turn_id == message.turn_id
        and all(isinstance(part, ToolCall) or is_note(part, "part") for part in message.parts)
        and {call.id for call in calls}.isdisjoint(call.id for call in before.tool_calls)
    )


def _join(block: Block, more: Block) -> Block:
    block.said = block.said.with_parts((*block.said.parts, *more.said.parts))
    block.results |= more.results
    block.messages += more.messages
    return block


def _answer(message: Message, waiting: dict[str, Block]) -> Block | None:
    """Return results to the calls that wait for them; give the first block that got one."""
    first = None
    for result in _answers(message):
        block = waiting.pop(result.call_id, None)
        if block is not None:
            block.results[result.call_id] = _worded(result)
            first = first or block
    return first


def _answers(message: Message) -> list[Answer]:
    """Return the results in a message, each with the notes directly behind it."""
    found: list[Answer] = []
    cost = None
    if message.tokens is not None and len(message.parts) == 1:
        cost = message.tokens - tokens.MESSAGE
    beside = False
    for part in message.parts:
        if isinstance(part, ToolResult):
            found.append(Answer(part.call_id, part.content, part.error, part.name, (), cost))
        elif beside and (is_note(part, "part") or is_note(part, "fields")):
            found[-1] = msgspec.structs.replace(found[-1], notes=(*found[-1].notes, part))
            continue
        beside = isinstance(part, ToolResult)
    return found


def _worded(result: Answer) -> Answer:
    """Let a result that says nothing say that."""
    if result.text.strip() or (result.content and not isinstance(result.content, str)):
        return result
    return result.saying(_FAILED if result.error else _NOTHING)


def _cleaned(message: Message) -> Message:
    """Leave out blank texts, nameless and doubled calls, and calls and thoughts of others."""
    seen: set[str] = set()

    def stays(part: Part) -> bool:
        if isinstance(part, Text):
            return bool(part.text.strip())
        if isinstance(part, Thinking):
            return message.role == "assistant"
        if not isinstance(part, ToolCall):
            return True
        if message.role != "assistant" or not part.name.strip() or part.id in seen:
            return False
        seen.add(part.id)
        return True

    parts = kept_parts(message.parts, stays)
    if len(parts) == len(message.parts):
        return message
    return message.with_parts(parts)


def kept_parts(parts: Iterable[Part], stays: Callable[[Part], bool]) -> tuple[Part, ...]:
    """Leave parts out, each with the note of its provider that stands behind it."""
    kept: list[Part] = []
    left = False
    for part in parts:
        if is_note(part, "part"):
            if not left:
                kept.append(part)
            continue
        left = not stays(part)
        if not left:
            kept.append(part)
    return tuple(kept)


def is_note(part: Part, of: str) -> bool:
    """Return whether this is what a provider said beside a part, or (`fields`) of a message."""
    return isinstance(part, Raw) and isinstance(part.data, dict) and of in part.data


def _is_said(part: Part) -> bool:
    return isinstance(part, Text | ToolCall | File)


def fill(block: Block, outcomes: Outcomes) -> None:
    """Return a result to each call that has none, by what the ledger knows of it."""
    for call in block.said.tool_calls:
        found = block.results[call.id]
        if found is None:
            text = _said_of(outcomes.get((block.said.turn_id, call.id)))
            block.results[call.id] = Answer(call.id, text, error=True, name=call.name)
        elif found.name != call.name:
            block.results[call.id] = msgspec.structs.replace(found, name=call.name)


def _said_of(outcome: ToolOutcome | None) -> str:
    if outcome == "not_run":
        return NOT_RUN
    return _PENDING if outcome in {"called", "running"} else UNKNOWN
