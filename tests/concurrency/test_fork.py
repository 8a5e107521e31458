"""`os.fork`: parent and child both go on, each with connections and locks of its own.

A forked child of a process with several threads may do almost nothing safely, so each child here
does little and ends with `os._exit`. One that hangs is killed, and fails its test.
"""

import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Session, Store
from holdfast.errors import StoreUnavailable, TurnLost
from holdfast.session import number_of
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.storage.sqlite.process_lock import ProcessLock
from tests.store_urls import with_options

_PATIENCE = 90.0
_linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="lists open files of Linux")


class _Fork:
    """A forked child that runs a function and then ends; the parent receives its result."""

    def __init__(self, work: Callable[["_Fork"], str]) -> None:
        self._reports, self._report = os.pipe()
        self._orders, self._order = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(work)
        os.close(self._report)
        os.close(self._orders)

    def _live(self, work: Callable[["_Fork"], str]) -> None:
        try:
            self.report(work(self))
        except BaseException:  # noqa: BLE001 - the parent fails with it
            self.report(traceback.format_exc())
        finally:
            os._exit(0)

    # In the child:

    def report(self, what: str) -> None:
        os.write(self._report, what.encode().ljust(20_000))

    def await_order(self) -> None:
        os.read(self._orders, 1)

    # In the parent:

    def order(self) -> None:
        os.write(self._order, b"!")

    def hear(self) -> str:
        data = b""
        while len(data) < 20_000:
            if not select.select([self._reports], [], [], _PATIENCE)[0]:
                return "nothing: the child hangs"
            piece = os.read(self._reports, 20_000)
            if not piece:
                return "nothing: the child is gone"
            data += piece
        return data.decode().rstrip()

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reports)
        os.close(self._order)


@contextmanager
def _forked(work: Callable[[_Fork], str]) -> Iterator[_Fork]:
    child = _Fork(work)
    try:
        yield child
    finally:
        child.end()


def _say(session: Session, id_: str) -> str:
    session.append(Message.user("hello", id=id_))
    return "ok"


def _say_as(session: Session, id_: str, _: _Fork) -> str:
    return _say(session, id_)


def _ids(session: Session) -> list[str]:
    return [message.id for message in session.messages()]


@pytest.fixture
def store(shared_url: str) -> Iterator[Store]:
    with holdfast.open(with_options(shared_url, deadline=60)) as opened:
        yield opened


def test_parent_and_child_both_go_on(store: Store) -> None:
    """A store that was open before the fork is used by both after it, in either order."""
    session = store.session("s")
    _say(session, "before")

    def work(fork: _Fork) -> str:
        assert _ids(session) == ["before"]
        _say(session, "child 1")
        fork.report("written")
        fork.await_order()
        assert _ids(session) == ["before", "child 1", "parent 1"]
        return _say(session, "child 2")

    with _forked(work) as child:
        assert child.hear() == "written"
        _say(session, "parent 1")
        child.order()
        assert child.hear() == "ok"
        _say(session, "parent 2")
    assert _ids(session) == ["before", "child 1", "parent 1", "child 2", "parent 2"]
    assert store.verify() == []


def test_an_open_turn_stays_the_parents(store: Store) -> None:
    """In the child each write of it is `TurnLost`; the parent's turn goes on and is sealed."""
    session = store.session("s")
    with session.turn() as turn:
        turn.user("question", id="question")
        reply = turn.stream()
        reply.write("well, ")

        def work(_: _Fork) -> str:
            attempts: list[Callable[[], object]] = [
                lambda: turn.user("from the child"),
                lambda: turn.tool_started("call"),
                turn.take_queued,
                turn.cancel,
            ]
            for attempt in attempts:
                with pytest.raises(TurnLost):
                    attempt()
            return "ok"

        with _forked(work) as child:
            assert child.hear() == "ok"
        reply.write("it depends.")
        reply.close()
    assert [message.text for message in session.messages()] == ["question", "well, it depends."]
    assert [each.state for each in session.turns()] == ["sealed"]


def test_a_draft_that_is_open_in_the_parent_stays_the_parents(store: Store) -> None:
    """The child can neither flush nor close it; what the parent streams afterwards is whole."""
    session = store.session("s")
    with session.turn() as turn:
        reply = turn.stream()
        reply.write("one ")

        def work(_: _Fork) -> str:
            with pytest.raises(TurnLost):
                reply.write("child ")
                reply.flush()
            with pytest.raises(TurnLost):
                reply.close()
            return "ok"

        with _forked(work) as child:
            assert child.hear() == "ok"
        reply.write("two")
        reply.close()
    assert [message.text for message in session.messages()] == ["one two"]


