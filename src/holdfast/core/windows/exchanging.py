"""Every call with exactly one result directly behind it.

An *exchange* is an assistant's message with its calls, and their results in the order of the calls.
It stands where the calls were made: what others said before all results were there comes behind it.
A call that nobody answered gets a result that says so; a second result for a call, and a result for
no call, are left out; so are calls without a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from holdfast.records import File, Message, Part, Raw, Text, ToolCall, ToolOutcome, ToolResult

UNKNOWN: Final = "[interrupted: the outcome of this call is unknown]"
NOT_RUN: Final = "[not run: this call was never started]"
_NOTHING: Final = "[no output]"
_FAILED: Final = "[failed without a word]"
_PENDING: Final = "[no result yet]"


class Block(msgspec.Struct):
    """Messages that stay together: one alone, or calls and their results.

    `messages` is how many of the history it is made of, `tokens` what it costs, once estimated.
    """

    said: Message
    results: dict[str, ToolResult | None] = {}
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
    for message in messages:
        said = _said(message)
        if said is not None:
            block = Block(_cleaned(said))
            for call in block.said.tool_calls:
                block.results[call.id] = None
                waiting[call.id] = block
            if any(map(_is_said, block.said.parts)) or is_sent(block.said):
                blocks.append(block)
            else:
                left_out["call without a name" if said.tool_calls else "empty"] += 1
        answered = _answer(message, waiting)
        if said is None and answered is not None:
            answered.messages += 1
        elif said is None:
            left_out["result without a call" if message.tool_results else "empty"] += 1
    return blocks


def _said(message: Message) -> Message | None:
    """Give what a message says beside its tool results."""
    if message.role == "tool":
        return None
    if not message.tool_results:
        return message
    rest = tuple(part for part in message.parts if not isinstance(part, ToolResult))
    return msgspec.structs.replace(message, parts=rest) if rest else None


def _answer(message: Message, waiting: dict[str, Block]) -> Block | None:
    """Give results to the calls that wait for them; give the first block that got one."""
    first = None
    for result in message.tool_results:
        block = waiting.pop(result.call_id, None)
        if block is not None:
            block.results[result.call_id] = _worded(result)
            first = first or block
    return first


def _worded(result: ToolResult) -> ToolResult:
    """Let a result that says nothing say that."""
    if result.text.strip() or (result.content and not isinstance(result.content, str)):
        return result
    return msgspec.structs.replace(result, content=_FAILED if result.error else _NOTHING)


def _cleaned(message: Message) -> Message:
    """Leave out blank texts, and calls that are nameless, doubled, or not the assistant's."""
    seen: set[str] = set()

    def stays(part: Part) -> bool:
        if isinstance(part, Text):
            return bool(part.text.strip())
        if not isinstance(part, ToolCall):
            return True
        if message.role != "assistant" or not part.name.strip() or part.id in seen:
            return False
        seen.add(part.id)
        return True

    parts = kept_parts(message.parts, stays)
    if len(parts) == len(message.parts):
        return message
    return msgspec.structs.replace(message, parts=parts)


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
    """Say whether this is what a provider said beside a part, or (`fields`) of a message."""
    return isinstance(part, Raw) and isinstance(part.data, dict) and of in part.data


def _is_said(part: Part) -> bool:
    return isinstance(part, Text | ToolCall | File)


def fill(block: Block, outcomes: Outcomes) -> None:
    """Give a result to each call that has none, by what the ledger knows of it."""
    for call in block.said.tool_calls:
        found = block.results[call.id]
        if found is None:
            text = _said_of(outcomes.get((block.said.turn_id, call.id)))
            block.results[call.id] = ToolResult(call.id, text, error=True, name=call.name)
        elif found.name is None:
            block.results[call.id] = msgspec.structs.replace(found, name=call.name)


def _said_of(outcome: ToolOutcome | None) -> str:
    if outcome == "not_run":
        return NOT_RUN
    return _PENDING if outcome in {"called", "running"} else UNKNOWN
