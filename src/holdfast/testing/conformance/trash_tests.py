"""The trash: hidden, not lost; the key is free meanwhile."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import (
    AmbiguousRef,
    BadQuery,
    BadRef,
    KeyTaken,
    SessionNotFound,
)
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.conversation import read_session, take_turn, texts
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Message

_OPERATIONS: dict[str, Callable[[Store, str], object]] = {
    "trash": lambda store, ref: store.trash(ref),
    "restore": lambda store, ref: store.restore(ref),
    "purge": lambda store, ref: store.purge(ref),
}


class TrashTests(StoreFixtures):
    """`trash`, `restore`, `sessions(trashed=True)`."""

    def test_what_is_in_the_trash_is_not_shown(self, store: Store) -> None:
        """Not in lists, not as the latest, not by key or title; only with `trashed=True`."""
        kept, gone = store.create(title="kept"), store.session("k", title="gone", scope="s")
        take_turn(gone, "a")
        info = store.trash(gone.id)
        assert (info.trashed, info.id, info.messages) == (True, gone.id, 2)
        store = self.reopen(store)
        assert [i.id for i in store.sessions()] == [kept.id]
        assert len(store.sessions(scope="s")) == len(store.sessions(text="gone")) == 0
        latest = store.latest()
        assert latest is not None
        assert latest.id == kept.id
        assert store.latest(scope="s") is None
        for ref in ("k", "gone"):
            with pytest.raises(SessionNotFound):
                store.get(ref)
        with pytest.raises(SessionNotFound):
            store.session("k", create=False)
        assert [i.id for i in store.sessions(trashed=True)] == [gone.id]
        stats = store.stats()
        assert (stats.sessions, stats.trashed, stats.messages) == (2, 1, 2)

    def test_nothing_of_it_is_lost(self, store: Store, session: Session) -> None:
        """It can be read by its id or an open handle; after a restore it is unchanged."""
        take_turn(session, "a")
        session.enqueue("waiting")
        session.fork()
        before = read_session(session)
        store.trash(session.id)
        there = store.get(session.id)
        assert texts(there) == ["a", "A"]
        assert there.info().trashed
        info = store.restore(session.id)
        assert not info.trashed
        assert read_session(self.reopen(store).session("the session")) == before

    def test_lists_of_the_trash(self, store: Store) -> None:
        """Filters and pages apply to it, too."""
        for n in range(5):
            store.session(str(n), scope="odd" if n % 2 else "even", title=f"title {n}")
        for n in range(4):
            store.trash(str(n))
        assert [i.key for i in store.sessions(trashed=True)] == ["3", "2", "1", "0"]
        assert [i.key for i in store.sessions(trashed=True, scope="odd")] == ["3", "1"]
        assert [i.key for i in store.sessions(trashed=True, text="TITLE 2")] == ["2"]
        page = store.sessions(trashed=True, limit=3)
        assert [i.key for i in page] == ["3", "2", "1"]
        assert [i.key for i in store.sessions(trashed=True, limit=3, cursor=page.cursor)] == ["0"]
        assert [i.key for i in store.sessions()] == ["4"]

    @pytest.mark.parametrize("trashed", [None, "x", 2, []])
    def test_trashed_is_a_yes_or_a_no(self, store: Store, session: Session, trashed: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        assert session.id
        with pytest.raises(BadQuery, match="trashed"):
            store.sessions(trashed=trashed)

    def test_doing_it_twice(self, store: Store, session: Session) -> None:
        """The second trash or restore changes nothing."""
        first = store.trash(session.id)
        assert store.trash(session.id) == first
        second = store.restore(session.id)
        assert store.restore(session.id) == second
        assert store.restore(session.id, keyless=True) == second

    @pytest.mark.parametrize("operation", ["restore", "purge"])
    def test_every_name_finds_what_is_in_the_trash(self, store: Store, operation: str) -> None:
        """Its id, an id prefix, its former key, its title."""
        for n in range(4):
            session = store.session(f"key {n}", title=f"title {n}")
            store.trash(session.id)
            ref = (session.id, session.id[:6], f"key {n}", f"title {n}")[n]
            _OPERATIONS[operation](store, ref)
        assert store.stats().trashed == 0
        assert len(store.sessions()) == (4 if operation == "restore" else 0)

    def test_a_name_in_and_out_of_the_trash_is_not_purged(
        self, store: Store, session: Session
    ) -> None:
        """`AmbiguousRef`: a purge is final, so its target must be unambiguous."""
        store.trash("the session")
        other = store.session("the session", title="same")
        store.trash(store.create(title="same").id)
        for ref in ("the session", "same"):
            with pytest.raises(AmbiguousRef, match=other.id):
                store.purge(ref)
        store.purge(session.id)
        assert store.purge("the session").session_id == other.id

    @pytest.mark.parametrize("operation", _OPERATIONS)
    def test_names_that_are_none(self, store: Store, session: Session, operation: str) -> None:
        """`SessionNotFound`, `BadRef`, `AmbiguousRef`; and nothing is changed."""
        store.create(title="same")
        store.create(title="same")
        before = store.stats().sessions
        for ref in ("nobody", "____", "\0", session.id[:3]):
            with pytest.raises(SessionNotFound):
                _OPERATIONS[operation](store, ref)
        no_names: list[Any] = ["", " ", None, 5]
        for no_name in no_names:
            with pytest.raises(BadRef):
                _OPERATIONS[operation](store, no_name)
        with pytest.raises(AmbiguousRef):
            _OPERATIONS[operation](store, "same")
        assert (store.stats().sessions, store.stats().trashed) == (before, 0)

    # ------------------------------------------------------------------------------------- keys

    def test_the_key_is_free(self, store: Store, session: Session) -> None:
        """Another session can take it; then the first is restored only without it."""
        session.append(Message.user("old"))
        store.trash("the session")
        other = store.session("the session")
        assert other.id != session.id
        assert other.messages() == []
        with pytest.raises(KeyTaken, match=other.id):
            store.restore(session.id)
        assert store.get(session.id).info().trashed
        info = store.restore(session.id, keyless=True)
        assert (info.key, info.trashed) == (None, False)
        assert store.session("the session").id == other.id
        assert texts(store.get(session.id)) == ["old"]

    def test_restoring_by_a_key_that_is_taken(self, store: Store, session: Session) -> None:
        """`KeyTaken`: a restore resolves names in the trash, not among the other sessions."""
        store.trash("the session")
        other = store.session("the session")
        with pytest.raises(KeyTaken, match=other.id):
            store.restore("the session")
        assert store.restore("the session", keyless=True).id == session.id

    def test_restoring_by_a_title_that_another_has(self, store: Store) -> None:
        """The name resolves to the session in the trash."""
        gone = store.create(title="same")
        store.trash("same")
        store.create(title="same")
        assert store.restore("same").id == gone.id

    def test_the_key_is_free_again_when_its_holder_goes(
        self, store: Store, session: Session
    ) -> None:
        """Whether it is trashed or purged."""
        store.trash("the session")
        for go in (store.trash, store.purge):
            other = store.session("the session")
            go(other.id)
            assert store.restore(session.id).key == "the session"
            store.trash(session.id)

    def test_several_in_the_trash_had_one_key(self, store: Store) -> None:
        """The key is then ambiguous."""
        made = []
        for _ in range(3):
            made.append(store.session("k"))
            store.trash(made[-1].id)
        with pytest.raises(AmbiguousRef):
            store.restore("k")
        store.restore(made[1].id)
        assert store.session("k").id == made[1].id
        assert store.stats().trashed == 2

    @pytest.mark.parametrize("name", ["nul \0", "\ud800", "'; --", "100%", "____", "😀"])
    def test_strange_names_in_the_trash(self, store: Store, name: str) -> None:
        """Any text may be a key or a title, and is taken literally."""
        by_key, by_title = store.session(f"key {name}"), store.create(title=f"title {name}")
        for session in (by_key, by_title):
            store.trash(session.id)
        assert store.restore(f"key {name}").id == by_key.id
        assert store.restore(f"title {name}").id == by_title.id
        with pytest.raises(SessionNotFound):
            store.restore(name)

    def test_what_is_changed_in_the_trash_keeps_the_key_free(
        self, store: Store, session: Session
    ) -> None:
        """An update does not reclaim the key."""
        store.trash("the session")
        other = store.session("the session")
        session.update(title="new", pinned=True)
        session.append(Message.user("still here"))
        assert store.session("the session").id == other.id
        info = session.info()
        assert (info.trashed, info.title, info.messages) == (True, "new", 1)

    # -------------------------------------------------------------------------------- relatives

    def test_forks_of_what_is_in_the_trash(self, store: Store, session: Session) -> None:
        """They stay complete, and more can be created."""
        take_turn(session, "a")
        fork = session.fork()
        store.trash(session.id)
        assert texts(fork) == texts(session.fork()) == ["a", "A"]
        assert texts(store.create(parent=session.id)) == ["a", "A"]
        assert not fork.info().trashed

    def test_an_open_turn_goes_on_in_the_trash(self, store: Store, session: Session) -> None:
        """Trashing a session does not stop its writer."""
        with session.turn() as turn:
            turn.user("a")
            store.trash(session.id)
            turn.assistant("A")
        assert texts(session) == ["a", "A"]
        assert session.info().trashed

    def test_runs_in_the_trash(self, store: Store) -> None:
        """A run resolves to the untrashed session, although a trashed one has a turn of it, too."""
        gone, kept = store.create(), store.create()
        for session in (gone, kept):
            with session.turn(run_id="run"):
                pass
        store.trash(gone.id)
        assert store.get("run").id == kept.id
