"""`python -m bench.peers.driver MODULE CLASS`: one store as a process that takes commands.

A command is a line of JSON on standard input: `{"do": NAME, …}`; its answer is a line on standard
output. Whatever the store itself prints goes to standard error. Times are taken here, around the
store's own call; its messages are made beforehand.

Only the standard library: this module runs in the environments of other projects.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TextIO, TypeVar

from bench.peers.turns import Mark, Turn, turn

T = TypeVar("T")
Answer = dict[str, Any]
OPTIONAL: Final = ("sessions", "search", "fork", "catch_up")


class Peer(Protocol):
    """A store, made with its directory; every method may also be a coroutine function.

    A store may lack some: `sessions(limit)` lists the newest and `search(text, limit)` finds
    messages, both returning how many; `fork(key)` copies a history into a new session; `catch_up()`
    brings the search index up to date.
    """

    def messages(self, turn: Turn) -> Any:  # noqa: ANN401 - the store's own kind of messages
        """Return the four messages of a turn as the store takes them."""
        ...

    def open(self, key: str) -> Any:  # noqa: ANN401 - nothing, or a coroutine
        """Open a session, or create it."""
        ...

    def append(self, key: str, messages: Any) -> Any:  # noqa: ANN401 - as above
        """Store a turn in an open session, as the store's users do."""
        ...

    def fill(self, key: str, turns: Iterator[Turn]) -> Any:  # noqa: ANN401 - as above
        """Store many turns in an open session, as fast as the store's interface allows."""
        ...

    def last(self, key: str, limit: int) -> Any:  # noqa: ANN401 - as above
        """Return how many of the newest messages an open session has, at most `limit`."""
        ...

    def history(self, key: str) -> Any:  # noqa: ANN401 - as above
        """Return the marks of all messages of an open session (see `turns.recognise`)."""
        ...

    def close(self) -> Any:  # noqa: ANN401 - as above
        """Close the store."""
        ...


class Driver:
    """Carries out commands; the answers, other than acknowledgements, are returned."""

    def __init__(self, make: Callable[[Path], Peer], answers: TextIO) -> None:
        self._make = make
        self._answers = answers
        self._runner = asyncio.Runner()
        self._peer: Peer | None = None

    @property
    def peer(self) -> Peer:
        """The open store."""
        assert self._peer is not None, "no store is open"
        return self._peer

    def do_open(self, path: str, key: str) -> Answer:
        """Open the store in a directory, and a session; the seconds that took."""
        started = time.perf_counter()
        if self._peer is None:
            self._peer = self._make(Path(path))
        self._run(self.peer.open(key))
        return {"seconds": time.perf_counter() - started}

    def do_append(
        self,
        key: str,
        *,
        writer: str,
        first: int,
        turns: int,
        seconds: float,
        acknowledge: bool = False,
    ) -> Answer:
        """Append turns until all are stored or the seconds are over, at least one."""
        given = ((number, turn(writer, number)) for number in range(first, first + turns))
        found: Answer = self._runner.run(self._append(key, given, seconds, acknowledge=acknowledge))
        return found

    async def _append(
        self, key: str, turns: Iterator[tuple[int, Turn]], seconds: float, *, acknowledge: bool
    ) -> Answer:
        peer = self.peer
        times: list[float] = []
        stored: list[int] = []
        refused: Counter[str] = Counter()
        deadline = time.perf_counter() + seconds
        for number, given in turns:
            messages = peer.messages(given)
            started = time.perf_counter()
            try:
                pending = peer.append(key, messages)
                if pending is not None:
                    await pending
            except Exception as error:  # noqa: BLE001 - whatever a store refuses with is counted
                refused[type(error).__name__] += 1
            else:
                times.append(time.perf_counter() - started)
                stored.append(number)
                if acknowledge:
                    self.answer({"stored": number})
            if time.perf_counter() > deadline:
                break
        return {"times": times, "stored": stored, "refused": refused}

    def do_fill(self, key: str, turns: int, seconds: float) -> Answer:
        """Fill a session with turns until all are given or the seconds are over."""
        deadline = time.perf_counter() + seconds
        return {"turns": self._fill(key, range(turns), deadline)}

    def do_add_sessions(self, sessions: int, turns: int, seconds: float) -> Answer:
        """Create sessions of some turns until there are enough or the seconds are over."""
        started = time.perf_counter()
        deadline = started + seconds
        made = 0
        while made < sessions and time.perf_counter() < deadline:
            key = f"customer-{made}"
            self._run(self.peer.open(key))
            self._fill(key, range(made * turns, (made + 1) * turns), deadline=math.inf)
            made += 1
        return {"sessions": made, "seconds": time.perf_counter() - started}

    def _fill(self, key: str, numbers: range, deadline: float) -> int:
        """Fill a session; return how many turns it was given."""
        given = 0

        def until_late() -> Iterator[Turn]:
            nonlocal given
            for number in numbers:
                if time.perf_counter() > deadline:
                    return
                yield turn("fill", number)
                given += 1

        self._run(self.peer.fill(key, until_late()))
        return given

    def do_measure(
        self, method: str, arguments: Sequence[str | int], times: int, seconds: float
    ) -> Answer:
        """Call a method some times, or until the seconds are over; the last call's result."""
        call = getattr(self.peer, method)
        taken: list[float] = []
        result = None
        deadline = time.perf_counter() + seconds
        while len(taken) < times and (not taken or time.perf_counter() < deadline):
            started = time.perf_counter()
            result = self._run(call(*arguments))
            taken.append(time.perf_counter() - started)
        return {"times": taken, "result": result}

    def do_history(self, key: str) -> Answer:
        """The marks of all messages of a session, in order; `None` for an altered one."""
        found: Iterable[Mark | None] = self._run(self.peer.history(key))
        return {"marks": list(found)}

    def do_mark(self) -> Answer:
        """Make a system call that nothing else makes, for a trace of system calls."""
        os.getsid(0)
        return {}

    def _run(self, result: Any) -> Any:  # noqa: ANN401 - a value, or the coroutine of one
        return self._runner.run(result) if inspect.iscoroutine(result) else result

    def answer(self, answer: Answer) -> None:
        """Write a line."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()

    def serve(self, commands: Iterable[str]) -> None:
        """Carry out commands until there are no more; a failure is an answer, too."""
        for line in commands:
            command = json.loads(line)
            try:
                found = getattr(self, f"do_{command.pop('do')}")(**command)
            except Exception as error:  # noqa: BLE001 - told to the caller
                found = {"error": f"{type(error).__name__}: {error}"}
            self.answer(found)
        if self._peer is not None:
            self._run(self._peer.close())


def main(module: str, name: str) -> None:
    """Import the module of a store and serve its class."""
    # What a store prints must not be mistaken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    started = time.perf_counter()
    make = getattr(importlib.import_module(module), name)
    seconds = time.perf_counter() - started
    gc.collect()  # What an import leaves is not collected while a first read is timed.
    driver = Driver(make, answers)
    driver.answer(
        {"seconds": seconds, "can": [method for method in OPTIONAL if hasattr(make, method)]}
    )
    driver.serve(sys.stdin)
    answers.flush()
    os._exit(0)  # Nothing is left to do; some stores keep threads that do not end.


if __name__ == "__main__":
    main(*sys.argv[1:])
