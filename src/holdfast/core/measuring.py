"""How far estimates of tokens are off, learned from what providers report.

With each reply a provider reports how many tokens it was sent, and how many it gave back. From one
reply to the next, what is sent grows by the messages in between: we know those, and what we
estimated for them. Of a reply with none before it we have at least its own words. The sums of both,
over many replies of one model, give the factor by which estimates for this model are corrected.

What cannot be told is left aside: thoughts, which providers count and do not show in full, and
requests that were not the last one with more behind it.

The factor is taken in steps of a fiftieth. What is appended then rarely changes it, and windows
keep their beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast import tokens
from holdfast.records import Measured, Message, Thinking, Usage

REACH: Final = 8  # how many messages back the reply before is looked for
_UNKNOWN: Final = frozenset({"damaged", "erased"})
_ENOUGH: Final = 500  # estimated tokens, before we believe in a factor
_STEPS: Final = 50
_LEAST, _MOST = 0.5, 3.0


def reported(message: Message) -> Usage | None:
    """Return what a provider reported with a reply, if it is one and whole."""
    return message.usage if message.role == "assistant" and message.status == "complete" else None


def measure(message: Message, before: Sequence[Message]) -> Measured:
    """Compare what was counted with a reply with what we estimate; nothing if it cannot be told.

    `before` are the messages before it, the newest last.
    """
    usage = reported(message)
    if usage is None:
        return Measured()
    return _grown(usage, message.model, before) or _replied(usage, message)


def _grown(usage: Usage, model: str | None, before: Sequence[Message]) -> Measured | None:
    """Compare by how much the request grew since the reply before."""
    estimated = 0
    for message in reversed(before):
        if message.status in _UNKNOWN or any(isinstance(p, Thinking) for p in message.parts):
            return None
        estimated += tokens.of_message(message) if message.tokens is None else message.tokens
        sent = reported(message)
        if sent is not None:
            counted = usage.input - sent.input
            if message.model != model or not sent.input or not _is_likely(counted, estimated):
                return None
            return Measured(counted, estimated)
    return None


def _replied(usage: Usage, message: Message) -> Measured:
    """Compare the words of the reply itself."""
    thought = any(isinstance(part, Thinking) for part in message.parts)
    counted, estimated = usage.output - usage.reasoning, tokens.of_reply(message)
    if (thought and not usage.reasoning) or not _is_likely(counted, estimated):
        return Measured()
    return Measured(counted, estimated)


def _is_likely(counted: int, estimated: int) -> bool:
    """Return whether the same text may be meant."""
    return _LEAST * estimated <= counted <= _MOST * estimated and estimated > 0


def factor(measured: Measured) -> float:
    """Return the factor that corrects estimates."""
    if measured.estimated < _ENOUGH:
        return 1.0
    exact = measured.counted / measured.estimated
    return min(_MOST, max(_LEAST, round(exact * _STEPS) / _STEPS))
