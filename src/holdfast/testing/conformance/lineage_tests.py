"""Lineage: sessions derived from others, and what each relation shares."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from typing import Any, get_args

import pytest

from holdfast.errors import BadRef, HoldfastError, Invalid, KeyTaken, SessionNotFound
from holdfast.session import Session, number_of
from holdfast.store import Store
from holdfast.testing.conformance.conversation import parse_conversation, take_turn, texts
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Head, Message, Relation, Usage

_RELATIONS: tuple[Relation, ...] = get_args(Relation)
_SHARING = {"fork", "continue"}


class LineageTests(StoreFixtures):
    """`create(parent=…)`, `lineage`, `children`, and `latest` among relatives."""

    @pytest.mark.parametrize("relation", _RELATIONS)
    def test_what_each_relation_shares(
        self, store: Store, session: Session, relation: Relation
    ) -> None:
        """`fork` and `continue` begin with the parent's history, the others empty."""
        take_turn(session, "a")
        rows = store.stats().messages
        child = store.create(parent=session, relation=relation)
        assert store.stats().messages == rows
        child = self.reopen(store).get(child.id)
        shared = 2 if relation in _SHARING else 0
        info = child.info()
        assert (info.parent, info.relation, info.messages) == (session.id, relation, shared)
        assert texts(child) == ["a", "A"][:shared]
        assert info.preview == ("a" if shared else None)
        assert (info.turns, info.usage) == (0, Usage())
        assert child.lineage()[-1].seq == shared
        child.append(Message.user("own"))
        assert child.head() == Head(1, shared + 1)

    def test_continue_is_what_is_meant(self, store: Store, session: Session) -> None:
        """`continue` is the default relation, and the reason of the first branch."""
        session.append(*parse_conversation("u a"))
        child = store.create(parent=session)
        assert child.info().relation == "continue"
        assert [b.reason for b in child.branches()] == ["continue"]
        assert store.create().info().relation is None

    def test_a_new_run_inherits_where_it_runs(self, store: Store) -> None:
        """Its own arguments take precedence over what the parent has."""
        parent = store.create(scope="s", agent="g", model="m", cwd="/", title="t")
        info = store.create(parent=parent).info()
        assert (info.scope, info.agent, info.model, info.cwd) == ("s", "g", "m", "/")
        assert info.title is None
        info = store.create(parent=parent, scope="s2", agent="g2", model="m2", cwd="/2").info()
        assert (info.scope, info.agent, info.model, info.cwd) == ("s2", "g2", "m2", "/2")

    def test_a_parent_is_named_as_any_session(self, store: Store) -> None:
        """By the session itself, its id, an id prefix, its key, title or run."""
        parent = store.create(key="the key", title="The Title")
        with parent.turn(run_id="the run"):
            pass
        for ref in (parent, parent.id, parent.id[:6], "the key", "The Title", "the run"):
            assert store.create(parent=ref).info().parent == parent.id

    @pytest.mark.parametrize(
        ("parent", "error"),
        [("nobody", SessionNotFound), ("", BadRef), (5, BadRef), ([], BadRef)],
    )
    def test_a_parent_that_is_none(
        self,
        store: Store,
        parent: Any,  # noqa: ANN401
        error: type[HoldfastError],
    ) -> None:
        """It is refused as by `get`, and nothing is created."""
        with pytest.raises(error):
            store.create(parent=parent)
        assert store.stats().sessions == 0

    def test_a_session_of_another_store_is_no_parent(self, store: Store) -> None:
        """Its row number may belong to another session here, whose history it would then share."""
        other = self.open(tenant="another")
        theirs, mine = other.create(), store.create()
        theirs.append(Message.user("theirs"))
        mine.append(Message.user("mine"))
        with pytest.raises(SessionNotFound):
            store.create(parent=theirs)
        with pytest.raises(SessionNotFound):
            other.create(parent=mine)
        assert (store.stats().sessions, other.stats().sessions) == (1, 1)

    def test_a_parent_from_another_opening(self, store: Store, session: Session) -> None:
        """A session handle of another opening is the same session."""
        self.need_persistence()
        session.append(*parse_conversation("u a"))
        there = self.open().get(session.id)
        assert texts(store.create(parent=there)) == ["u1", "a2"]

    @pytest.mark.parametrize("relation", ["", "child", None, 5, []])
    def test_a_relation_that_is_none(
        self,
        store: Store,
        session: Session,
        relation: Any,  # noqa: ANN401
    ) -> None:
        """`Invalid` names it."""
        with pytest.raises(Invalid, match="relation"):
            store.create(parent=session, relation=relation)
        assert store.stats().sessions == 1

    @pytest.mark.parametrize("relation", ["fork", "reset", "delegate", "import"])
    def test_a_relation_without_a_parent(self, store: Store, relation: Relation) -> None:
        """`Invalid`: it needs a parent."""
        with pytest.raises(Invalid, match="relation"):
            store.create(relation=relation)
        assert store.stats().sessions == 0

    def test_the_parents_key_is_not_the_childs(self, store: Store, session: Session) -> None:
        """`KeyTaken`, as for any session."""
        with pytest.raises(KeyTaken):
            store.create(key="the session", parent=session)
        assert store.create(key="next", parent=session).key == "next"

    def test_a_parent_with_an_open_exchange(self, store: Store, session: Session) -> None:
        """The new session begins before the exchange, as a fork does."""
        with session.turn() as turn:
            turn.user("q")
            turn.assistant("", tool_calls=parse_conversation("+c")[0].tool_calls)
            child = store.create(parent=session)
            assert child.head() == Head(1, 1)
            assert child.branches()[0].asked_seq == 2
            turn.tool("c", "result")

    # --------------------------------------------------------------------------------- the edges

    def test_the_lineage_starts_at_the_root(self, store: Store) -> None:
        """Every ancestor with its relation and how much is shared; the session itself last."""
        root = store.create(title="root")
        take_turn(root, "a")
        run = store.create(parent=root, title="run")
        take_turn(run, "b")
        fork = run.fork(3)
        helper = store.create(parent=fork, relation="delegate")
        rows = [
            (link.session_id, link.parent, link.relation, link.seq, link.title, link.state)
            for link in helper.lineage()
        ]
        assert rows == [
            (root.id, None, None, 0, "root", "live"),
            (run.id, root.id, "continue", 2, "run", "live"),
            (fork.id, run.id, "fork", 3, None, "live"),
            (helper.id, fork.id, "delegate", 0, None, "live"),
        ]
        assert [link.created_at for link in helper.lineage()] == [
            session.info().created_at for session in (root, run, fork, helper)
        ]
        assert root.lineage() == helper.lineage()[:1]

    def test_children_are_listed_oldest_first(self, store: Store, session: Session) -> None:
        """The direct children, of every relation."""
        made = [store.create(parent=session, relation=relation) for relation in _RELATIONS]
        store.create(parent=made[0])
        store.create()
        found = session.children()
        assert [link.session_id for link in found] == [child.id for child in made]
        assert [link.relation for link in found] == list(_RELATIONS)
        assert {link.parent for link in found} == {session.id}
        assert made[1].children() == []

    def test_links_have_the_key_and_the_metadata(self, store: Store) -> None:
        """Of a purged session neither is left."""
        root = store.create(key="root", metadata={"user": "42"})
        root.append(Message.user("a"))
        child = root.fork(key="child", metadata={"n": 1})
        seen = [(link.key, link.metadata) for link in child.lineage()]
        assert seen == [("root", {"user": "42"}), ("child", {"n": 1})]
        assert [(link.key, link.metadata) for link in root.children()] == seen[1:]
        store.purge(root.id)
        assert [(link.key, link.metadata) for link in child.lineage()] == [(None, {}), seen[1]]

    def test_lineage_shows_what_is_in_the_trash(self, store: Store, session: Session) -> None:
        """A trashed session still appears in lineages, marked as trashed."""
        child = store.create(parent=session, title="child")
        store.trash(session.id)
        assert [link.state for link in child.lineage()] == ["trashed", "live"]
        store.trash(child.id)
        assert [(c.state, c.title) for c in session.children()] == [("trashed", "child")]
        store.restore(session.id)
        assert [link.state for link in child.lineage()] == ["live", "trashed"]

    def test_lineage_shows_what_was_purged(self, store: Store) -> None:
        """While a fork needs it, with its own parent; afterwards only its id."""
        sessions = [store.create(title="0")]
        sessions[0].append(Message.user("0"))
        for n in range(1, 4):
            sessions.append(store.create(parent=sessions[-1], title=str(n)))
            sessions[-1].append(Message.user(str(n)))
        helper = store.create(parent=sessions[1], relation="delegate")
        store.purge(sessions[1].id)
        assert [(link.session_id, link.state, link.title) for link in sessions[3].lineage()] == [
            (sessions[0].id, "live", "0"),
            (sessions[1].id, "purged", None),
            (sessions[2].id, "live", "2"),
            (sessions[3].id, "live", "3"),
        ]
        assert [c.state for c in sessions[0].children()] == ["purged"]
        store.purge(sessions[3].id)
        store.purge(sessions[2].id)
        last, itself = helper.lineage()[-2:]
        assert (last.session_id, last.state, last.title) == (sessions[1].id, "purged", None)
        assert (itself.session_id, itself.parent) == (helper.id, sessions[1].id)
        assert helper.info().parent == sessions[1].id

    # ---------------------------------------------------------------------------------- long chains

    def test_a_run_per_day(self, store: Store) -> None:
        """Each has its own id and run; the history is whole, and turns belong to their run."""
        newest: Session | None = None
        for day in range(5):
            newest = store.create(parent=newest, scope="work")
            with newest.turn(run_id=f"run-{day}") as turn:
                turn.user(f"{day}")
            self.clock.advance(86_400)
        assert newest is not None
        assert texts(newest) == ["0", "1", "2", "3", "4"]
        assert [t.run_id for t in newest.turns()] == ["run-4"]
        assert store.get("run-2").head() == Head(1, 3)
        assert len({m.turn_id for m in newest.messages()}) == 5
        assert store.stats().messages == 5

    @pytest.mark.parametrize("runs", [100, pytest.param(1000, marks=pytest.mark.long)])
    def test_a_chain_of_many_runs(self, store: Store, runs: int) -> None:
        """It reads whole and in parts; no message was copied."""
        newest = store.create()
        newest.append(Message.user("0"))
        for n in range(1, runs):
            newest = store.create(parent=newest)
            newest.append(Message.user(str(n)))
        later = self.reopen(store)
        found = later.get(newest.id)
        wanted = [str(n) for n in range(runs)]
        assert texts(found) == wanted
        assert [m.text for m in found.messages(limit=3)] == wanted[-3:]
        assert [m.text for m in found.messages(after=10, limit=2)] == ["10", "11"]
        assert [link.seq for link in found.lineage()] == list(range(runs))
        stats = later.stats()
        assert (stats.messages, stats.branches, stats.sessions) == (runs, runs, runs)
        assert found.undo(runs).seq == 0
        assert found.redo().seq == runs

    def test_runs_that_said_nothing_make_no_way_longer(self, store: Store) -> None:
        """A history's ancestry contains only branches with messages, and its own."""
        newest = store.create()
        newest.append(Message.user("a"))
        for _ in range(50):
            newest = store.create(parent=newest)
        for _ in range(50):
            newest = newest.fork()
        head = store.backend.read(lambda snapshot: snapshot.head(number_of(newest)))
        assert head is not None
        path = store.backend.read(lambda snapshot: snapshot.path(head.branch))
        assert len(path) == 2
        assert texts(newest) == ["a"]

    def test_undo_and_redo_make_no_way_longer(self, store: Store, session: Session) -> None:
        """The ancestry does not grow with the number of undos and redos."""
        session.append(*parse_conversation("u a u a"))
        for _ in range(50):
            session.undo()
            session.redo()
        head = store.backend.read(lambda snapshot: snapshot.head(number_of(session)))
        assert head is not None
        assert len(store.backend.read(lambda snapshot: snapshot.path(head.branch))) == 2
        assert len(session.branches()) == 101

    # ------------------------------------------------------------------------------------- latest

    def test_the_latest_is_never_a_delegate(self, store: Store) -> None:
        """A delegate's session is not one that a user resumes."""
        mine = store.create(scope="s")
        mine.append(Message.user("a"))
        helper = store.create(parent=mine, relation="delegate", scope="s", agent="g", cwd="/")
        helper.append(Message.user("b"))
        for filters in ({}, {"scope": "s"}):
            latest = store.latest(**filters)
            assert latest is not None
            assert latest.id == mine.id
        assert store.latest(agent="g") is None
        assert store.latest(cwd="/") is None
        assert {info.id for info in store.sessions()} == {mine.id, helper.id}

    @pytest.mark.parametrize("relation", sorted(set(_RELATIONS) - {"delegate"}))
    def test_the_latest_may_be_any_other_relative(
        self, store: Store, session: Session, relation: Relation
    ) -> None:
        """A relative of any other relation is the latest if it was created last."""
        session.append(*parse_conversation("u a"))
        child = store.create(parent=session, relation=relation)
        latest = store.latest()
        assert latest is not None
        assert latest.id == child.id
        session.append(Message.user("again"))
        latest = store.latest()
        assert latest is not None
        assert latest.id == session.id
