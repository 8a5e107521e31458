"""What the benchmarks rest on, as counts: these do not depend on how fast a machine is.

The engine is watched from below (a VFS that counts syncs, reads and bytes) and from within (its
own trace of statements and of the steps they took).
"""

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast
from bench import material, texts
from bench.counting_vfs import Watched, watching
from holdfast import AsyncStore, File, Message, Record, Session, Store, codec
from holdfast.session import number_of
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.rows import UnreadableSession
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.url import Durability, Location

_PAGES_OF_WAL = 1000
_OLD_SESSIONS = 2_200  # more than the recent ones that are read before an index is
_LARGEST_FRAME = 4096 + 24
_Do = Callable[[Session], object]

# Each operation that moves a head or forks a session, how many messages it stores, and what has to
# happen before it.
_OPERATIONS: dict[str, tuple[int, _Do, _Do]] = {
    "fork": (0, lambda s: s.fork(), lambda _: None),
    "fork in the past": (0, lambda s: s.fork(at=8), lambda _: None),
    "undo": (0, lambda s: s.undo(), lambda _: None),
    "redo": (0, lambda s: s.redo(), lambda s: s.undo()),
    "rewind": (0, lambda s: s.rewind(8), lambda _: None),
    "clear": (0, lambda s: s.clear(), lambda _: None),
    "exact rewind": (0, lambda s: s.rewind(7, exact=True), lambda _: None),
    "rewind and update": (0, lambda s: s.rewind(8, update={"title": "t"}), lambda _: None),
    "pop": (0, lambda s: s.pop(), lambda _: None),
    "summarize": (1, lambda s: s.summarize("It is about a parcel."), lambda _: None),
}


@contextmanager
def _watched(path: Path, durability: Durability = "power") -> Iterator[tuple[Store, Watched]]:
    with watching() as watched:
        location = Location("sqlite", str(path))
        with Store(SQLiteBackend(location, durability=durability, vfs=watched.name)) as store:
            yield store, watched


