"""Token calibration: correcting estimates by what providers report.

With each reply a provider reports how many tokens it received and how many it returned. From one
reply to the next the request grows by the messages in between, whose estimates we know. For a reply
without one before it, its own text is compared. The sums of both, over many replies of one model,
give the factor by which estimates for this model are corrected.

Two cases are skipped, since they cannot be compared: thinking, which providers count but do not
show in full, and requests that did not simply extend the one before.

The factor is rounded to steps of a fiftieth. An append then rarely changes it, and windows keep
their beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast import tokens
from holdfast.values import MeasuredTokens, Message, Thinking, Usage

LOOKBACK_MESSAGES: Final = 8  # how many messages back the previous reply is searched for
_NOT_COMPARABLE: Final = frozenset({"damaged", "erased"})
_MIN_ESTIMATED_TOKENS: Final = 500  # estimated tokens, below which there is no factor
_STEPS_PER_UNIT: Final = 50
_MIN_FACTOR, _MAX_FACTOR = 0.5, 3.0


def reported_usage(message: Message) -> Usage | None:
    """Return the usage a provider reported with a message; `None` unless it is a complete reply."""
    return message.usage if message.role == "assistant" and message.status == "complete" else None


def compare_reply_tokens(message: Message, before: Sequence[Message]) -> MeasuredTokens:
    """Return reported and estimated tokens for a reply; zeros if they cannot be compared.

    `before` has the messages before it, the newest last.
    """
    usage = reported_usage(message)
    if usage is None:
        return MeasuredTokens()
    return _compare_growth(usage, message.model, before) or _compare_reply(usage, message)


def _compare_growth(
    usage: Usage, model: str | None, before: Sequence[Message]
) -> MeasuredTokens | None:
    """Compare by how much the request grew since the previous reply; `None` if it cannot be."""
    estimated = 0
    for message in reversed(before):
        if message.status in _NOT_COMPARABLE or any(isinstance(p, Thinking) for p in message.parts):
            return None
        estimated += tokens.of_message(message)
        sent = reported_usage(message)
        if sent is not None:
            counted = usage.input - sent.input
            if message.model != model or not sent.input or not _is_plausible(counted, estimated):
                return None
            return MeasuredTokens(counted, estimated)
    return None


def _compare_reply(usage: Usage, message: Message) -> MeasuredTokens:
    """Compare the text of the reply itself."""
    has_thinking = any(isinstance(part, Thinking) for part in message.parts)
    counted, estimated = usage.output - usage.reasoning, tokens.of_reply(message)
    if (has_thinking and not usage.reasoning) or not _is_plausible(counted, estimated):
        return MeasuredTokens()
    return MeasuredTokens(counted, estimated)


def _is_plausible(counted: int, estimated: int) -> bool:
    """Return whether both counts may be of the same text."""
    return _MIN_FACTOR * estimated <= counted <= _MAX_FACTOR * estimated and estimated > 0


def correction_factor(measured: MeasuredTokens) -> float:
    """Return the factor that corrects estimates; 1 until enough tokens were compared."""
    if measured.estimated < _MIN_ESTIMATED_TOKENS:
        return 1.0
    exact = measured.counted / measured.estimated
    return min(_MAX_FACTOR, max(_MIN_FACTOR, round(exact * _STEPS_PER_UNIT) / _STEPS_PER_UNIT))
