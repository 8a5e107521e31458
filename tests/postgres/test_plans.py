"""No statement reads a whole table: by the plans of the server itself.

The tables are filled first, all for one tenant: whoever reads all that a tenant has reads it all.
The plans are those that prepared statements get: for any value.

Then the rows are counted that statements look at, for a large tenant and for a small one beside it:
in tables that the server has analyzed, and in those that grew under a connection that had planned
everything while they were empty.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import md5
from itertools import combinations, product
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from holdfast.storage.metadata_marks import pair
from holdfast.storage.postgres import search_snapshot
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.search_tables import search_settings
from holdfast.storage.postgres.snapshot import PostgresSnapshot, Tenant
from holdfast.storage.postgres.statements import SQL
from holdfast.storage.postgres.tables import HEADS
from holdfast.storage.protocol import SessionField
from holdfast.storage.rows import HeadRow, SessionFilter
from holdfast.url import parse_url
from holdfast.values import Usage
from tests.postgres.conftest import apply_settings
from tests.servers import WORKER, Postgres, as_user

_SESSIONS, _MESSAGES = 5_000, 40_000
_EXPLAINS_GENERIC = 160_000
_LARGE, _SMALL = Tenant("t", ""), Tenant("small", "")
_TENANT = _LARGE.mark
_COUNTS_ALL = {
    "stats", "stored_messages", "growth", "usage_by_day", "size", "missing_blobs", "damaged_blobs",
    "sessions_without_head", "titled", "metadata_and_marks", "stray_mark",
}  # fmt: skip
_NO_TABLES = {
    "begin_reading", "begin_writing", "enter_reading", "enter_snapshot", "enter_writing",
    "enter_exclusive", "terminate_backend", "announce", "next_sessions", "server", "store_exists",
    "list_end", "list_looked_up_end", "sessions_end", "lock_store_records", "claim_tenant",
}  # fmt: skip
_PARTS = {
    "list",
    "list_looked_up",
    "is_marked",
    "may_have_text",
    *(name for name in SQL if name.startswith("sessions_by_")),
}
_BY_THE_OWNER = {"put_version", "sessions_with_metadata"}
_OWN = (
    "tenants|sessions|heads|recent|branches|messages|turns|tools|drafts|queue|queue_blobs|usage|blobs|"
    "blob_uses|records|record_blobs|store_records|store_record_blobs|metadata_marks"
)
_SCAN = re.compile(rf"Seq Scan on ({_OWN})\b")

# ruff: noqa: S608 - names and numbers of this file
_FILL = f"""
INSERT INTO tenants SELECT md5(t::text)::uuid, 't', 0 FROM generate_series(1, 5000) t;
INSERT INTO tenants SELECT '{_TENANT}', 't', 0;
INSERT INTO sessions SELECT '{_TENANT}', n, md5(n::text)::bytea, 'k', 's', 'a', 't',
  NULL, 'm', '/', n, n % 100 = 0, n % 100 = 1, CASE WHEN n % 50 = 2 THEN n END, NULL, '{{}}',
  CASE WHEN n % 3 = 0 THEN md5((n / 2)::text)::bytea END, 'fork', NULL, md5('k' || n)::uuid,
  md5('s' || n % 200)::uuid, md5('a' || n % 200)::uuid, md5('c' || n % 200)::uuid,
  md5('t' || n)::uuid, 't', md5('l' || n)::uuid, true, NULL, ('k' || n)::bytea
FROM generate_series(1, {_SESSIONS}) n;
INSERT INTO metadata_marks SELECT '{_TENANT}', n, md5(e || (n % 200)::text)::uuid
FROM generate_series(1, {_SESSIONS}) n CROSS JOIN unnest(ARRAY['e', 'f']) AS e;
INSERT INTO heads
SELECT '{_TENANT}', n, 1, 8, 1, NULL, n, n, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, NULL, n
FROM generate_series(1, {_SESSIONS}) n;
INSERT INTO recent SELECT tenant, n, n, trashed_at IS NOT NULL, scope_mark, agent_mark, cwd_mark
FROM sessions WHERE tenant = '{_TENANT}';
INSERT INTO branches SELECT '{_TENANT}', n, 1,
  CASE WHEN n % 3 = 0 THEN n / 2 END, CASE WHEN n % 3 = 0 THEN 1 END, 0, 0, NULL, n, 'start', 't',
  md5('t' || n)::uuid FROM generate_series(1, {_SESSIONS}) n;
