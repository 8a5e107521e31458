"""After a crash: everything stored is kept, and unknown outcomes are recorded as unknown."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest

from holdfast.errors import Invalid, SessionBusy
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.validation import MAX_TOKEN_COUNT
from holdfast.values import Message, Text, Thinking, ToolCall, Usage


class RecoveryTests(StoreFixtures):
    """Promise 9. A crash is simulated by a turn that is never ended and whose lease expires."""

    def crash(self, session: Session) -> str:
        """Leave a turn, a draft and tool calls open; return the turn's id."""
        turn = self.open_turn(session, model="m")
        turn.user("question")
        calls = [ToolCall(name, "tool") for name in ("done", "running", "called")]
        turn.assistant("let me see", tool_calls=calls)
        turn.tool_started("done")
        turn.tool("done", "result")
        turn.tool_started("running")
        reply = turn.stream()
        reply.think("hm", signature="s")
        reply.usage(Usage(7, 8), cost=Decimal("0.25"))
        reply.write("half an \ud83d")
        reply.flush()
        reply.write("\0 answer")
        reply.flush()
        return turn.id

    def test_nothing_to_recover(self, session: Session) -> None:
        """`None`, on a new session and on one whose turns have ended."""
        assert session.recover() is None
        with session.turn():
            pass
        assert session.recover() is None

    def test_the_holder_is_alive(self, session: Session) -> None:
        """`SessionBusy`: a session is not recovered while its holder is alive."""
        turn = self.open_turn(session)
        with pytest.raises(SessionBusy):
            session.recover()
        turn.cancel()

    def test_what_recovery_keeps(self, store: Store, session: Session) -> None:
        """The draft becomes one partial message; started calls are unknown, others not run."""
        name = self.crash(session)
        started = session.turns()[0].started_at
        self.expire_leases(store)
        later = self.reopen(store).session("the session")
        recovered = later.recover()
        assert recovered is not None
        assert recovered.turn_id == name
        assert recovered.messages == 4
        assert (recovered.unknown_tools, recovered.not_run_tools) == (("running",), ("called",))
        assert recovered.since == started
        stored = later.messages()
        assert [m.status for m in stored] == ["complete"] * 3 + ["partial"]
        partial = stored[-1]
        assert recovered.partial == partial
        assert partial.parts == (Thinking("hm", "s"), Text("half an \ud83d\0 answer"))
        assert (partial.turn_id, partial.model, partial.role) == (name, "m", "assistant")
        assert (partial.usage, partial.cost) == (Usage(7, 8), Decimal("0.25"))
        (turn,) = later.turns()
        assert (turn.state, turn.usage, turn.cost) == ("interrupted", Usage(7, 8), Decimal("0.25"))
        assert turn.ended_at is not None
        outcomes = {line.call_id: line.outcome for line in turn.tools}
        assert outcomes == {"done": "done", "running": "unknown", "called": "not_run"}

    def test_recovering_twice_changes_nothing(self, store: Store, session: Session) -> None:
        """The second finds nothing to do."""
        self.crash(session)
        self.expire_leases(store)
        session.recover()
        before = (session.info(), session.messages(), session.turns())
        assert session.recover() is None
        assert (session.info(), session.messages(), session.turns()) == before

    def test_the_crash_is_shown_before_it_is_recovered(
        self, store: Store, session: Session
    ) -> None:
        """By `session`, `get`, `latest`, `info` and `sessions`; not after the recovery."""
        self.crash(session)
        for crashed in (False, True):
            if crashed:
                self.expire_leases(store)
            latest = store.latest()
            assert latest is not None
            opened = (store.session("the session"), store.get(session.id), latest)
            assert [s.interrupted for s in opened] == [crashed] * 3
            state = "interrupted" if crashed else "open"
            for info in (session.info(), store.sessions().items[0]):
                assert (info.state, info.interrupted) == (state, crashed)
        session.recover()
        assert not store.session("the session").interrupted
        assert session.info().state == "done"

    def test_looking_changes_nothing(self, store: Store, session: Session) -> None:
        """Reads do not recover a session."""
        self.crash(session)
        self.expire_leases(store)
        for _ in range(2):
            store.session("the session").info()
            store.latest()
            session.messages()
        assert session.turns()[0].state == "open"
        assert len(session.messages()) == 3

    def test_the_next_turn_recovers_first(self, store: Store, session: Session) -> None:
        """Its `recovered` reports what was kept; its own messages come after that."""
        name = self.crash(session)
        self.expire_leases(store)
        with self.reopen(store).session("the session").turn() as turn:
            assert turn.recovered is not None
            assert turn.recovered.turn_id == name
            assert turn.recovered.partial is not None
            assert turn.user("go on").seq == 5
        assert turn.id != name

    def test_a_turn_without_a_crash_recovers_nothing(self, session: Session) -> None:
        """`recovered` is `None`."""
        with session.turn() as turn:
            assert turn.recovered is None

    def test_what_was_not_flushed_invents_nothing(self, store: Store, session: Session) -> None:
        """A draft without flushed text leaves no message."""
        turn = self.open_turn(session)
        turn.user("a")
        reply = turn.stream()
        self.expire_leases(store)
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is None
        assert [m.text for m in session.messages()] == ["a"]
        assert reply.message is None

    def test_a_closed_reply_is_not_made_partial(self, store: Store, session: Session) -> None:
        """It is a stored message; recovery does not store it again."""
        turn = self.open_turn(session)
        with turn.stream() as reply:
            reply.write("whole")
            reply.flush()
        self.expire_leases(store)
        recovered = session.recover()
        assert recovered is not None
        assert (recovered.partial, recovered.messages) == (None, 1)
        assert [(m.text, m.status) for m in session.messages()] == [("whole", "complete")]

    def test_what_others_appended_meanwhile_stays(self, store: Store, session: Session) -> None:
        """It does not belong to the turn; the partial reply comes after it."""
        turn = self.open_turn(session)
        reply = turn.stream()
        reply.write("half")
        reply.flush()
        session.append(Message.user("meanwhile"))
        self.expire_leases(store)
        recovered = session.recover()
        assert recovered is not None
        assert recovered.messages == 1
        assert [m.text for m in session.messages()] == ["meanwhile", "half"]

    def test_usage_of_the_partial_reply_counts(self, store: Store, session: Session) -> None:
        """It is added to the session's sums."""
        self.crash(session)
        self.expire_leases(store)
        session.recover()
        assert session.usage().usage == session.info().usage == Usage(7, 8)
        assert session.usage().cost == Decimal("0.25")

    def test_sums_that_are_full_do_not_stop_recovery(self, store: Store, session: Session) -> None:
        """If usage cannot be added up, the reply's text is still kept and the session is free."""
        turn = self.open_turn(session)
        largest = Usage(MAX_TOKEN_COUNT)
        with suppress(Invalid):
            for size in (1000, *[1] * 100):
                session.append(*(Message.assistant("x", usage=largest) for _ in range(size)))
        reply = turn.stream()
        reply.usage(largest)
        reply.write("half")
        reply.flush()
        self.expire_leases(store)
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is not None
        assert recovered.partial.text == "half"

    def test_crash_after_crash(self, store: Store, session: Session) -> None:
        """Each turn is recovered once, in order."""
        names = []
        for _ in range(3):
            turn = self.open_turn(session)
            reply = turn.stream()
            reply.write(turn.id)
            reply.flush()
            names.append(turn.id)
            self.expire_leases(store)
        session.recover()
        assert [m.text for m in session.messages()] == names
        assert [t.state for t in session.turns()] == ["interrupted"] * 3
