"""What is erased is gone from the index, too: no file next to the store has a byte of it.

Words are kept in the index in lower case and without the beginning that they share with the word
before them, so it is the middle of a word like no other that is looked for.
"""

import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

import holdfast
from holdfast import Message, Session, Store, Text, Thinking, ToolCall
from holdfast.context import StoreContext
from holdfast.erasure import Erasure
from holdfast.errors import OutcomeUnknown
from holdfast.operations.erase import erase
from holdfast.search import index_file
from holdfast.search.fts5 import IndexFile
from holdfast.session import number_of
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Operation
from holdfast.testing.conformance.fixtures import run_concurrently
from holdfast.values import Scan
from tests.crash._bytes import filled_gaps
from tests.search.contest import LONG, Contest
from tests.search.corpora import message

T = TypeVar("T")
_CANARY = "Qzxcanary"
_DIES = """
import os, signal, sys, holdfast
from holdfast.search.index_erasure import Eraser
from holdfast.search.fts5 import IndexFile
store = holdfast.open(sys.argv[1])
kill = lambda self: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "before the index forgets":
    Eraser.finish = kill
else:
    IndexFile.wipe = kill
store.purge("doomed")
"""

_PAUSES = """
import sys, holdfast
from holdfast.search.index_erasure import Eraser
def say(what):
    print(what, flush=True)
    sys.stdin.readline()
store, finish = holdfast.open(sys.argv[1]), Eraser.finish
def paused(self):
    say("written")
    finish(self)
Eraser.finish = paused
say("open")
store.purge("doomed")
say("finished")
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in whose index the words of the session to be purged are everywhere."""
    path, rnd = tmp_path_factory.mktemp("base") / "agent.db", random.Random(3)
    with holdfast.open(path) as store:
        sessions = [store.session("doomed"), *(store.session(f"talk-{n}") for n in range(5))]
        for number in range(300):
            session = rnd.choice(sessions)
            said = [message(rnd)]
            if session.key == "doomed":
                said.append(_doomed(number))
            session.append(*said)
            if number % 37 == 0:
                store.search("red")
        store.search("red")
        assert store.index_status().state == "ready"
    return path


def _doomed(number: int) -> Message:
    name = f"{_CANARY}{number}"
    return Message.assistant(
        [Text(f"{name} and {_CANARY}IsSaid"), Thinking(f"{name}thought {_CANARY}")],
        tool_calls=[ToolCall("call", f"{name}_tool", {name: [name]})],
        id=f"message-{number}",
    )


@pytest.fixture
def path(base: Path, tmp_path: Path) -> Path:
    for file in base.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return tmp_path / "agent.db"


def _holding(path: Path) -> set[str]:
    """Return the files that contain a canary."""
    needle = _CANARY[1:].lower().encode()
    return {file.name for file in path.parent.iterdir() if needle in file.read_bytes().lower()}


def _must_be_gone(store: Store, path: Path) -> None:
    assert _holding(path) == set()
    for text in (_CANARY, f"{_CANARY}IsSaid", "zxcanary*", f"{_CANARY}*"):
        for thinking in (False, True):
            assert len(store.search(text, thinking=thinking, all_branches=True)) == 0
    assert _holding(path) == set()


def _index_files_holding(path: Path) -> set[str]:
    """Return those of them that belong to an index."""
    return {name for name in _holding(path) if "-search" in name}


def _die(path: Path, when: str = "before the index forgets") -> None:
    """Kill a process that purges the session; the words are still in the index."""
    done = subprocess.run([sys.executable, "-c", _DIES, str(path), when], check=False)
    assert done.returncode == -signal.SIGKILL
    assert _index_files_holding(path)


def _documents(path: Path) -> int:
    file = IndexFile(path.with_name("agent.db-search"))
    try:
        return file.message_count()
    finally:
        file.close()


def test_the_canary_is_in_both_files(path: Path) -> None:
    assert _holding(path) == {"agent.db", "agent.db-search"}


def test_a_purge(path: Path) -> None:
    """The rest of the index stays: it is not rebuilt."""
    before = _documents(path)
    with holdfast.open(path) as store:
        doomed = store.get("doomed").info().messages
        assert store.purge("doomed").pending == ()
        assert _documents(path) == before - doomed
        _must_be_gone(store, path)
        assert store.index_status().state == "ready"
        assert store.check_index() == []
    assert _holding(path) == set()


