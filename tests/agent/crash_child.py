"""A process that dies at a given durable step of a turn of some rounds; run by test_crash_table.

It is started once, and forks a child for each step: the child works with a store of its own and is
killed with SIGKILL before or after that write. What was acknowledged goes to a file, by `write`,
before anything else happens; so does each effect of a tool.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TypeVar

import holdfast
from holdfast.agent import AsyncAgent
from holdfast.agent.events import Event, ReplyStored, ToolEnded, UserSaid
from holdfast.aio import completion_queue
from holdfast.aio import draft as aio_draft
from holdfast.aio import session as aio_session
from holdfast.aio import turn as aio_turn
from holdfast.context import GuardedWriter
from holdfast.storage.protocol import Operation
from holdfast.testing.scripted_model import ScriptedModel, calls, say
from holdfast.values import JSON

T = TypeVar("T")
TOGETHER = 3


def script(rounds: int) -> ScriptedModel:
    """Rounds of three calls each, then a last word."""

    def call(round: int, nth: int) -> tuple[str, str, JSON]:
        return f"r{round}c{nth}", "bump", {"n": round * TOGETHER + nth}

    said = [calls(*[call(n, c) for c in range(TOGETHER)]) for n in range(rounds)]
    return ScriptedModel(*said, say("All ", "done."))


class Doom:
    """Counts durable steps, and kills the process at one of them."""

    def __init__(self, step: int, *, before: bool) -> None:
        self._step, self._before = step, before
        self.count = 0

    async def write(self, writer: GuardedWriter, verb: Operation[T]) -> T:
        self.count += 1
        mine = self.count == self._step
        if mine and self._before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await _run_write(writer, verb)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


_run_write = completion_queue.run_write


def work(folder: Path, rounds: int, doom: Doom) -> None:
    """Do the whole turn, unless doomed."""
    folder.mkdir()
    acked = os.open(folder / "acked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    effects = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for module in (aio_draft, aio_session, aio_turn):
        module.run_write = doom.write  # type: ignore[attr-defined]

    async def bump(n: int) -> str:
        """Have an effect that can be counted."""
        os.write(effects, f"{n}\n".encode())
        return f"bumped {n}"

    async def main() -> None:
        async with (
            holdfast.open_async(str(folder / "a.db"), durability="process") as store,
            AsyncAgent(script(rounds), tools=[bump], titles=False) as agent,
        ):
            session = await store.session("talk")
            async for event in agent.stream(session, "go"):
                message = stored(event)
                if message is not None:
                    os.write(acked, f"{message.id}\n".encode())

    asyncio.run(main())


def stored(event: Event) -> holdfast.Message | None:
    """Return the message that an event acknowledges."""
    return event.message if isinstance(event, UserSaid | ReplyStored | ToolEnded) else None


def main(root: Path, rounds: int) -> None:
    """Count the steps, then die at each of them, before it and after it."""
    doom = Doom(0, before=False)
    work(root / "whole", rounds, doom)
    steps = doom.count
    for step in range(1, steps + 1):
        for before in (True, False):
            child = os.fork()
            if child == 0:
                name = f"{step}-{'before' if before else 'after'}"
                work(root / name, rounds, Doom(step, before=before))
                os._exit(1)  # It should not have come this far.
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                sys.exit(f"step {step} was survived")
    sys.stdout.write(f"{steps}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
