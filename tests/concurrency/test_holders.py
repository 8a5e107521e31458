"""Holders of turns: one that slept past its lease cannot write; a dead one is detected.

The old holder is stopped with SIGSTOP, as a sleeping laptop or a debugger would, so it can neither
renew its lease nor know that time has passed. When it goes on, every kind of write it tries must be
refused inside the store, and the text it had not flushed must never appear.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Session, Store, Turn
from holdfast.clock import SystemClock
from holdfast.errors import SessionBusy, StoreUnavailable, TurnLost
from holdfast.proof import checker
from holdfast.session import number_of
from holdfast.storage.registry import open_backend
from holdfast.url import parse_url
from tests.concurrency.children import Child, Pipe, begin, judge
from tests.concurrency.conftest import StartChild
from tests.store_urls import with_options

_CALL = "call-1"
_PATIENCE = 60.0


def _short_lease(path: Path) -> str:
    """A URL with a short lease; its expiry alone costs the holder nothing without a takeover."""
    return f"sqlite:///{path}?lease=0.3&deadline=60"


def _fence(turn: Turn) -> int:
    return int(turn.id.rpartition(".")[2])


def _say(recorder: checker.Recorder, session: Session, turn: Turn, message: Message) -> None:
    write = begin(recorder, session, [message], _fence(turn))
    try:
        placed = turn.add(message)
    except TurnLost:
        recorder.refused(write, "TurnLost")
        raise
    recorder.acked(write, last=placed.seq)


# --- the old holder -----------------------------------------------------------------------------


def _hold(pipe: Pipe, path: Path) -> None:
    """Open a turn, stream half a reply, wait; then try every kind of write."""
    recorder = checker.Recorder(path.parent / "old.jsonl", "old")
    with holdfast.open(_short_lease(path)) as store:
        session = store.session("s")
        turn = session.turn()
        turn.__enter__()
        recorder.fenced(session.id, _fence(turn))
        _say(recorder, session, turn, Message.user("question", id="question"))
        reply = turn.stream()
        reply.tool_call(_CALL, "look_up")
        reply.write("flushed ")
        reply.flush()
        reply.write("not flushed ")
        pipe.say(reply.id)
        pipe.hear()
        late = Message.user("too late", id="late")
        attempts: dict[str, Callable[[], object]] = {
            "flush": reply.flush,
            "add": lambda: _say(recorder, session, turn, late),
            "tool_started": lambda: turn.tool_started(_CALL),
            "take_queued": turn.take_queued,
            "close": reply.close,
            "end": lambda: turn.__exit__(None, None, None),
        }
        pipe.say({name: _outcome(attempt) for name, attempt in attempts.items()})


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - its name is what the test asks about
        return type(error).__name__
    return "went through"


# --- the new one --------------------------------------------------------------------------------


def _stop_outside_a_write(holder: Child, path: Path) -> None:
    """Stop a process at a time when it does not hold the store's lock."""
    with holdfast.open(f"sqlite:///{path}?deadline=0.5") as store:
        probe = store.session("probe")
        while True:
            holder.stop()
            try:
                probe.append(Message.user("is anybody in there?"))
            except StoreUnavailable:
                holder.go_on()
                time.sleep(0.05)
            else:
                return


@pytest.mark.parametrize("wakes", ["while the new turn is open", "after it was sealed"])
def test_a_holder_that_slept_past_its_lease_writes_nothing_more(
    tmp_path: Path, child: StartChild, wakes: str
) -> None:
    """After the takeover each of its writes is `TurnLost`, and nothing of them is stored."""
    path = tmp_path / "store.db"
    recorder = checker.Recorder(tmp_path / "new.jsonl", "new")
    with holdfast.open(path) as store:
        session = store.session("s")
        store.session("probe")
        holder = child(_hold, path, stoppable=True)
        reply = holder.hear()
        _stop_outside_a_write(holder, path)
        with session.turn(wait=60) as turn:
            recorder.fenced(session.id, _fence(turn))
            assert turn.recovered is not None
            assert turn.recovered.not_run_tools == (_CALL,)
            _say(recorder, session, turn, Message.user("again", id="again"))
            if wakes == "while the new turn is open":
                outcomes = _wake(holder)
            _say(recorder, session, turn, Message.assistant("answer", id="answer"))
        if wakes == "after it was sealed":
            outcomes = _wake(holder)
        assert set(outcomes.values()) == {"TurnLost"}
        judge(tmp_path, session, own=[reply], happened=["takeovers", "refused", "acked"])
        history = session.messages()
        assert [message.id for message in history] == ["question", reply, "again", "answer"]
        partial = history[1]
        assert partial.status == "partial"
        assert partial.text in {
            "flushed ",
            "flushed not flushed ",
        }  # By the timer, before the stop.
        assert [turn.state for turn in session.turns()] == ["interrupted", "sealed"]
        assert store.verify() == []


def _wake(holder: Child) -> dict[str, str]:
    holder.go_on()
    holder.say("go")
    outcomes: dict[str, str] = holder.hear()
    holder.join()
    return outcomes


def _hold_for_long(pipe: Pipe, url: str) -> None:
    with holdfast.open(url) as store:
        session = store.session("s")
        with session.turn() as turn:
            turn.user("question", id="question")
            with turn.stream() as reply:
                reply.write("half an answer")
                reply.flush()
                pipe.say(reply.id)
                pipe.hear()


