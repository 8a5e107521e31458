"""What the benchmarks rest on, as counts: these do not depend on how fast a machine is.

The engine is watched from below (a VFS that counts syncs, reads and bytes) and from within (its
own trace of statements and of the steps they took).
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import holdfast
from bench import material
from bench.watching import Watched, watching
from holdfast import AsyncStore, Session, Store
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.settings import Durability, Location

_PAGES_OF_WAL = 1000
_LARGEST_FRAME = 4096 + 24


@contextmanager
def _watched(path: Path, durability: Durability = "power") -> Iterator[tuple[Store, Watched]]:
    with watching() as watched:
        location = Location("sqlite", str(path))
        with Store(SQLiteBackend(location, durability=durability, vfs=watched.name)) as store:
            yield store, watched


class _Trace:
    """What every connection of this process did: statements, and the steps of the engine."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.steps = 0
        self.scanned = 0

    def note(self, event: dict[str, object]) -> None:
        status = event["stmt_status"]
        assert isinstance(status, dict)
        self.statements.append(str(event["sql"]))
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]
        self.scanned += status["SQLITE_STMTSTATUS_FULLSCAN_STEP"]

    def clear(self) -> None:
        self.statements.clear()
        self.steps = self.scanned = 0


@pytest.fixture
def trace() -> Iterator[_Trace]:
    found = _Trace()

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, found.note)

    apsw.connection_hooks.append(watch)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(watch)


def _history(path: Path, messages: int) -> Path:
    with holdfast.open(path, durability="process") as store:
        material.lengthen(store, store.session("k"), messages)
    return path


def _append_some(session: Session, turns: int) -> None:
    for _ in range(turns):
        session.append(*material.turn())


# ------------------------------------------------------------------------------------ appending


def test_an_append_at_power_costs_one_sync(tmp_path: Path) -> None:
    """A batch of four messages is one commit, and a commit is one sync."""
    with _watched(tmp_path / "a.db") as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        before = watched.syncs
        _append_some(session, 10)
        assert watched.syncs - before == 10


def test_an_append_at_process_costs_no_sync(tmp_path: Path) -> None:
    """`durability="process"` leaves syncing to the checkpoints."""
    with _watched(tmp_path / "a.db", "process") as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        before = watched.syncs
        _append_some(session, 10)
        assert watched.syncs == before


def test_a_turn_costs_one_sync_per_durable_step(tmp_path: Path) -> None:
    """Open, user, assistant, tool start, tool, assistant, seal: each is durable on return."""
    with _watched(tmp_path / "a.db") as (store, watched):
        session = store.session("k")
        _append_some(session, 1)
        user, call, result, reply = material.turn()
        before = watched.syncs
        seen = []
        with session.turn() as turn:
            seen.append(watched.syncs - before)
            turn.add(user)
            seen.append(watched.syncs - before)
            turn.add(call)
            seen.append(watched.syncs - before)
            turn.tool_started(call.tool_calls[0].id)
            seen.append(watched.syncs - before)
            turn.add(result)
            seen.append(watched.syncs - before)
            turn.add(reply)
            seen.append(watched.syncs - before)
        seen.append(watched.syncs - before)
        assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_an_append_takes_few_statements_whatever_the_length(tmp_path: Path, trace: _Trace) -> None:
    """Begin, head, ids, a row per message, head again, commit; the same behind 5,000 messages."""
    counts, steps = [], []
    for length in (1, 5_000):
        with holdfast.open(_history(tmp_path / f"{length}.db", length)) as store:
            session = store.session("k")
            _append_some(session, 3)
            trace.clear()
            _append_some(session, 10)
            counts.append(len(trace.statements))
            steps.append(trace.steps)
            assert trace.scanned == 0, "no statement of an append walks through a table"
    assert counts[0] == counts[1]
    assert counts[0] <= 10 * 12
    assert steps[0] == steps[1]


def test_an_append_writes_the_same_bytes_whatever_the_length(tmp_path: Path) -> None:
    """The pages an append dirties do not grow in number with the history."""
    written = []
    for length in (1_000, 10_000):
        path = _history(tmp_path / f"{length}.db", length)
        with _watched(path, "process") as (store, watched):
            session = store.session("k")
            _append_some(session, 3)
            before = watched.bytes_written
            _append_some(session, 20)
            written.append(watched.bytes_written - before)
    # One more level of a b-tree is one more page now and then.
    assert written[1] <= written[0] * 1.2


def test_a_lone_sync_caller_starts_no_thread(tmp_path: Path) -> None:
    """It is its own leader: no hand-over, no writer thread."""
    before = threading.active_count()
    with holdfast.open(tmp_path / "a.db") as store:
        session = store.session("k")
        _append_some(session, 5)
        session.messages(limit=2)
        assert threading.active_count() == before


def test_appends_that_arrive_together_share_commits(tmp_path: Path) -> None:
    """64 asyncio callers need fewer than 64 syncs, and every one is answered."""

    async def together(store: Store) -> list[int]:
        twin = AsyncStore(store)
        sessions = [await twin.session(f"k{n}") for n in range(64)]
        before = watched.syncs
        heads = await asyncio.gather(*(s.append(*material.turn()) for s in sessions))
        return [watched.syncs - before, *(head.seq for head in heads)]

    with _watched(tmp_path / "a.db") as (store, watched):
        syncs, *seqs = asyncio.run(together(store))
    assert seqs == [4] * 64
    assert 1 <= syncs < 64


def test_the_log_before_the_checkpoint_stays_small(tmp_path: Path) -> None:
    """The write-ahead log is checkpointed as it goes and keeps its size."""
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store:
        session = store.session("k")
        sizes = []
        for _ in range(5):
            _append_some(session, 300)
            sizes.append(path.with_name("a.db-wal").stat().st_size)
    assert sizes[0] > _PAGES_OF_WAL // 2 * _LARGEST_FRAME, "enough was written to fill it"
    assert max(sizes) <= 2 * _PAGES_OF_WAL * _LARGEST_FRAME


# -------------------------------------------------------------------------------------- reading


def test_resuming_reads_the_same_whatever_the_length(tmp_path: Path, trace: _Trace) -> None:
    """The last 50 of 100 and of 20,000 messages: the same statements, steps and rows."""
    statements, steps, reads = [], [], []
    for length in (100, 20_000):
        path = _history(tmp_path / f"{length}.db", length)
        trace.clear()
        with _watched(path) as (store, watched):
            before = watched.reads
            assert len(store.session("k").messages(limit=50)) == 50
            reads.append(watched.reads - before)
            statements.append(list(trace.statements))
            steps.append(trace.steps)
    assert statements[0] == statements[1]
    assert steps[0] == steps[1]
    # Each b-tree may have grown by a level or two.
    assert reads[1] <= reads[0] + 8


def test_listing_reads_a_page_whatever_the_number(tmp_path: Path, trace: _Trace) -> None:
    """The 50 newest of 200 and of 5,000 sessions: the same steps, no walk through a table."""
    steps, reads = [], []
    for number in (200, 5_000):
        path = tmp_path / f"{number}.db"
        with holdfast.open(path, durability="process") as store:
            material.add_sessions(store, number)
        with _watched(path) as (store, watched):
            trace.clear()
            before = watched.reads
            assert len(store.sessions(limit=50)) == 50
            steps.append(trace.steps)
            reads.append(watched.reads - before)
            assert trace.scanned == 0
    assert steps[1] <= steps[0] * 1.1
    assert reads[1] <= reads[0] + 8
