"""In-doubt commits: the server is queried for their status, and that is the outcome."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import psycopg
import pytest

import holdfast
from holdfast import Goal, Head, Message, Session
from holdfast.aio import AsyncStore
from holdfast.errors import Conflict, OutcomeUnknown, TurnLost
from holdfast.storage.postgres import retry
from holdfast.storage.postgres.commit_status import CommitStatus, resolve_commit
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import parse_conninfo
from holdfast.storage.postgres.transaction import PostgresTransaction
from holdfast.storage.rows import MessageRow
from holdfast.url import parse_url
from holdfast.values import SessionChanges
from tests.postgres.conftest import OpenStore, through
from tests.postgres.pauses import LONG, Pauses, in_a_thread
from tests.postgres.proxy import Proxy
from tests.servers import OWNER, OwnServer, as_user
from tests.store_urls import with_options

_GOAL = Goal(objective="a", state="active", started_at=datetime(2026, 1, 1, tzinfo=UTC))
# As if the holder of a turn were on another host, and had not renewed its lease.
_TAKEN = """
UPDATE holdfast.turns SET lease_until = 0,
  holder = convert_to(replace(convert_from(holder, 'utf8'), '"boot":"', '"boot":"x'), 'utf8')
"""
T = TypeVar("T")
_Do = Callable[[Session], object]


class Between:
    """Lets another process work after a commit, before the loss of the connection is noticed."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def lose(self, call: Callable[[], T], others: Callable[[], object] | None = None) -> T:
        """Do something whose commit is stored and whose answer is lost."""
        before = len(self._proxy.happened)
        self._proxy.meanwhile = others
        self._proxy.failures.append("after the commit")
        value = call()
        self._proxy.meanwhile = None
        assert len(self._proxy.happened) == before + 1
        return value


@pytest.fixture
def between(proxy: Proxy) -> Between:
    return Between(proxy)


@pytest.fixture
def here(open_store: OpenStore, proxy: Proxy, url: str) -> Session:
    session = open_store(url=through(proxy, url, deadline=60, answer=30, idle=3)).session("s")
    for number in range(4):
        with session.turn() as turn:
            turn.user(str(number))
    return session


@pytest.fixture
def there(here: Session, open_store: OpenStore) -> Session:
    return open_store().get(here.id)


def _texts(session: Session) -> list[str]:
    return [m.text for m in session.messages()]


def test_what_moves_a_session_moves_it_once(
    here: Session, there: Session, between: Between
) -> None:
    assert between.lose(here.undo) == Head(2, 3)
    assert between.lose(here.redo) == Head(3, 4)
    assert between.lose(lambda: here.rewind(2)) == Head(4, 2)
    assert len(there.branches()) == 4
    assert _texts(there) == ["0", "1"]


def test_what_others_wrote_meanwhile_stays(here: Session, there: Session, between: Between) -> None:
    """What is known to be stored is not run again over what came after it."""
    grown = [*here.messages(), Message.user("4", id="4")]
    between.lose(lambda: here.replace(grown), lambda: there.append(Message.user("by another")))
    assert _texts(there) == ["0", "1", "2", "3", "4", "by another"]
    between.lose(lambda: here.append(Message.user("5")), lambda: there.rewind(6))
    assert _texts(there) == ["0", "1", "2", "3", "4", "by another"]
    between.lose(lambda: here.update(title="A"), lambda: there.update(title="B"))
    assert there.info().title == "B"


def test_what_a_write_gave_is_given(here: Session, there: Session, between: Between) -> None:
    here.update(goal=_GOAL)
    further = msgspec.structs.replace(_GOAL, objective="b")
    info = between.lose(lambda: here.update(goal=further, expect_goal=_GOAL))
    assert info.goal == further
    there.enqueue("waiting")
    with here.turn() as turn:
        assert [m.text for m in between.lose(turn.take_queued)] == ["waiting"]
        assert between.lose(lambda: turn.user("hello")).text == "hello"
    fork = between.lose(here.fork)
    assert [link.session_id for link in there.children()] == [fork.id]