INSERT INTO messages SELECT '{_TENANT}', n % {_SESSIONS}, 1,
  n / {_SESSIONS}, n::text::bytea, md5(n::text)::uuid, NULL, 0, n % 1000 = 0, 'body'
FROM generate_series(1, {_MESSAGES}) n;
INSERT INTO turns SELECT tenant, session, 1, 't', 'sealed', 'r', md5('r' || session)::uuid, 'm',
  '{{}}', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO tools SELECT tenant, session, 1, md5('c')::uuid, 'c', 0, 'n', 'done', 0, 0 FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO drafts SELECT tenant, session, 1, 0, 'r' FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO queue SELECT tenant, session, 1, 'i', 0, 'b' FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO queue_blobs SELECT tenant, session, 1, 0, 'h', 'd' FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO usage SELECT tenant, session, 1, md5('m' || session % 100)::uuid, 'm', 0, 0, 0, 0, 0, 0,
  0, 0 FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO blobs SELECT tenant, session::text, 'd' FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO blob_uses SELECT tenant, session, 1, 1, session::text FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO records SELECT '{_TENANT}', n % {_SESSIONS}, 1, n / {_SESSIONS}, n / {_SESSIONS},
  n::text::bytea, md5(n::text)::uuid, 'k', md5('k')::uuid, 'x',
  md5('x' || n / {_SESSIONS} % 2)::uuid, 0, 'body'
FROM generate_series(1, {_MESSAGES}) n;
INSERT INTO record_blobs SELECT tenant, session, 1, 1, session::text FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO store_records SELECT tenant, md5('i' || session)::uuid, session, 's', 'k', 'x',
  md5('n' || session)::uuid, 'i', 0, CASE session % 3 WHEN 2 THEN ''::bytea END FROM heads
  WHERE tenant = '{_TENANT}';
INSERT INTO store_record_blobs SELECT tenant, md5('i' || session)::uuid, session::text FROM heads
  WHERE tenant = '{_TENANT}';
"""


# The small tenant has the first sessions of the large one once more.
_FEW = 20
_FILL_SMALL = f"""
INSERT INTO tenants SELECT '{_SMALL.mark}', 's', 0;
DO $$
DECLARE part record;
BEGIN
  FOR part IN SELECT * FROM (VALUES ('sessions', 'n'), ('heads', 'session'), ('recent', 'session'),
    ('branches', 'session'), ('messages', 'session'), ('turns', 'session'), ('tools', 'session'),
    ('drafts', 'session'), ('queue', 'session'), ('queue_blobs', 'session'), ('usage', 'session'),
    ('blobs', 'sha256::bigint'), ('blob_uses', 'session'), ('records', 'session'),
    ('record_blobs', 'session'), ('store_records', 'number'),
    ('store_record_blobs', 'sha256::bigint'), ('metadata_marks', 'session'))
    AS parts (name, number)
  LOOP
    EXECUTE format('INSERT INTO %I SELECT (jsonb_populate_record(t, %L)).* FROM %I t '
      'WHERE tenant = ''{_TENANT}'' AND %s <= {_FEW}',
      part.name, '{{"tenant": "{_SMALL.mark}"}}'::jsonb, part.name,
      part.number);
  END LOOP;
END $$;
"""


@pytest.fixture(scope="module")
def full_url(postgres: Postgres) -> str:
    """A database with many tenants' sessions, for a role that owns nothing."""
    url = postgres.database("plans")
    with psycopg.connect(url, autocommit=True, options="-c search_path=holdfast") as admin:
        admin.execute(_FILL + _FILL_SMALL)
        admin.execute("ANALYZE")
    return as_user(url, WORKER)


