"""Reading a piece of a long history touches that piece: the rows are counted by the server itself.

A policy makes the difference: what might tell of others' rows by its errors (a sum, a match) is
looked at only behind the policy, row by row, even where an index has it.
"""

import uuid
from typing import Any

import psycopg

from holdfast import Message, Store
from holdfast.session import number_of
from holdfast.storage.postgres.snapshot import Tenant
from holdfast.storage.postgres.statements import SQL
from tests.postgres.conftest import OpenStore

_MESSAGES, _SESSIONS, _PIECE = 3_000, 60, 50
_TENANT = Tenant("default", "holdfast").mark
_READS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("tail", ("session", _PIECE)),
    ("messages", ("session", 1, _MESSAGES - _PIECE + 1, _MESSAGES)),
    ("summary", ("session",)),
    ("newest_summary", ("session", 1, 1, _MESSAGES)),
    ("lock_head", ("session",)),
    ("messages_by_id", ([uuid.UUID(int=number) for number in range(4)],)),
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
        worker.execute("SET enable_seqscan = off")  # The tables are small; their plans are not.
        touched = {}
        for name, values in _READS:
            given = [_TENANT, *(session if value == "session" else value for value in values)]
            text = f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL[name]}"
            row = worker.execute(text, given).fetchone()
            assert row is not None
            touched[name] = _touched(row[0][0]["Plan"])
    assert max(touched.values()) <= 3 * _PIECE, touched


def test_a_whole_history_would_be_noticed() -> None:
    """The count itself sees what a filter takes away."""
    scan = {"Node Type": "Index Scan", "Relation Name": "messages", "Actual Loops": 1}
    plan = {
        "Node Type": "Sort",
        "Plans": [{**scan, "Actual Rows": 50, "Rows Removed by Filter": 9}],
    }
    assert _touched(plan) == 59
