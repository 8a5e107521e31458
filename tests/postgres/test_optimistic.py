"""Optimistic appends take one round trip: the server checks the cached head; a stale one is read.

A session is *steady* when this store made its last writes, several in a row.
"""

import os
import signal
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast import Head, Message, Session, codec
from holdfast.errors import (
    Conflict,
    OutcomeUnknown,
    SchemaTooNew,
    SessionNotFound,
    StoreUnavailable,
)
from holdfast.operations.queue import enqueue
from holdfast.session import number_of
from holdfast.storage.postgres import connection, head_cache
from holdfast.storage.postgres.head_cache import CachedHead, HeadCache
from holdfast.storage.postgres.optimistic import OptimisticTransaction
from holdfast.storage.rows import HeadRow, MessageRow
from holdfast.values import Usage
from tests.postgres.conftest import OpenStore, through
from tests.postgres.pauses import Pauses, await_waiting, in_a_thread, under_way
from tests.postgres.proxy import Failure, Proxy
from tests.servers import OWNER, OwnServer, as_user

_STEADY = ["0", "1", "2", "3"]
_FAILURES: list[Failure] = ["before the commit", "after the commit", "no answer", "late"]


class Optimism:
    """How many appends were optimistic, and how many of them had a stale head."""

    def __init__(self) -> None:
        self.made = self.wrong = 0


@pytest.fixture
def optimistic(monkeypatch: pytest.MonkeyPatch) -> Optimism:
    found = Optimism()
    suppose, mistrust = OptimisticTransaction.assume_head, HeadCache.invalidate

    def making(tx: OptimisticTransaction, known: CachedHead, *ids: tuple[str, ...]) -> None:
        found.made += 1
        suppose(tx, known, *ids)

    def mistrusting(standings: HeadCache, known: CachedHead) -> None:
        found.wrong += 1
        mistrust(standings, known)

    monkeypatch.setattr(OptimisticTransaction, "assume_head", making)
    monkeypatch.setattr(HeadCache, "invalidate", mistrusting)
    return found


def _steady(store: holdfast.Store) -> Session:
    session = store.session("s")
    for text in _STEADY:
        session.append(Message.user(text))
    return session


@pytest.fixture
def here(open_store: OpenStore, optimistic: Optimism) -> Session:
    session = _steady(open_store())
    session.append(Message.user("4"))
    assert optimistic.made
    assert not optimistic.wrong
    optimistic.made = 0
    return session


@pytest.fixture
def there(here: Session, open_store: OpenStore) -> Session:
    return open_store().get(here.id)


def _texts(session: Session) -> list[str]:
    return [m.text for m in session.messages()]


def _append(session: Session) -> None:
    session.append(Message.user("more"))


def _rewind_and_more(session: Session) -> None:
    session.rewind(4)
    session.append(Message.user("instead"))


_BY_OTHERS: dict[str, tuple[Callable[[Session], object], list[str]]] = {
    "append": (_append, ["4", "more", "5"]),
    "rewind": (lambda s: s.rewind(4), ["5"]),
    "rewind and as much again": (_rewind_and_more, ["instead", "5"]),
    "a title": (lambda s: s.update(title="t"), ["4", "5"]),
    "an erased message": (lambda s: s.erase(5), ["", "5"]),
    "a waiting message": (lambda s: s.enqueue("later"), ["4", "5"]),
}


@pytest.mark.parametrize("what", sorted(_BY_OTHERS))
def test_what_others_did_meanwhile_is_seen(
    here: Session, there: Session, optimistic: Optimism, what: str
) -> None:
    """Whatever they did, the message comes after it, once."""
    do, end = _BY_OTHERS[what]
    do(there)
    here.append(Message.user("5"))
    assert optimistic.made == 1
    assert _texts(there) == _texts(here) == [*_STEADY, *end]
    for number in range(6, 10):
        here.append(Message.user(str(number)))
    assert _texts(there) == [*_STEADY, *end, "6", "7", "8", "9"]


