"""What the crash tests share."""

import pytest

from tests.crash._scenes import Rehearsals


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Rehearsals:
    """Every scene, played once on a disk that does not fail."""
    return Rehearsals(tmp_path_factory.mktemp)
