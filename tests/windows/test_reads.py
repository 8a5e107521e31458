"""What a window reads: the end of the history, a page at a time, and no more than it needs.

Rows and statements are counted by the engine's own trace. They do not depend on how fast a machine
is, nor, and that is the point, on how long the history is.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import apsw
import pytest

import holdfast
from bench import material
from holdfast import Message, Session, Store
from holdfast.errors import BadQuery
from holdfast.values import Window

_SHORT: Final = 1_000
_LONG: Final = 20_000


class _Trace:
    """What every connection of this process read."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rows = 0
        self.scanned = 0

    def note(self, event: dict[str, object]) -> None:
        if event["code"] == apsw.SQLITE_TRACE_ROW:
            self.rows += 1
            return
        status = event["stmt_status"]
        assert isinstance(status, dict)
        self.statements.append(str(event["sql"]))
        self.scanned += status["SQLITE_STMTSTATUS_FULLSCAN_STEP"]

    def clear(self) -> None:
        self.statements.clear()
        self.rows = self.scanned = 0


@pytest.fixture
def trace() -> Iterator[_Trace]:
    found = _Trace()

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE | apsw.SQLITE_TRACE_ROW, found.note)

    apsw.connection_hooks.append(watch)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(watch)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A short and a long history of the same turns."""
    made = []
    for length in (_SHORT, _LONG):
        made.append(tmp_path_factory.mktemp("long") / f"{length}.db")
        with holdfast.open(made[-1], durability="process") as store:
            material.lengthen(store, store.session("k"), length)
    return made


_Ask: TypeAlias = Callable[[Session], Window]
_ASKS: Final[dict[str, _Ask]] = {
    "few tokens": lambda s: s.window(max_tokens=2_000),
    "tokens": lambda s: s.window(max_tokens=32_000),
    "few messages": lambda s: s.window(max_messages=10),
    "messages": lambda s: s.window(max_messages=200),
    "both": lambda s: s.window(max_tokens=32_000, max_messages=100),
    "the first, too": lambda s: s.window(max_tokens=8_000, keep_first_user=True),
    "with instructions": lambda s: s.window(max_tokens=8_000, system="be brief", timestamps=True),
}


@pytest.mark.parametrize("asked", _ASKS)
def test_a_window_reads_the_same_however_long_the_history_is(
    paths: list[Path], trace: _Trace, asked: str
) -> None:
    """1,000 messages or 20,000: the same statements, the same rows, no walk through a table."""
    found = []
    for path in paths:
        with holdfast.open(path) as store:
            session = store.session("k")
            trace.clear()
            window = _ASKS[asked](session)
            assert trace.scanned == 0
            found.append((list(trace.statements), trace.rows))
            assert any(left.why == "over the budget" for left in window.left_out)
    assert found[0] == found[1]


@pytest.mark.parametrize(("most", "rows"), [(10, 100), (100, 300), (400, 1_000)])
def test_a_window_reads_little_more_than_it_holds(
    paths: list[Path], trace: _Trace, most: int, rows: int
) -> None:
    with holdfast.open(paths[1]) as store:
        session = store.session("k")
        trace.clear()
        assert len(session.window(max_messages=most)) > most / 2
        assert trace.rows <= rows


def test_a_window_of_a_fork_reads_no_more(paths: list[Path], trace: _Trace) -> None:
    """Across the border to its parent's messages."""
    found = []
    for path in paths:
        with holdfast.open(path) as store:
            fork = store.session("k").fork()
            fork.append(*material.turn())
            trace.clear()
            fork.window(max_tokens=8_000)
            found.append((len(trace.statements), trace.rows))
    assert found[0] == found[1]


# ------------------------------------------------------------------------------------- summaries


def _tags(window: Window) -> list[str]:
    return re.findall(r"<(\w+)>", json.dumps(window.messages))


def _turns(first: int, last: int) -> list[Message]:
    return [
        message
        for at in range(first, last)
        for message in (Message.user(f"<u{at}>"), Message.assistant(f"<a{at}>"))
    ]


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with holdfast.open(store_url) as store:
        yield store


