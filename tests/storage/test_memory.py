"""The reference backend by itself: undoing, waiting, refusing. The promises have a suite."""

import threading
from collections.abc import Callable, Iterable
from copy import deepcopy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.clock import SystemClock
from holdfast.errors import Damaged, Invalid, ReadOnly, StoreUnavailable
from holdfast.storage.ancestry import Segment, ranges
from holdfast.storage.memory import MemoryBackend, MemorySnapshot
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.rows import (
    BlobUse,
    BranchStart,
    MessageRow,
    QueueRow,
    SessionFilter,
    SessionRow,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
)
from holdfast.store import Store
from holdfast.url import Location
from holdfast.values import File, Holder, Message, Usage

_LATER = 60.0
_BLOB = codec.sha256_hex(b"data")


def _open(*, readonly: bool = False) -> MemoryBackend:
    location = Location("memory", "")
    return MemoryBackend(location, tenant="default", readonly=readonly, clock=SystemClock())


def _session(id: str, *, key: str | None = None, title: str | None = None) -> SessionRow:
    return SessionRow(
        n=0,
        id=id,
        key=key,
        scope=None,
        agent=None,
        title=title,
        title_by=None,
        model=None,
        cwd=None,
        created_at=1,
        pinned=False,
        archived=False,
        trashed_at=None,
        goal=None,
        metadata=b"{}",
        parent=None,
        relation=None,
    )


def _turn(session: int, number: int, *, run_id: str | None = None) -> TurnRow:
    return TurnRow(
        session=session,
        number=number,
        token="t",  # noqa: S106 - a mark, no secret
        state="open",
        run_id=run_id,
        model=None,
        holder=Holder("host", 1, "boot", "ns", "start"),
        lease_until=9,
        first_seq=0,
        started_at=1,
        ended_at=None,
        usage=Usage(),
        cost=0,
        error=None,
    )


def _tool(session: int, call_id: str, name: str) -> ToolRow:
    return ToolRow(
        session=session,
        turn=1,
        call_id=call_id,
        name=name,
        outcome="called",
        started_at=None,
        ended_at=None,
    )


def _message(seq: int, id: str | None = None) -> MessageRow:
    name, body = id or f"m{seq}", f'{{"n":{seq}}}'.encode()
    return MessageRow.create(seq, name, 1, body)


def _start(mark: str) -> BranchStart:
    return BranchStart(token=mark)


def _advance(tx: Transaction, session: int, count: int) -> None:
    head = tx.head(session)
    assert head is not None
    rows = [_message(head.seq + step) for step in range(1, count + 1)]
    tx.add_messages(head.branch, rows)
    tx.put_head(msgspec.structs.replace(head, seq=head.seq + count))


def _fill(tx: Transaction) -> int:
    """Write a row of every kind."""
    n = tx.add_session(_session("aaaa", key="k", title="A Title"), _start("a"))
    _advance(tx, n, 3)
    tx.add_messages(n, [], [BlobUse(1, _BLOB, b"data")])
    tx.add_usage(n, UsageRow(1, "model", Usage(1, 2), 3))
    tx.put_turn(_turn(n, 1, run_id="run"))
    for call_id in ("c2", "c1"):
        tx.put_tool(_tool(n, call_id, "tool"))
    for number in (0, 1, 2):
        tx.put_draft(n, 1, number, b"record %d" % number)
    for id in ("q1", "q2", "q3"):
        tx.add_queued(n, QueueRow(0, id, 1, b"{}", ((_BLOB, b"data"),)))
    return n


