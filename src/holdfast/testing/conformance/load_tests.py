"""Loading many sessions at once: what appends would store, in few transactions, each id once."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import BadMessage, IdConflict, Invalid
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.transfer import load
from holdfast.values import File, LoadReport, Message, NewSession, Record, ToolCall, Usage

_LARGE = b"large" * 1000
Pair = tuple[Any, Any]


def numbered(key: str, count: int, text: str = "") -> list[Message]:
    """Return messages with ids of their own."""
    return [Message.user(f"{n}{text}", id=f"{key}-{n}") for n in range(count)]


def texts(session: Session) -> list[str]:
    """Return the texts of a session."""
    return [message.text for message in session.messages()]


class LoadTests(StoreFixtures):
    """`Store.load`."""

    def test_sessions_are_created_with_their_fields_and_messages(self, store: Store) -> None:
        """A key alone, or with fields; a key that comes again is the same session."""
        fields: NewSession = {"key": "b", "title": "Of b", "scope": "s", "metadata": {"n": 1}}
        report = store.load(
            [("a", numbered("a", 3)), (fields, numbered("b", 2)), ("none", []), ("a", [])]
        )
        assert report == LoadReport(sessions=3, messages=5, records=0, skipped=0)
        store = self.reopen(store)
        assert texts(store.session("a", create=False)) == ["0", "1", "2"]
        found = store.session("b", create=False).info()
        assert (found.title, found.scope, found.metadata) == ("Of b", "s", {"n": 1})
        assert texts(store.session("none", create=False)) == []
        assert [info.key for info in store.sessions().items] == ["none", "b", "a"]
        assert store.verify() == []

    def test_it_stores_what_an_append_stores(self, store: Store) -> None:
        """Text that no encoding has, large parts, files, usage, records: all of it, in order."""
        call = ToolCall("c1", "look", {"at": "\ud800"})
        entries: list[Message | Record] = [
            Message.user("a\0b \ud800 c", id="\udfff-1"),
            Record("state", key="k", data={"n": 1}, id="r1"),
            Message.user([File(name="f", data=_LARGE), "y" * 100_000], id="m2"),
            Message.assistant("z", tool_calls=[call], usage=Usage(3, 4), model="m", id="m3"),
            Record("state", key="k", data={"n": 2}, id="r2"),
        ]
        appended = store.session("appended")
        appended.append(*entries)
        assert store.load([("loaded", iter(entries))]).messages == 3
        loaded = store.session("loaded", create=False)
        assert self._shown(loaded) == self._shown(appended)
        assert [r.seq for r in loaded.records("state")] == [1, 3]
        assert store.verify() == []

    def _shown(self, session: Session) -> object:
        info = session.info()
        messages = [(m.id, m.seq, m.parts, m.usage, m.model) for m in session.messages()]
        records = [(r.id, r.seq, r.data) for r in session.records()]
        return messages, records, info.usage, info.preview, session.head()

    def test_a_repeated_load_continues(self, store: Store) -> None:
        """What is stored is skipped, what is new goes behind it."""
        store.load([("a", numbered("a", 3)), ("b", numbered("b", 1))])
        again = [("a", numbered("a", 5)), ("b", numbered("b", 1)), ("c", numbered("c", 1))]
        assert store.load(again) == LoadReport(sessions=1, messages=3, records=0, skipped=4)
        assert texts(store.session("a")) == ["0", "1", "2", "3", "4"]
        head = store.session("a").head()
        assert store.load(again) == LoadReport(sessions=0, messages=0, records=0, skipped=7)
        assert store.session("a").head() == head

    def test_a_long_session_is_several_transactions(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Entries are read as they are needed, and `progress` hears of what is stored."""
        monkeypatch.setattr(load, "_MAX_BATCH_ENTRIES", 40)
        read: list[int] = []
        told: list[tuple[int, int]] = []

        def entries() -> Iterator[Message]:
            for n, message in enumerate(numbered("a", 100)):
                read.append(n)
                yield message

        report = store.load([("a", entries())], progress=lambda n: told.append((n, len(read))))
        assert (report.sessions, report.messages) == (1, 100)
        # One more is read before a batch is stored: only then it is known to be full.
        assert told == [(40, 41), (80, 81), (100, 100)]
        assert texts(store.session("a")) == [str(n) for n in range(100)]

    def test_few_sessions_and_few_bytes_are_a_transaction(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that neither empty sessions nor large messages fill the memory."""
        monkeypatch.setattr(load, "_MAX_BATCH_SESSIONS", 10)
        monkeypatch.setattr(load, "_MAX_BATCH_BYTES", 100_000)
        written = self._writes(store, monkeypatch)
        store.load([(f"k{n}", []) for n in range(25)])
        assert len(written) == 3
        files = [Message.user([File(name="f", data=b"%d" % n * 60_000)]) for n in range(4)]
        store.load([("files", files)])
        assert len(written) == 5

    def _writes(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        """Return a list of the operations that are submitted from now on."""
        written: list[object] = []
        submit = store.backend.submit

        def watched(operation: Any) -> Any:  # noqa: ANN401 - as the backend's
            written.append(operation)
            return submit(operation)

        monkeypatch.setattr(store.backend, "submit", watched)
        return written

    def test_a_thousand_messages_share_a_transaction(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of many sessions as of one; ten thousand in a session are five."""
        written = self._writes(store, monkeypatch)
        store.load([(f"k{n}", numbered(f"k{n}", 10)) for n in range(100)])
        assert len(written) == 1
        store.load([("long", numbered("long", 10_000))])
        assert len(written) == 6
        assert store.session("long").head().seq == 10_000

    def test_another_body_refuses_its_whole_transaction(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those before are stored, those after it are not read."""
        monkeypatch.setattr(load, "_MAX_BATCH_ENTRIES", 4)
        store.load([("a", numbered("a", 2))])
        pairs: list[Pair] = [
            ("first", numbered("first", 4)),
            ("second", numbered("second", 2)),
            ("a", [Message.user("other", id="a-1"), Message.user("new", id="a-9")]),
            ("last", numbered("last", 1)),
        ]
        with pytest.raises(IdConflict):
            store.load(iter(pairs))
        assert texts(store.session("a")) == ["0", "1"]
        assert [info.key for info in store.sessions().items] == ["first", "a"]
        twice = [Message.user("one", id="x"), Message.user("two", id="x")]
        with pytest.raises(IdConflict):
            store.load([("new", [Message.user("zero")]), ("twice", twice)])
        assert len(store.sessions().items) == 2

    def test_an_error_of_the_caller_keeps_what_was_stored(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its own error comes out, and a second load continues."""
        monkeypatch.setattr(load, "_MAX_BATCH_ENTRIES", 4)

        def entries() -> Iterator[Message]:
            yield from numbered("a", 6)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            store.load([("a", entries())])
        assert texts(store.session("a")) == ["0", "1", "2", "3"]
        assert store.load([("a", numbered("a", 6))]).skipped == 4
        assert texts(store.session("a")) == ["0", "1", "2", "3", "4", "5"]

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            (["k"], Invalid),
            ([(5, [])], Invalid),
            ([(None, [])], Invalid),
            ([(b"k", [])], Invalid),
            ([({5: "k", "key": "k"}, [])], TypeError),
            ([("k", 5)], BadMessage),
            ([("", [])], Invalid),
            ([({"scope": "no key"}, [])], Invalid),
            ([({"key": "k", "colour": "red"}, [])], TypeError),
            ([("k", ["text"])], BadMessage),
        ],
    )
    def test_what_is_no_session_is_refused(
        self, store: Store, given: list[Pair], error: type[Exception]
    ) -> None:
        """Before anything of its transaction is stored."""
        with pytest.raises(error):
            store.load([("before", numbered("before", 1)), *given])
        assert store.sessions().items == ()

    def test_an_open_turn_stays_open(self, store: Store) -> None:
        """Another worker's turn goes on behind what was loaded meanwhile."""
        session = store.session("busy")
        with session.turn() as turn:
            turn.user("asked")
            store.load([("busy", numbered("busy", 2))])
            turn.assistant("answered")
        assert texts(session) == ["asked", "0", "1", "answered"]
        assert [m.turn_id is None for m in session.messages()] == [False, True, True, False]

    def test_a_key_in_the_trash_is_free(self, store: Store) -> None:
        """As for every other session with this key."""
        store.load([("a", numbered("a", 1))])
        store.trash("a")
        assert store.load([("a", numbered("a", 2))]).sessions == 1
        assert texts(store.session("a")) == ["0", "1"]

    def test_searches_and_followers_find_it(self, store: Store) -> None:
        """A load is a write like others."""
        follower = store.follow()
        store.load([(f"k{n}", [Message.user(f"parcel number{n}")]) for n in range(3)])
        found = {next(follower).session_id for _ in range(3)}
        assert found == {info.id for info in store.sessions().items}
        (hit,) = store.search("number1").items
        assert hit.session_id == store.get("k1").id

    def test_two_loads_at_once(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """Both bring the same sessions, in another order: each message is stored once."""
        monkeypatch.setattr(load, "_MAX_BATCH_ENTRIES", 30)
        pairs = [(f"k{n}", numbered(f"k{n}", 7)) for n in range(20)]

        reports: list[LoadReport] = []

        def loading(given: list[Pair]) -> Callable[[], None]:
            return lambda: reports.append(store.load(given))

        run_concurrently(loading(pairs), loading(pairs[::-1]))
        assert sum(report.sessions for report in reports) == 20
        assert sum(report.messages for report in reports) == 140
        assert sum(report.skipped for report in reports) == 140
        for key, _ in pairs:
            assert texts(store.session(key, create=False)) == [str(n) for n in range(7)]
        assert store.verify() == []
