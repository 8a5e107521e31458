"""Search: what is found, where it is reported, in which order, page by page."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.aio import AsyncStore
from holdfast.clock import to_datetime
from holdfast.errors import BadQuery, SessionNotFound, StoreUnavailable
from holdfast.session import Session
from holdfast.storage.index_tables import IndexFileHost, IndexTableHost
from holdfast.storage.rows import BranchOwner
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Hit, Message, Text, Thinking, ToolCall

_MAX_HITS = 1000
_SOME = 10
_LARGE = "filler " * 20_000


def _found(store: Store, text: str, **how: Any) -> list[str | None]:  # noqa: ANN401 - of `search`
    return [hit.message_id for hit in store.search(text, **how)]


def _only(store: Store, text: str, **how: Any) -> Hit:  # noqa: ANN401
    (hit,) = store.search(text, **how)
    return hit


class SearchTests(StoreFixtures):
    """`search`, and what it needs of the backend protocol."""

    # ------------------------------------------------------------------------------ what is found

    def test_search_a_hit(self, store: Store) -> None:
        """It has the position of the message and a snippet of the match."""
        session = store.session("k", title="A talk")
        session.append(Message.user("Where is my parcel?", id="a"), Message.user("b"))
        hit = _only(store, "PARCEL")
        message = session.messages()[0]
        assert (hit.session_id, hit.title, hit.message_id) == (session.id, "A talk", "a")
        assert (hit.seq, hit.role, hit.created_at) == (1, "user", message.created_at)
        assert hit.snippet == "Where is my parcel?"
        assert [hit.snippet[start:end] for start, end in hit.marks] == ["parcel"]
        assert (hit.more, hit.before, hit.after) == (0, (), ())
        assert hit.score > 0

    def test_search_everything_that_was_said(self, store: Store, session: Session) -> None:
        """Texts, tools with arguments and results, file names; not reasoning."""
        session.append(
            Message.user(["hello there", File("report.pdf", data=b"secret")], id="file"),
            Message.assistant(
                [Thinking("pondering"), Text("answer")],
                tool_calls=[ToolCall("c", "lookUp", {"city": "Oslo"})],
                id="call",
            ),
            Message.tool("c", [Text("sunny")], id="result"),
            Message.user(f"{_LARGE} needle", id="large"),
        )
        again = self.reopen(store)
        for text, where in (
            ("report.pdf", "file"),
            ("look", "call"),
            ("oslo", "call"),
            ("city", "call"),
            ("sunny", "result"),
            ("needle", "large"),
        ):
            assert _found(again, text) == [where], text
        for text in ("secret", "pondering", "user"):
            assert _found(again, text) == [], text
        assert _found(again, "pondering", thinking=True) == ["call"]
        assert _only(again, "pondering", thinking=True).snippet == "pondering"

    def test_search_what_was_acknowledged_is_found(self, store: Store, session: Session) -> None:
        """Immediately, and by a later process."""
        for number in range(20):
            session.append(Message.user(f"word{number}", id=str(number)))
            assert _found(store, f"word{number}") == [str(number)]
        again = self.reopen(store)
        for number in range(20):
            assert _found(again, f"word{number}") == [str(number)]

    def test_search_no_string_is_wrong(self, store: Store, session: Session) -> None:
        """Any stored text, quoted literally, finds its message."""
        said = ['"', "a OR", "(", "*", "-", "^x", "title:", "role:user", "a:b", "\0x", "\ud800y"]
        for number, text in enumerate(said):
            session.append(Message.user(f"{text} here{number}"))
            store.search(text)
            assert len(store.search(f"{text} here{number}", literal=True)) == 1, text

    @pytest.mark.parametrize("text", ["", " ", "role:user"])
    def test_search_no_words(self, store: Store, session: Session, text: str) -> None:
        """All messages are listed, the newest first."""
        for number in range(3):
            self.clock.advance(10_000)
            session.append(Message.user(str(number), id=str(number)))
        assert _found(store, text, session=session.id) == ["2", "1", "0"]
        assert (_only(store, text).message_id, _only(store, text).more) == ("2", 2)

    # ----------------------------------------------------------------------------------- filters

    def test_search_filters(self, store: Store) -> None:
        """As arguments and in the query text; both apply."""
        one = store.session("one", scope="mail", agent="desk", cwd="/x", title="First things")
        two = store.session("two", scope="shop", cwd="/x/y", title="Second")
        one.append(Message.user("red", id="a"))
        self.clock.advance(86_400)
        two.append(Message.user("red", id="b"), Message.assistant("red", id="c"))
        everything: dict[str, tuple[dict[str, Any], list[str]]] = {
            "scope:mail": ({"scope": "mail"}, ["a"]),
            "agent:desk": ({"agent": "desk"}, ["a"]),
            "role:assistant": ({"role": "assistant"}, ["c"]),
            "session:one": ({"session": "one"}, ["a"]),
            "since:12h": ({"since": "12h"}, ["c"]),
            "until:12h": ({"until": "12h"}, ["a"]),
        }
        for said, (given, expected) in everything.items():
            assert _found(store, f"red {said}")[:1] == expected, said
            assert _found(store, "red", **given)[:1] == expected, given
            assert _found(store, f"red {said}", **given)[:1] == expected, said
        assert _found(store, "red", cwd="/x") == _found(store, "title:first", cwd="/x") == ["a"]
        assert _found(store, "red scope:mail", cwd="/x/y") == []
        assert _found(store, "red session:one", cwd="/x/y") == []
        assert _found(store, "red title:first") == ["a"]
        assert _found(store, "red -title:first") == ["c"]
        assert _found(store, "red scope:mail", scope="shop") == []
        assert _found(store, "red role:user", role="assistant") == []
        assert _found(store, "red session:one", session="two") == []
        assert _found(store, "red session:nobody") == []
        with pytest.raises(SessionNotFound):
            store.search("red", session="nobody")

    def test_search_times(self, store: Store, session: Session) -> None:
        """`since` includes its time, `until` does not."""
        at = to_datetime(self.clock.micros()) - timedelta(days=3)
        session.append(Message.user("red", id="a", created_at=at))
        assert _found(store, "red", since=at) == ["a"]
        assert _found(store, "red", until=at) == []
        assert _found(store, "red", until=at + timedelta(microseconds=1)) == ["a"]
        assert _found(store, "red", since=f"{at:%Y-%m-%d}", until=f"{at:%Y-%m-%d}") == ["a"]
        assert _found(store, f"red since:{at:%Y-%m}") == ["a"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"limit": 0},
            {"limit": 1001},
            {"limit": "5"},
            {"around": -1},
            {"around": 101},
            {"role": "nobody"},
            {"scope": 5},
            {"cwd": 5},
            {"since": "yesterday"},
            {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - it has no zone
            {"literal": 1},
            {"cursor": "x"},
            {"cursor": "!!"},
            {"cursor": 5},
        ],
        ids=str,
    )
    def test_search_what_makes_no_sense(self, store: Store, wrong: dict[str, Any]) -> None:
        """`BadQuery` names it."""
        with pytest.raises(BadQuery, match=next(iter(wrong))):
            store.search("red", **wrong)

    def test_search_a_text_that_is_none(self, store: Store) -> None:
        """`BadQuery`."""
        wrong: Any = 5
        with pytest.raises(BadQuery, match="text"):
            store.search(wrong)
        with pytest.raises(BadQuery, match="text"):
            store.search("x" * 100_001)

    # -------------------------------------------------------------------------------- visibility

    def test_search_what_was_undone(self, store: Store, session: Session) -> None:
        """It is found only with `all_branches`, and again after a redo."""
        session.append(Message.user("red one", id="a"))
        session.append(Message.user("red two", id="b"))
        session.rewind(1)
        assert _found(store, "red", session=session.id) == ["a"]
        found = _found(store, "red", session=session.id, all_branches=True)
        assert sorted(map(str, found)) == ["a", "b"]
        session.redo()
        assert sorted(map(str, _found(store, "red", session=session.id))) == ["a", "b"]

    def test_search_what_was_replaced(self, store: Store, session: Session) -> None:
        """A message in both histories is one hit."""
        session.append(Message.user("red one", id="a"), Message.user("red two", id="b"))
        session.replace([Message.user("other"), *session.messages()[1:]])
        assert _found(store, "red", session=session.id) == ["b"]
        found = _found(store, "red", session=session.id, all_branches=True)
        assert sorted(map(str, found)) == ["a", "b"]

    def test_search_the_trash(self, store: Store, session: Session) -> None:
        """Trashed sessions are not found; restored ones are."""
        session.append(Message.user("red"))
        session.update(title="blue")
        store.trash(session.id)
        assert _found(store, "red") == _found(store, "blue") == []
        assert _found(store, "red", session=session.id) == []
        store.restore(session.id)
        assert len(store.search("red")) == len(store.search("blue")) == 1

    def test_search_forks(self, store: Store, session: Session) -> None:
        """A message that is shared is one hit: in the session that wrote it, else in a fork."""
        session.append(Message.user("red", id="a"))
        first, second = session.fork(), session.fork()
        assert (_only(store, "red").session_id, _only(store, "red").more) == (session.id, 0)
        assert _found(store, "red", session=first.id) == ["a"]
        session.clear()
        assert _only(store, "red").session_id == second.id
        store.trash(second.id)
        assert _only(store, "red").session_id == first.id
        store.purge(session.id)
        assert _only(store, "red").session_id == first.id
        store.purge(first.id)
        assert _found(store, "red") == []
        store.restore(second.id)
        assert _only(store, "red").session_id == second.id

    def test_search_one_hit_of_a_lineage(self, store: Store, session: Session) -> None:
        """The best hit; the others are counted. A child that shares nothing is separate."""
        session.append(Message.user("red", id="a"), Message.user("red red red", id="b"))
        fork = session.fork()
        fork.append(Message.user("red and other things", id="c"))
        apart = store.create(parent=session, relation="reset")
        apart.append(Message.user("red", id="d"))
        found = {hit.message_id: hit.more for hit in store.search("red")}
        assert found == {"b": 2, "d": 0}

    def test_search_what_was_purged(self, store: Store, session: Session) -> None:
        """Purged sessions and erased messages are not found."""
        session.append(Message.user("red one", id="a"), Message.user("red two", id="b"))
        assert sorted(map(str, _found(store, "red", session=session.id))) == ["a", "b"]
        session.erase("a")
        assert _found(store, "red", session=session.id) == ["b"]
        assert _found(store, "", session=session.id) == ["b"]
        store.purge(session.id)
        assert _found(store, "red") == []

    # ----------------------------------------------------------------------------- titles, order

    def test_search_titles(self, store: Store) -> None:
        """Title hits come first, without a message."""
        said = store.session("said")
        said.append(Message.user("red parcel"))
        titled = store.session("titled", title="The Red Parcel of Café")
        hits = store.search("parcel red").items
        assert [hit.session_id for hit in hits] == [titled.id, said.id]
        assert (hits[0].message_id, hits[0].seq, hits[0].role) == (None, None, None)
        assert hits[0].snippet == "The Red Parcel of Café"
        assert [hits[0].snippet[a:b] for a, b in hits[0].marks] == ["Red", "Parcel"]
        assert _only(store, "cafe").session_id == titled.id
        assert len(store.search("parcel red -cafe")) == 1
        assert _found(store, "cafe", role="user") == []

    @pytest.mark.parametrize(
        ("title", "text"),
        [
            ("Straße 50%", "strasse"),
            ("100% _sure", "100%"),
            ("ＦＵＬＬ", "full"),  # noqa: RUF001 - full width on purpose
            ("getUserNameOf", "userName"),
            ("nul \0 red", "red"),
            ("half \ud800 café", "cafe"),
            ("包裹在哪里", "包裹"),
            ("a == b", "=="),
        ],
    )
    def test_search_any_title(self, store: Store, title: str, text: str) -> None:
        """Titles match by the same rules as texts."""
        store.create(title=title)
        store.create(title="another")
        assert len(store.search(text)) == 1

    def test_search_better_comes_first(self, store: Store) -> None:
        """A higher share of matching words ranks higher; of equals the newer."""
        for name, text in (
            ("long", "red " + "other " * 200),
            ("old", "red things"),
            ("new", "red things"),
            ("best", "red red red"),
        ):
            self.clock.advance(86_400)
            store.session(name).append(Message.user(text, id=name))
        assert _found(store, "red") == ["best", "new", "old", "long"]
        scores = [hit.score for hit in store.search("red")]
        assert scores == sorted(scores, reverse=True)

    def test_search_neighbours(self, store: Store, session: Session) -> None:
        """The neighbours in the history of the hit."""
        session.append(*(Message.user(f"w{number}", id=str(number)) for number in range(6)))
        session.rewind(4)
        session.append(Message.user("another way", id="x"))
        hit = _only(store, "w3", around=2)
        assert [message.id for message in hit.before] == ["1", "2"]
        assert [message.id for message in hit.after] == ["x"]
        assert _only(store, "w0", around=1).before == ()
        hit = _only(store, "w5", around=1, all_branches=True)
        assert ([m.id for m in hit.before], hit.after) == (["4"], ())

    # ------------------------------------------------------------------------------------- pages

    def test_search_pages(self, store: Store, session: Session) -> None:
        """All pages together have every hit once, whatever is written in between."""
        texts = {str(number): f"red{' red' * (number % 3)}" for number in range(25)}
        session.append(*(Message.user(text, id=id) for id, text in texts.items()))
        whole = _found(store, "red", session=session.id, limit=100)
        found: list[str | None] = []
        cursor: str | None = None
        while True:
            page = store.search("red", session=session.id, limit=4, cursor=cursor)
            found += [hit.message_id for hit in page]
            cursor = page.cursor
            if cursor is None:
                break
            self.clock.advance(100_000)
            session.append(Message.user("red red red red red", id=f"later {len(found)}"))
        assert found == whole
        assert sorted(map(str, found)) == sorted(texts)

    def test_search_a_cursor_of_another_search(self, store: Store, session: Session) -> None:
        """`BadQuery`."""
        session.append(*(Message.user("red blue") for _ in range(3)))
        cursor = store.search("red", session=session.id, limit=1).cursor
        assert cursor is not None
        with pytest.raises(BadQuery, match="cursor"):
            store.search("blue", session=session.id, limit=1, cursor=cursor)
        with pytest.raises(BadQuery, match="cursor"):
            store.search("red", session=session.id, limit=1, cursor=cursor, thinking=True)

    def test_search_at_most_a_thousand(self, store: Store, session: Session) -> None:
        """Of more matches only the newest thousand are ranked."""
        session.append(*(Message.user("red", id=str(number)) for number in range(1200)))
        store.catch_up_index()
        found = _found(store, "red", session=session.id, limit=_MAX_HITS)
        assert {int(str(id)) for id in found} == set(range(200, 1200))
        assert _only(store, "red").more == _MAX_HITS - 1

    # ---------------------------------------------------------------------------- index and seam

    def test_search_the_index_can_be_rebuilt(self, store: Store, session: Session) -> None:
        """Rebuilding the index, if there is one, does not change results."""
        session.append(*(Message.user(f"red {number}") for number in range(_SOME)))
        calls: list[tuple[int, int]] = []
        status = store.rebuild_index(lambda done, total: calls.append((done, total)))
        assert status == store.index_status()
        assert (status.state, status.messages) in {("ready", _SOME), ("none", 0)}
        assert all(done <= total == _SOME for done, total in calls)
        store.catch_up_index()
        assert store.check_index() == []
        assert len(_found(store, "red", session=session.id)) == _SOME

    def test_search_seam_owners(self, store: Store) -> None:
        """The owners of many branches at once; none if they are trashed or purged."""
        made = [store.create(scope=str(n), title=f"t {n}") for n in range(5)]
        made[0].append(Message.user("a"))
        made[0].undo()
        fork = made[1].fork()
        store.trash(made[2].id)
        store.purge(made[3].id)
        rows = {row.id: row for session in made[:3] if (row := self._row(store, session.id))}
        branches = [branch.n for row in rows.values() for branch in self._branches(store, row.n)]
        owners = store.backend.read(lambda snapshot: snapshot.owners([*branches, 10**6]))
        by_id: dict[str, list[BranchOwner]] = {}
        for owner in owners.values():
            by_id.setdefault(owner.id, []).append(owner)
        assert sorted(by_id) == sorted([made[0].id, made[1].id])
        facts = [(one.scope, one.title, one.branch) for one in by_id[made[0].id]]
        assert facts == [("0", "t 0", branches[1])] * 2
        assert fork.info().parent == made[1].id

    def _row(self, store: Store, id: str) -> Any:  # noqa: ANN401
        return store.backend.read(lambda snapshot: snapshot.find_session(id=id))

    def _branches(self, store: Store, n: int) -> list[Any]:
        return store.backend.read(lambda snapshot: list(snapshot.branches(session=n)))

    def test_search_seam_erasures_are_counted(self, store: Store, session: Session) -> None:
        """The count grows with each write that erases messages, and with no other."""
        if not isinstance(store.backend, IndexFileHost | IndexTableHost):
            pytest.skip("only a backend with a search index needs to count erasures")

        def count() -> int:
            return store.backend.read(lambda snapshot: snapshot.erasures())

        session.append(*(Message.user(str(n), id=str(n)) for n in range(3)))
        session.undo()
        store.trash(session.id)
        store.restore(session.id)
        before = count()
        session.erase("1")
        assert count() == before + 1
        store.purge(session.id)
        assert count() == before + 2

    def test_search_of_a_closed_store(self, store: Store, session: Session) -> None:
        """`StoreUnavailable`, as for every operation."""
        session.append(Message.user("red"))
        assert len(store.search("red")) == 1
        store.close()
        for call in (lambda: store.search("red"), store.index_status, store.rebuild_index):
            with pytest.raises(StoreUnavailable):
                call()

    def test_search_other_tenants(self, store: Store) -> None:
        """Neither their messages nor their titles are found."""
        self.need_persistence()
        theirs = self.open(tenant="them")
        theirs.session("k", title="blue").append(Message.user("red"))
        assert len(theirs.search("red")) == len(theirs.search("blue")) == 1
        assert len(store.search("red")) == len(store.search("blue")) == 0
        store.session("k").append(Message.user("red of ours"))
        assert _only(store, "red").snippet == "red of ours"
        assert _only(theirs, "red").snippet == "red"

    def test_search_the_twin(self, store: Store, session: Session) -> None:
        """The async twin returns the same."""
        session.append(Message.user("red"))

        async def work() -> None:
            twin = AsyncStore(store)
            assert (await twin.search("red", limit=5)).items == store.search("red", limit=5).items
            assert (await twin.rebuild_index()) == (await twin.index_status())
            await twin.catch_up_index()
            assert await twin.check_index() == []

        asyncio.run(work())