@pytest.fixture(scope="module")
def full(full_url: str) -> Iterator[psycopg.Connection]:
    """A role that owns nothing, in a database with many tenants' sessions."""
    options = "-c search_path=holdfast -c plan_cache_mode=force_generic_plan"
    with psycopg.connect(full_url, autocommit=True, options=options) as worker:
        worker.execute("SELECT set_config('holdfast.tenant', %s, false)", (str(_TENANT),))
        yield worker


def _plan(worker: psycopg.Connection, text: str) -> str:
    """The plan for any value; before PostgreSQL 16 only that of a prepared statement is it."""
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


@pytest.mark.parametrize(
    "name", sorted(SQL.keys() - _COUNTS_ALL - _NO_TABLES - _PARTS - _BY_THE_OWNER)
)
def test_no_statement_reads_a_whole_table(full: psycopg.Connection, name: str) -> None:
    """Row-level security included: it must not keep an index from being used."""
    plan = _plan(full, SQL[name])
    assert not _SCAN.search(plan), plan


_SHOWN = "\n".join(
    (
        search_snapshot.SQL["shown"],
        search_snapshot.SQL["shown_of_scope"].format(mark="$3", name="$4"),
        search_snapshot.SQL["shown_end"],
    )
)
_OF_A_SEARCH = [
    search_snapshot.SQL[name] for name in ("branches_above", "sessions_below", "relatives")
]


@pytest.mark.parametrize("text", [*_OF_A_SEARCH, _SHOWN])
def test_a_search_reads_no_whole_table(full: psycopg.Connection, text: str) -> None:
    """Neither the visibility of a message nor the sessions of a scope."""
    plan = _plan(full, text)
    assert not _SCAN.search(plan), plan


_TITLES = "\n".join(search_snapshot.SQL[name] for name in ("titles", "titles_plain", "titles_end"))


def test_titles_are_those_of_one_tenant(known: "Workers") -> None:
    """As connections are set up: others would read the sessions of all tenants."""
    worker = known[1].connection
    with worker.transaction(force_rollback=True):
        worker.execute(f"SET LOCAL holdfast.tenant = '{_TENANT}'")
        plan = _plan(worker, _TITLES)
    assert not _SCAN.search(plan), plan
    assert "Hash" not in plan, plan


@pytest.mark.parametrize("column", ["scope", "agent", "cwd"])
def test_lists_of_few_use_an_index(full: psycopg.Connection, column: str) -> None:
    """One that has few sessions among many does not read the others."""
    ((text, _),) = _lists([{column: "x"}], alone=True).values()
    plan = _plan(full, text)
    assert f"recent_by_{column}" in plan, plan
    assert "Sort" not in plan, plan
    assert not _SCAN.search(plan), plan


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({"metadata": frozenset({pair("n", 1)})}, "metadata_by_mark"),
        ({"metadata": frozenset({pair("n", 1), pair("m", 2)})}, "metadata_by_mark"),
        ({"key_prefix": "slack:"}, "sessions_by_key_start"),
    ],
)
def test_lists_by_name_use_an_index(known: "Workers", wanted: dict[str, Any], index: str) -> None:
    """What the metadata has, and how a key begins; as connections are set up."""
    ((text, _),) = _lists([wanted], alone=True).values()
    worker = known[0].connection
    with worker.transaction(force_rollback=True):
        worker.execute(f"SET LOCAL holdfast.tenant = '{_TENANT}'")
        plan = _plan(worker, text)
    assert index in plan, plan
    assert not _SCAN.search(plan), plan


def test_a_long_id_of_a_message_is_found_by_an_index_of_its_own(full: psycopg.Connection) -> None:
    """An entry of the other index has no room for it."""
    recorder = _Recorder()
    snapshot = PostgresSnapshot(recorder, _LARGE, None, AncestryCache())
    snapshot.sessions("message_id", "x" * 1001)
    ((text, _),) = recorder.asked
    plan = _plan(full, text)
    assert "messages_by_long_id" in plan, plan
    assert not _SCAN.search(plan), plan


