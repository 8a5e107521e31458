"""`session.amend`: a message with other parts, on a new branch; the earlier version stays."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import (
    BadMessage,
    BadQuery,
    HeadMoved,
    MessageNotFound,
    SessionBusy,
)
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, read_session, texts
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.testing.legality import PROVIDERS, problems
from holdfast.values import File, Head, Message, Provenance, Record, Text, ToolCall, Usage

_SECRET = "what was said first, and must go"  # noqa: S105 - it is what a user said
_FILE = b"a file of the first version" * 20


class AmendTests(StoreFixtures):
    """Amendments, and the erasure of every version."""

    def test_records_go_with_the_messages_that_are_placed_again(
        self, store: Store, session: Session
    ) -> None:
        """Behind the amended message and later, also those that a fork inherited; each once."""
        large = {"f": File(data=_FILE * 10)}
        session.append(Record("k", data=0), Message.user("a"), Record("k", data=1, files=large))
        session.append(*(Record("many", key=str(n)) for n in range(450)), Message.user("b"))
        session.append(Record("k", data=2), Record("other", key="x", data=3))
        fork = session.fork()
        fork.append(Record("k", data=4), Message.user("c"), Record("k", data=5))
        before = fork.records()
        assert fork.amend(1, "A") == Head(2, 3)
        again = self.reopen(store).get(fork.id)
        assert again.records() == before
        assert [again.record("k", at=seq).data for seq in (0, 1, 2, 3)] == [0, 1, 4, 5]  # type: ignore[union-attr]
        assert again.append(Record("k", data=5, id=before[-1].id)) == Head(2, 3)
        assert [m.text for m in again.messages()] == ["A", "b", "c"]
        other = self.reopen(store)
        assert other.verify() == []
        other.trash(session.id)
        other.purge(session.id)
        kept = other.get(fork.id).record("k", at=1)
        assert kept is not None
        assert other.blob(kept.files["f"].sha256 or "") == _FILE * 10
        assert other.verify() == []

    def test_only_the_parts_change(self, store: Store, session: Session) -> None:
        """Id, role, seq, time, turn, usage and all else stay, of it and of what follows it."""
        with session.turn(model="m") as turn:
            turn.user("question")
            reply = Message.assistant(
                ["typo", File(data=_FILE)],
                tool_calls=[ToolCall("c", "tool")],
                name="n",
                model="m",
                usage=Usage(5, 7),
                metadata={"k": [1]},
                provenance=Provenance("elsewhere"),
            )
            turn.add(reply)
            turn.tool("c", "result")
            turn.add(Message.assistant("end", usage=Usage(1, 1)))
        session.summarize("short", upto=2)
        before, spent, turns = session.messages(), session.usage(), session.turns()
        head = session.amend(reply.id, ["right", ToolCall("c", "tool")])
        assert head == Head(2, 5)
        again = self.reopen(store).get(session.id)
        amended = again.messages()
        assert amended[1].parts == (Text("right"), ToolCall("c", "tool"))
        assert amended == [before[0], before[1].with_parts(amended[1].parts), *before[2:]]
        assert again.messages(branch=1) == before
        assert (again.usage(), again.turns()) == (spent, turns)
        for provider in PROVIDERS:
            window = again.window(provider=provider)
            assert problems(provider, window.messages, window.system) == []

    @pytest.mark.parametrize(("seq", "by"), [(1, "seq"), (2, "id"), (3, "head")])
    def test_any_message_of_the_history(
        self, store: Store, session: Session, seq: int, by: str
    ) -> None:
        """Given by seq, id or head; what is before it is shared, what follows is placed again."""
        session.append(*parse_conversation("u a u"))
        stored = store.stats().messages
        name: Any = {"seq": seq, "id": session.messages()[seq - 1].id, "head": Head(1, seq)}[by]
        assert session.amend(name, "new") == Head(2, 3)
        said = ["u1", "a2", "u3"]
        assert texts(session, branch=1) == said
        said[seq - 1] = "new"
        assert texts(session) == said
        assert store.stats().messages == stored + 4 - seq
        assert session.info().preview == said[0]

    def test_it_can_be_amended_again_and_undone(self, session: Session) -> None:
        """Every version has its branch; a rewind goes back to any of them."""
        session.append(*parse_conversation("u a"))
        assert [session.amend(1, text) for text in "abc"] == [Head(2, 2), Head(3, 2), Head(4, 2)]
        assert [texts(session, branch=n)[0] for n in (1, 2, 3, 4)] == ["u1", "a", "b", "c"]
        assert session.rewind(Head(1, 2)) == Head(5, 2)
        assert texts(session) == ["u1", "a2"]

    def test_the_same_parts_change_nothing(self, session: Session) -> None:
        """The head stays where it is."""
        session.append(*parse_conversation("u a"))
        before = read_session(session)
        assert session.amend(1, [Text("u1")]) == Head(1, 2)
        assert read_session(session) == before

    def test_what_a_fork_inherited_is_amended_there_alone(self, session: Session) -> None:
        """The parent keeps its version."""
        session.append(*parse_conversation("u a u"))
        fork = session.fork()
        fork.append(Message.assistant("mine", usage=Usage(2)))
        assert fork.amend(2, "new") == Head(2, 4)
        assert texts(fork) == ["u1", "new", "u3", "mine"]
        assert texts(session) == ["u1", "a2", "u3"]
        assert fork.info().usage.input == 2

    # --------------------------------------------------------------------------------- refusals

    @pytest.mark.parametrize("name", [0, 4, "nobody", Head(1, 4), Head(7, 1), Head(1, 0)])
    def test_what_is_not_there_cannot_be_amended(self, session: Session, name: Any) -> None:  # noqa: ANN401
        """`MessageNotFound`, and nothing is stored."""
        session.append(*parse_conversation("u a u"))
        before = read_session(session)
        with pytest.raises(MessageNotFound):
            session.amend(name, "x")
        assert read_session(session) == before

    def test_an_abandoned_message_cannot_be_amended(self, session: Session) -> None:
        """Rewind to it first."""
        said = parse_conversation("u a u")
        session.append(*said)
        session.rewind(1)
        for name in (said[1].id, Head(1, 2)):
            with pytest.raises(MessageNotFound, match="not in the current history"):
                session.amend(name, "x")
        assert session.amend(Head(1, 1), "x") == Head(3, 1)

    @pytest.mark.parametrize("name", [None, -1, 1.5, True, []])
    def test_what_names_no_message_cannot_be_amended(self, session: Session, name: Any) -> None:  # noqa: ANN401
        """Refused, and named."""
        session.append(Message.user("a"))
        with pytest.raises(BadQuery, match="message"):
            session.amend(name, "x")

    @pytest.mark.parametrize("parts", [5, None, [5], [Text(5)], [File(sha256="0" * 64)]])  # type: ignore[arg-type]
    def test_bad_parts_are_refused(self, session: Session, parts: Any) -> None:  # noqa: ANN401
        """As in an append, and nothing is stored."""
        session.append(*parse_conversation("u a"))
        before = read_session(session)
        with pytest.raises(BadMessage):
            session.amend(1, parts)
        assert read_session(session) == before

    def test_summaries_and_erased_messages_are_not_amended(self, session: Session) -> None:
        """The error says what to do instead."""
        session.append(*parse_conversation("u a"))
        session.summarize("short")
        session.erase(1)
        before = read_session(session)
        with pytest.raises(BadQuery, match="erased"):
            session.amend(1, "x")
        with pytest.raises(BadQuery, match="summarize"):
            session.amend(3, "x")
        assert read_session(session) == before
        session.amend(2, "after an erased one")
        assert [m.status for m in session.messages()] == ["erased", "complete", "complete"]

    def test_a_moved_head_and_an_open_turn(self, session: Session) -> None:
        """`HeadMoved` and `SessionBusy`, as of any move."""
        head = session.append(*parse_conversation("u a"))
        with pytest.raises(HeadMoved):
            session.amend(1, "x", expect=Head(1, 1))
        with session.turn(), pytest.raises(SessionBusy):
            session.amend(1, "x")
        assert session.amend(1, "x", expect=head) == Head(2, 2)

    # ---------------------------------------------------------------------------------- erasure

    def test_erasing_takes_every_version(self, store: Store, session: Session) -> None:
        """Of all branches; what follows it stays."""
        session.append(Message.user([_SECRET, File(data=_FILE)], id="s"), Message.user("b"))
        session.amend("s", "second version of it")
        session.amend("s", "third version of it")
        report = session.erase("s")
        assert (report.places, report.blobs) == (3, 1)
        self.check_proof(report.scan)
        again = self.reopen(store).get(session.id)
        for branch in (1, 2, 3):
            assert texts(again, branch=branch) == ["", "b"]
            assert again.messages(branch=branch)[0].status == "erased"

    @pytest.mark.parametrize("eraser", ["the fork", "the parent", "another fork"])
    def test_erasing_takes_the_versions_of_forks_and_parents(
        self, session: Session, eraser: str
    ) -> None:
        """Whoever erases it: the versions of one message share a session."""
        session.append(Message.user(_SECRET, id="s"), Message.user("b"))
        fork, other = session.fork(), session.fork()
        fork.amend("s", "version of the fork")
        other.amend("s", "version of the other")
        apart = session.fork(0)
        apart.append(Message.user("not the same", id="s"))
        by = {"the fork": fork, "the parent": session, "another fork": other}[eraser]
        report = by.erase("s")
        assert report.places == 3
        assert set(report.erased_in) == {session.id, fork.id, other.id}
        for found in (session, fork, other):
            for branch in found.branches():
                assert texts(found, branch=branch.number) == ["", "b"]
        assert texts(apart) == ["not the same"]
        self.check_proof(report.scan)

    def test_erasing_takes_the_version_that_a_purged_parent_left(
        self, store: Store, session: Session
    ) -> None:
        """A fork keeps it alive, on a branch that is no longer its current one."""
        session.append(Message.user(_SECRET, id="s"), Message.user("b"))
        fork = session.fork()
        fork.amend("s", "second version of it")
        store.purge(session.id)
        report = fork.erase("s")
        assert (report.places, report.erased_in) == (2, (fork.id,))
        assert texts(fork, branch=1) == ["", "b"]
