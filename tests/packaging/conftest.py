"""The wheel of this tree, and an environment with it alone; the processes of a run share them."""

import os
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, build_wheel


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def wheel(_shared: Path) -> Path:
    """The wheel."""
    return build_wheel(_shared / "wheel")


@pytest.fixture(scope="session")
def bare(wheel: Path, _shared: Path) -> Environment:
    """An environment without extras."""
    return Environment(_shared / "bare", wheel)
