"""Flushes of a reply that come late, fail, or are repeated: its text is stored whole, and once.

The background is moved on by the tests: what a reply schedules waits until they let it be due.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Session, Store
from holdfast.aio import AsyncSession
from holdfast.aio import draft as async_draft
from holdfast.draft import Draft, DraftCore
from holdfast.errors import OutcomeUnknown, StoreFull, StoreUnavailable, TurnLost
from holdfast.scheduler import ScheduledTask, Scheduler
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, PendingWrite, Transaction
from holdfast.testing.conformance.fixtures import SetClock
from tests import store_urls
from tests.storage.test_interrupted import interrupt, interrupt_awaited, said

LONG = 60.0
LEASE = 600.0  # The tests decide when it runs out.


class Background:
    """Scheduled flushes, run when a test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due: list[DraftCore] = []

    def note(self, task: ScheduledTask) -> None:
        """Note a flush that was scheduled; leases are not renewed."""
        if isinstance(task, DraftCore):
            self._due.append(task)

    def run(self) -> int:
        """Run what is due, wait until it is stored or has failed, and return how much it was."""
        due, self._due = self._due, []
        for task in due:
            task.tick()
        self._store.flush()
        return len(due)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(store_url: str, clock: SetClock) -> Iterator[Store]:
    with Store(store_urls.backend(store_url, clock, lease=LEASE), clock) as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("talk")


@pytest.fixture
def background(store: Store, monkeypatch: pytest.MonkeyPatch) -> Background:
    made = Background(store)
    monkeypatch.setattr(Scheduler, "schedule", lambda _, task, __: made.note(task))
    return made


@pytest.fixture
def reply(session: Session, background: Background) -> Draft:
    """A reply that is being streamed, in a turn that its holder never ends."""
    return session.turn().__enter__().stream()


@pytest.fixture
def recovered_text(session: Session, clock: SetClock) -> Callable[[], str]:
    """Let the lease run out; return the text of the reply that recovery keeps."""

    def recover() -> str:
        clock.advance(LEASE + 1)
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is not None
        return recovered.partial.text

    return recover


def handing_over(
    store: Store, patch: pytest.MonkeyPatch, once: Callable[[Operation[Any]], PendingWrite[Any]]
) -> None:
    """Replace the next `submit` of a store by `once`."""
    submit = store.backend.submit

    def replaced(verb: Operation[Any]) -> PendingWrite[Any]:
        patch.setattr(store.backend, "submit", submit)
        return once(verb)

    patch.setattr(store.backend, "submit", replaced)


