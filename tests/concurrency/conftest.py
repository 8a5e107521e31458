"""Child processes that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.concurrency.children import Child
from tests.memory_folders import fast_folder

StartChild = Callable[..., Child]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: a kill loses nothing there, and syncs cost nothing."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture
def child() -> Iterator[StartChild]:
    """Start a process that runs a function."""
    started: list[Child] = []

    def start(target: Callable[..., None], *arguments: object, stoppable: bool = False) -> Child:
        started.append(Child(target, *arguments, stoppable=stoppable))
        return started[-1]

    yield start
    for each in started:
        each.clear_away()