@pytest.fixture(scope="module")
def unknown(postgres: Postgres) -> Iterator[psycopg.Connection]:
    """The same with tables of which the server has no statistics yet."""
    url = postgres.database("plans_unknown")
    with psycopg.connect(url, autocommit=True, options="-c search_path=holdfast") as admin:
        for table in ("heads", "messages", "sessions", "branches", "records"):
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
        ("lock_head", "heads_pkey"),
        ("head", "heads_pkey"),
        ("put_head", "heads_pkey"),
        ("highest_activity", "recent_by_recency"),
        ("cas_head", "messages_by_id"),
        ("cas_head_and_records", "records_by_id"),
        ("messages_by_id", "messages_by_id"),
        ("messages", "messages_pkey"),
        ("records_by_id", "records_by_id"),
        ("records_of_key", "records_by_key"),
        ("newest_records", "records_by_key"),
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


# --- rows that are read ---------------------------------------------------------------------------

Asked = tuple[str, tuple[object, ...]]
_PAGE, _LAST = 20, (1 << 63) - 1
_MOST = 200  # rows, where a page of twenty is asked for, or ten branches with all below them
_N = 5  # a session that both tenants have
_ID = md5(b"5", usedforsecurity=False).hexdigest().encode()
_TYPES = {int: "bigint", bytes: "bytea", UUID: "uuid", bool: "boolean", str: "text"}


def _uuid(text: str) -> UUID:
    return UUID(md5(text.encode(), usedforsecurity=False).hexdigest())


_SESSIONS_ASKED = list(range(1, 11))
_BRANCHES_ASKED = (_SESSIONS_ASKED, [1] * 10)
_HEAD = HeadRow(_N, (_N << 24) | 1, 1, 9, 1, None, 1, 1, Usage(), 0, None, 0, 0, 0)
_SEGMENTS_ASKED = ([_N], [1], [0], [_LAST], [_LAST], _PAGE)
_VALUES: dict[str, tuple[object, ...]] = {
    "session": (_N,),
    "count_forks": ([_ID],),
    "descendants": (_ID,),
    "branches_below": _BRANCHES_ASKED,
    "owners": _BRANCHES_ASKED,
    "head": (_N,),
    "lock_head": (_N,),
    "try_lock_heads": (_SESSIONS_ASKED,),
    "put_head": (*HEADS.values(_HEAD), None),
    "highest_activity": (),
    "horizon": (_LARGE.activity_lock,),
    "list_part": (_LAST, False, _PAGE),
    "activity_after": (15, _PAGE, _LAST),
    "branch": (_N, 1),
    "branch_by_token": (_N, _uuid("t5"), b"t"),
    "branches": (_N,),
    "branches_from": (_N, 1),
    "path": (6, 1, 0),
    "active_path": (6,),
    "root_branches": (_SESSIONS_ASKED,),
    "end_branch": (_N, 1, 8),
    "messages": (_N, 1, 1, 8),
    "messages_of_ranges": (*_BRANCHES_ASKED, [1] * 10, [2] * 10),
    "tail": (_N, 5),
    "newest_summary": (_N, 1, 1, 8),
    "summary": (_N,),
    "messages_by_id": ([5] * 3, [_uuid("5"), _uuid("5005"), _uuid("new")]),
    "put_message": (_N, 1, 8, 0, False, b"body"),
    "blob": ("5",),
    "blobs": (["5", "6", "7"],),
    "add_marks": (_N, [_uuid("new")]),
    "drop_other_marks": (_N, [_uuid("e5")]),
    "size_of_blobs": (_N,),
    "drop_blob_uses": (_N, 1, 1, 1),
    "drop_unused_blobs": (["5"],),
    "turn": (_N, 1),
    "turns_of": _BRANCHES_ASKED,
    "turns": (_N, _PAGE),
    "tools": (_N, 1),
    "draft": (_N, 1),
    "opening": (_N, 1),
    "drop_draft": (_N, 1),
    "queue": (_N,),
    "queue_blobs": (_N,),
    "last_queued": (_N,),
    "drop_queued": (_N, 1),
    "usage": (_N,),
    "usage_of_model": (_uuid("m5"), _PAGE),
    "erasures": (),
    "records": _SEGMENTS_ASKED,
    "records_of_kind": (*_SEGMENTS_ASKED, _uuid("k"), b"k", b"x"),
    "records_of_key": (*_SEGMENTS_ASKED, _uuid("k"), b"k", _uuid("x1"), b"x"),
    "record_numbers_of_kind": (*_SEGMENTS_ASKED, _uuid("k"), b"k"),
    "record_numbers_of_key": (*_SEGMENTS_ASKED, _uuid("k"), b"k", _uuid("x1"), b"x"),
    "newest_records": (_N, [_uuid("k")], [b"k"], [_uuid("x1")], [b"x"]),
    "first_record": (_N, 1),
    "records_by_id": ([5] * 3, [_uuid("5"), _uuid("5005"), _uuid("new")]),
    "size_of_records": (_N,),
    "drop_records": (_N, 1, [1]),
    "drop_record_blobs": (_N, 1, [1]),
    "cut_records": (_N, 1, 4, 9),
    "cut_record_blobs": (_N, 1, 4, 9),
    "store_records_by_name": ([_uuid("n5")],),
    "store_records_by_id": ([_uuid("i5")],),
    "store_records": (0, _PAGE),
    "empty_store_record": (_uuid("i5"), 0),
    "drop_store_record_blobs": (_uuid("i5"),),
}
_OF_ALL_SESSIONS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(_COUNTS_ALL - {"size", "titled"}, ()),
    "titled": ([b"nothing"],),
}
_SHOWN_BY_NAME: Asked = (_SHOWN, (True, _uuid("s5"), b"s"))
_ASKED_BY_SEARCHES: dict[str, Asked] = {
    "relatives": (search_snapshot.SQL["relatives"], ([_ID],)),
    "branches_above": (search_snapshot.SQL["branches_above"], (_N, 1)),
    "sessions_below": (search_snapshot.SQL["sessions_below"], _BRANCHES_ASKED),
    "shown": _SHOWN_BY_NAME,
    **{
        name: (SQL[name], _VALUES[name])
        for name in ("owners", "messages_of_ranges", "branches_below")
    },
}
_COMMON: tuple[dict[str, Any], ...] = (
    {"scope": "nobody"},
    {"agent": "nobody"},
    {"cwd": "nowhere"},
    {"metadata": frozenset({pair("n", "nobody")})},
    {"key_prefix": "nobody:"},
    {"pinned": False},
    {"archived": False},
    {"busy": False},
    {"delegates": False},
    {"until": _LAST},
)
_RARE: tuple[dict[str, Any], ...] = (
    {"pinned": True},
    {"archived": True},
    {"trashed": True},
    {"busy": True},
    {"since": _LAST},
)


