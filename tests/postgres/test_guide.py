"""docs/postgresql.md is carried out, from top to bottom, as an operator would on a new server.

Each block is run by whom the page names; `db.example` is a real server. What is so afterwards is
looked at where it matters.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Message, Record
from tests.docs.test_docs import Block, blocks, commands
from tests.servers import OWNER, WORKER, OwnServer, Postgres, as_user, grants
from tests.store_urls import with_options

_PAGE = Path(__file__).parents[2] / "docs" / "postgresql.md"
_NAMED = re.compile(r"postgresql://(\w+)@db\.example/(\w+)")


class Walk:
    """The blocks of the page, taken one after the other, on a server of our own."""

    def __init__(self, server: OwnServer, folder: Path) -> None:
        self.server = server
        self._folder = folder
        self._left = [
            block
            for block in blocks(_PAGE.read_text("utf-8"))
            if block.kind in {"sql", "python", "console"}
        ]
        programs = folder / "bin"
        programs.mkdir()
        (programs / "holdfast").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
        (programs / "holdfast").chmod(0o755)
        path = f"{programs}:{server.programs}:{os.environ['PATH']}"
        self._environ = os.environ | {"PATH": path}

    def url(self, user: str, database: str = "agents") -> str:
        """Return the URL of a database for a role."""
        return as_user(self.server.url, user, database)

    def _real(self, text: str) -> str:
        return _NAMED.sub(lambda found: self.url(found[1], found[2]), text)

    def take(self, kind: str, beginning: str) -> Block:
        """Take the next block; the test follows the page, so it must be this one."""
        block = self._left.pop(0)
        assert (block.kind, block.body.startswith(beginning)) == (kind, True), block
        return block

    def sql(self, beginning: str, user: str, database: str = "agents") -> str:
        """Run a block of statements as a role; return it."""
        text = self.take("sql", beginning).body
        with psycopg.connect(self.url(user, database), autocommit=True) as connection:
            for statement in text.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
        return text

    def python(self, beginning: str) -> None:
        """Run a block of Python."""
        text = self._real(self.take("python", beginning).body)
        subprocess.run([sys.executable, "-c", text], check=True, cwd=self._folder)

    def console(self, beginning: str, but: str = "\0") -> list[str]:
        """Run commands in a shell; give what each of them prints."""
        said = []
        for command in commands(self.take("console", beginning).body):
            if but in command.line:
                said.append("")
                continue
            line = re.sub(r"postgresql://\S+", lambda url: f"'{url[0]}'", command.line)
            done = subprocess.run(
                ["/bin/sh", "-c", self._real(line)],
                env=self._environ,
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            said.append(done.stdout)
        return said

    def skip(self, kind: str, beginning: str) -> None:
        """Leave a block out."""
        self.take(kind, beginning)

    @property
    def is_over(self) -> bool:
        """Whether all blocks were taken."""
        return not self._left


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    server = OwnServer()
    yield Walk(server, tmp_path)
    server.end()


def _fill(url: str, tenant: str, sessions: int) -> None:
    with holdfast.open(url, tenant=tenant, durability="process") as store:
        for number in range(sessions):
            session = store.session(f"k{number}")
            session.append(*(Message.user(f"{number} {n} by {tenant}") for n in range(5)))
            session.fork(3).append(Message.user("other"))


_BEGINNINGS = {
    "messages": "-- Otherwise the owner would not see the rows",
    "heads": "ALTER TABLE heads",
}


def _indexes(url: str, table: str) -> set[str]:
    """How a large table may be looked through."""
    with psycopg.connect(url) as admin:
        found = admin.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'holdfast' AND tablename = %s",
            (table,),
        ).fetchall()
    return {text.replace("ON ONLY ", "ON ") for (text,) in found}


def test_the_guide_is_carried_out(walk: Walk, tmp_path: Path) -> None:
    """A store is set up, filled from a file, split, backed up, restored and watched."""
    walk.skip("console", "$ pip install")
    walk.skip("python", "import holdfast\n\nstore =")
    walk.sql("CREATE DATABASE agents", "postgres", "postgres")
    walk.python("import holdfast\n\nholdfast.open(")
    assert walk.sql("GRANT USAGE", OWNER) == grants()
    doctor, _ = walk.console("$ holdfast doctor", but="prove")  # which has tests of its own
    assert "No problems found" in doctor
    walk.sql("ALTER TABLE holdfast.recent", OWNER)

    _fill(str(tmp_path / "agent.db"), "default", 10)
    _fill(walk.url(WORKER), "another", 3)
    there, back = walk.console("$ holdfast copy")
    assert "20 sessions added" in there
    assert "the same on both sides" in back

    for table, beginning in _BEGINNINGS.items():
        before = _indexes(walk.url("postgres"), table)
        walk.sql(f"BEGIN;\nSET LOCAL search_path = holdfast;\n{beginning}", OWNER)
        assert _indexes(walk.url("postgres"), table) == before
    _look_at_appends(walk)
    _look_at_partitions(walk)

    walk.sql("CREATE ROLE holdfast_backup", "postgres")
    *_, doctor = walk.console("$ pg_dump")
    assert "No problems found" in doctor
    _look_at_what_was_restored(walk, tmp_path)
    walk.sql("-- Which transactions", "postgres")
    assert walk.is_over


_PARTITIONS = ("messages_0", "messages_1", "messages_2", "messages_3", "heads_0", "heads_1")
_SCANS = """
SELECT relname, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables
WHERE relname = ANY (%s) ORDER BY relname
"""


def _asked(walk: Walk) -> dict[str, int]:
    """How often each partition was read; connections report it when they end, at the latest."""
    with psycopg.connect(walk.url("postgres"), autocommit=True) as admin:
        until = time.monotonic() + 60
        connected = "SELECT FROM pg_stat_activity WHERE application_name = 'holdfast'"
        while admin.execute(connected).fetchall():
            assert time.monotonic() < until
            time.sleep(0.02)
        return dict(admin.execute(_SCANS, (list(_PARTITIONS),)).fetchall())


def _look_at_appends(walk: Walk) -> None:
    """Appends, retries and reads of a session ask one partition of each table."""
    with holdfast.open(walk.url(WORKER)) as store:
        store.session("k3")
    before = _asked(walk)
    with holdfast.open(walk.url(WORKER)) as store:
        session = store.session("k3")
        for number in range(6):  # The last ones read nothing before they write.
            message = Message.user("x", id=f"id {number}")
            session.append(message)
        session.append(message)
        session.append(Record("kind", data=1))
        assert len(session.messages(limit=3)) == 3
    after = _asked(walk)
    asked = {name for name in _PARTITIONS if after[name] != before[name]}
    assert {name.partition("_")[0] for name in asked} == {"messages", "heads"}
    assert len(asked) == 2, asked


def _look_at_partitions(walk: Walk) -> None:
    """All rows are there for their tenants, and in no other way for other roles."""
    for tenant, sessions in (("default", 10), ("another", 3)):
        with holdfast.open(walk.url(WORKER), tenant=tenant) as store:
            assert store.stats().messages == 6 * sessions + (6 if tenant == "default" else 0)
            assert store.verify() == []
            store.session("k0").append(Message.user("behind"))
            assert len(store.search("other")) == sessions
            assert store.purge("k1").messages == 2
    with psycopg.connect(walk.url("postgres")) as admin:
        row = admin.execute(
            "SELECT count(DISTINCT tableoid), count(*) FROM holdfast.messages"
        ).fetchone()
    assert row == (4, 6 * 13 + 2 - 4 + 6)
    with psycopg.connect(walk.url(OWNER), autocommit=True) as owner:
        owner.execute(grants())  # whatever was granted
    with psycopg.connect(walk.url(WORKER), autocommit=True) as worker:
        for partition in _PARTITIONS:
            assert worker.execute(f"TABLE holdfast.{partition}").fetchall() == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("UPDATE holdfast.meta SET value = 1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            worker.execute("CREATE TEMPORARY TABLE mine (n integer)")


def _look_at_what_was_restored(walk: Walk, folder: Path) -> None:
    """Every tenant has what it had, and goes on."""
    for tenant in ("default", "another"):
        with holdfast.open(walk.url(WORKER, "restored"), tenant=tenant) as store:
            texts = [m.text for m in store.session("k2").messages()]
            assert texts == [f"2 {n} by {tenant}" for n in range(5)]
            assert store.verify() == []
            store.session("k2").append(Message.user("and on"))
            assert [hit.session_id for hit in store.search("and on")] == [store.session("k2").id]
    asked = ("--format=custom", "--schema=holdfast", f"--file={folder / 'less.dump'}")
    refused = subprocess.run(
        [str(walk.server.programs / "pg_dump"), *asked, walk.url(OWNER)],
        capture_output=True,
        check=False,
    )
    assert refused.returncode == 1, "it would see one tenant at a time"


def test_several_stores_fit_in_one_database(walk: Walk) -> None:
    """Each in a schema of its own, with grants of its own."""
    walk.skip("console", "$ pip install")
    walk.skip("python", "import holdfast\n\nstore =")
    walk.sql("CREATE DATABASE agents", "postgres", "postgres")
    for schema in ("one", "two"):
        url = with_options(walk.url(OWNER), schema=schema)
        holdfast.open(url).close()
        with psycopg.connect(walk.url(OWNER), autocommit=True) as owner:
            owner.execute(grants(schema))
        with holdfast.open(with_options(walk.url(WORKER), schema=schema)) as store:
            store.session("k").append(Message.user(schema))
            assert [m.text for m in store.session("k").messages()] == [schema]


_TAKES = re.compile(r"A message takes its text and about (\d+) bytes, and (\d+) bytes in indexes")
_SIZES = """
SELECT pg_table_size(relid) / n_live_tup, pg_indexes_size(relid) / n_live_tup
FROM pg_stat_user_tables WHERE relname = 'messages'
"""


def test_a_message_takes_what_the_guide_says(postgres: Postgres) -> None:
    """Counted by the server, as the query of the guide does, within a quarter."""
    database = postgres.database("sizes")
    length, number = 300, 5_000
    with holdfast.open(as_user(database, WORKER), durability="process") as store:
        session = store.session("k")
        for _ in range(number // 50):
            session.append(*(Message.user("x" * length) for _ in range(50)))
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("VACUUM ANALYZE holdfast.messages")
        row, index = map(int, admin.execute(_SIZES).fetchone() or ())
    told = _TAKES.search(_PAGE.read_text("utf-8"))
    assert told is not None
    assert row - length == pytest.approx(int(told[1]), rel=0.25)
    assert index == pytest.approx(int(told[2]), rel=0.25)
