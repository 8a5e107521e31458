"""An adapter and its framework's own store: resumes, reads of the newest, appends.

Both are filled alike, through their own interfaces. A resume is a new process that opens the store
and reads what its framework reads before a run; imports are not timed. Appends are timed around the
call that stores a turn. A short history would grow while it is measured, so each round has one of
its own.

In the end the histories are compared with what was stored: a store that did not keep it has failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Final

from bench.frameworks.catalog import FrameworkEntry
from bench.measure import TIMES, Result, Times, alternate
from bench.peers.contest import Contest, PeerRun, contest, duration, failure_rows, median, ratio
from bench.peers.driver_process import DriverFailed, DriverProcess, Installed
from bench.peers.histories import append_turns, syncs_of_a_turn
from bench.peers.turns import MESSAGES_PER_TURN, Mark
from bench.peers.verdict import judge

_STORE: Final = "store"
_NEWEST: Final = 50
_READS_A_ROUND: Final = 4
_SHORT: Final = 1_000
# A driver has to answer in 300 seconds; the adapter is given as many turns as the own store took.
_FILL_S: Final = 280.0


class Pair:
    """One measurement of an adapter beside the framework's own store."""

    def __init__(self, entry: FrameworkEntry, run: PeerRun) -> None:
        self._entry = entry
        self._run = run
        self._sizes = run.sizes
        self._lengths: dict[int, int] = {}
        self._rounds: dict[tuple[str, int], int] = defaultdict(int)
        self._appended: dict[tuple[str, str], int] = defaultdict(int)

    def results(self) -> Iterator[Result]:
        """Measure; a store that fails has a row that says why, and the other one no ratio."""
        yield self._durability()
        with contest(self._run, _STORE) as field:
            for length in self._sizes.histories:
                self._fill(field, length)
        yield from self._failures(field)
        if field.failures:
            return
        for length in self._sizes.histories:
            yield from self._resumes(length)
        with contest(self._run, _STORE) as field:
            for length in self._sizes.histories:
                yield from self._reads(field, length)
                yield from self._appends(field, length)
                field.all_at_once(partial(self._check, length))
        yield from self._failures(field)

    # ---------------------------------------------------------------------------- durability

    def _durability(self) -> Result:
        entry = self._entry
        ours, theirs = (self._syncs(name) for name in (entry.adapter, entry.own))
        return Result(
            name="frameworks",
            what=f"{entry.title} {entry.version}: syncs of a turn",
            value=0.0,
            figure=f"{entry.adapter} (power): {ours}; {entry.own} ({entry.durability}): {theirs}",
        )

    def _syncs(self, name: str) -> str:
        try:
            return f"{syncs_of_a_turn(self._run, self._installed(name)):.1f}"
        except (DriverFailed, OSError) as error:
            return f"not counted ({error})"

    def _installed(self, name: str) -> Installed:
        return next(one for one in self._run.installed if one.name == name)

    # ------------------------------------------------------------------------------- filling

    def _keys(self, length: int) -> list[str]:
        count = self._sizes.rounds + 1 if length <= _SHORT else 1
        return [f"history-{length}-{number}" for number in range(count)]

    def _fill(self, field: Contest, length: int) -> None:
        """Fill both with histories of a length, or as far as the own store gets in its time."""
        turns, seconds = length // MESSAGES_PER_TURN, self._sizes.fill_seconds
        for name in (self._entry.own, self._entry.adapter):
            for key in self._keys(length):
                filled = field.attempt(name, partial(_fill, key, turns, seconds))
                if filled is None:
                    return
                turns, seconds = filled, _FILL_S
        self._lengths[length] = turns * MESSAGES_PER_TURN

    # ------------------------------------------------------------------------------- resumes

    def _resumes(self, length: int) -> Iterator[Result]:
        works = (partial(self._resume, length, one) for one in self._run.installed)
        try:
            rounds = alternate(self._sizes.starts + 1, *works)
        except DriverFailed as error:
            yield self._failure(str(error))
            return
        names = [one.name for one in self._run.installed]
        # The first round warms up.
        found = {name: times[1:] for name, times in zip(names, rounds, strict=True)}
        yield from self._rows(self._entry.resume, length, found)

    def _resume(self, length: int, installed: Installed) -> Times:
        key = self._keys(length)[0]
        with DriverProcess(installed, self._run.directory_of(_STORE, installed)) as driver:
            seconds = driver.open(key)
            answer = driver.ask("measure", method="resume", arguments=[key], times=1, seconds=0)
        if answer["result"] != self._lengths[length]:
            raise DriverFailed(f"{installed.name} read {answer['result']} messages of {length}")
        return [seconds + sum(answer["times"])]

    # --------------------------------------------------------------------- reads and appends

    def _reads(self, field: Contest, length: int) -> Iterator[Result]:
        key = self._keys(length)[0]
        field.all_at_once(lambda driver: driver.open(key))
        if self._entry.newest:
            read = partial(_read_newest, key)
            field.rounds(1, read, self._sizes.store_seconds)
            found = field.rounds(self._sizes.rounds, read, self._sizes.store_seconds)
            bar = self._entry.newest_at_most
            yield from self._rows(self._entry.newest, length, found, at_most=bar)

    def _appends(self, field: Contest, length: int) -> Iterator[Result]:
        work = partial(self._append, length)
        field.rounds(1, work, self._sizes.store_seconds)
        found = field.rounds(self._sizes.rounds, work, self._sizes.store_seconds)
        yield from self._rows(self._entry.append, length, found)

    def _append(self, length: int, driver: DriverProcess) -> Times:
        keys, number = self._keys(length), self._rounds[driver.name, length]
        self._rounds[driver.name, length] += 1
        key = keys[number % len(keys)]
        if number and len(keys) > 1:
            driver.open(key)
        first = self._appended[driver.name, key]
        numbers = range(first, first + self._sizes.turns_a_round)
        times = append_turns(driver, key, numbers, self._sizes.round_seconds)
        self._appended[driver.name, key] += len(times)
        return times

    def _check(self, length: int, driver: DriverProcess) -> None:
        """Raise `DriverFailed` if the history is not what was stored."""
        key = self._keys(length)[-1]
        marks = driver.ask("history", key=key)["marks"]
        history = [None if mark is None else Mark(*mark) for mark in marks]
        stored = {
            "fill": self._lengths[length] // MESSAGES_PER_TURN,
            "one": self._appended[driver.name, key],
        }
        turns = [(writer, turn) for writer, count in stored.items() for turn in range(count)]
        verdict = judge(turns, history)
        if not verdict.flawless or len(history) != len(turns) * MESSAGES_PER_TURN:
            raise DriverFailed(f"of {len(turns):,} turns {verdict}; {len(history):,} messages")

    # ---------------------------------------------------------------------------------- rows

    def _rows(
        self,
        what: str,
        length: int,
        found: dict[str, list[Times]],
        *,
        at_most: float | None = None,
    ) -> Iterator[Result]:
        ours, theirs = found.get(self._entry.adapter), found.get(self._entry.own)
        if ours is None or theirs is None:
            return  # Its failure has a row.
        times = ratio(ours, theirs)
        own = self._entry.own
        yield Result(
            name="frameworks",
            what=self._entry.label(what, self._lengths[length]),
            value=median(ours),
            figure=f"{duration(median(ours))} ({own}: {duration(median(theirs))})",
            ratio=times,
            of="own",
            bar="" if at_most is None else f"≤ {at_most:g} {TIMES} own",
            met=None if at_most is None else times <= at_most,
        )

    def _failures(self, field: Contest) -> Iterator[Result]:
        yield from failure_rows(self._entry.title, field)

    def _failure(self, reason: str) -> Result:
        return Result(
            name="frameworks", what=self._entry.title, value=0, figure=f"failed: {reason}"
        )


def _fill(key: str, turns: int, seconds: float, driver: DriverProcess) -> int:
    driver.open(key)
    given: int = driver.ask("fill", key=key, turns=turns, seconds=seconds)["turns"]
    return given


def _read_newest(key: str, driver: DriverProcess) -> Times:
    arguments = [key, _NEWEST]
    answer = driver.ask(
        "measure", method="last", arguments=arguments, times=_READS_A_ROUND, seconds=0
    )
    if not answer["result"]:
        raise DriverFailed(f"{key} has no messages")
    times: Times = answer["times"]
    return times
