"""A shell on a store of its own, empty or with a conversation in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import shell as made
from tests.cli.nursery import Listening, Nursery


@pytest.fixture(scope="session")
def _nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    environment = made.Shell(tmp_path_factory.getbasetemp()).environment
    with Nursery(environment, warm=True) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def fast_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A program `holdfast` for shells to run, which starts fast."""
    environment = made.Shell(tmp_path_factory.getbasetemp()).environment
    with Listening(environment, tmp_path_factory.mktemp("bin")) as listening:
        yield listening.program


@pytest.fixture
def shell(tmp_path: Path, _nursery: Nursery) -> made.Shell:
    """A shell whose store does not exist yet."""
    return made.Shell(tmp_path / "home" / "agent.db", _nursery)


@pytest.fixture(scope="session")
def _conversation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("conversation") / "agent.db"
    made.talk(store)
    return store


@pytest.fixture(scope="session")
def _crash(tmp_path_factory: pytest.TempPathFactory, _conversation: Path) -> Path:
    store = _copy(_conversation, tmp_path_factory.mktemp("crash"))
    made.crash(store)
    return store


@pytest.fixture
def talked(shell: made.Shell, _conversation: Path) -> made.Shell:
    """A shell with the conversation of `talk`: the session `support-42`."""
    _copy(_conversation, shell.store.parent)
    return shell


@pytest.fixture
def crashed(shell: made.Shell, _crash: Path) -> made.Shell:
    """The same, and a process died in its third turn."""
    _copy(_crash, shell.store.parent)
    return shell


def _copy(store: Path, directory: Path) -> Path:
    """Copy a store that nobody has open, with the log that a crash left beside it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for file in store.parent.glob(f"{store.name}*"):
        shutil.copy2(file, directory)
    return directory / store.name
