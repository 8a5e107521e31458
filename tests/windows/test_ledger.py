"""Calls without a result in a window: the outcome in the ledger, wherever the turn is stored.

A call that was never started was not run; one that was started has an unknown outcome, unless its
turn is still open. The ledger belongs to the session that ran the turn: its forks read it there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import pytest

import holdfast
from holdfast import Message, Session, Store, ToolCall
from holdfast.formats.registry import format_of
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.testing.legality import problems
from holdfast.turn import Turn
from holdfast.values import Provider, ToolResult, Window
from holdfast.windows.pairing import NOT_RUN, UNKNOWN
from holdfast.windows.rendering import CUT_OFF_MARK
from tests.store_urls import backend

_PENDING: Final = "[no result yet]"
_CALLS: Final = ("done", "running", "called")

each_provider = pytest.mark.parametrize("provider", get_args(Provider))


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(store_url: str, clock: SetClock) -> Iterator[Store]:
    with Store(backend(store_url, clock), clock) as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("talk")


def _begun(session: Session, *names: str) -> Turn:
    """Open a turn that asks for three tools: one answers, one is started, one is not."""
    done, running, called = names or _CALLS
    turn = session.turn().__enter__()
    turn.user("question")
    calls = [ToolCall(name, "look_up") for name in (done, running, called)]
    turn.assistant("let me see", tool_calls=calls)
    turn.tool_started(done)
    turn.tool(done, "found it")
    turn.tool_started(running)
    return turn


def _crashed(store: Store, session: Session, clock: SetClock, *names: str) -> None:
    _begun(session, *names)
    clock.advance(store.backend.lease + 1)
    assert session.recover() is not None


def _results(window: Window) -> dict[str, str]:
    """Return the text of each result by the id that we know its call by."""
    assert problems(window.provider, window.messages, window.system) == []
    return {window.call_ids[result.call_id]: result.text for result in _sent_results(window)}


def _sent_results(window: Window) -> list[ToolResult]:
    decode = format_of(window.provider).decode
    return [result for item in window.messages for result in decode(item).tool_results]


def _says(results: dict[str, str], expected: dict[str, str]) -> None:
    assert set(results) == set(expected)
    for call, text in expected.items():
        assert text in results[call], call


_INTERRUPTED: Final = {"done": "found it", "running": UNKNOWN, "called": NOT_RUN}


# ------------------------------------------------------------------------------ one session's own


@each_provider
def test_in_the_open_turn_results_are_still_to_come(session: Session, provider: Provider) -> None:
    """Nobody says of a tool that is running that it was interrupted."""
    turn = _begun(session)
    _says(
        _results(session.window(provider=provider)),
        {"done": "found it", "running": _PENDING, "called": _PENDING},
    )
    turn.cancel()


@each_provider
def test_after_a_crash_each_call_says_what_became_of_it(
    store: Store, session: Session, clock: SetClock, provider: Provider
) -> None:
    _crashed(store, session, clock)
    _says(_results(session.window(provider=provider)), _INTERRUPTED)


@pytest.mark.parametrize("end", ["cancel", "fail", "seal"])
def test_a_turn_that_ended_leaves_no_result_to_come(session: Session, end: str) -> None:
    """However it ended: what was started is unknown, what was not was not run."""
    turn = _begun(session)
    if end == "cancel":
        turn.cancel("enough")
    elif end == "fail":
        turn.fail("the network is gone")
    else:
        turn.__exit__(None, None, None)
    _says(_results(session.window()), _INTERRUPTED)


def test_a_crash_that_nobody_recovered_is_no_reason_to_wait(
    store: Store, session: Session, clock: SetClock
) -> None:
    """The holder is gone: nothing is still to come, and asking for a window changes nothing."""
    _begun(session)
    clock.advance(store.backend.lease + 1)
    _says(_results(session.window()), _INTERRUPTED)
    assert session.recover() is not None


def test_a_result_that_came_late_takes_the_place_of_the_words(
    store: Store, session: Session, clock: SetClock
) -> None:
    _crashed(store, session, clock)
    session.append(Message.user("and?"), Message.tool("running", "late, but here"))
    _says(_results(session.window()), {**_INTERRUPTED, "running": "late, but here"})


def test_calls_outside_any_turn_have_no_ledger(session: Session) -> None:
    """Nobody knows whether they were started."""
    session.append(Message.user("q"), Message.assistant(tool_calls=[ToolCall("c", "look_up")]))
    _says(_results(session.window()), {"c": UNKNOWN})


def test_two_turns_with_the_same_ids_each_say_what_became_of_theirs(
    store: Store, session: Session, clock: SetClock
) -> None:
    """Many a provider counts its calls from one in every turn."""
    for running, called in (("x", "y"), ("y", "x")):
        _crashed(store, session, clock, f"done-{running}", running, called)
    window = session.window()
    said = _sent_results(window)
    assert [(window.call_ids[result.call_id], result.text) for result in said] == [
        ("done-x", "found it"),
        ("x", UNKNOWN),
        ("y", NOT_RUN),
        ("done-y", "found it"),
        ("y", UNKNOWN),
        ("x", NOT_RUN),
    ]


def test_an_id_used_again_and_answered_hides_nothing(session: Session) -> None:
    """The first turn's call stays one that was not run."""
    turn = session.turn().__enter__()
    turn.user("first")
    turn.assistant(tool_calls=[ToolCall("x", "look_up")])
    turn.cancel()
    with session.turn() as turn:
        turn.user("second")
        turn.assistant(tool_calls=[ToolCall("x", "look_up")])
        turn.tool("x", "found it")
    window = session.window()
    assert [result.text for result in _sent_results(window)] == [NOT_RUN, "found it"]


