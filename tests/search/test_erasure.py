"""What is erased is gone from the index, too: no file beside the store has a byte of it.

Words are kept in the index in lower case and without the beginning that they share with the word
before them, so it is the middle of a word like no other that is looked for.
"""

import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store, Text, Thinking, ToolCall
from holdfast.index.file import IndexFile
from tests.search.corpora import message

_CANARY = "Qzxcanary"
_DIES = """
import os, signal, sys, holdfast
from holdfast.index.erasing import Eraser
store = holdfast.open(sys.argv[1])
Eraser.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
store.purge("doomed")
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in whose index the words of a doomed session are everywhere."""
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
    """Name the files that hold a canary."""
    needle = _CANARY[1:].lower().encode()
    return {file.name for file in path.parent.iterdir() if needle in file.read_bytes().lower()}


def _must_be_gone(store: Store, path: Path) -> None:
    assert _holding(path) == set()
    for text in (_CANARY, f"{_CANARY}IsSaid", "zxcanary*", f"{_CANARY}*"):
        for thinking in (False, True):
            assert len(store.search(text, thinking=thinking, all_branches=True)) == 0
    assert _holding(path) == set()


def _documents(path: Path) -> int:
    file = IndexFile(path.with_name("agent.db-search"))
    try:
        return file.documents()
    finally:
        file.close()


def test_the_canary_is_in_both_files(path: Path) -> None:
    assert _holding(path) == {"agent.db", "agent.db-search"}


def test_a_purge(path: Path) -> None:
    """The rest of the index stays: nothing is made anew."""
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
    """It is found there, and goes with the last of them."""
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
    monkeypatch.setattr("holdfast.index.erasing._MOST", 3)
    with holdfast.open(path) as store:
        store.purge("doomed")
        assert not path.with_name("agent.db-search").exists()
        assert _holding(path) == set()
        _must_be_gone(store, path)
        assert store.index_status().state == "ready"


def test_the_engine_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the index goes as a whole, and the purge went through."""

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
    """It goes when the store is next opened to be written to."""
    done = subprocess.run([sys.executable, "-c", _DIES, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert "agent.db-search" in _holding(path)
    with holdfast.open(path, readonly=True) as store:
        assert len(store.search(f"{_CANARY}*")) == 0
    with holdfast.open(path) as store:
        assert _holding(path) == set()
        _must_be_gone(store, path)


def test_refused(path: Path) -> None:
    """A purge that does not happen changes nothing."""
    with holdfast.open(path) as store:
        session = store.get("doomed")
        with session.turn(), pytest.raises(holdfast.errors.SessionBusy):
            store.purge("doomed")
        assert len(store.search(f"{_CANARY}*")) == 1
        assert store.index_status().state == "ready"


def test_while_others_search_and_append(path: Path) -> None:
    """Everybody is served, and nothing is left."""
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
