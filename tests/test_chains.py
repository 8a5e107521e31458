"""Long chains of sessions and branches cost their length, and many messages are purged in steps.

Costs are counted in statements, in rows read and in branches visited. Of a chain that is four times
as long they are four times as high, and a little more because only short paths are cached; costs by
the square of the length would be sixteen times as high.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Head, Message, Session, Store
from holdfast.errors import SessionNotFound
from holdfast.operations.purge_steps import MAX_STEP_MESSAGES, StepReport
from holdfast.operations.tombstone import MAX_PREVIEWS
from holdfast.search.visibility import Visibility
from holdfast.storage.protocol import Operation, Snapshot
from holdfast.storage.rows import BranchRow, HeadRow, SessionRow, UnreadableSession
from holdfast.values import Forks

_SHORT, _LONG = 40, 160
_MOST = 7  # times the cost of a chain that is a quarter as long


class _Count:
    """Statements that ran and rows that they returned, on all connections of this process."""

    statements = 0
    rows = 0
    steps = 0  # from branch to branch, in a search

    def note(self, event: dict[str, object]) -> None:
        if event["code"] == apsw.SQLITE_TRACE_ROW:
            self.rows += 1
        else:
            self.statements += 1


@contextmanager
def _counted() -> Iterator[_Count]:
    found = _Count()

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE | apsw.SQLITE_TRACE_ROW, found.note)

    branch = Visibility.branch

    def step(self: Visibility, n: int) -> BranchRow | None:
        found.steps += 1
        return branch(self, n)

    apsw.connection_hooks.append(watch)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Visibility, "branch", step)
            yield found
    finally:
        apsw.connection_hooks.remove(watch)


def _runs(store: Store, length: int) -> list[Session]:
    """Sessions that each continue the one before, with a message of its own."""
    runs = [store.create()]
    runs[0].append(Message.user("needle 0", id="first"))
    for n in range(1, length):
        runs.append(store.create(parent=runs[-1]))
        runs[-1].append(Message.user(f"needle {n}"))
    return runs


def _half_trashed(store: Store, length: int) -> list[Session]:
    runs = _runs(store, length)
    for run in runs[::2]:
        store.trash(run.id)
    return []


def _stubs(store: Store, length: int) -> list[Session]:
    """The last of a chain of sessions, all others of which were purged."""
    runs = _runs(store, length)
    for run in runs[:-1]:
        store.purge(run.id)
    return runs[-1:]


def _rewound(store: Store, length: int) -> list[Session]:
    """One session with a branch for each of its messages."""
    session = store.create()
    session.append(Message.user("needle"))
    for n in range(length):
        session.append(Message.user(f"needle {n}"), Message.assistant(f"needle {n}"))
        session.rewind(session.head().seq - 1)
    return [session]


def _search_readonly(store: Store) -> None:
    """Search in a store that cannot make an index."""
    with holdfast.open(store.url, readonly=True) as reader:
        assert reader.search("needle").items


def _follow(session: Session) -> None:
    follower = session.follow(Head(1, 0))
    while follower.poll() is not None:
        pass


_Make = Callable[[Store, int], list[Session]]
_Do = Callable[[Store, list[Session]], object]
_COSTS: dict[str, tuple[_Make, _Do]] = {
    "search": (_runs, lambda store, _: store.search("needle")),
    "search without an index": (_runs, lambda store, _: _search_readonly(store)),
    "search in a scope": (_runs, lambda store, _: store.search("needle", scope="none")),
    "search beside the trash": (_half_trashed, lambda store, _: store.search("needle")),
    "search past abandoned branches": (_rewound, lambda store, _: store.search("needle")),
    "search all branches": (
        _rewound,
        lambda store, _: store.search("needle", all_branches=True, around=1),
    ),
    "search all branches of one": (
        _rewound,
        lambda store, made: store.search("needle", all_branches=True, session=made[0].id),
    ),
    "follow late": (_rewound, lambda _, made: _follow(made[0])),
    "erase": (_runs, lambda _, made: made[-1].erase("first")),
    "purge in forks, too": (_runs, lambda store, made: store.purge(made[0].id, forks="erase")),
    "purge with the stubs before it": (_stubs, lambda store, made: store.purge(made[0].id)),
}


def _cost(path: Path, make: _Make, do: _Do, length: int, *, indexed: bool) -> tuple[int, ...]:
    with holdfast.open(path, durability="process") as store:
        made = make(store, length)
        if indexed:
            store.catch_up_index()
    with _counted() as count, holdfast.open(path, durability="process") as store:
        do(store, [store.get(session.id) for session in made])
        return count.statements, count.rows, count.steps


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "not indexed"])
@pytest.mark.parametrize("name", _COSTS)
def test_a_chain_costs_its_length(tmp_path: Path, name: str, *, indexed: bool) -> None:
    """Neither statements nor rows nor steps grow faster than the chain."""
    make, do = _COSTS[name]
    short = _cost(tmp_path / "short.db", make, do, _SHORT, indexed=indexed)
    long = _cost(tmp_path / "long.db", make, do, _LONG, indexed=indexed)
    for few, many in zip(short, long, strict=True):
        assert many <= _MOST * few


# ------------------------------------------------------------------------------- purges in steps

_MANY = 3 * MAX_STEP_MESSAGES
_SHARED = 2 * MAX_STEP_MESSAGES
_KILLED = """
import os, signal, sys
import holdfast
path, forks, writes = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(path) as store:
    write = store.backend.write
    def count(operation, **options):
        global writes
        if not writes:
            os.kill(os.getpid(), signal.SIGKILL)
        writes -= 1
        return write(operation, **options)
    store.backend.write = count
    store.purge("large", forks=forks)