def test_a_wrong_supposition_is_followed_by_looks(
    here: Session, there: Session, optimistic: Optimism
) -> None:
    """Where two write in turns the cache is not used any more."""
    for number in range(12):
        (there, here)[number % 2].append(Message.user(f"by both {number}"))
    assert (optimistic.made, optimistic.wrong) == (1, 1)
    assert _texts(here)[5:] == [f"by both {number}" for number in range(12)]


def test_who_holds_the_session_meanwhile_is_waited_for(
    here: Session,
    there: Session,
    open_store: OpenStore,
    optimistic: Optimism,
    postgres_admin: psycopg.Connection,
) -> None:
    """The head is read when the others have committed: nothing of theirs is overwritten."""
    item = codec.encode(Message.user("waiting"), datetime.now(UTC))
    with under_way(open_store(), enqueue(number_of(here), item, 1)):
        stored = in_a_thread(lambda: here.append(Message.user("5")))
        await_waiting(postgres_admin)
    assert stored() == Head(1, 6)
    assert optimistic.wrong == 1
    assert [waiting.message.text for waiting in there.queued()] == ["waiting"]
    assert _texts(there) == [*_STEADY, "4", "5"]


def test_a_message_that_is_there_is_stored_once(here: Session, optimistic: Optimism) -> None:
    """Also if it was not the last one; another body under its id is refused."""
    first = here.append(Message.user("5", id="five"))
    here.append(Message.user("6"))
    assert here.append(Message.user("5", id="five")) == first
    assert optimistic.wrong == 1
    with pytest.raises(Conflict):
        here.append(Message.user("another", id="five"))
    assert _texts(here) == [*_STEADY, "4", "5", "6"]


def test_what_is_expected_is_compared_with_what_is_there(here: Session, there: Session) -> None:
    head = here.head()
    there.append(Message.user("more"))
    with pytest.raises(Conflict):
        here.append(Message.user("5"), expect=head)
    assert here.append(Message.user("5"), expect=Head(1, 6)) == Head(1, 7)


def test_a_session_that_is_gone_is_not_written_to(here: Session, open_store: OpenStore) -> None:
    store = open_store()
    store.trash(here.id)
    here.append(Message.user("in the trash"))
    store.purge(here.id)
    with pytest.raises(SessionNotFound):
        here.append(Message.user("5"))


def test_tables_that_were_changed_meanwhile_are_left_alone(
    here: Session, there: Session, postgres_admin: psycopg.Connection
) -> None:
    postgres_admin.execute("UPDATE holdfast.meta SET value = value + 1 WHERE name = 'version'")
    try:
        with pytest.raises(SchemaTooNew, match="nothing was stored"):
            here.append(Message.user("5"))
    finally:
        postgres_admin.execute("UPDATE holdfast.meta SET value = value - 1 WHERE name = 'version'")
    assert _texts(there) == [*_STEADY, "4"]


def test_what_is_refused_for_another_reason_is_looked_at(
    here: Session, optimistic: Optimism, postgres_admin: psycopg.Connection
) -> None:
    """As by tables that refuse the compare-and-swap."""
    postgres_admin.execute("ALTER FUNCTION holdfast.sure RENAME TO unsure")
    try:
        for number in range(5, 8):
            here.append(Message.user(str(number)))
    finally:
        postgres_admin.execute("ALTER FUNCTION holdfast.unsure RENAME TO sure")
    assert optimistic.wrong == 1
    assert _texts(here) == [*_STEADY, "4", "5", "6", "7"]


