"""Which messages of a history count for a window.

Left out are messages that were never meant for a model (flagged `hidden` or `command`), those that
cannot be read or were erased, and what the newest summary stands for. The summary itself becomes a
note at the beginning; messages behind the one it covers stay, also those that came before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.records import Message, Text

_NOT_FOR_MODELS: Final = ("hidden", "command")
SUMMARY: Final = "Summary of the conversation so far:\n"


class Chosen(msgspec.Struct, frozen=True):
    """What is left of a history, the note that stands for the rest, and why the rest is out."""

    messages: list[Message]
    note: Message | None
    left_out: Counter[str]


def choose(messages: Sequence[Message], summary: Message | None, covered: int) -> Chosen:
    """Choose from a history; `summary` stands for all messages up to the seq `covered`."""
    left_out: Counter[str] = Counter()
    kept = []
    for message in messages:
        why = _why_not(message, summary, covered)
        if why is None:
            kept.append(message)
        elif why:
            left_out[why] += 1
    return Chosen(kept, None if summary is None else _note(summary), left_out)


def _why_not(message: Message, summary: Message | None, covered: int) -> str | None:
    """Return why a message is left out; an empty text if it is there, as the note."""
    if message.role == "summary" and message.status == "complete":
        return "" if summary is None or message.seq == summary.seq else "covered by a summary"
    if (message.seq or 0) <= covered:
        return "covered by a summary"
    if any(message.metadata.get(flag) for flag in _NOT_FOR_MODELS):
        return "not for models"
    if message.status in {"damaged", "erased"}:
        return message.status
    return None


def _note(summary: Message) -> Message:
    return Message(id=summary.id, role="user", parts=(Text(SUMMARY + summary.text),))
