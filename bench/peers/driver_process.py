"""The process of a driver: it is started in its store's environment, given commands, and killed.

Nothing of this project but `bench` can be imported there, and what the driver asks for. The home
directory is an empty one, and what the store prints is kept in a file for the reason of a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

_BENCH: Final = Path(__file__).parents[1]
_ANSWER_S: Final = 300.0
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR")


class DriverFailed(Exception):
    """A command failed, or the driver ended; the message says why."""


class Installed(msgspec.Struct, frozen=True):
    """A store that can be run: the interpreter that has it, and the class that drives it.

    `packages` are directories of packages that the class imports beside `bench`.
    """

    name: str
    python: Path
    module: str
    variant: str = "Peer"
    packages: tuple[Path, ...] = ()


class DriverProcess:
    """A running driver. `imported` is how long the import of its store took, `can` what it can."""

    def __init__(self, installed: Installed, directory: Path, *, trace: Sequence[str] = ()) -> None:
        """Start a driver, for a store in `directory`; `trace` is the command of a tracer."""
        self.name = installed.name
        self.directory = directory
        surroundings = _make_surroundings(directory, (_BENCH, *installed.packages))
        self._log = surroundings / "log"
        command = [*trace, str(installed.python), "-P", "-m", "bench.peers.driver"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, installed.module, installed.variant],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=surroundings,
                env=_environment(surroundings),
            )
        try:
            hello = self.receive()
        except BaseException:
            self.kill()
            self.close()
            raise
        self.imported: float = hello["seconds"]
        self.can: list[str] = hello["can"]

    def open(self, key: str) -> float:
        """Open the store and a session; return the seconds that took."""
        seconds: float = self.ask("open", path=str(self.directory / "store"), key=key)["seconds"]
        return seconds

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a command and return its answer; raise `DriverFailed` if it failed."""
        self.send(do, **arguments)
        return self.receive()

    def send(self, do: str, **arguments: object) -> None:
        """Send a command; its answer is received later."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # Told by the answer that does not come.
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next answer; raise `DriverFailed` if it says so or does not come."""
        assert self._process.stdout is not None
        late = threading.Timer(_ANSWER_S, self._process.kill)
        late.start()
        try:
            line = self._process.stdout.readline()
        finally:
            late.cancel()
        if not line.endswith("\n"):
            raise DriverFailed(f"it ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DriverFailed(answer["error"])
        return answer

    def acknowledged(self) -> Iterator[int]:
        """Yield the turns that a killed driver had acknowledged and that were not yet received."""
        with suppress(DriverFailed):
            while "stored" in (answer := self.receive()):
                if isinstance(number := answer["stored"], int):
                    yield number

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it printed nothing"

    def close(self) -> None:
        """Let the driver close its store and end, if it has not ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        late = threading.Timer(_ANSWER_S, self._process.kill)
        late.start()
        self._process.wait()
        late.cancel()
        self._process.stdout.close()

    def kill(self) -> None:
        """End the driver at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self.kill()
        self.close()


@contextmanager
def opened(installed: Installed, directory: Path, key: str) -> Iterator[DriverProcess]:
    """Start a driver with a session open."""
    with DriverProcess(installed, directory) as driver:
        driver.open(key)
        yield driver


def _make_surroundings(directory: Path, packages: Sequence[Path]) -> Path:
    """Make what a driver needs beside its store; only these packages are on its path."""
    surroundings = directory / "surroundings"
    for made in (directory / "store", surroundings / "home", surroundings / "path"):
        made.mkdir(parents=True, exist_ok=True)
    for package in packages:
        with suppress(FileExistsError):
            (surroundings / "path" / package.name).symlink_to(package)
    return surroundings


def _environment(surroundings: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **kept,
        "HOME": str(surroundings / "home"),
        "PYTHONPATH": str(surroundings / "path"),
        "DO_NOT_TRACK": "1",
    }
