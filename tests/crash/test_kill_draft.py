"""A reply that is being streamed when its process is killed: what was flushed by then is kept.

The child streams and is killed with SIGKILL, by itself or by the test. Text is flushed by a timer a
quarter of a second after it was written, or at once when 4 KiB wait. A loaded machine may be late,
so the test waits until the text is stored, and the child says for when the timer was set.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.session import number_of
from tests.crash._nursery import Nursery
from tests.store_urls import await_the_end_of

PROMISED = 0.25
PATIENCE = 60.0
QUIET = 0.5  # Several times the flush interval, and the renewal of the short lease below.

OPENING = """
import os, signal, sys, time, holdfast
from holdfast.draft import DraftCore
from holdfast.scheduler import Scheduler
def die():
    os.kill(os.getpid(), signal.SIGKILL)
schedule = Scheduler.schedule
def noted(keeper, task, seconds):
    if isinstance(task, DraftCore):
        print(seconds, flush=True)
    schedule(keeper, task, seconds)
Scheduler.schedule = noted
store = holdfast.open(sys.argv[1])
turn = store.session("talk").turn().__enter__()
turn.user("tell me a story")
reply = turn.stream()
"""

STREAM = """
for number in range(20):
    reply.write(f"{number} ")
    time.sleep(0.02)
reply.write("the-end")
time.sleep(600)
"""


def _killed_by_itself(nursery: Nursery, url: str, then: str) -> None:
    with nursery.start(f"{OPENING}{then}\ndie()\n", url) as child:
        assert child.wait() == -signal.SIGKILL
    await_the_end_of(url)


def _partial(url: str) -> Message:
    """Recover the store and return the partial reply: the last of two messages."""
    with holdfast.open(url) as store:
        session = store.session("talk", create=False)
        assert session.interrupted
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is not None
        assert recovered.partial == session.messages()[-1]
        assert [message.status for message in session.messages()] == ["complete", "partial"]
        assert [turn.state for turn in session.turns()] == ["interrupted"]
        assert store.verify() == []
        return recovered.partial


def test_text_older_than_the_flush_interval_survives_a_kill(
    nursery: Nursery, shared_url: str
) -> None:
    """What was written is soon stored by itself, and so it is in the partial reply, in order."""
    with holdfast.open(shared_url) as store, nursery.start(OPENING + STREAM, shared_url) as child:
        timer = child.stdout.readline()
        _await_in_draft(store, b"the-end")
        child.kill()
        assert child.wait() == -signal.SIGKILL
    await_the_end_of(shared_url)
    assert 0 < float(timer) < PROMISED
    assert _partial(shared_url).text.split() == [*map(str, range(20)), "the-end"]


def _await_in_draft(store: Store, words: bytes) -> None:
    """Wait until the draft of the talk's first turn has these words."""
    n = number_of(store.session("talk"))
    deadline = time.monotonic() + PATIENCE
    while words not in b"".join(store.backend.read(lambda snapshot: snapshot.draft(n, 1))):
        assert time.monotonic() < deadline, "the timer has not flushed it"
        time.sleep(0.02)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """The URL of a store in a file: for what does not depend on the backend."""
    return f"sqlite:///{tmp_path}/store.db"


@pytest.mark.parametrize(
    ("then", "least"),
    [
        ("reply.write('x' * 5000)", 5000),
        ("for _ in range(90): reply.write('x' * 50)", 4096),
        ("reply.write('x' * 50)\nreply.think('x' * 5000)\nreply.write('x')", 50),
        ("reply.write('x' * 3)\nreply.flush()", 3),
    ],
    ids=["one-large-write", "many-small-writes", "large-thoughts", "flushed-by-hand"],
)
def test_four_kibibytes_are_flushed_at_once(
    nursery: Nursery, file_url: str, then: str, least: int
) -> None:
    """Killed right after the write returned, the text that had become too much to wait is there."""
    _killed_by_itself(nursery, file_url, then)
    text = _partial(file_url).text
    assert len(text) >= least
    assert set(text) == {"x"}


