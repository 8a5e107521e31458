"""The async twin of `holdfast.turn`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from holdfast import validation
from holdfast.aio.completion_queue import run_write, shielded
from holdfast.aio.draft import AsyncDraft
from holdfast.draft import note_failure
from holdfast.errors import HoldfastError, OutcomeUnknown, SessionBusy
from holdfast.operations import turns
from holdfast.turn import TurnCore, assistant_message, ending, messages_from
from holdfast.values import (
    JSON,
    Content,
    File,
    Message,
    MessageFields,
    Provider,
    Raw,
    Record,
    Recovered,
    Text,
    ToolCall,
)

_MIN_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.25


class AsyncTurn:
    """The async twin of `Turn`; `AsyncSession.turn` returns it for an `async with` block."""

    def __init__(self, state: TurnCore, *, wait: float) -> None:
        self._state = state
        self._wait = validation.check_seconds(wait, "wait")
        self._draft: AsyncDraft | None = None
        self.recovered: Recovered | None = None

    @property
    def id(self) -> str:
        """The turn's id: its session's id and its number within the session."""
        return self._state.id

    async def user(self, content: Content, **fields: Unpack[MessageFields]) -> Message:
        """Store a user message."""
        return await self.add(Message.user(content, **fields))

    async def assistant(
        self,
        content: Content = (),
        *,
        tool_calls: Sequence[ToolCall] = (),
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Store a reply of the model."""
        model = self._state.claim.model
        return await self.add(assistant_message(content, tool_calls, model, fields))

    async def tool(
        self,
        call_id: str,
        content: str | Sequence[Text | File | Raw],
        *,
        error: bool = False,
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Store the result of a tool call."""
        return await self.add(Message.tool(call_id, content, error=error, **fields))

    async def add(self, message: Message) -> Message:
        """Store any message; return it as stored."""
        return await run_write(self._state.writer, self._state.add(message))

    async def record(
        self,
        kind: str,
        data: JSON,
        *,
        key: str | None = None,
        files: dict[str, File] | None = None,
    ) -> Record:
        """Store a record behind the newest message; return it as stored."""
        operation = self._state.record(kind, data, key=key, files=files)
        return await run_write(self._state.writer, operation)

    async def add_from(self, provider: Provider, item: Mapping[str, JSON]) -> Message:
        """Store a provider's message, or a whole reply, as it is."""
        return await self.add(*messages_from(provider, [item]))

    async def tool_started(self, call_id: str) -> None:
        """Record that a tool starts, before it can have an effect."""
        await run_write(self._state.writer, self._state.start_tool(call_id))

    async def take_queued(self) -> list[Message]:
        """Move queued input into the history and return it, in order."""
        taken = await run_write(self._state.writer, self._state.take_queued())
        return [self._state.with_turn_id(message) for message in taken]

    def stream(self, *, model: str | None = None) -> AsyncDraft:
        """Start a streamed reply in an `async with` block."""
        self._draft = AsyncDraft(self._state.new_draft(model))
        return self._draft

    async def cancel(self, reason: str | None = None) -> None:
        """End the turn as cancelled, keeping what was written."""
        await self._end("cancelled", reason)

    async def fail(self, error: BaseException | str) -> None:
        """End the turn as failed, keeping what was written."""
        await self._end("failed", error if isinstance(error, str) else ending(error)[1])

    async def _end(self, state: turns.Ending, error: str | None) -> None:
        self._state.check()
        failed = await self._close_reply()
        await run_write(self._state.writer, self._state.end(state, error))
        self._state.ended = True
        if failed is not None:
            raise failed

    async def _close_reply(self) -> HoldfastError | None:
        """Close an open reply as partial; return the error if that fails."""
        if self._state.draft is None or self._draft is None:
            return None
        try:
            await self._draft.close(status="partial")
        except HoldfastError as failed:
            return failed
        return None

    async def _open(self) -> turns.OpenedTurn:
        deadline = time.monotonic() + self._wait
        pause = _MIN_PAUSE_S
        while True:
            try:
                opened = await run_write(self._state.writer, self._state.opening)
            except SessionBusy:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise
                await asyncio.sleep(min(remaining, pause))
                pause = min(pause * 1.5, _MAX_PAUSE_S)
            else:
                if opened is not None:
                    return opened

    async def __aenter__(self) -> Self:
        """Open the turn, first recovering one that a crash left open."""
        self._state.on_opening()
        try:
            opened = await self._open()
            self._state.on_opened(opened)
            self.recovered = opened.recovered
            return self  # From inside: an interrupt just before it is handled as well.
        except OutcomeUnknown:
            self._state.release()
            raise
        except HoldfastError:
            raise
        except BaseException as error:
            # Interrupted, perhaps after the turn was opened: no code would ever end it.
            self._state.release()
            await self._cancel_unheld(error)
            raise

    async def _cancel_unheld(self, error: BaseException) -> None:
        operation = turns.cancel_unheld(self._state.claim)
        try:
            if isinstance(error, GeneratorExit):  # The event loop has ended: nothing is awaited.
                self._state.writer.submit(operation)
            else:
                await shielded(run_write(self._state.writer, operation))
        except HoldfastError as failed:
            note_failure(error, failed)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Seal the turn, or record the exception and let it propagate."""
        if self._state.ended:
            return
        try:
            await shielded(self._end(*ending(error)))
        except HoldfastError as failed:
            if error is None:
                raise
            note_failure(error, failed)
        finally:
            self._state.release()