class _Trace:
    """What every connection of this process did: statements, rows, and the steps of the engine."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rows = 0
        self.steps = 0
        self.scanned = 0

    def note(self, event: dict[str, object]) -> None:
        if event["code"] == apsw.SQLITE_TRACE_ROW:
            self.rows += 1
            return
        status = event["stmt_status"]
        assert isinstance(status, dict)
        self.statements.append(str(event["sql"]))
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]
        self.scanned += status["SQLITE_STMTSTATUS_FULLSCAN_STEP"]

    def clear(self) -> None:
        self.statements.clear()
        self.rows = self.steps = self.scanned = 0

    def counted(self) -> tuple[list[str], int, int]:
        """Return all counts that must not depend on the amount of data."""
        assert self.scanned == 0, "no statement walks through a table"
        return list(self.statements), self.rows, self.steps


@pytest.fixture
def trace() -> Iterator[_Trace]:
    found = _Trace()

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE | apsw.SQLITE_TRACE_ROW, found.note)

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


def _states(session: Session, count: int, kind: str = "state", key: str | None = None) -> None:
    for _ in range(0, count, 5_000):
        session.append(*(Record(kind, key=key, data=n) for n in range(min(count, 5_000))))


# -------------------------------------------------------------------------------------- records


def test_an_append_with_a_record_is_one_commit_and_one_sync(tmp_path: Path, trace: _Trace) -> None:
    """The record, its id and its key are three more leaves; its blob is stored beside it."""
    with _watched(tmp_path / "a.db") as (store, watched):
        session = store.session("k")
        file = File(name="s", mime="text/plain", data=b"state " * 1_000)
        session.append(Message.user("a"), Record("state", data=1, files={"a": file}))
        trace.clear()
        syncs = watched.syncs
        session.append(Message.user("b"), Record("state", data=2, files={"a": file}))
        assert watched.syncs - syncs == 1
        assert [one for one in trace.statements if one.startswith("COMMIT")] == ["COMMIT"]
        assert len(trace.statements) <= 14
        before = watched.bytes_written
        session.append(Message.user("c"), Record("state", data=3))
        assert watched.bytes_written - before <= 8 * _LARGEST_FRAME
        before = watched.bytes_written
        session.append(Message.user("d"))
        assert watched.bytes_written - before <= 5 * _LARGEST_FRAME


def test_an_append_without_records_asks_for_none(tmp_path: Path, trace: _Trace) -> None:
    """Whether the session has some or not."""
    with holdfast.open(tmp_path / "a.db") as store:
        session = store.session("k")
        session.append(Message.user("a"), Record("state", data=1))
        trace.clear()
        session.append(Message.user("b"))
        assert not [one for one in trace.statements if "record" in one and "heads" not in one]


@pytest.mark.parametrize(("key", "many"), [(None, 10_000), ("thread", 100_000)])
def test_the_newest_record_costs_the_same_however_many_there_are(
    tmp_path: Path, trace: _Trace, key: str | None, many: int
) -> None:
    """As of now, as of a position in the middle, and in a fork whose parent stored all the rest."""
    found = []
    for count in (100, many):
        path = tmp_path / f"{count}.db"
        with holdfast.open(path, durability="process") as store:
            session = store.session("k")
            session.append(Message.user("a"), Record("state", key=key, data="first"))
            fork, rare = session.fork(key="fork"), Record("rare", key="other")
            session.append(rare, Record("state", key=key, data="of the fork"))
            later = session.fork(key="later")
            _states(session, count, key=key)
            session.append(Message.user("b"))
            _states(session, count // 10, key=key)
        with holdfast.open(path) as store:
            session, fork, later = (store.session(name) for name in ("k", "fork", "later"))
            trace.clear()
            newest = session.record("state", key)
            counts = [len(trace.statements)]
            assert newest is not None
            assert newest.seq == 2
            for told, at in ((fork, None), (later, None), (session, 1), (later, 1)):
                assert told.record("state", key, at=at) is not None
                counts.append(len(trace.statements))
            assert session.record("rare", "other") is not None
            assert session.record("rare", "none") is None
            found.append((counts, trace.counted()))
    assert found[0] == found[1]


def test_the_newest_of_a_kind_are_read_without_the_rest(tmp_path: Path, trace: _Trace) -> None:
    """Frequent kinds and prefixes are among the last records; rare ones have few index entries."""
    wanted = (("state", None, 10), ("state", "run/", 10), ("rare", None, 2), ("rare", "x", 1))
    steps = []
    for count in (2_000, 40_000):
        with holdfast.open(tmp_path / f"{count}.db", durability="process") as store:
            session = store.session("k")
            session.append(Message.user("a"), Record("rare"), Record("rare", key="x"))
            _states(session, count, key="run/1")
            for kind, prefix, least in wanted:
                trace.clear()
                assert len(session.records(kind, prefix=prefix, limit=10)) == least
                steps.append(trace.counted())
    assert steps[:4] == steps[4:]


def test_a_drop_reads_no_body(tmp_path: Path, trace: _Trace) -> None:
    """What is dropped is found by the index; large bodies are never read."""
    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        session = store.session("k")
        session.append(*(Record("state", data="x" * 20_000) for _ in range(300)))
        trace.clear()
        assert session.drop(kind="state", keep=1).records == 299
        assert not [one for one in trace.statements if "CAST(body AS BLOB) FROM records" in one]


def test_numbers_of_dropped_records_cost_a_follower_and_a_purge_nothing(
    tmp_path: Path, trace: _Trace
) -> None:
    """A session may drop its state as often as it stores it; few numbers are then in use."""
    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        session = store.session("k")
        session.append(Message.user("a"), Record("rare"))
        for _ in range(2):
            _states(session, 20_000)
            session.append(Record("rare"))
        assert session.drop(kind="state").records == 40_000
        trace.clear()
        follower = session.follow(records=True)
        seen = [type(item) for item in iter(follower.poll, None)]
        assert seen == [Message, Record, Record, Record]
        assert len([one for one in trace.statements if "FROM records" in one]) < 100
        trace.clear()
        assert store.purge("k").records == 3
        assert len([one for one in trace.statements if "DELETE FROM records" in one]) < 10


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
    """The last 50 of 100 and of 10,000 messages: the same statements, steps and rows."""
    statements, steps, reads = [], [], []
    for length in (100, 10_000):
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


_WINDOWS: dict[str, _Do] = {
    "tokens": lambda s: s.window(max_tokens=8_000, reserve=1_000),
    "messages": lambda s: s.window(max_messages=50),
    "the first user's message, too": lambda s: s.window(max_messages=50, keep_first_user=True),
    "instructions and times": lambda s: s.window(
        provider="anthropic", max_tokens=8_000, system="be brief", timestamps=True
    ),
}


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A short and a long history of the same turns."""
    folder = tmp_path_factory.mktemp("histories")
    return [_history(folder / f"{length}.db", length) for length in (1_000, 10_000)]


