"""Replace: the given messages become the history; the common prefix is shared."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from holdfast import codec
from holdfast.clock import to_datetime
from holdfast.errors import BadMessage, IdConflict, Invalid, MessageNotFound
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Transaction
from holdfast.storage.rows import MessageRow
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    call_message,
    parse_conversation,
    read_session,
    take_turn,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Head, Message, Text, ToolCall, Usage


class ReplaceTests(StoreFixtures):
    """`replace`."""

    def test_the_common_beginning_is_shared(self, store: Store, session: Session) -> None:
        """Only new messages are stored; ids, times and metadata of the given ones are kept."""
        session.append(*(Message.user(str(n), metadata={"n": n}) for n in range(10)))
        old = session.messages()
        rows = store.stats().messages
        assert session.replace([*old[:7], Message.user("new", id="new")]) == Head(2, 8)
        assert store.stats().messages == rows + 1
        later = self.reopen(store).session("the session")
        assert later.messages()[:7] == old[:7]
        assert (later.messages()[7].text, later.messages()[7].id) == ("new", "new")
        assert later.messages(branch=1) == old
        branch = later.branches()[-1]
        assert (branch.reason, branch.parent, branch.fork_seq, branch.seq) == ("replace", 1, 7, 8)

    def test_the_same_again_changes_nothing(self, session: Session) -> None:
        """No branch, no message, the same head."""
        session.append(*parse_conversation("u +a -a a"))
        before = read_session(session)
        assert session.replace(session.messages()) == Head(1, 4)
        assert read_session(session) == before

    def test_more_at_the_end_is_an_append(self, store: Store, session: Session) -> None:
        """Nothing is abandoned, so no branch is opened."""
        session.append(*parse_conversation("u a"))
        assert session.replace([*session.messages(), *parse_conversation("s s")]) == Head(1, 4)
        assert len(session.branches()) == 1
        assert store.stats().messages == 4

    def test_less_at_the_end_stores_nothing(self, store: Store, session: Session) -> None:
        """The new branch is empty."""
        session.append(*parse_conversation("u a u a"))
        old = session.messages()
        assert session.replace(old[:3]) == Head(2, 3)
        assert session.messages() == old[:3]
        assert store.stats().messages == 4

    def test_nothing_at_all(self, session: Session) -> None:
        """An empty history; on an empty one nothing changes."""
        assert session.replace([]) == Head(1, 0)
        session.append(*parse_conversation("u a"))
        assert session.replace([]) == Head(2, 0)
        assert session.messages() == []
        assert session.info().preview is None
        assert texts(session, branch=1) == ["u1", "a2"]

    def test_an_edited_message_with_its_old_id(self, session: Session) -> None:
        """The history has the new text; the old one stays where it was."""
        session.append(*parse_conversation("u a u"))
        old = session.messages()
        edited = msgspec.structs.replace(old[1], parts=(Text("better"),))
        session.replace([old[0], edited, old[2]])
        assert texts(session) == ["u1", "better", "u3"]
        assert [m.id for m in session.messages()] == [m.id for m in old]
        assert session.messages()[2].created_at == old[2].created_at
        assert session.messages(branch=1) == old
        assert session.append(edited) == Head(2, 2)
        with pytest.raises(IdConflict):
            session.append(old[1])

    def test_another_order(self, session: Session) -> None:
        """The same messages, each once, in the given order."""
        session.append(*parse_conversation("u a s"))
        old = session.messages()
        session.replace(old[::-1])
        assert texts(session) == ["s3", "a2", "u1"]
        assert [m.seq for m in session.messages()] == [1, 2, 3]

    def test_messages_of_other_sessions(self, store: Store, session: Session) -> None:
        """They keep their ids and times; their turns are not this session's."""
        other = store.create()
        take_turn(other, "a")
        session.append(Message.user("x"))
        session.replace(other.messages())
        for mine, theirs in zip(session.messages(), other.messages(), strict=True):
            assert mine == msgspec.structs.replace(theirs, turn_id=None)

    def test_a_message_given_twice(self, session: Session) -> None:
        """It is stored once; two bodies under one id are refused."""
        session.append(*parse_conversation("u"))
        one = Message.user("one", id="one")
        session.replace([one, one])
        assert texts(session) == ["one"]
        before = read_session(session)
        with pytest.raises(IdConflict):
            session.replace([one, Message.user("two", id="one")])
        assert read_session(session) == before

    def test_the_id_of_input_that_waits(self, session: Session) -> None:
        """No other body may use it: the queued input would count as stored, and be lost."""
        session.append(*parse_conversation("u"))
        session.enqueue(Message.user("waiting", id="mine"))
        before = read_session(session)
        with pytest.raises(IdConflict):
            session.replace([Message.user("other", id="mine")])
        assert read_session(session) == before
        with session.turn() as turn:
            assert [m.text for m in turn.take_queued()] == ["waiting"]

    @pytest.mark.parametrize("given", [None, 5, "text", [None], ["text"], [{"role": "user"}]])
    def test_what_are_no_messages_is_refused(self, session: Session, given: Any) -> None:  # noqa: ANN401
        """`Invalid`, and nothing is changed."""
        session.append(*parse_conversation("u"))
        before = read_session(session)
        with pytest.raises(Invalid):
            session.replace(given)
        assert read_session(session) == before

    def test_a_history_longer_than_a_batch(self, store: Store, session: Session) -> None:
        """A history appended in several batches can be replaced in one call."""
        session.append(*(Message.user(str(n)) for n in range(codec.MAX_BATCH_ENTRIES)))
        session.append(*(Message.user(str(n)) for n in range(5)))
        old = session.messages()
        session.replace([*old[:-1], Message.user("end")])
        assert session.messages()[:-1] == old[:-1]
        assert store.stats().messages == len(old) + 1

    def test_a_file_that_is_not_stored(self, session: Session) -> None:
        """`BadMessage`, and the old history is untouched."""
        session.append(*parse_conversation("u a"))
        before = read_session(session)
        with pytest.raises(BadMessage):
            session.replace([Message.user([File(sha256="0" * 64)])])
        assert read_session(session) == before

    def test_files_and_large_parts_given_back(self, store: Store, session: Session) -> None:
        """As they were read, after a new message; their data is stored once."""
        session.append(Message.user([File(name="f", data=b"file")]), Message.user("x" * 200_000))
        old, stats = session.messages(), store.stats()
        session.replace([Message.user("new"), *old])
        assert [m.parts for m in session.messages()[1:]] == [m.parts for m in old]
        after = store.stats()
        assert (after.blobs, after.blob_bytes) == (stats.blobs, stats.blob_bytes)

    # ------------------------------------------------------------------------------- tool pairs

    def test_an_edited_result_keeps_its_call(self, session: Session) -> None:
        """The shared prefix ends before the exchange; the history is as given."""
        session.append(*parse_conversation("u +a,b -a -b a"))
        old = session.messages()
        edited = msgspec.structs.replace(old[3], parts=Message.tool("b", "better").parts)
        session.replace([*old[:3], edited, old[4]])
        assert [m.id for m in session.messages()] == [m.id for m in old]
        assert session.messages()[3].text == "better"
        branch = session.branches()[-1]
        assert (branch.asked_seq, branch.fork_seq) == (3, 1)

    def test_a_history_that_ends_in_a_call(self, session: Session) -> None:
        """`replace` does not change what the caller passes."""
        session.append(*parse_conversation("u +a -a a"))
        old = session.messages()
        assert session.replace(old[:2]).seq == 2
        assert [m.id for m in session.messages()] == [m.id for m in old[:2]]
        session.replace([call_message("z")])
        assert session.messages()[0].tool_calls == (ToolCall("z", "tool"),)

    # ------------------------------------------------------------------------ what the store made

    def test_summaries_given_back(self, session: Session) -> None:
        """Their coverage is kept, whether they are shared or stored again."""
        take_turn(session, "a")
        session.summarize("short")
        take_turn(session, "b")
        old = session.messages()
        session.replace(old[:4])
        assert session.messages() == old[:4]
        session.replace([Message.system("new"), *old])
        assert [(m.role, m.text, m.covers) for m in session.messages()[1:]] == [
            (m.role, m.text, m.covers) for m in old
        ]

    def test_a_summary_instead_of_what_it_covers(self, session: Session) -> None:
        """Compaction by replacement: the old branch keeps the original messages."""
        for text in "abc":
            take_turn(session, text)
        session.summarize("a and b", upto=4)
        old = session.messages()
        session.replace([old[6], *old[4:6]])
        assert texts(session) == ["a and b", "c", "C"]
        assert session.info().preview == "c"
        assert texts(session, branch=1)[:4] == ["a", "A", "b", "B"]

    def test_a_partial_reply_given_back(self, store: Store, session: Session) -> None:
        """It stays partial."""
        turn = self.open_turn(session)
        reply = turn.stream()
        reply.write("half")
        reply.flush()
        self.expire_leases(store)
        session.recover()
        session.replace([Message.user("new"), *session.messages()])
        assert [m.status for m in session.messages()] == ["complete", "partial"]

    def test_a_damaged_message_given_back(self, store: Store, session: Session) -> None:
        """In the shared prefix it is unchanged; after a change its bytes are stored again."""
        self.expect_no_damage = False
        session.append(*parse_conversation("u"))

        def spoil(tx: Transaction) -> None:
            head = tx.head(number_of(session))
            assert head is not None
            item = codec.encode(Message.user("spoilt"), to_datetime(tx.now()))
            tx.add_messages(head.branch, [MessageRow(2, item.id, None, 0, item.body)])
            tx.put_head(msgspec.structs.replace(head, seq=2))

        store.backend.write(spoil)
        session = session.fork()  # The session itself accepts no writes once this was read.
        session.append(*parse_conversation("a"))
        old = session.messages()
        assert [m.status for m in old] == ["complete", "damaged", "complete"]
        rows = store.stats().messages
        assert session.replace(old) == Head(1, 3)
        session.replace([*old[:2], Message.user("end")])
        assert store.stats().messages == rows + 1
        assert session.messages()[:2] == old[:2]
        session.replace([Message.user("new"), *old[1:]])
        found = session.messages()[1]
        assert (found.id, found.status, found.parts) == (old[1].id, "damaged", old[1].parts)

    # ------------------------------------------------------------------------- turns and spending

    def test_what_was_spent_is_not_spent_again(self, session: Session) -> None:
        """Returned messages are never charged again, in any order; new ones are charged."""
        with session.turn(model="m") as turn:
            turn.user("q")
            turn.assistant("a", usage=Usage(5), cost=Decimal("0.1"))
        session.append(Message.assistant("b", usage=Usage(7), cost=Decimal("0.2")))
        spent, turns = session.usage(), session.turns()
        old = session.messages()
        session.replace([Message.system("new"), *old])
        session.replace(old[::-1])
        session.clear()
        session.replace(old)
        assert session.usage() == spent
        assert session.info().usage == Usage(12)
        assert session.turns() == turns
        session.replace([*old, Message.assistant("c", usage=Usage(1))])
        session.replace([Message.assistant("d", usage=Usage(2)), *old])
        assert session.usage().usage == session.info().usage == Usage(15)
        assert session.info().cost == Decimal("0.3")

    def test_messages_stay_their_turns(self, session: Session) -> None:
        """They keep their turns, so that undo still counts them right."""
        turns = [take_turn(session, text).id for text in "abc"]
        old = session.messages()
        session.replace([Message.system("new"), *old])
        assert [m.turn_id for m in session.messages()] == [
            None,
            *(name for name in turns for _ in range(2)),
        ]
        assert session.undo(2).seq == 3

    def test_messages_that_come_back_stay_their_turns(self, session: Session) -> None:
        """Also when they were on another branch."""
        for text in "abc":
            take_turn(session, text)
        old = session.messages()
        session.undo(2)
        session.replace(old)
        assert session.messages() == old
        session.clear()
        session.replace(old[2:])
        assert [m.turn_id for m in session.messages()] == [m.turn_id for m in old[2:]]
        assert session.undo().seq == 2

    # ------------------------------------------------------------------------------------- forks

    def test_in_a_fork(self, store: Store, session: Session) -> None:
        """The prefix is shared with the parent, which does not change."""
        for text in "abc":
            take_turn(session, text)
        fork = session.fork()
        before = read_session(session)
        rows = store.stats().messages
        fork.replace([*fork.messages()[:4], Message.user("mine")])
        assert store.stats().messages == rows + 1
        assert texts(fork) == ["a", "A", "b", "B", "mine"]
        assert fork.messages()[:4] == session.messages()[:4]
        branch = fork.branches()[-1]
        assert (branch.parent, branch.parent_id, branch.fork_seq) == (1, session.id, 4)
        assert read_session(session) == before
        fork.replace([Message.user("new"), *session.messages()])
        assert fork.info().usage == Usage()
        assert session.messages() == before[1]

    def test_what_was_replaced_is_found_by_id(self, session: Session) -> None:
        """On its old branch, once the current history no longer has it."""
        session.append(Message.user("a", id="a"), Message.user("b", id="b"))
        session.replace([Message.user("a", id="a"), Message.user("c", id="c")])
        assert texts(session.fork("b")) == ["a", "b"]
        assert texts(session.fork("c")) == ["a", "c"]
        with pytest.raises(MessageNotFound):
            session.fork("d")
