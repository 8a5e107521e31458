"""A draft: a reply while it is being streamed.

Every delta is added to the reply in memory and to a buffer, which is flushed to the store after at
most 250 ms or 4 KiB. Closing the draft stores the whole reply as one message and removes the
flushed chunks, in one transaction. After a crash, recovery makes the same message of the chunks,
marked partial.

`DraftCore` is shared by the sync `Draft` and its async twin; it never waits for the store.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from decimal import Decimal
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from holdfast import codec, validation
from holdfast.context import GuardedWriter, StoreContext
from holdfast.draft_parts import (
    Delta,
    DraftChunk,
    DraftOpening,
    continues_part,
    delta_bytes,
    merge_deltas,
)
from holdfast.errors import HoldfastError, Invalid, StorageError, TooLarge, TurnLost
from holdfast.ids import message_id
from holdfast.operations import turns
from holdfast.storage.protocol import Operation
from holdfast.values import JSON, Message, Raw, Text, Thinking, ToolCall, Usage

FLUSH_INTERVAL_S: Final = 0.2  # A commit follows; together they stay within the promised 0.25 s.
FLUSH_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = codec.MAX_MESSAGE_BYTES // 2


class TurnRef(msgspec.Struct, frozen=True):
    """The turn a reply belongs to."""

    session: int
    number: int
    id: str
    writer: GuardedWriter


class DraftCore:
    """The reply so far, and the part of it that is not stored yet.

    `closed` is called when the draft is over: it was stored as a message, or was empty.
    """

    def __init__(
        self, context: StoreContext, turn: TurnRef, model: str | None, closed: Callable[[], None]
    ) -> None:
        self.id = message_id()
        self.ended = False
        self._pid = os.getpid()
        self._context = context
        self._turn = turn
        self.writer = turn.writer
        self._opening = DraftOpening(self.id, model, context.clock.micros())
        self._on_closed = closed
        self._guard = threading.Lock()
        self._deltas: list[Delta] = []
        self._buffer: list[Delta] = []
        self._buffer_bytes = 0
        self._total_bytes = 0
        self._part_count = 0
        self._unstored_chunks: dict[int, DraftChunk] = {}
        self._last_chunk = 0
        self._usage: Usage | None = None
        self._cost: Decimal | None = None
        self._error: BaseException | None = None
        self._prepared_close: tuple[Message, Operation[int]] | None = None

    def add(self, delta: Delta) -> bool:
        """Add a delta; true if the buffer is full and must be flushed now."""
        self._raise_if_unusable()
        added = delta_bytes(delta)
        if self._total_bytes + added > MAX_REPLY_BYTES:
            raise TooLarge(
                f"the reply would exceed the limit of {MAX_REPLY_BYTES} bytes; what was written "
                "before is kept."
            )
        continues = bool(self._deltas) and continues_part(self._deltas[-1], delta)
        if not continues and self._part_count == codec.MAX_MESSAGE_PARTS:
            raise TooLarge(
                f"the reply would exceed the limit of {codec.MAX_MESSAGE_PARTS} parts; what was "
                "written before is kept."
            )
        with self._guard:
            self._prepared_close = None
            self._part_count += not continues
            first = not self._buffer
            self._deltas.append(delta)
            self._buffer.append(delta)
            self._buffer_bytes += added
            self._total_bytes += added
            full = self._buffer_bytes >= FLUSH_BYTES
        if first:
            self._context.scheduler.schedule(self, FLUSH_INTERVAL_S)
        return full

    def set_usage(self, usage: Usage | None, cost: Decimal | None) -> None:
        """Set the usage and cost of the reply; the last call wins."""
        self._raise_if_unusable()
        used = None if usage is None else validation.check_usage(usage)
        price = None if cost is None else validation.to_cost(cost)
        with self._guard:
            self._prepared_close = None
            self._usage = self._usage if used is None else used
            self._cost = self._cost if price is None else price

    def _raise_if_unusable(self) -> None:
        self.check_process()
        if self.ended:
            raise Invalid("this reply is closed; open another with turn.stream().")
        error, self._error = self._error, None
        if error is not None:
            raise error

    def check_process(self) -> None:
        """Raise `TurnLost` in a forked child: the reply belongs to the parent process."""
        if os.getpid() != self._pid:
            raise TurnLost(self._turn.id, "belongs to the process that forked this one")

    def take_unstored(self) -> tuple[list[int], Operation[bool]] | None:
        """Return the numbers of all chunks not stored yet, and the operation that stores them."""
        self.check_process()
        with self._guard:
            if self._buffer:
                self._last_chunk += 1
                chunk = DraftChunk(tuple(self._buffer), self._usage, self._cost)
                self._unstored_chunks[self._last_chunk] = chunk
                self._buffer, self._buffer_bytes = [], 0
            if not self._unstored_chunks or self.ended:
                return None
            chunks = sorted(self._unstored_chunks.items())
        operation = turns.flush_draft(self._turn.session, self._turn.number, self._opening, chunks)
        return [number for number, _ in chunks], operation

    def mark_stored(self, numbers: list[int]) -> None:
        """Mark these chunks as stored."""
        with self._guard:
            for number in numbers:
                self._unstored_chunks.pop(number, None)

    def tick(self) -> float | None:
        """Flush in the background; the next write raises its error."""
        taken = self.take_unstored()
        if taken is None:
            return None
        numbers, operation = taken
        try:
            pending = self.writer.submit(operation)
        except HoldfastError as error:
            self._note_failed_flush(error)
            return None

        def done() -> None:
            try:
                pending.outcome()
            except BaseException as error:  # noqa: BLE001 - raised by the next write
                self._note_failed_flush(error)
            else:
                self.mark_stored(numbers)

        pending.when_done(done)
        return None

    def _note_failed_flush(self, error: BaseException) -> None:
        """Keep an error for the next write; schedule another flush if the store may recover."""
        self._error = error
        if isinstance(error, StorageError):
            self._context.scheduler.schedule(self, FLUSH_INTERVAL_S)

    def on_close(self) -> None:
        """Flush what is buffered before the store is closed."""
        self.tick()

    def prepare_close(
        self, status: Literal["complete", "partial"], metadata: dict[str, JSON] | None = None
    ) -> tuple[Message, Operation[int]] | None:
        """Return the finished message and the operation that stores it; `None` if it is empty.

        Called again, after a close that was interrupted and may have succeeded, it returns the
        same.
        """
        self.check_process()
        if self._prepared_close is not None:
            return self._prepared_close
        with self._guard:
            message = Message(
                id=self.id,
                role="assistant",
                parts=merge_deltas(self._deltas),
                created_at=self._context.now(),
                status=status,
                model=self._opening.model,
                usage=self._usage,
                cost=self._cost,
                metadata=metadata or {},
            )
        if not message.parts and message.usage is None:
            return None
        item = codec.encode(message, self._context.now(), limit=None)
        message = msgspec.structs.replace(item.message, turn_id=self._turn.id)
        self._prepared_close = (
            message,
            turns.close_draft(self._turn.session, self._turn.number, item),
        )
        return self._prepared_close

    def finish(self) -> None:
        """Mark the draft as over: it was stored as a message, or was empty."""
        self.ended = True
        self._on_closed()


class Draft:
    """A reply while it is being streamed; closing it stores it as a message.

    `Turn.stream` returns these.
    """

    def __init__(self, state: DraftCore) -> None:
        self._state = state
        self.message: Message | None = None

    @property
    def id(self) -> str:
        """The id of the message that the draft will become."""
        return self._state.id

    def write(self, text: str) -> None:
        """Add text. Blocks while a full buffer is flushed; raises the error of an earlier flush."""
        self._add(Text(validation.check_text(text, "text")))

    def think(self, text: str, *, signature: str | None = None) -> None:
        """Add the model's reasoning."""
        self._add(check_thinking(text, signature))

    def tool_call(self, id: str, name: str, arguments: JSON = None) -> None:
        """Add a finished tool call."""
        self._add(check_call(id, name, arguments))

    def raw(self, part: Raw) -> None:
        """Add data in the provider's own format, to be sent back to it unchanged."""
        self._add(check_raw(part))

    def usage(self, usage: Usage, *, cost: Decimal | None = None) -> None:
        """Set the usage of the reply, and its cost."""
        self._state.set_usage(usage, cost)

    def flush(self) -> None:
        """Store what was written so far, now."""
        taken = self._state.take_unstored()
        if taken is not None:
            numbers, operation = taken
            self._state.writer.write(operation)
            self._state.mark_stored(numbers)

    def close(
        self,
        *,
        status: Literal["complete", "partial"] = "complete",
        metadata: dict[str, JSON] | None = None,
    ) -> Message | None:
        """Store the reply as a message and return it; `None` if nothing was written."""
        if self._state.ended:
            return self.message
        closing = self._state.prepare_close(status, metadata)
        if closing is not None:
            message, operation = closing
            seq = self._state.writer.write(operation)
            self.message = msgspec.structs.replace(message, seq=seq)
        self._state.finish()
        return self.message

    def _add(self, delta: Delta) -> None:
        if self._state.add(delta):
            self.flush()

    def __enter__(self) -> Self:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Store the reply as a message: partial if the block was left by an exception."""
        if error is None:
            self.close()
            return
        try:
            self.close(status="partial")
        except HoldfastError as failed:
            note_failure(error, failed)


def note_failure(error: BaseException, failed: HoldfastError) -> None:
    """Add a note about a failed clean-up to the error that is already propagating."""
    if not isinstance(error, TurnLost):
        error.add_note(f"holdfast: {failed}")


def check_call(id: str, name: str, arguments: JSON) -> ToolCall:
    """Return a validated tool call."""
    # A copy: later changes by the caller must not change the reply.
    copied = copy.deepcopy(validation.check_json(arguments, "arguments"))
    return ToolCall(validation.check_text(id, "id"), validation.check_text(name, "name"), copied)


def check_raw(part: Raw) -> Raw:
    """Return validated foreign data."""
    data = copy.deepcopy(validation.check_json(part.data, "data"))
    return Raw(validation.check_text(part.source, "source"), data)


def check_thinking(text: str, signature: str | None) -> Thinking:
    """Return validated reasoning."""
    if signature is not None:
        validation.check_text(signature, "signature")
    return Thinking(validation.check_text(text, "text"), signature)
