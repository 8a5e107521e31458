"""Records of the store, beyond sessions: one of each scope, kind and key, the newest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BadMessage, IdConflict, PreconditionFailed
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.testing.conformance.records_tests import state
from holdfast.values import File, Head, Message

_WRITERS = 4
_EACH = 10
_FILE = b"a file" * 1000


def current(store: Store, key: str | None = None, scope: str | None = None) -> object:
    """Return the data of the current record of kind `state`; `None` if there is none."""
    found = store.record("state", key, scope=scope)
    return None if found is None else found.data


class StoreRecordTests(StoreFixtures):
    """`Store.record` and `Store.put_record`."""

    def test_the_newest_is_current(self, store: Store) -> None:
        """By scope, kind and key; no scope is one of its own."""
        store.put_record(state(1))
        stored = store.put_record(state(2))
        store.put_record(state(3, key="k"))
        store.put_record(state(4), scope="user:7")
        store.put_record(state(5, scope="user:8"))
        store = self.reopen(store)
        assert stored == store.record("state")
        assert (stored.data, stored.scope, stored.seq) == (2, None, None)
        assert current(store, "k") == 3  # noqa: PLR2004
        assert (current(store, scope="user:7"), current(store, scope="user:8")) == (4, 5)
        assert store.record("state", scope="user:7").scope == "user:7"  # type: ignore[union-attr]
        assert current(store, "k", "user:7") is None

    def test_a_session_has_none_of_them(self, store: Store, session: Session) -> None:
        """Nor the store of a session's."""
        store.put_record(state(1))
        assert session.records() == []
        session.append(state(2, key="k"))
        assert current(store, "k") is None

    def test_a_batch_of_a_session_may_bring_them(self, store: Store, session: Session) -> None:
        """All of it is stored, or nothing."""
        first = state(1, scope="app", after=None)
        assert session.append(Message.user("a"), first, state("own")) == Head(1, 1)
        assert (current(store, scope="app"), len(session.records())) == (1, 1)
        with pytest.raises(PreconditionFailed, match="after: "):
            session.append(Message.user("lost"), state(2, scope="app", after=None))
        with pytest.raises(PreconditionFailed, match="after: "):
            session.append(state("lost", after=None), state(2, scope="app", after=first.id))
        assert (session.head(), current(store, scope="app")) == (Head(1, 1), 1)
        session.rewind(0)
        assert current(store, scope="app") == 1

    def test_each_id_once(self, store: Store) -> None:
        """A retry returns what was stored, also when another has replaced it since."""
        first = state(1, after=None)
        stored = store.put_record(first, scope="s")
        store.put_record(state(2, after=first.id), scope="s")
        again = store.put_record(first, scope="s")
        assert (again.id, again.data, again.scope) == (stored.id, 1, "s")
        assert current(store, scope="s") == 2  # noqa: PLR2004
        for other in (state(1, id=first.id, key="k"), state(1, id=first.id)):
            with pytest.raises(IdConflict):
                store.put_record(other)
        second = store.put_record(state(3))
        with pytest.raises(IdConflict):
            store.put_record(state(4, id=second.id))

    def test_after_compares_with_the_current_one(self, store: Store) -> None:
        """Of the same scope, kind and key."""
        one = store.put_record(state(1, after=None))
        with pytest.raises(PreconditionFailed, match="after: "):
            store.put_record(state(2, after=None))
        store.put_record(state(2, after=None), scope="s")
        store.put_record(state(3, after=one.id))
        assert current(store) == 3  # noqa: PLR2004

    def test_writers_that_compare_lose_no_update_of_the_store(self, store: Store) -> None:
        """Each adds to a counter that all of them share."""

        def count() -> None:
            for _ in range(_EACH):
                while True:
                    newest = store.record("state")
                    number: Any = 0 if newest is None else newest.data
                    after = None if newest is None else newest.id
                    try:
                        store.put_record(state(number + 1, after=after))
                        break
                    except PreconditionFailed:
                        continue

        run_concurrently(*[count] * _WRITERS)
        assert current(store) == _WRITERS * _EACH

    def test_a_replaced_one_leaves_no_blob(self, store: Store) -> None:
        """Its files go, unless another has them."""
        store.put_record(state("x" * 100_000, files={"f": File(data=_FILE)}))
        store.put_record(state(2, key="k", files={"f": File(data=_FILE)}))
        store.put_record(state(3))
        assert store.stats().blobs == 1
        store.put_record(state(4, key="k"))
        assert store.stats().blobs == 0

    def test_tenants_have_their_own(self, store: Store) -> None:
        """No tenant sees those of another, or their ids."""
        self.need_persistence()
        other = self.open(tenant="other")
        one = store.put_record(state(1))
        assert other.record("state") is None
        other.put_record(state(2, id=one.id))
        assert (current(store), current(other)) == (1, 2)

    def test_a_store_record_that_is_not_valid_is_refused_by_field(self, store: Store) -> None:
        """Nothing is stored."""
        calls: dict[str, Callable[[], object]] = {
            "kind": lambda: store.record(""),
            "key": lambda: store.record("state", ""),
            "scope": lambda: store.record("state", scope=""),
            "scope: the record": lambda: store.put_record(state(1, scope="a"), scope="b"),
            "scope: must": lambda: store.put_record(state(1), scope=""),
            "data": lambda: store.put_record(state(b"x")),
            "expected a holdfast.Record": lambda: store.put_record(Message.user("a")),  # type: ignore[arg-type]
        }
        for field, call in calls.items():
            with pytest.raises(BadMessage, match=rf"^{field}"):
                call()
        assert store.record("state") is None
