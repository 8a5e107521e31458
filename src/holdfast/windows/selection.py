"""Which messages of a history are eligible for a window.

Excluded are messages not meant for a model (flagged `hidden` or `command`), damaged and erased
messages, and those that the newest summary covers. The summary itself becomes a message at the
beginning; messages after the last covered one stay, even those stored before the summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.formats.originals import without_originals
from holdfast.values import Message, Text

_NOT_FOR_MODELS: Final = ("hidden", "command")
SUMMARY_PREFIX: Final = "Summary of the conversation so far:\n"


class Selection(msgspec.Struct, frozen=True):
    """The eligible messages, the summary of the others, and how many are excluded, by reason."""

    messages: list[Message]
    summary_message: Message | None
    left_out: Counter[str]


def select_messages(
    messages: Sequence[Message], summary: Message | None, covered: int
) -> Selection:
    """Select the eligible messages; `summary` replaces all messages up to the seq `covered`."""
    left_out: Counter[str] = Counter()
    kept = []
    for message in messages:
        why = _exclusion_reason(message, summary, covered)
        if why is None:
            kept.append(without_originals(message))
        elif why:
            left_out[why] += 1
    return Selection(kept, None if summary is None else _summary_message(summary), left_out)


def _exclusion_reason(message: Message, summary: Message | None, covered: int) -> str | None:
    """Return why a message is excluded; an empty text for the summary, which is sent anyway."""
    if message.role == "summary" and message.status == "complete":
        return "" if summary is None or message.seq == summary.seq else "covered by a summary"
    if (message.seq or 0) <= covered:
        return "covered by a summary"
    if any(message.metadata.get(flag) for flag in _NOT_FOR_MODELS):
        return "not for models"
    if message.status in {"damaged", "erased"}:
        return message.status
    return None


def _summary_message(summary: Message) -> Message:
    return Message(id=summary.id, role="user", parts=(Text(SUMMARY_PREFIX + summary.text),))
