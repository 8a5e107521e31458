"""Containment of commands: what they can read of this program, and what they leave running.

A command runs as the user, so it could read this program's memory and environment, where API keys
are, through `/proc`. And it could leave processes behind that outlive it: a process that starts a
session of its own is in no group that could be killed. `contain_commands` sets two flags of the
Linux kernel, for the whole program:

- The program is not dumpable: other processes of the user, except root's, can neither trace it nor
  read its memory, environment and open files. This costs core dumps and debuggers.
- The program is a subreaper: a process whose parent has exited becomes its child, not that of init.

Every command has a session of its own. A process can leave its session for a new one, but never
join another. So a child of this program in a foreign session was left behind by a command, unless
it is a command itself or was there before the first command began. It is killed when no command
runs any more: until then, it may belong to one that does.

Without the flags, a command's descendants and the members of its session are found, which is all
but those that left the session and whose parent has exited. Without `/proc`, only its process group
is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_MAX_SCANS: Final = 50  # Each reads a file of every process, about 10 ms.
_MAX_LISTINGS: Final = 500  # Each reads the list of children, well below 1 ms.
_PAUSE_S: Final = 0.001  # Seconds between two of them.


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    zombie: bool


class Ended(NamedTuple):
    """What was killed of a command beside its shell, and what could not be killed."""

    background: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()


def contain_commands() -> bool:
    """Hide this program from its commands and end what they leave running; true if it can be.

    This needs Linux, and holds for the whole program until it ends. A program that itself starts
    processes in sessions of their own while commands run must not call this.
    """
    if sys.platform != "linux":
        return False
    import ctypes  # noqa: PLC0415 - slow, and needed only here

    prctl = ctypes.CDLL(None).prctl
    hidden = prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    COMMANDS.adopts_orphans = prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    return hidden and COMMANDS.adopts_orphans


class CommandProcesses:
    """The processes of all commands of this program."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, in a forked process: it has neither the children nor the flag."""
        self._lock = threading.Lock()
        self.adopts_orphans = False
        self._shells: set[int] = set()  # Not yet reaped.
        self._running: set[int] = set()  # Those of them whose command is not over.
        self._others: frozenset[int] = frozenset()  # Children that no command has left.

    def start(self, popen: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a command's shell, in a session of its own."""
        with self._lock:
            if self.adopts_orphans and not self._running:
                self._others = frozenset(_children())
            process = popen()
            self._shells.add(process.pid)
            self._running.add(process.pid)
        return process

    @staticmethod
    def terminate(shell: int) -> None:
        """Ask the processes of a command to exit, its group at once and each one once."""
        elsewhere = [pid for pid in _processes_of(shell) if _id(os.getpgid, pid) != shell]
        _signal(os.killpg, shell, signal.SIGTERM)
        for pid in elsewhere:
            _signal(os.kill, pid, signal.SIGTERM)

    def end(self, shell: int) -> Ended:
        """Kill the processes of a command, and if it was the last one, what commands have left."""
        with self._lock:
            self._running.discard(shell)
            ended = _kill(lambda: _processes_of(shell), _MAX_SCANS, group=shell)
            orphans = Ended()
            if self.adopts_orphans and not self._running:
                orphans = _kill(self._orphans, _MAX_LISTINGS, reap=True)
        background = (ended.background | orphans.background) - {shell}
        return Ended(background, ended.left | orphans.left)

    def forget(self, shell: int) -> None:
        """Forget a shell that was reaped."""
        with self._lock:
            self._shells.discard(shell)

    def _orphans(self) -> set[int]:
        """Return the children in foreign sessions that are neither commands nor the program's."""
        here = os.getsid(0)
        return {
            pid for pid in _children() - self._shells - self._others if _id(os.getsid, pid) != here
        }


def _kill(
    find: Callable[[], Collection[int]],
    passes: int,
    *,
    group: int | None = None,
    reap: bool = False,
) -> Ended:
    """Kill processes until none is found: one that is killed may just have started another.

    A group is killed at once, so that none of it gets away by starting others all the time.
    """
    killed: set[int] = set()
    for _ in range(passes):
        found = find()
        if group is not None:
            _signal(os.killpg, group, signal.SIGKILL)
        if not found:
            return Ended(frozenset(killed))
        for pid in found:
            if reap and _is_reaped(pid):
                continue
            _signal(os.kill, pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(_PAUSE_S)
    return Ended(frozenset(killed), frozenset(found))


def _signal(send: Callable[[int, int], None], target: int, number: signal.Signals) -> None:
    """Send a signal to a process, or a group: its id stays valid until the shell is reaped."""
    with suppress(ProcessLookupError, PermissionError):
        send(target, number)


def _is_reaped(child: int) -> bool:
    """Reap a child if it has exited; return whether it had."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _processes_of(shell: int) -> list[int]:
    """Return the processes of a command that run: of its session, and their descendants."""
    every = _processes()
    children = defaultdict(list)
    for one in every:
        children[one.parent].append(one)
    waiting = [one for one in every if one.session == shell]
    found: dict[int, _Process] = {}
    while waiting:
        one = waiting.pop()
        if one.pid not in found:
            found[one.pid] = one
            waiting += children[one.pid]
    return [one.pid for one in found.values() if not one.zombie]


def _children() -> set[int]:
    """Return the children of this process, also those that have exited and were not reaped."""
    try:
        threads = os.listdir("/proc/self/task")  # noqa: PTH208 - only names
        lists = [_read(f"/proc/self/task/{tid}/children") for tid in threads]
        return {int(pid) for pid in b" ".join(lists).split()}
    except OSError:  # A thread has ended, or the kernel does not list children.
        return {one.pid for one in _processes() if one.parent == os.getpid()}


def _id(of: Callable[[int], int], pid: int) -> int | None:
    """Return the session or the group of a process; `None` if there is no such process."""
    try:
        return of(pid)
    except ProcessLookupError:
        return None


def _processes() -> Iterable[_Process]:
    """Return all processes that can be seen; none on systems without `/proc`."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - only names
    except OSError:
        return []
    return [found for name in names if name.isdecimal() and (found := _process(name))]


def _process(pid: str) -> _Process | None:
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:  # It has ended.
        return None
    # The command name is in parentheses and may hold anything; the fields follow the last one.
    fields = stat.rpartition(b")")[2].split()
    if not fields:
        return None
    return _Process(int(pid), int(fields[1]), int(fields[3]), fields[0] in {b"Z", b"X"})


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - faster, for every process
        return file.read()


COMMANDS: Final = CommandProcesses()
os.register_at_fork(after_in_child=COMMANDS.reset)