@pytest.mark.parametrize("off", [-5_000_000, 5_000_000])
def test_the_time_is_the_servers(
    here: Session, optimistic: Optimism, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    """As after a step of its clock, or the sleep of this machine."""
    note = HeadCache.record_commit

    def late(self: HeadCache, before: HeadRow, after: HeadRow, *rest: Any) -> None:  # noqa: ANN401
        added, (server_micros, received), used = rest
        note(self, before, after, added, (server_micros + off, received), used)

    monkeypatch.setattr(HeadCache, "record_commit", late)
    before = here.info().updated_at
    for _ in range(6):
        here.append(Message.user("5"))
        after = here.info().updated_at
        assert 0 <= (after - before).total_seconds() < 4
        before = after
    assert optimistic.wrong


@pytest.mark.parametrize("column", ["branch", "seq", "updated_at", "activity"])
def test_a_database_that_was_put_back_is_looked_at(
    here: Session, optimistic: Optimism, postgres_admin: psycopg.Connection, column: str
) -> None:
    """Its numbers are used again by others, so all of them are compared."""
    admin = postgres_admin
    if column == "branch":
        admin.execute(
            "INSERT INTO holdfast.branches SELECT tenant, session, 2, session, 1, 5, 5, NULL, 0, "
            "'rewind', 'x', tenant FROM holdfast.branches"
        )
    if column == "seq":
        admin.execute("DELETE FROM holdfast.messages WHERE seq = 5")
    by = -1 if column == "seq" else 1
    admin.execute(f"UPDATE holdfast.heads SET {column} = {column} + {by}")  # noqa: S608 - of here
    here.append(Message.user("5"))
    assert optimistic.wrong == 1
    assert _texts(here) == [*_STEADY, *(["5"] if column == "seq" else ["4", "5"])]


def test_a_fork_has_what_it_inherited(here: Session, optimistic: Optimism) -> None:
    """Ids of the shared history are there already, and those after it are not."""
    inherited = here.messages()[1]
    fork = here.fork()
    here.append(Message.user("not in the fork", id="behind"))
    for number in range(5, 10):
        fork.append(Message.user(str(number)))
    assert optimistic.made == 3
    optimistic.wrong = 0
    assert fork.append(Message.user("1", id=inherited.id)) == Head(1, 2)
    assert optimistic.wrong == 1
    for number in range(10, 14):
        fork.append(Message.user(str(number)))
    fork.append(Message.user("mine", id="behind"))
    said = [*_STEADY, "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "mine"]
    assert _texts(fork) == said


def test_whoever_needs_an_answer_gets_it(here: Session, optimistic: Optimism) -> None:
    """What is not cached is read: whether a file exists that a message only names."""
    stored = here.append(Message.user(holdfast.File(data=b"x" * 20_000)))
    part = here.messages()[-1].parts[0]
    assert isinstance(part, holdfast.File)
    made = optimistic.made
    here.append(Message.user(holdfast.File(sha256=part.sha256, size=part.size)))
    assert optimistic.made == made + 1
    assert here.head().seq == stored.seq + 1
    assert len(here.messages()) == stored.seq + 1
    here.append(Message.user("6"))
    assert (optimistic.made, optimistic.wrong) == (made + 2, 0)


def test_replies_are_measured_as_ever(open_store: OpenStore, optimistic: Optimism) -> None:
    """By the messages before them, whether these are cached or read."""
    reply = "word " * 400
    sums = []
    for kept in (True, False):
        store = open_store()
        session = store.session(f"kept {kept}")
        for number in range(1, 12):
            if not kept:
                store = open_store()
                session = store.session(f"kept {kept}")
            session.append(Message.user(reply))
            used = Usage(input=900 * number, output=400)
            session.append(Message.assistant(reply, usage=used, model="m"))
        sums.append(session.usage())
    assert optimistic.made > 10
    assert sums[0] == sums[1]


def test_threads_of_one_store_do_not_step_on_each_other(here: Session) -> None:
    def work(name: int) -> None:
        for number in range(15):
            here.append(Message.user(f"{name} {number}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = _texts(here)[5:]
    assert len(said) == len(set(said)) == 60
    for name in range(4):
        mine = [text for text in said if text.startswith(f"{name} ")]
        assert mine == [f"{name} {number}" for number in range(15)]


# ------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("failure", _FAILURES)
def test_a_steady_append_whose_connection_fails_is_stored_once(
    open_store: OpenStore, optimistic: Optimism, proxy: Proxy, url: str, failure: Failure
) -> None:
    session = _steady(
        open_store(url=through(proxy, url, deadline=60, answer=0.5, idle=1, connect=30))
    )
    proxy.failures.append(failure)
    made = optimistic.made
    assert session.append(Message.user("4")) == Head(1, 5)
    assert optimistic.made == made + 1
    assert proxy.happened == [failure]
    assert session.append(Message.user("5")) == Head(1, 6)
    store = open_store()
    assert store.verify() == []
    assert _texts(store.session("s")) == [*_STEADY, "4", "5"]


@pytest.mark.parametrize("others", ["append", "rewind"])
def test_a_lost_answer_is_found_by_its_message(
    open_store: OpenStore, proxy: Proxy, url: str, others: str
) -> None:
    """What others did after it stays; it is neither doubled nor brought back."""
    session = _steady(open_store(url=through(proxy, url, deadline=60, answer=30, idle=3)))
    there = open_store().get(session.id)
    proxy.failures.append("after the commit")
    proxy.meanwhile = lambda: _append(there) if others == "append" else there.rewind(2)
    assert session.append(Message.user("4")) == Head(1, 5)
    assert proxy.happened == ["after the commit"]
    assert _texts(there) == ([*_STEADY, "4", "more"] if others == "append" else ["0", "1"])


@pytest.mark.parametrize("ids", [["same"], ["other", "same"]])
def test_what_others_stored_under_an_id_is_not_ours(
    open_store: OpenStore, proxy: Proxy, url: str, ids: list[str]
) -> None:
    """Two workers with one job: the one refused does not take the other's write for its own."""
    session = _steady(open_store(url=through(proxy, url, deadline=60, answer=30)))
    there = open_store().get(session.id)
    ours = [Message.user(f"ours {id}", id="ours" if id == "other" else id) for id in ids]
    theirs = [Message.user(f"theirs {id}", id=id) for id in ids]
    there.append(*theirs)
    proxy.failures.append("after the commit")
    with pytest.raises(OutcomeUnknown):
        session.append(*ours)
    assert proxy.happened == ["after the commit"]
    assert _texts(there) == [*_STEADY, *(m.text for m in theirs)]


def test_what_was_lost_behind_others_is_stored_behind_them(
    open_store: OpenStore, proxy: Proxy, url: str
) -> None:
    session = _steady(open_store(url=through(proxy, url, deadline=60, answer=30)))
    there = open_store().get(session.id)
    there.append(Message.user("theirs"))
    proxy.failures.append("after the commit")
    assert session.append(Message.user("ours")) == Head(1, 6)
    assert _texts(there) == [*_STEADY, "theirs", "ours"]


@pytest.mark.usefixtures("nobody_ends")
def test_a_role_that_may_end_no_connection_waits_for_its_end(
    open_store: OpenStore, proxy: Proxy, url: str
) -> None:
    session = _steady(open_store(url=through(proxy, url, deadline=60, answer=30, idle=3)))
    proxy.failures.append("before the commit")
    assert session.append(Message.user("4")) == Head(1, 5)
    assert _texts(session) == [*_STEADY, "4"]


@pytest.mark.usefixtures("nobody_ends")
def test_what_may_still_arrive_is_not_said_to_be_lost(
    open_store: OpenStore, proxy: Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orphaned backend cannot be terminated, and waits for the commit longer than we do."""
    Pauses(monkeypatch)
    where = through(proxy, url, deadline=4, answer=0.5, connect=30, idle=60)
    session = _steady(open_store(url=where))
    proxy.failures.append("late")
    proxy.failures.extend(["before the commit"] * 1000)
    with pytest.raises(OutcomeUnknown):
        session.append(Message.user("4"))


def test_what_a_standby_does_not_have_may_be_stored(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be late; the server that had it may come back."""
    url = as_user(own.url, OWNER)
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(Path(folder), own.folder / ".s.PGSQL.5432")

        def become_a_standby() -> None:
            (own.folder / "data" / "standby.signal").touch()
            os.kill(own.pid, signal.SIGINT)
            own.start_again()

        with holdfast.open(url) as other, other.session("s").turn() as turn:
            turn.user("there is a store")
        pauses = Pauses(monkeypatch)
        with holdfast.open(through(proxy, url, deadline=6, answer=30, connect=30)) as store:
            session = _steady(store)
            proxy.failures.append("before the commit")
            proxy.meanwhile = become_a_standby
            with pytest.raises(OutcomeUnknown):
                session.append(Message.user("4"))
            assert pauses.made >= 6  # Its status was queried again and again.
        proxy.stop()


@pytest.mark.parametrize("how", ["erase", "purge"])
def test_what_is_erased_is_kept_nowhere(
    open_store: OpenStore, optimistic: Optimism, how: str
) -> None:
    """Nor for calibration: an erased message has no text."""
    store = open_store()
    here = _steady(store)
    here.append(Message.user("4"))
    if how == "erase":
        here.erase(5)
    else:
        store.purge(store.create().id)
    made = optimistic.made
    for number in range(5, 8):
        here.append(Message.user(str(number)))
    assert optimistic.made == made
    assert _texts(here) == [*_STEADY, "" if how == "erase" else "4", "5", "6", "7"]


@pytest.mark.parametrize("failure", ["before the commit", "after the commit"])
def test_a_steady_append_that_never_gets_through_ends(
    open_store: OpenStore,
    proxy: Proxy,
    url: str,
    failure: Failure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What never arrived is known not to be stored; what did is not confirmed, and so unknown."""
    arrives = failure == "after the commit"
    Pauses(monkeypatch)
    session = _steady(open_store(url=through(proxy, url, deadline=4, answer=30, connect=30)))
    message = Message.user("4", id="once")
    proxy.failures.extend([failure] * 1000)
    with pytest.raises(OutcomeUnknown if arrives else StoreUnavailable) as raised:
        session.append(message)
    assert ("nothing was stored" in str(raised.value)) == (not arrives)
    proxy.failures.clear()
    assert _texts(open_store().session("s")) == ([*_STEADY, "4"] if arrives else _STEADY)
    session.append(message)
    assert _texts(open_store().session("s")) == [*_STEADY, "4"]


def test_a_server_that_hung_up_meanwhile_was_sent_nothing(
    open_store: OpenStore, proxy: Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _steady(open_store(url=through(proxy, url, deadline=3, answer=30, connect=30)))
    proxy.stop()
    Pauses(monkeypatch)
    with pytest.raises(StoreUnavailable, match="nothing was stored"):
        session.append(Message.user("4"))
    assert _texts(open_store().session("s")) == _STEADY


def test_nothing_is_sent_while_it_is_withheld(open_store: OpenStore) -> None:
    """Queued statements are dropped with whatever error."""
    store = open_store()
    backend = store.backend
    with backend._connection(1) as lent:  # type: ignore[attr-defined]  # noqa: SLF001 - the link itself
        before = lent.round_trips
        with pytest.raises(connection.ReadNotAllowed), lent.write_only():
            lent.execute("server").fetchone()
        assert lent.idle
        lent._write_only = True  # noqa: SLF001 - as an interrupt between two lines may leave it
        assert not lent.idle
        lent._write_only = False  # noqa: SLF001 - as above
        assert lent.execute("server").fetchone() is not None
        assert lent.round_trips == before + 1


# ---------------------------------------------------------------------------- the cache


def _head(session: int, seq: int, **changes: int) -> HeadRow:
    values = {"branch": session << 24 | 1, "branch_no": 1, "activity": seq, **changes}
    return HeadRow(
        session, values["branch"], values["branch_no"], seq, 0, None, seq, values["activity"],
        Usage(), 0, None, 0, 0, 0,
    )  # fmt: skip


def _rows(first: int, last: int, size: int = 1) -> list[MessageRow]:
    return [MessageRow(seq, str(seq), None, 0, b"x" * size) for seq in range(first, last + 1)]


def _noted(*steps: tuple[HeadRow, HeadRow, list[MessageRow]]) -> CachedHead | None:
    standings = HeadCache()
    for found, left, added in steps:
        standings.record_commit(found, left, added, None)
    return standings.checkout(1, 0)


def test_trust_is_earned() -> None:
    heads = [_head(1, seq) for seq in range(6)]
    steps = [(heads[n], heads[n + 1], _rows(n + 1, n + 1)) for n in range(5)]
    assert _noted(*steps[:2]) is None
    known = _noted(*steps[:3])
    assert known is not None
    assert known.head == heads[3]
    assert [row.seq for row in known.tail] == [1, 2, 3]
    assert known.covers(3)
    assert known.covers(8)  # there are no others
    assert _noted(*steps[:2], *steps[3:4]) is None
    assert _noted(*steps[:2], *steps[3:5]) is None


def test_a_tail_is_of_one_branch_and_has_no_gaps() -> None:
    heads = [_head(1, seq) for seq in range(20)]
    steps = [(heads[n], heads[n + 1], _rows(n + 1, n + 1)) for n in range(10)]
    known = _noted(*steps)
    assert known is not None
    assert [row.seq for row in known.tail] == list(range(3, 11))
    assert not known.covers(9)
    gap = _noted(*steps, (heads[10], heads[12], _rows(12, 12)))
    assert gap is not None
    assert [row.seq for row in gap.tail] == [12]
    behind = _noted(*steps, (heads[10], heads[13], _rows(12, 12)))
    assert behind is not None
    assert behind.tail == ()
    other = _head(1, 11, branch=1 << 24 | 2, branch_no=2)
    moved = _noted(*steps, (heads[10], other, _rows(11, 11)))
    assert moved is not None
    assert moved.tail == ()
    heavy = _noted(*steps, (heads[10], heads[12], _rows(11, 12, 20_000)))
    assert heavy is not None
    assert [row.seq for row in heavy.tail] == [12]


def test_a_checked_out_head_is_exclusive() -> None:
    """Other threads read the head; so does an append that needs more messages than are cached."""
    standings = HeadCache()
    for seq in range(20, 24):
        standings.record_commit(_head(1, seq), _head(1, seq + 1), _rows(seq + 1, seq + 1), None)
    assert standings.checkout(1, 5) is None
    known = standings.checkout(1, 4)
    assert known is not None
    assert standings.checkout(1, 0) is None
    standings.release(known)
    assert standings.checkout(1, 4) == known


def test_who_was_deceived_is_slower_to_believe() -> None:
    """Each miss doubles the confirmations required, up to a bound; each hit takes one off."""
    standings = HeadCache()
    seq = 0

    def writes_until_checkout() -> int:
        nonlocal seq
        for looks in range(200):
            known = standings.checkout(1, 0)
            if known is not None:
                standings.release(known)
                return looks
            standings.record_commit(_head(1, seq), _head(1, seq + 1), [], None)
            seq += 1
        return 200

    taken = []
    for _ in range(8):
        taken.append(writes_until_checkout())
        known = standings.checkout(1, 0)
        assert known is not None
        standings.invalidate(known)
        seq += 1  # Another worker wrote.
    assert taken == [3, 5, 9, 17, 33, 65, 65, 65]
    writes_until_checkout()
    for _ in range(70):
        known = standings.checkout(1, 0)
        assert known is not None
        standings.record_commit(known.head, _head(1, seq + 1), [], None, known)
        seq += 1
    known = standings.checkout(1, 0)
    assert known is not None
    standings.invalidate(known)
    seq += 1
    assert writes_until_checkout() == 5


def test_few_sessions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_cache, "_MAX_SESSIONS", 3)
    standings = HeadCache()
    for seq in range(4):
        for session in (1, 2, 3):
            standings.record_commit(_head(session, seq), _head(session, seq + 1), [], None)
    standings.record_commit(_head(1, 4), _head(1, 5), [], None)
    standings.record_commit(_head(4, 0), _head(4, 1), [], None)
    known = [session for session in (1, 2, 3, 4) if standings.checkout(session, 0)]
    assert known == [1, 3]
    standings.clear()
    assert standings.checkout(1, 0) is None