def _change(tx: Transaction, n: int) -> None:
    """Change, remove and add rows of every kind, more than once."""
    row = tx.session(n)
    assert row is not None
    tx.put_session(msgspec.structs.replace(row, key="other", title="B"))
    tx.put_session(msgspec.structs.replace(row, trashed_at=1))
    _advance(tx, n, 2)
    more = BlobUse(4, codec.sha256_hex(b"more"), b"more")
    tx.add_messages(n, [], [more, BlobUse(5, _BLOB)])
    tx.add_usage(n, UsageRow(1, "model", Usage(1, 2), 3))
    tx.add_usage(n, UsageRow(1, None, Usage(1, 2), 3))
    tx.put_turn(msgspec.structs.replace(_turn(n, 1), state="failed", error="e"))
    tx.put_turn(_turn(n, 2))
    tx.put_tool(_tool(n, "c1", "renamed"))
    tx.put_tool(_tool(n, "c3", "new"))
    tx.put_draft(n, 1, 1, b"longer")
    tx.drop_draft(n, 1)
    tx.put_draft(n, 1, 0, b"another draft")
    tx.drop_queued(n, 2)
    tx.drop_queued(n, 3)
    tx.add_queued(n, QueueRow(0, "q4", 1, b"{}", ()))
    tx.add_session(_session("bbbb", key="k"), _start("b"))


def _everything(snapshot: Snapshot) -> list[object]:
    """All a snapshot tells, in the order in which it tells it."""
    listed = snapshot.list_sessions(SessionFilter(), before=None, limit=99)
    told: list[object] = [
        listed,
        snapshot.activity_after(0, 99),
        snapshot.sessions("run_id", "run", trashed=False, limit=20),
    ]
    for item in listed:
        assert not isinstance(item, UnreadableSession)
        row, head = item
        path = snapshot.path(head.branch)
        told += [
            snapshot.find_session(key=row.key),
            snapshot.branches(session=row.n),
            snapshot.messages(ranges(path, 1, head.seq)),
            snapshot.stored(head.branch, ["m1", "m4"]),
            snapshot.turns(row.n, limit=None),
            snapshot.tools(row.n, 1),
            snapshot.draft(row.n, 1),
            snapshot.queue(row.n),
            snapshot.usage(session=row.n),
            snapshot.blob(_BLOB),
        ]
    return told


def _fail_after(write: Callable[[Transaction], object]) -> Callable[[Transaction], None]:
    def verb(tx: Transaction) -> None:
        write(tx)
        raise LookupError

    return verb


def test_a_failed_verb_leaves_an_empty_store_empty() -> None:
    backend = _open()
    untouched = deepcopy(backend.tables)
    with pytest.raises(LookupError):
        backend.write(_fail_after(_fill))
    assert backend.tables == untouched
    assert backend.write(_fill) == 1, "the numbers it took are free again"


def test_a_failed_verb_leaves_a_full_store_as_it_was() -> None:
    backend = _open()
    n = backend.write(_fill)
    before, told = deepcopy(backend.tables), backend.read(_everything)
    with pytest.raises(LookupError):
        backend.write(_fail_after(lambda tx: _change(tx, n)))
    assert backend.tables == before
    assert backend.read(_everything) == told


def _erase(tx: Transaction, n: int) -> None:
    """Take back all that `_fill` wrote."""
    tx.put_tombstone(1, _message(2))
    cut = tx.cut_branch(1, 0)
    tx.drop_blobs(cut.blobs)
    tx.cut_branch(1, None)
    tx.drop_session_rows(n)
    tx.drop_session(n)


def test_a_failed_verb_that_erases_has_erased_nothing() -> None:
    backend = _open()
    n = backend.write(_fill)
    before, told = deepcopy(backend.tables), backend.read(_everything)
    with pytest.raises(LookupError):
        backend.write(_fail_after(lambda tx: _erase(tx, n)))
    assert backend.tables == before
    assert backend.read(_everything) == told
    backend.write(lambda tx: _erase(tx, n))
    assert backend.read(_everything) == [[], [], []]


def test_an_interrupted_verb_is_undone_too() -> None:
    def verb(tx: Transaction) -> None:
        _fill(tx)
        raise KeyboardInterrupt

    backend = _open()
    untouched = deepcopy(backend.tables)
    with pytest.raises(KeyboardInterrupt):
        backend.write(verb)
    assert backend.tables == untouched


