"""One turn at a time: who holds a session, and what happens to a holder that lost it."""

# ruff: noqa: PT012, SIM117 - what must raise is often a whole block, and nesting shows what is open

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import msgspec
import pytest

from holdfast.draft import Draft
from holdfast.errors import SessionBusy, TurnLost
from holdfast.operations import turns
from holdfast.processes import this_process
from holdfast.session import Session, number_of
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.turn import Turn
from holdfast.values import Holder, Message, ToolCall

_LONG = 30.0

_WRITES: dict[str, Callable[[Turn, Draft], object]] = {
    "user": lambda turn, _: turn.user("late"),
    "assistant": lambda turn, _: turn.assistant("late", tool_calls=[ToolCall("c9", "n")]),
    "tool": lambda turn, _: turn.tool("c", "late"),
    "add": lambda turn, _: turn.add(Message.system("late")),
    "tool_started": lambda turn, _: turn.tool_started("c"),
    "take_queued": lambda turn, _: turn.take_queued(),
    "draft flush": lambda _, reply: reply.flush(),
    "draft write": lambda _, reply: reply.write("late" * 5000),
    "draft close": lambda _, reply: reply.close(),
    "cancel": lambda turn, _: turn.cancel(),
    "fail": lambda turn, _: turn.fail("late"),
    "seal": lambda turn, _: turn.__exit__(None, None, None),
}


