"""Writes that were submitted together: each is stored whole, once and in order, or not at all."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast import Message, Session, Store, codec
from holdfast.clock import EPOCH
from holdfast.draft_parts import DraftChunk, DraftOpening
from holdfast.errors import BadQuery, Conflict, OutcomeUnknown, StoreUnavailable
from holdfast.operations import append, sessions, turns
from holdfast.operations.session_changes import SessionUpdate
from holdfast.session import number_of
from holdfast.storage.postgres.connection import Connection, PendingResult
from holdfast.storage.postgres.statements import SQL
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import SessionFilter, UnreadableSession
from holdfast.values import Head, SessionChanges, Text
from tests.postgres.conftest import OpenStore, through
from tests.postgres.pauses import LONG, await_waiting, in_a_thread, touch, under_way
from tests.postgres.proxy import Failure, Proxy
from tests.servers import OWNER, OwnServer, as_user
from tests.store_urls import with_options


class _Interrupted(BaseException):
    """What a handler of a signal raises."""


@pytest.fixture
def store(open_store: OpenStore, url: str) -> Store:
    """One whose users have time."""
    return open_store(url=with_options(url, deadline=2 * LONG))


def _append(session: Session, text: str) -> Operation[Head]:
    """Return the operation that appends a message; its id is its text."""
    item = codec.encode(Message.user(text, id=text), EPOCH)
    return append.append(number_of(session), [item])


def _texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


@contextmanager
def _gathering(store: Store) -> Iterator[None]:
    """Let what is handed over meanwhile wait, so that it is one batch."""
    begun, gathered = threading.Event(), threading.Event()

    def wait(_: Transaction) -> None:
        begun.set()
        assert gathered.wait(LONG)

    first = store.backend.submit(wait)
    try:
        assert begun.wait(LONG)
        yield
    finally:
        gathered.set()
        first.result()


def _refusing(*verbs: Operation[object]) -> Operation[None]:
    def verb(tx: Transaction) -> None:
        for each in verbs:
            each(tx)
        raise BadQuery("refused behind a write")

    return verb


def _flush(session: Session, text: str) -> Operation[bool]:
    """Return the operation that stores the beginning of a reply; its id is its text."""
    chunks = [(1, DraftChunk((Text(text),)))]
    return turns.flush_draft(number_of(session), 1, DraftOpening(text, None, 1), chunks)


@pytest.mark.parametrize("write", [_append, _flush])
def test_a_verb_that_refuses_behind_a_write_leaves_nothing_of_it(
    store: Store, write: Callable[[Session, str], Operation[object]]
) -> None:
    """And costs those beside it nothing."""
    session = store.session("k")
    with session.turn():
        with _gathering(store):
            before = store.backend.submit(_append(session, "before"))
            refused = store.backend.submit(_refusing(write(session, "refused")))
            behind = store.backend.submit(_append(session, "behind"))
        with pytest.raises(BadQuery):
            refused.result()
        assert (before.result(), behind.result()) == (Head(1, 1), Head(1, 2))
    # What was stored of a reply would be a message now.
    assert _texts(session) == ["before", "behind"]


def test_an_operation_that_ends_its_thread_fails_alone(store: Store) -> None:
    """Whatever it raises: the others of its batch are stored, and it is not."""
    session = store.session("key")

    def leave(tx: Transaction) -> None:
        _append(session, "b")(tx)
        raise _Interrupted

    with _gathering(store):
        first = store.backend.submit(_append(session, "a"))
        left = store.backend.submit(leave)
        last = store.backend.submit(_append(session, "c"))
    assert (first.result().seq, last.result().seq) == (1, 2)
    with pytest.raises(_Interrupted):
        left.result()
    assert _texts(session) == ["a", "c"]


@pytest.mark.parametrize("first", [True, False])
def test_an_update_of_a_batch_that_was_rolled_back_is_compared_again(
    store: Store, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """Another process makes the same change meanwhile: only one of the two is acknowledged."""
    session, other = store.session("k"), store.session("other")
    there = open_store().get(session.id)
    changes: SessionChanges = {"metadata": {"count": 1}, "expect_metadata": {"count": None}}
    meanwhile: list[Callable[[], object]] = []
    roll_back = Connection.roll_back

    def fail_once(tx: Transaction) -> None:
        tx.usage(session=number_of(other))  # A question: what was written before is sent.
        if not meanwhile:
            meanwhile.extend([lambda: None, lambda: there.update(**changes)])
            raise _Interrupted

    def let_the_other_in(connection: Connection) -> None:
        roll_back(connection)
        if len(meanwhile) > 1:
            meanwhile.pop()()

    monkeypatch.setattr(Connection, "roll_back", let_the_other_in)
    with _gathering(store):
        if not first:
            store.backend.submit(_append(other, "before"))
        update = sessions.update(number_of(session), SessionUpdate(changes))
        updated = store.backend.submit(update)
        store.backend.submit(fail_once)
    with pytest.raises(Conflict, match="'count'"):
        updated.result()
    assert there.info().metadata == {"count": 1}


def test_half_a_verb_is_not_stored_because_a_session_is_held(
    store: Store, open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """A batch never waits; what an operation had written before it would block is rolled back."""
    mine, held = store.session("mine"), store.session("held")
    with under_way(open_store(), touch(held)):
        with _gathering(store):
            store.backend.submit(_append(mine, "before"))
            halved = store.backend.submit(_refusing(_append(mine, "half"), touch(held)))
        await_waiting(postgres_admin)  # It is run by itself, and that one does wait.
        assert _texts(mine) == ["before"]
    with pytest.raises(BadQuery):
        halved.result()
    assert _texts(mine) == ["before"]


def test_what_waits_for_a_session_is_not_overtaken(
    store: Store, open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """Writes are stored in the order of submission, even if a session is locked in between."""
    free, held = store.session("free"), store.session("held")
    with under_way(open_store(), touch(held)):
        with _gathering(store):
            for session, text in ((free, "a"), (held, "b"), (free, "c"), (held, "d"), (held, "e")):
                store.backend.submit(_append(session, text))
        await_waiting(postgres_admin)
    store.flush()
    assert _texts(free) == ["a", "c"]
    assert _texts(held) == ["b", "d", "e"]


def test_what_a_batch_saw_of_a_session_that_others_held_does_not_count(
    store: Store, open_store: OpenStore
) -> None:
    """It prefetched its reads while another writer stored the same: that is found later."""
    free, held = store.session("free"), store.session("held")
    once = _append(held, "once")
    asked, go_on = threading.Event(), threading.Event()

    def ask(tx: Transaction) -> None:
        tx.head(number_of(free))
        asked.set()
        assert go_on.wait(LONG)

    with under_way(open_store(), once) as commit:
        with _gathering(store):
            store.backend.submit(ask)
            again = store.backend.submit(once)
        assert asked.wait(LONG)
        commit()
        go_on.set()
    assert again.result() == Head(1, 1)
    assert _texts(held) == ["once"]


def test_a_write_does_not_overtake_what_was_handed_over(store: Store) -> None:
    """Neither what waits nor what runs."""
    session = store.session("k")
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(LONG)
        _append(session, "first")(tx)

    store.backend.submit(slow)
    assert begun.wait(LONG)
    written = in_a_thread(lambda: session.append(Message.user("second")))
    go_on_soon = threading.Timer(0.3, go_on.set)  # time enough to overtake
    go_on_soon.start()
    assert written() == Head(1, 2)
    go_on_soon.join(LONG)
    assert _texts(session) == ["first", "second"]


def test_flushing_waits_for_what_runs(store: Store) -> None:
    """Not only for what has not begun."""
    session = store.session("k")
    begun, go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        begun.set()
        assert go_on.wait(LONG)
        _append(session, "handed over")(tx)

    store.backend.submit(slow)
    assert begun.wait(LONG)
    go_on_soon = threading.Timer(0.2, go_on.set)
    go_on_soon.start()
    store.flush()
    assert go_on.is_set()
    assert _texts(session) == ["handed over"]
    go_on_soon.join(LONG)


def test_what_is_said_twice_in_a_batch_is_stored_once(store: Store) -> None:
    """A retry may wait beside what it retries."""
    session = store.session("k")
    with _gathering(store):
        pending = [store.backend.submit(_append(session, text)) for text in ("a", "a", "b", "a")]
    assert [one.result().seq for one in pending] == [1, 1, 2, 1]
    assert _texts(session) == ["a", "b"]


def test_what_was_withdrawn_in_time_is_not_stored(store: Store) -> None:
    """The caller gets an error, and may do something else instead."""
    session = store.session("k")
    with _gathering(store):
        pending = [store.backend.submit(_append(session, text)) for text in "abc"]
        assert pending[1].withdraw()
    with pytest.raises(StoreUnavailable, match="withdrawn"):
        pending[1].result()
    assert [pending[place].result().seq for place in (0, 2)] == [1, 2]
    assert _texts(session) == ["a", "c"]


def test_what_has_not_begun_by_the_deadline_is_withdrawn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets "nothing was stored", and nothing ever is."""
    session = store.session("k")
    with _gathering(store):
        monkeypatch.setattr(store.backend._write_queue, "_deadline", 0.1)  # type: ignore[attr-defined]  # noqa: SLF001 - for this one alone
        late = store.backend.submit(_append(session, "late"))
        with pytest.raises(StoreUnavailable, match="withdrawn"):
            late.result()
        monkeypatch.undo()
    store.flush()
    assert _texts(session) == []


