"""One reply of the model, stored as it streams, with retries.

Each attempt streams into a draft, so that text that has arrived survives any failure. A failed call
is retried if the error is retryable. When a stream breaks off, its text becomes a partial message
and the next attempt continues after it. With `Retry.broken="anew"` it stays a draft until the next
attempt produces output and is then stored as superseded: in the history, but in no window. When the
window is too long, it is made smaller and the call repeated, which does not count as an attempt.

`complete_once` calls a model outside of any history, for titles and summaries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

from holdfast.agent.config import AgentConfig
from holdfast.agent.events import (
    ContextShrunk,
    Event,
    ModelCalled,
    ReplyStored,
    Retrying,
    TextDelta,
    ThinkingDelta,
)
from holdfast.agent.models.protocol import (
    MAX_CALL_NAME_CHARS,
    Delta,
    Model,
    ModelRequest,
    ReplyEnd,
    ReplyRaw,
    ReplyText,
    ReplyThinking,
    ReplyToolCall,
    ReplyUsage,
    StopReason,
)
from holdfast.agent.prompt import Prompt
from holdfast.agent.text_tool_parser import parse_reply
from holdfast.aio.completion_queue import shielded
from holdfast.aio.draft import AsyncDraft
from holdfast.aio.turn import AsyncTurn
from holdfast.draft import note_failure
from holdfast.errors import BadMessage, ContextTooLong, HoldfastError, ModelFailed
from holdfast.ids import message_id
from holdfast.validation import to_cost
from holdfast.values import JSON, Message, Usage
from holdfast.windows.build import window_of

Emit: TypeAlias = Callable[[Event], Awaitable[None]]
_MAX_ID_BYTES: Final = 256
_MAX_REPR_CHARS: Final = 10_000
_MAX_PARSED_CHARS: Final = 256 * 1024  # characters; calls are not searched for in longer replies
_CANCEL_GRACE_S: Final = 0.5  # seconds
# By default stamina logs every retry; here retries are events.
logging.getLogger("stamina").addHandler(logging.NullHandler())
SUPERSEDED_METADATA: Final[dict[str, JSON]] = {"hidden": True, "superseded": True}


class Completion:
    """Requests one reply from the model and stores it."""

    def __init__(
        self,
        config: AgentConfig,
        turn: AsyncTurn,
        build_prompt: Callable[[], Awaitable[Prompt]],
        emit: Emit,
        *,
        round: int,
        idle: float | None,
        call_ids: set[str],
    ) -> None:
        """`build_prompt` returns the prompt; `call_ids` has the ids of this turn's tool calls."""
        self._config = config
        self._turn = turn
        self._build_prompt = build_prompt
        self._emit = emit
        self._round = round
        self._idle = idle
        self._call_ids = call_ids
        self._draft: AsyncDraft | None = None
        self._has_content = False  # The draft contains text or a tool call.
        self._stale = False  # The draft belongs to an attempt that broke off.
        self._calls: dict[str, None] = {}
        self._text_chunks: list[str] = []
        self._continuing = False
        self._store_lock = asyncio.Lock()  # Held while a delta is stored.
        self.parts: list[Message] = []

    async def reply(self) -> Message:
        """Return the stored reply; raise `ModelFailed` if every attempt failed.

        `parts` then contains every message that was stored, in order.
        """
        import stamina  # noqa: PLC0415 - a quarter of the agent's import time

        retry = self._config.retry
        tries = stamina.retry_context(
            on=self._retry_delay,
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
                        await self._handle_failure(error, attempt.num, attempt.next_wait)
                        raise
        except BaseException as error:
            await shielded(self._keep_unfinished(error))
            raise
        raise AssertionError("stamina yields an attempt or raises")

    # ----------------------------------------------------------------------------- when it fails

    def _retry_delay(self, error: Exception) -> bool | float:
        """Return whether to retry, or the delay in seconds that the provider requested."""
        if not isinstance(error, ModelFailed) or not error.retryable:
            return False
        after = error.retry_after
        if after is None:
            return True
        return after if after <= self._config.retry.longest else False

    async def _handle_failure(self, error: ModelFailed, attempt: int, wait: float) -> None:
        """Unless this was the last attempt, prepare the next one and emit `Retrying`."""
        attempts = self._config.retry.attempts
        last = attempt >= attempts or self._retry_delay(error) is False
        if not last:
            await self._prepare_retry()
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

    async def _prepare_retry(self) -> None:
        """Prepare the next attempt: it continues after the partial text, or starts over."""
        if self._has_content and self._config.retry.broken == "continue" and not self._calls:
            await self._keep_partial()
            self._continuing = True
        elif self._draft is not None:
            await self._draft.flush()
            self._stale = True

    async def _keep_unfinished(self, error: BaseException) -> None:
        """Store the unfinished reply; a failure to do so is added to `error` as a note."""
        async with self._store_lock:  # The reader may have been cancelled in the middle of a write.
            if self._draft is not None:
                await self._keep_draft(error)

    async def _keep_draft(self, error: BaseException) -> None:
        try:
            if self._has_content:
                await self._keep_partial()
            else:  # Only thinking and usage: kept in the history, not sent to the model.
                await self._supersede()
        except HoldfastError as failed:
            note_failure(error, failed)  # The end of the turn tries again.

    async def _keep_partial(self) -> None:
        """Store the draft as a partial message."""
        if self._draft is not None:
            await self._store(await self._draft.close(status="partial"))
        self._reset()

    async def _supersede(self) -> None:
        """Store the draft of a broken attempt as superseded: the model started over."""
        if self._draft is not None:
            message = await self._draft.close(status="partial", metadata=SUPERSEDED_METADATA)
            if message is not None:
                self.parts.append(message)
                await self._emit(ReplyStored(message, superseded=True))
        self._reset()

    def _reset(self) -> None:
        self._draft = None
        self._has_content = self._stale = False
        self._calls.clear()
        self._text_chunks.clear()

    async def _store(self, message: Message | None) -> None:
        if message is not None:
            self.parts.append(message)
            await self._emit(ReplyStored(message))

    # ------------------------------------------------------------------------------- one attempt

    async def _attempt(self, number: int) -> Message:
        prompt = await self._build_prompt()
        while True:
            await self._emit(
                ModelCalled(
                    round=self._round,
                    attempt=number,
                    messages=len(prompt.window),
                    tokens=prompt.window.tokens,
                    left_out=prompt.window.left_out,
                    notes=prompt.window.notes,
                )
            )
            try:
                return await self._call_model(prompt)
            except ContextTooLong as error:
                await self._prepare_retry()
                prompt = await self._shrink_prompt(prompt, error)

    async def _shrink_prompt(self, prompt: Prompt, error: ContextTooLong) -> Prompt:
        """Build a smaller prompt than the one the model refused; raise `error` if none is."""
        config, sent = self._config, prompt.window.tokens
        after = config.budgets.shrink(config.model, prompt.budget, sent, error.limit)
        smaller = await self._build_prompt()
        if smaller.window.tokens >= sent:
            raise error
        await self._emit(ContextShrunk(prompt.budget.tokens, after))
        return smaller

    async def _call_model(self, prompt: Prompt) -> Message:
        config = self._config
        request = ModelRequest(
            window=prompt.window,
            tools=() if config.model.tools == "text" else config.specs,
            max_output=prompt.budget.reply_tokens,
            continuing=self._continuing,
        )
        reason = await self._read_stream(request)
        if reason is None:
            raise ModelFailed("the stream ended before the reply did", retryable=True)
        await self._parse_text_calls()
        if not self._has_content or self._draft is None:
            raise _empty_reply_error(reason)
        cut = reason == "length" and not self._calls
        message = await self._draft.close(status="partial" if cut else "complete")
        if message is None:
            raise _empty_reply_error(reason)
        await self._store(message)
        self._reset()
        return message

    async def _read_stream(self, request: ModelRequest) -> StopReason | None:
        """Read and store the model's stream to its end; return its stop reason, if it sent one.

        A separate task reads the stream, so that a provider that ignores cancellation cannot block
        the turn.
        """
        silence = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(self._store_stream(request, silence))
        try:
            await asyncio.wait({reading, silence}, return_when=asyncio.FIRST_COMPLETED)
            outcome = reading.result() if reading.done() else None
            if outcome is None and silence.done():
                raise ModelFailed(f"the model sent nothing for {self._idle:g} s", retryable=True)
        finally:
            silence.cancel()
            await cancel_and_detach(reading)
        if isinstance(outcome, SystemExit):
            raise outcome
        return outcome

    async def _store_stream(
        self, request: ModelRequest, silence: asyncio.Future[None]
    ) -> StopReason | SystemExit | None:
        """Read, store and emit each delta; discard what arrives after cancellation."""
        reason: StopReason | None = None
        task = asyncio.current_task()
        async with aclosing(stream_of(self._config.model, request)) as stream:
            while True:
                try:
                    delta = await self._next_delta(stream, silence)
                except asyncio.CancelledError:
                    if task is not None and task.cancelling():
                        raise
                    message = "the call was cancelled by the provider's library"
                    raise ModelFailed(message, retryable=True) from None
                except SystemExit as error:  # Raised here it would end the event loop.
                    return error
                if delta is None or silence.done() or (task is not None and task.cancelling()):
                    return reason
                if isinstance(delta, ReplyEnd):
                    reason = delta.reason
                else:
                    async with self._store_lock:
                        await self._store_delta(delta)

    async def _next_delta(
        self, stream: AsyncGenerator[Delta, None], silence: asyncio.Future[None]
    ) -> Delta | None:
        """Return the next delta, `None` at the end; set `silence` after `idle` seconds."""
        if self._idle is None:
            return await anext(stream, None)
        timer = asyncio.get_running_loop().call_later(self._idle, _set, silence)
        try:
            return await anext(stream, None)
        finally:
            timer.cancel()

    async def _store_delta(self, delta: Delta) -> None:
        """Store a delta, then emit it."""
        if _is_empty(delta):
            return
        draft = await self._open_draft()
        match delta:
            case ReplyText(text):
                self._has_content = True
                self._text_chunks.append(text)
                await draft.write(text)
                await self._emit(TextDelta(text))
            case ReplyThinking(text, signature):
                await draft.think(text, signature=signature)
                if text:
                    await self._emit(ThinkingDelta(text))
            case ReplyToolCall(id, name, arguments):
                await self._add_call(draft, id, name, arguments)
            case ReplyRaw(part):
                await draft.raw(part)
            case ReplyUsage(usage):
                with suppress(BadMessage):  # Impossible numbers are not stored.
                    await draft.usage(usage, cost=self._cost(usage))

    async def _open_draft(self) -> AsyncDraft:
        """Return the open draft, creating one if there is none or it is stale."""
        if self._stale:
            await self._supersede()
        if self._draft is None:
            self._draft = self._turn.stream(model=self._config.model.name)
        return self._draft

    async def _add_call(self, draft: AsyncDraft, id: str, name: str, arguments: JSON) -> None:
        # The turn's ledger identifies calls by id, so a repeated or invalid id is replaced.
        if (
            not 0 < len(id.encode("utf-8", "surrogatepass")) <= _MAX_ID_BYTES
            or id in self._call_ids
        ):
            id = f"call_{message_id()}"
        name = name[:MAX_CALL_NAME_CHARS]
        self._has_content = True
        self._call_ids.add(id)
        self._calls[id] = None
        try:
            await draft.tool_call(id, name, arguments)
        except BadMessage:  # Not storable as JSON: stored as text, which the tool will reject.
            await draft.tool_call(id, name, repr(arguments)[:_MAX_REPR_CHARS])

    async def _parse_text_calls(self) -> None:
        """Parse tool calls that the model wrote as text, and add them to the draft."""
        config = self._config
        if self._calls or not self._text_chunks or config.model.tools not in {"text", "lenient"}:
            return
        text = "".join(self._text_chunks)
        if len(text) > _MAX_PARSED_CHARS:
            return
        found = parse_reply(text, [spec.name for spec in config.specs])
        # A model with native tool calling may be quoting a call as an example.
        if config.model.tools == "lenient" and found.text.strip():
            return
        for call in found.calls:
            await self._add_call(await self._open_draft(), "", call.name, call.arguments)

    def _cost(self, usage: Usage) -> Decimal | None:
        """Return the cost of a reply; `None` if it is unknown or the price list is invalid."""
        prices = self._config.prices
        if prices is None:
            return None
        try:
            cost = prices(self._config.model.name, usage)
            return None if cost is None else to_cost(cost)
        except Exception:  # noqa: BLE001 - a broken price list must not lose the reply
            return None


def _is_empty(delta: Delta) -> bool:
    if isinstance(delta, ReplyText):
        return not delta.text
    return isinstance(delta, ReplyThinking) and not delta.text and delta.signature is None


def _empty_reply_error(reason: StopReason) -> ModelFailed:
    """Return the error for an empty reply; it is retryable unless it would recur."""
    if reason == "length":
        return ModelFailed(
            "the model reached its output limit before it produced an answer; raise max_output"
        )
    if reason == "refused":
        return ModelFailed("the model refused to answer")
    return ModelFailed("the model returned an empty reply", retryable=True)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ------------------------------------------------------------------------ one-shot completion


async def complete_once(model: Model, text: str, *, max_output: int, seconds: float) -> str:
    """Return the model's answer; raise `ModelFailed` if it is late, empty or cut off."""
    request = ModelRequest(window=window_of(model.provider, text), max_output=max_output)
    chunks: list[str] = []
    whole = False
    try:
        async with asyncio.timeout(seconds), aclosing(stream_of(model, request)) as stream:
            async for delta in stream:
                if isinstance(delta, ReplyText):
                    chunks.append(delta.text)
                whole = whole or (isinstance(delta, ReplyEnd) and delta.reason != "length")
    except TimeoutError:
        raise ModelFailed(f"no answer within {seconds:g} s", retryable=True) from None
    answer = "".join(chunks).strip()
    if not whole or not answer:
        raise ModelFailed("the answer was empty or cut off", retryable=True)
    return answer


def stream_of(model: Model, request: ModelRequest) -> AsyncGenerator[Delta, None]:
    """Call a model; return its stream as a generator, which can be closed."""
    return cast("AsyncGenerator[Delta, None]", model.stream(request))


# ---------------------------------------------------------------------------------- detaching

_detached: set[asyncio.Task[Any]] = set()  # Keeps them from being garbage-collected.


async def cancel_and_detach(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait up to 0.5 s for it to end; after that it is detached.

    The result of a detached task is discarded.
    """
    task.cancel()
    _detached.add(task)
    task.add_done_callback(_discard)
    await asyncio.wait([task], timeout=_CANCEL_GRACE_S)


def _discard(task: asyncio.Task[Any]) -> None:
    _detached.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, so that asyncio does not log it.