"""


def _large(store: Store) -> Session:
    """A large session, and a fork of most of it; return the fork."""
    session = store.session("large")
    session.append(*(Message.user(f"secret number {n}", id=f"m{n}") for n in range(_MANY)))
    fork = session.fork(_SHARED, key="fork")
    fork.append(Message.user("my own"))
    return fork


def _kill_purge(path: Path, forks: Forks, writes: int = 1) -> None:
    """Fill a store, and kill a purge of its large session after some writes."""
    with holdfast.open(path, durability="process") as store:
        _large(store)
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(path), forks, str(writes)], check=False
    )
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize("forks", ["keep", "erase"])
def test_others_write_between_the_steps_of_a_large_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: Forks
) -> None:
    """No transaction erases more than a step, and the session is gone after the first."""
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store, holdfast.open(path) as another:
        fork, other = _large(store), another.session("other")
        write, erased = store.backend.write, list[int]()

        def step(operation: Operation[object], *, exclusive: bool = False) -> object:
            done = write(operation, exclusive=exclusive)
            erased.append(done.messages if isinstance(done, StepReport) else 0)
            other.append(Message.user("meanwhile"))
            with pytest.raises(SessionNotFound):
                another.get("large")
            assert another.verify() == []
            return done

        monkeypatch.setattr(store.backend, "write", step)
        report = store.purge("large", forks=forks)
        assert report.messages == sum(erased) == (_MANY if forks == "erase" else _MANY - _SHARED)
        assert 0 < max(erased) <= MAX_STEP_MESSAGES
        assert other.head().seq == len(erased)
        assert fork.head().seq == _SHARED + 1


@pytest.mark.parametrize("forks", ["keep", "erase"])
@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_large_purge_that_was_killed_loses_nothing_and_is_finished_by_the_next(
    tmp_path: Path, forks: Forks, writes: int
) -> None:
    """The session is gone, its fork is whole, and not a byte of what was to be erased is left."""
    path = tmp_path / "a.db"
    _kill_purge(path, forks, writes)
    with holdfast.open(path) as store:
        assert store.verify() == []
        assert [info.key for info in store.sessions(trashed=True)] == []
        assert store.stats().trashed == 0
        fork = store.get("fork")
        assert fork.head().seq == len(fork.messages()) == _SHARED + 1
        with pytest.raises(SessionNotFound):
            store.purge("large")
        texts = [message.text for message in fork.messages()]
        kept = [f"secret number {n}" for n in range(_SHARED)]
        assert texts == ([""] * _SHARED if forks == "erase" else kept) + ["my own"]
        assert fork.info().preview == ("my own" if forks == "erase" else "secret number 0")
        assert store.stats().messages == _SHARED + 1
        assert store.verify() == []
        store.purge("fork")
        assert store.stats().messages == store.stats().branches == 0
    assert b"secret number" not in path.read_bytes()


@pytest.mark.parametrize("forks", ["keep", "erase"])
def test_no_byte_is_left_after_a_refused_purge_that_finished_a_killed_one(
    tmp_path: Path, forks: Forks
) -> None:
    """What it erased is wiped although the session to purge is gone."""
    path = tmp_path / "a.db"
    _kill_purge(path, forks)
    with holdfast.open(path) as store:
        with pytest.raises(SessionNotFound):
            store.purge("large")
        assert store.backend.scan([f"secret number {_MANY - 1}".encode()]).found == ()


def test_no_byte_is_left_after_a_retention_that_finished_a_killed_purge(tmp_path: Path) -> None:
    """What it erased is wiped although the session of the plan is spared."""
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store:
        store.trash(store.session("spared").id)
    _kill_purge(path, "keep")
    with holdfast.open(path) as store:
        plan = store.retention(empty_trash=timedelta(0))
        store.restore("spared")
        assert store.apply(plan).purged == ()
        assert store.backend.scan([f"secret number {_MANY - 1}".encode()]).found == ()


def test_a_copy_of_a_killed_purge_does_not_differ_when_one_store_finished_it(
    tmp_path: Path,
) -> None:
    """Whether it is finished is no content: first the copy finishes it, then the source."""
    path = tmp_path / "a.db"
    _kill_purge(path, "keep")
    with holdfast.open(path) as store, holdfast.open(tmp_path / "b.db") as copy:
        for finishing in (copy, store):
            assert store.copy(copy).differs == ()
            with pytest.raises(SessionNotFound):
                finishing.purge("large")
        report = store.copy(copy)
        assert report.differs == report.changed == ()


def test_salvage_does_not_bring_back_a_purge_that_was_killed(tmp_path: Path) -> None:
    """It stays unfinished in the salvaged store, and the next purge there finishes it."""
    path = tmp_path / "a.db"
    _kill_purge(path, "keep")
    with holdfast.open(path) as store:
        assert store.salvage(tmp_path / "b.db").damage == ()
    with holdfast.open(tmp_path / "b.db") as store:
        assert [info.key for info in store.sessions()] == ["fork"]
        assert store.verify() == []
        with pytest.raises(SessionNotFound):
            store.purge("large")
        assert store.stats().messages == _SHARED + 1


def test_others_write_between_the_previews_of_an_erasure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction refreshes more than a portion of the sessions that show the message."""
    path, forks = tmp_path / "a.db", 2 * MAX_PREVIEWS + 10
    with holdfast.open(path, durability="process") as store, holdfast.open(path) as another:
        session, other = store.create(), another.session("other")
        session.append(Message.user("secret", id="first"), Message.user("shown now"))
        newest = [session.fork().id for _ in range(forks)][-1]
        write, last, raised = store.backend.write, _highest_activity(store), list[int]()

        def step(operation: Operation[object], *, exclusive: bool = False) -> object:
            nonlocal last
            done = write(operation, exclusive=exclusive)
            raised.append(_highest_activity(store) - last)
            other.append(Message.user("meanwhile"))
            if len(raised) == 1:
                another.get(newest).fork(key="late")
            last = _highest_activity(store)
            return done

        monkeypatch.setattr(store.backend, "write", step)
        report = session.erase("first")
        assert len(report.erased_in) == forks + 2
        assert max(raised) <= MAX_PREVIEWS
        assert (len(raised), raised[-1]) == (4, 1), "one was made after the plan"
        previews = store.backend.read(lambda at: [head.preview for _, head in _listed(at)])
        assert set(previews) == {"shown now", "meanwhile"}


def _highest_activity(store: Store) -> int:
    return store.backend.read(lambda at: max(head.activity for _, head in _listed(at)))


def _listed(at: Snapshot) -> list[tuple[SessionRow, HeadRow]]:
    return [item for item in at.all_sessions() if not isinstance(item, UnreadableSession)]
