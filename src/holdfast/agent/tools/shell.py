"""The tool that runs shell commands.

A command runs in a shell, in the session's working directory, with a scrubbed environment, empty
input, and no terminal. All its processes are killed when it exits, times out, or is cancelled, as
far as they can be found (`containment`). Standard output and standard error are kept in the order
written, up to a limit; beyond it the command continues and its output is dropped.

The environment is passed on by an allow-list of names, so that API keys and tokens are not. A
proxy's URL is passed on only without a password. Relative folders in `PATH` are removed: a program
in the workspace must not be run in place of `ls`. Git is told not to run programs that files of the
workspace name: no hooks, no file system monitor, no repository but one with a `.git`, which tools
never write to.

This is not a sandbox: a command can do whatever the user can. So it requires approval.
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

from holdfast.agent.tools.containment import COMMANDS, Ended
from holdfast.agent.tools.function_tools import DEFAULT_TIMEOUT_S, ToolError, make_tool
from holdfast.agent.tools.protocol import Output, Tool, ToolContext
from holdfast.agent.tools.worker_thread import in_thread
from holdfast.agent.tools.workspace import Workspace
from holdfast.aio.completion_queue import shielded

MAX_OUTPUT_BYTES: Final = 32 * 1024 * 1024
MAX_TIMEOUT_S: Final = 600.0
_SHELL: Final = "/bin/sh"
_CHUNK: Final = 65_536
_TERM_GRACE_S: Final = 0.3  # Seconds between SIGTERM and SIGKILL.
_REAP_TIMEOUT_S: Final = 0.15
_DRAIN_TIMEOUT_S: Final = 0.1
_MAX_DRAIN_READS: Final = 64
_MAX_COMMAND_CHARS: Final = 100_000
_INHERITED_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER"}
    # Where language toolchains are installed.
    | {"CARGO_HOME", "CONDA_PREFIX", "GOPATH", "GOROOT", "JAVA_HOME", "NVM_DIR", "PYENV_ROOT"}
    | {"RUSTUP_HOME", "SSL_CERT_DIR", "SSL_CERT_FILE", "VIRTUAL_ENV"}
)
_PROXY_VARIABLES: Final = frozenset(
    {"all_proxy", "ftp_proxy", "http_proxy", "https_proxy", "no_proxy"}
)
_FIXED_VARIABLES: Final = {
    # There is no terminal for prompts, pagers or colours.
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "TERM": "dumb",
}
# Overrides every configuration file of git.
_GIT_SETTINGS: Final = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    # Its background processes would be killed with the command.
    "gc.autoDetach": "false",
    "maintenance.autoDetach": "false",
    "safe.bareRepository": "explicit",
}
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def command_tools(
    root: str,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    keep: Collection[str] = (),
    max_output: int = MAX_OUTPUT_BYTES,
) -> tuple[Tool, ...]:
    """Return the tool. A command times out after `timeout` seconds unless the model sets another.

    `keep` names environment variables that commands see beside the usual ones.
    """
    commands = CommandTools(Workspace(root), timeout=timeout, keep=keep, max_output=max_output)
    # It applies the timeout itself, so that the output written before it is reported.
    return (make_tool(commands.run_command, asks=commands.ask_to_run, timeout=None),)


class CommandTools:
    """The tool, for one workspace."""

    def __init__(
        self, space: Workspace, *, timeout: float, keep: Collection[str], max_output: int
    ) -> None:
        self._folder = space.root
        self._timeout = timeout
        self._keep = keep
        self._max_output = max_output

    def ask_to_run(self, _: ToolContext, given: dict[str, Any]) -> str:
        """Return the question for the user: the command and its folder."""
        _check(given["command"])
        return f"run in {self._folder}\n$ {given['command']}"

    async def run_command(self, command: str, timeout_seconds: float = 0) -> Output:
        """Run a shell command in the working directory and return its output and exit code.

        Args:
            command: The command, for /bin/sh. It has no terminal and empty input. Background
                processes that it leaves running are killed when it exits, except, on other systems
                than Linux, those that left its process group.
            timeout_seconds: Seconds after which it is killed, at most 600; 0 for the default.
        """
        _check(command)
        seconds = min(timeout_seconds, MAX_TIMEOUT_S) if timeout_seconds > 0 else self._timeout
        environment = scrub_environment(os.environ, self._keep)
        running = RunningCommand(command, self._folder, environment, self._max_output)
        in_time = await running.finish(seconds)
        return running.output(None if in_time else seconds)


def _check(command: str) -> None:
    if not command.strip():
        raise ToolError("the command is empty.")
    if "\0" in command or len(command) > _MAX_COMMAND_CHARS:
        raise ToolError("the command is too long or contains a null character.")


class RunningCommand:
    """A running command, and its output so far."""

    def __init__(
        self, command: str, folder: str, environment: Mapping[str, str], max_output: int
    ) -> None:
        """Start the command; there must be a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._max_output = max_output
        self._pieces: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._left_open = False  # Its output, by a process in the background.
        self._killed = Ended()
        self._ended = self._loop.create_future()
        self._pipe, other_end = os.pipe()
        try:
            self._process = COMMANDS.start(
                lambda: subprocess.Popen(
                    [_SHELL, "-c", command],
                    cwd=folder,
                    env={**environment, "PWD": folder},
                    stdin=subprocess.DEVNULL,
                    stdout=other_end,
                    stderr=other_end,
                    # A session of its own: processes to kill, and no terminal to write to.
                    start_new_session=True,
                )
            )
        except (OSError, ValueError) as error:
            os.close(self._pipe)
            raise ToolError(f"the command cannot be started: {error}") from error
        finally:
            os.close(other_end)
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)

    async def finish(self, seconds: float) -> bool:
        """Wait until the command exits or the time is over; return whether it exited by itself."""
        over = asyncio.ensure_future(in_thread(partial(_wait_for_exit, self._process)))
        try:
            done, _ = await asyncio.wait([over], timeout=seconds)
        finally:
            # However it ended, no process of it may stay behind.
            await shielded(self._clean_up(over))
        return bool(done)

    async def _clean_up(self, over: asyncio.Future[None]) -> None:
        try:
            if not over.done():
                COMMANDS.terminate(self._process.pid)
                await asyncio.wait([over, self._ended], timeout=_TERM_GRACE_S)
            await self._drain()
            self._left_open = over.done() and not self._ended.done()
            # Not in a thread: a command that starts too many processes leaves room for none.
            self._killed = COMMANDS.end(self._process.pid)
            await self._drain()
            await asyncio.wait([over], timeout=_REAP_TIMEOUT_S)
        finally:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
        if over.done():
            self._process.wait()
        else:
            over.cancel()
        COMMANDS.forget(self._process.pid)

    async def _drain(self) -> None:
        """Read the rest of the output; a background process may keep the pipe open."""
        await asyncio.wait([self._ended], timeout=_DRAIN_TIMEOUT_S)
        for _ in range(_MAX_DRAIN_READS):
            if self._ended.done() or not self._read():
                return

    def _read(self) -> bool:
        """Read available output; return whether there was any."""
        try:
            piece = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._pipe)
            if not self._ended.done():
                self._ended.set_result(None)
            return False
        kept = piece[: max(self._max_output - self._size, 0)]
        self._dropped += len(piece) - len(kept)
        self._size += len(kept)
        if kept:
            self._pieces.append(kept)
        return True

    def output(self, timed_out: float | None) -> Output:
        """Return the output and how the command ended; `timed_out` is its timeout, if reached."""
        text = b"".join(self._pieces).decode("utf-8", "replace").replace("\0", "\ufffd")
        code = self._process.returncode
        notes: list[str] = []
        if self._dropped:
            notes.append(f"[{self._dropped:,} more bytes of output were dropped]")
        if self._killed.left:
            pids = ", ".join(map(str, sorted(self._killed.left)))
            notes.append(f"[processes it started could not be killed: {pids}]")
        elif self._left_open or (self._killed.background and timed_out is None):
            notes.append("[background processes it left running were killed]")
        if timed_out is not None:
            notes.append(f"[timed out: killed after {timed_out:g} s]")
        else:
            notes.append(f"[{_exit_text(code)}]")
        if text and not text.endswith("\n"):
            text += "\n"
        return Output(text + "\n".join(notes), error=timed_out is not None or code != 0)


