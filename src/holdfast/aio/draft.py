"""The async twin of `holdfast.draft`."""

from __future__ import annotations

from decimal import Decimal
from types import TracebackType
from typing import Literal, Self

import msgspec

from holdfast import validation
from holdfast.aio.completion_queue import run_write, shielded
from holdfast.draft import DraftCore, check_call, check_raw, check_thinking, note_failure
from holdfast.draft_parts import Delta
from holdfast.errors import HoldfastError
from holdfast.storage.protocol import Operation
from holdfast.values import JSON, Message, Raw, Text, Usage


class AsyncDraft:
    """The async twin of `Draft`; `AsyncTurn.stream` returns these."""

    def __init__(self, state: DraftCore) -> None:
        self._state = state
        self.message: Message | None = None

    @property
    def id(self) -> str:
        """The id of the message that the draft will become."""
        return self._state.id

    async def write(self, text: str) -> None:
        """Add text; see `Draft.write`."""
        await self._add(Text(validation.check_text(text, "text")))

    async def think(self, text: str, *, signature: str | None = None) -> None:
        """Add the model's reasoning."""
        await self._add(check_thinking(text, signature))

    async def tool_call(self, id: str, name: str, arguments: JSON = None) -> None:
        """Add a finished tool call."""
        await self._add(check_call(id, name, arguments))

    async def raw(self, part: Raw) -> None:
        """Add data in the provider's own format, to be sent back to it unchanged."""
        await self._add(check_raw(part))

    async def usage(self, usage: Usage, *, cost: Decimal | None = None) -> None:
        """Set the usage of the reply, and its cost."""
        self._state.set_usage(usage, cost)

    async def flush(self) -> None:
        """Store what was written so far, now."""
        taken = self._state.take_unstored()
        if taken is not None:
            numbers, operation = taken
            await run_write(self._state.writer, operation)
            self._state.mark_stored(numbers)

    async def close(
        self,
        *,
        status: Literal["complete", "partial"] = "complete",
        metadata: dict[str, JSON] | None = None,
    ) -> Message | None:
        """Store the reply as a message and return it; `None` if nothing was written."""
        if self._state.ended:
            return self.message
        closing = self._state.prepare_close(status, metadata)
        # Not interrupted once started: a stored reply must not be taken for one that is not.
        return await shielded(self._close(closing))

    async def _close(self, closing: tuple[Message, Operation[int]] | None) -> Message | None:
        if closing is not None:
            message, operation = closing
            seq = await run_write(self._state.writer, operation)
            self.message = msgspec.structs.replace(message, seq=seq)
        self._state.finish()
        return self.message

    async def _add(self, delta: Delta) -> None:
        if self._state.add(delta):
            await self.flush()

    async def __aenter__(self) -> Self:
        """Return itself, to be closed at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Store the reply as a message: partial if the block was left by an exception."""
        if error is None:
            await self.close()
            return
        try:
            await shielded(self.close(status="partial"))
        except HoldfastError as failed:
            note_failure(error, failed)
