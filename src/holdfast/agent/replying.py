"""One reply of the model, into the history, however many calls it takes.

An attempt streams into a draft, so that what was said is kept whatever happens next. A call that
fails is tried again if that may help. When a stream broke off, what it had said becomes a partial
message at once and the next attempt goes on behind it; or, if the model is to begin anew, it stays
a draft until the next attempt says something, and is then kept as superseded: the history has it,
windows do not. A window that is too long is made smaller, and the call repeated; that is no failed
attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

from holdfast.agent.events import (
    ContextShrunk,
    Event,
    ModelCalled,
    ReplyStored,
    Retrying,
    TextDelta,
    ThinkingDelta,
)
from holdfast.agent.looking import Shown
from holdfast.agent.models.base import (
    Called,
    Delta,
    Kept,
    Model,
    Request,
    Said,
    Spent,
    Stopped,
    StopReason,
    Thought,
)
from holdfast.agent.setup import Setup
from holdfast.agent.understanding import understand
from holdfast.aio.draft import AsyncDraft
from holdfast.aio.handover import unhurried
from holdfast.aio.turn import AsyncTurn
from holdfast.checks import to_cost
from holdfast.draft import note_failure
from holdfast.errors import BadMessage, ContextTooLong, HoldfastError, ModelFailed
from holdfast.ids import message_id
from holdfast.records import JSON, Message, Usage
from holdfast.verbs.windowing import window_of

Emit: TypeAlias = Callable[[Event], Awaitable[None]]
_LONGEST_ID: Final = 256
_LONGEST_REPR: Final = 10_000
_READ: Final = 256 * 1024  # characters of a reply in which calls are looked for
_HANG_UP: Final = 0.5  # seconds
# The library that spaces attempts would print each of them; here they are events.
logging.getLogger("stamina").addHandler(logging.NullHandler())
SUPERSEDED: Final[dict[str, JSON]] = {"hidden": True, "superseded": True}


class Replier:
    """Gets one reply of the model."""

    def __init__(
        self,
        setup: Setup,
        turn: AsyncTurn,
        look: Callable[[], Awaitable[Shown]],
        emit: Emit,
        *,
        round: int,
        idle: float | None,
        seen: set[str],
    ) -> None:
        """Prepare; `look` makes the window, `seen` has the ids of the calls of this turn."""
        self._setup = setup
        self._turn = turn
        self._look = look
        self._emit = emit
        self._round = round
        self._idle = idle
        self._seen = seen
        self._draft: AsyncDraft | None = None
        self._spoke = False  # The draft has something to keep.
        self._stale = False  # The draft is what an attempt left that broke off.
        self._calls: dict[str, None] = {}
        self._said: list[str] = []
        self._continuing = False
        self._storing = asyncio.Lock()  # Held while a delta is stored.
        self.parts: list[Message] = []

    async def reply(self) -> Message:
        """Return the reply as it is stored; `ModelFailed` when no attempt brought one.

        `parts` has everything that this stored, in order.
        """
        import stamina  # noqa: PLC0415 - a quarter of the agent's import time

        retry = self._setup.retry
        tries = stamina.retry_context(
            on=self._pause,
            attempts=retry.attempts,
            timeout=None,
            wait_initial=retry.base,
            wait_max=retry.max,
            wait_jitter=retry.jitter,
        )
        try:
            async for attempt in tries:
                with attempt:
                    try:
                        return await self._attempt(attempt.num)
                    except ModelFailed as error:
                        await self._failed(error, attempt.num, attempt.next_wait)
                        raise
        except BaseException as error:
            await unhurried(self._keep(error))
            raise
        raise AssertionError("stamina gives an attempt or raises")

    # ----------------------------------------------------------------------------- when it fails

    def _pause(self, error: Exception) -> bool | float:
        """Return whether to try again, and after how long if the provider asked for a pause."""
        if not isinstance(error, ModelFailed) or not error.retryable:
            return False
        after = error.retry_after
        if after is None:
            return True
        return after if after <= self._setup.retry.longest else False

    async def _failed(self, error: ModelFailed, attempt: int, wait: float) -> None:
        """Keep what was said for the next attempt, and tell of it, if there is one."""
        attempts = self._setup.retry.attempts
        last = attempt >= attempts or self._pause(error) is False
        if not last:
            await self._put_aside()
            pause = wait if error.retry_after is None else error.retry_after
            await self._emit(
                Retrying(
                    attempt=attempt,
                    attempts=attempts,
                    wait=pause,
                    error=str(error),
                    status=error.status,
                )
            )

    async def _put_aside(self) -> None:
        """Make room for the next attempt: it goes on behind what was said, or begins anew."""
        if self._spoke and self._setup.retry.broken == "continue" and not self._calls:
            await self._keep_partial()
            self._continuing = True
        elif self._draft is not None:
            await self._draft.flush()
            self._stale = True

    async def _keep(self, error: BaseException) -> None:
        """Keep what there is of a reply that will not be finished; whatever stopped it is told."""
        async with self._storing:  # The reader may have been cancelled in the middle of a write.
            if self._draft is not None:
                await self._keep_draft(error)

    async def _keep_draft(self, error: BaseException) -> None:
        try:
            if self._spoke:
                await self._keep_partial()
            else:  # Thoughts and what they cost: for the record, not for the model.
                await self._supersede()
        except HoldfastError as failed:
            note_failure(error, failed)  # The end of the turn tries again.

    async def _keep_partial(self) -> None:
        """Make what was said so far a message: marked as cut off."""
        if self._draft is not None:
            await self._store(await self._draft.close(status="partial"))
        self._begin_anew()

    async def _supersede(self) -> None:
        """Put away what an attempt left that broke off: the model has begun anew."""
        if self._draft is not None:
            left = await self._draft.close(status="partial", metadata=SUPERSEDED)
            if left is not None:
                self.parts.append(left)
                await self._emit(ReplyStored(left, superseded=True))
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._draft = None
        self._spoke = self._stale = False
        self._calls.clear()
        self._said.clear()

    async def _store(self, message: Message | None) -> None:
        if message is not None:
            self.parts.append(message)
            await self._emit(ReplyStored(message))

    # ------------------------------------------------------------------------------- one attempt

    async def _attempt(self, number: int) -> Message:
        shown = await self._look()
        while True:
            await self._emit(
                ModelCalled(
                    round=self._round,
                    attempt=number,
                    messages=len(shown.window),
                    tokens=shown.window.tokens,
                    left_out=shown.window.left_out,
                    notes=shown.window.notes,
                )
            )
            try:
                return await self._hear(shown)
            except ContextTooLong as error:
                await self._put_aside()
                shown = await self._smaller(shown, error)

    async def _smaller(self, shown: Shown, error: ContextTooLong) -> Shown:
        """Make the window smaller than the one that was refused."""
        setup, sent = self._setup, shown.window.tokens
        after = setup.budgets.shrink(setup.model, shown.room, sent, error.limit)
        smaller = await self._look()
        if smaller.window.tokens >= sent:
            raise error
        await self._emit(ContextShrunk(shown.room.tokens, after))
        return smaller

    async def _hear(self, shown: Shown) -> Message:
        setup = self._setup
        request = Request(
            window=shown.window,
            tools=() if setup.model.tools == "text" else setup.specs,
            max_output=shown.room.reply,
            continuing=self._continuing,
        )
        reason = await self._read(request)
        if reason is None:
            raise ModelFailed("the stream ended before the reply did", retryable=True)
        await self._read_calls()
        if not self._spoke or self._draft is None:
            raise _nothing_said(reason)
        cut = reason == "length" and not self._calls
        message = await self._draft.close(status="partial" if cut else "complete")
        if message is None:
            raise _nothing_said(reason)
        await self._store(message)
        self._begin_anew()
        return message

    async def _read(self, request: Request) -> StopReason | None:
        """Read the model's stream to its end, storing it; return why it stopped, if it said so.

        A task of its own reads: a provider that ignores its cancellation cannot hold up the turn.
        """
        silence = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(self._read_all(request, silence))
        try:
            await asyncio.wait({reading, silence}, return_when=asyncio.FIRST_COMPLETED)
            outcome = reading.result() if reading.done() else None
            if outcome is None and silence.done():
                raise ModelFailed(f"the model said nothing for {self._idle:g} s", retryable=True)
        finally:
            silence.cancel()
            await release(reading)
        if isinstance(outcome, SystemExit):
            raise outcome
        return outcome

    async def _read_all(
        self, request: Request, silence: asyncio.Future[None]
    ) -> StopReason | SystemExit | None:
        """Read, store and emit each delta; one that comes after a cancellation is discarded."""
        reason: StopReason | None = None
        task = asyncio.current_task()
        async with aclosing(stream_of(self._setup.model, request)) as stream:
            while True:
                try:
                    delta = await self._next(stream, silence)
                except asyncio.CancelledError:
                    if task is not None and task.cancelling():
                        raise
                    message = "the call was cancelled on its way"
                    raise ModelFailed(message, retryable=True) from None
                except SystemExit as error:  # Raised here it would end the event loop.
                    return error
                if delta is None or silence.done() or (task is not None and task.cancelling()):
                    return reason
                if isinstance(delta, Stopped):
                    reason = delta.reason
                else:
                    async with self._storing:
                        await self._take(delta)

    async def _next(
        self, stream: AsyncGenerator[Delta, None], silence: asyncio.Future[None]
    ) -> Delta | None:
        """Wait for the next delta; `silence` is set when none came in time."""
        if self._idle is None:
            return await anext(stream, None)
        timer = asyncio.get_running_loop().call_later(self._idle, _set, silence)
        try:
            return await anext(stream, None)
        finally:
            timer.cancel()

    async def _take(self, delta: Delta) -> None:
        """Store a delta, then show it."""
        if _is_nothing(delta):
            return
        draft = await self._speaking()
        match delta:
            case Said(text):
                self._spoke = True
                self._said.append(text)
                await draft.write(text)
                await self._emit(TextDelta(text))
            case Thought(text, signature):
                await draft.think(text, signature=signature)
                if text:
                    await self._emit(ThinkingDelta(text))
            case Called(id, name, arguments):
                await self._call(draft, id, name, arguments)
            case Kept(part):
                await draft.raw(part)
            case Spent(usage):
                with suppress(BadMessage):  # Numbers that nobody can have used are left out.
                    await draft.usage(usage, cost=self._cost(usage))

    async def _speaking(self) -> AsyncDraft:
        """Return the draft, a new one if the last one broke off."""
        if self._stale:
            await self._supersede()
        if self._draft is None:
            self._draft = self._turn.stream(model=self._setup.model.name)
        return self._draft

    async def _call(self, draft: AsyncDraft, id: str, name: str, arguments: JSON) -> None:
        # The ledger of a turn knows a call by its id: one that came before gets another.
        if not 0 < len(id.encode("utf-8", "surrogatepass")) <= _LONGEST_ID or id in self._seen:
            id = f"call_{message_id()}"
        self._spoke = True
        self._seen.add(id)
        self._calls[id] = None
        try:
            await draft.tool_call(id, name, arguments)
        except BadMessage:  # No JSON that anybody could keep: then as text, for the tool to refuse.
            await draft.tool_call(id, name, repr(arguments)[:_LONGEST_REPR])

    async def _read_calls(self) -> None:
        """Find calls that the model wrote as text."""
        setup = self._setup
        if self._calls or not self._said or setup.model.tools not in {"text", "lenient"}:
            return
        said = "".join(self._said)
        if len(said) > _READ:
            return
        found = understand(said, [spec.name for spec in setup.specs])
        # One that can make real calls may well show somebody what a call looks like.
        if setup.model.tools == "lenient" and found.text.strip():
            return
        for call in found.calls:
            await self._call(await self._speaking(), "", call.name, call.arguments)

    def _cost(self, usage: Usage) -> Decimal | None:
        """Return what a reply costs; what cannot be told, or is nonsense, is not known."""
        prices = self._setup.prices
        if prices is None:
            return None
        try:
            cost = prices(self._setup.model.name, usage)
            return None if cost is None else to_cost(cost)
        except Exception:  # noqa: BLE001 - a price list must not cost a reply
            return None


def _is_nothing(delta: Delta) -> bool:
    if isinstance(delta, Said):
        return not delta.text
    return isinstance(delta, Thought) and not delta.text and delta.signature is None


def _nothing_said(reason: StopReason) -> ModelFailed:
    """Return what a reply without words and calls is; one that ran out of room would again."""
    if reason == "length":
        return ModelFailed("the model used all its room before it said anything; give it more")
    if reason == "refused":
        return ModelFailed("the model refused to answer")
    return ModelFailed("the model gave an empty reply", retryable=True)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ------------------------------------------------------------------------- without a history


async def ask(model: Model, text: str, *, max_output: int, seconds: float) -> str:
    """Return the model's answer; `ModelFailed` if there is none in time, or it is cut off."""
    request = Request(window=window_of(model.provider, text), max_output=max_output)
    said: list[str] = []
    whole = False
    try:
        async with asyncio.timeout(seconds), aclosing(stream_of(model, request)) as stream:
            async for delta in stream:
                if isinstance(delta, Said):
                    said.append(delta.text)
                whole = whole or (isinstance(delta, Stopped) and delta.reason != "length")
    except TimeoutError:
        raise ModelFailed(f"no answer within {seconds:g} s", retryable=True) from None
    answer = "".join(said).strip()
    if not whole or not answer:
        raise ModelFailed("the answer was empty or cut off", retryable=True)
    return answer


def stream_of(model: Model, request: Request) -> AsyncGenerator[Delta, None]:
    """Call a model; what comes back can be closed, as every generator can."""
    return cast("AsyncGenerator[Delta, None]", model.stream(request))


# ---------------------------------------------------------------------------------- detaching

_detached: set[asyncio.Task[Any]] = set()  # Keeps them from being garbage-collected.


async def release(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait a moment for it; one still running then is detached.

    The result of a detached task is discarded.
    """
    task.cancel()
    _detached.add(task)
    task.add_done_callback(_discard)
    await asyncio.wait([task], timeout=_HANG_UP)


def _discard(task: asyncio.Task[Any]) -> None:
    _detached.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, so that asyncio does not log it.
