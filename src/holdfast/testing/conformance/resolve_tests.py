"""Resolving sessions by name, the latest session, and paging through the list."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import AmbiguousRef, BadQuery, BadRef, SessionNotFound
from holdfast.operations import sessions
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Message


class ResolveTests(StoreFixtures):
    """`get`, `latest`, `sessions`."""

    # ------------------------------------------------------------------------------------ get

    def test_by_id_prefix_key_run_and_title(self, store: Store) -> None:
        """Each names the session."""
        session = store.session("the key", title="The Title")
        store.session("another", title="Another")
        with session.turn(run_id="run-1"):
            pass
        again = self.reopen(store)
        for ref in (session.id, session.id[:6], "the key", "The Title", "run-1"):
            assert again.get(ref).id == session.id, ref

    def test_strange_names(self, store: Store) -> None:
        """Any text may be a key, a title or a run id."""
        for ref in ("nul \0", "\ud800", "'; --", "100%", "_", "😀"):
            by_key = store.session(f"key {ref}")
            by_title = store.create(title=f"title {ref}")
            by_run = store.create()
            with by_run.turn(run_id=f"run {ref}"):
                pass
            assert store.get(f"key {ref}").id == by_key.id
            assert store.get(f"title {ref}").id == by_title.id
            assert store.get(f"run {ref}").id == by_run.id

    def test_a_key_goes_before_a_title(self, store: Store) -> None:
        """A name that is unique takes precedence over one that several sessions may have."""
        titled = store.create(title="word")
        keyed = store.session("word")
        assert store.get("word").id == keyed.id != titled.id

    @pytest.mark.parametrize("ref", ["nothing", "x", "\0", "\ud800", "zzzz" * 4, "%", "____"])
    def test_unknown(self, store: Store, ref: str) -> None:
        """`SessionNotFound`; wildcards mean themselves."""
        store.session("k", title="t")
        with pytest.raises(SessionNotFound):
            store.get(ref)

    @pytest.mark.parametrize("ref", ["", " ", "\n", None, 5])
    def test_no_name(self, store: Store, ref: Any) -> None:  # noqa: ANN401
        """`BadRef`: an empty name must not find something by chance."""
        store.session("k")
        with pytest.raises(BadRef):
            store.get(ref)

    def test_a_title_that_several_have(self, store: Store) -> None:
        """`AmbiguousRef` has the ids to choose from."""
        made = [store.create(title="same") for _ in range(2)]
        with pytest.raises(AmbiguousRef) as refused:
            store.get("same")
        assert all(session.id in str(refused.value) for session in made)

    def test_a_run_that_several_have(self, store: Store) -> None:
        """One run may write to several sessions; then it is ambiguous as a name."""
        for _ in range(2):
            with store.create().turn(run_id="run"):
                pass
        with pytest.raises(AmbiguousRef):
            store.get("run")

    def test_a_run_of_several_turns_is_one_session(self, store: Store) -> None:
        """It resolves to that session."""
        session = store.create()
        for _ in range(3):
            with session.turn(run_id="run"):
                pass
        assert store.get("run").id == session.id

    def test_a_prefix_needs_four_characters(self, store: Store) -> None:
        """Three characters are not taken as a prefix."""
        session = store.create()
        assert store.get(session.id[:4]).id == session.id
        with pytest.raises(SessionNotFound):
            store.get(session.id[:3])

    def test_a_prefix_that_several_have(self, store: Store) -> None:
        """`AmbiguousRef`; one character more resolves it."""
        for id_ in ("abcdx", "abcdy", "abcd2"):
            self.make(store, id_)
        with pytest.raises(AmbiguousRef) as refused:
            store.get("abcd")
        assert all(id_ in str(refused.value) for id_ in ("abcdx", "abcdy", "abcd2"))
        assert store.get("abcdy").id == "abcdy"
        with pytest.raises(SessionNotFound):
            store.get("abcd3")

    def test_an_id_goes_before_what_it_begins(self, store: Store) -> None:
        """A whole id is never ambiguous."""
        for id_ in ("abcd", "abcde"):
            self.make(store, id_)
        assert store.get("abcd").id == "abcd"

    def make(self, store: Store, id_: str) -> None:
        """Create a session with a chosen id, which only the backend protocol allows."""
        row = sessions.new_row(id=id_)
        store.backend.write(sessions.create(row, reuse=False))

    # --------------------------------------------------------------------------------- latest

    def test_an_empty_store_has_no_latest(self, store: Store) -> None:
        """`None`."""
        assert store.latest() is None

    def test_a_session_without_messages_can_be_the_latest(self, store: Store) -> None:
        """It was created last, and is not damaged."""
        store.session("old").append(Message.user("a"))
        new = store.session("new")
        latest = store.latest()
        assert latest is not None
        assert latest.id == new.id
        assert store.damage == []

    def test_the_latest_is_the_one_written_to_last(self, store: Store) -> None:
        """Order of writes counts, not the clock and not the order of creation."""
        one, two = store.session("one"), store.session("two")
        for session in (one, two, one):
            self.clock.step(-100)
            session.append(Message.user("a"))
            latest = store.latest()
            assert latest is not None
            assert latest.id == session.id
        with two.turn():
            pass
        latest = self.reopen(store).latest()
        assert latest is not None
        assert latest.id == two.id

    def test_the_latest_of_a_scope_an_agent_or_a_folder(self, store: Store) -> None:
        """Each filter alone, and all together."""
        made = {}
        for scope in ("s", "t"):
            for agent in ("a", "b"):
                session = store.create(scope=scope, agent=agent, cwd=f"/{scope}")
                session.append(Message.user("x"))
                made[scope, agent] = session.id
        for filters, wanted in (
            ({}, ("t", "b")),
            ({"scope": "s"}, ("s", "b")),
            ({"agent": "a"}, ("t", "a")),
            ({"cwd": "/s"}, ("s", "b")),
            ({"scope": "s", "agent": "a", "cwd": "/s"}, ("s", "a")),
        ):
            latest = store.latest(**filters)
            assert latest is not None
            assert latest.id == made[wanted]
        assert store.latest(scope="s", cwd="/t") is None
        assert store.latest(scope="S") is None

    # ------------------------------------------------------------------------------- sessions

    def test_the_list_is_newest_first(self, store: Store) -> None:
        """Each row equals the session's `info`."""
        made = [store.session(str(n)) for n in range(3)]
        made[0].append(Message.user("a"))
        page = store.sessions()
        assert [info.key for info in page] == ["0", "2", "1"]
        assert list(page) == [made[0].info(), made[2].info(), made[1].info()]
        assert page.cursor is None

    @pytest.mark.parametrize(
        ("filters", "keys"),
        [
            ({"scope": "s"}, "bd"),
            ({"agent": "g"}, "cd"),
            ({"cwd": "/"}, "d"),
            ({"pinned": True}, "a"),
            ({"pinned": False}, "bcd"),
            ({"archived": True}, "b"),
            ({"archived": False}, "acd"),
            ({"text": "TITLE of"}, "c"),
            ({"text": "straße"}, "d"),
            ({"text": "hello"}, "a"),
            ({"text": "%"}, ""),
            ({"text": "éCOLE"}, "b"),
            ({"text": "\0"}, "b"),
            ({"scope": "s", "text": "d"}, "d"),
            ({"scope": "nobody's"}, ""),
        ],
    )
    def test_filters(self, store: Store, filters: dict[str, Any], keys: str) -> None:
        """Each alone and together; text matches title, preview and key, ignoring case."""
        store.session("a").update(pinned=True)
        store.session("a").append(Message.user("  say  HELLO\nworld "))
        store.session("b", scope="s", title="École \0 x").update(archived=True)
        store.session("c", agent="g", title="the title of it")
        store.session("d", scope="s", agent="g", cwd="/", title="STRAßE")
        found = store.sessions(**filters)
        assert sorted(info.key or "" for info in found) == list(keys)

    def test_pages(self, store: Store) -> None:
        """The cursor continues after the page, with its filters; every session occurs once."""
        for n in range(7):
            store.session(str(n), scope="odd" if n % 2 else "even")
        for size in (1, 2, 3, 7, 50):
            assert self.walk(store, size) == list("6543210")
            assert self.walk(store, size, scope="odd") == list("531")

    def test_pages_while_others_write(self, store: Store) -> None:
        """A session that is not written to occurs exactly once, and none occurs twice."""
        for n in range(8):
            store.session(str(n))
        seen: list[str] = []
        cursor: str | None = None
        busy = iter("0707")
        while True:
            page = store.sessions(limit=2, cursor=cursor)
            seen += [info.key or "" for info in page]
            if page.cursor is None:
                break
            cursor = page.cursor
            store.session(next(busy)).append(Message.user("x"))
            store.create()
        assert len(seen) == len(set(seen))
        assert set(seen) >= set("123456")

    @pytest.mark.parametrize("limit", [0, -1, 1.5, "5", None])
    def test_a_limit_that_is_none_is_refused(self, store: Store, limit: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it."""
        with pytest.raises(BadQuery, match="limit"):
            store.sessions(limit=limit)

    @pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "٣", "9" * 40, 5])
    def test_a_cursor_that_no_page_gave_is_refused(self, store: Store, cursor: Any) -> None:  # noqa: ANN401
        """`BadQuery` names it, or the page is empty; never another error."""
        try:
            page = store.sessions(cursor=cursor)
        except BadQuery as refused:
            assert "cursor" in str(refused)  # noqa: PT017 - either of two answers is right
        else:
            assert len(page) == 0

    def test_the_preview(self, store: Store) -> None:
        """The first visible user message, else the first reply; white space is collapsed."""
        session = store.create()
        session.append(Message.system("rules"), Message.assistant(" Hello\n there "))
        assert session.info().preview == "Hello there"
        session.append(Message.user("/help", metadata={"command": True}))
        session.append(Message.user("context", metadata={"injected": True}))
        assert session.info().preview == "Hello there"
        session.append(Message.user("why \0 \ud800 " + "x" * 500))
        preview = session.info().preview
        assert preview == ("why \0 \ud800 " + "x" * 500)[:120]
        session.append(Message.user("later"))
        assert session.info().preview == preview

    def walk(self, store: Store, limit: int, **filters: str) -> list[str]:
        """Return the keys of all pages."""
        keys: list[str] = []
        cursor: str | None = None
        while True:
            page = store.sessions(limit=limit, cursor=cursor, **filters)  # type: ignore[arg-type]
            assert len(page) <= limit
            keys += [info.key or "" for info in page]
            cursor = page.cursor
            if cursor is None:
                return keys