def test_a_killed_holder_is_noticed_at_once(shared_url: str, child: StartChild) -> None:
    """Its lease has most of 30 s left, yet the next turn does not wait."""
    with holdfast.open(shared_url) as store:
        session = store.session("s")
        holder = child(_hold_for_long, shared_url)
        reply = holder.hear()
        with pytest.raises(SessionBusy) as busy, session.turn():
            pass
        assert busy.value.pid == holder.pid
        assert not store.session("s").interrupted
        holder.kill()
        assert store.session("s").interrupted
        with session.turn(wait=0) as turn:
            assert turn.recovered is not None
            assert turn.recovered.partial is not None
            assert turn.recovered.partial.id == reply
        assert session.messages()[-1].text == "half an answer"


def test_a_holder_that_lives_keeps_its_turn_beyond_the_lease(
    shared_url: str, child: StartChild
) -> None:
    """The lease is renewed in the background while the turn is open, long before it runs out."""
    with holdfast.open(shared_url) as store:
        session = store.session("s")
        holder = child(_hold_and_answer, shared_url)
        assert holder.hear() == "holding"
        first = _lease_until(store, session)
        _await(lambda: _lease_until(store, session) > first)
        with pytest.raises(SessionBusy), session.turn():
            pass
        holder.say("go")
        assert holder.hear() == "sealed"
        holder.join()
        assert [turn.state for turn in session.turns()] == ["sealed"]


class _SetAhead:
    """The machine's clock, set ahead by an hour."""

    def micros(self) -> int:
        return SystemClock().micros() + 3_600_000_000

    def monotonic(self) -> int:
        return SystemClock().monotonic()


def test_a_clock_that_is_set_ahead_takes_no_turn_from_a_living_holder(
    shared_url: str, child: StartChild
) -> None:
    """By far more than the lease: the holder renews it, and time has not passed."""
    with holdfast.open(shared_url) as store:
        session = store.session("s")
        holder = child(_hold_for_long, shared_url)
        holder.hear()
        first = _lease_until(store, session)
        location = parse_url(shared_url, {})
        clock = _SetAhead()
        backend = open_backend(
            location, tenant="default", durability="power", readonly=False, clock=clock
        )
        with Store(backend, clock) as other:
            late = other.session("s")
            assert backend.read(lambda snapshot: snapshot.now()) > first
            with pytest.raises(SessionBusy), late.turn():
                pass
            with pytest.raises(SessionBusy):
                late.undo()
            with pytest.raises(SessionBusy):
                late.recover()
            assert not other.session("s").interrupted
        holder.say("go")
        holder.join()
        assert [turn.state for turn in session.turns()] == ["sealed"]


_TRY_A_TURN = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as store:
    try:
        with store.session("s").turn():
            print("taken")
    except holdfast.errors.SessionBusy as busy:
        print("held by", busy.pid)
"""


def test_a_living_holder_keeps_its_turn_in_another_time_namespace(tmp_path: Path) -> None:
    """There its process seems to have started at another time, and its lease to have expired."""
    elsewhere = ["unshare", "--time", "--boottime=100000", "--monotonic=100000"]
    if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system allows no time namespaces")
    path = tmp_path / "store.db"
    command = [*elsewhere, sys.executable, "-c", _TRY_A_TURN, str(path)]

    def try_a_turn() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with holdfast.open(path) as store:
        with store.session("s").turn() as turn:
            assert try_a_turn() == f"held by {os.getpid()}"
            turn.user("still mine")
        assert try_a_turn() == "taken"


def _lease_until(store: Store, session: Session) -> int:
    """Return the expiry of the first turn's lease."""
    turn = store.backend.read(lambda snapshot: snapshot.turn(number_of(session), 1))
    assert turn is not None
    return turn.lease_until


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "what was waited for does not happen"
        time.sleep(0.02)


def _hold_and_answer(pipe: Pipe, url: str) -> None:
    with holdfast.open(with_options(url, lease=4)) as store:
        with store.session("s").turn() as turn:
            pipe.say("holding")
            pipe.hear()
            turn.user("still here")
        pipe.say("sealed")


def _race_for_turns(pipe: Pipe, url: str, folder: Path, name: str, count: int) -> None:
    recorder = checker.Recorder(folder / f"{name}.jsonl", name)
    with holdfast.open(url) as store:
        session = store.session("s")
        pipe.say("ready")
        pipe.hear()
        for number in range(count):
            with session.turn(wait=90) as turn:
                recorder.fenced(session.id, _fence(turn))
                for part in range(3):
                    message = Message.user("x", id=f"{name}-{number}.{part}")
                    _say(recorder, session, turn, message)
        pipe.say("done")


def test_turns_of_several_processes_never_interleave(
    tmp_path: Path, shared_url: str, child: StartChild
) -> None:
    """Four processes wait for one another's turns; each turn's messages stand together."""
    url = with_options(shared_url, deadline=60)
    racers = [child(_race_for_turns, url, tmp_path, f"p{number}", 8) for number in range(4)]
    for each in racers:
        each.hear()
    for each in racers:
        each.say("go")
    for each in racers:
        assert each.hear() == "done"
        each.join()
    with holdfast.open(shared_url) as store:
        session = store.session("s", create=False)
        judge(tmp_path, session, happened=["takeovers", "acked"])
        turns = [message.turn_id for message in session.messages()]
        assert turns == [f"{session.id}.{number}" for number in range(1, 33) for _ in range(3)]
        assert {turn.state for turn in session.turns()} == {"sealed"}
