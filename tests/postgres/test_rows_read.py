"""Reading a piece of a long history touches that piece: the rows are counted by the server itself.

A policy makes the difference: what might tell of others' rows by its errors (a sum, a match) is
looked at only behind the policy, row by row, even where an index has it.
"""

import uuid
from itertools import product
from typing import Any

import psycopg

from holdfast import Message, Store
from holdfast.session import number_of
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.conversion import mark
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.statements import SQL
from holdfast.url import parse_url
from tests.postgres.conftest import OpenStore, apply_settings

_MESSAGES, _SESSIONS, _PIECE = 3_000, 60, 50
_TENANT = Tenant("default", "holdfast").mark
_READS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("tail", ("session", _PIECE)),
    ("messages", ("session", 1, _MESSAGES - _PIECE + 1, _MESSAGES)),
    ("summary", ("session",)),
    ("newest_summary", ("session", 1, 1, _MESSAGES)),
    ("lock_head", ("session",)),
    ("messages_by_id", ("sessions", [uuid.UUID(int=number) for number in range(4)])),
    ("highest_activity", ()),
    ("activity_after", (0, _PIECE, 10_000)),
)


def _fill(store: Store) -> int:
    """Lay down a long history and many short ones; give the number of the long one."""
    session = store.session("long")
    for first in range(0, _MESSAGES, 500):
        session.append(*(Message.user(str(first + number)) for number in range(500)))
    for number in range(_SESSIONS):
        store.session(str(number))
    return number_of(session)


def _touched(plan: dict[str, Any]) -> int:
    """Add up the rows that a plan's scans read."""
    rows = 0
    if "Scan" in plan["Node Type"] and "Relation Name" in plan:
        removed = plan.get("Rows Removed by Filter", 0) + plan.get(
            "Rows Removed by Index Recheck", 0
        )
        rows = round((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    return rows + sum(map(_touched, plan.get("Plans", ())))


def test_a_piece_is_read_and_no_more(
    open_store: OpenStore, url: str, postgres_admin: psycopg.Connection
) -> None:
    """However long the history is, and however many sessions there are."""
    session = _fill(open_store())
    postgres_admin.execute("VACUUM ANALYZE holdfast.messages, holdfast.heads, holdfast.sessions")
    options = "-c search_path=holdfast"
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor, options=options) as worker:
        worker.execute("SELECT set_config('holdfast.tenant', $1, false)", (str(_TENANT),))
        # The tables are small; their plans are not.
        worker.execute("SET enable_seqscan = off; SET enable_sort = off")
        touched = {}
        for name, values in _READS:
            named = {"session": session, "sessions": [session] * 4}
            given = [
                _TENANT,
                *(named[value] if isinstance(value, str) else value for value in values),
            ]
            text = f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL[name]}"
            row = worker.execute(text, given).fetchone()
            assert row is not None
            touched[name] = _touched(row[0][0]["Plan"])
    assert max(touched.values()) <= 3 * _PIECE + 3, touched  # rows of three tables for each session


_LAST = (1 << 63) - 1
_NONE = uuid.UUID(int=0)
_KIND, _KEY, _OTHER = mark("checkpoint"), mark("thread"), mark("of nobody")
_BOUNDS = {  # first and last seq, last number
    "the history": (0, _LAST, _LAST),
    "at a message in the past": (0, 5, _LAST),
    "a fork whose parent stored more behind the same message": (0, 10, 10),
    "a fork that has none": (0, 10, 0),
}
_RECORDS = """
INSERT INTO holdfast.records SELECT $1, $2, 1, n, least(n, 10), n::text::bytea, md5(n::text)::uuid,
  'checkpoint', $4, CASE n % 2 WHEN 1 THEN 'thread'::bytea END,
  CASE n % 2 WHEN 1 THEN $5 ELSE $6 END, 0, 'body' FROM generate_series(1, $3::integer) n
"""


def test_the_newest_record_is_one_look_up(
    open_store: OpenStore, url: str, postgres_admin: psycopg.Connection
) -> None:
    """However many there are, of a key and without one: rows, and pages of the index."""
    session = number_of(open_store().session("s"))
    admin = psycopg.RawCursor(postgres_admin)
    place = parse_conninfo(parse_url(url, {}), "process")
    arguments: dict[str, Any] = {**place.driver_arguments(), "cursor_factory": psycopg.RawCursor}
    with psycopg.connect(place.url, autocommit=True, **arguments) as worker:
        apply_settings(worker, place)
        worker.execute("SELECT set_config('holdfast.tenant', $1, false)", (str(_TENANT),))
        for number in (100, 100_000):
            admin.execute("TRUNCATE holdfast.records")
            admin.execute(_RECORDS, (_TENANT, session, number, _KIND, _KEY, _NONE))
            admin.execute("VACUUM ANALYZE holdfast.records")
            for where, key in product(_BOUNDS, (_KEY, _NONE, _OTHER)):
                name = {_KEY: b"thread", _NONE: b"", _OTHER: b"of nobody"}[key]
                columns = [[session], [1], *([bound] for bound in _BOUNDS[where])]
                values = (*columns, 1, _KIND, b"checkpoint", key, name)
                rows, pages = _cost(worker, "records_of_key", *values)
                assert (where, rows) <= (where, 1)
                assert 0 < pages <= 10, where
            rows, pages = _cost(worker, "records", [session], [1], [0], [5], [_LAST], 1)
            assert rows == 1
            assert pages <= 10
            page = ([session], [1], [0], [_LAST], [number // 2], 20)
            rows, pages = _cost(worker, "records", *page)
            assert rows == 21  # one of them is where the page begins
            assert pages <= 30
            names = ([_KIND], [b"checkpoint"], [_KEY], [b"thread"])
            rows, pages = _cost(worker, "newest_records", session, *names)
            assert rows <= 4  # with the head and its branch
            assert 0 < pages <= 10


def _cost(worker: psycopg.Connection, name: str, *values: object) -> tuple[int, int]:
    """Return how many rows a statement reads, and how many pages of the records and their indexes.

    The second time: the first one also reads the catalog. Not the pages of other tables, which may
    have rows that were deleted by earlier tests and not vacuumed.
    """
    text = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {SQL[name]}"
    worker.execute(text, [_TENANT, *values])
    row = worker.execute(text, [_TENANT, *values]).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return _touched(plan), _pages_of_records(plan)


def _pages_of_records(plan: dict[str, Any]) -> int:
    """Add up the pages of a plan's scans of the records; a bitmap's are those of its scan, too."""
    if plan.get("Relation Name") == "records":
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return sum(map(_pages_of_records, plan.get("Plans", ())))


def test_a_whole_history_would_be_noticed() -> None:
    """The count itself sees what a filter takes away."""
    scan = {"Node Type": "Index Scan", "Relation Name": "messages", "Actual Loops": 1}
    plan = {
        "Node Type": "Sort",
        "Plans": [{**scan, "Actual Rows": 50, "Rows Removed by Filter": 9}],
    }
    assert _touched(plan) == 59