class _Recorder:
    """Statements that are only noted down, and their empty answers."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def execute(self, name: str, values: Sequence[object] = ()) -> "_Recorder":
        return self.execute_sql(SQL[name], values)

    def execute_sql(self, text: str, values: Sequence[object]) -> "_Recorder":
        self.asked.append((text, tuple(values[1:])))
        return self

    def sync(self) -> None:
        """Nothing is under way."""

    def fetchone(self) -> None:
        return None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return []


def _lists(filters: Sequence[dict[str, Any]], *, alone: bool = False) -> dict[str, Asked]:
    """The statements of lists: of all sessions, and of those that fit one or two of these."""
    found = {}
    pairs = ({**one, **two} for one, two in combinations(filters, 2))
    for wanted in filters if alone else ({}, *filters, *pairs):
        recorder = _Recorder()
        snapshot = PostgresSnapshot(recorder, _LARGE, None, AncestryCache())
        snapshot.list_sessions(SessionFilter(**wanted), before=None, limit=_PAGE)
        found[f"list {wanted}"] = recorder.asked[0]
    return found


_SOUGHT: dict[SessionField, tuple[object, ...]] = {
    "id": (_ID,),
    "id_prefix": (_ID[:4], _ID[:4] + b"~"),
    "key": (_uuid("k5"), b"k"),
    "title": (_uuid("t5"), b"t"),
    "title_any_case": (_uuid("l5"), b"t"),
    "parent": (_ID,),
    "run_id": (_uuid("r5"), b"r"),
    "message_id": (b"5",),
}


def _finds() -> dict[str, Asked]:
    """The statements that find sessions by a field: in the trash or not, with stubs or without."""
    found = {}
    for by, trashed, stubs in product(_SOUGHT, (None, True, False), (True, False)):
        recorder = _Recorder()
        snapshot = PostgresSnapshot(recorder, _LARGE, None, AncestryCache())
        snapshot.sessions(by, "", trashed=trashed, stubs=stubs)
        ((text, _),) = recorder.asked
        found[f"sessions {by} {trashed} {stubs}"] = (text, (_PAGE, *_SOUGHT[by]))
    return found


def _named(values: dict[str, tuple[object, ...]]) -> dict[str, Asked]:
    return {name: (SQL[name], given) for name, given in values.items()}


def _looked_at(plan: dict[str, Any]) -> int:
    """Add up the rows that a plan's scans read, and the index entries of its bitmaps."""
    rows = 0
    if plan["Node Type"].endswith("Scan") and ("Relation Name" in plan or "Index Name" in plan):
        removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
        each = plan["Actual Rows"] + sum(plan.get(name, 0) for name in removed)
        rows = round(each * plan["Actual Loops"])
    return rows + sum(map(_looked_at, plan.get("Plans", ())))


