"""Records: state behind messages, stored with them, found by kind and key, each id once."""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import codec
from holdfast.errors import (
    BadMessage,
    BadQuery,
    Conflict,
    HeadMoved,
    IdConflict,
    MessageNotFound,
    PreconditionFailed,
    TooLarge,
    TurnLost,
)
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures, run_concurrently
from holdfast.values import File, Head, Message, Record

_WRITERS = 4
_EACH = 10
_LARGE = b"large" * 1000


def data_of(records: list[Record]) -> list[object]:
    """Return the data of each record."""
    return [record.data for record in records]


def state(data: object = None, **fields: object) -> Record:
    """Return a record of kind `state`, valid or not."""
    return Record("state", data=data, **fields)  # type: ignore[arg-type]


class RecordTests(StoreFixtures):
    """Storing and reading them."""

    def test_the_newest_of_a_kind_and_key_is_current(self, store: Store, session: Session) -> None:
        """By kind and key; a record without a key is none of those with one."""
        session.append(state(1), state(2), state("x", key="x"), Record("other", data=3))
        session = self.reopen(store).session("the session")
        found = session.record("state")
        assert found is not None
        assert (found.kind, found.key, found.data, found.seq) == ("state", None, 2, 0)
        assert found.created_at is not None
        assert session.record("state", "x").data == "x"  # type: ignore[union-attr]
        assert session.record("other").data == 3  # type: ignore[union-attr]
        assert session.record("state", "y") is None
        assert session.record("none") is None

    def test_a_record_lies_behind_the_message_before_it(self, session: Session) -> None:
        """In its batch, or at the head; the head is where the messages end."""
        assert session.append(state(0)) == Head(1, 0)
        head = session.append(
            Message.user("a"), state(1), Message.user("b"), Message.user("c"), state(2), state(3)
        )
        assert head == session.head() == Head(1, 3)
        assert session.append(state(4)) == Head(1, 3)
        assert [(r.data, r.seq) for r in session.records()] == [
            (0, 0),
            (1, 1),
            (2, 3),
            (3, 3),
            (4, 3),
        ]

    def test_it_is_none_of_the_messages(self, store: Store, session: Session) -> None:
        """Not in messages, windows, counts, previews, titles, tokens or a search."""
        session.append(Message.user("hello"))
        before, listed = session.info(), store.sessions().items[0]
        window = session.window()
        session.append(Record("secret", key="needle", data={"needle": "needle"}))
        assert [m.text for m in session.messages()] == ["hello"]
        assert session.window() == window
        after = session.info()
        assert after.updated_at > before.updated_at
        for field in ("messages", "preview", "title", "turns", "usage", "branches"):
            assert getattr(after, field) == getattr(before, field)
        assert store.sessions().items[0].preview == listed.preview
        assert store.search("needle").items == ()
        assert store.stats().messages == 1

    def test_it_raises_the_activity_of_its_session(self, store: Store, session: Session) -> None:
        """It is the session that was written to last."""
        other = store.create()
        session.append(state(1))
        assert [info.id for info in store.sessions()] == [session.id, other.id]

    def test_who_only_talks_is_not_refused_because_of_state(self, session: Session) -> None:
        """A record moves no head."""
        head = session.append(Message.user("a"))
        session.append(state(1))
        assert session.append(Message.user("b"), expect=head) == Head(1, 2)
        with pytest.raises(HeadMoved):
            session.append(state(2), expect=head)
        assert session.record("state").data == 1  # type: ignore[union-attr]

    def test_files_are_returned_small_and_named_large(self, store: Store, session: Session) -> None:
        """Large ones are stored once, by content; one may be passed by its hash alone."""
        session.append(state(files={"small": File(data=b"s"), "large": File(data=_LARGE)}))
        found = session.record("state")
        assert found is not None
        assert found.files["small"].data == b"s"
        sha256 = found.files["large"].sha256
        assert sha256 is not None
        assert store.blob(sha256) == _LARGE
        session.append(state(files={"again": File(sha256=sha256)}))
        assert store.stats().blobs == 1
        with pytest.raises(BadMessage, match="files: data"):
            session.append(state(files={"lost": File(sha256="0" * 64)}))

    def test_data_of_any_size_comes_back(self, session: Session) -> None:
        """Also data that is stored as a blob."""
        data = {"text": "x" * (codec.BLOB_THRESHOLD + 1), "lone": "\ud800", "n": [1, None, True]}
        session.append(state(data))
        assert session.record("state").data == data  # type: ignore[union-attr]

    # ------------------------------------------------------------------------------ reading many

    def test_many_are_read_by_kind_key_and_prefix(self, session: Session) -> None:
        """Oldest first; a key of `None` means those without one."""
        session.append(state(1), state(2, key="a/1"), state(3, key="a/2"), Record("b", data=4))
        session.append(state(5, key="b"))
        assert data_of(session.records()) == [1, 2, 3, 4, 5]
        assert data_of(session.records("state")) == [1, 2, 3, 5]
        assert data_of(session.records("state", key=None)) == [1]
        assert data_of(session.records("state", key="a/2")) == [3]
        assert data_of(session.records("state", prefix="a/")) == [2, 3]
        assert data_of(session.records("state", prefix="a/%")) == []
        assert session.records("none") == []

    def test_they_are_read_in_pages_from_the_newest(self, session: Session) -> None:
        """The newest `limit`, then those before the first of them, across branches."""
        session.append(Message.user("a"), *map(state, range(3)), Message.user("b"))
        session.append(state("cut"))
        session.rewind(1)
        session.append(*map(state, range(3, 5)))
        session.fork().append(state("not here"))
        pages: list[list[object]] = []
        before = None
        while page := session.records("state", before=before, limit=2):
            pages.append(data_of(page))
            before = page[0].id
        assert pages == [[3, 4], [1, 2], [0]]
        assert session.records(limit=0) == []

    def test_all_branches_are_read_in_the_order_of_storing(self, session: Session) -> None:
        """Each record once, those that a fork inherited first."""
        session.append(Message.user("a"), state(0), Message.user("b"), state(1))
        fork = session.fork()
        fork.append(state(2))
        fork.rewind(1)
        fork.append(state(3), Message.user("c"), state(4))
        assert data_of(fork.records()) == [0, 3, 4]
        assert data_of(fork.records(all_branches=True)) == [0, 1, 2, 3, 4]
        page = fork.records(all_branches=True, limit=2)
        assert data_of(page) == [3, 4]
        page = fork.records(all_branches=True, before=page[0].id, limit=2)
        assert data_of(page) == [1, 2]
        assert data_of(fork.records(all_branches=True, before=page[0].id)) == [0]
        assert data_of(session.records(all_branches=True)) == [0, 1]

    # -------------------------------------------------------------------------------- once per id

    def test_a_retry_returns_the_first_receipt(self, session: Session) -> None:
        """Also when `after` no longer holds, the head has moved, or the session is in the trash."""
        first = state(1, after=None)
        batch: list[Message | Record] = [Message.user("a"), first]
        start = session.head()
        receipt = session.append(*batch)
        session.append(Message.user("b"), state(2, after=first.id))
        assert session.append(*batch, expect=start) == receipt == Head(1, 1)
        assert session.append(first) == receipt
        assert session.append(first, state(3)) == Head(1, 2)
        assert data_of(session.records()) == [1, 2, 3]

    def test_the_id_of_a_record_with_another_body_is_refused(self, session: Session) -> None:
        """Or with another kind or key; nothing of the batch is stored."""
        session.append(state(1, id="one"))
        for other in (
            state(2, id="one"),
            state(1, id="one", key="k"),
            Record("other", data=1, id="one"),
            state(1, id="one", files={"f": File(data=b"x")}),
        ):
            with pytest.raises(IdConflict):
                session.append(Message.user("lost"), other)
        with pytest.raises(IdConflict):
            session.append(state(1, id="two"), state(2, id="two"))
        assert session.head() == Head(1, 0)
        assert data_of(session.records()) == [1]

    def test_a_record_twice_in_a_batch_is_stored_once(self, session: Session) -> None:
        """As a message is."""
        one = state(1)
        session.append(one, one)
        assert data_of(session.records()) == [1]

    # ------------------------------------------------------------------------------------- after

    def test_after_compares_with_the_newest(self, session: Session) -> None:
        """With its id, or with `None` for none; otherwise nothing of the batch is stored."""
        first, second = state(1, after=None), state(2)
        session.append(first)
        for wrong in (state(9, after=None), state(9, after="unknown"), state(9, after=second.id)):
            with pytest.raises(PreconditionFailed, match="after: "):
                session.append(Message.user("lost"), wrong, state(9, key="k"))
        session.append(state(2, id=second.id, after=first.id), state(3, after=second.id))
        session.append(state("other", key="k", after=None))
        assert data_of(session.records()) == [1, 2, 3, "other"]
        assert session.messages() == []

    def test_a_conflict_names_the_record_and_escapes_its_ids(self, session: Session) -> None:
        """An id may have characters that control a terminal."""
        session.append(state(1, key="k", id="\x1b[2J"))
        told = r"kind 'state' and key 'k' is '\\x1b\[2J', not None; nothing was stored"
        with pytest.raises(Conflict, match=told):
            session.append(state(2, key="k", after=None))

    def test_after_looks_at_the_current_history(self, session: Session) -> None:
        """A record that was cut off is none."""
        first, second = state(1), state(2)
        session.append(Message.user("a"), first, Message.user("b"), second)
        session.rewind(1)
        with pytest.raises(PreconditionFailed):
            session.append(state(3, after=second.id))
        session.append(state(3, after=first.id))

    def test_writers_that_compare_lose_no_update(self, session: Session) -> None:
        """Each adds to a counter that all of them share."""

        def count() -> None:
            for _ in range(_EACH):
                while True:
                    newest = session.record("count")
                    number: Any = 0 if newest is None else newest.data
                    after = None if newest is None else newest.id
                    try:
                        session.append(Record("count", data=number + 1, after=after))
                        break
                    except PreconditionFailed:
                        continue

        run_concurrently(*[count] * _WRITERS)
        assert session.record("count").data == _WRITERS * _EACH  # type: ignore[union-attr]
        assert data_of(session.records("count")) == list(range(1, _WRITERS * _EACH + 1))

    # ------------------------------------------------------------------------------------- turns

    def test_a_turn_stores_records(self, session: Session) -> None:
        """They come back as stored."""
        with session.turn() as turn:
            turn.user("a")
            files = {"f": File(data=_LARGE)}
            stored = turn.record("state", {"n": 1}, key="k", files=files)
            turn.assistant("b")
        assert stored == session.record("state", "k")
        assert (stored.seq, stored.data) == (1, {"n": 1})
        assert session.turns()[-1].state == "sealed"

    def test_the_old_holder_stores_no_record(self, store: Store, session: Session) -> None:
        """After a takeover it is refused, as every step of a turn."""
        lost = self.open_turn(session)
        self.expire_leases(store)
        with session.turn() as turn:
            turn.record("state", 1)
            with pytest.raises(TurnLost):
                lost.record("state", 2)
        assert data_of(session.records()) == [1]

    def test_an_open_turn_does_not_stop_others(self, session: Session) -> None:
        """Whoever appends needs no turn."""
        with session.turn():
            session.append(state(1))
        assert data_of(session.records()) == [1]

    # ---------------------------------------------------------------------------------- refusals

    def test_a_session_in_the_trash_takes_none(self, store: Store, session: Session) -> None:
        """What it has can be read; a retry of what it has is no new one."""
        stored = state(1)
        session.append(stored)
        store.trash(session.id)
        with pytest.raises(Conflict, match="trash") as caught:
            session.append(Message.user("lost"), state(2, after=stored.id))
        assert not isinstance(caught.value, PreconditionFailed), "a loop that compares would spin"
        assert session.append(stored) == Head(1, 0)
        assert data_of(session.records()) == [1]
        store.restore(session.id)
        session.append(state(2))

    def test_a_record_that_is_not_valid_is_refused_by_field(self, session: Session) -> None:
        """Nothing of the batch is stored."""
        deep: list[Any] = []
        for _ in range(300):
            deep = [deep]
        bad: dict[str, list[Any]] = {
            "kind": [Record(""), Record("k" * 5000), Record(1)],  # type: ignore[arg-type]
            "key": [state(key=""), state(key="k" * 5000), state(key=1)],
            "id": [state(id=""), state(id=None)],
            "after": [state(after=""), state(after=1)],
            "scope": [state(scope=""), state(scope=1)],
            "data": [state(float("nan")), state(b"x"), state({1: 2}), state(deep)],
            "files": [state(files=[]), state(files={"f": b"x"}), state(files={"": File(data=b"")})],
            "created_at": [state(created_at="now")],
        }
        for field, records in bad.items():
            for record in records:
                with pytest.raises(BadMessage, match=rf"^{field}"):
                    session.append(Message.user("lost"), record)
        many = {str(n): File(data=b"") for n in range(codec.MAX_RECORD_FILES + 1)}
        with pytest.raises(TooLarge, match="files"):
            session.append(state(files=many))
        with pytest.raises(TooLarge, match="entries"):
            session.append(*[state()] * (codec.MAX_BATCH_ENTRIES + 1))
        assert (session.head(), session.records()) == (Head(1, 0), [])

    def test_a_record_is_no_message(self, session: Session) -> None:
        """Where a message belongs it is refused."""
        with pytest.raises(BadMessage, match="Message, got Record"):
            session.replace([state()])  # type: ignore[list-item]
        with session.turn() as turn, pytest.raises(BadMessage, match="Message, got Record"):
            turn.add(state())  # type: ignore[arg-type]

    def test_queries_of_records_name_the_field_that_is_wrong(self, session: Session) -> None:
        """Also a position that there is not."""
        session.append(Message.user("a"), state(1))
        calls: dict[str, Callable[[], object]] = {
            "kind": lambda: session.record(""),
            "key": lambda: session.records(key="k"),
            "prefix": lambda: session.records("state", key="k", prefix="p"),
            "before": lambda: session.records(before="unknown"),
            "limit": lambda: session.records(limit=-1),
            "all_branches": lambda: session.records(all_branches=1),  # type: ignore[arg-type]
        }
        for field, call in calls.items():
            with pytest.raises((BadQuery, BadMessage), match=rf"^{field}: "):
                call()
        for at in (9, "unknown", Head(1, 9), Head(9, 1)):
            with pytest.raises(MessageNotFound):
                session.record("state", at=at)
