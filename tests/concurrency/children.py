"""Processes that the tests start, talk to, stop and kill.

A child is a process that runs one function; the function's first argument is its end of a pipe.
What it raises is raised again by the parent's next `hear`. It is forked from an interpreter that
has imported the library and done nothing else, as starting one for each takes longer than most
tests; one that is to be stopped must be our own child, so it is a fresh interpreter.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from holdfast import Message, Session
from holdfast.proof import checker

_FRESH = multiprocessing.get_context("spawn")
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    ["pytest", "holdfast.storage.sqlite.backend", "holdfast.proof.checker", __name__]
)
_PATIENCE = 90.0


class Pipe:
    """One end of a pipe between two processes."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection

    def say(self, what: object) -> None:
        self._connection.send((True, what))

    def complain(self, what: str) -> None:
        self._connection.send((False, what))

    def hear(self) -> Any:  # noqa: ANN401 - whatever the other end said
        if not self._connection.poll(_PATIENCE):
            raise AssertionError("the other process says nothing")
        fine, what = self._connection.recv()
        if not fine:
            raise AssertionError(f"the other process failed:\n{what}")
        return what

    def has_news(self) -> bool:
        return self._connection.poll()

    def close(self) -> None:
        self._connection.close()


class Child:
    """A process that runs `target(pipe, *arguments)`."""

    def __init__(
        self, target: Callable[..., None], *arguments: object, stoppable: bool = False
    ) -> None:
        context = _FRESH if stoppable else _FORKED
        ours, theirs = context.Pipe()
        self._pipe = Pipe(ours)
        self._process = context.Process(target=_run, args=(target, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.say, self.hear = self._pipe.say, self._pipe.hear
        self.has_news = self._pipe.has_news

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop it as a debugger or a sleeping laptop would, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def join(self) -> None:
        """Wait for its end; its exit code must be 0."""
        self._process.join(_PATIENCE)
        assert self._process.exitcode == 0

    def clear_away(self) -> None:
        self.kill()
        self._process.close()
        self._pipe.close()


def _run(
    target: Callable[..., None], connection: "Connection[Any, Any]", arguments: Sequence[object]
) -> None:
    pipe = Pipe(connection)
    try:
        target(pipe, *arguments)
    except BaseException:
        pipe.complain(traceback.format_exc())
        raise


# --- writing and recording ----------------------------------------------------------------------


def batch(name: str, size: int) -> list[Message]:
    """Return a batch of messages whose ids begin with a name."""
    return [Message.user(f"{name}, part {part}", id=f"{name}.{part}") for part in range(size)]


def begin(
    recorder: checker.Recorder,
    session: Session,
    messages: Sequence[Message],
    fence: int | None = None,
) -> checker.Invoked:
    """Record that messages are going to be written."""
    digests = [checker.digest(message.text) for message in messages]
    return recorder.invoked(session.id, [m.id for m in messages], digests, fence=fence)


def append(recorder: checker.Recorder, session: Session, messages: Sequence[Message]) -> None:
    """Append messages, and record it."""
    write = begin(recorder, session, messages)
    recorder.acked(write, last=session.append(*messages).seq)


def stored(messages: Sequence[Message]) -> list[checker.Stored]:
    """Return a history in the checker's form."""
    return [checker.Stored(m.id, m.seq or 0, checker.digest(m.text)) for m in messages]


def judge(
    folder: Path, *sessions: Session, own: Sequence[str] = (), happened: Sequence[str]
) -> checker.Verdict:
    """Compare the events recorded in a folder with the sessions; fail if they differ."""
    events = checker.load(sorted(folder.glob("*.jsonl")))
    final = {session.id: stored(session.messages()) for session in sessions}
    verdict = checker.check(events, final, own=own)
    verdict.require(happened)
    return verdict
