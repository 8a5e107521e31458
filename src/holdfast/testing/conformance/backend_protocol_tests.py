"""The backend protocol: an operation that raises leaves no trace, and writes are serial."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from holdfast import codec
from holdfast.clock import to_datetime
from holdfast.operations import append, head_moves
from holdfast.session import Session, number_of
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.rows import (
    BlobUse,
    BranchStart,
    HeadRow,
    MessageRow,
    QueueRow,
    SessionRowCounts,
    UsageRow,
)
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import StoreFixtures
from holdfast.values import File, Message, Stats, Usage

_BLOB = b"data"
_KEPT = b"kept"
_LONG = 30.0


class GaveUpError(Exception):
    """Raised by an operation after it has written."""


def _head(tx: Snapshot, session: Session) -> HeadRow:
    row = tx.head(number_of(session))
    assert row is not None
    return row


def _belongings(at: Snapshot, n: int) -> tuple[object, ...]:
    return at.head(n), at.turns(n), at.tools(n, 1), at.draft(n, 1), at.queue(n), at.usage(session=n)


def _advance(tx: Transaction, session: Session) -> None:
    head = _head(tx, session)
    item = codec.encode(Message.user("x"), to_datetime(tx.now()))
    row = MessageRow.create(head.seq + 1, item.id, None, item.body)
    tx.add_messages(head.branch, [row])
    tx.put_head(msgspec.structs.replace(head, seq=head.seq + 1))


def _use_blob(tx: Transaction, session: Session) -> None:
    use = BlobUse(1, codec.sha256_hex(_BLOB), _BLOB)
    tx.add_messages(_head(tx, session).branch, [], [use])


def _rename(tx: Transaction, session: Session) -> None:
    row = tx.session(number_of(session))
    assert row is not None
    tx.put_session(msgspec.structs.replace(row, title="new"))


def _copy(tx: Transaction, session: Session) -> None:
    row = tx.session(number_of(session))
    assert row is not None
    tx.add_session(msgspec.structs.replace(row, id="copy", key="copy"), BranchStart(token="t"))  # noqa: S106


def _end_turn(tx: Transaction, session: Session) -> None:
    row = tx.turn(number_of(session), 1)
    assert row is not None
    tx.put_turn(msgspec.structs.replace(row, state="failed", error="x"))


def _change_tool(tx: Transaction, session: Session) -> None:
    (row,) = tx.tools(number_of(session), 1)
    tx.put_tool(msgspec.structs.replace(row, outcome="error"))
    tx.put_tool(msgspec.structs.replace(row, call_id="other"))


def _enqueue(tx: Transaction, session: Session) -> None:
    item = codec.encode(Message.user("x"), to_datetime(tx.now()))
    tx.add_queued(
        number_of(session), QueueRow(0, item.id, 1, item.body, ((codec.sha256_hex(b"q"), b"q"),))
    )


def _open_branch(tx: Transaction, session: Session) -> None:
    head = _head(tx, session)
    start = BranchStart(parent=head.branch, fork_seq=1, asked_seq=1, reason="rewind", token="t")  # noqa: S106
    branch = tx.add_branch(head.session, head.branch_no + 1, start, tx.now())
    tx.end_branch(head.branch, head.seq)
    tx.path(branch)
    tx.put_head(msgspec.structs.replace(head, branch=branch, branch_no=2, seq=1))


def _write_tombstone(tx: Transaction, session: Session) -> None:
    stone = codec.encode(Message.system("stone", id="kept"), to_datetime(tx.now()))
    row = MessageRow.create(2, "kept", None, stone.body)
    blobs = tx.put_tombstone(_head(tx, session).branch, row)
    assert blobs == {codec.sha256_hex(_KEPT)}
    tx.drop_blobs(blobs)


def _purge(tx: Transaction, session: Session) -> None:
    head = _head(tx, session)
    cut = tx.cut_branch(head.branch, 0)
    tx.drop_blobs(cut.blobs)
    tx.drop_session_rows(head.session)
    tx.cut_branch(head.branch, None)
    tx.drop_session(head.session)


_WRITES: dict[str, Callable[[Transaction, Session], object]] = {
    "messages": _advance,
    "blob": _use_blob,
    "session": _copy,
    "identity": _rename,
    "turn": _end_turn,
    "tool": _change_tool,
    "usage": lambda tx, s: tx.add_usage(number_of(s), UsageRow(1, "m", Usage(1), 1)),
    "more usage": lambda tx, s: tx.add_usage(
        number_of(s), UsageRow(tx.now() // 10**9, None, Usage(), 1)
    ),
    "draft": lambda tx, s: tx.put_draft(number_of(s), 1, 1, b'{"deltas":[]}'),
    "drop draft": lambda tx, s: tx.drop_draft(number_of(s), 1),
    "queue": _enqueue,
    "branch": _open_branch,
    "cut": lambda tx, s: tx.cut_branch(_head(tx, s).branch, 1),
    "tombstone": _write_tombstone,
    "belongings": lambda tx, s: tx.drop_session_rows(number_of(s)),
    "purge": _purge,
    "drop queued": lambda tx, s: tx.drop_queued(number_of(s), tx.queue(number_of(s))[0].number),
}


class BackendProtocolTests(StoreFixtures):
    """What `holdfast.storage.protocol` requires of a backend."""

    @pytest.mark.parametrize("write", _WRITES)
    @pytest.mark.parametrize("error", [GaveUpError, KeyboardInterrupt])
    def test_an_operation_that_raises_leaves_nothing(
        self, store: Store, session: Session, write: str, error: type[BaseException]
    ) -> None:
        """All its writes are rolled back, for this and for later readers."""
        turn = self.open_turn(session)
        turn.tool_started("c")
        turn.assistant("a", usage=Usage(1, 2))
        turn.stream()
        session.append(Message.user([File(data=_KEPT)], id="kept"))
        session.enqueue("waiting")
        before = self.everything(store, session)

        def operation(tx: Transaction) -> None:
            _head(tx, session)  # An operation may write to a session only after it has read it.
            _WRITES[write](tx, session)
            raise error

        with pytest.raises(error):
            store.backend.write(operation)
        assert self.everything(store, session) == before
        again = self.reopen(store)
        assert self.everything(again, again.get(session.id)) == before

    def everything(self, store: Store, session: Session) -> tuple[object, ...]:
        """Return everything that can be read of a session and of the store."""
        drafts = store.backend.read(lambda tx: tx.draft(number_of(session), 1))
        # The size of a file may change although no readable data has.
        stats: Stats = msgspec.structs.replace(store.stats(), file_bytes=0)
        return (
            session.info(),
            session.messages(),
            session.turns(),
            session.queued(),
            session.usage(),
            session.branches(),
            session.lineage(),
            store.sessions().items,
            store.sessions(trashed=True).items,
            drafts,
            stats,
        )

    def test_what_belongs_to_a_session_is_counted_as_it_is_dropped(
        self, store: Store, session: Session
    ) -> None:
        """Turns, chunks of drafts, and queued input; nothing of another session."""
        for each in (session, store.session("other")):
            turn = self.open_turn(each)
            turn.tool_started("c")
            turn.assistant("a", usage=Usage(1, 2))
            reply = turn.stream()
            reply.write("half")
            reply.flush()
            each.enqueue("waiting")
            each.enqueue("more")
        n = number_of(session)
        other = number_of(store.session("other"))
        kept = store.backend.read(lambda at: _belongings(at, other))
        assert all(kept)
        chunks = len(store.backend.read(lambda at: at.draft(n, 1)))

        def operation(tx: Transaction) -> SessionRowCounts:
            head = _head(tx, session)
            tx.end_branch(head.branch, head.seq)
            dropped = tx.drop_session_rows(n)
            assert not any(_belongings(tx, n))
            assert _belongings(tx, other) == kept
            return dropped

        assert store.backend.write(operation, exclusive=True) == SessionRowCounts(1, chunks, 2)
        self.expect_no_damage = False  # a session without a head

    def test_a_stub_has_neither_branch_nor_head(self, store: Store, session: Session) -> None:
        """It is found by its id, if stubs are asked for, and is not listed or counted."""
        row = store.backend.read(lambda at: at.session(number_of(session)))
        assert row is not None
        self.expect_no_damage = False  # no fork needs this stub
        stub = msgspec.structs.replace(row, id="stub", key=None, purged_at=1)
        start = BranchStart(token="t")  # noqa: S106
        n = store.backend.write(lambda tx: tx.add_session(stub, start))

        def query(at: Snapshot) -> None:
            assert at.find_session(id="stub") is None
            assert at.find_session(id="stub", stubs=True) == msgspec.structs.replace(stub, n=n)
            assert (at.head(n), at.branches(session=n)) == (None, [])

        store.backend.read(query)
        assert [info.id for info in store.sessions()] == [session.id]
        assert store.stats().sessions == 1

    def test_a_branch_that_was_undone_leaves_no_way(self, store: Store, session: Session) -> None:
        """The next branch may reuse its number, and starts at another position."""
        session.append(*(Message.user(str(n)) for n in range(5)))

        def operation(tx: Transaction) -> None:
            _open_branch(tx, session)
            raise GaveUpError

        for at in (4, 3):
            with pytest.raises(GaveUpError):
                store.backend.write(operation)
            session.rewind(at)
            assert [m.text for m in session.messages()] == [str(n) for n in range(at)]
            assert [m.text for m in session.fork().messages()] == [str(n) for n in range(at)]

    def test_branches_made_beside_an_operation_that_fails(self, store: Store) -> None:
        """Branches opened in the same batch are opened once, from the right position."""
        sessions = [store.create() for _ in range(12)]
        for session in sessions:
            session.append(*(Message.user(str(n)) for n in range(14)))

        def bad(tx: Transaction) -> None:
            _open_branch(tx, sessions[0])
            raise GaveUpError

        pending = []
        for at, session in enumerate(sessions, 1):
            n = number_of(session)
            pending.append(
                store.backend.submit(head_moves.rewind(n, at, token=f"{n}", expect=None))
            )
            item = codec.encode(Message.user("end"), to_datetime(1))
            pending.append(store.backend.submit(append.append(n, [item])))
            store.backend.submit(bad)
        store.flush()
        assert [one.result().branch for one in pending] == [2] * 24
        for at, session in enumerate(sessions, 1):
            wanted = [*(str(n) for n in range(at)), "end"]
            assert [m.text for m in session.messages()] == wanted
            assert [m.text for m in session.fork().messages()] == wanted
            assert len(session.branches()) == 2  # noqa: PLR2004

    def test_a_submitted_operation_is_run(self, store: Store, session: Session) -> None:
        """`submit` returns what `write` would, by waiting or by callback."""
        done = threading.Event()
        pending = store.backend.submit(lambda tx: _advance(tx, session))
        pending.when_done(done.set)
        pending.result()
        assert done.wait(_LONG)
        assert pending.outcome() is None
        assert not pending.withdraw()
        assert session.head().seq == 1

    def test_a_submitted_operation_raises_its_error(self, store: Store, session: Session) -> None:
        """Only its own caller gets the error."""

        def operation(tx: Transaction) -> None:
            _advance(tx, session)
            raise GaveUpError

        pending = store.backend.submit(operation)
        with pytest.raises(GaveUpError):
            pending.result()
        with pytest.raises(GaveUpError):
            pending.outcome()
        session.append(Message.user("a"))
        assert session.head().seq == 1

    def test_flush_waits_for_what_was_handed_over(self, store: Store, session: Session) -> None:
        """After `flush` the submitted write can be read."""
        for _ in range(20):
            store.backend.submit(lambda tx: _advance(tx, session))
        store.flush()
        assert session.head().seq == 20  # noqa: PLR2004

    def test_one_bad_operation_costs_only_itself(self, store: Store, session: Session) -> None:
        """Operations submitted with it succeed, each once."""

        def bad(tx: Transaction) -> None:
            _advance(tx, session)
            raise GaveUpError

        pending = []
        for n in range(30):
            operation = bad if n % 3 == 0 else lambda tx: _advance(tx, session)
            pending.append(store.backend.submit(operation))
        store.flush()
        failed = 0
        for one in pending:
            try:
                one.result()
            except GaveUpError:
                failed += 1
        assert failed == 10  # noqa: PLR2004
        assert session.head().seq == 20  # noqa: PLR2004
        assert len(session.messages()) == 20  # noqa: PLR2004

    def test_a_snapshot_is_of_one_moment(self, store: Store, session: Session) -> None:
        """A write during a query is visible to the next query only."""
        session.append(Message.user("a"))
        wrote = threading.Event()
        threads: list[threading.Thread] = []

        def write() -> None:
            session.append(Message.user("b"))
            wrote.set()

        def query(snapshot: Snapshot) -> tuple[int, int]:
            first = _head(snapshot, session).seq
            threads.append(threading.Thread(target=write))
            threads[0].start()
            # A backend that blocks writers during reads does not run the write meanwhile.
            wrote.wait(0.2)
            return first, _head(snapshot, session).seq

        assert store.backend.read(query) == (1, 1)
        threads[0].join(_LONG)
        assert session.head().seq == 2  # noqa: PLR2004

    def test_a_read_sees_every_write_before_it(self, session: Session) -> None:
        """Also through another opening, and with any number of readers."""
        other = self.open().session("the session") if self.persistent else session
        for n in range(1, 30):
            (session if n % 2 else other).append(Message.user("x"))
            assert session.head().seq == other.head().seq == n
            assert len(other.messages()) == n

    def test_waiting_for_a_change(self, store: Store, session: Session) -> None:
        """`wait` returns at once if something was written since, else at the next write."""
        seen = store.backend.wait(-1, 0)
        assert store.backend.wait(seen, 0) == seen
        session.append(Message.user("a"))
        moved = store.backend.wait(seen, _LONG)
        assert moved != seen
        thread = threading.Thread(target=lambda: session.append(Message.user("b")))
        thread.start()
        assert store.backend.wait(moved, _LONG) != moved
        thread.join(_LONG)

    def test_the_backend_says_how_it_is_set_up(self, store: Store) -> None:
        """Every line of its health has a name and a value."""
        checks = store.backend.health()
        assert checks
        assert all(check.name and check.value for check in checks)
