"""Starting the command fast: from a process that has imported the library already.

Most of the time of `holdfast ls` goes into starting an interpreter and importing the library, which
is the same for each of the thousand commands that the tests run. A nursery is an interpreter that
has done this and nothing else. Asked over a socket for a command, it forks; the child takes the
words, the environment, the folder, the umask and the three streams it is given, then does what an
interpreter does for `-m holdfast`. So it is a process of its own that has seen no other command. It
ends as every interpreter does (threads are joined, exit functions called, streams flushed) but for
taking its modules apart, which would take longer than the command.

A warm nursery has imported the modules of all commands. That each command imports what it needs is
seen where one that is not warm runs the examples of the help.

For shells there is a program that asks a nursery in the same way (`Listening`): it passes its own
words, environment and streams on, hands over the signals it gets, and ends as the command ended.

What an interpreter reads from its environment when it starts cannot be given so (see `free`). The
first start of all, signals, terminals and streams that break are tested with interpreters of their
own (`Shell.start`).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PIPE_HOLDS = 16_384
"""So much can be written to a pipe before anybody reads it, wherever we run."""
_PATIENCE = 60
_READ_AT_THE_START = ("PYTHON", "LANG", "LC_")


class Nursery:
    """Runs commands, one at a time."""

    def __init__(self, environment: Mapping[str, str], *, warm: bool = False) -> None:
        self._environment = dict(environment)
        self._one = threading.Lock()
        self._line, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *(["warm"] if warm else [])],
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
        """Return whether a command can be run here, and let nobody else run one meanwhile."""
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
        pid = self._begin(arguments, environment, theirs)
        try:
            out, err = _all_of(pipes[1][0], pipes[2][0])
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = self._heard()
        return code, out, err

    def run_on(
        self, terminal: tuple[int, int], arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """Run it on a terminal, whose two ends are given and closed; give what it shows, too."""
        ours, theirs = terminal
        pid = self._begin(arguments, environment, [theirs])
        try:
            [shown] = _all_of(ours)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = self._heard()
        return code, shown

    def _begin(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> int:
        """Let a child begin, which gets the streams: three, or one for all; give its number."""
        try:
            return self._ask(arguments, environment, [*streams] * (3 // len(streams)))
        finally:
            for stream in streams:
                os.close(stream)

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


_PROGRAM = """#!{python} -IS
import os, _signal, _socket
from _json import encode_basestring_ascii as quoted
from sys import argv
mask = os.umask(0o077)
os.umask(mask)
words = ",".join(map(quoted, argv[1:]))
environ = ",".join(quoted(name) + ":" + quoted(text) for name, text in os.environ.items())
asked = f"[[{{words}}],{{{{{{environ}}}}}},{{quoted(os.getcwd())}},{{mask}}]\\n".encode()
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
line.connect({path!r})
streams = b"".join(number.to_bytes(4, {order!r}) for number in (0, 1, 2))
sent = line.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while sent < len(asked):
    sent += line.send(asked[sent:])
heard = b""
while heard.count(b"\\n") < 2:
    heard += line.recv(64) or b"1\\n1\\n"
    if heard.count(b"\\n") == 1:
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGWINCH):
            _signal.signal(number, lambda number, _: os.kill(int(heard.split()[0]), number))
code = int(heard.split()[1])
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Listening:
    """A nursery that any process can ask, several at once; `program` is the file to run."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        # The path of a socket is short.
        self._door = Path("/tmp") / f"nursery-{os.getpid()}-{id(self):x}"  # noqa: S108
        self.program = folder / "holdfast"
        source = _PROGRAM.format(python=sys.executable, path=str(self._door), order=sys.byteorder)
        self.program.write_text(source)
        self.program.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._door)],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"listening\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Its end is not an error, but a child that was left behind would keep its streams open.
        assert self._process.communicate(timeout=_PATIENCE) == (b"", b"")
        self._door.unlink()


def _umask() -> int:
    mask = os.umask(0o077)  # There is no other way to ask.
    os.umask(mask)
    return mask


def _read(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an interpreter reads when it starts."""
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
                    data = _read_some(key.fd)
                    found[key.fd] += data
                    if not data:
                        selector.unregister(key.fd)
        finally:
            for stream in streams:
                os.close(stream)
    return list(found.values())


def _read_some(stream: int) -> bytes:
    try:
        return os.read(stream, 1 << 16)
    except OSError:  # Linux says so when the last writer of a terminal is gone.
        return b""


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


def listen(door: str) -> list[str] | None:
    """Let a child of its own `serve` each process that asks, until the standard input ends."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(door)
        listening.listen()
        os.write(1, b"listening\n")
        while 0 not in select.select([0, listening.fileno()], [], [])[0]:
            _reap(os.WNOHANG)
            line, _ = listening.accept()
            with line:
                if os.fork():
                    continue
                listening.close()
                arguments = serve(line)
                if arguments is None:
                    os._exit(0)
                return arguments
    _reap(0)
    return None


def _reap(options: int) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _become(
    streams: Sequence[int], environment: Mapping[str, str], folder: str, umask: int
) -> None:
    """Take what a process gets from who starts it."""
    os.umask(umask)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for opened in (sys.stdout, sys.stderr):
        assert isinstance(opened, io.TextIOWrapper)
        opened.reconfigure(line_buffering=opened.line_buffering or opened.isatty())
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    sys.path[0] = folder


_PACKAGES = (
    "cli",
    "cli.commands",
    "cli.output",
    "operations",
    "search",
    "transfer",
    "transfer.redact",
    "windows",
)


def _import_all() -> None:
    """Import what the commands import, but for those that talk to models or servers."""
    for package in _PACKAGES:
        found = importlib.import_module(f"holdfast.{package}")
        for module in pkgutil.iter_modules(found.__path__, f"{found.__name__}."):
            if not module.ispkg:
                importlib.import_module(module.name)
    importlib.import_module("holdfast.agent.models.model_choice")
    # And read the vocabulary of the model that the conversation of `talk` is with.
    importlib.import_module("holdfast.windows.tokenizers").tokenizer_for("gpt-9")


def _run() -> None:
    """Run the command, and end without taking apart what was imported."""
    try:
        runpy._run_module_as_main("holdfast")  # type: ignore[attr-defined]  # noqa: SLF001 - what `-m` does
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as an interpreter does
    atexit._run_exitfuncs()  # noqa: SLF001 - then this
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Import what every command needs, and serve."""
    import holdfast.cli.program  # noqa: PLC0415 - imports it before a command does
    import holdfast.storage.sqlite.backend  # noqa: F401, PLC0415 - only the other process

    if sys.argv[2:] == ["warm"]:
        _import_all()
    gc.freeze()  # Children need not look through it, which would copy it.
    if sys.argv[1].isdecimal():
        with socket.socket(fileno=int(sys.argv[1])) as line:
            arguments = serve(line)
    else:
        for name in ("openai", "prompt_toolkit.application", "rich.console"):
            with suppress(ImportError):
                importlib.import_module(name)  # Not ours, and slow to import.
        arguments = listen(sys.argv[1])
    if arguments is not None:
        sys.argv[1:] = arguments
        _run()


if __name__ == "__main__":
    main()