class LeaseTests(StoreFixtures):
    """Promise 8."""

    def test_a_second_turn_is_refused(self, store: Store, session: Session) -> None:
        """`SessionBusy` names the holder of the session, and since when."""
        with session.turn():
            since = session.turns()[0].started_at
            for other in (session, store.get(session.id)):
                with pytest.raises(SessionBusy) as busy:
                    self.open_turn(other)
                assert busy.value.session_id == session.id
                assert (busy.value.pid, busy.value.host) == (os.getpid(), socket.gethostname())
                assert busy.value.since == since
            with pytest.raises(SessionBusy):
                session.recover()
        assert session.info().turns == 1
        with session.turn():
            pass

    def test_sessions_are_held_one_by_one(self, store: Store) -> None:
        """A turn holds only its own session."""
        with store.session("one").turn() as one, store.session("two").turn() as two:
            one.user("a")
            two.user("b")
        assert [s.messages for s in store.sessions()] == [1, 1]

    def test_waiting_for_the_holder(self, session: Session) -> None:
        """`turn(wait=…)` opens as soon as the other turn has ended."""
        entered = threading.Event()

        def wait() -> None:
            with session.turn(wait=_LONG) as turn:
                turn.user("second")
                entered.set()

        with session.turn() as turn:
            thread = threading.Thread(target=wait)
            thread.start()
            turn.user("first")
            assert not entered.is_set()
        thread.join(_LONG)
        assert [m.text for m in session.messages()] == ["first", "second"]

    def test_waiting_in_vain(self, session: Session) -> None:
        """`SessionBusy` after the wait, as without one."""
        with session.turn():
            with pytest.raises(SessionBusy):
                session.turn(wait=0.05).__enter__()

    def test_a_lease_that_has_not_run_out_holds(self, store: Store, session: Session) -> None:
        """Just before a lease expires other callers are still refused."""
        turn = self.open_turn(session)
        self.clock.advance(store.backend.lease - 1)
        with pytest.raises(SessionBusy):
            self.open_turn(session)
        assert not store.session("the session").interrupted
        turn.user("still mine")

    def test_a_lease_that_ran_out_is_taken_over(self, store: Store, session: Session) -> None:
        """The next turn recovers the old one, reports that, and has the higher number."""
        old = self.open_turn(session)
        old.user("a")
        self.expire_leases(store)
        with session.turn() as new:
            assert new.recovered is not None
            assert (new.recovered.turn_id, new.recovered.messages) == (old.id, 1)
            new.user("b")
        assert [t.state for t in session.turns()] == ["interrupted", "sealed"]
        assert [m.turn_id for m in session.messages()] == [old.id, new.id]

    def test_a_holder_whose_lease_ran_out_goes_on_until_a_takeover(
        self, store: Store, session: Session
    ) -> None:
        """An expired lease alone loses nothing; a takeover does."""
        with session.turn() as turn:
            self.expire_leases(store)
            turn.user("late, but nobody came")
        assert session.turns()[0].state == "sealed"

    @pytest.mark.parametrize("seconds", [-3600, 3600])
    def test_a_clock_that_is_set_takes_and_keeps_no_turn(
        self, store: Store, session: Session, seconds: int
    ) -> None:
        """Ahead or back: on one machine a lease ends when the time of its length has passed."""
        turn = self.open_turn(session)
        self.clock.step(seconds)
        with pytest.raises(SessionBusy):
            self.open_turn(session)
        assert not store.session("the session").interrupted
        turn.user("still mine")
        self.expire_leases(store)
        with session.turn() as new:
            assert new.recovered is not None

    def test_a_holder_on_another_machine_has_its_lease_by_the_databases_clock(
        self, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If that is set ahead by more than the lease the turn is lost, and the fence holds."""
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("holdfast.turn.this_process", _another_machine)
            old = self.open_turn(session)
        old.user("a")
        self.clock.step(store.backend.lease - 1)
        with pytest.raises(SessionBusy):
            self.open_turn(session)
        self.clock.step(1)
        with session.turn() as new:
            with pytest.raises(TurnLost):
                old.user("late")
            new.user("b")
        assert [message.text for message in session.messages()] == ["a", "b"]

    def test_a_lease_that_seems_to_end_in_an_hour_ends_in_time(
        self, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The database's clock was set back; a holder on another machine died, or did not."""
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("holdfast.turn.this_process", _another_machine)
            old = self.open_turn(session)
        self.clock.step(-3600)
        with pytest.raises(SessionBusy):
            self.open_turn(session)
        self.clock.advance(store.backend.lease - 1)
        with pytest.raises(SessionBusy):
            self.open_turn(session)
        self._renew(store, session, old, store.backend.lease)
        self.clock.advance(2)
        with pytest.raises(SessionBusy):
            self.open_turn(session)
        self.expire_leases(store)
        self.open_turn(session)
        assert [turn.state for turn in session.turns()] == ["interrupted", "open"]

    def test_a_lease_that_is_longer_than_others_is_not_shortened(
        self, store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each says how long it is: workers need not agree."""
        length = store.backend.lease
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("holdfast.turn.this_process", _another_machine)
            old = self.open_turn(session)
            self._renew(store, session, old, 10 * length)
        for _ in range(9):
            with pytest.raises(SessionBusy):
                self.open_turn(session)
            self.clock.advance(length)
        old.user("still mine")

    @staticmethod
    def _renew(store: Store, session: Session, turn: Turn, lease: float) -> None:
        number = int(turn.id.rpartition(".")[2])
        store.backend.write(turns.renew(number_of(session), number, lease))

    @pytest.mark.parametrize("taken_by", ["turn", "recover"])
    @pytest.mark.parametrize("write", _WRITES)
    def test_the_old_holder_writes_nothing(
        self, store: Store, session: Session, write: str, taken_by: str
    ) -> None:
        """After a takeover every kind of write raises `TurnLost` and stores nothing."""
        old = self.open_turn(session)
        old.assistant("a", tool_calls=[ToolCall("c", "n")])
        reply = old.stream()
        reply.write("flushed")
        reply.flush()
        reply.write("not flushed")
        session.enqueue("waiting")
        self.expire_leases(store)
        new = self.open_turn(session) if taken_by == "turn" else None
        if new is None:
            session.recover()
        before = _everything(session)
        with pytest.raises(TurnLost) as lost:
            _WRITES[write](old, reply)
        assert lost.value.turn_id == old.id
        assert _everything(session) == before
        if new is not None:
            new.user("mine")
            new.cancel()

    def test_the_old_holders_draft_stays_out_of_the_new_ones(
        self, store: Store, session: Session
    ) -> None:
        """Both stream; each reply has only its own text."""
        old = self.open_turn(session)
        late = old.stream()
        late.write("old")
        late.flush()
        self.expire_leases(store)
        with session.turn() as new:
            with new.stream() as reply:
                reply.write("new")
                reply.flush()
                late.write(" more")
                with pytest.raises(TurnLost):
                    late.flush()
        assert [(m.text, m.status) for m in session.messages()] == [
            ("old", "partial"),
            ("new", "complete"),
        ]

    def test_leaving_a_lost_turn_says_so(self, store: Store, session: Session) -> None:
        """Leaving the block raises `TurnLost`, since the turn was not sealed."""
        with pytest.raises(TurnLost), session.turn() as old:
            old.user("a")
            self.expire_leases(store)
            session.recover()
        assert session.turns()[0].state == "interrupted"

    def test_leaving_a_lost_turn_by_an_exception_raises_that(
        self, store: Store, session: Session
    ) -> None:
        """The exception is raised as it is, with a note about the lost turn."""
        with pytest.raises(ValueError, match="mine") as raised, session.turn():
            self.expire_leases(store)
            session.recover()
            raise ValueError("mine")
        assert any("holdfast" in note for note in raised.value.__notes__)


def _another_machine() -> Holder:
    return msgspec.structs.replace(this_process(), boot="another")


def _everything(session: Session) -> tuple[object, ...]:
    return session.info(), session.messages(), session.turns(), session.queued(), session.usage()
