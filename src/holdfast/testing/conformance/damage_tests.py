"""Unreadable data is an error or marked, never an empty history; the rest stays readable."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import codec
from holdfast.clock import to_datetime
from holdfast.errors import Damaged
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Transaction
from holdfast.storage.rows import MessageRow
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import Message, Raw


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

    def test_verify_says_which_message_of_which_session(
        self, store: Store, session: Session
    ) -> None:
        """`verify` names the damaged message and its session, and no others."""
        store.session("well").append(Message.user("a"))
        session.append(Message.user("a"))
        self.spoil(store, session)
        damage = store.verify()
        assert {(d.session_id, d.seq) for d in damage} == {(session.id, 2)}

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
        assert [m.text for m in session.messages(before=2)] == ["a"]
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
