"""The program under attack, and a user's machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.provider import Provider
from tests.cli.conftest import fast_program
from tests.security.agent_program import AgentProgram
from tests.security.workplace import Workplace

__all__ = ["fast_program"]


@pytest.fixture
def program(tmp_path: Path, fast_program: Path) -> Iterator[AgentProgram]:
    """`holdfast run` and `holdfast chat`, with a provider of their own."""
    with Provider() as provider:
        yield AgentProgram(tmp_path, provider, fast_program)


@pytest.fixture
def user(tmp_path: Path, fast_program: Path) -> Iterator[Workplace]:
    """A user with an empty directory to work in."""
    with Provider() as provider:
        yield Workplace(tmp_path, provider, fast_program)
