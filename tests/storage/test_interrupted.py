"""Turns and replies whose writes were interrupted: nothing doubles, and nobody is in the way.

A turn that was interrupted while it was opened, a reply while it was closed, and a turn that could
not be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import apsw
import msgspec
import pytest

import holdfast
from holdfast import Message, Session, Store, Usage, processes
from holdfast.aio import AsyncSession
from holdfast.aio import draft as async_draft
from holdfast.aio import turn as async_turn
from holdfast.aio.completion_queue import run_write
from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown, SessionBusy, StoreFull
from holdfast.storage.protocol import Backend, Operation
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.testing.faults import FailingDisk, failing_disk
from holdfast.url import Location

T = TypeVar("T")
LEASE = 600.0  # Nobody waits until it runs out.


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("talk")


def said(session: Session) -> list[tuple[str, str]]:
    return [(message.text, message.status) for message in session.messages()]


def interrupt(store: Store, patch: pytest.MonkeyPatch, when: str, error: BaseException) -> None:
    """Let the next write be interrupted: before it went through, or just behind."""
    write = store.backend.write

    def once(verb: Operation[T]) -> T:
        patch.setattr(store.backend, "write", write)
        if when == "behind":
            write(verb)
        raise error

    patch.setattr(store.backend, "write", once)


def interrupt_awaited(
    module: ModuleType, patch: pytest.MonkeyPatch, when: str, error: BaseException
) -> None:
    """Let the next write that a module of the async API awaits be interrupted, likewise."""

    async def once(backend: Backend, verb: Operation[Any]) -> object:
        patch.setattr(module, "run_write", run_write)
        if when == "behind":
            await run_write(backend, verb)
        raise error

    patch.setattr(module, "run_write", once)


# ------------------------------------------------------------------------- turns that are opened


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_turn_whose_opening_has_an_unknown_outcome_is_opened_again(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is not refused because of itself, and there is one turn."""
    turn = session.turn()
    interrupt(store, monkeypatch, when, OutcomeUnknown("late"))
    with pytest.raises(OutcomeUnknown):
        turn.__enter__()
    with turn:
        turn.user("hello")
    assert said(session) == [("hello", "complete")]
    assert [turn.state for turn in session.turns()] == ["sealed"]


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_awaited_turn_whose_opening_has_an_unknown_outcome_is_opened_again(
    session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async def work() -> None:
        turn = AsyncSession(session).turn()
        interrupt_awaited(async_turn, monkeypatch, when, OutcomeUnknown("late"))
        with pytest.raises(OutcomeUnknown):
            await turn.__aenter__()
        async with turn:
            await turn.user("hello")

    asyncio.run(work())
    assert said(session) == [("hello", "complete")]
    assert [turn.state for turn in session.turns()] == ["sealed"]


@pytest.mark.parametrize(("when", "left"), [("before", []), ("behind", ["cancelled"])])
def test_a_turn_whose_opening_was_interrupted_is_not_held(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch, when: str, left: list[str]
) -> None:
    """If it was opened it is closed again: nobody else would."""
    turn = session.turn()
    interrupt(store, monkeypatch, when, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        turn.__enter__()
    assert [turn.state for turn in session.turns()] == left
    with session.turn():
        pass


@pytest.mark.parametrize(("when", "left"), [("before", []), ("behind", ["cancelled"])])
def test_an_awaited_turn_whose_opening_was_cancelled_is_not_held(
    session: Session, monkeypatch: pytest.MonkeyPatch, when: str, left: list[str]
) -> None:
    async def work() -> None:
        interrupt_awaited(async_turn, monkeypatch, when, asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await AsyncSession(session).turn().__aenter__()

    asyncio.run(work())
    assert [turn.state for turn in session.turns()] == left
    with session.turn():
        pass


def test_who_is_interrupted_while_another_holds_the_session_takes_nothing_from_it(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is closed then is the turn that was asked for, and no other."""
    with session.turn() as held:
        turn = session.turn(wait=LEASE)
        interrupt(store, monkeypatch, "before", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            turn.__enter__()
        held.user("still mine")
    assert [turn.state for turn in session.turns()] == ["sealed"]


# ------------------------------------------------------------------------ replies that are closed


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutcomeUnknown("late")], ids=repr)
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_reply_whose_close_was_interrupted_is_stored_once(
    store: Store,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    error: BaseException,
) -> None:
    """Asked again, with another status and later on: it is the reply of the first time."""
    with session.turn() as turn:
        reply = turn.stream()
        reply.write("hello")
        reply.usage(Usage(3, 4))
        interrupt(store, monkeypatch, when, error)
        with pytest.raises(type(error)):
            reply.close()
        message = reply.close(status="partial", metadata={"late": True})
        assert [message] == session.messages()
        assert reply.close() == message
    assert said(session) == [("hello", "complete")]
    assert session.turns()[0].state == "sealed"
    assert session.usage().usage == Usage(3, 4)
    assert store.verify() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OutcomeUnknown("late")], ids=repr)
@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_turn_whose_reply_was_interrupted_ends(
    store: Store,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    error: BaseException,
) -> None:
    """The end of the block closes the reply once more; what is raised is what interrupted it."""
    with pytest.raises(type(error)) as raised:
        with session.turn() as turn, turn.stream() as reply:
            reply.write("hello")
            interrupt(store, monkeypatch, when, error)
    assert getattr(raised.value, "__notes__", []) == []
    assert said(session) == [("hello", "complete")]
    state = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
    assert session.turns()[0].state == state
    with session.turn():
        pass


def test_what_is_written_after_a_close_that_failed_is_kept(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.turn() as turn:
        reply = turn.stream()
        reply.write("one ")
        interrupt(store, monkeypatch, "before", StoreFull("no space"))
        with pytest.raises(StoreFull):
            reply.close(status="partial")
        reply.write("two")
        reply.usage(Usage(3))
        reply.close()
    assert said(session) == [("one two", "complete")]
    assert session.usage().usage == Usage(3)


@pytest.mark.parametrize("steps", range(8))
def test_an_awaited_close_that_is_cancelled_is_finished(session: Session, steps: int) -> None:
    """Whenever that is: once begun, the reply is stored, and the turn goes on or ends."""

    async def work() -> None:
        async with AsyncSession(session).turn() as turn:
            reply = turn.stream()
            await reply.write("hello")
            closing = asyncio.create_task(reply.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            again = await reply.close(status="partial")
            assert again is not None
            begun = steps > 0
            assert again.status == ("complete" if begun else "partial")
            assert [again] == session.messages()

    asyncio.run(work())
    assert len(session.messages()) == 1
    assert session.turns()[0].state == "sealed"


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_awaited_close_whose_outcome_is_unknown_is_repeated(
    session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    interrupt_awaited(async_draft, monkeypatch, when, OutcomeUnknown("late"))

    async def work() -> None:
        async with AsyncSession(session).turn() as turn:
            reply = turn.stream()
            await reply.write("hello")
            with pytest.raises(OutcomeUnknown):
                await reply.close()
            again = await reply.close(status="partial")
            assert [again] == session.messages()

    asyncio.run(work())
    assert said(session) == [("hello", "complete")]
    assert session.turns()[0].state == "sealed"


# ---------------------------------------------------------------------- turns that cannot end


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with failing_disk() as made:
        yield made


@pytest.fixture
def fragile(tmp_path: Path, disk: FailingDisk) -> Iterator[Store]:
    """A store on a disk that may be full."""
    clock = SystemClock()
    location = Location("sqlite", str(tmp_path / "store.db"), lease=LEASE)
    backend = SQLiteBackend(
        location, tenant="default", readonly=False, clock=clock, durability="power", vfs=disk.name
    )
    with Store(backend, clock) as store:
        yield store


def fill(disk: FailingDisk) -> None:
    disk.fail("write", lasting=True, error=apsw.FullError, log_only=True)


def check_recovered(session: Session) -> None:
    """The turn that could not be ended is recovered by the next one."""
    first, reply, last = said(session)
    assert (first, last) == (("go", "complete"), ("again", "complete"))
    # The background may have been quick enough to flush the rest once there was space.
    assert reply in {("half a", "partial"), ("half a reply", "partial")}
    assert [turn.state for turn in session.turns()] == ["interrupted", "sealed"]


def test_a_turn_that_could_not_be_ended_is_in_nobodys_way(
    fragile: Store, disk: FailingDisk
) -> None:
    """The disk was full, and has space again: this very process goes on, without waiting."""
    session = fragile.session("talk")
    with pytest.raises(StoreFull):
        with session.turn() as turn:
            turn.user("go")
            reply = turn.stream()
            reply.write("half a")
            reply.flush()
            fill(disk)
            reply.write(" reply")
            reply.flush()
    disk.heal()
    assert [turn.state for turn in session.turns()] == ["open"]
    with session.turn() as turn:
        assert turn.recovered is not None
        turn.user("again")
    check_recovered(session)
    assert fragile.verify() == []


def test_an_awaited_turn_that_could_not_be_ended_is_in_nobodys_way(
    fragile: Store, disk: FailingDisk
) -> None:
    session = fragile.session("talk")

    async def work() -> None:
        twin = AsyncSession(session)
        with pytest.raises(StoreFull):
            async with twin.turn() as turn:
                await turn.user("go")
                reply = turn.stream()
                await reply.write("half a")
                await reply.flush()
                fill(disk)
                await reply.write(" reply")
                await reply.flush()
        disk.heal()
        async with twin.turn() as turn:
            assert turn.recovered is not None
            await turn.user("again")

    asyncio.run(work())
    check_recovered(session)


def test_a_turn_that_is_still_held_is_not_given_up(session: Session) -> None:
    with session.turn():
        with pytest.raises(SessionBusy):
            with session.turn():
                pass
    session.append(Message.user("free"))


def test_only_the_holder_can_give_up() -> None:
    """Another process, or a forked child, has its own say; another turn is another thing."""
    holder = processes.this_process()
    processes.mark_given_up("a token")
    assert processes.has_given_up(holder, "a token")
    assert not processes.has_given_up(holder, "another token")
    for other in ({"pid": holder.pid + 1}, {"host": "elsewhere"}, {"started": "long ago"}):
        assert not processes.has_given_up(msgspec.structs.replace(holder, **other), "a token")
