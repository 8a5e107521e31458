"""The wheel of this tree, and an environment with it alone."""

import os
from pathlib import Path

import pytest

from tests.packaging.environments import Environment, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, shared by the processes of a run."""
    own = tmp_path_factory.getbasetemp()
    return build_wheel(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without extras."""
    return Environment(tmp_path_factory.mktemp("bare"), wheel)
