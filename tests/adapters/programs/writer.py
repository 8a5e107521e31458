"""A process that writes turns into the shared session of a framework, or reads it.

`-m … FRAMEWORK own|holdfast FOLDER NAME` says that it is ready; for each line of its input, a
number, it stores so many turns and says that it is done. At the end it prints which turns were
stored, how many conflicts were retried, as the framework asks of its users, and which errors ended
the attempt to store another.
`-m … FRAMEWORK own|holdfast FOLDER` prints the marks of all messages.

Only the standard library and Holdfast: this module runs in the environments of frameworks.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol, TextIO

import holdfast
from tests.adapters.programs.turns import Mark, Turn, turn


class Writer(Protocol):
    """The shared session, as a user of the framework has it."""

    async def add(self, turn: Turn) -> int:
        """Store a turn; return how many conflicts were retried."""
        ...

    async def marks(self) -> list[Mark | None]:
        """Return the mark of every message."""
        ...


@contextmanager
def opened(framework: str, kind: str, folder: Path) -> Iterator[Writer]:
    """Open the framework's own store in a folder, or ours."""
    module = import_module(f"tests.adapters.programs.writers.{framework}")
    if kind == "own":
        yield module.own(folder)
        return
    with holdfast.open(folder / "agent.db", durability="process") as store:
        yield module.ours(store)


async def write(writer: Writer, name: str, answers: TextIO) -> dict[str, Any]:
    """Store turns as they are asked for; one that is refused is not tried again."""
    stored, retries = [], 0
    refused: Counter[str] = Counter()
    numbers = count()
    _say(answers, "ready")
    for line in sys.stdin:
        for number in islice(numbers, int(line)):
            try:
                retries += await writer.add(turn(name, number))
            except Exception as error:  # noqa: BLE001 - whatever a store refuses with is counted
                refused[type(error).__name__] += 1
            else:
                stored.append(number)
        _say(answers, "done")
    return {"stored": stored, "retries": retries, "refused": refused}


def _say(answers: TextIO, word: str) -> None:
    answers.write(f"{word}\n")
    answers.flush()


def main(answers: TextIO, framework: str, kind: str, folder: str, *names: str) -> None:
    with opened(framework, kind, Path(folder)) as writer:
        work = write(writer, names[0], answers) if names else writer.marks()
        json.dump(asyncio.run(work), answers)


if __name__ == "__main__":
    # What a framework prints must not be mistaken for an answer.
    with os.fdopen(os.dup(1), "w") as _answers:
        os.dup2(2, 1)
        main(_answers, *sys.argv[1:])
        _answers.flush()
        os._exit(0)  # Some frameworks have threads that do not end.