@pytest.mark.parametrize("asked", _WINDOWS)
def test_a_window_costs_the_same_whatever_the_length(
    histories: list[Path], trace: _Trace, asked: str
) -> None:
    """Of 1,000 and of 10,000 messages: the same statements, rows and steps, and few of them."""
    found, reads = [], []
    for path in histories:
        with _watched(path) as (store, watched):
            session = store.session("k")
            trace.clear()
            before = watched.reads
            _WINDOWS[asked](session)
            reads.append(watched.reads - before)
            found.append(trace.counted())
    assert found[0] == found[1]
    statements, rows, _ = found[0]
    assert len(statements) <= 12
    assert rows <= 100
    # Each b-tree may have grown by a level or two.
    assert reads[1] <= reads[0] + 8


def test_a_window_behind_a_summary_reads_what_follows_it(
    histories: list[Path], trace: _Trace
) -> None:
    """Without any limit: the summary is found by an index, and what it stands for is not read."""
    found = []
    for path in histories:
        with holdfast.open(path, durability="process") as store:
            fork = store.session("k").fork()
            fork.summarize("It is about a parcel.")
            _append_some(fork, 5)
            trace.clear()
            fork.window()
            found.append(trace.counted())
    assert found[0] == found[1]
    statements, rows, _ = found[0]
    assert len(statements) <= 14
    assert rows <= 30


def test_a_window_writes_nothing(tmp_path: Path, trace: _Trace) -> None:
    """No sync, and no statement that could change anything."""
    with _watched(_history(tmp_path / "a.db", 400)) as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        session.messages(limit=1)
        trace.clear()
        before = watched.syncs, watched.bytes_written
        session.window(max_tokens=8_000)
        assert (watched.syncs, watched.bytes_written) == before
        assert {one.partition(" ")[0] for one in trace.statements} == {"BEGIN", "SELECT", "COMMIT"}
        assert "BEGIN IMMEDIATE" not in trace.statements


def test_listing_reads_a_page_whatever_the_number(tmp_path: Path, trace: _Trace) -> None:
    """The 50 newest of 200 and of 2,000 sessions: the same steps, no walk through a table."""
    steps, reads = [], []
    for number in (200, 2_000):
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


