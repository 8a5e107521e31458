"""No statement reads a table from one end to the other: asked of the server's own planner.

The tables are filled first, all for one tenant: whoever reads all that a tenant has reads it all.
The plans are those that prepared statements get: for any value.
"""

import re
from collections.abc import Iterator

import psycopg
import pytest

from holdfast.backends.postgres import beside
from holdfast.backends.postgres.snapshot import Tenant
from holdfast.backends.postgres.statements import SQL
from tests.servers import WORKER, Postgres, as_user

_SESSIONS, _MESSAGES = 5_000, 40_000
_EXPLAINS_GENERIC = 160_000
_TENANT = Tenant("t", "").mark
_COUNTS_ALL = {
    "stats", "stored_messages", "growth", "usage_by_day", "size", "all_branches", "all_blobs",
    "missing_blobs", "titles",
}  # fmt: skip
_NO_TABLES = {
    "begin_reading", "begin_writing", "enter_reading", "enter_snapshot", "enter_writing",
    "enter_alone", "end_orphan", "announce", "next_session", "server", "has_schema", "list_end",
}  # fmt: skip
_BY_THE_OWNER = {"put_version"}
_OWN = (
    "tenants|sessions|heads|branches|messages|turns|tools|drafts|queue|queue_blobs|usage|blobs|"
    "blob_uses"
)
_SCAN = re.compile(rf"Seq Scan on ({_OWN})\b")

# ruff: noqa: S608 - names and numbers of this file
_FILL = f"""
ALTER TABLE tenants DISABLE TRIGGER keep_numbers;
INSERT INTO tenants SELECT md5(t::text)::uuid, 't', 0 FROM generate_series(1, 5000) t;
ALTER TABLE tenants ENABLE TRIGGER keep_numbers;
INSERT INTO tenants SELECT '{_TENANT}', 't', 0;
INSERT INTO sessions SELECT '{_TENANT}', n, md5(n::text)::bytea, 'k', 's', 'a', 't',
  NULL, 'm', '/', n, n % 100 = 0, n % 100 = 1, CASE WHEN n % 50 = 2 THEN n END, NULL, '{{}}',
  CASE WHEN n % 3 = 0 THEN md5((n / 2)::text)::bytea END, 'fork', NULL, md5('k' || n)::uuid,
  md5('s' || n % 200)::uuid, md5('a' || n % 200)::uuid, md5('c' || n % 200)::uuid,
  md5('t' || n)::uuid, 't', md5('l' || n)::uuid, true
FROM generate_series(1, {_SESSIONS}) n;
INSERT INTO heads SELECT '{_TENANT}', n, '{_TENANT}', 1, 8, 1, NULL, n, n, 0, 0, 0, 0, 0, 0, NULL,
  0, 0, 0 FROM generate_series(1, {_SESSIONS}) n;
INSERT INTO branches SELECT '{_TENANT}', n, 1,
  CASE WHEN n % 3 = 0 THEN n / 2 END, CASE WHEN n % 3 = 0 THEN 1 END, 0, 0, NULL, n, 'start', 't',
  md5('t' || n)::uuid FROM generate_series(1, {_SESSIONS}) n;
INSERT INTO messages SELECT '{_TENANT}', n % {_SESSIONS}, 1,
  n / {_SESSIONS}, n::text::bytea, md5(n::text)::uuid, NULL, 0, n % 1000 = 0, 'body'
FROM generate_series(1, {_MESSAGES}) n;
INSERT INTO turns SELECT tenant, session, 1, 't', 'sealed', 'r', md5('r' || session)::uuid, 'm',
  '{{}}', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL FROM heads;
INSERT INTO tools SELECT tenant, session, 1, md5('c')::uuid, 'c', 0, 'n', 'done', 0, 0 FROM heads;
INSERT INTO drafts SELECT tenant, session, 1, 0, 'r' FROM heads;
INSERT INTO queue SELECT tenant, session, 1, 'i', 0, 'b' FROM heads;
INSERT INTO queue_blobs SELECT tenant, session, 1, 0, 'h', 'd' FROM heads;
INSERT INTO usage SELECT tenant, session, 1, md5('m' || session % 100)::uuid, 'm', 0, 0, 0, 0, 0, 0,
  0, 0 FROM heads;
INSERT INTO blobs SELECT tenant, session::text, 'd' FROM heads;
INSERT INTO blob_uses SELECT tenant, session, 1, 1, session::text FROM heads;
"""


