"""Forks: a new session whose history starts in another's; nothing is copied."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from holdfast.errors import BadMessage, BadQuery, HeadMoved, IdConflict, Invalid, KeyTaken
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import (
    parse_conversation,
    read_session,
    take_turn,
    texts,
)
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import File, Head, Message, Usage


class ForkTests(StoreFixtures):
    """`fork`."""

    def test_a_fork_begins_with_the_history(self, store: Store, session: Session) -> None:
        """The messages are the same; none is stored again, and no usage is added."""
        for text in "ab":
            with session.turn() as turn:
                turn.user(text)
                turn.assistant(text.upper(), usage=Usage(5), cost=Decimal("0.1"))
        rows = store.stats().messages
        fork = session.fork()
        assert store.stats().messages == rows
        later = self.reopen(store)
        found, parent = later.get(fork.id), later.get(session.id)
        assert found.messages() == parent.messages()
        info = found.info()
        assert (info.messages, info.turns, info.usage, info.cost) == (4, 0, Usage(), Decimal(0))
        assert (info.preview, info.parent, info.relation) == ("a", session.id, "fork")
        assert (found.turns(), found.usage().by_model, found.queued()) == ([], (), [])
        assert found.head() == Head(1, 4)

    def test_what_is_inherited(self, store: Store) -> None:
        """Scope, agent, model and folder are inherited; key, title and metadata are not."""
        parent = store.session(
            "k", scope="s", agent="g", model="m", cwd="/", title="t", metadata={"x": 1}
        )
        parent.update(pinned=True, archived=True)
        parent.enqueue("waiting")
        info = parent.fork().info()
        assert (info.scope, info.agent, info.model, info.cwd) == ("s", "g", "m", "/")
        assert (info.key, info.title, info.title_by, info.metadata) == (None, None, None, {})
        assert (info.pinned, info.archived, info.goal) == (False, False, None)
        own = parent.fork(key="k2", title="t2", cwd="/2", model="m2", metadata={"y": 2})
        info = own.info()
        assert (info.key, info.title, info.title_by) == ("k2", "t2", "user")
        assert (info.cwd, info.model, info.metadata) == ("/2", "m2", {"y": 2})
        assert (own.key, store.session("k2").id) == ("k2", own.id)

    def test_both_go_on_apart(self, session: Session) -> None:
        """Messages appended to one do not appear in the other."""
        session.append(*parse_conversation("u a"))
        fork = session.fork()
        session.append(Message.user("here"))
        fork.append(Message.user("there"), Message.user("more"))
        assert texts(session) == ["u1", "a2", "here"]
        assert texts(fork) == ["u1", "a2", "there", "more"]
        assert [m.seq for m in fork.messages()] == [1, 2, 3, 4]
        take_turn(fork, "x")
        assert (session.info().turns, fork.info().turns) == (0, 1)

    def test_moving_one_leaves_the_other(self, session: Session) -> None:
        """Also when a fork is rewound into the history it shares."""
        for text in "ab":
            take_turn(session, text)
        fork = session.fork()
        before = read_session(session)
        assert fork.undo().seq == 2
        fork.append(Message.user("other"))
        fork.clear()
        fork.rewind(Head(1, 4))
        assert read_session(session) == before
        session.clear()
        session.append(Message.user("new"))
        assert texts(fork) == ["a", "A", "b", "B"]
        assert [fork.undo().seq for _ in range(2)] == [2, 0]
        assert [fork.redo().seq for _ in range(2)] == [2, 4]

    def test_the_branches_of_a_fork(self, session: Session) -> None:
        """They are numbered from 1, and name the parent's branch they start from."""
        take_turn(session, "a")
        session.clear()
        take_turn(session, "b")
        fork = session.fork()
        take_turn(fork, "c")
        fork.rewind(1)
        fork.rewind(Head(1, 3))
        rows = [
            (b.number, b.parent, b.parent_id, b.fork_seq, b.seq, b.reason) for b in fork.branches()
        ]
        assert rows == [
            (1, 2, session.id, 2, 4, "fork"),
            (2, 2, session.id, 1, 1, "rewind"),
            (3, 1, fork.id, 3, 3, "rewind"),
        ]

    def test_a_fork_before_the_first_message(self, session: Session) -> None:
        """It is empty, and still a fork."""
        session.append(*parse_conversation("u a"))
        fork = session.fork(0)
        assert (fork.messages(), fork.head()) == ([], Head(1, 0))
        assert (fork.info().parent, fork.info().preview) == (session.id, None)
        (branch,) = fork.branches()
        assert (branch.parent, branch.parent_id, branch.reason) == (None, None, "fork")
        empty = session.fork(0).fork()
        assert (empty.messages(), empty.info().relation) == ([], "fork")

    def test_forks_of_forks(self, store: Store, session: Session) -> None:
        """Each adds to what it shares; every range reads as if it were one history."""
        session.append(*(Message.user(f"0.{n}") for n in range(60)))
        newest, wanted = session, texts(session)
        for depth in range(1, 5):
            newest = newest.fork(len(wanted) - 10)
            newest.append(*(Message.user(f"{depth}.{n}") for n in range(60)))
            wanted = [*wanted[:-10], *(f"{depth}.{n}" for n in range(60))]
        found = self.reopen(store).get(newest.id)
        assert texts(found) == wanted
        assert [m.seq for m in found.messages()] == list(range(1, len(wanted) + 1))
        for low, high in ((1, 52), (40, 130), (100, 101), (0, 400)):
            part = found.messages(after=low, before=high)
            assert [m.text for m in part] == wanted[low : high - 1]
        assert [m.text for m in found.messages(limit=150)] == wanted[-150:]
        assert [m.text for m in found.messages(after=45, limit=10)] == wanted[45:55]

    def test_a_fork_of_what_was_abandoned(self, session: Session) -> None:
        """The fork has that branch's preview; the session's head does not move."""
        session.append(Message.user("first"), Message.user("second"))
        session.replace([Message.user("edited")])
        fork = session.fork(Head(1, 2))
        assert (texts(fork), fork.info().preview) == (["first", "second"], "first")
        assert texts(session) == ["edited"]

    def test_the_preview_is_that_of_its_own_history(self, session: Session) -> None:
        """A fork before the first user message shows the assistant's text."""
        session.append(Message.system("s"), Message.assistant("hello"), Message.user("why"))
        assert [session.fork(at).info().preview for at in range(4)] == [None, None, "hello", "why"]
        early = session.fork(1)
        early.append(Message.user("mine"))
        assert early.info().preview == "mine"

    def test_ids_of_the_shared_history_are_known(self, session: Session) -> None:
        """Appending one is a retry, or refused with another body; ids after the fork are new."""
        session.append(Message.user("a", id="a"), Message.user("b", id="b"))
        fork = session.fork(1)
        assert fork.append(Message.user("a", id="a")) == Head(1, 1)
        with pytest.raises(IdConflict):
            fork.append(Message.user("x", id="a"))
        assert fork.append(Message.user("x", id="b")) == Head(1, 2)
        assert texts(session) == ["a", "b"]

    def test_files_of_the_shared_history(self, store: Store, session: Session) -> None:
        """They can be read through the fork, and named by hash in it."""
        session.append(Message.user([File(data=b"file")]), Message.user("x" * 200_000))
        fork = session.fork()
        fork.append(Message.user([fork.messages()[0].parts[0]]))
        assert fork.messages()[1].text == "x" * 200_000
        assert store.stats().blobs == 2

    def test_a_fork_compares(self, session: Session) -> None:
        """With a stale `expect=` no fork is created."""
        session.append(*parse_conversation("u"))
        seen = session.head()
        assert session.fork(expect=seen).head() == Head(1, 1)
        session.append(*parse_conversation("a"))
        with pytest.raises(HeadMoved):
            session.fork(expect=seen)
        assert len(session.children()) == 1

    def test_a_key_that_is_taken(self, store: Store, session: Session) -> None:
        """`KeyTaken`, also for the parent's key, and nothing is created."""
        with pytest.raises(KeyTaken):
            session.fork(key="the session")
        assert store.stats().sessions == 1

    @pytest.mark.parametrize(
        "said",
        [{"key": ""}, {"key": 5}, {"title": 5}, {"cwd": 5}, {"model": 5}, {"metadata": 5}],
    )
    def test_what_cannot_be_said_of_a_fork(
        self, store: Store, session: Session, said: dict[str, Any]
    ) -> None:
        """`BadMessage` names the field."""
        with pytest.raises(BadMessage, match=next(iter(said))):
            session.fork(**said)
        assert store.stats().sessions == 1

    def test_a_fork_while_a_turn_is_open(self, session: Session) -> None:
        """The turn continues in the parent; the fork has none, and can open its own."""
        with session.turn() as turn:
            turn.user("q")
            reply = turn.stream()
            reply.write("half")
            reply.flush()
            fork = session.fork()
            assert fork.info().state == "done"
            take_turn(fork, "x")
            reply.close()
        assert texts(session) == ["q", "half"]
        assert texts(fork) == ["q", "x", "X"]

    def test_a_fork_of_a_crashed_session(self, store: Store, session: Session) -> None:
        """The fork does not recover the parent, whose turn stays open."""
        turn = self.open_turn(session)
        turn.user("q")
        self.expire_leases(store)
        fork = session.fork()
        assert (texts(fork), fork.interrupted) == (["q"], False)
        assert session.info().state == "interrupted"
        assert session.recover() is not None

    def test_many_at_once(self, store: Store, session: Session) -> None:
        """Threads that fork one session get one each."""
        session.append(*parse_conversation("u a"))
        run_concurrently(*(partial(self.fork_some, session) for _ in range(4)))
        assert len(session.children()) == 20
        assert store.stats().sessions == 21
        assert store.stats().messages == 2 + 20

    def fork_some(self, session: Session) -> None:
        """Fork a few times, and write to each fork."""
        for _ in range(5):
            session.fork().append(Message.user("x"))

    def test_undoing_into_the_parent_charges_nothing_twice(self, session: Session) -> None:
        """Messages of the shared history that are appended again were charged to the parent."""
        reply = Message.assistant("a", usage=Usage(5))
        session.append(Message.user("q"), reply)
        fork = session.fork()
        fork.undo()
        fork.append(Message.user("other"), reply)
        assert fork.usage().usage == fork.info().usage == Usage()

    def test_what_a_fork_cannot_do(self, session: Session) -> None:
        """A new fork has nothing to redo."""
        session.append(*parse_conversation("u a"))
        session.undo()
        with pytest.raises(BadQuery, match="redo"):
            session.fork().redo()
        with pytest.raises(Invalid):
            session.fork(1.5)  # type: ignore[arg-type]
