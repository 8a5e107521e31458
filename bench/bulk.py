"""Moving many messages: a load into a file, and a load and a copy to a server.

Loading into a file is compared with an append to each session. On a server both are compared with a
bare COPY of the same rows into a table with the same indexes, as a superuser: the server refuses
COPY where row-level security applies. It reads, checks and verifies nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

import holdfast
from bench import material
from bench.measure import Result, Times, alternate, median, ratio, timed
from bench.plan import Plan
from holdfast import Message
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Snapshot
from holdfast.transfer.export import readable_sessions
from holdfast.values import Damage

_TURNS: Final = 10  # in a session
_EACH: Final = _TURNS * material.MESSAGES_PER_TURN
_ROUNDS: Final = 3
_BAR: Final = 10_000  # messages/s
_SCHEMA: Final = "holdfast_bench_bulk"
_TABLE: Final = f"{_SCHEMA}.messages"
_COLUMNS: Final = "tenant, session, branch, seq, id, id_mark, turn, crc, summary, body"
_TYPES: Final = ["uuid", "int8", "int4", "int8", "bytea", "uuid", "int8", "int8", "bool", "bytea"]


class Server(msgspec.Struct, frozen=True):
    """The URL of the store on a server, that of a superuser, and the schema of the store."""

    store: str
    admin: str
    schema: str


def loading(plan: Plan) -> Iterator[Result]:
    """Load sessions into a file, and append to each of them in another one."""
    messages = plan.sizes.moved

    def load() -> Times:
        sessions = _sessions(messages)
        with holdfast.open(plan.path("loaded")) as store:
            return [timed(lambda: store.load(sessions))]

    def append() -> Times:
        sessions = _sessions(messages)
        with holdfast.open(plan.path("appended")) as store:
            return [timed(lambda: [store.session(key).append(*given) for key, given in sessions])]

    ours, theirs = alternate(_ROUNDS, load, append)
    yield Result(
        name="bulk",
        what=f"load of {messages:,} messages, {_EACH} in a session",
        value=median(ours),
        figure=f"{_rate(messages, ours)} (appended one by one: {_rate(messages, theirs)})",
        ratio=ratio(ours, theirs),
        of="appends, time",
    )


def moving(plan: Plan, server: Server) -> Iterator[Result]:
    """Copy a store of many sessions to the server, and load as many messages."""
    messages, path = plan.sizes.moved, plan.path("moved")
    with holdfast.open(path, durability="process") as source:
        source.load(_sessions(messages))
        rows = source.backend.read(_rows)
    works: dict[str, Callable[[], Times]] = {
        "copy from SQLite, verified,": lambda: _copy(path, server),
        "load": lambda: _load(server, messages),
        "COPY": lambda: _bare_copy(server, rows),
    }
    found = dict(zip(works, alternate(_ROUNDS, *works.values()), strict=True))
    bare = found.pop("COPY")
    for name, times in found.items():
        rate = messages / median(times)
        yield Result(
            name="bulk",
            what=f"PostgreSQL: {name} of {messages:,} messages",
            value=median(times),
            figure=f"{_rate(messages, times)} (COPY {_rate(messages, bare)})",
            ratio=ratio(times, bare),
            of="COPY, time",
            bar=f"≥ {_BAR:,}/s",
            met=rate >= _BAR,
        )


def _rate(messages: int, times: Sequence[Times]) -> str:
    return f"{messages / median(times):,.0f}/s"


def _sessions(messages: int) -> list[tuple[str, list[Message]]]:
    """Return sessions of some turns."""
    return [
        (f"k{n}", [message for _ in range(_TURNS) for message in material.turn()])
        for n in range(messages // _EACH)
    ]


def _copy(path: Path, server: Server) -> Times:
    """Copy to a tenant of its own, verification included."""
    with (
        holdfast.open(path, readonly=True) as source,
        holdfast.open(server.store, tenant=f"copied {time.monotonic_ns()}") as target,
    ):
        target.sessions()
        started = time.perf_counter()
        assert source.copy(target).same
        return [time.perf_counter() - started]


def _load(server: Server, messages: int) -> Times:
    """Load into a tenant of its own."""
    sessions = _sessions(messages)
    with holdfast.open(server.store, tenant=f"loaded {time.monotonic_ns()}") as store:
        store.sessions()
        return [timed(lambda: store.load(sessions))]


def _rows(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    """Return the rows that the server gets, as a driver takes them."""
    from holdfast.storage.postgres import conversion  # noqa: PLC0415 - only with its driver

    tenant, rows = conversion.mark("bare"), []
    for session, _ in readable_sessions(snapshot, _no_damage):
        head = snapshot.head(session)
        assert head is not None
        ((_, found),) = snapshot.messages([Segment(head.branch, 1, head.seq, "")])
        rows += [(tenant, session, 1, *conversion.message_values(session, row)) for row in found]
    return rows


def _no_damage(damage: Damage) -> None:
    raise AssertionError(damage)


def _bare_copy(server: Server, rows: list[tuple[Any, ...]]) -> Times:
    """Copy the rows into an empty table with the same indexes."""
    import psycopg  # noqa: PLC0415 - only where it is installed

    with psycopg.connect(server.admin, autocommit=True) as superuser:
        superuser.execute(f"DROP SCHEMA IF EXISTS {_SCHEMA} CASCADE")
        superuser.execute(f"CREATE SCHEMA {_SCHEMA}")
        superuser.execute(f"CREATE TABLE {_TABLE} (LIKE {server.schema}.messages INCLUDING ALL)")
        started = time.perf_counter()
        with (
            superuser.transaction(),
            superuser.cursor().copy(f"COPY {_TABLE} ({_COLUMNS}) FROM STDIN (FORMAT binary)") as to,
        ):
            to.set_types(_TYPES)
            for row in rows:
                to.write_row(row)
        seconds = time.perf_counter() - started
        superuser.execute(f"DROP SCHEMA {_SCHEMA} CASCADE")
    return [seconds]
