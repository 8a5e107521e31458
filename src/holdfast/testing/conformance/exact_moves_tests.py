"""Exact moves: rewinds and forks inside a tool exchange, `pop`, and the replacement of a tail."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadQuery, HeadMoved, IdConflict, MessageNotFound, SessionBusy
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    call_message,
    parse_conversation,
    read_session,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures, drain, run_concurrently
from holdfast.testing.legality import PROVIDERS, problems
from holdfast.values import BranchChanged, File, Head, Message, Usage

_EXCHANGE = "u +a,b -a -b a u +c -c a"


class ExactMoveTests(StoreFixtures):
    """The cut is where the caller says, and costs no more than what is cut."""

    # -------------------------------------------------------------------------- rewind and fork

    @pytest.mark.parametrize("seq", range(10))
    def test_an_exact_cut_is_where_it_was_asked_for(self, session: Session, seq: int) -> None:
        """Also between a call and its result; the windows of what is left are legal."""
        session.append(*parse_conversation(_EXCHANGE))
        said = texts(session)
        fork = session.fork(seq, exact=True)
        assert texts(fork) == said[:seq]
        assert session.rewind(seq, exact=True).seq == seq
        assert texts(session) == said[:seq]
        (*_, branch) = session.branches()
        assert (branch.asked_seq, branch.seq) == (0 if seq == 9 else seq, seq)
        for moved in (session, fork):
            _check_windows(moved)
            moved.append(Message.user("and now?"))
            _check_windows(moved)

    def test_without_exact_the_cut_is_before_the_exchange(self, session: Session) -> None:
        """As ever."""
        session.append(*parse_conversation(_EXCHANGE))
        assert session.fork(3).head().seq == 1
        assert session.rewind(3, exact=False).seq == 1

    def test_an_exact_cut_by_id_or_head_may_be_on_an_earlier_branch(self, session: Session) -> None:
        """Like any other; `redo` takes it back."""
        said = parse_conversation(_EXCHANGE)
        session.append(*said)
        session.clear()
        assert session.rewind(said[2].id, exact=True) == Head(3, 3)
        assert session.rewind(Head(1, 7), exact=True) == Head(4, 7)
        assert session.redo() == Head(5, 3)
        assert session.fork(Head(1, 2), exact=True).head() == Head(1, 2)

    @pytest.mark.parametrize("exact", [None, 1, "yes"])
    def test_exact_is_yes_or_no(self, session: Session, exact: Any) -> None:  # noqa: ANN401
        """Anything else is refused, and named."""
        session.append(Message.user("a"))
        for move in (session.rewind, session.fork):
            with pytest.raises(BadQuery, match="exact"):
                move(0, exact=exact)

    # --------------------------------------------------------------------------------------- pop

    def test_pop_takes_the_newest_message(self, store: Store, session: Session) -> None:
        """One by one, as they were stored, whatever they are; `redo` gives each back."""
        session.append(*parse_conversation("u +a -a"), Message.user([File(data=b"x" * 100)]))
        session.summarize("so far")
        said = session.messages()
        for message in reversed(said):
            assert session.pop() == message
            assert session.messages() == said[: (message.seq or 0) - 1]
            _check_windows(session)
        assert session.pop() is None
        assert session.head() == Head(6, 0)
        for count in range(1, len(said) + 1):
            session.redo()
            assert session.messages() == said[:count]
        assert self.reopen(store).get(session.id).messages() == said

    def test_what_was_popped_can_be_stored_again(self, session: Session) -> None:
        """Its id is free on the new branch, and its usage is not charged again."""
        session.append(Message.user("a"), Message.assistant("b", usage=Usage(5)))
        popped = session.pop()
        assert popped is not None
        session.append(Message.user("between"))
        session.append(popped)
        assert texts(session) == ["a", "between", "b"]
        assert session.info().usage.input == 5

    def test_pop_reaches_what_a_fork_inherited(self, session: Session) -> None:
        """The parent keeps it; preview and count follow."""
        session.append(*parse_conversation("u a"))
        fork = session.fork()
        assert [getattr(fork.pop(), "text", None) for _ in range(3)] == ["a2", "u1", None]
        assert (fork.info().preview, fork.info().messages) == (None, 0)
        assert texts(session) == ["u1", "a2"]

    def test_those_who_pop_at_once_get_different_messages(self, session: Session) -> None:
        """Each message goes to one of them."""
        session.append(*[Message.user(str(n)) for n in range(12)])
        popped: list[str] = []

        def work() -> None:
            for _ in range(3):
                message = session.pop()
                assert message is not None
                popped.append(message.text)

        run_concurrently(*[work] * 4)
        assert sorted(popped, key=int) == [str(n) for n in range(12)]
        assert session.messages() == []

    def test_pop_compares_and_waits_for_no_turn(self, session: Session) -> None:
        """`HeadMoved`, `SessionBusy`; and nothing is taken."""
        head = session.append(Message.user("a"))
        with pytest.raises(HeadMoved):
            session.pop(expect=Head(1, 2))
        with session.turn(), pytest.raises(SessionBusy):
            session.pop()
        message = session.pop(expect=head)
        assert message is not None
        assert message.text == "a"

    def test_a_follower_is_told_of_a_pop(self, session: Session) -> None:
        """As of any rewind."""
        session.append(*parse_conversation("u a"))
        follower = session.follow()
        drain(follower)
        session.pop()
        assert drain(follower) == [BranchChanged(head=Head(2, 1), kept=1, reason="rewind")]

    # ---------------------------------------------------------------------------- replace a tail

    @pytest.mark.parametrize(
        ("kept", "by"), list(zip(range(1, 10), ["seq", "id", "head"] * 3, strict=True))
    )
    def test_a_tail_is_replaced(self, store: Store, session: Session, kept: int, by: str) -> None:
        """What was said up to `keep` is shared, wherever that is; only the tail is stored."""
        said = parse_conversation(_EXCHANGE)
        session.append(*said)
        stored = store.stats().messages
        keep: Any = {"seq": kept, "id": said[kept - 1].id, "head": Head(1, kept)}[by]
        head = session.replace([Message.user("new"), Message.assistant("end")], keep=keep)
        assert head == Head(1 if kept == 9 else 2, kept + 2)
        assert [m.id for m in session.messages()][:kept] == [m.id for m in said[:kept]]
        assert texts(session)[kept:] == ["new", "end"]
        assert store.stats().messages == stored + 2
        _check_windows(session)

    def test_what_follows_already_is_shared(self, store: Store, session: Session) -> None:
        """A tail that begins as before is stored from where it differs; usage is charged once."""
        session.append(*parse_conversation("u a"), Message.assistant("b", usage=Usage(5)))
        session.append(Message.user("c"))
        read = session.messages()
        stored = store.stats().messages
        assert session.replace(read[1:], keep=1) == Head(1, 4)
        head = session.replace([*read[1:3], Message.user("d")], keep=1)
        assert head == Head(2, 4)
        assert texts(session) == ["u1", "a2", "b", "d"]
        assert store.stats().messages == stored + 1
        assert session.replace([read[2], read[1]], keep=1) == Head(3, 3)
        assert session.info().usage.input == 5

    def test_a_shared_tail_is_cut_before_its_exchange_but_not_before_what_is_kept(
        self, session: Session
    ) -> None:
        """A result that follows its call already is shared with it, or stored again with it."""
        session.append(*parse_conversation(_EXCHANGE))
        read = session.messages()
        assert session.replace([*read[2:3], Message.user("x")], keep=2) == Head(2, 4)
        assert [m.id for m in session.messages()][:3] == [m.id for m in read[:3]]
        assert session.branches()[1].fork_seq == 2
        session.rewind(Head(1, 9))
        assert session.replace([*read[1:3], Message.user("y")], keep=1) == Head(4, 4)
        assert session.branches()[3].fork_seq == 1
        assert texts(session)[3] == "y"

    def test_a_tail_may_follow_what_was_abandoned(self, session: Session) -> None:
        """`keep` reaches other branches, as `rewind` does; no tail is an exact rewind."""
        said = parse_conversation("u a u a")
        session.append(*said)
        session.clear()
        assert session.replace([Message.user("x")], keep=said[1].id) == Head(3, 3)
        assert texts(session) == ["u1", "a2", "x"]
        assert session.replace([], keep=Head(1, 4)) == Head(4, 4)
        assert session.replace([], keep=0) == Head(5, 0)
        assert session.messages() == []

    def test_a_tail_has_no_id_of_what_is_kept(self, session: Session) -> None:
        """With the same body it is there already; with another it is refused."""
        said = parse_conversation("u a u")
        session.append(*said)
        before = read_session(session)
        with pytest.raises(IdConflict):
            session.replace([Message.user("other", id=said[0].id)], keep=2)
        assert read_session(session) == before
        session.replace([said[0], Message.user("x"), said[2]], keep=2)
        assert texts(session) == ["u1", "a2", "x", "u3"]

    @pytest.mark.parametrize("keep", [4, "nobody", Head(1, 4), Head(7, 1)])
    def test_what_is_not_there_cannot_be_kept(self, session: Session, keep: Any) -> None:  # noqa: ANN401
        """`MessageNotFound`, and nothing is stored."""
        session.append(*parse_conversation("u a u"))
        before = read_session(session)
        with pytest.raises(MessageNotFound):
            session.replace([Message.user("x")], keep=keep)
        assert read_session(session) == before

    @pytest.mark.parametrize("keep", [-1, 1.5, True, []])
    def test_what_names_no_message_cannot_be_kept(self, session: Session, keep: Any) -> None:  # noqa: ANN401
        """Refused, and named."""
        session.append(*parse_conversation("u a u"))
        with pytest.raises(BadQuery, match="keep"):
            session.replace([], keep=keep)

    def test_a_retry_of_a_tail_that_only_grew_is_recognized(self, session: Session) -> None:
        """By its messages, all stored after the expected head."""
        head = session.append(*parse_conversation("u a"))
        tail = [Message.user("x"), Message.user("y")]
        first = session.replace(tail, keep=2, expect=head)
        assert first == Head(1, 4)
        session.append(Message.user("later"))
        assert session.replace(tail, keep=2, expect=head) == first
        assert texts(session) == ["u1", "a2", "x", "y", "later"]
        with pytest.raises(HeadMoved):
            session.replace([*tail, Message.user("z")], keep=2, expect=head)

    def test_a_recovered_reply_is_replaced_with_the_tail(
        self, store: Store, session: Session
    ) -> None:
        """A turn that a crash left open ends first; what it left is on its branch."""
        session.append(*parse_conversation("u a"))
        turn = self.open_turn(session)
        turn.add(call_message("t"))
        reply = turn.stream()
        reply.write("half")
        reply.flush()
        self.expire_leases(store)
        assert session.replace([Message.user("x")], keep=3) == Head(2, 4)
        assert texts(session)[3:] == ["x"]
        assert texts(session, branch=1)[3:] == ["half"]
        _check_windows(session)


def _check_windows(session: Session) -> None:
    for provider in PROVIDERS if session.head().seq else ():
        window = session.window(provider=provider)
        assert problems(provider, window.messages, window.system) == []