def test_a_purge_that_takes_from_forks(path: Path) -> None:
    with holdfast.open(path) as store:
        fork = store.get("doomed").fork()
        fork.append(_doomed(1000))
        store.search("red")
        store.purge(fork.id)
        store.purge("doomed", forks="erase")
        _must_be_gone(store, path)
        assert store.index_status().state == "ready"


def test_a_purge_that_leaves_something_to_forks(path: Path) -> None:
    """It is found there, and is erased with the last of them."""
    with holdfast.open(path) as store:
        fork = store.get("doomed").fork()
        store.search("red")
        store.purge("doomed")
        (hit,) = store.search(f"{_CANARY}IsSaid")
        assert hit.session_id == fork.id
        store.purge(fork.id)
        _must_be_gone(store, path)


def test_one_message(path: Path) -> None:
    before = _documents(path)
    with holdfast.open(path) as store:
        session = store.get("doomed")
        named = [item.id for item in session.messages() if item.id.startswith("message-")]
        assert len(named) > 10
        for number, name in enumerate(named):
            assert len(store.search(f"{_CANARY}*", session="doomed", limit=1000)) == (
                len(named) - number
            )
            session.erase(name)
        _must_be_gone(store, path)
        assert _documents(path) == before
        assert store.index_status().state == "ready"


def test_by_a_process_that_does_not_search(path: Path) -> None:
    """Nor is what it appended in the index yet."""
    with holdfast.open(path) as store:
        store.get("doomed").append(_doomed(2000))
        store.purge("doomed")
    assert _holding(path) == set()
    with holdfast.open(path) as store:
        _must_be_gone(store, path)


def test_while_another_process_has_the_index_open(path: Path) -> None:
    with holdfast.open(path) as other, holdfast.open(path) as store:
        assert len(other.search(f"{_CANARY}*")) == 1
        store.purge("doomed")
        _must_be_gone(other, path)
        _must_be_gone(store, path)
        other.session("talk-0").append(Message.user("red again"))
        assert len(other.search("red again")) == 1
        assert _holding(path) == set()


def test_so_much_that_the_index_goes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.search.index_erasure._MAX_MESSAGES", 3)
    with holdfast.open(path) as store:
        store.purge("doomed")
        assert not path.with_name("agent.db-search").exists()
        assert _holding(path) == set()
        _must_be_gone(store, path)
        assert store.index_status().state == "ready"