_STEPS: tuple[Callable[[Transaction, int], object], ...] = (
    lambda tx, i: tx.put_draft(1, 1, i, b"%d" % i),
    lambda tx, _: tx.drop_draft(1, 1),
    lambda tx, i: tx.add_queued(1, QueueRow(0, f"q{i}", i, b"", ())),
    lambda tx, i: tx.drop_queued(1, i),
    lambda tx, i: tx.put_tool(_tool(1, f"c{i}", "tool")),
    lambda tx, i: tx.put_turn(_turn(1, i)),
    lambda tx, i: tx.add_usage(1, UsageRow(i, None, Usage(i), i)),
    lambda tx, i: tx.add_messages(1, [], [BlobUse(i, _BLOB, b"data")]),
    lambda tx, i: tx.add_branch(1, i + 1, BranchStart(parent=1, fork_seq=i, token=f"t{i}"), i),
    lambda tx, i: tx.end_branch(1, i),
    lambda tx, i: tx.cut_branch(1, i),
    lambda tx, _: tx.drop_blobs({_BLOB} if tx.blob(_BLOB) else ()),
    lambda tx, i: tx.add_session(_session(f"s{i}{tx.now()}"), _start("s")),
    lambda tx, i: _advance(tx, 1, i),
)
_some_steps = st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(1, 4)), max_size=20)


@given(kept=_some_steps, lost=_some_steps)
def test_whatever_a_failed_verb_did_is_undone(
    kept: list[tuple[Callable[[Transaction, int], object], int]],
    lost: list[tuple[Callable[[Transaction, int], object], int]],
) -> None:
    numbers = iter(range(1_000))  # session ids are told apart by the clock

    class Counter:
        def micros(self) -> int:
            return next(numbers)

        def monotonic(self) -> int:
            return next(numbers)

    def play(
        steps: list[tuple[Callable[[Transaction, int], object], int]], tx: Transaction
    ) -> None:
        for step, i in steps:
            step(tx, i)

    backend = MemoryBackend(
        Location("memory", ""), tenant="default", readonly=False, clock=Counter()
    )
    backend.write(lambda tx: tx.add_session(_session("first"), _start("first")))
    backend.write(lambda tx: play(kept, tx))
    before, told = deepcopy(backend.tables), backend.read(_everything)
    with pytest.raises(LookupError):
        backend.write(_fail_after(lambda tx: play(lost, tx)))
    assert backend.tables == before
    assert backend.read(_everything) == told


def test_a_stored_message_is_never_overwritten() -> None:
    backend = _open()
    n = backend.write(_fill)
    before = deepcopy(backend.tables)
    with pytest.raises(StoreUnavailable, match="nothing was stored"):
        backend.write(lambda tx: tx.add_messages(n, [_message(4), _message(3, "other")]))
    assert backend.tables == before


def test_a_handed_over_verb_is_done_at_once_and_keeps_its_error() -> None:
    backend = _open()
    called: list[str] = []
    stored = backend.submit(_fill)
    stored.when_done(lambda: called.append("stored"))
    failed = backend.submit(_fail_after(lambda tx: tx.drop_draft(1, 1)))
    failed.when_done(lambda: called.append("failed"))
    assert called == ["stored", "failed"]
    assert stored.result() == stored.outcome() == 1
    for ask in (failed.result, failed.outcome):
        with pytest.raises(LookupError):
            ask()
    assert not stored.withdraw()
    assert backend.read(lambda snapshot: snapshot.draft(1, 1)), "the draft is still there"


def test_wait_returns_at_once_for_what_was_not_seen_and_after_the_timeout_for_what_was() -> None:
    backend = _open()
    start = backend.wait(-1, _LATER)
    assert backend.wait(start, 0.01) == start
    backend.write(_fill)
    assert backend.wait(start, _LATER) > start


def test_a_failed_verb_and_one_that_only_reads_wake_nobody() -> None:
    backend = _open()
    start = backend.wait(-1, _LATER)
    with pytest.raises(LookupError):
        backend.write(_fail_after(_fill))
    backend.write(lambda tx: tx.head(1))
    assert backend.wait(start, 0.01) == start


