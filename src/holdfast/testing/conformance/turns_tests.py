"""A turn: each step durable when its call returns, however the turn ends."""

# ruff: noqa: PT012, SIM117 - what must raise is often a whole block, and nesting shows what is open

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial

import pytest

from holdfast.errors import BadMessage, IdConflict, Invalid, TurnLost
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import Message, ToolCall, ToolRecord


class BrokenError(Exception):
    """An error whose text cannot be read."""

    def __str__(self) -> str:
        """Raise, as a faulty exception class may."""
        raise RuntimeError("no words")


class TurnTests(StoreFixtures):
    """`Session.turn` and the methods of `Turn`."""

    def test_each_step_is_durable_when_its_call_returns(
        self, store: Store, session: Session
    ) -> None:
        """Another reader sees each message at once, with its turn, while the turn is open."""
        other = store.session("the session")
        with session.turn(run_id="r", model="m") as turn:
            for step, text in enumerate(("question", "answer"), 1):
                given = turn.user(text) if step == 1 else turn.assistant(text)
                assert other.messages()[-1] == given
                assert (given.seq, given.turn_id) == (step, turn.id)
            assert other.info().state == "open"
        later = self.reopen(store).session("the session")
        (info,) = later.turns()
        assert (info.id, info.state, info.run_id, info.model) == (turn.id, "sealed", "r", "m")
        assert [m.model for m in later.messages()] == [None, "m"]
        assert later.info().state == "done"
        assert later.info().turns == 1

    def test_times_and_latency(self, session: Session) -> None:
        """A turn has its start, its end and its duration."""
        with session.turn() as turn:
            (info,) = session.turns()
            assert (info.state, info.ended_at, info.latency_ms) == ("open", None, None)
            turn.user("a")
            self.clock.advance(2.5)
        (info,) = session.turns()
        assert info.ended_at is not None
        assert (info.ended_at - info.started_at).total_seconds() == pytest.approx(2.5, abs=0.01)
        assert info.latency_ms == pytest.approx(2500, abs=10)

    def test_a_clock_that_goes_back_gives_no_negative_latency(self, session: Session) -> None:
        """The latency is zero."""
        with session.turn():
            self.clock.step(-5)
        assert session.turns()[0].latency_ms == 0

    def test_any_message_can_be_added(self, session: Session) -> None:
        """`add` stores it unchanged, with its id; a retry returns the stored one."""
        message = Message.system("rules", id="mine")
        with session.turn() as turn:
            given = turn.add(message)
            assert turn.add(message) == given
            with pytest.raises(IdConflict):
                turn.add(Message.system("other rules", id="mine"))
        assert session.messages() == [given]

    def test_adding_a_stored_message_returns_it_as_stored(self, session: Session) -> None:
        """A message that was appended without a turn does not become the turn's."""
        message = Message.user("a", id="mine")
        session.append(message)
        with session.turn() as turn:
            given = turn.add(message)
        assert [given] == session.messages()

    def test_append_goes_through_while_a_turn_is_open(self, session: Session) -> None:
        """It needs no lease: stored at once, in order, without a turn."""
        with session.turn() as turn:
            turn.user("a")
            session.append(Message.user("b"))
            turn.assistant("c")
        assert [(m.text, m.turn_id) for m in session.messages()] == [
            ("a", turn.id),
            ("b", None),
            ("c", turn.id),
        ]

    # ------------------------------------------------------------------------------- endings

    @pytest.mark.parametrize(
        ("error", "state", "text"),
        [
            (ValueError("bad luck"), "failed", "ValueError: bad luck"),
            (RuntimeError(), "failed", "RuntimeError"),
            (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt"),
            (SystemExit(3), "cancelled", "SystemExit: 3"),
            (GeneratorExit(), "cancelled", "GeneratorExit"),
            (asyncio.CancelledError(), "cancelled", "CancelledError"),
            (ValueError("nul \0 and \ud800"), "failed", "ValueError: nul \0 and \ud800"),
        ],
    )
    def test_leaving_by_an_exception(
        self, store: Store, session: Session, error: BaseException, state: str, text: str
    ) -> None:
        """What was written is kept; the error is recorded, and raised."""
        with pytest.raises(type(error)) as raised, session.turn() as turn:
            turn.user("a")
            raise error
        assert raised.value is error
        later = self.reopen(store).session("the session")
        (info,) = later.turns()
        assert (info.state, info.error) == (state, text)
        assert [m.text for m in later.messages()] == ["a"]
        with later.turn() as following:
            assert following.recovered is None

    def test_an_error_without_words_still_ends_its_turn(self, session: Session) -> None:
        """An error whose text cannot be read is recorded by its type name, and raised."""
        with pytest.raises(BrokenError), session.turn():
            raise BrokenError
        (info,) = session.turns()
        assert info.state == "failed"
        assert info.error is not None
        assert info.error.startswith("BrokenError")

    def test_a_closed_generator_cancels_its_turn(self, session: Session) -> None:
        """An agent written as a generator, closed half-way."""

        def agent() -> Generator[str, None, None]:
            with session.turn() as turn:
                turn.user("a")
                yield "b"

        work = agent()
        next(work)
        work.close()
        assert session.turns()[0].state == "cancelled"

    def test_cancel_and_fail_say_why(self, session: Session) -> None:
        """The turn is over at once; leaving the block then changes nothing."""
        with session.turn() as turn:
            turn.user("a")
            turn.cancel("enough")
            assert session.info().state == "done"
        with session.turn() as turn:
            turn.fail("bad reply")
        with session.turn() as turn:
            turn.fail(OSError("gone"))
        with session.turn() as turn:
            turn.cancel()
        assert [(t.state, t.error) for t in session.turns()] == [
            ("cancelled", "enough"),
            ("failed", "bad reply"),
            ("failed", "OSError: gone"),
            ("cancelled", None),
        ]

    def test_nothing_is_written_after_the_end(self, session: Session) -> None:
        """After the end of a turn every kind of write raises `TurnLost`."""
        with session.turn() as turn:
            turn.user("a")
        for write in (
            lambda: turn.user("b"),
            lambda: turn.assistant("b"),
            lambda: turn.tool("c", "b"),
            lambda: turn.add(Message.system("b")),
            lambda: turn.tool_started("c"),
            turn.take_queued,
            turn.stream,
            turn.cancel,
        ):
            with pytest.raises(TurnLost):
                write()
        assert [m.text for m in session.messages()] == ["a"]
        assert [(t.state, t.tools) for t in session.turns()] == [("sealed", ())]

    def test_ending_twice_in_one_way_is_one_end(self, session: Session) -> None:
        """A retry of the end is no error; another end is."""
        with session.turn() as turn:
            turn.cancel("first")
            turn.cancel("second")
            with pytest.raises(TurnLost):
                turn.fail("third")
        assert [(t.state, t.error) for t in session.turns()] == [("cancelled", "first")]

    def test_a_turn_is_used_in_a_block_and_once(self, session: Session) -> None:
        """It cannot write before its block, and cannot be entered again after it."""
        turn = session.turn()
        with pytest.raises(Invalid):
            turn.user("a")
        with turn:
            pass
        with pytest.raises(Invalid), turn:
            pass
        assert session.info().turns == 1

    def test_a_very_long_error_is_cut(self, session: Session) -> None:
        """The recorded error is cut to 4,096 characters."""
        with session.turn() as turn:
            turn.fail("x" * 10_000)
        assert session.turns()[0].error == "x" * 4096

    # --------------------------------------------------------------------------------- tools

    def test_the_ledger_of_parallel_tools(self, store: Store, session: Session) -> None:
        """Each start and each result is recorded by itself; at the end no call stays open."""
        calls = [ToolCall(f"c{n}", "find") for n in range(5)]
        with session.turn() as turn:
            turn.assistant("let me look", tool_calls=calls)
            assert self.outcomes(session) == dict.fromkeys(("c0", "c1", "c2", "c3", "c4"), "called")
            for n in (2, 0, 1):
                turn.tool_started(f"c{n}")
            turn.tool("c2", "found")
            turn.tool("c0", "oh no", error=True)
            assert self.outcomes(session) == {
                "c0": "error",
                "c1": "running",
                "c2": "done",
                "c3": "called",
                "c4": "called",
            }
            turn.tool("c4", "never started, yet here is an answer")
        later = self.reopen(store).session("the session")
        assert self.outcomes(later) == {
            "c0": "error",
            "c1": "unknown",
            "c2": "done",
            "c3": "not_run",
            "c4": "done",
        }

    def test_the_ledger_has_names_and_times(self, session: Session) -> None:
        """When a call started and ended, and what was called."""
        with session.turn() as turn:
            turn.assistant(tool_calls=[ToolCall("c", "find", {"q": 1})])
            turn.tool_started("c")
            self.clock.advance(3)
            turn.tool("c", "x")
        (line,) = session.turns()[0].tools
        assert isinstance(line, ToolRecord)
        assert line.name == "find"
        assert line.started_at is not None
        assert line.ended_at is not None
        assert (line.ended_at - line.started_at).total_seconds() == pytest.approx(3, abs=0.01)

    def test_a_tool_may_start_before_its_call_is_stored(self, session: Session) -> None:
        """While a reply is still streamed; the name comes with the call."""
        with session.turn() as turn:
            turn.tool_started("c")
            turn.tool_started("c")
            turn.assistant(tool_calls=[ToolCall("c", "find")])
            (line,) = session.turns()[0].tools
            assert (line.name, line.outcome) == ("find", "running")
            turn.tool("c", "x")
            turn.tool_started("c")
        assert self.outcomes(session) == {"c": "done"}

    def test_tools_answer_from_several_threads(self, session: Session) -> None:
        """Every start and every result is recorded once."""
        names = [f"c{n}" for n in range(8)]
        with session.turn() as turn:
            turn.assistant(tool_calls=[ToolCall(name, "t") for name in names])

            def work(name: str) -> None:
                turn.tool_started(name)
                turn.tool(name, f"result of {name}")

            run_concurrently(*(partial(work, name) for name in names))
        assert self.outcomes(session) == dict.fromkeys(names, "done")
        assert {m.text for m in session.messages()[1:]} == {f"result of {n}" for n in names}

    def test_every_turn_has_its_own_ledger(self, session: Session) -> None:
        """The same call id in two turns is two calls."""
        for text in ("a", "b"):
            with session.turn() as turn:
                turn.assistant(tool_calls=[ToolCall("c", text)])
                turn.tool("c", text)
        assert [t.tools[0].name for t in session.turns()] == ["a", "b"]

    @pytest.mark.parametrize("call_id", ["", None, 5, "x" * 5000])
    def test_a_bad_call_id_is_refused(self, session: Session, call_id: str) -> None:
        """`BadMessage` names it."""
        with session.turn() as turn:
            with pytest.raises(BadMessage, match="call_id"):
                turn.tool_started(call_id)

    def test_a_tool_that_gave_nothing_usable_is_bad_message(self, session: Session) -> None:
        """A result of `None` is refused like every bad value, not by a bare TypeError."""
        with session.turn() as turn:
            with pytest.raises(BadMessage):
                turn.tool("c", None)  # type: ignore[arg-type]

    def outcomes(self, session: Session) -> dict[str, str]:
        """The ledger of the newest turn."""
        return {line.call_id: line.outcome for line in session.turns()[-1].tools}
