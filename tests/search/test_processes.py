"""Several processes and one index: killed while they index, at it at once, forked."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store
from tests.search.corpora import message

_INDEXES = """
import sys, holdfast
from holdfast.index import catching_up
catching_up._STEP_MESSAGES = 20
with holdfast.open(sys.argv[1]) as store:
    print("begun", flush=True)
    for _ in range(int(sys.argv[2])):
        store.rebuild_index()
"""
_SEARCHES = """
import sys, holdfast
from holdfast.index import catching_up
catching_up._STEP_MESSAGES = 20
with holdfast.open(sys.argv[1]) as store:
    for number in range(60):
        session = store.session(f"{sys.argv[2]}-{number % 4}")
        word = f"{sys.argv[2]}x{number}"
        session.append(holdfast.Message.user(f"needle {word}"))
        (hit,) = store.search(word)
        assert hit.snippet == f"needle {word}", hit
"""


def _fill(store: Store, messages: int) -> None:
    rnd = random.Random(9)
    for number in range(messages // 100):
        session = store.session(f"talk-{number}")
        session.append(*(message(rnd) for _ in range(99)), Message.user(f"needle n{number}"))


def _run(script: str, *words: object) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def _must_be_right(store: Store, talks: int) -> None:
    for number in range(talks):
        (hit,) = store.search(f"n{number}")
        assert hit.snippet == f"needle n{number}"


@pytest.mark.parametrize("seed", range(6))
def test_killed_while_it_indexes(seed: int, shared_url: str, tmp_path: Path) -> None:
    """What is there is sound, and is gone on with."""
    rnd = random.Random(seed)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store, 1000)
    for _ in range(3):
        with _run(_INDEXES, shared_url, 1000) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(rnd.random() * 0.4)
            child.send_signal(signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        with holdfast.open(shared_url) as store:
            _must_be_right(store, 10)
            assert len(store.search("needle", limit=1000)) == 10
    with holdfast.open(shared_url) as store:
        _must_be_right(store, 10)
        assert store.check_index() == []
        assert store.index_status().state == "ready"
    left = list(tmp_path.glob(".*.new*"))
    for file in left:  # Somebody was killed while it began an index, long ago.
        os.utime(file, (0, 0))
    with holdfast.open(shared_url) as store:
        store.rebuild_index()
    assert not list(tmp_path.glob(".*.new*"))


def test_several_at_once(shared_url: str) -> None:
    """Each sees at once what it appended, whoever indexes it."""
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store, 1000)
        children = [_run(_SEARCHES, shared_url, name) for name in ("a", "b", "c")]
        children.append(_run(_INDEXES, shared_url, 3))
        for child in children:
            child.communicate()
            assert child.returncode == 0
        _must_be_right(store, 10)
        assert len(store.search("needle", limit=1000)) == 10 + 3 * 4
        assert store.check_index() == []
        assert store.index_status().state == "ready"


def test_across_a_fork(shared_url: str) -> None:
    """Parent and child go on, each with connections of its own."""
    with holdfast.open(shared_url) as store:
        _fill(store, 300)
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
