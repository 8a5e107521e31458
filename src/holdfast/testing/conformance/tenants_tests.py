"""Tenants are isolated: none can see, find, count or guess another's sessions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from holdfast.errors import BadMessage, NotFound, SessionNotFound
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, drain
from holdfast.values import File, Message, Usage

_DATA = b"secret" * 20
_SHA = hashlib.sha256(_DATA).hexdigest()


class TenantTests(StoreFixtures):
    """Promise 15."""

    def theirs(self) -> Store:
        """Fill a store of tenant A with one of everything."""
        self.need_persistence()
        store = self.open(tenant="A")
        session = store.session("their key", title="Their Title", scope="s", agent="g", cwd="/")
        with session.turn(run_id="their run") as turn:
            turn.user(["hello", File(data=_DATA)])
        session.enqueue("waiting")
        return store

    def test_another_tenants_names_are_unknown(self) -> None:
        """For B every name of A's session is refused exactly like an unknown name."""
        theirs = self.theirs()
        mine = self.open(tenant="B")
        id_ = theirs.get("their key").id
        for ref in (id_, id_[:5], "their key", "Their Title", "their run"):
            assert self.refusal(lambda ref=ref: mine.get(ref), ref) == self.refusal(  # type: ignore[misc]
                lambda: mine.get("never was"), "never was"
            )
        with pytest.raises(SessionNotFound):
            mine.session("their key", create=False)

    def test_nothing_is_listed_or_counted(self) -> None:
        """Lists, the latest, statistics and followers show B nothing."""
        theirs = self.theirs()
        mine = self.open(tenant="B")
        for filters in ({}, {"scope": "s"}, {"agent": "g"}, {"cwd": "/"}, {"text": "their"}):
            assert len(mine.sessions(**filters)) == 0  # type: ignore[arg-type]
        assert mine.latest() is None
        assert mine.latest(scope="s") is None
        stats = mine.stats()
        assert (stats.sessions, stats.messages, stats.turns, stats.blobs) == (0, 0, 0, 0)
        assert mine.follow().poll() is None
        assert theirs.stats().sessions == 1

    def test_another_tenants_files_cannot_be_named(self) -> None:
        """B can neither read nor name them by hash, so B cannot learn that A has them."""
        self.theirs()
        mine = self.open(tenant="B")
        assert self.refusal(lambda: mine.blob(_SHA), _SHA) == self.refusal(
            lambda: mine.blob("0" * 64), "0" * 64
        )
        session = mine.session("k")
        for sha in (_SHA, "0" * 64):
            with pytest.raises(BadMessage):
                session.append(Message.user([File(sha256=sha)]))
        session.append(Message.user([File(data=_DATA)]))
        assert mine.blob(_SHA) == _DATA
        assert mine.stats().blobs == 1

    def test_both_may_use_the_same_names(self) -> None:
        """Key, title, run and message ids belong to a tenant each."""
        theirs = self.theirs()
        mine = self.open(tenant="B")
        session = mine.session("their key", title="Their Title")
        with session.turn(run_id="their run") as turn:
            turn.add(Message.user("mine", id=theirs.get("their key").messages()[0].id))
        for ref in ("their key", "Their Title", "their run"):
            assert mine.get(ref).id == session.id
            assert theirs.get(ref).id != session.id
        assert [m.text for m in theirs.get("their key").messages()] == ["hello"]
        assert [m.text for m in session.messages()] == ["mine"]
        assert session.queued() == []

    def test_numbers_reveal_nothing_of_others(self) -> None:
        """B's activity numbers and cursors are the same whether A writes or not."""
        self.need_persistence()
        theirs = self.open(tenant="A")

        def numbers(tenant: str, writes_of_others: int) -> list[int]:
            mine, found = self.open(tenant=tenant), []
            for n in range(3):
                mine.session(str(n))
                for _ in range(writes_of_others):
                    theirs.create().append(Message.user("x"))
                found.append(drain(mine.follow())[-1].number)
            return found

        assert numbers("B", 5) == numbers("C", 0)

    def test_a_tenants_name_is_any_text(self) -> None:
        """Similar names are different tenants; an invalid name is refused."""
        self.need_persistence()
        names = ["t", "T", "t ", "t\0", "t\ud800", "default"]
        for name in names:
            self.open(tenant=name).session("k").append(Message.user(name))
        for name in names:
            store = self.open(tenant=name)
            assert [m.text for m in store.session("k").messages()] == [name]
            assert store.tenant == name

    def test_a_reader_of_a_tenant_that_never_wrote(self) -> None:
        """It sees an empty store, and creates nothing."""
        self.theirs()
        reader = self.open(tenant="nobody", readonly=True)
        assert len(reader.sessions()) == 0
        assert reader.latest() is None

    def test_another_tenants_sessions_cannot_be_deleted_or_continued(self) -> None:
        """Every operation that takes a name refuses it like an unknown name, and does nothing."""
        theirs = self.theirs()
        mine = self.open(tenant="B")
        gone = theirs.session("in their trash", title="Trashed Title")
        theirs.trash(gone.id)
        before = (theirs.sessions(), theirs.sessions(trashed=True), theirs.stats().messages)
        id_ = theirs.get("their key").id
        calls: list[Callable[[str], object]] = [
            mine.trash,
            mine.restore,
            mine.purge,
            lambda ref: mine.purge(ref, forks="erase"),
            lambda ref: mine.create(parent=ref),
            lambda ref: mine.create(parent=ref, relation="delegate"),
        ]
        names = (id_, id_[:5], "their key", "Their Title", "their run")
        for ref in (*names, gone.id, gone.id[:5], "in their trash", "Trashed Title"):
            for call in calls:
                unknown = self.refusal(lambda call=call: call("never was"), "never was")  # type: ignore[misc]
                assert self.refusal(lambda call=call, ref=ref: call(ref), ref) == unknown  # type: ignore[misc]
        after = (theirs.sessions(), theirs.sessions(trashed=True), theirs.stats().messages)
        assert after == before
        assert mine.stats().sessions == 0

    def test_another_tenants_session_is_no_parent(self) -> None:
        """Not by its handle either; and lineages never include another tenant's sessions."""
        theirs = self.theirs()
        mine = self.open(tenant="B")
        parent = theirs.get("their key")
        with pytest.raises(SessionNotFound):
            mine.create(parent=parent)
        child = parent.fork()
        own = mine.create()
        own.fork()
        assert [link.session_id for link in parent.children()] == [child.id]
        assert len(own.children()) == 1
        assert len(child.lineage()) == 2  # noqa: PLR2004

    def test_the_trash_and_the_statistics_are_ones_own(self) -> None:
        """Branches, growth and usage of other tenants are not counted."""
        theirs = self.theirs()
        mine = self.open(tenant="B")
        session = theirs.get("their key")
        session.append(Message.assistant("x", usage=Usage(5), model="m"))
        session.clear()
        theirs.trash(session.id)
        assert len(mine.sessions(trashed=True)) == 0
        stats = mine.stats()
        assert (stats.trashed, stats.branches, stats.growth, stats.days) == (0, 0, (), ())
        stats = theirs.stats()
        assert (stats.trashed, stats.branches) == (1, 2)

    def test_a_key_may_be_in_two_tenants_trashes(self) -> None:
        """Trash, restore and purge affect only the caller's tenant."""
        self.need_persistence()
        stores = [self.open(tenant=name) for name in "AB"]
        made = [store.session("k", title="t") for store in stores]
        for store, session in zip(stores, made, strict=True):
            session.append(Message.user(store.tenant))
            store.trash("k")
        assert stores[0].restore("k").id == made[0].id
        assert made[1].info().trashed
        assert stores[1].purge("t").session_id == made[1].id
        assert [m.text for m in made[0].messages()] == ["A"]

    def test_a_purge_leaves_the_same_data_of_others(self) -> None:
        """Data that two tenants stored is two blobs."""
        self.need_persistence()
        stores = [self.open(tenant=name) for name in "AB"]
        for store in stores:
            store.session("k").append(Message.user(["same", File(data=_DATA)], id="same"))
        report = stores[0].purge("k")
        assert (report.messages, report.blobs) == (1, 1)
        assert stores[1].blob(_SHA) == _DATA
        assert [m.id for m in stores[1].session("k").messages()] == ["same"]
        with pytest.raises(NotFound):
            stores[0].blob(_SHA)

    def refusal(self, call: Callable[[], object], name: str) -> tuple[type, str]:
        """Return the error of a call, with the name removed from its message."""
        with pytest.raises(NotFound) as refused:
            call()
        return type(refused.value), str(refused.value).replace(name, "…")