@pytest.mark.parametrize("write", ["update", "append", "rewind"])
def test_an_update_that_was_not_stored_is_compared_again(
    here: Session, there: Session, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """Another process makes the same change meanwhile: only one of the two is acknowledged."""
    changes: SessionChanges = {"metadata": {"count": 1}, "expect_metadata": {"count": None}}

    def let_the_other_in(*given: object) -> CommitStatus | None:
        status = resolve_commit(*given)  # type: ignore[arg-type]
        if status is not None:
            there.update(**changes)
        return status

    monkeypatch.setattr(retry, "resolve_commit", let_the_other_in)
    writes: dict[str, Callable[[], object]] = {
        "update": lambda: here.update(**changes),
        "append": lambda: here.append(update=changes),
        "rewind": lambda: here.rewind(4, update=changes),
    }
    proxy.failures.append("before the commit")
    with pytest.raises(Conflict, match="'count'"):
        writes[write]()
    assert proxy.happened == ["before the commit"]


def test_a_turn_that_is_taken_over_meanwhile_has_stored(
    here: Session, there: Session, between: Between, postgres_admin: psycopg.Connection
) -> None:
    def take_over() -> None:
        postgres_admin.execute(_TAKEN)
        assert there.recover() is not None

    turn = here.turn().__enter__()
    assert between.lose(lambda: turn.user("in time"), take_over).text == "in time"
    with pytest.raises(TurnLost):
        turn.user("too late")
    with suppress(TurnLost):
        turn.__exit__(None, None, None)
    assert _texts(there)[-1] == "in time"


def test_writes_handed_over_together_are_in_doubt_together(
    open_store: OpenStore, proxy: Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server is down, no caller gets "nothing was stored": it was."""
    Pauses(monkeypatch)
    store = open_store(url=through(proxy, url, deadline=10, answer=30, connect=30))
    store.session("s").append(Message.user("0"))

    async def work() -> list[Head | BaseException]:
        session = await AsyncStore(store).session("s")
        proxy.failures.append("after the commit")
        proxy.last = True
        calls = (session.append(Message.user(str(number), id=str(number))) for number in range(9))
        return await asyncio.gather(*calls, return_exceptions=True)

    told = asyncio.run(work())
    there = open_store().session("s")
    assert len(there.messages()) > 1
    for number, error in enumerate(told):
        stored = any(m.id == str(number) for m in there.messages())
        assert isinstance(error, OutcomeUnknown) or not stored
        assert not stored or "nothing was stored" not in str(error)


class Dedup:
    """Counts messages that a write found stored already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hits = 0
        look = PostgresTransaction.stored

        def counting(
            tx: PostgresTransaction, branch: int, ids: Sequence[str]
        ) -> dict[str, tuple[str, MessageRow]]:
            found = look(tx, branch, ids)
            self.hits += len(found)
            return found

        monkeypatch.setattr(PostgresTransaction, "stored", counting)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGQUIT])