def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process to exit, if possible without reaping it, so that its id stays valid."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # The program ignores SIGCHLD: children are reaped.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _exit_text(code: int | None) -> str:
    if code is None:
        return "still running"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"terminated by {signal.Signals(-code).name}"
    except ValueError:
        return f"terminated by signal {-code}"


# ------------------------------------------------------------------------------------ environment


def scrub_environment(environment: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Return the variables that a child process may see; `keep` names additional ones."""
    passed = {
        name: value
        for name, value in environment.items()
        if name in _INHERITED_VARIABLES
        or name in keep
        or name.startswith("LC_")
        or _is_safe_proxy(name, value)
    }
    path = _path(environment.get("PATH", ""))
    return {**passed, **_FIXED_VARIABLES, **_git_variables(), "PATH": path}


def _git_variables() -> dict[str, str]:
    """Return the variables that pass settings to git."""
    found = {"GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS))}
    for number, (key, value) in enumerate(_GIT_SETTINGS.items()):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def _is_safe_proxy(name: str, value: str) -> bool:
    """True if this is a proxy's URL without credentials."""
    return name.lower() in _PROXY_VARIABLES and "@" not in value


def _path(given: str) -> str:
    return ":".join(folder for folder in given.split(":") if folder.startswith("/")) or _PATH
