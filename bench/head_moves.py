"""Moving heads: fork, undo, redo, rewind and replace, against an append.

None of the first four copies a message, so each should cost what a small commit costs, however long
the history is: an append of one turn to the same session, in the same rounds, is the measure. At
`process` there is no sync in either, so what is compared there is the work itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import holdfast
from bench import material
from bench.appends import appends
from bench.measure import TIMES, Result, Times, alternate, median, micros, millis, ratio, timed
from bench.plan import KEY, Plan, opened
from holdfast import Message, Session
from holdfast.url import Durability

_FORK_BAR: Final = 0.002
_FLAT: Final = 1.2
_DURABILITIES: Final[tuple[Durability, ...]] = ("power", "process")
_REPLACES: Final = 5


def fork(plan: Plan) -> Iterator[Result]:
    """Fork the longest history at its end, and a short one, alternating with appends."""
    short, long = plan.sizes.histories[1], plan.sizes.histories[-1]
    for durability in _DURABILITIES:
        with ExitStack() as stack:
            _, small = stack.enter_context(opened(plan.history(short), durability))
            _, large = stack.enter_context(opened(plan.history(long), durability))
            size = plan.sizes.turns_a_round
            works = [_forks(large, size), _forks(small, size), appends(large, size)]
            alternate(2, *works)
            ours, less, append = alternate(plan.sizes.rounds, *works)
        yield Result(
            name="fork",
            what=f"fork of {long:,} messages, {durability}",
            value=median(ours),
            figure=f"{micros(median(ours))} (append of a turn: {micros(median(append))})",
            ratio=ratio(ours, append),
            of="append",
            bar=f"≤ {_FORK_BAR * 1e3:g} ms",
            met=median(ours) <= _FORK_BAR,
        )
        if durability == "process":
            yield _flat("fork", f"the same: {long:,} against {short:,}", ours, less)


def _forks(session: Session, number: int) -> Callable[[], Times]:
    return lambda: [timed(session.fork) for _ in range(number)]


def move(plan: Plan) -> Iterator[Result]:
    """Undo, redo and rewind on a long and on a short history, alternating with appends."""
    short, long = plan.sizes.histories[1], plan.sizes.histories[-1]
    for durability in _DURABILITIES:
        with ExitStack() as stack:
            _, small = stack.enter_context(opened(plan.history(short), durability))
            _, large = stack.enter_context(opened(plan.history(long), durability))
            size = plan.sizes.turns_a_round // 3
            works = [partial(_steps, large, size), partial(_steps, small, size)]
            alternate(1, *works)
            found = alternate(plan.sizes.rounds, *works)
        ours, less = (_by_step(rounds) for rounds in found)
        for at, operation in enumerate(("undo", "redo", "rewind"), start=1):
            yield Result(
                name="move",
                what=f"{operation} at {long:,} messages, {durability}",
                value=median(ours[at]),
                figure=f"{micros(median(ours[at]))} (append of a turn: {micros(median(ours[0]))})",
                ratio=ratio(ours[at], ours[0]),
                of="append",
            )
            if durability == "process":
                what = f"the same: {long:,} against {short:,}"
                yield _flat("move", what, ours[at], less[at])


def _steps(session: Session, times: int) -> Times:
    """Append a turn, undo it, redo it, rewind to before it; return four times for each cycle."""
    found = []
    for _ in range(times):
        messages, head = material.turn(), session.head()
        found += [
            timed(partial(session.append, *messages)),
            timed(session.undo),
            timed(session.redo),
            timed(partial(session.rewind, head.seq)),
        ]
    return found


def _by_step(rounds: Sequence[Times]) -> list[list[Times]]:
    """Group the times of `_steps` by operation."""
    return [[times[at::4] for times in rounds] for at in range(4)]


def _flat(name: str, what: str, ours: Sequence[Times], less: Sequence[Times]) -> Result:
    growth = ratio(ours, less)
    return Result(
        name=name,
        what=what,
        value=growth,
        figure=f"{micros(median(ours))} against {micros(median(less))}",
        ratio=growth,
        of="short",
        bar=f"≤ {_FLAT} {TIMES} short",
        met=growth <= _FLAT,
    )


def replace(plan: Plan) -> Iterator[Result]:
    """Replace a history by one that shares most of it, and by one that shares nothing.

    The comparison is an append of as many messages, as one batch, to an empty session.
    """
    number = plan.sizes.replaced
    with holdfast.open(plan.path("replace"), durability="process") as store:
        session, other = store.session(KEY), store.session("other")
        session.append(*_many(number))
        shared, apart, append = alternate(
            _REPLACES,
            lambda: [_replace_end(session)],
            lambda: [_replace_all(other, number)],
            lambda: [_append_all(store.create(), number)],
        )
    for what, rounds in (
        (f"replace of {number:,}, all but the last turn shared", shared),
        (f"replace of {number:,}, nothing shared", apart),
    ):
        yield Result(
            name="replace",
            what=what,
            value=median(rounds),
            figure=f"{millis(median(rounds))} (append of {number:,}: {millis(median(append))})",
            ratio=ratio(rounds, append),
            of="append",
        )


def _many(number: int) -> list[Message]:
    turns = number // material.MESSAGES_PER_TURN
    return [message for _ in range(turns) for message in material.turn()]


def _replace_end(session: Session) -> float:
    """Return the history as read, with another last turn."""
    history = session.messages()
    wanted = [*history[: -material.MESSAGES_PER_TURN], *material.turn()]
    return timed(lambda: session.replace(wanted))


def _replace_all(session: Session, number: int) -> float:
    """Replace all messages by others."""
    wanted = _many(number)
    return timed(lambda: session.replace(wanted))


def _append_all(session: Session, number: int) -> float:
    wanted = _many(number)
    return timed(lambda: session.append(*wanted))
