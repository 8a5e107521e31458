"""Finding sessions by their metadata, by the beginning of a key, and without delegates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.errors import BadQuery
from holdfast.ids import session_id
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, SessionRow
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import JSON, Message

# All different: a list finds the session of one, and no other.
_VALUES: tuple[JSON, ...] = (
    "1", 1, 1.0, True, False, 0, 0.0, -0.0, "", "true", "\0", "\ud800", "x" * 100_000, 2**70,
    2**70 + 1, 1e300, [], [1], [1.0], [True], {}, {"a": 1}, {"a": 1.0}, {"a": [{"b": "\udfff"}]},
    ["a", "b"], ["b", "a"], "é", "e\u0301",
)  # fmt: skip
_NAMES = ("n", "", "N", "n ", "\0", "\ud800", "x" * 4096, "1", "a.b", "$", '"', "é")
_KEYS = (
    "slack:", "slack:1", "slack:2", "slack;", "slack", "Slack:1", "slack:\0", "slack:\ud800",
    "slack:\U0010ffff", "slac\u212a:", "é", "é1", "\0", "\0a", "\ud800", "\ud800\udc00",
    "\U00010000", "\U0010ffff", "\U0010ffffx", "\x7f", "\x80", "y" * 255, "y" * 256, "y" * 257,
    "y" * 255 + "éz", "y" * 4096, "%", "_",
)  # fmt: skip


def _update_and_fail(session: int) -> Operation[None]:
    """Return an operation that changes metadata, adds a session, and fails."""

    def run(tx: Transaction) -> None:
        row, _ = tx.session(session), tx.head(session)
        assert row is not None
        tx.put_session(msgspec.structs.replace(row, metadata=b'{"a":2}'))
        tx.add_session(
            SessionRow(n=0, id=session_id(), metadata=b'{"a":2}'), BranchStart(token=session_id())
        )
        raise ValueError("on purpose")

    return run


def _keys(store: Store, size: int = 50, **filters: Any) -> list[str]:  # noqa: ANN401
    """Return the keys that are listed, through all pages of a size."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = store.sessions(**filters, limit=size, cursor=cursor)
        assert len(page) == size or page.cursor is None
        found += [info.key or "" for info in page]
        cursor = page.cursor
        if cursor is None:
            return found


