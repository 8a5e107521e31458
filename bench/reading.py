"""Reading: the last 50 in a new process, a whole history, a page of the list of sessions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import holdfast
from bench import bare, material
from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import KEY, Plan
from holdfast import Store

_PAGE: Final = 50
_RESUME_BAR: Final = 0.002
_RESUME_FLAT: Final = 1.2
_WHOLE_BAR: Final = 0.3
_LIST_BAR: Final = 0.0003
_PINNED: Final = 5
_REPEATS: Final = 20

_RESUME: Final = """
import sys, time
import holdfast, holdfast.backends.sqlite.backend
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
    """Open the store in a new process and read the last 50; imports are not counted."""
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
        ours, theirs = alternate(
            7,
            lambda: [timed(lambda: session.messages(limit=length))],
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


def listing(plan: Plan) -> Iterator[Result]:
    """Read the 50 newest sessions with title, preview, count and state, and the few pinned ones."""
    for number in plan.sizes.lists:
        connection = bare.connect(plan.path("bare-list"), "process")
        bare.fill_sessions(connection, number)
        with holdfast.open(plan.many_sessions(number)) as store:
            assert len(store.sessions(limit=_PAGE)) == _PAGE
            _pin_the_oldest(store)
            ours, pinned, theirs = alternate(
                10,
                partial(_repeat, store.sessions),
                partial(_repeat, partial(store.sessions, pinned=True)),
                partial(_repeat, partial(bare.newest_sessions, connection)),
            )
        connection.close()
        yield Result(
            name="list",
            what=f"list {_PAGE} of {number:,} sessions",
            value=median(ours),
            figure=f"{millis(median(ours))} (bare rows: {millis(median(theirs))})",
            ratio=ratio(ours, theirs),
            bar=f"≤ {_LIST_BAR * 1e3:g} ms",
            met=median(ours) <= _LIST_BAR,
        )
        yield Result(
            name="list",
            what=f"list the {_PINNED} pinned of {number:,} sessions",
            value=median(pinned),
            figure=millis(median(pinned)),
            ratio=ratio(pinned, ours),
            of=f"list {_PAGE}",
            bar=f"≤ {_LIST_BAR * 1e3:g} ms",
            met=median(pinned) <= _LIST_BAR,
        )


def _pin_the_oldest(store: Store) -> None:
    for number in range(_PINNED):
        store.session(material.key_of(number), create=False).update(pinned=True)
    assert len(store.sessions(pinned=True)) == _PINNED


def _repeat(work: Callable[[], object]) -> Times:
    return [timed(work) for _ in range(_REPEATS)]


def size(plan: Plan) -> Iterator[Result]:
    """Compare the files: ours has ids, checksums and an index on ids."""
    length = plan.sizes.whole_history
    text = sum(len(body.encode("utf-8")) for body in material.bodies()) / 4
    ours = plan.history(length).stat().st_size / _messages(plan.history(length))
    theirs = plan.bare_history(length).stat().st_size / length
    yield Result(
        name="size",
        what=f"bytes a message in the file, {length:,} messages",
        value=ours,
        figure=f"{ours:,.0f} (bare {theirs:,.0f}, text {text:,.0f})",
        ratio=ours / theirs,
    )


def _messages(path: Path) -> int:
    with holdfast.open(path, readonly=True) as store:
        return store.session(KEY).head().seq
