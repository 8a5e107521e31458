"""A streamed reply: flushed while it grows, one message at the end."""

# ruff: noqa: PT012 - what must raise is often a whole block, and nesting shows what is open

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from holdfast import codec
from holdfast.clock import to_datetime
from holdfast.draft import Draft
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import BadMessage, Invalid
from holdfast.operations import turns
from holdfast.session import Session, number_of
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Message, Raw, Text, Thinking, ToolCall, Usage

_TEXTS = ["plain", "nul \0", "half \ud83d", "\ude00 other half", "é😀", ""]


class DraftTests(StoreFixtures):
    """`Turn.stream`: flushing, closing, and what is stored."""

    def test_closing_makes_one_message(self, store: Store, session: Session) -> None:
        """Consecutive deltas of one kind are one part, but a signature ends a thinking part.

        The receipt is the message.
        """
        with session.turn(model="m") as turn:
            with turn.stream() as reply:
                reply.think("h")
                reply.think("mm", signature="s")
                reply.think("so")
                reply.raw(Raw("elsewhere", {"kept": [1]}))
                reply.write("Hel")
                reply.write("lo")
                reply.tool_call("c", "find", {"q": [1]})
                reply.write("!")
                reply.usage(Usage(3, 4), cost=Decimal("0.5"))
            given = reply.message
        assert given is not None
        (stored,) = self.reopen(store).session("the session").messages()
        assert stored.parts == (
            Thinking("hmm", "s"),
            Thinking("so"),
            Raw("elsewhere", {"kept": [1]}),
            Text("Hello"),
            ToolCall("c", "find", {"q": [1]}),
            Text("!"),
        )
        assert (stored.id, stored.status, stored.model) == (reply.id, "complete", "m")
        assert (stored.usage, stored.cost) == (Usage(3, 4), Decimal("0.5"))
        assert stored.turn_id == turn.id
        assert (given.id, given.parts, given.seq) == (stored.id, stored.parts, 1)

    def test_the_receipt_is_the_message_as_stored(self, session: Session) -> None:
        """What `close` returns equals what is read."""
        with session.turn() as turn, turn.stream() as reply:
            reply.write("a")
        assert [reply.message] == session.messages()

    def test_flushed_text_is_no_message_yet(self, session: Session) -> None:
        """Readers see the reply once, when it is complete."""
        with session.turn() as turn:
            with turn.stream() as reply:
                reply.write("a")
                reply.flush()
                reply.flush()
                assert session.messages() == []
                reply.write("b")
            assert [m.text for m in session.messages()] == ["ab"]

    @pytest.mark.parametrize("flushed", [True, False])
    @pytest.mark.parametrize("text", _TEXTS)
    def test_any_text(self, session: Session, text: str, flushed: bool) -> None:  # noqa: FBT001
        """Any text is kept, also a character that is split between two deltas."""
        with session.turn() as turn, turn.stream() as reply:
            for delta in (text, "-", text):
                reply.write(delta)
                if flushed:
                    reply.flush()
        assert session.messages()[0].text == f"{text}-{text}"

    @pytest.mark.parametrize("letter", ["x", "é", "漢"])
    def test_much_text_is_flushed_by_itself(
        self, store: Store, session: Session, letter: str
    ) -> None:
        """4 KiB are flushed without the timer, so a crash after a write loses less than that."""
        turn = self.open_turn(session)
        reply = turn.stream()
        written = ""
        for _ in range(30):
            reply.write(letter * 300)
            written += letter * 300
        self.expire_leases(store)
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is not None
        lost = written.removeprefix(recovered.partial.text)
        assert len(lost.encode()) < 4096  # noqa: PLR2004 - the promise's

    def test_leaving_the_block_by_an_exception_makes_it_partial(self, session: Session) -> None:
        """The streamed text is kept and marked as partial."""
        with pytest.raises(ValueError, match="cut"), session.turn() as turn, turn.stream() as reply:
            reply.write("half an ans")
            raise ValueError("cut")
        assert [(m.text, m.status) for m in session.messages()] == [("half an ans", "partial")]
        assert session.turns()[0].state == "failed"

    def test_ending_the_turn_closes_its_draft(self, session: Session) -> None:
        """A reply that was not closed is kept as partial, before the turn's end is recorded."""
        with session.turn() as turn:
            reply = turn.stream()
            reply.write("half")
        with session.turn() as turn:
            turn.stream().write("another")
            turn.cancel()
        assert [(m.text, m.status) for m in session.messages()] == [
            ("half", "partial"),
            ("another", "partial"),
        ]
        with pytest.raises(Invalid):
            reply.write("more")

    def test_closing_the_store_keeps_the_last_words(self, store: Store, session: Session) -> None:
        """Text written before the close is stored, although no flush was due."""
        self.need_persistence()
        turn = self.open_turn(session)
        reply = turn.stream()
        reply.write("last words")
        again = self.reopen(store)
        self.expire_leases(again)
        recovered = again.session("the session").recover()
        assert recovered is not None
        assert recovered.partial is not None
        assert recovered.partial.text == "last words"

    def test_an_empty_reply_is_no_message(self, session: Session) -> None:
        """No message is stored, and the next reply of the turn is not affected."""
        with session.turn() as turn:
            with turn.stream() as reply:
                pass
            assert reply.message is None
            with turn.stream() as reply:
                reply.write("a")
        assert [m.text for m in session.messages()] == ["a"]

    def test_a_reply_of_usage_alone_is_kept(self, session: Session) -> None:
        """A reply without text that has usage is stored: tokens were spent."""
        with session.turn() as turn, turn.stream() as reply:
            reply.usage(Usage(5, 0))
        assert session.usage().usage == Usage(5, 0)

    def test_several_replies_one_after_the_other(self, session: Session) -> None:
        """Each becomes its own message; two at a time are refused."""
        with session.turn() as turn:
            for text in ("a", "b"):
                with turn.stream() as reply:
                    reply.write(text)
                    reply.flush()
                    with pytest.raises(Invalid):
                        turn.stream()
        assert [m.text for m in session.messages()] == ["a", "b"]

    def test_closing_twice_is_closing_once(self, session: Session) -> None:
        """The second close returns the same message; writing after it is refused."""
        with session.turn() as turn:
            reply = turn.stream()
            reply.write("a")
            first = reply.close()
            assert reply.close() == first
            with pytest.raises(Invalid):
                reply.write("b")
        assert len(session.messages()) == 1

    def test_the_last_word_on_usage_counts(self, session: Session) -> None:
        """Providers repeat their counts while they stream."""
        with session.turn() as turn, turn.stream(model="other") as reply:
            reply.usage(Usage(1, 1))
            reply.write("a")
            reply.usage(Usage(1, 9))
        assert session.usage().usage == Usage(1, 9)
        assert session.usage().by_model[0].model == "other"

    def test_calls_of_a_streamed_reply_are_in_the_ledger(self, session: Session) -> None:
        """They are recorded as those of any assistant message."""
        with session.turn() as turn:
            with turn.stream() as reply:
                reply.tool_call("c", "find")
            turn.tool_started("c")
            turn.tool("c", "x")
        assert [(t.call_id, t.outcome) for t in session.turns()[0].tools] == [("c", "done")]

    def test_what_a_caller_changes_later_is_not_what_was_said(self, session: Session) -> None:
        """Arguments are copied at the call; later changes by the caller have no effect."""
        arguments: dict[str, Any] = {"q": 1}
        with session.turn() as turn, turn.stream() as reply:
            reply.tool_call("c", "find", arguments)
            arguments["q"] = object()
        assert session.messages()[0].tool_calls[0].arguments == {"q": 1}

    @pytest.mark.parametrize(
        "say",
        [
            lambda reply: reply.write(b"bytes"),
            lambda reply: reply.write(None),
            lambda reply: reply.think(5),
            lambda reply: reply.think("t", signature=b"bytes"),
            lambda reply: reply.think("t", signature=5),
            lambda reply: reply.tool_call(5, "n"),
            lambda reply: reply.tool_call("c", None),
            lambda reply: reply.tool_call("c", "n", {"k": float("nan")}),
            lambda reply: reply.tool_call("c", "n", {1}),
            lambda reply: reply.usage("much"),
            lambda reply: reply.usage(Usage(input=-1)),
            lambda reply: reply.usage(Usage(), cost=Decimal(-1)),
            lambda reply: reply.usage(Usage(), cost="cheap"),
        ],
    )
    def test_a_bad_value_is_refused_at_once(self, session: Session, say: Any) -> None:  # noqa: ANN401
        """The call itself raises `BadMessage`; the reply and its turn continue and end normally."""
        with session.turn() as turn, turn.stream() as reply:
            reply.write("good")
            with pytest.raises(BadMessage):
                say(reply)
            reply.flush()
        assert [m.text for m in session.messages()] == ["good"]
        assert session.turns()[0].state == "sealed"

    def test_a_bad_model_is_refused_at_once(self, session: Session) -> None:
        """`BadMessage`: with such a model the reply could not be stored."""
        with session.turn() as turn:
            with pytest.raises(BadMessage, match="model"):
                turn.stream(model=5)  # type: ignore[arg-type]
            with turn.stream() as reply:
                reply.write("good")
        assert session.turns()[0].state == "sealed"
        assert isinstance(reply, Draft)

    def test_a_late_flush_of_a_closed_reply_touches_nothing(
        self, store: Store, session: Session
    ) -> None:
        """The flush timer of one reply may fire after the next has begun: both stay intact."""
        with session.turn() as turn:
            where = (number_of(session), int(turn.id.rpartition(".")[2]))
            one, two = (DraftOpening(name, None, self.clock.micros()) for name in ("one", "two"))
            store.backend.write(turns.flush_draft(*where, one, [(1, DraftChunk((Text("on"),)))]))
            store.backend.write(turns.close_draft(*where, self.whole("one")))
            store.backend.write(turns.flush_draft(*where, two, [(1, DraftChunk((Text("tw"),)))]))
            late = turns.flush_draft(*where, one, [(2, DraftChunk((Text("e"),)))])
            assert store.backend.write(late) is False
            store.backend.write(turns.close_draft(*where, self.whole("two")))
        assert [(m.text, m.status) for m in session.messages()] == [
            ("one", "complete"),
            ("two", "complete"),
        ]

    def test_a_late_flush_of_an_older_reply_leaves_the_newer_alone(
        self, store: Store, session: Session
    ) -> None:
        """Also if the older one was never closed, none of its text gets into the newer one."""
        with session.turn() as turn:
            where = (number_of(session), int(turn.id.rpartition(".")[2]))
            one, two = (DraftOpening(name, None, self.clock.micros()) for name in ("one", "two"))
            store.backend.write(turns.flush_draft(*where, two, [(1, DraftChunk((Text("tw"),)))]))
            late = turns.flush_draft(*where, one, [(1, DraftChunk((Text("one"),)))])
            assert store.backend.write(late) is False
            store.backend.write(turns.close_draft(*where, self.whole("two")))
        assert [(m.text, m.status) for m in session.messages()] == [("two", "complete")]

    def whole(self, text: str) -> codec.EncodedMessage:
        """A finished reply, whose id is its text."""
        message = Message.assistant(text, id=text)
        return codec.encode(message, to_datetime(self.clock.micros()))

    def test_messages_between_flushes_keep_their_order(self, session: Session) -> None:
        """Messages appended while a reply is streamed come before it: they were stored first."""
        with session.turn() as turn, turn.stream() as reply:
            reply.write("slow")
            reply.flush()
            session.append(Message.user("quick"))
        assert [m.text for m in session.messages()] == ["quick", "slow"]
