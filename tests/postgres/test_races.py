"""Two writers at one session, in the orders that do harm: what was read before counts for nothing.

On this server a write waits for whoever holds a session, and then goes on with what it finds. So
each test lets one write come as far as its commit, starts another one, and commits when that waits.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec
import psycopg
import pytest

import holdfast
from holdfast import File, Message, Session, Store, codec, erasure
from holdfast.clock import EPOCH
from holdfast.errors import Diverged, StorageError
from holdfast.operations import append, head_moves, session_import, sessions, turns
from holdfast.operations.session_changes import SessionUpdate
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, Transaction
from holdfast.values import Head, Plan
from tests.postgres.conftest import OpenStore
from tests.store_urls import with_options

T = TypeVar("T")
U = TypeVar("U")
_LONG = 30.0


class Meeting:
    """Brings writes together."""

    def __init__(self, admin: psycopg.Connection) -> None:
        self._admin = admin

    def of(
        self,
        store: Store,
        verb: Operation[T],
        other: Callable[[], U],
        while_it_waits: Callable[[], object] | None = None,
        *,
        exclusive: bool = False,
    ) -> tuple[T, U]:
        """Run an operation; do something else before it commits, once that waits for it."""
        written, commit = threading.Event(), threading.Event()

        def paused(tx: Transaction) -> T:
            found = verb(tx)
            written.set()
            assert commit.wait(_LONG)
            return found

        with ThreadPoolExecutor(2) as threads:
            try:
                first = threads.submit(store.backend.write, paused, exclusive=exclusive)
                assert written.wait(_LONG)
                second = threads.submit(other)
                self._await_waiting(second)
                assert not second.done()
                if while_it_waits is not None:
                    while_it_waits()
            finally:
                commit.set()
            return first.result(_LONG), second.result(_LONG)

    def _await_waiting(self, other: Future[U]) -> None:
        asked = (
            "SELECT FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        until = time.monotonic() + _LONG
        while not self._admin.execute(asked).fetchall() and not other.done():
            assert time.monotonic() < until, "nobody waits"
            time.sleep(0.005)


@pytest.fixture
def meeting(postgres_admin: psycopg.Connection) -> Meeting:
    """A role that may read who is blocked."""
    return Meeting(postgres_admin)


@pytest.fixture
def two(url: str, open_store: OpenStore) -> tuple[Store, Store]:
    """The store, opened twice, by users who have time."""
    patient = with_options(url, deadline=2 * _LONG)
    return open_store(url=patient), open_store(url=patient)


def _talk(store: Store) -> Session:
    """A session with three turns, of which the last was taken back."""
    session = store.session("k")
    for word in ("one", "two", "three"):
        with session.turn() as turn:
            turn.user(word)
            turn.assistant(word.upper())
    session.undo()
    return session


def _texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


# -------------------------------------------------------------------------------------- movements


def _movements(session: Session) -> dict[str, tuple[Operation[Head], list[str]]]:
    """Every movement, with the history behind it."""
    n, mark = number_of(session), "once"
    first, *_ = session.messages()
    new = [codec.encode(Message.user("new", id="new"), EPOCH)]
    known = [codec.encode(first, EPOCH, known=True)]
    history = ["one", "ONE", "two", "TWO"]
    return {
        "undo": (head_moves.undo(n, 1, token=mark, expect=None), history[:2]),
        "redo": (head_moves.redo(n, token=mark, expect=None), [*history, "three", "THREE"]),
        "rewind": (head_moves.rewind(n, 2, token=mark, expect=None), history[:2]),
        "clear": (head_moves.clear(n, token=mark, expect=None), []),
        "replace": (head_moves.replace(n, [*known, *new], token=mark, expect=None), ["one", "new"]),
    }


@pytest.mark.parametrize("name", ["undo", "redo", "rewind", "clear", "replace"])
def test_one_undo_does_not_take_back_two_turns(
    name: str, two: tuple[Store, Store], meeting: Meeting
) -> None:
    """A movement that is tried again while its first try still commits is made once."""
    mine, yours = two
    session = _talk(mine)
    verb, history = _movements(session)[name]
    before = len(session.branches())
    first, second = meeting.of(mine, verb, lambda: yours.backend.write(verb))
    assert first == second
    assert _texts(session) == history
    assert len(session.branches()) == before + 1


# -------------------------------------------------------------------------------------- retention


def _two_sessions(store: Store) -> tuple[Session, Plan]:
    """A session that is to go, and the plan that says so."""
    old = store.create(title="old")
    old.append(Message.user("x"))
    store.create(title="new").append(Message.user("y"))
    plan = store.retention(keep_last=1)
    assert [item.session_id for item in plan.trash] == [old.id]
    return old, plan


def test_a_session_that_is_pinned_meanwhile_stays(
    two: tuple[Store, Store], meeting: Meeting
) -> None:
    """And it is pinned, as the acknowledged update says."""
    mine, yours = two
    old, plan = _two_sessions(mine)
    changes = SessionUpdate({"pinned": True, "title": "precious", "metadata": {"a": 1}})
    pinning = sessions.update(number_of(old), changes)
    told, report = meeting.of(yours, pinning, lambda: mine.apply(plan))
    assert told.pinned
    assert [spared.why for spared in report.spared] == ["it is pinned"]
    assert report.trashed == ()
    assert [info.id for info in mine.sessions(pinned=True)] == [old.id]
    info = old.info()
    assert (info.pinned, info.title, info.metadata) == (True, "precious", {"a": 1})


def test_a_session_that_goes_keeps_what_it_was_given_meanwhile(
    two: tuple[Store, Store], meeting: Meeting
) -> None:
    """A new title does not save it, but is not lost either."""
    mine, yours = two
    old, plan = _two_sessions(mine)
    renaming = sessions.update(number_of(old), SessionUpdate({"title": "renamed"}))
    _, report = meeting.of(yours, renaming, lambda: mine.apply(plan))
    assert report.trashed == (old.id,)
    assert mine.restore(old.id).title == "renamed"


# ---------------------------------------------------------------------------------------- copying


def test_a_copy_does_not_mix_two_histories(two: tuple[Store, Store], meeting: Meeting) -> None:
    """A write to a session of the target while its next part is copied is refused."""
    target, other = two
    with holdfast.open("memory:") as source:
        ours = source.session("k")
        ours.append(Message.user("first"))
        source.copy(target)
        theirs = target.session("k")
        item = codec.encode(Message.user("said there"), EPOCH)

        def copy_again() -> None:
            ours.append(Message.user("said here"), Message.user("and more"))
            source.copy(target)

        with pytest.raises(Diverged):
            meeting.of(other, append.append(number_of(theirs), [item]), copy_again)
        assert _texts(theirs) == ["first", "said there"]


def test_whoever_orders_sessions_holds_them_in_one_order(
    url: str, two: tuple[Store, Store], meeting: Meeting, open_store: OpenStore
) -> None:
    """Two at once would otherwise deadlock."""
    mine, yours = two
    low, high = mine.create(), mine.create()
    hasty = open_store(url=with_options(url, deadline=2)).get(high.id)
    meeting.of(
        mine,
        append.append(number_of(low), [codec.encode(Message.user("a"), EPOCH)]),
        lambda: yours.backend.write(
            session_import.restore_list_order(enumerate(map(number_of, (high, low))))
        ),
        while_it_waits=lambda: hasty.append(Message.user("b")),
    )
    assert [info.id for info in mine.sessions()] == [low.id, high.id]


# ---------------------------------------------------------------------------------- several at once


def test_what_a_batch_looked_at_before_it_held_a_session_does_not_count(
    two: tuple[Store, Store],
) -> None:
    """A message that another one stores in between is found: nothing is stored twice."""
    mine, yours = two
    a, b = mine.session("a"), mine.session("b")
    n = number_of(b)
    item = codec.encode(Message.user("once", id="once"), EPOCH)
    verb = append.append(n, [item])
    gates = {name: threading.Event() for name in ("held", "let go", "asked", "go on", "gather")}

    def keep_b(tx: Transaction) -> Head:
        found = verb(tx)
        gates["held"].set()
        assert gates["let go"].wait(_LONG)
        return found

    def ask_for_both(tx: Transaction) -> None:
        tx.head(number_of(a))  # This sends the batch's prefetch.
        gates["asked"].set()
        assert gates["go on"].wait(_LONG)

    with ThreadPoolExecutor(1) as threads:
        holder = threads.submit(yours.backend.write, keep_b)
        assert gates["held"].wait(_LONG)
        mine.backend.submit(lambda _: gates["gather"].wait(_LONG))
        mine.backend.submit(ask_for_both)
        pending = mine.backend.submit(verb)
        gates["gather"].set()
        assert gates["asked"].wait(_LONG)
        gates["let go"].set()
        first = holder.result(_LONG)
        gates["go on"].set()
        assert pending.result() == first
    assert _texts(b) == ["once"]


# --------------------------------------------------------------------------------------- the guard


def _put_session(tx: Transaction, session: Session) -> None:
    found = tx.find_session(id=session.id)
    assert found is not None
    tx.put_session(msgspec.structs.replace(found, title="stale"))


def _put_session_held_later(tx: Transaction, session: Session) -> None:
    found = tx.find_session(id=session.id)
    assert found is not None
    tx.head(found.n)
    tx.put_session(msgspec.structs.replace(found, title="stale"))


def _put_turn(tx: Transaction, session: Session) -> None:
    turn = tx.turn(number_of(session), 1)
    assert turn is not None
    tx.put_turn(msgspec.structs.replace(turn, error="stale"))


def _add_queued(tx: Transaction, session: Session) -> None:
    for row in tx.queue(number_of(session)):
        tx.drop_queued(number_of(session), row.number)


def _end_branch(tx: Transaction, session: Session) -> None:
    branch = tx.branch(number_of(session), 1)
    assert branch is not None
    tx.end_branch(branch.n, 1)


@pytest.mark.parametrize(
    "write", [_put_session, _put_session_held_later, _put_turn, _add_queued, _end_branch]
)
def test_a_verb_that_does_not_hold_what_it_writes_is_refused(
    write: Callable[[Transaction, Session], None], two: tuple[Store, Store]
) -> None:
    """It would overwrite concurrent writes; this guards against bugs in operations."""
    mine, _ = two
    session = _talk(mine)
    session.enqueue("later")
    before = (session.info(), session.turns(), session.branches())
    with pytest.raises(StorageError, match="not locked"):
        mine.backend.write(lambda tx: write(tx, session))
    assert (session.info(), session.turns(), session.branches()) == before
    mine.backend.write(lambda tx: write(tx, session), exclusive=True)


def test_who_holds_a_session_may_find_it_by_its_name(two: tuple[Store, Store]) -> None:
    """What is read of it from then on is what it is."""
    mine, _ = two
    session = _talk(mine)

    def rename(tx: Transaction) -> None:
        tx.head(number_of(session))
        found = tx.find_session(key="k")
        assert found is not None
        tx.put_session(msgspec.structs.replace(found, title="new"))

    mine.backend.write(rename)
    assert session.info().title == "new"
    mine.backend.write(turns.recover(number_of(session)))


# ------------------------------------------------------------------------------------------- alone


def test_a_fork_that_is_being_made_keeps_what_it_shares(
    two: tuple[Store, Store], meeting: Meeting
) -> None:
    """An erasure waits for all writes under way: one of them may need what is erased."""
    mine, yours = two
    parent = _talk(mine)
    who = sessions.new_row(id="f" * 16)
    origin = sessions.Origin(parent=number_of(parent), relation="fork", at=None, expect=None)
    fork, report = meeting.of(
        mine, sessions.create(who, origin=origin), lambda: yours.purge(parent.id)
    )
    assert report.kept_for == (fork.id,)
    assert _texts(yours.get(fork.id)) == ["one", "ONE", "two", "TWO"]
    assert yours.verify() == []


@pytest.mark.parametrize("attempts", [8, 0])
def test_a_file_that_is_about_to_be_needed_again_stays(
    two: tuple[Store, Store], meeting: Meeting, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """A message that names a file by its hash alone, while the last one that had it is erased.

    By a plan, and without one, as it is done after some plans that did not hold.
    """
    monkeypatch.setattr(erasure, "_MAX_ATTEMPTS", attempts)
    mine, yours = two
    old, new = mine.session("old"), mine.session("new")
    old.append(Message(role="user", parts=(File(name="a", data=b"x" * 1000),)))
    (message,) = old.messages()
    (file,) = message.parts
    assert isinstance(file, File)
    again = codec.encode(Message(role="user", parts=(File(name="b", sha256=file.sha256),)), EPOCH)
    verb = append.append(number_of(new), [again])
    meeting.of(mine, verb, lambda: yours.session("old").erase(message.id))
    assert yours.verify() == []
    assert file.sha256 is not None
    assert yours.blob(file.sha256) == b"x" * 1000


def test_who_begins_while_others_erase_waits(two: tuple[Store, Store], meeting: Meeting) -> None:
    """Nothing is written during an erasure."""
    mine, yours = two
    one, other = mine.session("one"), yours.session("other")

    def erase(tx: Transaction) -> None:
        tx.head(number_of(one))

    _, head = meeting.of(mine, erase, lambda: other.append(Message.user("later")), exclusive=True)
    assert head == Head(1, 1)
