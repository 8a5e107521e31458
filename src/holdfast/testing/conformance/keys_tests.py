"""Keys: any text up to 4 KiB, compared byte by byte."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from holdfast.errors import BadMessage, KeyTaken, SessionNotFound
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import Message

_NEAR_DUPLICATES = [
    "key",
    "Key",
    "key ",
    " key",
    "key\n",
    "key\0",
    "key\0\0",
    "\0key",
    "ke\u0301y",
    "k\u00e9y",
    "\u212aey",  # the Kelvin sign, which folds to k
    "key\ud800",
    "key\udc00",
    "key\ud800\udc00",  # two halves
    "key\U00010000",  # the whole they would make
    "key\ufeff",
    "key\u200b",
    "k/ey",
    "k_ey",
    "../key",
    "key%",
    "k_y",
    "7",
    "07",
    "7.0",
    "x'6b6579'",
    "None",
    "-",
    " ",
]


class KeyTests(StoreFixtures):
    """`session` and `create` by key."""

    def test_near_duplicates_are_apart(self, store: Store) -> None:
        """Nothing is folded, trimmed, normalised or made a file name."""
        for key in _NEAR_DUPLICATES:
            store.session(key).append(Message.user(key))
        again = self.reopen(store)
        for key in _NEAR_DUPLICATES:
            session = again.session(key, create=False)
            assert [m.text for m in session.messages()] == [key]
            assert (session.key, session.info().key) == (key, key)
        assert again.stats().sessions == len(_NEAR_DUPLICATES)

    @pytest.mark.parametrize("key", ["x" * 4096, "é" * 2048, "\0" * 4096, "\ud800" * 1365])
    def test_a_key_of_4_kib(self, store: Store, key: str) -> None:
        """Counted in bytes."""
        store.session(key).append(Message.user("a"))
        assert self.reopen(store).session(key, create=False).key == key

    @pytest.mark.parametrize(
        "key", ["x" * 4097, "é" * 2049, "\ud800" * 1366, "", None, 5, b"key", ["key"]]
    )
    def test_no_key(self, store: Store, key: Any) -> None:  # noqa: ANN401
        """`BadMessage` names it; nothing is created."""
        with pytest.raises(BadMessage, match="key"):
            store.session(key)
        if key is not None:
            with pytest.raises(BadMessage, match="key"):
                store.create(key=key)
        assert store.stats().sessions == 0

    def test_by_key_as_it_was_left(self, store: Store) -> None:
        """The same session; other arguments than the key count only at its creation."""
        first = store.session("k", title="first", metadata={"a": 1})
        first.append(Message.user("a"))
        again = self.reopen(store).session("k", title="second", scope="s", metadata={"b": 2})
        assert again.id == first.id
        assert (again.info().title, again.info().scope) == ("first", None)
        assert again.info().metadata == {"a": 1}
        assert len(again.messages()) == 1

    def test_what_is_said_when_it_is_made(self, store: Store) -> None:
        """`info` returns all arguments of the creation."""
        session = store.session(
            "k",
            scope="s\0",
            title="t",
            agent="a\ud800",
            model="m",
            cwd="/x",
            metadata={"k": [1]},
        )
        info = self.reopen(store).get(session.id).info()
        assert (info.key, info.scope, info.title, info.agent) == ("k", "s\0", "t", "a\ud800")
        assert (info.model, info.cwd, info.metadata) == ("m", "/x", {"k": [1]})
        assert (info.state, info.messages, info.turns, info.preview) == ("done", 0, 0, None)
        assert (info.pinned, info.archived, info.trashed, info.goal) == (False, False, False, None)

    def test_without_create(self, store: Store) -> None:
        """`SessionNotFound`, and nothing is created."""
        with pytest.raises(SessionNotFound):
            store.session("k", create=False)
        assert store.stats().sessions == 0

    def test_create_refuses_a_taken_key(self, store: Store) -> None:
        """`KeyTaken`: `create` never returns an existing session."""
        store.session("k")
        with pytest.raises(KeyTaken):
            store.create(key="k")
        assert store.stats().sessions == 1

    def test_sessions_without_a_key(self, store: Store) -> None:
        """Each is a session of its own, also two of one scope at the same time."""
        made = [store.create(scope="s") for _ in range(5)]
        assert len({session.id for session in made}) == 5  # noqa: PLR2004
        assert len(store.sessions(scope="s")) == 5  # noqa: PLR2004
        assert all(session.key is None for session in made)

    def test_threads_that_open_one_key(self, store: Store) -> None:
        """All threads get the same session."""
        found: list[Session] = []
        run_concurrently(*(partial(lambda: found.append(store.session("k"))) for _ in range(6)))
        assert len({session.id for session in found}) == 1
        assert store.stats().sessions == 1