def test_a_server_that_died_meanwhile_forgets_numbers_not_messages(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """The status of an earlier commit is then known by the ids of its messages."""
    url = as_user(own.url, OWNER)
    holdfast.open(url).close()
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(Path(folder), own.folder / ".s.PGSQL.5432")
        between, dedup = Between(proxy), Dedup(monkeypatch)

        def die() -> None:
            os.kill(own.pid, how)
            own.start_again()

        with holdfast.open(through(proxy, url, deadline=60, answer=30)) as store:
            session = store.session("s")
            session.append(Message.user("0"))
            batch = [Message.user("1"), Message.user("2")]
            assert between.lose(lambda: session.append(*batch), die) == Head(1, 3)
            assert dedup.hits == 2
            assert _texts(session) == ["0", "1", "2"]
        proxy.stop()


def test_a_refusal_behind_a_doubt_is_no_answer(own: OwnServer) -> None:
    """An operation that is refused when run again may be refused because of its first run."""
    url = as_user(own.url, OWNER)
    holdfast.open(url).close()
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(Path(folder), own.folder / ".s.PGSQL.5432")
        between = Between(proxy)

        def die_and_be_taken_over() -> None:
            os.kill(own.pid, signal.SIGQUIT)
            own.start_again()
            with psycopg.connect(own.url, autocommit=True) as admin:
                admin.execute(_TAKEN)
            with holdfast.open(url) as other:
                assert other.session("s").recover() is not None

        with holdfast.open(through(proxy, url, deadline=60, answer=30)) as store:
            turn = store.session("s").turn().__enter__()
            with pytest.raises(OutcomeUnknown, match="retry with the same ids"):
                between.lose(lambda: turn.user("in time"), die_and_be_taken_over)
            with suppress(TurnLost):
                turn.__exit__(None, None, None)
            assert _texts(store.session("s")) == ["in time"]
        proxy.stop()


def test_only_who_served_a_lost_link_is_ended(url: str) -> None:
    """Its pid may have been reused since."""
    where = parse_conninfo(parse_url(url, {}), "process")
    one, other = Connection(where), Connection(where)
    process, since = other.backend_id[:2]
    assert isinstance(since, datetime)
    before = since - timedelta(seconds=1)
    assert one.execute("terminate_backend", (process, before)).fetchall() == []
    assert other.execute("version").fetchone() is not None
    assert one.execute("terminate_backend", (process, since)).fetchall() == [(True,)]
    with pytest.raises(psycopg.OperationalError):
        other.execute("version").fetchone()
    one.close()
    other.close()


@pytest.mark.usefixtures("nobody_ends")
def test_a_role_that_may_end_no_connection(here: Session, there: Session, between: Between) -> None:
    """The orphaned backend ends by itself; no caller gets a wrong answer meanwhile."""
    between.lose(lambda: here.append(Message.user("4")))
    assert _texts(there)[-1] == "4"


def test_without_its_standby_a_server_acknowledges_nothing(
    own: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terminating a backend that waits for a standby makes its write visible, not replicated."""
    url = with_options(as_user(own.url, OWNER), deadline=60)
    keys = ("append", "undo", "create")
    with holdfast.open(url) as store:
        for key in keys:
            store.session(key).append(Message.user("0"), Message.user("1"))
    with psycopg.connect(own.url, autocommit=True) as superuser:
        superuser.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        superuser.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + LONG
        while superuser.execute("SHOW synchronous_standby_names").fetchone() != ("nobody",):
            assert time.monotonic() < until
    doing: tuple[_Do, ...] = (
        lambda session: session.append(Message.user("2")),
        lambda session: session.undo(),
        lambda _: store.create(),
    )
    # No commit is ever answered, so the whole of `answer` is waited for, several times.
    with holdfast.open(with_options(url, answer=0.7, connect=30)) as store:
        sessions = [store.session(key) for key in keys]
        Pauses(monkeypatch)
        monkeypatch.setattr(store.backend._runner, "_deadline", 8.0)  # type: ignore[attr-defined]  # noqa: SLF001 - in pauses
        told = [in_a_thread(partial(do, one)) for do, one in zip(doing, sessions, strict=True)]
        for outcome in told:
            with pytest.raises(OutcomeUnknown):
                outcome()


class _Interrupted(BaseException):
    """What a handler of a signal raises."""


# What a handler raises just when something that was dropped is closed goes nowhere.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_cost_no_connection(open_store: OpenStore, url: str) -> None:
    """Wherever a call is interrupted: no connection is leaked, and none is used half-way."""
    store = open_store(url=f"{url}&pool=2")
    session = store.session("s")
    session.append(*(Message.user(str(number)) for number in range(30)))
    work: tuple[Callable[[], object], ...] = (
        lambda: session.messages(limit=10),
        lambda: store.sessions(limit=3),
        session.info,
        lambda: session.append(Message.user("more")),
    )

    def interrupt(_: int, __: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for number in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 40 * 0.0001)
                work[number % len(work)]()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except _Interrupted:
                interrupted += 1
            finally:
                with suppress(_Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10
    assert session.messages()[0].text == "0"
    assert len(store.sessions()) == 1
