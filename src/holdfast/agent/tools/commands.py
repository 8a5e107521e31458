"""A tool that runs commands.

A command runs in a shell, in the folder that the session works in, with a scrubbed environment,
nothing to read from, and no terminal. It and all that it starts are one process group, which is
ended as a whole: when the command is over, takes too long, or is cancelled. What it writes, to
either output, is kept in the order it came, up to a limit; beyond it the command goes on and the
rest is dropped.

It is not a sandbox: a command can do what the user can. So it asks first.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from holdfast.agent.tools.base import Output, Tool, ToolContext
from holdfast.agent.tools.environments import scrubbed
from holdfast.agent.tools.files import Where, within
from holdfast.agent.tools.functions import TIMEOUT, ToolError, make_tool
from holdfast.agent.tools.threads import in_thread
from holdfast.aio.handover import unhurried

MAX_OUTPUT: Final = 32 * 1024 * 1024
LONGEST: Final = 600.0
_SHELL: Final = "/bin/sh"
_CHUNK: Final = 65_536
_GRACE: Final = 0.3  # From asking a command to end until it is ended.
_REAPED: Final = 0.15
_LAST_WORDS: Final = 0.1
_LAST_PIECES: Final = 64
_LONGEST_COMMAND: Final = 100_000


def command_tools(
    root: str | None = None,
    *,
    timeout: float = TIMEOUT,
    keep: Collection[str] = (),
    max_output: int = MAX_OUTPUT,
) -> tuple[Tool, ...]:
    """Make the tool. A command has `timeout` seconds unless the model gives it others.

    `keep` names variables of the environment that commands see beside the usual ones.
    """
    commands = CommandTools(within(root), timeout=timeout, keep=keep, max_output=max_output)
    # It sees to its time itself, so that what came before the end is told.
    return (make_tool(commands.run_command, asks=commands.ask_to_run, timeout=None),)


class CommandTools:
    """The tool, for one workspace."""

    def __init__(
        self, where: Where, *, timeout: float, keep: Collection[str], max_output: int
    ) -> None:
        """Work there."""
        self._where = where
        self._timeout = timeout
        self._keep = keep
        self._max_output = max_output

    def ask_to_run(self, context: ToolContext, given: dict[str, Any]) -> str:
        """Return what would run, and where."""
        _check(given["command"])
        return f"run in {self._folder(context)}\n$ {given['command']}"

    def _folder(self, context: ToolContext) -> str:
        space = self._where(context)
        return space.path_of(space.find(".", context.cwd))

    async def run_command(
        self, context: ToolContext, command: str, timeout_seconds: float = 0
    ) -> Output:
        """Run a shell command in the working directory and give its output and exit code.

        Args:
            command: The command, for /bin/sh. It has no terminal, and nothing to read from. What it
                leaves running in the background is ended with it.
            timeout_seconds: After how many seconds it is ended, 600 at most; 0 for as usual.
        """
        _check(command)
        seconds = min(timeout_seconds, LONGEST) if timeout_seconds > 0 else self._timeout
        environment = scrubbed(os.environ, self._keep)
        running = Running(command, self._folder(context), environment, self._max_output)
        in_time = await running.finish(seconds)
        return running.told(None if in_time else seconds)


def _check(command: str) -> None:
    if not command.strip():
        raise ToolError("the command is empty.")
    if "\0" in command or len(command) > _LONGEST_COMMAND:
        raise ToolError("this cannot be a command.")


class Running:
    """A command that runs, and what it wrote so far."""

    def __init__(
        self, command: str, folder: str, environment: Mapping[str, str], max_output: int
    ) -> None:
        """Start it; needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._most = max_output
        self._pieces: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._stragglers = False
        self._ended = self._loop.create_future()
        self._pipe, other_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [_SHELL, "-c", command],
                cwd=folder,
                env={**environment, "PWD": folder},
                stdin=subprocess.DEVNULL,
                stdout=other_end,
                stderr=other_end,
                # A session of its own: a group to end it by, and no terminal to write to.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(self._pipe)
            raise ToolError(f"the command cannot be started: {error}") from error
        finally:
            os.close(other_end)
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)

    async def finish(self, seconds: float) -> bool:
        """Wait until it is over, or so long; give whether it was over by itself."""
        over = asyncio.ensure_future(in_thread(partial(_await_end, self._process)))
        try:
            done, _ = await asyncio.wait([over], timeout=seconds)
        finally:
            # However it ended: nothing of it stays behind.
            await unhurried(self._clean_up(over))
        return bool(done)

    async def _clean_up(self, over: asyncio.Future[None]) -> None:
        try:
            if not over.done():
                self._send(signal.SIGTERM)
                await asyncio.wait([over, self._ended], timeout=_GRACE)
            await self._hear_out()
            self._stragglers = over.done() and not self._ended.done()
            self._send(signal.SIGKILL)
            await self._hear_out()
            await asyncio.wait([over], timeout=_REAPED)
        finally:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
        if over.done():
            self._process.wait()
        else:
            over.cancel()

    async def _hear_out(self) -> None:
        """Take its last words; somebody it left behind may keep the pipe open."""
        await asyncio.wait([self._ended], timeout=_LAST_WORDS)
        for _ in range(_LAST_PIECES):
            if self._ended.done() or not self._read():
                return

    def _send(self, sent: signal.Signals) -> None:
        # The group has its number for as long as its first process was not waited for.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, sent)

    def _read(self) -> bool:
        """Take what is there; give whether there was anything."""
        try:
            piece = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._pipe)
            if not self._ended.done():
                self._ended.set_result(None)
            return False
        kept = piece[: max(self._most - self._size, 0)]
        self._dropped += len(piece) - len(kept)
        self._size += len(kept)
        if kept:
            self._pieces.append(kept)
        return True

    def told(self, given_up: float | None) -> Output:
        """Return what it wrote and how it ended; `given_up` is after how many seconds."""
        said = b"".join(self._pieces).decode("utf-8", "replace").replace("\0", "\ufffd")
        code = self._process.returncode
        notes: list[str] = []
        if self._dropped:
            notes.append(f"[{self._dropped:,} more bytes of output were dropped]")
        if self._stragglers:
            notes.append("[what it left running in the background was ended]")
        if given_up is not None:
            notes.append(f"[ended after {given_up:g} s: it took too long]")
        else:
            notes.append(f"[{_how(code)}]")
        if said and not said.endswith("\n"):
            said += "\n"
        return Output(said + "\n".join(notes), error=given_up is not None or code != 0)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end; where that can be done, without letting go of the process's number."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # The program lets the system reap its children.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _how(code: int | None) -> str:
    if code is None:
        return "it does not end"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