def test_what_the_child_writes_survives_the_parents_close(store: Store, shared_url: str) -> None:
    """The parent closes its store and its last connection; the child's writes are all kept."""
    session = store.session("s")
    _say(session, "parent")
    store.backend.wait(-1, 0)  # Now it has a connection of every kind.

    def work(fork: _Fork) -> str:
        _say(session, "child 1")
        fork.report("written")
        fork.await_order()
        _say(session, "child 2")
        assert _ids(session) == ["parent", "child 1", "child 2"]
        return "ok"

    with _forked(work) as child:
        assert child.hear() == "written"
        store.close()
        child.order()
        assert child.hear() == "ok"
    with holdfast.open(shared_url) as again:
        assert _ids(again.session("s")) == ["parent", "child 1", "child 2"]
        assert again.verify() == []


def test_what_the_parent_writes_survives_the_childs_close(store: Store) -> None:
    """The child closes the store it inherited; the parent does not notice."""
    session = store.session("s")
    _say(session, "before")

    def work(_: _Fork) -> str:
        _say(session, "child")
        store.close()
        return "ok"

    with _forked(work) as child:
        assert child.hear() == "ok"
        _say(session, "after")
    assert _ids(session) == ["before", "child", "after"]
    assert store.verify() == []


def test_the_parents_lock_is_not_released_by_the_child(store: Store) -> None:
    """Forked while a thread is in the middle of a write, the child writes after it.

    Whether the fork itself or the child waits for that write is not specified.
    """
    session = store.session("s")
    inside = threading.Event()

    def stand_still(_: object) -> None:
        inside.set()
        time.sleep(0.3)

    writer = threading.Thread(target=store.backend.write, args=(stand_still,))
    writer.start()
    inside.wait(_PATIENCE)

    def work(fork: _Fork) -> str:
        fork.report("alive")
        return _say(session, "child")

    with _forked(work) as child:
        assert child.hear() == "alive"
        assert child.hear() == "ok"
    writer.join()
    _say(session, "parent")
    assert _ids(session) == ["child", "parent"]
    assert store.verify() == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def _is_free(path: Path) -> bool:
    """True if another process could write to this store now."""
    turnstile = ProcessLock(path)
    try:
        return turnstile.try_acquire()
    finally:
        turnstile.close()


@contextmanager
def _writing(store: Store) -> Iterator[None]:
    """Hold a write open in another thread."""
    inside, done = threading.Event(), threading.Event()

    def stand_still(_: object) -> None:
        inside.set()
        done.wait(_PATIENCE)

    writer = threading.Thread(target=store.backend.write, args=(stand_still,))
    writer.start()
    assert inside.wait(_PATIENCE)
    try:
        yield
    finally:
        done.set()
        writer.join()


def test_a_child_that_lets_go_of_its_parents_lock_does_not_unlock_it(path: Path) -> None:
    """Forked in the middle of a write that outlasts the deadline, it has a locked file."""
    with holdfast.open(with_options(f"sqlite:///{path}", deadline=0.05)) as store:
        with _writing(store), _forked(lambda _: "alive") as child:
            assert child.hear() == "alive"
            assert not _is_free(path)
        assert _is_free(path)


def test_a_child_waits_for_its_parents_writes(path: Path) -> None:
    """Its lock is one of its own: it neither enters beside the parent nor lets others enter."""
    with holdfast.open(with_options(f"sqlite:///{path}", deadline=0.05)) as store:
        session = store.session("s")

        def work(fork: _Fork) -> str:
            fork.await_order()
            with pytest.raises(StoreUnavailable, match="another process held the store's lock"):
                _say(session, "child")
            return "refused"

        with _forked(work) as child, _writing(store):
            child.order()
            assert child.hear() == "refused"
            assert not _is_free(path)
        assert _ids(session) == []


def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(path: Path) -> None:
    """Its parent was killed during a write and the child still runs: other processes can write."""
    holdfast.open(path).close()
    over, end = os.pipe()

    def live_on(fork: _Fork) -> str:
        fork.report("alive")
        os.read(over, 1)
        return "over"

    def be_killed(fork: _Fork) -> str:
        os.close(end)
        with holdfast.open(path) as store, _forked(live_on) as child, _writing(store):
            assert child.hear() == "alive"
            fork.report("writing")
            fork.await_order()
        return "not killed"

    try:
        with _forked(be_killed) as parent:
            assert parent.hear() == "writing"
            assert not _is_free(path)
        assert _is_free(path)
    finally:
        os.close(end)
        os.close(over)