def test_the_engine_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the whole index is removed, and the purge succeeds."""

    def fail(self: IndexFile, docs: object) -> None:
        raise OSError

    monkeypatch.setattr(IndexFile, "erase", fail)
    with holdfast.open(path) as store:
        assert store.purge("doomed").pending == ()
        _must_be_gone(store, path)


def test_a_damaged_index(path: Path) -> None:
    index = path.with_name("agent.db-search")
    data = bytearray(index.read_bytes())
    for place in range(100, len(data), 4096):
        data[place] ^= 1
    index.write_bytes(data)
    with holdfast.open(path) as store:
        store.purge("doomed")
        assert _holding(path) == set()
        _must_be_gone(store, path)


def test_killed_before_the_index_forgets(path: Path) -> None:
    """It is removed when the store is next opened for writing."""
    _die(path)
    with holdfast.open(path, readonly=True) as store:
        assert len(store.search(f"{_CANARY}*")) == 0
    with holdfast.open(path) as store:
        assert _holding(path) == set()
        _must_be_gone(store, path)


_NEXT: dict[str, Callable[[Store], object]] = {
    "search": lambda store: store.search("red"),
    "catch up": lambda store: store.catch_up_index(),
    "erase": lambda store: store.session("talk-0").erase(1),
}


@pytest.mark.parametrize("act", _NEXT)
def test_killed_while_another_process_has_the_index_open(path: Path, act: str) -> None:
    """Whatever that process next does with the index removes the words from it."""
    with holdfast.open(path) as store:
        store.search("red")
        _die(path)
        _NEXT[act](store)
        assert _index_files_holding(path) == set()
        assert len(store.search("red", limit=1000)) > 0
        assert store.index_status().state == "ready"
        assert store.check_index() == []


def test_killed_before_it_wipes_while_another_process_has_the_index_open(path: Path) -> None:
    """The next erasure of that process wipes the index for both."""
    with holdfast.open(path) as store:
        store.search("red")
        _die(path, "before the index is wiped")
        store.session("talk-0").erase(1)
        assert _index_files_holding(path) == set()


@pytest.mark.parametrize("when", ["before the index forgets", "before the index is wiped"])
def test_killed_before_another_tenant_purges(path: Path, when: str) -> None:
    """That purge does not touch the index: the words go when the store is next opened."""
    with holdfast.open(path, tenant="other") as other:
        other.session("k").append(Message.user("x"))
        _die(path, when)
        assert other.purge("k").pending == ()
    with holdfast.open(path) as store:
        assert _holding(path) == set()
        _must_be_gone(store, path)


class _Pausing:
    """A process that purges the session and pauses before its index removes the words."""

    def __init__(self, path: Path) -> None:
        command, pipe = [sys.executable, "-c", _PAUSES, str(path)], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def open(self) -> None:
        """Wait until it has opened the store."""
        self._await("open")

    def write(self) -> None:
        """Let it purge the session in the log."""
        self._go_on()
        self._await("written")

    def finish(self) -> None:
        """Let it finish."""
        self._go_on()
        self._await("finished")

    def _go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")

    def _await(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"


@pytest.fixture
def pausing(path: Path) -> Iterator[_Pausing]:
    child = _Pausing(path)
    with child.process:
        child.open()
        yield child
        child.process.kill()


def test_killed_while_another_process_wipes(
    path: Path, pausing: _Pausing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that wipes its own erasure does not complete that of the other one."""
    with holdfast.open(path) as store:
        scrub = store.backend.wipe

        def once_the_other_has_written() -> tuple[str, ...]:
            pausing.write()
            return scrub()

        monkeypatch.setattr(store.backend, "wipe", once_the_other_has_written)
        assert store.session("talk-0").erase(1).pending == ()
        pausing.process.kill()
    assert _index_files_holding(path)
    with holdfast.open(path) as store:
        assert _holding(path) == set()
        _must_be_gone(store, path)


