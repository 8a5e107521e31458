"""Unreadable data is an error or marked, never an empty history; the rest stays readable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from holdfast import codec
from holdfast.aio.session import AsyncSession
from holdfast.clock import to_datetime
from holdfast.errors import BadMessage, Damaged
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Transaction
from holdfast.storage.rows import BlobUse, MessageRow, QueueRow
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Message, Raw

_LARGE = "of a large part " * 5_000
_WRONG = b'{"type":"text","text":"forged"}'


class DamageTests(StoreFixtures):
    """Promise 11. The backend protocol is used to write what no operation would."""

    def spoil(self, store: Store, session: Session, *, body: bytes | None = None) -> None:
        """Store a message with a wrong checksum, or with a body that cannot be decoded."""
        self.expect_no_damage = False

        def operation(tx: Transaction) -> None:
            head = tx.head(number_of(session))
            assert head is not None
            item = codec.encode(Message.user("spoilt"), to_datetime(tx.now()))
            kept = item.body if body is None else body
            crc = codec.checksum(item.id, None, kept) ^ (body is None)
            tx.add_messages(head.branch, [MessageRow(head.seq + 1, item.id, None, crc, kept)])
            tx.put_head(msgspec.structs.replace(head, seq=head.seq + 1))

        store.backend.write(operation)

    def spoil_blob(self, store: Store, session: Session, sha256: str) -> None:
        """Replace the data of a blob that the session's first message refers to."""
        self.expect_no_damage = False

        def operation(tx: Transaction) -> None:
            head = tx.head(number_of(session))
            assert head is not None
            tx.add_messages(head.branch, [], [BlobUse(1, sha256, _WRONG)])

        store.backend.write(operation)
        assert store.backend.read(lambda at: at.stored_blob(sha256)) == _WRONG

    @pytest.mark.parametrize("body", [None, b"{}", b"no JSON at all", b"\xff\xfe"])
    def test_a_damaged_message_costs_only_itself(
        self, store: Store, session: Session, body: bytes | None
    ) -> None:
        """It keeps its position and its bytes, is marked and counted, and is reported once."""
        session.append(Message.user("before"))
        self.spoil(store, session, body=body)
        session.append(Message.user("behind"))
        again = self.reopen(store)
        found = again.session("the session").messages()
        assert [m.status for m in found] == ["complete", "damaged", "complete"]
        assert [m.text for m in found] == ["before", "", "behind"]
        assert isinstance(found[1].parts[0], Raw)
        again.session("the session").messages()
        assert [(d.session_id, d.seq) for d in again.damage] == [(session.id, 2)]
        assert again.stats().messages == 3  # noqa: PLR2004
        n = number_of(again.session("the session"))
        assert again.backend.read(lambda at: at.session_size(n)).messages == 3  # noqa: PLR2004

    def test_a_damaged_message_is_neither_popped_nor_placed_again(
        self, store: Store, session: Session
    ) -> None:
        """`Damaged`, and nothing is changed; what lies behind it can be taken away and amended."""
        session.append(Message.user("before"))
        self.spoil(store, session)
        session.append(Message.user("behind"))
        for seq in (1, 2):
            with pytest.raises(Damaged, match="nothing was changed"):
                session.amend(seq, "x")
        session.amend(3, "amended")
        popped = session.pop()
        assert popped is not None
        assert popped.text == "amended"
        head = session.head()
        with pytest.raises(Damaged, match="nothing was changed"):
            session.pop()
        assert session.head() == head

    def test_a_filter_hides_no_damage(self, store: Store, session: Session) -> None:
        """Whether a damaged message would match cannot be known, so it is returned and reported."""
        session.append(Message.assistant("before", id="before"))
        self.spoil(store, session)
        session.append(Message.assistant("behind", metadata={"hidden": True}))
        again = self.reopen(store)
        read = again.session("the session").messages
        assert [m.status for m in read(role="assistant")] == ["complete", "damaged", "complete"]
        assert [m.seq for m in read(role="tool")] == [2]
        assert [m.seq for m in read(hidden=True)] == [2, 3]
        assert [m.seq for m in read(hidden=False, limit=1)] == [2]
        assert [(d.session_id, d.seq) for d in again.damage] == [(session.id, 2)]
        assert again.session("the session").message(read()[1].id).status == "damaged"
        assert again.message("before")[1].text == "before"

    def test_verify_says_which_message_of_which_session(
        self, store: Store, session: Session
    ) -> None:
        """`verify` names the damaged message and its session, and no others."""
        store.session("well").append(Message.user("a"))
        session.append(Message.user("a"))
        self.spoil(store, session)
        damage = store.verify()
        assert {(d.session_id, d.seq) for d in damage} == {(session.id, 2)}

    @pytest.mark.parametrize("finder", ["verify", "messages"])
    def test_what_is_known_to_be_damaged_is_not_written_to(
        self, store: Store, session: Session, finder: str
    ) -> None:
        """Every write to the session is refused and stores nothing; all others go on."""
        session.append(Message.user("before"))
        early = session.fork()
        self.spoil(store, session)
        late = session.fork()
        head = session.head()
        _ = store.verify() if finder == "verify" else session.messages()
        calls: list[Callable[[], object]] = [
            lambda: session.append(Message.user("x")),
            lambda: session.turn().__enter__(),
            lambda: session.enqueue("x"),
            lambda: session.rewind(1),
            session.pop,
            lambda: session.amend(1, "x"),
            session.undo,
            session.clear,
            lambda: session.replace([Message.user("x")]),
            lambda: session.summarize("x"),
            lambda: session.update(title="x"),
            session.recover,
            lambda: store.get(session.id).append(Message.user("x")),
        ]
        for call in calls:
            with pytest.raises(Damaged, match=session.id):
                call()
        assert (session.head(), session.info().title) == (head, None)
        for other in (early, late, session.fork(1), store.session("other")):
            other.append(Message.user("goes on"))
        assert [m.text for m in early.messages()] == ["before", "goes on"]

    def test_a_turn_in_which_damage_is_found_stores_nothing_more(
        self, store: Store, session: Session
    ) -> None:
        """Neither messages, nor tools, nor a reply that is streamed."""
        turn = self.open_turn(session)
        turn.user("before")
        reply = turn.stream()
        reply.write("streamed")
        self.spoil(store, session)
        head = session.head()
        session.messages()
        calls: list[Callable[[], object]] = [
            lambda: turn.assistant("x"),
            lambda: turn.tool_started("c"),
            turn.take_queued,
            reply.flush,
            reply.close,
            turn.cancel,
        ]
        for call in calls:
            with pytest.raises(Damaged):
                call()
        assert session.head() == head

    def test_async_writers_are_refused_as_well(self, store: Store, session: Session) -> None:
        """The async twins write to damaged sessions no more than these."""
        self.spoil(store, session)
        store.verify()
        twin = AsyncSession(session)
        with pytest.raises(Damaged):
            asyncio.run(twin.append(Message.user("x")))
        with pytest.raises(Damaged):
            asyncio.run(twin.turn().__aenter__())
        assert session.head().seq == 1

    def test_a_damaged_session_can_be_deleted(self, store: Store, session: Session) -> None:
        """It goes to the trash and comes back, its message can be erased, and it can be purged."""
        self.spoil(store, session)
        assert store.verify() != []
        store.trash(session.id)
        store.restore(session.id)
        session.erase(1)
        assert store.verify() == []
        session.append(Message.user("goes on"))
        self.spoil(store, session)
        store.verify()
        store.purge(session.id)
        assert store.verify() == []

    def test_a_large_part_that_changed_is_damage(self, store: Store, session: Session) -> None:
        """It is marked, reported, neither sent nor found, and its bytes are kept."""
        session.append(Message.user(_LARGE), Message.user("behind"))
        (sha256,) = large_parts(_LARGE)
        self.spoil_blob(store, session, sha256)
        again = self.reopen(store)
        session = again.session("the session")
        assert [m.status for m in session.messages()] == ["damaged", "complete"]
        assert [(d.session_id, d.seq) for d in again.damage] == [(session.id, 1)]
        window = session.window()
        assert "behind" in str(window.messages)
        assert "forged" not in str(window.messages)
        assert not again.search("forged").items
        assert {(d.session_id, d.seq) for d in again.verify()} >= {(session.id, 1)}
        assert again.backend.read(lambda at: at.stored_blob(sha256)) == _WRONG

    def test_a_part_that_was_acknowledged_is_not_a_reference_to_a_damaged_blob(
        self, store: Store, session: Session
    ) -> None:
        """The same content, stored again, repairs the blob for all messages that refer to it."""
        session.append(Message.user(_LARGE))
        self.spoil_blob(store, session, *large_parts(_LARGE))
        store.session("other").append(Message.user(_LARGE))
        assert [m.text for m in session.messages()] == [_LARGE]
        assert [m.text for m in store.session("other").messages()] == [_LARGE]
        assert store.damage == []
        self.spoil_blob(store, session, *large_parts(_LARGE))
        assert session.messages()[0].status == "damaged"
        session.append(Message.user(_LARGE))
        self.expect_no_damage = True
        again = self.reopen(store)
        assert [m.text for m in again.session("the session").messages()] == [_LARGE] * 2

    def test_a_file_that_changed_is_damage(self, store: Store, session: Session) -> None:
        """It is not returned, not sent and not referred to; given with its data it is repaired."""
        file = File(name="a.txt", mime="text/plain", data=b"of a file")
        session.append(Message.user(["look", file]))
        sha256 = codec.sha256_hex(b"of a file")
        self.spoil_blob(store, session, sha256)
        with pytest.raises(Damaged):
            store.blob(sha256)
        assert len(store.damage) == 1
        assert "forged" not in str(session.window().messages)
        with pytest.raises(BadMessage):
            session.append(Message.user([File(sha256=sha256)]))
        session.append(Message.user([file]))
        assert store.blob(sha256) == b"of a file"
        self.expect_no_damage = True

    def test_queued_input_that_changed_is_damage(self, store: Store, session: Session) -> None:
        """It does not become a message, and its data does not replace a blob that is intact."""
        self.expect_no_damage = False
        item = codec.encode(Message.user([_LARGE, File(data=b"of a file")]), to_datetime(1))
        wrong = tuple((sha256, _WRONG) for sha256, _ in item.blobs)

        def operation(tx: Transaction) -> None:
            head = tx.head(number_of(session))
            assert head is not None
            tx.add_queued(head.session, QueueRow(0, item.id, 1, item.body, wrong))
            tx.put_head(msgspec.structs.replace(head, queued=1))

        store.backend.write(operation)
        with pytest.raises(Damaged):
            session.queued()
        with session.turn() as turn, pytest.raises(Damaged):
            turn.take_queued()
        assert session.messages() == []
        store.session("other").append(item.message)
        with session.turn() as turn:
            assert [m.text for m in turn.take_queued()] == [_LARGE]
        assert store.blob(item.blobs[0][0]) == b"of a file"

    def test_a_missing_message_is_an_error(self, store: Store, session: Session) -> None:
        """A history shorter than its head says raises; it is never returned as if it were whole."""
        self.expect_no_damage = False
        session.append(Message.user("a"))

        def operation(tx: Transaction) -> None:
            head = tx.head(number_of(session))
            assert head is not None
            tx.put_head(msgspec.structs.replace(head, seq=head.seq + 2))

        store.backend.write(operation)
        with pytest.raises(Damaged):
            session.messages()
        assert {d.session_id for d in store.damage} == {session.id}
        assert [m.text for m in session.messages(before=2)] == ["a"]
        with pytest.raises(Damaged):
            session.append(Message.user("b"))
        assert any(d.session_id == session.id for d in store.verify())

    def test_the_latest_falls_back_past_what_cannot_be_read(
        self, store: Store, session: Session
    ) -> None:
        """`latest` returns the newest readable session; the damaged one is reported."""
        session.append(Message.user("a"))
        spoilt, unreadable = store.session("spoilt"), store.session("unreadable")
        self.spoil(store, spoilt)

        def operation(tx: Transaction) -> None:
            row = tx.session(number_of(unreadable))
            assert row is not None
            tx.put_session(msgspec.structs.replace(row, goal=b'{"objective":'))

        store.backend.write(operation)
        latest = store.latest()
        assert latest is not None
        assert latest.id == session.id
        assert {d.session_id for d in store.damage} == {spoilt.id, unreadable.id}

    def test_a_list_shows_what_can_be_read(self, store: Store, session: Session) -> None:
        """One session whose identity is damaged does not hide the others."""
        self.expect_no_damage = False
        other = store.session("other")

        def operation(tx: Transaction) -> None:
            row = tx.session(number_of(other))
            assert row is not None
            tx.put_session(msgspec.structs.replace(row, goal=b"[1"))

        store.backend.write(operation)
        found = store.sessions()
        assert [(info.id, info.state) for info in found] == [
            (other.id, "damaged"),
            (session.id, "done"),
        ]
        assert {d.session_id for d in store.damage} == {other.id}

    def test_a_draft_that_cannot_be_read_does_not_stop_recovery(
        self, store: Store, session: Session
    ) -> None:
        """The draft's bytes are kept in the partial message."""
        turn = self.open_turn(session)
        reply = turn.stream()
        reply.write("half")
        reply.flush()

        def operation(tx: Transaction) -> None:
            assert tx.head(number_of(session)) is not None
            tx.put_draft(number_of(session), 1, 1, b'{"deltas": nonsense')

        store.backend.write(operation)
        self.expire_leases(store)
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is not None
        (part,) = recovered.partial.parts
        assert isinstance(part, Raw)
        assert "nonsense" in str(part.data)
        with session.turn():
            pass


def large_parts(text: str) -> list[str]:
    """Return the hashes of the parts of a message with this text that are stored as blobs."""
    return codec.blob_hashes(codec.encode(Message.user(text), to_datetime(1)).body)[0]
