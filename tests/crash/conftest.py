"""What the crash tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.faults import Shim, ShimUnavailable
from tests.crash._nursery import Nursery, QuickShim
from tests.crash._scenes import Rehearsals
from tests.memory_folders import fast_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: a kill loses nothing there, and syncs cost nothing."""
    with fast_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsals:
    """Every scene, run once on a disk that does not fail."""
    return Rehearsals(tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks children; their disk can fail if the shim is available."""
    try:
        library = Shim.build().library
    except ShimUnavailable:
        library = None
    made = Nursery(library)
    yield made
    made.close()


@pytest.fixture(scope="session")
def shim(nursery: Nursery) -> Shim:
    """The compiled shim, or a skip that says why there is none."""
    try:
        return QuickShim(Shim.build().library, nursery)
    except ShimUnavailable as reason:
        pytest.skip(str(reason))