def _wait_while(backend: MemoryBackend, act: Callable[[], object]) -> int:
    """Return what a thread that waits is told when something happens."""
    seen = backend.wait(-1, _LATER)
    told: list[int] = []
    thread = threading.Thread(target=lambda: told.append(backend.wait(seen, _LATER * 10)))
    thread.start()
    act()
    thread.join(_LATER)
    assert not thread.is_alive()
    return told[0] - seen


def test_a_write_wakes_who_waits() -> None:
    backend = _open()
    assert _wait_while(backend, lambda: backend.write(_fill)) == 1


def test_close_wakes_who_waits() -> None:
    backend = _open()
    assert _wait_while(backend, backend.close) == 0
    assert backend.wait(0, _LATER) == 0, "a closed store returns at once"


def test_every_opening_is_a_store_of_its_own() -> None:
    one, two = _open(), _open()
    one.write(_fill)
    assert one.stats().messages == 3
    assert two.stats().sessions == 0


def test_a_store_for_reading_refuses_writes() -> None:
    backend = _open(readonly=True)
    with pytest.raises(ReadOnly):
        backend.write(_fill)
    with pytest.raises(ReadOnly):
        backend.submit(_fill).result()
    assert backend.stats().sessions == 0


def test_a_closed_store_refuses_everything() -> None:
    backend = _open()
    backend.write(_fill)
    backend.close()
    backend.close()
    assert backend.closed
    uses: list[Callable[[], object]] = [
        lambda: backend.write(_fill),
        lambda: backend.submit(_fill).result(),
        lambda: backend.read(_everything),
        backend.verify,
        backend.stats,
    ]
    for use in uses:
        with pytest.raises(StoreUnavailable):
            use()


def test_there_is_no_file_to_copy() -> None:
    backend = _open()
    for copy in (backend.salvage, backend.backup):
        with pytest.raises(Invalid, match="no file"):
            copy("copy.db")


def test_verify_finds_what_is_missing_and_what_was_changed() -> None:
    backend = _open()
    session = Store(backend).create()
    session.append(Message.user([File(data=b"data")]), Message.user("b"), Message.user("c"))
    assert backend.verify() == []
    rows = backend.tables.messages[1]
    rows[2] = msgspec.structs.replace(rows[2], body=b"{}")
    del rows[3]
    backend.tables.blobs[_BLOB] = b"other"
    found = backend.verify()
    assert [(damage.session_id, damage.seq) for damage in found] == [
        (session.id, seq) for seq in (1, 2, 3)
    ]
    del backend.tables.blobs[_BLOB]
    whats = [damage.what for damage in (found[0], *backend.verify())]
    assert whats == [
        f"blob {_BLOB} does not match its hash",
        "message 2 does not match its checksum",
        "message 3 is missing",
        f"blob {_BLOB} is missing",
    ]


def test_a_head_that_is_very_far_away_is_one_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, read = _open(), MemorySnapshot.messages
    session = Store(backend).create()
    session.append(Message.user("a"))
    far = 1_000_000
    backend.tables.heads[1] = msgspec.structs.replace(backend.tables.heads[1], seq=far)
    reads = 0

    def messages(self: MemorySnapshot, spans: Iterable[Segment]) -> object:
        nonlocal reads
        reads += 1
        return read(self, spans)

    monkeypatch.setattr(MemorySnapshot, "messages", messages)
    (damage,) = backend.verify()
    assert (damage.session_id, damage.seq) == (session.id, 2)
    assert damage.what == f"messages 2 to {far} are missing"
    assert reads < 50


def test_verify_finds_a_fork_whose_beginning_is_missing() -> None:
    backend = _open()
    session = Store(backend).create()
    session.append(Message.user("a"))
    fork = session.fork()
    session.append(Message.user("b"))
    assert backend.verify() == []
    del backend.tables.branches[1]
    (damage,) = backend.verify()
    assert damage.session_id == fork.id
    assert damage.what == "the branch on which branch 1 starts is missing"


def test_a_history_on_a_branch_that_is_not_there_is_damage() -> None:
    with pytest.raises(Damaged):
        _open().read(lambda snapshot: snapshot.path(7))