_FILTERS: dict[str, Callable[[Store], object]] = {
    "pinned": lambda store: store.sessions(pinned=True),
    "archived": lambda store: store.sessions(archived=True),
    "trashed": lambda store: store.sessions(trashed=True),
    "scope": lambda store: store.sessions(scope="rare"),
    "agent": lambda store: store.sessions(agent="rare"),
    "cwd": lambda store: store.sessions(cwd="/rare"),
    "scope, agent and cwd": lambda store: store.sessions(scope="rare", agent="rare", cwd="/rare"),
    "scope, done lately": lambda store: store.sessions(scope="rare", state="done", since="1d"),
    "a page of a scope": lambda store: store.sessions(
        scope="support", cursor=store.sessions(scope="support", limit=50).cursor
    ),
    "latest": lambda store: store.latest(scope="rare"),
    "pinned first": lambda store: store.sessions(order="pinned"),
    "behind the pinned ones": lambda store: store.sessions(
        order="pinned", cursor=store.sessions(order="pinned", limit=1).cursor
    ),
    "metadata": lambda store: store.sessions(metadata={"user": "42"}),
    "metadata, some of which all have": lambda store: store.sessions(
        metadata={"user": "42", "app": "desk"}
    ),
    "metadata that all have": lambda store: store.sessions(metadata={"app": "desk"}),
    "beginning of a key": lambda store: store.sessions(key_prefix="k"),
    "beginning of all keys": lambda store: store.sessions(key_prefix="customer-"),
    "metadata of few keys": lambda store: store.sessions(
        metadata={"app": "desk"}, key_prefix="k", delegates=False
    ),
    "lately": lambda store: store.sessions(since="1d"),
    "done": lambda store: store.sessions(state="done"),
    "@latest of a scope": lambda store: store.get("@latest:rare"),
    "@pinned": lambda store: store.get("@pinned"),
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores of many sessions; few of them have what few have."""
    paths = []
    for number in (2_500, 5_000):
        paths.append(tmp_path_factory.mktemp("many") / f"{number}.db")
        with holdfast.open(paths[-1], durability="process") as store:
            rare = store.create(key="k", title="rare", scope="rare", agent="rare", cwd="/rare")
            rare.update(pinned=True, metadata={"user": "42", "app": "desk"})
            with rare.turn(run_id="run") as turn:
                turn.user("hello")
                turn.assistant("hello")
            rare.append(*material.turn())
            rare.undo()
            store.create().update(archived=True)
            store.trash(store.create().id)
            material.add_sessions(store, number)
            store.backend.write(_describe_others)
    return paths


def _describe_others(tx: Transaction) -> None:
    """Give all sessions but one the same metadata, and the first ones something more."""
    for item in list(tx.all_sessions()):
        assert not isinstance(item, UnreadableSession)
        row = item[0]
        if row.metadata == b"{}":
            more = b',"old":true' if row.n <= _OLD_SESSIONS else b""
            tx.put_session(msgspec.structs.replace(row, metadata=b'{"app":"desk"%s}' % more))


@pytest.mark.parametrize("asked", _FILTERS)
def test_listing_few_of_many_reads_the_few(many: list[Path], trace: _Trace, asked: str) -> None:
    """What few sessions have is found by an index, not by walking through all of them."""
    steps = []
    for path in many:
        with holdfast.open(path) as store:
            trace.clear()
            assert _FILTERS[asked](store)
            steps.append(trace.steps)
    assert steps[0] == steps[1]


_FOUND: dict[str, Callable[[Session, Snapshot], object]] = {
    "number": lambda rare, at: at.sessions("n", number_of(rare)),
    "id": lambda rare, at: at.sessions("id", rare.id),
    "beginning of the id": lambda rare, at: at.sessions("id_prefix", rare.id[:10]),
    "key": lambda _, at: at.sessions("key", "k", trashed=False),
    "title": lambda _, at: at.sessions("title", "rare"),
    "title in another case": lambda _, at: at.sessions("title_any_case", "RARE"),
    "run": lambda _, at: at.sessions("run_id", "run"),
    "parent": lambda rare, at: at.sessions("parent", rare.id) == [],
    "branches": lambda rare, at: at.branches(session=number_of(rare)),
    "branch by its number": lambda rare, at: at.branch(number_of(rare), 1),
    "branch by its token": lambda rare, at: at.branch(
        number_of(rare), token=at.branches(session=number_of(rare))[0].token
    ),
    "branches that start on one": lambda rare, at: at.branches(
        parent=at.branches(session=number_of(rare))[0].n
    ),
}


@pytest.mark.parametrize("asked", _FOUND)
def test_one_of_many_is_found_by_an_index(many: list[Path], trace: _Trace, asked: str) -> None:
    """A session, or a branch, is found in as many steps among 2,500 sessions as among 5,000."""
    found = []
    for path in many:
        with holdfast.open(path) as store:
            rare = store.session("k")
            trace.clear()
            assert store.backend.read(partial(_FOUND[asked], rare))
            found.append(trace.counted())
    assert found[0][:2] == found[1][:2]
    # An id or a token may be the last one of its index, which ends a search one step earlier.
    assert abs(found[0][2] - found[1][2]) <= 2


def test_what_the_recent_sessions_lack_is_found_behind_them(many: list[Path]) -> None:
    """However many have it."""
    for path in many:
        with holdfast.open(path) as store:
            page = store.sessions(metadata={"old": True}, limit=5)
            rest = store.sessions(metadata={"old": True}, limit=5000, cursor=page.cursor)
            assert len(page) + len(rest) >= _OLD_SESSIONS - 3


def test_metadata_costs_an_append_nothing(tmp_path: Path, trace: _Trace) -> None:
    """Its index is written with the session's own row, and only if it differs."""
    with holdfast.open(tmp_path / "a.db") as store:
        session = store.session("k", metadata={"a": 1})
        trace.clear()
        _append_some(session, 2)
        assert not any("metadata_marks" in one for one in trace.statements)
        session.update(title="t", metadata={"a": 1})
        assert [one for one in trace.statements if "INTO metadata_marks" in one] == []


def test_a_message_is_read_by_its_id_whatever_the_length(
    histories: list[Path], trace: _Trace
) -> None:
    """Of a session, and of all sessions: an index has it."""
    found = []
    for path in histories:
        with holdfast.open(path) as store:
            session = store.session("k")
            names = [session.messages(upto=seq, limit=1)[0].id for seq in (5, 999)]
            counted = []
            for read in (session.message, lambda name: store.message(name)[1]):
                read(names[0])
                trace.clear()
                assert [read(name).id for name in names] == names
                counted.append(trace.counted()[:2])
                assert trace.rows <= 2 * 5
            found.append(counted)
    assert found[0] == found[1]


def test_the_newest_of_a_role_are_read_backwards_as_far_as_needed(
    histories: list[Path], trace: _Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of another role are not decoded, and those before are not read."""
    decoded: list[str] = []
    decode = codec.decode

    def counting_decode(body: bytes, **where: Any) -> Message:  # noqa: ANN401
        decoded.append(where["id"])
        return decode(body, **where)

    monkeypatch.setattr(codec, "decode", counting_decode)
    found = []
    for path in histories:
        with holdfast.open(path) as store:
            session = store.session("k")
            session.head()
            trace.clear()
            decoded.clear()
            newest = session.messages(role="tool", limit=3)
            assert [message.role for message in newest] == ["tool"] * 3
            assert set(decoded) <= {m.id for m in session.messages(limit=33) if m.role == "tool"}
            found.append(trace.counted()[1])
    assert found[0] == found[1] <= 80


def test_the_first_of_a_history_is_read_without_the_rest(
    histories: list[Path], trace: _Trace
) -> None:
    """However long it is; and all of it is as many rows, a few hundred in each statement."""
    found = []
    for path in histories:
        with holdfast.open(path) as store:
            session = store.session("k")
            session.head()
            trace.clear()
            assert next(session.iter_messages()).seq == 1
            found.append(trace.counted())
            trace.clear()
            length = sum(1 for _ in session.iter_messages())
            assert length == session.head().seq
            pages = [one for one in trace.statements if "FROM messages" in one]
            assert length / 512 <= len(pages) <= length / 512 + 6
    assert found[0] == found[1]
    assert found[0][1] <= 40


def test_iterating_takes_no_memory_that_grows_with_the_history(histories: list[Path]) -> None:
    """Two pages at most: the one being read, and the one before it."""
    peaks = []
    for path in histories:
        with holdfast.open(path) as store:
            session = store.session("k")
            next(session.iter_messages())
            tracemalloc.start()
            try:
                assert sum(1 for _ in session.iter_messages()) == session.head().seq
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()
    page = 512 * sum(map(len, material.bodies())) // 4
    assert peaks[1] <= peaks[0] + 2 * page
    assert peaks[1] <= 5 * page < path.stat().st_size / 2


def test_blobs_are_read_together(tmp_path: Path, trace: _Trace) -> None:
    """One statement for many, in one transaction."""
    files = [File(data=b"%d" % number) for number in range(50)]
    with holdfast.open(tmp_path / "a.db") as store:
        session = store.session("k")
        session.append(Message.user(files))
        names = [
            part.sha256 or "" for part in session.messages()[0].parts if isinstance(part, File)
        ]
        trace.clear()
        assert len(store.blobs(*names)) == 50
        assert sum("FROM blobs" in one for one in trace.statements) == 1
        assert sum(one.startswith("BEGIN") for one in trace.statements) == 1


def test_a_session_is_found_by_its_id_in_one_statement(tmp_path: Path, trace: _Trace) -> None:
    """What could match besides is not looked for."""
    with holdfast.open(tmp_path / "agent.db") as store:
        id = store.session("key").id
        for ref, expected in ((id, 1), ("key", 2)):
            trace.clear()
            store.get(ref)
            assert sum("FROM sessions" in one for one in trace.statements) == expected


def test_a_page_is_two_questions(many: list[Path], trace: _Trace) -> None:
    """Which sessions, and how many were split off each; the pinned ones are a list of their own."""
    with holdfast.open(many[0]) as store:
        store.get("@pinned").fork()
        for order, questions in (("activity", 2), ("pinned", 4)):
            trace.clear()
            assert len(store.sessions(order=order)) == 50  # type: ignore[arg-type]
            asked = [one for one in trace.statements if one.startswith("SELECT")]
            assert len(asked) <= questions
            assert trace.rows <= 2 * 51 + 1


def test_a_title_in_another_case_reads_titles_alone(many: list[Path], trace: _Trace) -> None:
    """An index has them: of the sessions themselves only the one that fits is read."""
    reads = []
    for path in many:
        with _watched(path) as (store, watched):
            session = store.create(title="The Only One")
            store.get("The Only One")
            trace.clear()
            before = watched.reads
            assert store.get("the only one").id == session.id
            reads.append(watched.reads - before)
            assert trace.scanned == 0
            assert trace.rows <= 4
            store.purge(session.id)
    assert reads[1] <= reads[0] * 2 + 8


# ------------------------------------------------------------------------ going back and apart


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_a_move_is_one_commit_and_one_sync(tmp_path: Path, trace: _Trace, operation: str) -> None:
    """Fork, undo, redo, rewind, clear, summarize: each one transaction, and one sync at `power`."""
    _, act, prepare = _OPERATIONS[operation]
    with _watched(_history(tmp_path / "a.db", 40)) as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        prepare(session)
        trace.clear()
        before = watched.syncs
        act(session)
        assert watched.syncs - before == 1
        assert trace.statements.count("BEGIN IMMEDIATE") == 1
        assert trace.statements.count("COMMIT") == 1


def test_what_a_store_does_to_a_session_is_one_sync_each(tmp_path: Path) -> None:
    """Continue, trash and restore: each is one commit, too."""
    with _watched(_history(tmp_path / "a.db", 40)) as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        seen = [watched.syncs]
        for act in (
            lambda: store.create(parent=session),
            lambda: store.trash(session.id),
            lambda: store.restore(session.id),
        ):
            act()
            seen.append(watched.syncs)
        assert [later - earlier for earlier, later in pairwise(seen)] == [1, 1, 1]


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_a_move_copies_no_message(tmp_path: Path, operation: str) -> None:
    """Only a summary stores a message: its own."""
    stored, act, prepare = _OPERATIONS[operation]
    with holdfast.open(_history(tmp_path / "a.db", 400), durability="process") as store:
        session = store.session("k")
        prepare(session)
        act(session)
        assert store.stats().messages == 400 + stored


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_a_move_costs_the_same_whatever_the_length(
    tmp_path: Path, trace: _Trace, operation: str
) -> None:
    """The same statements, rows and steps behind 1,000 messages and behind 5,000."""
    _, act, prepare = _OPERATIONS[operation]
    found = []
    for length in (1_000, 5_000):
        with holdfast.open(_history(tmp_path / f"{length}.db", length)) as store:
            session = store.session("k")
            _append_some(session, 3)
            prepare(session)
            trace.clear()
            act(session)
            found.append(trace.counted())
    assert found[0] == found[1]
    statements, rows, _ = found[0]
    assert len(statements) <= 16
    assert rows <= 300


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_an_operation_costs_the_same_however_much_was_moved_before(
    tmp_path: Path, trace: _Trace, operation: str
) -> None:
    """Only the newest branches are read, however many a session has."""
    _, act, prepare = _OPERATIONS[operation]
    found = []
    for moves in (10, 50):
        path = _history(tmp_path / f"{moves}.db", 400)
        with holdfast.open(path, durability="process") as store:
            session = store.session("k")
            for _ in range(moves):
                session.rewind(300)
                _append_some(session, 1)
            prepare(session)
            trace.clear()
            act(session)
            found.append(trace.counted())
    assert found[0] == found[1]


def test_a_pop_reads_one_message_whatever_the_length(tmp_path: Path, trace: _Trace) -> None:
    """The same statements, rows and steps at 100 messages and at 100,000; one row is a message."""
    found = []
    for length in (100, 100_000):
        with holdfast.open(
            _history(tmp_path / f"{length}.db", length), durability="process"
        ) as store:
            session = store.session("k")
            session.pop()
            trace.clear()
            popped = session.pop()
            found.append(trace.counted())
            assert popped is not None
            assert popped.seq == length - 1
    assert found[0] == found[1]
    statements, rows, _ = found[0]
    assert sum("FROM messages" in statement for statement in statements) == 1
    assert len(statements) <= 12
    assert rows <= 8


def test_an_append_with_an_update_is_one_commit_and_one_sync(tmp_path: Path, trace: _Trace) -> None:
    """It reads and writes the session's row, and what finds it by its names and its metadata."""
    with _watched(tmp_path / "a.db") as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        trace.clear()
        session.append(Message.user("alone"))
        alone = len(trace.statements)
        trace.clear()
        before = watched.syncs
        session.append(Message.user("with"), update={"metadata": {"v": 1}})
        assert watched.syncs - before == 1
        assert trace.statements.count("COMMIT") == 1
        assert len(trace.statements) == alone + 5
        trace.clear()
        session.append(Message.user("with"), update={"title": "t"})
        assert len(trace.statements) == alone + 4


def test_a_session_with_entries_is_one_commit_and_one_sync(tmp_path: Path) -> None:
    """Created or forked, with its first messages and an update."""
    with _watched(tmp_path / "a.db") as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        before = watched.syncs
        store.create(entries=material.turn(), update={"pinned": True})
        assert watched.syncs - before == 1
        session.fork(entries=material.turn(), update={"pinned": True})
        assert watched.syncs - before == 2


def test_a_tail_costs_what_it_holds(tmp_path: Path, trace: _Trace) -> None:
    """A replaced tail and an amendment read and store the tail, whatever is before it."""
    found = []
    for length in (400, 4_000):
        with _watched(_history(tmp_path / f"{length}.db", length)) as (store, watched):
            session = store.session("k")
            session.pop()
            trace.clear()
            before = watched.syncs
            session.replace(material.turn(), keep=length - 20)
            session.amend(length - 18, "amended")
            assert watched.syncs - before == 2
            found.append((len(trace.statements), trace.rows))
            assert trace.scanned == 0
            assert store.stats().messages == length + 4 + 3
    assert found[0] == found[1]
    assert found[0][1] < 120


def test_replace_stores_only_what_differs(tmp_path: Path) -> None:
    """The common prefix is shared; what follows it is stored, and nothing of the old is gone."""
    with holdfast.open(_history(tmp_path / "a.db", 400), durability="process") as store:
        session = store.session("k")
        history = session.messages()
        session.replace([*history[:-4], *material.turn()])
        assert store.stats().messages == 400 + 4
        session.replace([message for _ in range(100) for message in material.turn()])
        assert store.stats().messages == 404 + 400
        session.replace(session.messages())
        assert store.stats().messages == 804, "the same history is no change"


def test_replace_is_one_commit_and_one_sync(tmp_path: Path) -> None:
    """However many messages it takes."""
    with _watched(_history(tmp_path / "a.db", 400)) as (store, watched):
        session = store.session("k")
        _append_some(session, 2)
        wanted = [*session.messages()[:200], *material.turn()]
        before = watched.syncs
        assert session.replace(wanted).seq == 204
        assert watched.syncs - before == 1


def test_purge_is_one_commit(tmp_path: Path, trace: _Trace) -> None:
    """A small session is erased whole or not at all; making the bytes go comes after that."""
    with holdfast.open(_history(tmp_path / "a.db", 400)) as store:
        _append_some(store.session("k"), 2)
        trace.clear()
        assert store.purge("k").messages == 408
        scrubbed = next(i for i, one in enumerate(trace.statements) if "wal_checkpoint" in one)
        assert trace.statements[:scrubbed].count("BEGIN IMMEDIATE") == 1
        assert not any("messages" in one for one in trace.statements[scrubbed:])
        assert store.stats().messages == 0


# ----------------------------------------------------------------------------- across branches


def _forked(store: Store, messages: int, forks: int) -> Session:
    """Make a fork of forks, each with a history of its own, the last with 20 messages."""
    session = store.session("k")
    material.lengthen(store, session, messages)
    for _ in range(forks):
        session = session.fork()
        _append_some(session, 15)
    session = session.fork()
    _append_some(session, 5)
    return session


@pytest.mark.parametrize(("messages", "forks"), [(5_000, 1), (200, 12), (5_000, 12)])
def test_the_last_50_across_a_fork_cost_the_same_whatever_is_behind(
    tmp_path: Path, trace: _Trace, messages: int, forks: int
) -> None:
    """One range more than within one branch; no more for a longer history or more branches."""
    found = []
    for length, number in ((200, 1), (messages, forks)):
        path = tmp_path / f"{length}-{number}.db"
        with holdfast.open(path, durability="process") as store:
            name = _forked(store, length, number).id
        with holdfast.open(path) as store:
            session = store.get(name)
            trace.clear()
            assert len(session.messages(limit=50)) == 50
            found.append(trace.counted())
    assert found[0] == found[1]
    ranges = [one for one in found[0][0] if "FROM messages" in one]
    assert len(ranges) == 2


def test_the_last_50_of_a_chain_of_runs_cost_the_same_however_long_it_is(
    tmp_path: Path, trace: _Trace
) -> None:
    """As many branches are read as hold these messages: 13 of one turn each."""
    found = []
    for runs in (20, 80):
        path = tmp_path / f"{runs}.db"
        with holdfast.open(path, durability="process") as store:
            session = store.create()
            _append_some(session, 1)
            for _ in range(runs - 1):
                session = store.create(parent=session)
                _append_some(session, 1)
        with holdfast.open(path) as store:
            session = store.get(session.id)
            trace.clear()
            assert len(session.messages(limit=50)) == 50
            found.append(trace.counted())
    assert found[0] == found[1]
    ranges = [one for one in found[0][0] if "FROM messages" in one]
    assert len(ranges) == 13


def test_a_whole_history_is_one_range_for_each_branch(tmp_path: Path, trace: _Trace) -> None:
    """Each message is read once, also through a fork of a fork of a fork."""
    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        session = _forked(store, 1_000, 3)
        length = session.head().seq
        trace.clear()
        assert len(session.messages()) == length
        ranges = [one for one in trace.statements if "FROM messages" in one]
        assert len(ranges) == 5
        assert trace.rows <= length + 10


@pytest.mark.parametrize("forks", [1, 5, 12])
@pytest.mark.parametrize("known", [False, True])
def test_an_append_behind_branches_costs_the_same_statements(
    tmp_path: Path, trace: _Trace, forks: int, *, known: bool
) -> None:
    """As on one branch, whether the way behind was read before or not."""
    found = []
    for number in (0, forks):
        with holdfast.open(tmp_path / f"{number}.db", durability="process") as store:
            session = _forked(store, 200, number) if number else store.session("k")
            _append_some(session, 3)
            if known:
                session.messages()
            trace.clear()
            _append_some(session, 10)
            found.append(len(trace.statements))
            assert trace.scanned == 0
    assert found[0] == found[1]


# ----------------------------------------------------------------------------------- searching


def test_what_is_searched_is_the_same_in_every_run() -> None:
    """Texts and questions come from seeds: two runs measure the same work."""
    one, other = texts.Texts(), texts.Texts()
    said = [[message.parts for message in many.turn(7)] for many in (one, other)]
    assert said[0] == said[1]
    questions = one.questions(2_000)
    assert questions == other.questions(2_000)
    assert len(questions) >= 40
    assert {"rare word", "phrase", "beginning", "Chinese"} < {one.kind for one in questions}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores with an index, one twice as large as the other."""
    paths = []
    for messages in (2_500, 5_000):
        paths.append(tmp_path_factory.mktemp("searched") / f"{messages}.db")
        with holdfast.open(paths[-1], durability="process") as store:
            assert sum(1 for _ in texts.create_conversations(store, messages)) == messages
            store.catch_up_index()
            assert store.index_status().messages == messages
    return paths


def test_every_question_finds_what_was_said(searched: list[Path]) -> None:
    """So no search is measured that finds nothing."""
    with holdfast.open(searched[0]) as store:
        for question in texts.Texts().questions(2_500):
            assert store.search(question.ours), question


def test_a_search_weighs_no_more_in_a_larger_store(searched: list[Path], trace: _Trace) -> None:
    """Of a word that most messages have: a thousand of them, and for the page its texts."""
    for path in searched:
        with holdfast.open(path) as store:
            store.search("the role:assistant")
            trace.clear()
            assert len(store.search("the role:assistant", limit=10)) == 10
            assert sum("FROM messages" in one for one in trace.statements) <= 14
            # The state of the index is one statement; the log has a table of this name, too.
            meta = [one for one in trace.statements if "FROM meta" in one]
            assert sum("erasures of" not in one for one in meta) == 1
            assert len(trace.statements) <= 60
            assert trace.rows <= 1_250


def test_an_append_is_the_same_with_an_index_and_without(tmp_path: Path, trace: _Trace) -> None:
    """The same statements, steps, syncs and bytes; the index is not read at all."""
    found = []
    for indexed in (False, True):
        path = _history(tmp_path / f"{indexed}.db", 400)
        with _watched(path) as (store, watched):
            session = store.session("k")
            if indexed:
                assert store.search("parcel")
                assert store.index_status().state == "ready"
            _append_some(session, 3)
            index = path.with_name(f"{path.name}-search")
            before = watched.syncs, watched.bytes_written
            seen = index.stat() if indexed else None
            trace.clear()
            _append_some(session, 10)
            now = watched.syncs, watched.bytes_written
            found.append((trace.counted(), now[0] - before[0], now[1] - before[1]))
            assert index.exists() == indexed
            assert seen == (index.stat() if indexed else None)
    assert found[0] == found[1]