@pytest.mark.parametrize("behind", [10, 300])
def test_a_summary_is_found_without_reading_the_history(
    tmp_path: Path, trace: _Trace, behind: int
) -> None:
    """It stands in for 100 messages or for 20,000; only what follows it is read."""
    found = []
    for length in (100, 20_000):
        path = tmp_path / f"{length}.db"
        with holdfast.open(path, durability="process") as store:
            session = store.session("k")
            material.lengthen(store, session, length)
            session.summarize("<summary>")
            session.append(*_turns(0, behind // 2))
            trace.clear()
            window = session.window()
            assert trace.scanned == 0
            found.append((len(trace.statements), trace.rows))
            assert _tags(window)[:2] == ["summary", "u0"]
            assert len(_tags(window)) == 1 + behind
            (left,) = window.left_out
            assert (left.why, left.count) == ("covered by a summary", length)
    assert found[0] == found[1]
    assert found[0][1] <= behind + 20


def test_a_summary_far_behind_the_budget_is_still_the_note(store: Store) -> None:
    """What lies between it and the window is over the budget."""
    session = store.create()
    session.append(*_turns(0, 50))
    session.summarize("<summary>")
    session.append(*_turns(50, 250))
    window = session.window(max_messages=20)
    assert _tags(window)[0] == "summary"
    assert _tags(window)[-1] == "a249"
    counts = {left.why: left.count for left in window.left_out}
    assert counts["covered by a summary"] == 100
    assert len(_tags(window)) + sum(counts.values()) == 501


def test_of_two_summaries_the_newer_one_stands_for_both(store: Store) -> None:
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<older>")
    session.append(*_turns(10, 20))
    session.summarize("<newer>")
    session.append(*_turns(20, 22))
    window = session.window()
    assert _tags(window) == ["newer", "u20", "a20", "u21", "a21"]
    assert sum(left.count for left in window.left_out) == 41


def test_what_came_while_the_summary_was_made_is_kept(store: Store) -> None:
    """It stands before the summary in the history, and behind it in the window."""
    session = store.create()
    session.append(*_turns(0, 10))
    upto = session.head()
    session.append(*_turns(10, 12))
    session.summarize("<summary>", upto=upto)
    session.append(*_turns(12, 13))
    window = session.window()
    assert _tags(window) == ["summary", "u10", "a10", "u11", "a11", "u12", "a12"]


def test_a_newer_summary_of_less_gives_back_what_it_does_not_cover(store: Store) -> None:
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<older>")
    session.summarize("<newer>", upto=10)
    tags = _tags(session.window())
    assert tags[:2] == ["newer", "u5"]
    assert tags[-1] == "a9"
    assert "older" not in tags


def test_after_a_rewind_behind_it_a_summary_is_no_more(store: Store) -> None:
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<summary>")
    session.append(*_turns(10, 12))
    session.rewind(20)
    assert _tags(session.window())[0] == "u0"
    session.redo()
    assert _tags(session.window())[0] == "summary"


def test_a_cleared_session_has_no_summary(store: Store) -> None:
    """A summary that covers nothing in view is out of view itself."""
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<summary>")
    session.clear()
    assert session.window().messages == []
    session.append(Message.user("<new>"))
    assert _tags(session.window()) == ["new"]


def test_there_is_no_summary_of_nothing(store: Store) -> None:
    session = store.create()
    with pytest.raises(BadQuery):
        session.summarize("<summary>")
    assert session.window().messages == []
    assert session.window().left_out == ()


def test_a_fork_before_the_summary_does_not_have_it(store: Store) -> None:
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<summary>")
    session.append(*_turns(10, 12))
    assert _tags(session.fork(20).window())[0] == "u0"
    assert _tags(session.fork().window()) == ["summary", "u10", "a10", "u11", "a11"]


def test_an_erased_summary_stands_for_nothing(store: Store) -> None:
    """The parent is erased from its forks: the older summary of the fork's own is not there."""
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<summary>")
    fork = session.fork()
    fork.append(*_turns(10, 12))
    store.purge(session.id, forks="erase")
    window = fork.window()
    assert _tags(window) == ["u10", "a10", "u11", "a11"]
    assert sum(left.count for left in window.left_out) == 21


def test_a_summary_whose_covered_message_was_erased_still_stands_for_it(store: Store) -> None:
    session = store.create()
    session.append(*_turns(0, 10))
    fork = session.fork()
    fork.summarize("<summary>")
    fork.append(*_turns(10, 12))
    store.purge(session.id, forks="erase")
    window = fork.window()
    assert _tags(window) == ["summary", "u10", "a10", "u11", "a11"]
    assert {left.why: left.count for left in window.left_out} == {"covered by a summary": 20}


def test_a_summary_alone_is_a_window(store: Store) -> None:
    session = store.create()
    session.append(*_turns(0, 10))
    session.summarize("<summary>")
    assert _tags(session.window()) == ["summary"]
    assert _tags(session.window(max_messages=1)) == ["summary"]
