"""The same on every version of the server that is at hand.

All tests run on the newest one that the development environment has. Here those that are about a
server run on the others, when there is time: in a process of its own with a server of its own. The
oldest one is not in that environment, and is tested where it is installed.
"""

import os
import subprocess
import sys

import psycopg
import pytest

from tests.servers import newest, versions

_OTHERS = [15, 16]
_HERE = "tests/postgres/test_versions.py::test_the_server_is_the_one_that_was_asked_for"
_SOME = ["tests/postgres/test_opening.py", "tests/postgres/test_tenants.py"]
_ALL = [
    "tests/storage/test_conformance.py",
    "tests/postgres",
    "tests/mutants",
    "tests/windows",
    "tests/model",
    "tests/concurrency",
    "tests/transfer",
    "tests/search",
    "tests/test_erasure.py",
    "tests/tokens",
    "tests/cli/test_everywhere.py",
]
# Those of the last two files draw where their stores are.
_ABOUT_SERVERS = (
    "(postgres or Postgres or test_copying or test_round_trip) and not TestOtherVersions"
)


def _run(version: int, *arguments: str) -> None:
    """Run tests on another version; they say how they end."""
    if version not in versions():
        pytest.skip(f"PostgreSQL {version} is not installed")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "HOLDFAST_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-x", "-p", "no:cacheprovider", *arguments],
        env=environ | {"HOLDFAST_TEST_POSTGRES_VERSION": str(version)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    assert " passed" in ended.stdout


_chosen = pytest.mark.skipif(
    "HOLDFAST_TEST_POSTGRES" in os.environ, reason="a server was given, of whatever version"
)


@_chosen
def test_the_server_is_the_one_that_was_asked_for(postgres_admin: psycopg.Connection) -> None:
    """Or all this would show nothing."""
    asked = int(os.environ.get("HOLDFAST_TEST_POSTGRES_VERSION", newest()))
    assert postgres_admin.info.server_version // 10_000 == asked


@_chosen
class TestOtherVersions:
    @pytest.mark.long
    @pytest.mark.parametrize("version", _OTHERS)
    def test_opening_and_tenants(self, version: int) -> None:
        """What speaks to the server's own catalogue, settings and policies."""
        _run(version, _HERE, *_SOME)

    @pytest.mark.long
    @pytest.mark.timeout(3000)
    @pytest.mark.parametrize("version", _OTHERS)
    def test_everything_about_a_server(self, version: int) -> None:
        """All that is promised of every store, and of a server."""
        _run(version, *_ALL, "-k", _ABOUT_SERVERS)
