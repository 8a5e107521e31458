"""Several processes and one index: killed while indexing, indexing concurrently, forked."""

import json
import os
import pkgutil
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.search import indexer
from tests.concurrency.children import Child, Pipe
from tests.search.corpora import message
from tests.store_urls import await_the_end_of

_TALKS, _STEP = 10, 20
_MANY = 110  # sessions with more messages than one step indexes
# What is called when an index is made anew, the how manieth time, and whether it is done by then.
_STEPPING = [
    ("holdfast.search.indexer.step", 3, True),  # added, not committed
    ("holdfast.search.manager.IndexManager._step", 3, True),
    ("holdfast.search.manager.IndexManager.catch_up", 1, False),  # nothing of it is there yet
]
_MOMENTS = {
    "sqlite": [
        ("holdfast.search.index_file._overwrite", 1, True),  # the log of the old one
        ("holdfast.search.index_file._overwrite", 3, False),
        ("holdfast.search.index_file._overwrite", 3, True),  # the old one itself
        ("holdfast.search.index_file._build", 1, True),  # and it has no name yet
        *_STEPPING,
    ],
    "postgresql": [
        (
            "holdfast.search.tsvector.IndexTableLocation._delete_rows",
            1,
            False,
        ),  # of the old one there are only rows
        ("holdfast.search.tsvector._create", 1, True),  # not committed
        *_STEPPING,
    ],
}


class Children(list[Child]):
    """Processes that are ended with the test."""

    def start(self, *what: Any) -> Child:  # noqa: ANN401 - a function, and what it is given
        self.append(Child(*what))
        return self[-1]


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    for each in made:
        each.clear_away()


def _index(pipe: Pipe, url: str, times: int) -> None:
    indexer._BATCH_MESSAGES = _STEP  # noqa: SLF001 - so that it takes several
    with holdfast.open(url) as store:
        pipe.say("begun")
        for _ in range(times):
            store.rebuild_index()
    pipe.say("done")


def _index_until(pipe: Pipe, url: str, what: str, nth: int, behind: bool) -> None:
    """Rebuild the index, and die when a function is called."""
    name, _, last = what.rpartition(".")
    owner, calls = pkgutil.resolve_name(name), 0
    real = getattr(owner, last)

    def dying(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth and not behind:
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(*arguments, **options)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(owner, last, dying)
    _index(pipe, url, 1)


def _search(pipe: Pipe, url: str, name: str) -> None:
    indexer._BATCH_MESSAGES = _STEP  # noqa: SLF001 - so that it takes several
    with holdfast.open(url, durability="process") as store:
        for number in range(24):
            session = store.session(f"{name}-{number % 4}")
            word = f"{name}x{number}"
            session.append(Message.user(f"needle {word}"))
            (hit,) = store.search(word)
            assert hit.snippet == f"needle {word}", hit
    pipe.say("done")


def _fill(store: Store, talks: int = _TALKS) -> None:
    rnd = random.Random(9)
    for number in range(talks):
        session = store.session(f"talk-{number}")
        session.append(*(message(rnd) for _ in range(39)), Message.user(f"needle n{number}"))


def _must_be_right(store: Store, talks: int = _TALKS) -> None:
    for number in range(talks):
        (hit,) = store.search(f"n{number}")
        assert hit.snippet == f"needle n{number}"
    assert len(store.search("needle", limit=1000)) == talks


def _must_be_sound(url: str, folder: Path) -> None:
    with holdfast.open(url) as store:
        _must_be_right(store)
        assert store.check_index() == []
        assert store.index_status().state == "ready"
    left = list(folder.glob(".*.new*"))
    for file in left:  # Somebody was killed while it began an index, long ago.
        os.utime(file, (0, 0))
    with holdfast.open(url) as store:
        store.rebuild_index()
    assert not list(folder.glob(".*.new*"))


def test_killed_while_it_indexes(shared_url: str, tmp_path: Path, children: Children) -> None:
    """The partial index is sound, and is completed."""
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        store.catch_up_index()
    for what, nth, behind in _MOMENTS[shared_url.partition(":")[0]]:
        child = children.start(_index_until, shared_url, what, nth, behind)
        assert child.hear() == "begun"
        with pytest.raises(EOFError):
            child.hear()
        await_the_end_of(shared_url)
        with holdfast.open(shared_url, durability="process") as store:
            _must_be_right(store)
            assert store.check_index() == [], (what, nth)
            assert store.index_status().state == "ready", (what, nth)
    _must_be_sound(shared_url, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_killed_whenever_it_indexes(
    seed: int, shared_url: str, tmp_path: Path, children: Children
) -> None:
    """The same at a random time."""
    rnd = random.Random(seed)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
    for _ in range(3):
        child = children.start(_index, shared_url, 1000)
        assert child.hear() == "begun"
        time.sleep(rnd.random() * 0.4)
        child.kill()
        with holdfast.open(shared_url) as store:
            _must_be_right(store)
    _must_be_sound(shared_url, tmp_path)


def test_several_at_once(shared_url: str, children: Children) -> None:
    """Each finds at once what it appended, whichever process indexes it."""
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        for name in ("a", "b", "c"):
            children.start(_search, shared_url, name)
        assert children.start(_index, shared_url, 3).hear() == "begun"
        assert [child.hear() for child in children] == ["done"] * 4
        assert len(store.search("needle", limit=1000)) == _TALKS + 3 * 4
        for number in range(_TALKS):
            (hit,) = store.search(f"n{number}")
            assert hit.snippet == f"needle n{number}"
        assert store.check_index() == []
        assert store.index_status().state == "ready"


def test_across_a_fork(shared_url: str) -> None:
    """Parent and child continue, each with its own connections."""
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store, 3)
        _must_be_right(store, 3)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.session("talk-3").append(Message.user("needle n3"))
                _must_be_right(store, 4)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        _must_be_right(store, 4)
        assert store.index_status().state == "ready"


def test_several_that_index_apart_do_no_work_twice(shared_url: str) -> None:
    """Each takes the lock for one step at a time; one that waits goes on where the last ended."""
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store, _MANY)
        command = [sys.executable, "-m", "holdfast", "index", "run", "--once", "--json"]
        runs = [
            subprocess.Popen([*command, "--store", shared_url], stdout=subprocess.PIPE)
            for _ in range(3)
        ]
        found = [json.loads(process.communicate(timeout=60)[0]) for process in runs]
        assert [process.returncode for process in runs] == [0, 0, 0]
        stored = store.stats().messages
        assert {(status["state"], status["messages"]) for status in found} == {("ready", stored)}
        assert store.check_index() == []
        assert len(store.search("needle", limit=1000)) == _MANY
