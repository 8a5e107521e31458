"""A turn: one unit of work, from an input to its end.

It holds the session's lease from `with` to the end of the block. Each call is durable when it
returns, and raises `TurnLost` if another holder has taken the session over. Leaving the block seals
the turn; leaving it by an exception keeps everything written, records the error and re-raises it.

`TurnCore` is shared by the sync `Turn` and its async twin; it never waits for the store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

import msgspec

from holdfast import codec, processes, validation
from holdfast.context import GuardedWriter, StoreContext
from holdfast.draft import Draft, DraftCore, TurnRef, note_failure
from holdfast.errors import (
    HoldfastError,
    Invalid,
    OutcomeUnknown,
    SessionBusy,
    TurnLost,
    import_errors,
)
from holdfast.ids import message_id, turn_id
from holdfast.operations import append, queue, turns
from holdfast.processes import this_process
from holdfast.storage.protocol import Operation
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

_MAX_ERROR_CHARS: Final = 4096
_RETRY_INTERVAL_S: Final = 0.5


class TurnCore:
    """One turn of one session, as its holder sees it; also the task that renews its lease."""

    def __init__(
        self,
        context: StoreContext,
        session: int,
        session_id: str,
        *,
        model: str | None,
        run_id: str | None,
    ) -> None:
        self.context = context
        self.writer = GuardedWriter(context, session_id)
        self.session = session
        self.number = 0
        self.ended = False
        self.draft: DraftCore | None = None
        self._session_id = session_id
        self._model = model
        self._pid = os.getpid()
        for field, value in (("model", model), ("run_id", run_id)):
            if value is not None:
                validation.check_name(value, field)
        self.claim = turns.TurnClaim(
            session=session,
            token=message_id(),
            holder=this_process(),
            lease=context.backend.lease,
            run_id=run_id,
            model=model,
        )
        # One operation for all attempts: it remembers what it recovered.
        self.opening = turns.open_turn(self.claim)

    @property
    def id(self) -> str:
        """The turn's id."""
        return turn_id(self._session_id, self.number)

    def on_opening(self) -> None:
        """Claim the turn, again after an attempt that failed; raise `Invalid` if it was opened."""
        if self.number:
            raise Invalid("a turn is used once; open another with session.turn().")
        self.ended = False
        processes.mark_held(self.claim.token)

    def on_opened(self, opened: turns.OpenedTurn) -> None:
        """Set the number of the opened turn, and start renewing its lease."""
        self.number = opened.number
        self.context.scheduler.schedule(self, self.claim.lease / 3)

    def tick(self) -> float | None:
        """Renew the lease in the background; return the seconds until the next renewal."""
        if self.ended or os.getpid() != self._pid:
            return None
        operation = turns.renew(self.session, self.number, self.claim.lease)
        try:
            self.context.backend.submit(operation)
        except HoldfastError:
            return None
        return self.claim.lease / 3

    def on_close(self) -> None:
        """Do nothing: the lease of a turn that is open when the store closes expires."""

    def check(self) -> None:
        """Raise if the turn is not open, or belongs to the parent of a forked process."""
        if not self.number:
            raise Invalid("this turn is not open; use it as `with session.turn() as turn:`.")
        if os.getpid() != self._pid:
            raise TurnLost(self.id, "belongs to the process that forked this one")

    def add(self, message: Message) -> Operation[Message]:
        """Return the operation that stores a message of this turn."""
        self.check()
        item = codec.encode(message, self.context.now())
        return append.append_in_turn(self.session, item, self.number)

    def record(
        self, kind: str, data: JSON, *, key: str | None, files: dict[str, File] | None
    ) -> Operation[Record]:
        """Return the operation that stores a record in this turn."""
        self.check()
        record = Record(kind, key=key, data=data, files=files or {})
        item = codec.encode_record(record, self.context.now())
        return append.record_in_turn(self.session, item, self.number)

    def with_turn_id(self, message: Message) -> Message:
        """Return a stored message with the id of this turn."""
        return msgspec.structs.replace(message, turn_id=self.id)

    def start_tool(self, call_id: str) -> Operation[None]:
        """Return the operation that records the start of a tool."""
        self.check()
        validation.check_name(call_id, "call_id")
        return turns.start_tool(self.session, self.number, call_id)

    def take_queued(self) -> Operation[list[Message]]:
        """Return the operation that moves queued input into the history."""
        self.check()
        return queue.take_queued(self.session, self.number)

    def new_draft(self, model: str | None) -> DraftCore:
        """Start a streamed reply; raise `Invalid` if one is open."""
        self.check()
        if self.ended:
            raise TurnLost(self.id, "is over")
        if self.draft is not None:
            raise Invalid("a reply is already being streamed; close it first.")
        if model is not None:
            validation.check_name(model, "model")
        turn = TurnRef(self.session, self.number, self.id, self.writer)
        self.draft = DraftCore(self.context, turn, model or self._model, self._on_draft_closed)
        return self.draft

    def _on_draft_closed(self) -> None:
        self.draft = None

    def release(self) -> None:
        """Release the turn, even if it may still be open, so that another may take it over."""
        if not self.ended:
            self.ended = True
            processes.mark_given_up(self.claim.token)

    def end(self, state: turns.Ending, error: str | None = None) -> Operation[None]:
        """Return the operation that ends the turn."""
        self.check()
        validation.check_filter(error, "reason")
        text = None if error is None else error[:_MAX_ERROR_CHARS]
        return turns.end_turn(self.session, self.number, state, text)


