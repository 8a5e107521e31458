"""Windows for models: what one of 32k tokens costs, however long the history behind it is.

A window reads the tail in pages until the budget is full, so it should cost the same at 1,000 and
at 1,000,000 messages. Beside it, as a measure of the work itself, its messages are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, get_args

from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import Plan, opened
from holdfast import Session
from holdfast.values import Provider

_TOKENS: Final = 32_000
_FLAT: Final = 1.2
_WINDOWS_A_ROUND: Final = 5
_PROVIDER: Final[Provider] = "anthropic"


def window(plan: Plan) -> Iterator[Result]:
    """Build the same window of short and of long histories; then for every provider."""
    lengths = plan.sizes.histories[1:]
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(opened(plan.history(length), "process"))[1] for length in lengths
        ]
        works = [_windows(session, _PROVIDER) for session in sessions]
        reading = _reads(sessions[-1], _messages_in_a_window(sessions[-1]))
        alternate(1, *works, reading)
        *found, read = alternate(plan.sizes.rounds, *works, reading)
        yield from _by_length(lengths, found, read)
        yield from _by_provider(plan, sessions[-1])


def _by_length(
    lengths: Sequence[int], found: Sequence[Sequence[Times]], read: Sequence[Times]
) -> Iterator[Result]:
    for length, rounds in zip(lengths, found, strict=True):
        growth = None if length == lengths[0] else ratio(rounds, found[0])
        yield Result(
            name="window",
            what=f"window of {_TOKENS // 1000}k tokens, {length:,} messages",
            value=median(rounds),
            figure=f"{millis(median(rounds))} (its messages only read: {millis(median(read))})",
            ratio=growth,
            of=f"at {lengths[0]:,}",
            bar="" if growth is None else f"≤ {_FLAT} {TIMES} at {lengths[0]:,}",
            met=None if growth is None else growth <= _FLAT,
        )


def _by_provider(plan: Plan, session: Session) -> Iterator[Result]:
    """Compare the providers' shapes on the longest history."""
    others = [provider for provider in get_args(Provider) if provider != _PROVIDER]
    works = [_windows(session, provider) for provider in (_PROVIDER, *others)]
    first, *found = alternate(plan.sizes.rounds, *works)
    for provider, rounds in zip(others, found, strict=True):
        yield Result(
            name="window",
            what=f"the same for {provider}",
            value=median(rounds),
            figure=f"{millis(median(rounds))} ({_PROVIDER} beside it: {millis(median(first))})",
            ratio=ratio(rounds, first),
            of=_PROVIDER,
        )


def _windows(session: Session, provider: Provider) -> Callable[[], Times]:
    def make() -> None:
        made = session.window(provider=provider, max_tokens=_TOKENS)
        assert _TOKENS // 2 < made.tokens <= _TOKENS, "the history fills the budget"

    return lambda: [timed(make) for _ in range(_WINDOWS_A_ROUND)]


def _messages_in_a_window(session: Session) -> int:
    """Count the stored messages of a window: all but the omitted ones."""
    made = session.window(provider=_PROVIDER, max_tokens=_TOKENS)
    return session.head().seq - sum(left.count for left in made.left_out)


def _reads(session: Session, messages: int) -> Callable[[], Times]:
    return lambda: [
        timed(lambda: session.messages(limit=messages)) for _ in range(_WINDOWS_A_ROUND)
    ]
