"""Turns and replies whose writes were interrupted: nothing doubles, and nobody is in the way.

A turn that was interrupted while it was opened, a reply while it was closed, and a turn that could
not be ended.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from opcode import opname
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Self, TypeVar

import apsw
import msgspec
import pytest

import holdfast
from holdfast import Message, Session, Store, Usage, processes, scheduler
from holdfast import turn as sync_turn
from holdfast.aio import AsyncSession
from holdfast.aio import draft as async_draft
from holdfast.aio import turn as async_turn
from holdfast.aio.completion_queue import run_write
from holdfast.clock import SystemClock
from holdfast.context import GuardedWriter
from holdfast.errors import OutcomeUnknown, SessionBusy, StoreFull
from holdfast.session import number_of
from holdfast.storage.protocol import Operation
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

    async def once(writer: GuardedWriter, verb: Operation[Any]) -> object:
        patch.setattr(module, "run_write", run_write)
        if when == "behind":
            await run_write(writer, verb)
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
        with pytest.raises(SessionBusy), session.turn():
            pass
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


class InterruptAt:
    """Raises KeyboardInterrupt at the Nth point of opening a turn where a signal can be handled.

    The interpreter does that behind a call, at the beginning of a function and of a loop's round.
    Inside a write signals are deferred, so only the modules around it are interrupted.
    """

    def __init__(self, step: int) -> None:
        self._left = step
        self._last: dict[FrameType, str] = {}
        self.raised = False

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - itself
        if frame.f_code.co_filename not in _TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            last = self._last.get(frame, "")
            self._last[frame] = opname[frame.f_code.co_code[frame.f_lasti]]
            if last.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
                self._interrupt()
        return self._trace

    def _interrupt(self) -> None:
        self._left -= 1
        if self._left < 0 and not self.raised:
            self.raised = True
            raise KeyboardInterrupt


_TRACED = {module.__file__ for module in (sync_turn, async_turn, scheduler)}


def check_not_held(session: Session, before: int) -> None:
    """Nothing is open, and the next turn is opened at once, here and elsewhere."""
    added = [turn.state for turn in session.turns()][before:]
    assert added in ([], ["cancelled"])
    with session.turn() as turn:
        assert turn.recovered is None


def test_no_interrupt_while_a_turn_is_opened_leaks_it(session: Session) -> None:
    """At each point of it, until there is no further one."""
    for step in count():
        before = len(session.turns())
        with InterruptAt(step) as interrupt, suppress(KeyboardInterrupt), session.turn() as turn:
            sys.settrace(None)
            turn.cancel()
        if not interrupt.raised:
            break
        check_not_held(session, before)
    assert step > 10


# Interrupted between the call of a coroutine and its first step.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_interrupt_while_an_awaited_turn_is_opened_leaks_it(session: Session) -> None:
    async def work(step: int) -> bool:
        with InterruptAt(step) as interrupt, suppress(KeyboardInterrupt):
            async with AsyncSession(session).turn() as turn:
                sys.settrace(None)
                await turn.cancel()
        return interrupt.raised

    for step in count():
        before = len(session.turns())
        if not asyncio.run(work(step)):
            break
        check_not_held(session, before)
    assert step > 10


def test_an_awaited_turn_whose_loop_ends_while_it_is_opened_is_not_held(session: Session) -> None:
    """Its coroutine is closed where it waits, and can wait for nothing more."""
    opening = AsyncSession(session).turn().__aenter__()

    async def work() -> None:
        opening.send(None)

    asyncio.run(work())
    opening.close()
    session.append(Message.user("behind it"))
    check_not_held(session, 0)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_after_an_opening_of_unknown_outcome_another_turn_is_opened_at_once(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nobody waits for a lease that nobody renews."""
    interrupt(store, monkeypatch, when, OutcomeUnknown("late"))
    with pytest.raises(OutcomeUnknown):
        session.turn().__enter__()
    with session.turn() as turn:
        turn.user("hello")
    assert said(session) == [("hello", "complete")]


@pytest.mark.parametrize("when", ["before", "behind"])
def test_an_awaited_opening_of_unknown_outcome_is_not_waited_for(
    session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async def work() -> None:
        interrupt_awaited(async_turn, monkeypatch, when, OutcomeUnknown("late"))
        with pytest.raises(OutcomeUnknown):
            await AsyncSession(session).turn().__aenter__()
        async with AsyncSession(session).turn() as turn:
            await turn.user("hello")

    asyncio.run(work())
    assert said(session) == [("hello", "complete")]


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_turn_that_is_opened_again_reports_what_was_recovered(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    crashed = session.turn().__enter__()
    crashed.user("go")
    processes.mark_given_up(session_token(store, session))
    turn = session.turn()
    interrupt(store, monkeypatch, when, OutcomeUnknown("late"))
    with pytest.raises(OutcomeUnknown):
        turn.__enter__()
    with turn:
        assert turn.recovered is not None
        assert (turn.recovered.turn_id, turn.recovered.messages) == (crashed.id, 1)


def session_token(store: Store, session: Session) -> str:
    """Return the token of a session's first turn."""
    row = store.backend.read(lambda snapshot: snapshot.turn(number_of(session), 1))
    assert row is not None
    return row.token


def test_an_interrupt_that_cannot_be_cleaned_up_is_still_one(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails meanwhile: the interrupt is raised, with a note, and the turn given up."""
    write = store.backend.write

    def fail(verb: Operation[T]) -> T:
        raise StoreFull("no space")

    def once(verb: Operation[T]) -> T:
        monkeypatch.setattr(store.backend, "write", fail)
        write(verb)
        raise KeyboardInterrupt

    turn = session.turn()
    monkeypatch.setattr(turn, "_write", fail)
    monkeypatch.setattr(store.backend, "write", once)
    with pytest.raises(KeyboardInterrupt) as raised:
        turn.__enter__()
    assert any("no space" in note for note in raised.value.__notes__)
    monkeypatch.setattr(store.backend, "write", write)
    with session.turn() as following:
        assert following.recovered is not None


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
