"""Children that are gone when their test is over."""

from collections.abc import Callable, Iterator

import pytest

from tests.concurrency.children import Child

StartChild = Callable[..., Child]


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