def test_what_was_handed_over_is_stored_when_a_store_is_closed(
    store: Store, open_store: OpenStore
) -> None:
    """Also what has not begun: closing waits for it."""
    session = store.session("k")
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Transaction) -> None:
        begun.set()
        assert go_on.wait(LONG)

    store.backend.submit(slow)
    assert begun.wait(LONG)
    pending = [store.backend.submit(_append(session, text)) for text in "ab"]
    closed = in_a_thread(store.close)
    while not store.backend.closed:
        """It is about to wait."""
    go_on.set()
    closed()
    assert [one.result().seq for one in pending] == [1, 2]
    assert _texts(open_store().session("k")) == ["a", "b"]


# --------------------------------------------------------------------------- a server that dies


@pytest.fixture
def mortal(own: OwnServer) -> Iterator[tuple[str, Proxy, Callable[[], None]]]:
    """A store on a server that can die, behind a proxy."""
    url = as_user(own.url, OWNER)
    holdfast.open(url).close()

    def die() -> None:
        os.kill(own.pid, signal.SIGQUIT)
        own.start_again()

    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(Path(folder), own.folder / ".s.PGSQL.5432")
        yield through(proxy, url, deadline=60, answer=30), proxy, die
        proxy.stop()


@pytest.mark.parametrize("failure", ["before the commit", "after the commit"])
def test_a_batch_whose_server_died_is_stored_once(
    mortal: tuple[str, Proxy, Callable[[], None]], failure: Failure
) -> None:
    """The status of its commit is unknown; each operation finds what it stored, or stores it.

    One that is refused then may be refused because of what it stored: that is no answer.
    """
    url, proxy, die = mortal
    with holdfast.open(url) as store:
        session = store.session("k")
        tries: list[Transaction] = []
        with _gathering(store):
            pending = [store.backend.submit(_append(session, text)) for text in "abc"]
            once = store.backend.submit(partial(_once, tries))
            proxy.meanwhile = die
            # The one that gathers commits first.
            proxy.failures.extend([None, failure])
        assert [one.result().seq for one in pending] == [1, 2, 3]
        with pytest.raises(OutcomeUnknown, match="retry with the same ids"):
            once.result()
        assert proxy.happened == [failure]
        assert _texts(session) == ["a", "b", "c"]