class MetadataTests(StoreFixtures):
    """`sessions(metadata=…, key_prefix=…, delegates=…)`."""

    # ----------------------------------------------------------------------------------- metadata

    def test_each_value_is_found_and_no_other(self, store: Store) -> None:
        """1, 1.0, true and "1" are four values."""
        for number, value in enumerate(_VALUES):
            store.session(str(number), metadata={"n": value, "other": number})
        store.session("without", metadata={"m": 1})
        again = self.reopen(store)
        for number, value in enumerate(_VALUES):
            assert _keys(again, metadata={"n": value}) == [str(number)], value

    def test_each_name_is_found_and_no_other(self, store: Store) -> None:
        """A name may be any text; only those at the top level count."""
        for number, name in enumerate(_NAMES):
            store.session(str(number), metadata={name: True, "in": {"deep": True}})
        again = self.reopen(store)
        for number, name in enumerate(_NAMES):
            assert _keys(again, metadata={name: True}) == [str(number)], name
        assert _keys(again, metadata={"deep": True}) == []

    def test_all_entries_must_be_there(self, store: Store) -> None:
        """In any order; so must what is in an object."""
        place: JSON = {"x": 1, "y": [1, {"b": 2, "a": 1}]}
        store.session("1", metadata={"user": "42", "n": 1, "at": place})
        store.session("2", metadata={"n": 1})
        store.session("3", metadata={"user": "42"})
        assert _keys(store, metadata={"n": 1, "user": "42"}) == ["1"]
        assert _keys(store, metadata={"at": {"y": [1, {"a": 1, "b": 2}], "x": 1}}) == ["1"]
        assert _keys(store, metadata={"at": {"x": 1}}) == []
        assert _keys(store, metadata={"n": 1, "user": "43"}) == []
        assert _keys(store, metadata={"n": 1}) == ["2", "1"]
        assert _keys(store, metadata={}) == ["3", "2", "1"]

    def test_what_changes_is_found_as_it_is_now(self, store: Store) -> None:
        """After an update, in the trash and back; and nothing of what was purged."""
        session = store.session("s", metadata={"a": 1, "b": 1})
        session.append(Message.user("x"))
        session.update(metadata={"a": 2, "b": None, "c": 3})
        store = self.reopen(store)
        asked: list[dict[str, JSON]] = [{"a": 1}, {"b": 1}, {"a": 2}, {"c": 3}, {"a": 2, "c": 3}]
        assert [one for one in asked if _keys(store, metadata=one)] == asked[2:]
        assert store.verify() == []
        fork = store.get("s").fork(key="f", metadata={"c": 3})
        store.trash("s")
        assert _keys(store, metadata={"c": 3}) == ["f"]
        assert _keys(store, metadata={"c": 3}, trashed=True) == ["s"]
        store.restore("s")
        assert sorted(_keys(store, metadata={"c": 3})) == ["f", "s"]
        store.purge("s")
        assert _keys(store, metadata={"c": 3}) == ["f"]
        assert _keys(store, metadata={"a": 2}) == []
        store.purge(fork.id)
        assert _keys(store, metadata={"c": 3}) == []
        assert self.damage_of(store) == []

    def test_a_refused_write_changes_no_entry(self, store: Store) -> None:
        """All or nothing, as everything is."""
        session = store.session("s", metadata={"a": 1})
        with pytest.raises(ValueError, match="on purpose"):
            store.backend.write(_update_and_fail(number_of(session)))
        assert _keys(store, metadata={"a": 1}) == ["s"]
        assert _keys(store, metadata={"a": 2}) == []

    def test_pages_and_other_filters(self, store: Store) -> None:
        """The order and the cursor are those of every list."""
        for n in range(12):
            key, even = f"{'k' if n % 3 else 'j'}{n}", n % 2 == 0
            session = store.session(key, metadata={"even": even}, scope=str(n % 4))
            session.update(pinned=n == 4, archived=n == 6)  # noqa: PLR2004
        store.session("k4").append(Message.user("x"))
        wanted = {"even": True}
        listed = ["k4", "k10", "k8", "j6", "k2", "j0"]
        for size in (1, 2, 5, 50):
            assert _keys(store, size, metadata=wanted) == listed
            named = _keys(store, size, metadata=wanted, key_prefix="k")
            assert named == ["k4", "k10", "k8", "k2"]
            assert _keys(store, size, metadata=wanted, scope="2") == ["k10", "j6", "k2"]
            assert _keys(store, size, metadata=wanted, archived=True) == ["j6"]
            assert _keys(store, size, metadata=wanted, pinned=True) == ["k4"]
            assert _keys(store, size, metadata=wanted, text="K1") == ["k10"]
            assert _keys(store, size, metadata=wanted, order="pinned") == listed
            assert _keys(store, size, metadata=wanted, state="done") == listed
            pinned = _keys(store, size, key_prefix="j", order="pinned")
            assert pinned == ["j9", "j6", "j3", "j0"]

    def test_what_many_have(self, store: Store) -> None:
        """The newest come first, a page at a time, and few among them are found."""
        for n in range(60):
            store.session(f"many:{n}", metadata={"app": "x", "n": n})
        every = [f"many:{n}" for n in reversed(range(60))]
        assert _keys(store, 7, metadata={"app": "x"}) == every
        assert _keys(store, 7, key_prefix="many:") == every
        assert _keys(store, 7, metadata={"app": "x", "n": 3}) == ["many:3"]
        some = [key for key in every if key.startswith("many:3")]
        assert _keys(store, 7, metadata={"app": "x"}, key_prefix="many:3") == some

    @pytest.mark.parametrize(
        "metadata",
        [
            3, "a", [("a", 1)], {1: 2}, {"a": None}, {"a": float("nan")}, {"a": b"x"}, {"a": {1}},
            {str(n): n for n in range(33)},
        ],
    )  # fmt: skip
    def test_metadata_that_is_none_is_refused(
        self,
        store: Store,
        metadata: Any,  # noqa: ANN401
    ) -> None:
        """`BadQuery` names the argument; null is no value that is looked for."""
        with pytest.raises(BadQuery, match="metadata"):
            store.sessions(metadata=metadata)

    def test_metadata_of_another_tenant(self) -> None:
        """It is not found."""
        self.need_persistence()
        mine, theirs = self.open(tenant="mine"), self.open(tenant="theirs")
        theirs.session("k:theirs", metadata={"a": 1})
        assert _keys(mine, metadata={"a": 1}) == []
        assert _keys(mine, key_prefix="k:") == []
        mine.session("k:mine", metadata={"a": 1})
        assert _keys(mine, metadata={"a": 1}) == ["k:mine"]
        assert _keys(theirs, key_prefix="k:") == ["k:theirs"]

    # ------------------------------------------------------------------------------ keys, delegates

    def test_keys_by_their_beginning(self, store: Store) -> None:
        """Byte by byte: neither case nor composition is folded, and nothing is a pattern."""
        for key in _KEYS:
            store.session(key)
        store.create(title="without a key")
        again = self.reopen(store)
        for prefix in (*_KEYS, "s", "y", "y" * 254):
            expected = [key for key in reversed(_KEYS) if key.startswith(prefix)]
            assert _keys(again, key_prefix=prefix) == expected, prefix

    def test_keys_in_the_trash(self, store: Store) -> None:
        """By the beginning they had."""
        for key in ("a:1", "a:\0", "b:1"):
            store.trash(store.session(key).id)
        store.session("a:2")
        assert _keys(store, key_prefix="a:") == ["a:2"]
        assert _keys(store, key_prefix="a:", trashed=True) == ["a:\0", "a:1"]

    @pytest.mark.parametrize("prefix", ["", 3, b"a", "x" * 4097])
    def test_a_prefix_that_is_none_is_refused(
        self,
        store: Store,
        prefix: Any,  # noqa: ANN401
    ) -> None:
        """`BadQuery` names the argument."""
        with pytest.raises(BadQuery, match="key_prefix"):
            store.sessions(key_prefix=prefix)

    def test_delegates_are_listed_unless_they_are_not_wanted(self, store: Store) -> None:
        """`delegates=False` leaves them out; forks of one are none."""
        parent = store.session("p", metadata={"a": 1})
        delegate = store.create(key="d", parent=parent, relation="delegate", metadata={"a": 1})
        delegate.append(Message.user("x"))
        delegate.fork(key="f")
        assert _keys(store) == ["f", "d", "p"]
        assert _keys(store, delegates=True) == ["f", "d", "p"]
        assert _keys(store, delegates=False) == ["f", "p"]
        assert _keys(store, delegates=False, metadata={"a": 1}) == ["p"]
        with pytest.raises(BadQuery, match="delegates"):
            store.sessions(delegates=None)  # type: ignore[arg-type]
