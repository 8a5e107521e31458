"""Tenants are apart: nobody can see, find, count or guess another's sessions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from holdfast.errors import BadMessage, MessageNotFound, SessionNotFound
from holdfast.records import File, Message
from holdfast.store import Store
from holdfast.testing.conformance.setting import Setting

_DATA = b"secret" * 20
_SHA = hashlib.sha256(_DATA).hexdigest()


class Tenants(Setting):
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
        """Every name of A's session answers to B exactly as a name that never was."""
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
        for asked in ({}, {"scope": "s"}, {"agent": "g"}, {"cwd": "/"}, {"text": "their"}):
            assert len(mine.sessions(**asked)) == 0  # type: ignore[arg-type]
        assert mine.latest() is None
        assert mine.latest(scope="s") is None
        stats = mine.stats()
        assert (stats.sessions, stats.messages, stats.turns, stats.blobs) == (0, 0, 0, 0)
        assert mine.follow().poll() is None
        assert theirs.stats().sessions == 1

    def test_another_tenants_files_cannot_be_named(self) -> None:
        """Neither read nor referred to by their hash: B cannot even learn that A has them."""
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

    def test_numbers_tell_nothing_of_others(self) -> None:
        """What B can count with (activity, cursors) is the same whether A writes or not."""
        self.need_persistence()
        theirs, mine = self.open(tenant="A"), self.open(tenant="B")
        numbers = []
        for n in range(3):
            mine.session(str(n))
            for _ in range(5):
                theirs.create().append(Message.user("x"))
            newest = list(iter(mine.follow().poll, None))
            numbers.append(newest[-1].number)
        assert numbers == [1, 2, 3]

    def test_a_tenants_name_is_any_text(self) -> None:
        """Near-duplicates are apart; a bad name is refused."""
        self.need_persistence()
        names = ["t", "T", "t ", "t\0", "t\ud800", "default"]
        for name in names:
            self.open(tenant=name).session("k").append(Message.user(name))
        for name in names:
            store = self.open(tenant=name)
            assert [m.text for m in store.session("k").messages()] == [name]
            assert store.tenant == name

    def test_a_reader_of_a_tenant_that_never_wrote(self) -> None:
        """Sees an empty store, and makes nothing."""
        self.theirs()
        reader = self.open(tenant="nobody", readonly=True)
        assert len(reader.sessions()) == 0
        assert reader.latest() is None

    def refusal(self, call: Callable[[], object], name: str) -> tuple[type, str]:
        """Give the error of a call, its own name taken out of the words."""
        with pytest.raises((SessionNotFound, MessageNotFound)) as refused:
            call()
        return type(refused.value), str(refused.value).replace(name, "…")
