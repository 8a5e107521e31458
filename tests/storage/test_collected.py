"""Stores that are dropped without being closed: their files are closed, and nothing is lost."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, codec
from holdfast.operations import append as append_operation
from holdfast.storage.protocol import Transaction


def _open_descriptors(folder: Path) -> int:
    links = Path("/proc/self/fd").iterdir()
    return sum(str(link.readlink()).startswith(str(folder)) for link in links if link.is_symlink())


def _wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_collected_stores_keep_no_descriptors(tmp_path: Path) -> None:
    for number in range(20):
        store = holdfast.open(tmp_path / f"{number}.db")
        session = store.session("talk")
        session.append(Message.user("a"))
        assert len(store.search("a").items) == 1
        del store
        session.append(Message.user("b"))  # A session keeps its store open.
        del session
        with pytest.warns(ResourceWarning, match="unclosed store"):
            gc.collect()  # A search leaves a cycle of references.
    _wait_until(lambda: not _open_descriptors(tmp_path))


def test_what_a_collected_store_had_queued_is_stored(tmp_path: Path) -> None:
    """It waits behind another write when the last reference to the store is dropped."""
    path = tmp_path / "agent.db"
    store = holdfast.open(path)
    store.session("talk").append(Message.user("a"))
    row = store.backend.read(lambda snapshot: snapshot.find_session(key="talk"))
    assert row is not None
    held, go_on = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        held.set()
        go_on.wait(60)

    store.backend.submit(hold)
    held.wait(60)
    batch, _ = codec.encode_batch([Message.user("b")], datetime.now(UTC))
    ticket = store.backend.submit(append_operation.append(row.n, batch, expect=None))
    with pytest.warns(ResourceWarning, match="unclosed store"):
        del store
    go_on.set()
    assert ticket.result().seq == 2
    _wait_until(lambda: not _open_descriptors(tmp_path))
    with holdfast.open(path) as store:
        assert [m.text for m in store.session("talk").messages()] == ["a", "b"]


@pytest.mark.parametrize("end", ["", "del store", "import gc; store.me = store; del store"])
def test_a_process_ends_with_a_store_that_is_not_closed(tmp_path: Path, end: str) -> None:
    script = (
        "import holdfast, sys; from holdfast import Message; store = holdfast.open(sys.argv[1]);"
        f"store.session('talk').append(Message.user('a')); {end}"
    )
    path = tmp_path / "agent.db"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    with holdfast.open(path) as store:
        assert [m.text for m in store.session("talk").messages()] == ["a"]