def test_four_kibibytes_are_counted_in_bytes(nursery: Nursery, file_url: str) -> None:
    """Text outside of ASCII takes more bytes than it has characters, and they count."""
    _killed_by_itself(nursery, file_url, "reply.write('\\N{SLIGHTLY SMILING FACE}' * 1100)")
    assert _partial(file_url).text == "\N{SLIGHTLY SMILING FACE}" * 1100


def test_a_tool_call_in_the_stream_is_kept_and_was_not_run(
    nursery: Nursery, shared_url: str
) -> None:
    """A call that was streamed and flushed is in the partial reply; it never ran, and says so."""
    then = "reply.write('a ')\nreply.tool_call('x', 'look', {'at': 1})\nreply.flush()"
    _killed_by_itself(nursery, shared_url, then)
    found = _partial(shared_url)
    assert [(call.id, call.arguments) for call in found.tool_calls] == [("x", {"at": 1})]
    with holdfast.open(shared_url, readonly=True) as store:
        [turn] = store.session("talk").turns()
    assert [(tool.call_id, tool.outcome) for tool in turn.tools] == [("x", "not_run")]


def test_a_closed_reply_is_whole_after_a_kill(nursery: Nursery, shared_url: str) -> None:
    """A reply that was closed is a complete message, though its turn was interrupted."""
    _killed_by_itself(nursery, shared_url, "reply.write('to the end')\nreply.close()")
    with holdfast.open(shared_url) as store:
        recovered = store.session("talk").recover()
        assert recovered is not None
        assert recovered.partial is None
        found = store.session("talk").messages()
    assert [(message.text, message.status) for message in found[1:]] == [("to the end", "complete")]


# ------------------------------------------------------------------------------------- the end


class _Commits:
    """Counts commits to a store, from outside."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def version(self) -> int:
        """Return a number that changes with every commit."""
        number: int = self._connection.execute("PRAGMA data_version").get
        return number


@contextmanager
def _commits(path: Path) -> Iterator[_Commits]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        yield _Commits(connection)
    finally:
        connection.close()


def _sealed(store: Store) -> None:
    with store.session("talk").turn() as turn, turn.stream() as reply:
        reply.write("fresh")


def _cancelled(store: Store) -> None:
    with store.session("talk").turn() as turn:
        turn.stream().write("fresh")
        turn.cancel("enough")


def _failed(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        with store.session("talk").turn() as turn, turn.stream() as reply:
            reply.write("fresh")
            raise ZeroDivisionError


def test_nothing_is_flushed_or_renewed_once_the_turn_is_over(tmp_path: Path) -> None:
    """When the turn has ended its timers commit nothing more, however it ended."""
    endings: list[Callable[[Store], None]] = [_sealed, _cancelled, _failed]
    with ExitStack() as stack:
        ended = []
        for ending in endings:
            path = tmp_path / f"{ending.__name__}.db"
            store = stack.enter_context(holdfast.open(f"sqlite:///{path}?lease=0.5"))
            commits = stack.enter_context(_commits(path))
            before = commits.version()
            ending(store)
            assert commits.version() != before, "commits are not seen"
            ended.append((ending, store, commits, commits.version()))
        time.sleep(QUIET)
        for ending, store, commits, version in ended:
            assert commits.version() == version, ending
            assert [message.text for message in store.session("talk").messages()] == ["fresh"]


def test_a_reply_that_waits_commits_nothing(tmp_path: Path) -> None:
    """A draft to which nothing is written is not flushed again and again."""
    path = tmp_path / "store.db"
    with holdfast.open(path) as store, _commits(path) as commits:
        with store.session("talk").turn() as turn, turn.stream() as reply:
            reply.write("a word")
            reply.flush()
            before = commits.version()
            time.sleep(QUIET)
            assert commits.version() == before