def test_while_another_process_erases_and_does_not_come_to_an_end(
    path: Path, pausing: _Pausing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole index is removed under that process, which notices and finishes anyway."""
    monkeypatch.setattr("holdfast.search.manager._LOCK_TIMEOUT_S", 0.1)
    with holdfast.open(path) as store:
        session = store.session("talk-0")
        session.append(_doomed(3000))
        store.search("red")
        pausing.write()
        session.erase("message-3000")
        assert _index_files_holding(path) == set()
        pausing.finish()
        assert _holding(path) == set()
        _must_be_gone(store, path)
        assert store.index_status().state == "ready"


def test_refused(path: Path) -> None:
    """A purge that fails changes nothing."""
    with holdfast.open(path) as store:
        session = store.get("doomed")
        with session.turn(), pytest.raises(holdfast.errors.SessionBusy):
            store.purge("doomed")
        assert len(store.search(f"{_CANARY}*")) == 1
        assert store.index_status().state == "ready"


def test_while_others_search_and_append(path: Path) -> None:
    """All operations succeed, and no word remains."""
    failed: list[BaseException] = []
    stop = threading.Event()

    def search(store: Store) -> None:
        try:
            while not stop.is_set():
                store.search("red")
                store.session("talk-1").append(Message.user("red once more"))
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    with holdfast.open(path) as store, holdfast.open(path) as other:
        threads = [threading.Thread(target=search, args=(of,)) for of in (store, other)]
        for thread in threads:
            thread.start()
        try:
            store.purge("doomed")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failed == []
        _must_be_gone(store, path)
        _must_be_gone(other, path)


# ------------------------------------------------- something else goes than was read before


Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Calls a function when the next erasure has read what it will erase, before its write."""
    waiting: list[Callable[[], object]] = []
    surround = StoreContext.erasing

    @contextmanager
    def erasing(runtime: StoreContext, doomed: Sequence[Segment] | None) -> Iterator[None]:
        if waiting:
            waiting.pop()()
        with surround(runtime, doomed):
            yield

    monkeypatch.setattr(StoreContext, "erasing", erasing)
    return waiting.append


def _copied(store: Store, fork: Session) -> None:
    """Store the messages of a fork again, and index them."""
    fork.replace([Message.system("red and new"), *fork.messages()])
    store.search("red")


def test_a_purge_while_a_fork_is_made(path: Path, meanwhile: Meanwhile) -> None:
    """What is preserved for the fork is found there."""
    with holdfast.open(path) as store, holdfast.open(path) as other:
        session, forks = store.get("doomed"), list[Session]()
        meanwhile(lambda: forks.append(other.get("doomed").fork(20)))
        report = store.purge(session.id)
        [fork] = forks
        assert (report.kept, report.kept_for) == (20, (fork.id,))
        said = sum(_CANARY in found.text for found in fork.messages())
        assert said > 1
        assert len(store.search(f"{_CANARY}*", session=fork.id, limit=1000)) == said


def test_a_purge_that_takes_from_forks_while_one_copies(path: Path, meanwhile: Meanwhile) -> None:
    """The words of the copies go, too."""
    with holdfast.open(path) as store, holdfast.open(path) as other:
        fork = other.get("doomed").fork()
        meanwhile(lambda: _copied(other, fork))
        store.purge("doomed", forks="erase")
        assert _holding(path) == set()
        _must_be_gone(store, path)


def test_one_message_while_it_is_copied(path: Path, meanwhile: Meanwhile) -> None:
    """The words of the copy go, too."""
    with holdfast.open(path) as store, holdfast.open(path) as other:
        store.purge("doomed")
        session = store.get("talk-0")
        session.append(_doomed(3000))
        fork = other.get("talk-0").fork()
        meanwhile(lambda: _copied(other, fork))
        assert session.erase("message-3000").places == 2
        assert _index_files_holding(path) == set()


def test_emptying_the_trash_while_a_relative_is_purged(path: Path, meanwhile: Meanwhile) -> None:
    """What only these two shared is erased with the second, and so are its words."""
    with holdfast.open(path) as store, holdfast.open(path) as other:
        forks = [store.get("doomed").fork() for _ in range(2)]
        store.purge("doomed")
        store.search("red")
        assert _index_files_holding(path)
        store.trash(forks[0].id)
        plan = store.retention(empty_trash="0h")
        meanwhile(lambda: other.purge(forks[1].id))
        assert store.apply(plan).purged == (forks[0].id,)
        assert _holding(path) == set()
        _must_be_gone(store, path)


# ------------------------------------------------------------------------------- several at once


@pytest.fixture
def contest(monkeypatch: pytest.MonkeyPatch) -> Contest:
    return Contest(monkeypatch)


@pytest.fixture
def kept(path: Path) -> Path:
    """A second name of the index file: another one in its place has to be another file."""
    second = path.with_name("kept")
    second.hardlink_to(path.with_name("agent.db-search"))
    return second


@pytest.mark.parametrize("stores", [1, 2])
def test_two_at_once(path: Path, contest: Contest, stores: int) -> None:
    """Threads, and processes: the second waits for the index, which loses the words of both."""
    with holdfast.open(path) as one, holdfast.open(path) as another:
        session = (one, another)[stores - 1].get("talk-0")
        session.append(_doomed(3000))
        one.search("red")
        contest.pause(one)
        contest.run(lambda: one.purge("doomed"), lambda: session.erase("message-3000"))
        assert contest.refused == []
        _must_be_gone(one, path)
        _must_be_gone(another, path)
        assert one.check_index() == []


def test_one_that_is_under_way_in_another_thread_is_not_settled(
    path: Path, contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that wiping is pending stays until the words are out of the index."""
    begin, left = threading.Event(), list[set[str]]()
    settle = Erasure.wipe_and_scan
    with holdfast.open(path) as store:
        scrub = store.backend.wipe

        def once_the_other_has_written(erasure: Erasure) -> tuple[tuple[str, ...], Scan]:
            if not begin.is_set():
                contest.pause(store)
                begin.set()
                assert contest.written.wait(LONG)
            return settle(erasure)

        def scrubbed() -> tuple[str, ...]:
            left.append(_index_files_holding(path))
            contest.met.set()
            return scrub()

        def purge() -> None:
            assert begin.wait(LONG)
            store.purge("doomed")

        monkeypatch.setattr(Erasure, "wipe_and_scan", once_the_other_has_written)
        monkeypatch.setattr(store.backend, "wipe", scrubbed)
        run_concurrently(lambda: store.session("talk-0").erase(1), purge)
    assert left == [set(), set()]


def test_somebody_who_knows_of_no_index_erases_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the state of the index is unknown, and it is removed as a whole."""
    with holdfast.open(path) as store, holdfast.open(path) as other:
        session = other.get("talk-0")
        session.append(_doomed(3000))
        store.search("red")
        write = store.backend.write

        def beside(verb: Operation[T], *, exclusive: bool = False) -> T:
            other.backend.write(erase(number_of(session), "message-3000", None))
            return write(verb, exclusive=exclusive)

        monkeypatch.setattr(store.backend, "write", beside)
        assert store.purge("doomed").pending == ()
        assert _holding(path) == set()
        _must_be_gone(store, path)


def test_a_commit_before_the_index_is_wiped_does_not_bring_bytes_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the log, where it put pages as they were: the unused middle of all is empty."""
    index, empty_log = path.with_name("agent.db-search"), index_file.truncate_wal

    def commit() -> None:
        with closing(index_file.connect(index, readonly=False)) as other:
            for change in (1, -1):
                other.execute("UPDATE docs SET at = at + ?", (change,))

    waiting = [commit]

    def emptied(connection: apsw.Connection) -> bool:
        done = empty_log(connection)
        if waiting:
            waiting.pop()()
        return done

    monkeypatch.setattr(index_file, "truncate_wal", emptied)
    with holdfast.open(path) as store:
        assert store.purge("doomed").pending == ()
    assert filled_gaps(index) == []


def test_what_is_wiped_is_synced_before_the_note_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the index and in the store's own file: a power cut does not bring the words back."""
    done: list[str] = []

    class RecordedFile(apsw.VFSFile):
        def __init__(self, vfs: str, name: str, flags: list[int]) -> None:
            super().__init__(vfs, name, flags)
            self._name = Path(name).name

        def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
            super().xWrite(data, offset)
            done.append(f"write {self._name}")

        def xSync(self, flags: int) -> None:  # noqa: N802
            super().xSync(flags)
            done.append(f"sync {self._name}")

    with holdfast.open(path) as store:
        monkeypatch.setattr(apsw, "VFSFile", RecordedFile)
        store.purge("doomed")
    assert [step for step in dict.fromkeys(done) if not step.endswith("-wal")] == [
        "write agent.db-search",
        "sync agent.db-search",
        "write agent.db",
        "sync agent.db",
    ]


def test_an_erasure_that_erases_nothing_leaves_the_index(path: Path, kept: Path) -> None:
    with holdfast.open(path) as store:
        store.purge(store.create().id)
        assert kept.samefile(path.with_name("agent.db-search"))
        assert store.index_status().state == "ready"


def test_an_erasure_of_which_nobody_knows_whether_it_was_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it was, its words are not in the index."""
    with holdfast.open(path) as store:
        store.search("red")
        write = store.backend.write

        def doubtful(verb: Operation[T], *, exclusive: bool = False) -> T:
            write(verb, exclusive=exclusive)
            raise OutcomeUnknown("the answer was lost")

        monkeypatch.setattr(store.backend, "write", doubtful)
        with pytest.raises(OutcomeUnknown):
            store.purge("doomed")
        assert _index_files_holding(path) == set()


def test_the_index_was_deleted_and_made_anew_meanwhile(path: Path) -> None:
    """The words go from the file that is there, not from the one that was."""
    with holdfast.open(path) as store:
        store.session("talk-1").append(Message.user("red for the index"))
        store.search("red")
        for file in path.parent.glob("agent.db-search*"):
            file.unlink()
        with holdfast.open(path) as other:
            other.search("red")
        assert _index_files_holding(path)
        store.purge("doomed")
        assert _holding(path) == set()