@pytest.fixture(scope="module")
def full(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """A role that owns nothing, in a database with many tenants' sessions."""
    url = postgres.database("plans")
    with psycopg.connect(url, autocommit=True, options="-c search_path=holdfast") as admin:
        admin.execute(_FILL)
        admin.execute("ANALYZE")
    options = "-c search_path=holdfast -c plan_cache_mode=force_generic_plan"
    with psycopg.connect(as_user(url, WORKER), autocommit=True, options=options) as worker:
        worker.execute("SELECT set_config('holdfast.tenant', %s, false)", (str(_TENANT),))
        yield worker


def _plan(worker: psycopg.Connection, text: str) -> str:
    """Give the plan for any value; before PostgreSQL 16 only that of a prepared statement is it."""
    cursor = psycopg.ClientCursor(worker)
    if worker.info.server_version >= _EXPLAINS_GENERIC:
        return "\n".join(row[0] for row in cursor.execute(f"EXPLAIN (GENERIC_PLAN) {text}"))
    cursor.execute("DEALLOCATE ALL")
    cursor.execute(f"PREPARE asked AS {text}")
    row = cursor.execute(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'asked'"
    ).fetchone()
    values = ", ".join(["NULL"] * (row[0] if row else 0))
    found = cursor.execute(f"EXPLAIN EXECUTE asked{f' ({values})' if values else ''}").fetchall()
    return "\n".join(line for (line,) in found)


@pytest.mark.parametrize("name", sorted(SQL.keys() - _COUNTS_ALL - _NO_TABLES - _BY_THE_OWNER))
def test_no_statement_reads_a_whole_table(full: psycopg.Connection, name: str) -> None:
    """Row-level security included: it must not keep an index from being used."""
    text = f"{SQL[name]} {SQL['list_end']}" if name == "list" else SQL[name]
    plan = _plan(full, text)
    assert not _SCAN.search(plan), plan


_SHOWN = "\n".join(
    (
        beside.SQL["shown"],
        beside.SQL["shown_of_scope"].format(mark="$3", name="$4"),
        beside.SQL["shown_end"],
    )
)
_OF_A_SEARCH = [beside.SQL[name] for name in ("branches_below", "sessions_below", "relatives")]


@pytest.mark.parametrize("text", [*_OF_A_SEARCH, _SHOWN])
def test_a_search_reads_no_whole_table(full: psycopg.Connection, text: str) -> None:
    """Neither who shows a message nor what a scope has."""
    plan = _plan(full, text)
    assert not _SCAN.search(plan), plan


_TITLES = "\n".join(beside.SQL[name] for name in ("titles", "titles_plain", "titles_end"))


def test_titles_are_those_of_one_tenant(full: psycopg.Connection) -> None:
    """As connections that search are set up: others would read the sessions of all tenants."""
    with full.transaction(force_rollback=True):
        psycopg.RawCursor(full).execute(beside.SQL["settings"], ("1000ms",))
        plan = _plan(full, _TITLES)
    assert not _SCAN.search(plan), plan
    assert "Hash" not in plan, plan


@pytest.mark.parametrize("column", ["scope", "agent", "cwd"])
def test_lists_of_few_use_an_index(full: psycopg.Connection, column: str) -> None:
    """One that has few sessions among many does not look at the others."""
    text = f"{SQL['list']} AND s.{column}_mark = $4 AND s.{column} = $5 {SQL['list_end']}"
    plan = _plan(full, text)
    assert f"sessions_by_{column}" in plan, plan
    assert not _SCAN.search(plan), plan


@pytest.fixture(scope="module")
def unknown(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """The same with tables of which the server has no statistics yet."""
    url = postgres.database("plans_unknown")
    with psycopg.connect(url, autocommit=True, options="-c search_path=holdfast") as admin:
        for table in ("heads", "messages", "sessions", "branches"):
            admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        admin.execute(_FILL)
    options = "-c search_path=holdfast -c plan_cache_mode=force_generic_plan"
    with psycopg.connect(as_user(url, WORKER), autocommit=True, options=options) as worker:
        worker.execute("SELECT set_config('holdfast.tenant', %s, false)", (str(_TENANT),))
        yield worker


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("hold", "heads_pkey"),
        ("head", "heads_pkey"),
        ("put_head", "heads_pkey"),
        ("newest", "heads_by_activity"),
        ("messages_by_id", "messages_by_id"),
        ("messages", "messages_pkey"),
    ],
)
def test_an_append_finds_its_rows_by_their_own_index(
    request: pytest.FixtureRequest, name: str, index: str, known: bool
) -> None:
    """Whether the server knows much of the tables or nothing: no other index would do."""
    worker = request.getfixturevalue("full" if known else "unknown")
    assert index in _plan(worker, SQL[name])


def test_a_whole_table_would_be_noticed(full: psycopg.Connection) -> None:
    """The check itself can fail."""
    assert _SCAN.search(_plan(full, "SELECT count(*) FROM messages WHERE body = 'x'"))
