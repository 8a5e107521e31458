"""Reads: the last 50 messages in a new process, a whole history, a page of sessions."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import holdfast
from bench import bare, material
from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import KEY, Plan
from holdfast import Store
from holdfast.values import Page, SessionInfo

_PAGE: Final = 50
_RESUME_BAR: Final = 0.002
_RESUME_FLAT: Final = 1.2
_WHOLE_BAR: Final = 0.3
_FIRST_BAR: Final = 0.002
_SIZE_BAR: Final = 1_150  # bytes a message
_LIST_BAR: Final = 0.00025
_PINNED: Final = 5
_REPEATS: Final = 20

_RESUME: Final = """
import sys, time
import holdfast, holdfast.storage.sqlite.backend
started = time.perf_counter()
store = holdfast.open(sys.argv[1])
found = store.session(sys.argv[2]).messages(limit=50)
print(time.perf_counter() - started)
assert len(found) == 50
store.close()
"""
_BARE_RESUME: Final = """
import sys, time
import apsw
started = time.perf_counter()
connection = apsw.Connection(sys.argv[1])
connection.execute("PRAGMA synchronous=FULL")
found = connection.execute("SELECT n, body FROM messages ORDER BY n DESC LIMIT 50").fetchall()
print(time.perf_counter() - started)
assert len(found) == 50
"""


def resume(plan: Plan) -> Iterator[Result]:
    """Open the store in a new process and read the last 50; imports are not timed."""
    lengths = [100, *(length for length in plan.sizes.histories if length > 1_000)]
    works = [_in_new_process(_RESUME, plan.history(length)) for length in lengths]
    bare_work = _in_new_process(_BARE_RESUME, plan.bare_history(lengths[-1]))
    *found, theirs = alternate(plan.sizes.starts, *works, bare_work)
    for length, rounds in zip(lengths, found, strict=True):
        yield Result(
            name="resume",
            what=f"resume: last {_PAGE} of {length:,}, new process",
            value=median(rounds),
            figure=f"{millis(median(rounds))} (bare {millis(median(theirs))})",
            ratio=ratio(rounds, theirs),
            bar=f"≤ {_RESUME_BAR * 1e3:g} ms",
            met=median(rounds) <= _RESUME_BAR,
        )
    growth = ratio(found[-1], found[0])
    yield Result(
        name="resume",
        what=f"the same: {lengths[-1]:,} against {lengths[0]}",
        value=growth,
        figure=f"{growth:.2f} {TIMES}",
        ratio=growth,
        of=f"at {lengths[0]}",
        bar=f"≤ {_RESUME_FLAT} {TIMES} at {lengths[0]}",
        met=growth <= _RESUME_FLAT,
    )


def _in_new_process(code: str, path: Path) -> Callable[[], Times]:
    command = [sys.executable, "-c", code, str(path), KEY]

    def run() -> Times:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [float(done.stdout)]

    return run


def history(plan: Plan) -> Iterator[Result]:
    """Read and decode a whole history; the bare engine only fetches the rows."""
    length = plan.sizes.whole_history
    connection = bare.connect(plan.bare_history(length), "process")
    with holdfast.open(plan.history(length)) as store:
        session = store.session(KEY)
        ours, paged, first, theirs = alternate(
            7,
            lambda: [timed(lambda: session.messages(limit=length))],
            lambda: [timed(lambda: deque(session.iter_messages(), maxlen=0))],
            lambda: [timed(lambda: next(session.iter_messages()))],
            lambda: [timed(lambda: bare.read(connection, 0))],
        )
    connection.close()
    scaled = _WHOLE_BAR * length / 100_000
    yield Result(
        name="history",
        what=f"whole history of {length:,}, decoded",
        value=median(ours),
        figure=f"{millis(median(ours))} (bare rows, undecoded: {millis(median(theirs))})",
        ratio=ratio(ours, theirs),
        bar=f"≤ {scaled * 1e3:g} ms",
        met=median(ours) <= scaled,
    )
    yield Result(
        name="history",
        what="the same, iterated over in pages",
        value=median(paged),
        figure=f"{millis(median(paged))} (all at once: {millis(median(ours))})",
        ratio=ratio(paged, theirs),
    )
    yield Result(
        name="history",
        what="until the first message of it",
        value=median(first),
        figure=millis(median(first)),
        bar=f"≤ {_FIRST_BAR * 1e3:g} ms",
        met=median(first) <= _FIRST_BAR,
    )


def listing(plan: Plan) -> Iterator[Result]:
    """Read a page of sessions with title, preview, count and state: the newest, and by filters."""
    for number in plan.sizes.lists:
        connection = bare.connect(plan.path("bare-list"), "process")
        bare.fill_sessions(connection, number)
        with holdfast.open(plan.many_sessions(number)) as store:
            _pin_the_oldest(store)
            pages = _pages(store)
            for what, (ask, size) in pages.items():
                assert len(ask()) == size, what
            *found, theirs = alternate(
                10,
                *(partial(_repeat, ask) for ask, _ in pages.values()),
                partial(_repeat, partial(bare.newest_sessions, connection)),
            )
        connection.close()
        newest = found[0]
        yield Result(
            name="list",
            what=f"list {_PAGE} of {number:,} sessions",
            value=median(newest),
            figure=f"{millis(median(newest))} (bare rows: {millis(median(theirs))})",
            ratio=ratio(newest, theirs),
            bar=f"≤ {_LIST_BAR * 1e3:g} ms",
            met=median(newest) <= _LIST_BAR,
        )
        for (what, _), rounds in islice(zip(pages.items(), found, strict=True), 1, None):
            yield _page(f"list {what} {number:,} sessions", rounds, newest)
        yield _looked_through(plan.many_sessions(number), number, newest)


def _page(what: str, rounds: list[Times], newest: list[Times]) -> Result:
    return Result(
        name="list",
        what=what,
        value=median(rounds),
        figure=millis(median(rounds)),
        ratio=ratio(rounds, newest),
        of=f"list {_PAGE}",
        bar=f"≤ {_LIST_BAR * 1e3:g} ms",
        met=median(rounds) <= _LIST_BAR,
    )


def _pages(store: Store) -> dict[str, tuple[Callable[[], Page[SessionInfo]], int]]:
    """Yield each query: its description, the call, and the expected number of rows."""
    middle = store.sessions(limit=1_000).cursor
    return {
        f"{_PAGE} of": (store.sessions, _PAGE),
        f"{_PAGE} behind 1,000 of": (partial(store.sessions, cursor=middle), _PAGE),
        f"{_PAGE}, pinned first, of": (partial(store.sessions, order="pinned"), _PAGE),
        f"the {_PINNED} pinned of": (partial(store.sessions, pinned=True), _PINNED),
        f"{_PAGE} of a scope with 1 %, of": (
            partial(store.sessions, scope=material.FEW_SCOPE),
            _PAGE,
        ),
        f"{_PAGE} done since yesterday, of": (
            partial(store.sessions, state="done", since="1d"),
            _PAGE,
        ),
    }


def _looked_through(path: Path, number: int, newest: list[Times]) -> Result:
    """Filter by a text that hardly any title has: every session has to be read."""
    with holdfast.open(path) as store:
        ask = partial(store.sessions, text=f"Parcel {number - 1}")
        assert len(ask()) == 1
        seconds = median([[timed(ask) for _ in range(3)]])
    return Result(
        name="list",
        what=f"list the one with a text in its title, of {number:,}",
        value=seconds,
        figure=f"{millis(seconds)}: all are read",
        ratio=seconds / median(newest),
        of=f"list {_PAGE}",
    )


def _pin_the_oldest(store: Store) -> None:
    for number in range(_PINNED):
        store.session(material.key_of(number), create=False).update(pinned=True)
    assert len(store.sessions(pinned=True)) == _PINNED


def _repeat(work: Callable[[], object]) -> Times:
    return [timed(work) for _ in range(_REPEATS)]


def size(plan: Plan) -> Iterator[Result]:
    """Compare the file sizes: Holdfast's has ids, checksums and an index on ids."""
    length = plan.sizes.whole_history
    equal, varied = material.bodies(), material.varied_bodies()
    yield _size(plan.history(length), plan.bare_history(length), equal, "of equal turns", _SIZE_BAR)
    ours, theirs = plan.path("varied"), plan.path("bare-varied")
    with holdfast.open(ours, durability="process") as store:
        material.lengthen(store, store.session(KEY), length, varied)
    connection = bare.connect(theirs, "process")
    bare.fill(connection, varied, length)
    connection.close()
    yield _size(ours, theirs, varied, "half to 1.5 as long")


def _size(ours: Path, theirs: Path, bodies: list[str], what: str, bar: int | None = None) -> Result:
    messages = _messages(ours)
    text = statistics.fmean(len(body.encode("utf-8")) for body in bodies)
    stored, plain = ours.stat().st_size / messages, theirs.stat().st_size / messages
    return Result(
        name="size",
        what=f"bytes a message in the file, {messages:,} {what}",
        value=stored,
        figure=f"{stored:,.0f} (bare {plain:,.0f}, text {text:,.0f})",
        ratio=stored / plain,
        bar="" if bar is None else f"≤ {bar:,} bytes",
        met=None if bar is None else stored <= bar,
    )


def _messages(path: Path) -> int:
    with holdfast.open(path, readonly=True) as store:
        return store.session(KEY).head().seq
