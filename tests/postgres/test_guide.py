"""docs/postgresql.md is carried out: its roles, its grants, its partitions."""

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Message
from tests.servers import OWNER, WORKER, Postgres, as_user

_PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"
_BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def guide() -> list[str]:
    found = _BLOCK.findall(_PAGE.read_text("utf-8"))
    assert len(found) == 3
    return found


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE agents")
        yield as_user(postgres.url, database="agents")
        admin.execute("DROP DATABASE agents")


def test_the_guide_works(guide: list[str], postgres: Postgres, database: str) -> None:
    """An owner makes the store, splits the large table, and a worker uses it."""
    roles, grants, partitions = guide
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        for statement in roles.strip().split(";\n"):
            if not statement.startswith("CREATE ROLE"):  # all tests share these
                admin.execute(statement)
    holdfast.open(as_user(database, OWNER)).close()
    with psycopg.connect(as_user(database, OWNER), autocommit=True) as owner:
        owner.execute(grants)
        owner.execute(partitions)
    with holdfast.open(as_user(database, WORKER)) as store:
        for number in range(20):
            session = store.session(f"k{number}")
            session.append(*(Message.user(f"{number} {n}") for n in range(5)))
            fork = session.fork(3)
            fork.append(Message.user("other"))
            assert [m.text for m in fork.messages()][-2:] == [f"{number} 2", "other"]
        assert store.purge("k0").messages == 2
        assert len(store.search("other")) == 20
        assert store.verify() == []
    with holdfast.open(as_user(database, WORKER), tenant="another") as store:
        assert store.stats().messages == 0
    with psycopg.connect(database) as admin:
        row = admin.execute(
            "SELECT count(DISTINCT tableoid), count(*) FROM holdfast.messages"
        ).fetchone()
    assert row == (4, 118)
