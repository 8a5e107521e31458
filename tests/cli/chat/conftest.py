"""A provider, and a place where `holdfast chat` uses it and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.provider import Provider, environment
from tests.cli.chat.environment import Place
from tests.cli.shell import Shell


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, provider: Provider, fast_program: Path) -> Place:
    """A directory to work in, a store, and a provider that answers."""
    for name in ("work", "home", "state", "config"):
        (tmp_path / name).mkdir()
    shell = Shell(tmp_path / "home" / "agent.db")
    shell.environment |= {
        **environment(provider.url),
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    return Place(tmp_path / "work", shell, fast_program)