def _type(value: object) -> str:
    if isinstance(value, list):
        return f"{_type(value[0])}[]"
    return _TYPES.get(type(value), "unknown")


class _Worker:
    """A connection as the store has them; it keeps its plans."""

    def __init__(self, url: str, *, searches: bool = False) -> None:
        place = parse_conninfo(parse_url(url, {}), "process")
        self.connection = psycopg.connect(
            place.url,
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
            **place.driver_arguments(),  # type: ignore[arg-type]
        )
        apply_settings(self.connection, place, **(search_settings(place) if searches else {}))
        self._prepared: dict[str, str] = {}

    def looks_at(self, tenant: Tenant, asked: dict[str, Asked]) -> dict[str, int]:
        """Return how many rows each of these statements reads; its changes are rolled back."""
        return {name: self._rows(tenant, *how) for name, how in asked.items()}

    def _rows(self, tenant: Tenant, text: str, values: tuple[object, ...]) -> int:
        given = (tenant.mark, *values)
        name = self._prepare(text, given)
        shown = ", ".join(sql.Literal(value).as_string(self.connection) for value in given)
        with self.connection.transaction(force_rollback=True):
            self.connection.execute(f"SET LOCAL holdfast.tenant = '{tenant.mark}'")
            cursor = self.connection.execute(
                f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name} ({shown})".encode()
            )
            row = cursor.fetchone()
        assert row is not None
        return _looked_at(row[0][0]["Plan"])

    def _prepare(self, text: str, values: tuple[object, ...]) -> str:
        if text not in self._prepared:
            self._prepared[text] = name = f"asked_{len(self._prepared)}"
            types = ", ".join(map(_type, values))
            self.connection.execute(f"PREPARE {name} ({types}) AS {text}".encode())
        return self._prepared[text]


Workers = tuple[_Worker, _Worker]
_FINDS = _finds()
_OF_FEW = {**_named(_VALUES), **_FINDS, **_lists(_COMMON)}
_OF_ONE_TENANT = {**_OF_FEW, **_named(_OF_ALL_SESSIONS), **_lists((*_COMMON, *_RARE))}


@contextmanager
def _workers(url: str) -> Iterator[Workers]:
    """Return a connection of the pool, and one that searches."""
    pool, searching = _Worker(url), _Worker(url, searches=True)
    with pool.connection, searching.connection:
        yield pool, searching


@pytest.fixture(scope="module")
def known(full_url: str) -> Iterator[Workers]:
    """Connections to tables that were analyzed."""
    with _workers(full_url) as workers:
        yield workers


@contextmanager
def _planned_before(postgres: Postgres, before: str) -> Iterator[Workers]:
    """Connections that planned all when there was no more than this; nothing is analyzed later."""
    url = postgres.database("plans_grown")
    options = "-c search_path=holdfast"
    with (
        psycopg.connect(url, autocommit=True, options=options) as admin,
        _workers(as_user(url, WORKER)) as workers,
    ):
        for table in _OWN.split("|"):
            admin.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        admin.execute(before)
        for worker, asked in zip(workers, (_OF_ONE_TENANT, _ASKED_BY_SEARCHES), strict=True):
            worker.looks_at(_LARGE, asked)
        admin.execute(_FILL + _FILL_SMALL)
        yield workers


