"""Test servers are stopped when unused, however a run ends, and no others are stopped."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests import server_process, servers

_WAITS = """
import time

def test_waits(postgres: object) -> None:
    time.sleep(600)

def test_waits_too(postgres: object) -> None:
    time.sleep(600)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """The folder of these runs' servers; its name is short because socket paths are limited."""
    made = Path(tempfile.mkdtemp(prefix="holdfast-runs-", dir=servers.place()))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def _environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "HOLDFAST_"))}
    initial = servers.initial()
    told = {} if initial is None else {server_process.INITIAL: str(initial)}
    return kept | told | {"TMPDIR": str(folder)}


class User:
    """A process that uses the server of a run until it is stopped or killed."""

    def __init__(self, folder: Path) -> None:
        ready, tell = os.pipe()
        wait, self._end = os.pipe()
        initial = servers.initial()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                os.close(self._end)
                servers.Server(folder, initial)
                os.write(tell, b"ready")
                os.read(wait, 1)
                code = 0
            finally:
                os._exit(code)
        os.close(tell)
        os.close(wait)
        with os.fdopen(ready) as told:
            assert told.read(5) == "ready"

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._ended(-signal.SIGKILL)

    def end(self) -> None:
        os.close(self._end)
        self._ended(0)

    def clear_away(self) -> None:
        if self._pid:
            self.kill()

    def _ended(self, code: int) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        assert os.waitstatus_to_exitcode(status) == code


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[str], User]]:
    """Start a process of a run that uses the run's server."""

    def started(run: str) -> User:
        user = User(_server(folder, run).folder)
        opened.callback(user.clear_away)
        return user

    with ExitStack() as opened:
        yield started


def _server(folder: Path, run: str) -> server_process.Server:
    return server_process.Server(folder / f"{server_process.PREFIX}{run}", Path(), None)


def _is_gone(server: server_process.Server, pid: int) -> bool:
    """Wait until a server and its files are gone; its process entry may go a little later."""
    until = time.monotonic() + 60
    while server.folder.exists() or server_process.command(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _answers(server: server_process.Server) -> bool:
    with psycopg.connect(server.url) as admin:
        return admin.execute("SELECT 1").fetchone() == (1,)


def test_a_server_goes_with_the_last_process_that_uses_it(
    folder: Path, start: Callable[[str], User]
) -> None:
    """Whether that process is killed or exits; while one is left the server stays."""
    killed, ended = start("run"), start("run")
    server = _server(folder, "run")
    pid = server.pid
    assert pid > 0
    killed.kill()
    assert _answers(server)
    ended.end()
    assert _is_gone(server, pid)
    assert list(folder.iterdir()) == []


def test_a_keeper_that_was_killed_is_made_up_for(
    folder: Path, start: Callable[[str], User]
) -> None:
    """The next keeper clears up after it, and leaves servers in use alone."""
    first = start("first")
    used = start("used")
    forgotten, still = _server(folder, "first"), _server(folder, "used")
    pid = forgotten.pid
    os.kill(int((forgotten.folder / "keeper").read_text()), signal.SIGKILL)
    first.kill()
    start("next").end()
    assert _is_gone(forgotten, pid)
    assert _answers(still)
    pid = still.pid
    used.end()
    assert _is_gone(still, pid)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "processes"),
    [(signal.SIGTERM, "0"), pytest.param(signal.SIGKILL, "2", marks=pytest.mark.long)],
)
def test_a_run_that_is_killed_leaves_no_server(
    folder: Path, number: signal.Signals, processes: str
) -> None:
    """The real thing: pytest, with processes of its own or without."""
    waits = folder / "test_waits.py"
    waits.write_text(_WAITS)
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-n", processes, str(waits)],
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
    )
    with run:
        made: list[Path] = []
        while not made:
            assert run.poll() is None
            made = list(folder.glob(f"{server_process.PREFIX}*/made"))
            time.sleep(0.01)
        server = server_process.Server(made[0].parent, Path(), None)
        pid = server.pid
        assert _answers(server)
        run.send_signal(number)
    assert _is_gone(server, pid)


def test_what_is_not_a_server_of_ours_is_left_alone(folder: Path) -> None:
    """A folder of that name without our lock; a process that only has the number of a server."""
    foreign = folder / f"{server_process.PREFIX}foreign"
    stale = folder / f"{server_process.PREFIX}stale"
    for each in (foreign, stale):
        (each / "data").mkdir(parents=True)
        (each / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    (stale / "users").touch()
    server_process.clear_forgotten(folder / "mine", Path(), None)
    assert (foreign / "data").exists()
    assert not stale.exists()
