"""The fixtures of all tests: hypothesis profiles, the `crash` mark, folders, no user files.

And a PostgreSQL server, for the tests that use it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import servers
from tests.servers import WORKER, Postgres, as_user, connect, shared_database, start
from tests.store_urls import KINDS, place

if TYPE_CHECKING:
    import psycopg

# Before any test imports the suite: its asserts are rewritten.
pytest.register_assert_rewrite("holdfast.testing.conformance")

_CRASH = Path(__file__).parent / "crash"
_OF_THE_USER = (
    "HOLDFAST_URL",
    "HOLDFAST_CONFIG",
    "HOLDFAST_MODEL",
    "HOLDFAST_SCOPE",
    "HOLDFAST_RUN_ID",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
)

# `ci` finds the same examples everywhere; `long` (--hypothesis-profile=long) looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=2_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the run, in the main process of the test run only."""
    if not hasattr(config, "workerinput"):
        servers.begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop and remove the servers at the end of the run."""
    servers.leave()
    if not hasattr(config, "workerinput"):
        servers.end_run()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_CRASH):
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="session", autouse=True)
def _no_containment() -> Iterator[None]:
    """Make the process of the tests no subreaper: servers that it kills would stay as zombies."""
    try:
        from holdfast.agent.tools import containment  # noqa: PLC0415 - it may not be installed
    except ImportError:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containment, "contain_commands", lambda: True)
        yield


@pytest.fixture(scope="session", autouse=True)
def _time_to_index() -> Iterator[None]:
    """Let every search bring its index up to date, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.search.manager._QUICK_CATCH_UP_S", 600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_store_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point default locations to empty folders, for tests and child processes without a store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _OF_THE_USER:
            patch.delenv(name, raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """Restore SIGINT, which background jobs may ignore, and their children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an iterator of unused folder names."""
    made = tmp_path_factory.mktemp("each")
    return (made / str(number) for number in count(1))


@pytest.fixture
def tmp_path(_folders: Iterator[Path], request: pytest.FixtureRequest) -> Path:
    """A folder of the test's own; pytest's fixture scans those of all tests to number one."""
    name = re.sub(r"\W", "_", request.node.name)[:40]
    folder = next(_folders) / name
    folder.mkdir(mode=0o700, parents=True)
    return folder


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    """The server of this run."""
    return Postgres(start())


@pytest.fixture(scope="session")
def postgres_database() -> str:
    """An empty store in a database of this process, for its superuser."""
    return shared_database()


@pytest.fixture(scope="session")
def postgres_admin(postgres_database: str) -> Iterator[psycopg.Connection]:
    """The superuser, in that database."""
    options = "-c synchronous_commit=off"
    with connect(postgres_database, options) as admin:
        yield admin


@pytest.fixture(scope="session")
def postgres_url(postgres_database: str) -> str:
    """The URL of that database for a role that owns nothing."""
    return as_user(postgres_database, WORKER)


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store that several processes can open, of each kind in turn."""
    with place(request.param, tmp_path) as url:
        yield url


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store of each kind in turn: for what every store promises."""
    with place(request.param, tmp_path) as url:
        yield url
