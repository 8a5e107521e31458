"""A process that moves, forks and purges at random is killed at random, again and again.

It reports each operation before it runs it, and how it ended (see `_wandering`). The test repeats
the operations on a store in memory. After each kill the file must be intact and equal the store in
memory, with or without the operation that was in progress.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Store
from tests.crash._facts import DATABASE, open_store
from tests.crash._messages import message
from tests.crash._nursery import Nursery
from tests.crash._scenes import look
from tests.crash._wandering import Deed, outcome

ROOT = Path(__file__).parents[2]
CHILD = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.crash._wandering import main; "


def _listen(nursery: Nursery, path: Path, name: str, lines: int, seconds: float) -> list[str]:
    """Run a process; kill it some time after it printed this many lines; return its output.

    So the amount of work does not depend on the machine's load.
    """
    with nursery.start(CHILD + "main()", ROOT, path, name) as child:
        first = "".join(child.stdout.readline() for _ in range(lines))
        time.sleep(seconds)
        child.kill()
        rest = child.stdout.read()
        assert child.wait() == -signal.SIGKILL
    whole = (first + rest).rpartition("\n")[0]
    return whole.splitlines()


class _Twin:
    """The store in memory that must equal the file."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.done: Counter[str] = Counter()
        self.in_doubt: Counter[str] = Counter()

    def follow(self, said: list[str]) -> Deed | None:
        """Do what was said to be done; give what was begun and perhaps not done."""
        for begun, ended in zip(said[::2], said[1::2], strict=False):
            deed = msgspec.json.decode(begun, type=Deed)
            assert outcome(self._store, deed) == ended, deed
            self.done[deed.do] += ended == "done"
        return msgspec.json.decode(said[-1], type=Deed) if len(said) % 2 else None

    def must_look_like(self, found: str, in_doubt: Deed | None) -> None:
        """Compare the views; run the operation in doubt here, too, if the file has it."""
        if look(self._store) == found and in_doubt is None:
            return
        if look(self._store) != found:
            assert in_doubt is not None, "something else than was acknowledged"
            self.in_doubt[outcome(self._store, in_doubt)] += 1
            assert look(self._store) == found, f"neither with nor without {in_doubt}"
        else:
            self.in_doubt["not there"] += 1


def _wander(nursery: Nursery, path: Path, lives: int, seed: int) -> _Twin:
    """Run and kill a process this many times, and compare each time."""
    chance = random.Random(seed)
    with holdfast.open("memory:") as store:
        twin = _Twin(store)
        for life in range(lives):
            lines, seconds = chance.randint(1, 80), chance.uniform(0.0, 0.02)
            said = _listen(nursery, path, f"{seed}.{life}", lines, seconds)
            in_doubt = twin.follow(said)
            with open_store(path) as found:
                assert found.verify() == []
                twin.must_look_like(look(found), in_doubt)
    return twin


def test_what_was_acknowledged_before_a_kill_is_there_and_nothing_else(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Five lives; what was under way when one ended is there or is not."""
    twin = _wander(nursery, tmp_path / DATABASE, 5, seed=1)
    assert twin.done.total() > 30
    assert len(twin.done) > 6


def test_a_summary_of_a_summary_looks_the_same_in_two_stores() -> None:
    """It covers a message with a generated id, which differs in each store."""
    assert _summary_of_a_summary(3) == _summary_of_a_summary(3) != _summary_of_a_summary(2)


def _summary_of_a_summary(upto: int) -> str:
    with holdfast.open("memory:") as store:
        session = store.session("talk")
        session.append(message("user-1"), message("user-2"))
        session.summarize("in short")
        session.summarize("shorter", upto=upto)
        return look(store)


# ------------------------------------------------------------------------------ several at once


def _crowd(nursery: Nursery, path: Path, names: list[str], lines: int) -> int:
    """Run several processes on one store, kill all at once, verify; return the work done."""
    with ThreadPoolExecutor(len(names)) as pool:
        lives = [pool.submit(_listen, nursery, path, name, lines, 0.0) for name in names]
        said = [life.result() for life in lives]
    with open_store(path) as store:
        assert store.verify() == []
        look(store)
        for info in store.sessions(limit=100):
            store.get(info.id).append(message(f"user-after-{info.id}"))
        assert store.verify() == []
    return sum(ended.count("done") for ended in said)


def test_several_that_purge_and_write_at_once_leave_a_whole_store(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Bytes are wiped in pages while others write to them; nothing in use is changed."""
    path = tmp_path / DATABASE
    done = [_crowd(nursery, path, [f"{life}{who}" for who in "abc"], 80) for life in "xy"]
    assert sum(done) > 30


@pytest.mark.long
def test_several_that_purge_and_write_at_once_leave_a_whole_store_for_long(
    nursery: Nursery, tmp_path: Path
) -> None:
    """The same, often."""
    for life in range(30):
        _crowd(nursery, tmp_path / DATABASE, [f"{life}{who}" for who in "abcd"], 300)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_what_was_acknowledged_before_a_kill_is_there_in_many_lives(
    nursery: Nursery, tmp_path: Path, seed: int
) -> None:
    """The same, often enough that kills meet everything."""
    twin = _wander(nursery, tmp_path / DATABASE, 30, seed)
    assert len(twin.done) == len([name for name in twin.done if twin.done[name]])
    assert twin.in_doubt["done"], "no kill came between a commit and its word"