@pytest.fixture(scope="module")
def grown(postgres: Postgres) -> Iterator[Workers]:
    """Connections to tables that were new and empty when all was planned."""
    with _planned_before(postgres, "") as workers:
        yield workers


_SCATTER = "".join(
    f"UPDATE {table} SET tenant = md5('of ' || {number})::uuid;"
    for table, number in (
        ("sessions", "n"), ("heads", "session"), ("recent", "session"), ("branches", "session"),
        ("messages", "session || '.' || seq"), ("turns", "session"), ("usage", "session"),
        ("blobs", "sha256"), ("blob_uses", "session"),
        ("records", "session || '.' || number"), ("record_blobs", "session"),
        ("store_records", "number"), ("store_record_blobs", "sha256"),
        ("metadata_marks", "session"),
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def scattered(postgres: Postgres) -> Iterator[Workers]:
    """Connections to tables that were analyzed when all tenants in them were nearly empty."""
    few = re.sub(rf"\b({_SESSIONS}|{_MESSAGES})\b", lambda found: str(int(found[0]) // 50), _FILL)
    left = "DELETE FROM tenants; TRUNCATE tools, drafts, queue, queue_blobs;"
    with _planned_before(postgres, f"{few}{_SCATTER}{left}ANALYZE") as workers:
        yield workers


def _too_many(looked: dict[str, int], most: int = _MOST) -> dict[str, int]:
    return {name: rows for name, rows in looked.items() if rows > most}


@pytest.mark.parametrize("tables", ["known", "grown", "scattered"])
def test_few_rows_are_found_among_all_that_a_tenant_has(
    request: pytest.FixtureRequest, tables: str
) -> None:
    """By appends, turns, lists, followers and searches: 5,000 sessions are there."""
    pool, searching = request.getfixturevalue(tables)
    assert _too_many(pool.looks_at(_LARGE, _OF_FEW)) == {}
    assert _too_many(searching.looks_at(_LARGE, _ASKED_BY_SEARCHES)) == {}


@pytest.mark.parametrize("tables", ["known", "grown", "scattered"])
def test_nobody_reads_what_others_have(request: pytest.FixtureRequest, tables: str) -> None:
    """Not even for what counts all that a tenant has: the small one has some rows of each table."""
    pool, searching = request.getfixturevalue(tables)
    most = 10 * _FEW
    assert _too_many(pool.looks_at(_SMALL, _OF_ONE_TENANT), most) == {}
    assert _too_many(searching.looks_at(_SMALL, _ASKED_BY_SEARCHES), most) == {}


_INDEXES: dict[SessionField, str] = {
    "id": "sessions_by_id",
    "id_prefix": "sessions_by_id",
    "title": "sessions_by_title",
    "title_any_case": "sessions_by_loose",
    "parent": "sessions_by_parent",
    "run_id": "turns_by_run",
    "message_id": "messages_by_own_id",
}


@pytest.mark.parametrize("name", _FINDS)
def test_sessions_are_found_by_the_index_of_the_field(full: psycopg.Connection, name: str) -> None:
    """A key by two: of the sessions in the trash, and of all others."""
    plan = _plan(full, _FINDS[name][0])
    _, by, trashed, _ = name.split()
    of_keys = {"True": {"sessions_trashed"}, "False": {"sessions_by_key"}}
    both = {"sessions_trashed", "sessions_by_key"}
    wanted = of_keys.get(trashed, both) if by == "key" else {_INDEXES[by]}  # type: ignore[index]
    assert {index for index in {*_INDEXES.values(), *both} if f" {index}" in plan} == wanted, plan


def test_rows_of_others_would_be_noticed(known: Workers) -> None:
    """The count sees what an index gives and a filter takes away."""
    asked: dict[str, Asked] = {
        "all": ("SELECT count(*) FROM sessions WHERE tenant = $1 AND metadata = $2", (b"x",))
    }
    assert known[0].looks_at(_LARGE, asked) == {"all": _SESSIONS}