def failing(store: Store, patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the next queued write fail before it stores anything."""

    def fail(_: Transaction) -> None:
        raise error

    handing_over(store, patch, lambda _: store.backend.submit(fail))


# ------------------------------------------------------------------------------- late flushes


def test_a_flush_behind_the_close_of_its_reply_stores_nothing(
    store: Store, session: Session, background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is one message, although a flush from before its close arrived after it."""
    with session.turn() as turn:
        reply = turn.stream()
        reply.write("hello")

        def behind(verb: Operation[Any]) -> PendingWrite[Any]:
            reply.close()
            return store.backend.submit(verb)

        handing_over(store, monkeypatch, behind)
        assert background.run() == 1
        assert said(session) == [("hello", "complete")]
    assert said(session) == [("hello", "complete")]
    assert session.turns()[0].state == "sealed"
    assert store.verify() == []


def test_flushing_a_closed_reply_does_nothing(session: Session, background: Background) -> None:
    """Nothing is written any more, not even to learn that its turn is over."""
    with session.turn() as turn:
        reply = turn.stream()
        reply.write("hello")
    reply.flush()
    background.run()
    assert said(session) == [("hello", "partial")]


def test_flushing_a_closed_async_reply_does_nothing(
    session: Session, background: Background
) -> None:
    """As with the sync one."""

    async def work() -> None:
        async with AsyncSession(session).turn() as turn:
            reply = turn.stream()
            await reply.write("hello")
        await reply.flush()

    asyncio.run(work())
    assert background.run() == 1
    assert said(session) == [("hello", "partial")]


# ------------------------------------------------------------------------ flushes that failed


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_flush_that_failed_is_repeated_with_the_next(
    store: Store,
    reply: Draft,
    recovered_text: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """Whether or not it was stored: after a crash its text is there, once."""
    reply.write("one ")
    interrupt(store, monkeypatch, when, OutcomeUnknown("late"))
    with pytest.raises(OutcomeUnknown):
        reply.flush()
    reply.write("two")
    reply.flush()
    assert recovered_text() == "one two"
    assert store.verify() == []


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_awaited_flush_that_failed_is_repeated_with_the_next(
    session: Session,
    background: Background,
    recovered_text: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """As with the sync one."""

    async def work() -> None:
        turn = await AsyncSession(session).turn().__aenter__()
        reply = turn.stream()
        await reply.write("one ")
        interrupt_awaited(async_draft, monkeypatch, when, OutcomeUnknown("late"))
        with pytest.raises(OutcomeUnknown):
            await reply.flush()
        await reply.write("two")
        await reply.flush()

    asyncio.run(work())
    assert recovered_text() == "one two"


# ------------------------------------------------------------------------------ the background


def test_a_background_flush_that_failed_is_tried_again(
    store: Store,
    reply: Draft,
    background: Background,
    recovered_text: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself, though nothing more is written."""
    reply.write("hello")
    failing(store, monkeypatch, StoreFull("no space"))
    assert background.run() == 1
    assert background.run() == 1
    assert background.run() == 0
    assert recovered_text() == "hello"


def test_a_background_flush_that_was_not_taken_is_tried_again(
    store: Store,
    reply: Draft,
    background: Background,
    recovered_text: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that does not even accept the write may do so later; the next write says so."""

    def refuse(_: Operation[Any]) -> PendingWrite[Any]:
        raise StoreUnavailable("no thread can be started")

    reply.write("hello")
    handing_over(store, monkeypatch, refuse)
    background.run()
    with pytest.raises(StoreUnavailable, match="no thread"):
        reply.write("refused")
    assert background.run() == 1
    assert recovered_text() == "hello"


@pytest.mark.parametrize("error", [StoreFull("no space"), OSError("no locks")], ids=repr)
def test_the_next_write_raises_what_a_background_flush_raised(
    store: Store,
    session: Session,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """Once, and before it takes its text; the reply is kept whole, and the store goes on."""
    with session.turn() as turn, turn.stream() as reply:
        reply.write("one ")
        failing(store, monkeypatch, error)
        background.run()
        with pytest.raises(type(error), match=str(error)):
            reply.write("refused")
        reply.write("two")
        background.run()
    assert said(session) == [("one two", "complete")]


def test_the_next_awaited_write_raises_what_a_background_flush_raised(
    store: Store,
    session: Session,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with the sync one."""

    async def work() -> None:
        async with AsyncSession(session).turn() as turn, turn.stream() as reply:
            await reply.write("one ")
            failing(store, monkeypatch, StoreFull("no space"))
            background.run()
            with pytest.raises(StoreFull, match="no space"):
                await reply.write("refused")
            await reply.write("two")

    asyncio.run(work())
    assert said(session) == [("one two", "complete")]


def test_the_next_write_tells_that_the_turn_was_lost(
    store: Store, session: Session, reply: Draft, background: Background, clock: SetClock
) -> None:
    """A background flush of a turn that was taken over is not retried; its writer is refused."""
    reply.write("late")
    clock.advance(LEASE + 1)
    assert session.recover() is not None
    assert background.run() == 1
    with pytest.raises(TurnLost):
        reply.write("later")
    assert background.run() == 0
    assert said(session) == []
    assert store.verify() == []


def test_a_background_that_cannot_be_started_is_started_by_the_next_write(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then turns and replies go on, and what was not flushed is stored by the close."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "holdfast-scheduler":
            raise RuntimeError("can't start new thread")
        start(thread)

    def flushed() -> int:
        return len(store.backend.read(lambda snapshot: snapshot.draft(number_of(session), 2)))

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with session.turn() as turn, turn.stream() as reply:
        reply.write("one")
    with session.turn() as turn, turn.stream() as reply:
        reply.write("two ")
        reply.flush()
        monkeypatch.undo()
        reply.write("three")
        until = time.monotonic() + LONG
        while flushed() < len(["the opening", "two ", "three"]):
            assert time.monotonic() < until, "nothing is flushed"
            time.sleep(0.01)
    assert said(session) == [("one", "complete"), ("two three", "complete")]


def test_a_store_whose_background_could_not_be_started_is_closed(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no thread to wait for."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with session.turn() as turn:
        turn.user("hello")
    store.close()
    assert store.backend.closed
