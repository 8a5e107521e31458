"""What every test stands on: hypothesis profiles, the `crash` mark, an empty state folder.

And, for those that ask for it, a PostgreSQL server.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from tests.places import KINDS, place
from tests.servers import WORKER, Postgres, as_user, shared_database, start

_CRASH = Path(__file__).parent / "crash"

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_CRASH):
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="session", autouse=True)
def _no_store_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that forgets to name a store, or a process it starts, meets an empty state folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOLDFAST_URL", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


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
    with psycopg.connect(postgres_database, autocommit=True, options=options) as admin:
        yield admin


@pytest.fixture(scope="session")
def postgres_url(postgres_database: str) -> str:
    """The same, for a role that owns nothing."""
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
