"""Tool-call pairing: every call is followed directly by exactly one result.

An *exchange* is an assistant message with its calls, and their results in the order of the calls.
It keeps the position of the calls: messages stored before all results had arrived come after it.
Calls made together, but stored one per message, form one exchange. A call without a result gets
one that says so. A second result for a call, a result without a call, and a call without a name are
omitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from holdfast.formats.common import filter_parts, has_raw_key
from holdfast.values import (
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
_NO_OUTPUT_TEXT: Final = "[no output]"
_NO_ERROR_TEXT: Final = "[failed without a word]"
_PENDING: Final = "[no result yet]"


class PairedResult(ToolResult, frozen=True):
    """A result with its provider's notes.

    `source` is the id of the message that it is from; None for one that was added.
    """

    notes: tuple[Part, ...] = ()
    source: str | None = None

    def with_content(self, content: str | tuple[Text | File | Raw, ...]) -> PairedResult:
        """Return the result with other content."""
        return msgspec.structs.replace(self, content=content)


class MessageBlock(msgspec.Struct):
    """Messages that stay together: a single one, or calls and their results.

    `callers` has the ids of the further messages that made some of the calls, by call; `tokens` is
    its cost once estimated.
    """

    message: Message
    results: dict[str, PairedResult | None] = {}
    callers: dict[str, str] = {}
    tokens: int | None = None
    joined: list[Part] = []  # calls of further messages, until all are grouped

    @property
    def sources(self) -> set[str]:
        """The ids of the stored messages it is made of."""
        found = {self.message.id, *self.callers.values()}
        for result in self.results.values():
            if result is not None and result.source is not None:
                found.add(result.source)
        return found


Outcomes: TypeAlias = Mapping[tuple[str | None, str], ToolOutcome]  # by turn and call


def sent_count(block: MessageBlock) -> int:
    """Return how many messages are sent for a block."""
    return 1 + len(block.results)


def group_messages(
    messages: Iterable[Message],
    left_out: Counter[str],
    is_sent: Callable[[Message], bool] = lambda _: False,
) -> list[MessageBlock]:
    """Group messages into blocks; messages that cannot be used are counted in `left_out`.

    For a message without text, files or calls, `is_sent` decides whether this provider would be
    sent anything of it.
    """
    blocks: list[MessageBlock] = []
    waiting: dict[str, MessageBlock] = {}
    calling: MessageBlock | None = None  # The previous message, if it made calls.
    for message in messages:
        rest = _without_results(message)
        block, useless = None, ""
        if rest is not None:
            block = MessageBlock(_cleaned(rest))
            calls = [call.id for call in block.message.tool_calls]
            block.results.update(dict.fromkeys(calls))
            if calling is not None and _continues_calls(calling, block.message):
                block = _join(calling, block)
            elif any(map(_is_content, block.message.parts)) or is_sent(block.message):
                blocks.append(block)
            else:
                useless = "call without a name" if rest.tool_calls else "empty"
            waiting.update(dict.fromkeys(calls, block))
        else:
            useless = "result without a call" if message.tool_results else "empty"
        calling = block if block is not None and block.results else None
        if not _assign_results(message, waiting) and useless:
            left_out[useless] += 1
    for block in blocks:
        if block.joined:
            block.message = block.message.with_parts((*block.message.parts, *block.joined))
            block.joined = []
    return blocks


def _without_results(message: Message) -> Message | None:
    """Return a message without its tool results; None if nothing remains."""
    if message.role == "tool":
        # Outputs of a provider's built-in tools are separate items.
        rest = tuple(part for part in message.parts if has_raw_key(part, "item"))
    elif not message.tool_results:
        return message
    else:
        rest = filter_parts(message.parts, lambda part: not isinstance(part, ToolResult))
    return message.with_parts(rest) if rest else None


def _continues_calls(before: MessageBlock, message: Message) -> bool:
    """True if a message holds nothing but further calls of the same reply as the one before."""
    calls = message.tool_calls
    return (
        bool(calls)
        and before.message.turn_id == message.turn_id
        and all(isinstance(part, ToolCall) or has_raw_key(part, "part") for part in message.parts)
        and not any(call.id in before.results for call in calls)
    )


def _join(block: MessageBlock, more: MessageBlock) -> MessageBlock:
    block.joined += more.message.parts  # A tuple of all parts for each message: quadratic time.
    block.results |= more.results
    block.callers |= dict.fromkeys(more.results, more.message.id)
    return block


def _assign_results(message: Message, waiting: dict[str, MessageBlock]) -> bool:
    """Assign a message's results to the calls that wait for them; return whether any does."""
    assigned = False
    for result in _results_of(message):
        block = waiting.pop(result.call_id, None)
        if block is not None:
            block.results[result.call_id] = _with_placeholder(result)
            assigned = True
    return assigned


def _results_of(message: Message) -> list[PairedResult]:
    """Return the results in a message, each with the notes directly after it."""
    found: list[PairedResult] = []
    after_result = False
    for part in message.parts:
        if isinstance(part, ToolResult):
            found.append(
                PairedResult(part.call_id, part.content, part.error, part.name, (), message.id)
            )
        elif after_result and (has_raw_key(part, "part") or has_raw_key(part, "fields")):
            found[-1] = msgspec.structs.replace(found[-1], notes=(*found[-1].notes, part))
            continue
        after_result = isinstance(part, ToolResult)
    return found


def _with_placeholder(result: PairedResult) -> PairedResult:
    """Return the result; an empty one gets a placeholder text."""
    if result.text.strip() or (result.content and not isinstance(result.content, str)):
        return result
    return result.with_content(_NO_ERROR_TEXT if result.error else _NO_OUTPUT_TEXT)


def _cleaned(message: Message) -> Message:
    """Omit blank texts, nameless and duplicate calls; calls and thinking of other roles, too."""
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

    parts = filter_parts(message.parts, stays)
    if len(parts) == len(message.parts):
        return message
    return message.with_parts(parts)


def _is_content(part: Part) -> bool:
    return isinstance(part, Text | ToolCall | File)


def add_missing_results(block: MessageBlock, outcomes: Outcomes) -> None:
    """Add a result to each call that has none, according to the outcome in the turn's ledger."""
    for call in block.message.tool_calls:
        found = block.results[call.id]
        if found is None:
            text = _outcome_text(outcomes.get((block.message.turn_id, call.id)))
            block.results[call.id] = PairedResult(call.id, text, error=True, name=call.name)
        elif found.name != call.name:
            block.results[call.id] = msgspec.structs.replace(found, name=call.name)


def _outcome_text(outcome: ToolOutcome | None) -> str:
    if outcome == "not_run":
        return NOT_RUN
    return _PENDING if outcome in {"called", "running"} else UNKNOWN
