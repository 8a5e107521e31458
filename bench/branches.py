"""Reading across branches, against the same history in one branch.

A history that runs through branches is read as one range per branch, found without reading a
message. So the last messages cost the same wherever a fork lies among them, and a whole history
costs what its messages cost, whether it is a fork of a fork of a fork or a chain of a thousand runs
that continued one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import holdfast
from bench import material
from bench.measure import TIMES, Result, Times, alternate, median, micros, millis, ratio, timed
from bench.plan import KEY, Plan
from holdfast import Session, Store

_PAGE: Final = 50
_ACROSS_BAR: Final = 1.2
_WHOLE_BAR: Final = 1.1
_LAST_BAR: Final = 0.002
_FORKS: Final = 3
_REPEATS: Final = 20
_WHOLE_ROUNDS: Final = 7


def across(plan: Plan) -> Iterator[Result]:
    """Read the last 50 messages across a fork, and within one branch."""
    length = plan.sizes.histories[-1]
    with holdfast.open(plan.history(length), durability="process") as store:
        whole = store.session(KEY)
        apart = whole.fork()
        _append_turns(apart, _PAGE // 2 // material.MESSAGES_PER_TURN)
        assert apart.head().seq - whole.head().seq < _PAGE
        ours, theirs = alternate(30, _reads(apart), _reads(whole))
    found = ratio(ours, theirs)
    yield Result(
        name="across",
        what=f"last {_PAGE} across a fork of {length:,}",
        value=median(ours),
        figure=f"{micros(median(ours))} (within one branch: {micros(median(theirs))})",
        ratio=found,
        of="one branch",
        bar=f"≤ {_ACROSS_BAR} {TIMES} one branch",
        met=found <= _ACROSS_BAR,
    )
    yield from _of_forks(plan)


def _of_forks(plan: Plan) -> Iterator[Result]:
    """Read the whole history of a fork of a fork of a fork, and one of one branch."""
    length = plan.sizes.whole_history
    path = plan.path("forks")
    with holdfast.open(path, durability="process") as store:
        apart = _fork_of_forks(store, length)
        whole = store.session("one branch")
        material.lengthen(store, whole, length)
    rounds = alternate(_WHOLE_ROUNDS, _cold(path, apart.id, None), _cold(path, whole.id, None))
    found = ratio(*rounds)
    yield Result(
        name="across",
        what=f"whole history of {length:,}, {_FORKS} forks deep",
        value=median(rounds[0]),
        figure=f"{millis(median(rounds[0]))} (in one branch: {millis(median(rounds[1]))})",
        ratio=found,
        of="one branch",
        bar=f"≤ {_WHOLE_BAR} {TIMES} one branch",
        met=found <= _WHOLE_BAR,
    )


def _fork_of_forks(store: Store, length: int) -> Session:
    """Create a history to which each fork adds an equal part."""
    part = length // (_FORKS + 1)
    session = store.session("root")
    material.lengthen(store, session, part)
    for _ in range(_FORKS):
        session = session.fork()
        material.lengthen(store, session, part)
    assert session.head().seq == length
    return session


def chain(plan: Plan) -> Iterator[Result]:
    """Continue one conversation in a thousand runs of one turn each, and read the last of them."""
    runs, size = plan.sizes.runs, material.MESSAGES_PER_TURN
    path = plan.path("chain")
    with holdfast.open(path, durability="process") as store:
        last = _continued(store, runs)
        whole = store.session("one branch")
        material.lengthen(store, whole, runs * size)
        assert len(last.lineage()) == runs
    for what, limit in (("last 50", _PAGE), (f"whole history of {runs * size:,}", None)):
        ours, theirs = alternate(15, _cold(path, last.id, limit), _cold(path, whole.id, limit))
        yield Result(
            name="chain",
            what=f"chain of {runs:,} runs: {what}, cold",
            value=median(ours),
            figure=f"{millis(median(ours))} (in one branch: {millis(median(theirs))})",
            ratio=ratio(ours, theirs),
            of="one branch",
            bar=f"≤ {_LAST_BAR * 1e3:g} ms" if limit else "",
            met=median(ours) <= _LAST_BAR if limit else None,
        )
    with holdfast.open(path, durability="process") as store:
        end, alone = store.get(last.id), store.get(whole.id)
        yield _lineage(runs, end)
        yield _warm(runs, end, alone)


def _continued(store: Store, runs: int) -> Session:
    session = store.create()
    _append_turns(session, 1)
    for _ in range(runs - 1):
        session = store.create(parent=session, relation="continue")
        _append_turns(session, 1)
    return session


def _lineage(runs: int, session: Session) -> Result:
    times = [timed(session.lineage) for _ in range(_REPEATS)]
    return Result(
        name="chain",
        what=f"chain of {runs:,} runs: lineage",
        value=median([times]),
        figure=f"{millis(median([times]))}, {micros(median([times]) / runs)} a run",
    )


def _warm(runs: int, session: Session, alone: Session) -> Result:
    """Append at the end of a chain, which must not walk the ancestry."""
    ours, theirs = alternate(20, _appends(session), _appends(alone))
    found = ratio(ours, theirs)
    return Result(
        name="chain",
        what=f"chain of {runs:,} runs: append to the last, process",
        value=median(ours),
        figure=f"{micros(median(ours))} (to one branch: {micros(median(theirs))})",
        ratio=found,
        of="one branch",
        bar=f"≤ {_ACROSS_BAR} {TIMES} one branch",
        met=found <= _ACROSS_BAR,
    )


def _append_turns(session: Session, turns: int) -> None:
    for _ in range(turns):
        session.append(*material.turn())


def _appends(session: Session) -> Callable[[], Times]:
    def run() -> Times:
        batches = [material.turn() for _ in range(_REPEATS)]
        return [timed(partial(session.append, *batch)) for batch in batches]

    return run


def _reads(session: Session) -> Callable[[], Times]:
    """Read the last 50 messages with warm caches."""
    return lambda: [timed(lambda: session.messages(limit=_PAGE)) for _ in range(_REPEATS)]


def _cold(path: Path, session_id: str, limit: int | None) -> Callable[[], Times]:
    """Read with a newly opened store, whose ancestry cache is empty; opening is not timed.

    The file is in the system's cache, as it is when one process resumes another one's session.
    """

    def run() -> Times:
        with holdfast.open(path, durability="process") as store:
            session = store.get(session_id)
            return [timed(lambda: session.messages(limit=limit))]

    return run
