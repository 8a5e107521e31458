"""Starting the command fast: from a process that has imported the library already.

Most of the time of `holdfast ls` goes into starting an interpreter and importing the library, which
is the same for each of the thousand commands that the tests run. A nursery is an interpreter that
has done this and nothing else. Asked over a socket for a command, it forks; the child takes the
words, the environment, the folder, the umask and the three streams it is given, then does what an
interpreter does for `-m holdfast`, and ends as every interpreter ends. So it is a process of its
own that has seen no other command, and imports the command's own modules itself.

What an interpreter reads from its environment when it starts cannot be given so (see `free`). The
first start of all, signals, terminals and streams that break are tested with interpreters of their
own (`Shell.start`).
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

PIPE_HOLDS = 16_384
"""So much can be written to a pipe before anybody reads it, wherever we run."""
_PATIENCE = 60
_READ_AT_THE_START = ("PYTHON", "LANG", "LC_")


class Nursery:
    """Runs commands, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._one = threading.Lock()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                # Pipes, as its children will have: what a stream can do is asked when it is opened.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.close()
        assert self._process.communicate(timeout=_PATIENCE) == (b"", b"")

    @contextmanager
    def free(self, environment: Mapping[str, str], stdin: bytes) -> Iterator[bool]:
        """Say whether a command can be run here, and let nobody else run one meanwhile."""
        suits = len(stdin) <= PIPE_HOLDS and _read(environment) == _read(self._environment)
        if not suits or not self._one.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._one.release()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes
    ) -> tuple[int, bytes, bytes]:
        """Run `holdfast` with these words; give its exit code, its output and its errors."""
        pipes = [os.pipe() for _ in range(3)]
        os.write(pipes[0][1], stdin)
        os.close(pipes[0][1])
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        try:
            pid = self._ask(arguments, environment, theirs)
        finally:
            for stream in theirs:
                os.close(stream)
        try:
            out, err = _all_of(pipes[1][0], pipes[2][0])
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = self._heard()
        return code, out, err

    def _ask(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> int:
        asked = [arguments, dict(environment), str(Path.cwd()), _umask()]
        data = json.dumps(asked).encode() + b"\n"
        sent = socket.send_fds(self._line, [data], streams)
        self._line.sendall(data[sent:])
        return self._heard()

    def _heard(self) -> int:
        said = b""
        while not said.endswith(b"\n"):
            more = self._line.recv(1)
            assert more, "the nursery is gone"
            said += more
        return int(said)


def _umask() -> int:
    mask = os.umask(0o077)  # There is no other way to ask.
    os.umask(mask)
    return mask


def _read(environment: Mapping[str, str]) -> dict[str, str]:
    """Give what an interpreter reads when it starts."""
    return {k: v for k, v in environment.items() if k.startswith(_READ_AT_THE_START)}


def _all_of(*streams: int) -> list[bytes]:
    """Read streams to their ends, and close them."""
    found = dict.fromkeys(streams, b"")
    until = time.monotonic() + _PATIENCE
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        try:
            while selector.get_map():
                ready = selector.select(until - time.monotonic())
                if not ready:
                    raise TimeoutError("the command does not end")
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    found[key.fd] += data
                    if not data:
                        selector.unregister(key.fd)
        finally:
            for stream in streams:
                os.close(stream)
    return list(found.values())


# ------------------------------------------------------------------------------ the other process


def serve(line: socket.socket) -> list[str] | None:
    """Fork for each command that is asked for: gives its words in the child, nothing at the end."""
    while True:
        data, streams, _, _ = socket.recv_fds(line, 1 << 16, 3)
        while data and not data.endswith(b"\n"):
            data += line.recv(1 << 16)
        if not data:
            return None
        pid = os.fork()
        if not pid:
            arguments, *given = json.loads(data)
            _become(streams, *given)
            return list(arguments)
        for stream in streams:
            os.close(stream)
        line.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(
    streams: Sequence[int], environment: Mapping[str, str], folder: str, umask: int
) -> None:
    """Take what a process gets from who starts it."""
    os.umask(umask)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder


def main() -> None:
    """Import what every command needs, and serve."""
    import holdfast.backends.sqlite.backend  # noqa: PLC0415 - only the other process
    import holdfast.cli.program  # noqa: F401, PLC0415 - imports it before a command does

    gc.freeze()  # Children need not look through it, which would copy it.
    with socket.socket(fileno=int(sys.argv[1])) as line:
        arguments = serve(line)
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy._run_module_as_main("holdfast")  # type: ignore[attr-defined]  # noqa: SLF001 - what `-m` does


if __name__ == "__main__":
    main()