def test_a_child_whose_store_is_gone_gets_an_error(tmp_path: Path) -> None:
    """It has no lock file to open: the store is closed in the child, and works in the parent."""
    folder = tmp_path / "folder"
    with holdfast.open(folder / "store.db") as store:
        session = store.session("s")
        folder.rename(tmp_path / "elsewhere")

        def work(_: _Fork) -> str:
            for attempt in (lambda: _ids(session), lambda: _say(session, "child")):
                with pytest.raises(StoreUnavailable, match="the store is closed"):
                    attempt()
            store.close()
            return "ok"

        with _forked(work) as child:
            assert child.hear() == "ok"
        (tmp_path / "elsewhere").rename(folder)
        _say(session, "parent")
        assert _ids(session) == ["parent"]


@contextmanager
def _about_to_fork(store: Store) -> Iterator[None]:
    assert isinstance(store.backend, SQLiteBackend)
    store.backend.before_fork()
    try:
        yield
    finally:
        store.backend.after_fork_in_parent()


def _open_files(path: Path) -> set[str]:
    """Return the suffixes of the files of a store that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            name = str(descriptor.readlink())
            if name.startswith(str(path)):
                found.add(name.removeprefix(str(path)))
    return found


@_linux
def test_no_connection_is_open_at_a_fork(path: Path) -> None:
    """No writer, reader or watcher connection: of the store's files only the locks are open."""
    with holdfast.open(path) as store:
        _say(store.session("s"), "before")
        store.backend.wait(-1, 0)
        assert _open_files(path) == {"", "-wal", "-shm", "-lock", "-queue"}
        with _about_to_fork(store):
            assert _open_files(path) == {"-lock", "-queue"}
        _say(store.session("s"), "after")


@_linux
def test_a_fork_waits_for_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connections would be open in the child, which then takes no lock against its parent."""
    inside, waited_for = threading.Event(), threading.Event()
    wait_for = threading.Condition.wait_for

    def note(
        condition: threading.Condition, predicate: Callable[[], bool], timeout: float | None = None
    ) -> bool:
        waited_for.set()
        return wait_for(condition, predicate, timeout)

    def stand_still(_: object) -> None:
        inside.set()
        waited_for.wait(_PATIENCE)

    with holdfast.open(with_options(f"sqlite:///{path}", deadline=_PATIENCE)) as store:
        reader = threading.Thread(target=store.backend.read, args=(stand_still,))
        reader.start()
        assert inside.wait(_PATIENCE)
        monkeypatch.setattr(threading.Condition, "wait_for", note)
        try:
            with _about_to_fork(store):
                assert _open_files(path) == {"-lock", "-queue"}
        finally:
            waited_for.set()
            reader.join()


def test_children_forked_while_a_thread_writes_can_write(store: Store) -> None:
    """Ten forks at random times of another thread's writes: no child hangs or is refused."""
    session, busy = store.session("s"), store.session("busy")
    done = threading.Event()
    written: list[str] = []

    def keep_writing() -> None:
        while not done.is_set():
            id_ = f"m{len(written)}"
            _say(busy, id_)
            written.append(id_)
            busy.messages(limit=5)

    answers = []
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(keep_writing)
        for number in range(10):
            with _forked(partial(_say_as, session, f"child {number}")) as child:
                answers.append(child.hear())
        done.set()
        writer.result()
    assert answers == ["ok"] * 10
    assert _ids(session) == [f"child {number}" for number in range(10)]
    assert _ids(busy) == written
    assert store.verify() == []


def test_what_the_child_writes_is_noticed_by_the_parent(store: Store) -> None:
    """After a fork the parent reads the number of changes again."""
    session = store.session("s")
    seen = store.backend.wait(-1, 0)
    with _forked(partial(_say_as, session, "child")) as child:
        assert child.hear() == "ok"
    assert store.backend.wait(seen, _PATIENCE) != seen


def test_the_child_has_a_background_of_its_own(store: Store) -> None:
    """A reply streamed in the child is flushed by the timer there, and so survives its kill."""
    warm_up = store.session("parent")
    with warm_up.turn() as turn:
        turn.user("the parent's background is running")
    session = store.session("s")

    def work(fork: _Fork) -> str:
        with session.turn() as turn:
            reply = turn.stream()
            reply.write("never flushed by hand")
            fork.report(reply.id)
            fork.await_order()
        return "ok"

    with _forked(work) as child:
        reply = child.hear()
        _await_flush(store, session)
    recovered = session.recover()
    assert recovered is not None
    assert recovered.partial is not None
    assert (recovered.partial.id, recovered.partial.text) == (reply, "never flushed by hand")


def _await_flush(store: Store, session: Session) -> None:
    """Wait until the draft of its first turn has more than its opening record."""
    n = number_of(session)
    deadline = time.monotonic() + _PATIENCE
    while len(store.backend.read(lambda snapshot: snapshot.draft(n, 1))) < 2:
        assert time.monotonic() < deadline, "the timer has not flushed anything"
        time.sleep(0.05)