_ASK = """
import json, sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    window = store.get("talk").window()
    print(json.dumps([window.messages, window.system, window.call_ids]))
"""


def test_every_process_writes_the_same_bytes(tmp_path: Path) -> None:
    """Whatever order its sets are in."""
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        session = store.session("talk")
        for at in range(8):
            turn = _begun(session, f"done-{at}", "x" if at % 2 else "y", "y" if at % 2 else "x")
            turn.cancel()
    written = {
        subprocess.run(
            [sys.executable, "-c", _ASK, str(path)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(written) == 1


# ---------------------------------------------------------------------------------- partial replies


@each_provider
def test_a_reply_that_a_crash_cut_off_is_marked(
    store: Store, session: Session, clock: SetClock, provider: Provider
) -> None:
    turn = session.turn().__enter__()
    turn.user("tell me a story")
    draft = turn.stream()
    draft.write("once upon a")
    draft.flush()
    clock.advance(store.backend.lease + 1)
    assert session.recover() is not None
    session.append(Message.user("go on"))
    window = session.window(provider=provider)
    assert problems(provider, window.messages, window.system) == []
    sent = json.dumps(window.messages)
    assert sent.count(CUT_OFF_MARK) == 1
    assert sent.index("once upon a") < sent.index(CUT_OFF_MARK) < sent.index("go on")


def test_a_draft_that_is_being_written_is_not_in_the_window(session: Session) -> None:
    """It is stored when it is closed."""
    with session.turn() as turn:
        turn.user("tell me a story")
        draft = turn.stream()
        draft.write("once upon a")
        draft.flush()
        assert len(session.window()) == 1
        draft.close()
        assert len(session.window()) == 2
        assert CUT_OFF_MARK not in json.dumps(session.window().messages)


def test_a_partial_reply_with_a_call_says_both(
    store: Store, session: Session, clock: SetClock
) -> None:
    """The call was never started: the turn died while it was being asked for."""
    turn = session.turn().__enter__()
    turn.user("q")
    draft = turn.stream()
    draft.write("let me")
    draft.tool_call("c", "look_up")
    draft.flush()
    clock.advance(store.backend.lease + 1)
    assert session.recover() is not None
    window = session.window()
    assert CUT_OFF_MARK in json.dumps(window.messages)
    (said,) = _results(window).values()
    assert said in {NOT_RUN, UNKNOWN}


# ---------------------------------------------------------------------------- forks and movements


@each_provider
def test_a_fork_looks_into_the_ledger_of_its_parent(
    store: Store, session: Session, clock: SetClock, provider: Provider
) -> None:
    _crashed(store, session, clock)
    fork = session.fork()
    fork.append(Message.user("again"))
    _says(_results(fork.window(provider=provider)), _INTERRUPTED)


def test_a_continued_session_looks_through_all_before_it(
    store: Store, session: Session, clock: SetClock
) -> None:
    """Three runs, each interrupted, each with a ledger of its own."""
    expected: dict[str, str] = {}
    for run in range(3):
        names = [f"{name}-{run}" for name in _CALLS]
        _crashed(store, session, clock, *names)
        expected |= dict(zip(names, ("found it", UNKNOWN, NOT_RUN), strict=True))
        session = store.create(parent=session)
    session.append(Message.user("again"))
    _says(_results(session.window()), expected)


def test_a_fork_of_an_open_turn_waits_for_nothing_of_its_own(session: Session) -> None:
    """The results will be in the parent: in the fork the calls end before the exchange."""
    turn = _begun(session)
    fork = session.fork()
    window = fork.window()
    turn.cancel()
    assert problems(window.provider, window.messages, window.system) == []
    assert _PENDING not in json.dumps(window.messages) or len(fork.messages()) == 3


def test_after_a_rewind_the_abandoned_turn_is_not_spoken_of(
    store: Store, session: Session, clock: SetClock
) -> None:
    session.append(Message.user("before"))
    _crashed(store, session, clock)
    session.rewind(1)
    _crashed(store, session, clock, "done", "called", "running")
    _says(_results(session.window()), {"done": "found it", "called": UNKNOWN, "running": NOT_RUN})


def test_undone_and_redone_it_says_the_same_again(
    store: Store, session: Session, clock: SetClock
) -> None:
    session.append(Message.user("before"), Message.assistant("yes"))
    _crashed(store, session, clock)
    before = session.window()
    session.undo()
    assert _results(session.window()) == {}
    session.redo()
    assert session.window() == before


def test_messages_put_in_again_keep_their_ledger(
    store: Store, session: Session, clock: SetClock
) -> None:
    """`replace` with another beginning: the turn is the same."""
    session.append(Message.user("before"))
    _crashed(store, session, clock)
    _, *rest = session.messages()
    session.replace([Message.user("other"), *rest])
    results = _results(session.window())
    assert "found it" in results["done"]
    assert results["called"] in {NOT_RUN, UNKNOWN}


@pytest.mark.parametrize("forks", ["keep", "erase"])
def test_when_the_parent_was_purged_the_fork_still_has_a_legal_window(
    store: Store, session: Session, clock: SetClock, forks: str
) -> None:
    """Its ledger is gone with it: nobody knows any more. What was erased is not spoken of."""
    _crashed(store, session, clock)
    fork = session.fork()
    fork.append(Message.user("again"))
    store.purge(session.id, forks="keep" if forks == "keep" else "erase")
    window = fork.window()
    assert "again" in json.dumps(window.messages)
    results = _results(window)
    if forks == "keep":
        assert "found it" in results["done"]
        assert results["running"] == UNKNOWN
        assert results["called"] in {NOT_RUN, UNKNOWN}
    else:
        assert results == {}
        assert {(out.why, out.count) for out in window.left_out} == {("erased", 3)}
