"""A reply that is being streamed when its process is killed: what was flushed by then is kept.

The child streams and is killed with SIGKILL, by itself or by the test. Text is flushed by a timer a
quarter of a second after it was written, or at once when 4 KiB wait. A loaded machine may be late,
so text is only held against the store when it was two seconds old.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Store
from tests.places import await_the_end_of

LATE = 2.0
QUIET = 0.7  # Several times the flush interval, and the renewal of the short lease below.

OPENING = """
import os, signal, sys, time, holdfast
def die():
    os.kill(os.getpid(), signal.SIGKILL)
store = holdfast.open(sys.argv[1])
turn = store.session("talk").turn().__enter__()
turn.user("tell me a story")
reply = turn.stream()
"""

STREAM = """
for number in range(10**6):
    reply.write(f"{number} ")
    print(number, time.monotonic(), flush=True)
    time.sleep(0.02)
"""


def _start(url: str, then: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", OPENING + then, url]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def _killed_by_itself(url: str, then: str) -> None:
    child = _start(url, f"{then}\ndie()\n")
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    await_the_end_of(url)


def _partial(url: str) -> Message:
    """Recover the store and give the partial reply: the last of two messages."""
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


def test_text_older_than_the_flush_interval_survives_a_kill(shared_url: str) -> None:
    """Everything written a while before the kill is in the partial reply, in order."""
    child = _start(shared_url, STREAM)
    assert child.stdout is not None
    written: dict[int, float] = {}
    while not written or written[max(written)] - written[0] < LATE + 1.5:
        number, moment = child.stdout.readline().split()
        written[int(number)] = float(moment)
    killed_at = time.monotonic()
    child.kill()
    child.communicate(timeout=60)
    await_the_end_of(shared_url)
    due = [number for number, moment in written.items() if moment < killed_at - LATE]
    words = _partial(shared_url).text.split()
    assert due, "nothing was old enough to be held against the store"
    assert words == [str(number) for number in range(len(words))]
    assert len(words) >= len(due)


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
def test_four_kibibytes_are_flushed_at_once(shared_url: str, then: str, least: int) -> None:
    """Killed right after the write returned, the text that had become too much to wait is there."""
    _killed_by_itself(shared_url, then)
    text = _partial(shared_url).text
    assert len(text) >= least
    assert set(text) == {"x"}


def test_four_kibibytes_are_counted_in_bytes(shared_url: str) -> None:
    """Text outside of ASCII takes more bytes than it has characters, and they count."""
    _killed_by_itself(shared_url, "reply.write('\\N{SLIGHTLY SMILING FACE}' * 1100)")
    assert _partial(shared_url).text == "\N{SLIGHTLY SMILING FACE}" * 1100


def test_a_tool_call_in_the_stream_is_kept_and_was_not_run(shared_url: str) -> None:
    """A call that was streamed and flushed is in the partial reply; it never ran, and says so."""
    _killed_by_itself(
        shared_url, "reply.write('a ')\nreply.tool_call('x', 'look', {'at': 1})\nreply.flush()"
    )
    found = _partial(shared_url)
    assert [(call.id, call.arguments) for call in found.tool_calls] == [("x", {"at": 1})]
    with holdfast.open(shared_url, readonly=True) as store:
        [turn] = store.session("talk").turns()
    assert [(tool.call_id, tool.outcome) for tool in turn.tools] == [("x", "not_run")]


def test_a_closed_reply_is_whole_after_a_kill(shared_url: str) -> None:
    """A reply that was closed is a complete message, though its turn was interrupted."""
    _killed_by_itself(shared_url, "reply.write('to the end')\nreply.close()")
    with holdfast.open(shared_url) as store:
        recovered = store.session("talk").recover()
        assert recovered is not None
        assert recovered.partial is None
        found = store.session("talk").messages()
    assert [(message.text, message.status) for message in found[1:]] == [("to the end", "complete")]


# ------------------------------------------------------------------------------------- the end


class _Commits:
    """Counts commits to a store, from outside."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)

    def version(self) -> int:
        """Give a number that changes with every commit."""
        number: int = self._connection.execute("PRAGMA data_version").get
        return number

    def none_while_waiting(self) -> bool:
        """Wait, and say whether nothing was committed meanwhile."""
        before = self.version()
        time.sleep(QUIET)
        return self.version() == before

    def close(self) -> None:
        self._connection.close()


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


@pytest.mark.parametrize("ending", [_sealed, _cancelled, _failed])
def test_nothing_is_flushed_or_renewed_once_the_turn_is_over(
    tmp_path: Path, ending: Callable[[Store], None]
) -> None:
    """When the turn has ended its timers commit nothing more, however it ended."""
    path = tmp_path / "store.db"
    with holdfast.open(f"sqlite:///{path}?lease=0.5") as store:
        commits = _Commits(path)
        try:
            before = commits.version()
            ending(store)
            assert commits.version() != before, "commits are not seen"
            assert commits.none_while_waiting()
        finally:
            commits.close()
        assert [message.text for message in store.session("talk").messages()] == ["fresh"]


def test_a_reply_that_waits_commits_nothing(tmp_path: Path) -> None:
    """A draft to which nothing is written is not flushed again and again."""
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        commits = _Commits(path)
        try:
            with store.session("talk").turn() as turn, turn.stream() as reply:
                reply.write("a word")
                reply.flush()
                assert commits.none_while_waiting()
        finally:
            commits.close()