def ending(error: BaseException | None) -> tuple[turns.Ending, str | None]:
    """Return the state of a turn whose block was left with this error, and the error's text."""
    if error is None:
        return "sealed", None
    text = ": ".join(filter(None, (type(error).__name__, _error_text(error))))
    # A BaseException that is no Exception (an interrupt, a cancelled task, a closed generator, an
    # exit) means that the work was stopped; any other error means that it failed.
    return ("failed" if isinstance(error, Exception) else "cancelled"), text


def _error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error whose `str` fails must still end its turn
        return ""


def assistant_message(
    content: Content, tool_calls: Sequence[ToolCall], model: str | None, fields: MessageFields
) -> Message:
    """Return an assistant message with its model set."""
    fields.setdefault("model", model)
    return Message.assistant(content, tool_calls=tool_calls, **fields)


def messages_from(provider: Provider, items: Sequence[Mapping[str, JSON]]) -> list[Message]:
    """Return a provider's messages as ours; `BadMessage` names one that is not by its index."""
    with import_errors():
        from holdfast.formats.registry import decode_items  # noqa: PLC0415 - not all need it

    return decode_items(provider, items)


class Turn:
    """One turn of a session, held by this process; `Session.turn` returns it for a `with` block."""

    def __init__(self, state: TurnCore, *, wait: float) -> None:
        self._state = state
        self._wait = validation.check_seconds(wait, "wait")
        self._write = state.writer.write
        self._draft: Draft | None = None
        self.recovered: Recovered | None = None

    @property
    def id(self) -> str:
        """The turn's id: its session's id and its number within the session."""
        return self._state.id

    # ------------------------------------------------------------------------------ messages

    def user(self, content: Content, **fields: Unpack[MessageFields]) -> Message:
        """Store a user message."""
        return self.add(Message.user(content, **fields))

    def assistant(
        self,
        content: Content = (),
        *,
        tool_calls: Sequence[ToolCall] = (),
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Store a reply of the model."""
        model = self._state.claim.model
        return self.add(assistant_message(content, tool_calls, model, fields))

    def tool(
        self,
        call_id: str,
        content: str | Sequence[Text | File | Raw],
        *,
        error: bool = False,
        **fields: Unpack[MessageFields],
    ) -> Message:
        """Store the result of a tool call."""
        return self.add(Message.tool(call_id, content, error=error, **fields))

    def add(self, message: Message) -> Message:
        """Store any message; return it as stored."""
        return self._write(self._state.add(message))

    def record(
        self,
        kind: str,
        data: JSON,
        *,
        key: str | None = None,
        files: dict[str, File] | None = None,
    ) -> Record:
        """Store a record behind the newest message; return it as stored."""
        return self._write(self._state.record(kind, data, key=key, files=files))

    def add_from(self, provider: Provider, item: Mapping[str, JSON]) -> Message:
        """Store a provider's message, or a whole reply, as it is; see `Session.append_from`."""
        return self.add(*messages_from(provider, [item]))

    def tool_started(self, call_id: str) -> None:
        """Record that a tool starts, before it can have an effect."""
        self._write(self._state.start_tool(call_id))

    def take_queued(self) -> list[Message]:
        """Move queued input into the history and return it, in order."""
        return [self._state.with_turn_id(m) for m in self._write(self._state.take_queued())]

    def stream(self, *, model: str | None = None) -> Draft:
        """Start a streamed reply."""
        self._draft = Draft(self._state.new_draft(model))
        return self._draft

    # ------------------------------------------------------------------------------- the end

    def cancel(self, reason: str | None = None) -> None:
        """End the turn as cancelled, keeping what was written."""
        self._end("cancelled", reason)

    def fail(self, error: BaseException | str) -> None:
        """End the turn as failed, keeping what was written."""
        self._end("failed", error if isinstance(error, str) else ending(error)[1])

    def _end(self, state: turns.Ending, error: str | None) -> None:
        self._state.check()
        failed = self._close_reply()
        self._write(self._state.end(state, error))
        self._state.ended = True
        if failed is not None:
            raise failed

    def _close_reply(self) -> HoldfastError | None:
        """Close an open reply as partial; return the error if that fails.

        The turn then still ends, with what was flushed of the reply.
        """
        if self._state.draft is None or self._draft is None:
            return None
        try:
            self._draft.close(status="partial")
        except HoldfastError as failed:
            return failed
        return None

    def __enter__(self) -> Self:
        """Open the turn, first recovering one that a crash left open."""
        self._state.on_opening()
        try:
            opened = open_with_wait(self._state, self._wait)
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
            self._cancel_unheld(error)
            raise

    def _cancel_unheld(self, error: BaseException) -> None:
        try:
            self._write(turns.cancel_unheld(self._state.claim))
        except HoldfastError as failed:
            note_failure(error, failed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Seal the turn, or record the exception and let it propagate."""
        if self._state.ended:
            return
        try:
            self._end(*ending(error))
        except HoldfastError as failed:
            if error is None:
                raise
            note_failure(error, failed)
        finally:
            self._state.release()


def open_with_wait(state: TurnCore, wait: float) -> turns.OpenedTurn:
    """Open a turn, waiting up to `wait` seconds for the session's holder to finish."""
    backend = state.context.backend
    deadline = time.monotonic() + wait
    seen = backend.wait(-1, 0) if wait else -1
    while True:
        try:
            opened = state.writer.write(state.opening)
        except SessionBusy:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise
            # A holder that dies writes nothing, so try again now and then.
            seen = backend.wait(seen, min(remaining, _RETRY_INTERVAL_S))
        else:
            if opened is not None:
                return opened