def _once(tries: list[Transaction], tx: Transaction) -> None:
    """Do something that cannot be done twice."""
    tries.append(tx)
    if len(tries) > 1:
        raise BadQuery("it was done before")


def test_threads_that_write_to_one_session_share_a_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch, postgres_admin: psycopg.Connection
) -> None:
    """The first waits for the session by itself; what comes meanwhile is one transaction behind it.

    Its head is written once, and its appends are in order, each stored once.
    """
    session = store.session("k")
    sent: list[str] = []
    send = Connection._send  # noqa: SLF001 - what is counted

    def counting(link: Connection, answer: PendingResult) -> None:
        sent.append(answer.text)
        send(link, answer)

    with under_way(store, touch(session)) as commit:
        first = in_a_thread(lambda: session.append(Message.user("0")))
        await_waiting(postgres_admin)
        second = store.backend.submit(_append(session, "1"))  # Waits in the writer's thread.
        await_waiting(postgres_admin, 2)
        others = [
            in_a_thread(partial(session.append, Message.user(str(number))))
            for number in range(2, 9)
        ]
        queue = store.backend._write_queue  # type: ignore[attr-defined]  # noqa: SLF001 - until all wait
        until = time.monotonic() + LONG
        while len(queue.waiting) < len(others):
            assert time.monotonic() < until
            time.sleep(0.005)
        monkeypatch.setattr(Connection, "_send", counting)
        commit()
        heads = [first(), second.result(), *(other() for other in others)]
    assert sent.count(SQL["put_head"]) <= 3
    assert sent.count("COMMIT") <= 4  # the one under way, the first, the second, the others
    assert sorted(head.seq for head in heads) == list(range(1, 10))
    assert sorted(_texts(session)) == [str(number) for number in range(9)]


def test_threads_that_wait_for_a_session_hold_up_no_other(
    store: Store, open_store: OpenStore, postgres_admin: psycopg.Connection
) -> None:
    """Another process may hold it for long; what they queue is not before others' writes."""
    free, held = store.session("free"), store.session("held")
    with under_way(open_store(), touch(held)):
        waiting = []
        for number in range(2):
            waiting.append(in_a_thread(partial(held.append, Message.user(str(number)))))
            await_waiting(postgres_admin, number + 1)
        written = in_a_thread(lambda: free.append(Message.user("at once")))
        assert written() == Head(1, 1)
        assert _texts(held) == []
    assert sorted(one().seq for one in waiting) == [1, 2]


def test_a_kept_head_is_written_before_it_is_read(store: Store) -> None:
    """What an operation has written is there for whatever it reads by a statement."""
    session, other = store.session("k"), store.session("other")

    def write(tx: Transaction) -> tuple[list[str], int]:
        _append(session, "x")(tx)
        listed = tx.list_sessions(SessionFilter(), before=None, limit=2)
        _append(session, "y")(tx)
        ends = [row.last_seq for row in tx.branches(session=number_of(session))]
        return [item[0].id for item in listed if not isinstance(item, UnreadableSession)], ends[0]

    assert store.backend.write(write) == ([session.id, other.id], 2)
