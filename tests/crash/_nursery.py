"""Starting children fast: from a process that has imported the library and done nothing else.

A child that is killed after a few writes spends nearly all of its time on starting an interpreter
and importing the library. A nursery is an interpreter that has done this, with the fault shim
loaded and not armed. For each script that it receives over a socket it forks; the child takes the
arguments, the environment and the streams it is given, arms the shim if the environment has faults
in it, and then runs the script as an interpreter does for `-c`. So it is a process of its own that
has opened nothing before, with its own pid, exit code and death by a signal.

`tests/crash/test_shim.py` and replayed failures start interpreters of their own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from holdfast.testing.faults import Shim

ROOT = Path(__file__).parents[2]
_PATIENCE = 100
_NEEDED = (
    "holdfast.cli.commands.doctor",
    "holdfast.formats.anthropic",
    "holdfast.formats.openai",
    "holdfast.search.engine",
    "holdfast.storage.postgres.backend",
    "holdfast.transfer.export",
    "holdfast.windows.build",
    "tests.crash._damage_reads",
    "tests.crash._scenes",
    "tests.crash._story",
    "tests.crash._wandering",
)


class Newborn:
    """A started child, and its two streams."""

    def __init__(self, status: int, stdout: int, stderr: int | None) -> None:
        self._status = os.fdopen(status, "r", encoding="ascii")
        self.stdout = os.fdopen(stdout, "r", encoding="utf-8")
        self.stderr: IO[str] | None = None
        if stderr is not None:
            self.stderr = os.fdopen(stderr, "r", encoding="utf-8")
        self.pid = int(self._status.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for stream in (self._status, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """Kill it, if it is still running."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = _PATIENCE) -> int:
        """Wait for its end; return its exit code, below zero if a signal ended it."""
        if not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a child of the nursery", timeout)
        return int(self._status.readline())


class Nursery:
    """A process that forks children on request."""

    def __init__(self, library: Path | None) -> None:
        environment = dict(os.environ)
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """End it."""
        self._line.close()
        assert self._process.wait(_PATIENCE) == 0

    def start(
        self,
        script: str,
        *words: object,
        environment: Mapping[str, str] | None = None,
        errors: bool = False,
    ) -> Newborn:
        """Start a script with these arguments; its output, and optionally errors, can be read."""
        status, tell = os.pipe()
        out, write = os.pipe()
        err, complain = os.pipe() if errors else (None, os.dup(2))
        asked = [script, [str(word) for word in words], dict(environment or os.environ)]
        data = json.dumps(asked).encode() + b"\n"
        try:
            sent = socket.send_fds(self._line, [data], [write, complain, tell])
            self._line.sendall(data[sent:])
        finally:
            for stream in (write, complain, tell):
                os.close(stream)
        return Newborn(status, out, err)

    def run(
        self, script: str, *words: object, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        with self.start(script, *words, environment=environment, errors=True) as child:
            assert child.stderr is not None
            found = _all_of((child.stdout.fileno(), child.stderr.fileno()), timeout)
            out, err = (data.decode() for data in found)
            return subprocess.CompletedProcess([script], child.wait(timeout), out, err)


def _all_of(streams: Sequence[int], timeout: float) -> list[bytes]:
    """Read streams to their ends."""
    found = dict.fromkeys(streams, b"")
    reading = list(streams)
    until = time.monotonic() + timeout
    while reading:
        ready, _, _ = select.select(reading, [], [], max(0, until - time.monotonic()))
        if not ready:
            raise subprocess.TimeoutExpired("a child of the nursery", timeout)
        for stream in ready:
            data = os.read(stream, 1 << 16)
            found[stream] += data
            if not data:
                reading.remove(stream)
    return list(found.values())


@dataclass(frozen=True)
class QuickShim(Shim):
    """The fault shim, whose children come from a nursery."""

    nursery: Nursery

    def _run(
        self, argv: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        interpreter, option, script, *words = argv
        assert (interpreter, option) == (sys.executable, "-c")
        return self.nursery.run(script, *words, environment=environment, timeout=timeout)


# ------------------------------------------------------------------------------ the other process


@dataclass(frozen=True)
class Wanted:
    """The request for a child."""

    script: str
    words: list[str]
    environment: dict[str, str]


def serve(line: socket.socket) -> Wanted | None:
    """Fork for each requested child: return in the child, and at the end."""
    while True:
        data, streams, _, _ = socket.recv_fds(line, 1 << 16, 3)
        while data and not data.endswith(b"\n"):
            data += line.recv(1 << 16)
        _reap()
        if not data:
            return None
        # A watcher is forked for each child, so that several can run at once.
        if os.fork():
            for stream in streams:
                os.close(stream)
            continue
        *streams, tell = streams
        pid = os.fork()
        if pid:
            _watch(pid, streams, tell)
        os.close(tell)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)
        return Wanted(*json.loads(data))


def _reap() -> None:
    """Reap the watchers of children that ended, so that their CPU time is accounted for."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(pid: int, streams: Sequence[int], tell: int) -> None:
    """Report a child's pid, and how it ended."""
    for stream in (1, 2, *streams):
        os.close(stream)
    os.write(tell, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def main() -> None:
    """Import what every child needs, and serve."""
    sys.path[0] = str(ROOT)
    for module in _NEEDED:
        importlib.import_module(module)
    gc.freeze()  # Garbage collection in children would touch, and so copy, these objects.
    with socket.socket(fileno=int(sys.argv[1])) as line:
        wanted = serve(line)
    if wanted is None:
        return
    os.environ.clear()
    os.environ.update(wanted.environment)
    if "HOLDFAST_FAULT_REPORT" in os.environ:
        ctypes.CDLL(None).holdfast_fault_arm()
    sys.argv[:] = ["-c", *wanted.words]
    exec(compile(wanted.script, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    main()
