"""Lists of sessions, searches and forks, of the stores that have them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from bench.measure import Result, Times
from bench.peers.catalog import HOLDFAST
from bench.peers.contest import PeerRun, contest, failure_rows, timed_rows
from bench.peers.driver_process import DriverFailed, DriverProcess
from bench.peers.turns import COMMON_WORDS, MESSAGES_PER_TURN, USUAL_WORDS

_PAGE: Final = 50
_TOP: Final = 20
_LIST_ROUNDS: Final = 5
_TURNS_OF_SESSION: Final = 25
_FILL_FACTOR: Final = 3  # The search has the largest store, and the fewest to fill.


def lists(run: PeerRun) -> Iterator[Result]:
    """List the newest of many sessions of one turn each."""
    with contest(run, "lists", can="sessions") as field:
        reached = field.all_at_once(partial(_add_sessions, run, run.sizes.sessions, 1))
        work = partial(_measure, "sessions", (_PAGE,), 4, run.sizes.round_seconds)
        field.rounds(1, work, run.sizes.store_seconds)
        found = field.rounds(_LIST_ROUNDS, work, run.sizes.store_seconds)
        yield from timed_rows(
            "lists", found, lambda name: f"list {_PAGE} of {reached[name]['sessions']:,}: {name}"
        )
    yield from failure_rows("lists", field)


def search(run: PeerRun) -> Iterator[Result]:
    """Find the best messages of many sessions, by a rare word, by two words, by a common one."""
    sizes = run.sizes
    sessions = sizes.searched // MESSAGES_PER_TURN // _TURNS_OF_SESSION
    with contest(run, "search", can="search") as field:
        # One by one: what they take is a figure, too.
        stored = {
            name: filled
            for name in list(field.drivers)
            if (filled := field.attempt(name, partial(_stored_and_indexed, run, sessions)))
        }
        messages = {
            name: answer["sessions"] * _TURNS_OF_SESSION * MESSAGES_PER_TURN
            for name, answer in stored.items()
        }
        rates = {name: messages[name] / answer["seconds"] for name, answer in stored.items()}
        for name, rate in rates.items():
            yield Result(
                name="search",
                what=f"store and index {messages[name]:,}: {name}",
                value=rate,
                figure=f"{rate:,.0f} messages/s",
                ratio=None if name == HOLDFAST.name else rate / rates[HOLDFAST.name],
                of=HOLDFAST.name,
            )
        field.rounds(1, partial(_measure, "search", (COMMON_WORDS[-1], _TOP), 1, 0.0), 0.0)
        for kind, queries in _queries(sizes.queries, min(messages.values())).items():
            upcoming = {name: iter(queries) for name in field.drivers}
            work = partial(_search, upcoming, sizes.round_seconds)
            found = field.rounds(len(queries), work, sizes.store_seconds)
            yield from timed_rows("search", found, partial(_searched, messages, kind))
    yield from failure_rows("search", field)


def _searched(messages: dict[str, int], kind: str, name: str) -> str:
    return f"search {messages[name]:,}, {kind}: {name}"


def forks(run: PeerRun) -> Iterator[Result]:
    """Fork a session."""
    sizes = run.sizes
    with contest(run, "forks", can="fork") as field:
        reached = field.all_at_once(partial(_fill_forked, run))
        work = partial(_measure, "fork", ("forked",), 1, sizes.round_seconds)
        field.rounds(1, work, sizes.store_seconds)
        found = field.rounds(sizes.forks, work, sizes.store_seconds)
        yield from timed_rows("forks", found, lambda name: f"fork of {reached[name]:,}: {name}")
    yield from failure_rows("forks", field)


def _add_sessions(run: PeerRun, sessions: int, turns: int, driver: DriverProcess) -> dict[str, Any]:
    driver.open("first")
    return driver.ask(
        "add_sessions", sessions=sessions, turns=turns, seconds=run.sizes.fill_seconds
    )


def _stored_and_indexed(run: PeerRun, sessions: int, driver: DriverProcess) -> dict[str, Any]:
    driver.open("first")
    answer = driver.ask(
        "add_sessions",
        sessions=sessions,
        turns=_TURNS_OF_SESSION,
        seconds=_FILL_FACTOR * run.sizes.fill_seconds,
    )
    if "catch_up" in driver.can:
        answer["seconds"] += sum(_measure("catch_up", (), 1, 0.0, driver))
    return answer


def _fill_forked(run: PeerRun, driver: DriverProcess) -> int:
    driver.open("forked")
    turns: int = driver.ask(
        "fill",
        key="forked",
        turns=run.sizes.forked // MESSAGES_PER_TURN,
        seconds=run.sizes.fill_seconds,
    )["turns"]
    return turns * MESSAGES_PER_TURN


def _queries(count: int, messages: int) -> dict[str, list[str]]:
    """Return queries of three kinds; those of rare words find one message each."""
    turns = max(messages // MESSAGES_PER_TURN, 1)
    step = max(turns // count, 1)
    return {
        "rare word": [f"fillt{n * step % turns:06}n2" for n in range(count)],
        "two words": [" ".join(USUAL_WORDS[n : n + 2]) for n in range(count)],
        "common word": list(COMMON_WORDS[:count]),
    }


def _search(upcoming: dict[str, Iterator[str]], seconds: float, driver: DriverProcess) -> Times:
    return _measure("search", (next(upcoming[driver.name]), _TOP), 1, seconds, driver)


def _measure(
    method: str,
    arguments: tuple[str | int, ...],
    times: int,
    seconds: float,
    driver: DriverProcess,
) -> Times:
    answer = driver.ask("measure", method=method, arguments=arguments, times=times, seconds=seconds)
    if answer["result"] == 0:
        raise DriverFailed(f"{method} {arguments} found nothing")
    taken: Times = answer["times"]
    return taken
