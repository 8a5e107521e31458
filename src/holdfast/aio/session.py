"""The async twin of `holdfast.session`: each method is documented at `Session`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Unpack

from holdfast import codec, ids
from holdfast.aio.completion_queue import run_write
from holdfast.aio.follow import AsyncFollower
from holdfast.aio.turn import AsyncTurn
from holdfast.context import GuardedWriter
from holdfast.operations import append, head_moves, queries, queue, sessions, turns
from holdfast.session import Session, context_of, number_of, to_input
from holdfast.turn import TurnCore
from holdfast.values import (
    BranchInfo,
    Content,
    EraseReport,
    ForkFields,
    Head,
    Link,
    Message,
    MessageRef,
    Provider,
    QueuedInput,
    Recovered,
    SessionChanges,
    SessionInfo,
    TurnInfo,
    UsageReport,
    Window,
)


class AsyncSession:
    """The async twin of `Session`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._context, self._n = context_of(session), number_of(session)
        self._writer = GuardedWriter(self._context, session.id)
        self.id = session.id
        self.key = session.key
        self.interrupted = session.interrupted

    def __repr__(self) -> str:
        """Return a text with the id, not the key, which may be private."""
        return f"<AsyncSession {self.id}>"

    async def info(self) -> SessionInfo:
        """Return the session's identity, state and sums."""
        return await asyncio.to_thread(self._session.info)

    async def head(self) -> Head:
        """Return where the history ends."""
        return await asyncio.to_thread(self._session.head)

    async def append(self, *messages: Message, expect: Head | None = None) -> Head:
        """Store messages, all or none, each id once; return the new head."""
        batch = codec.encode_batch(messages, self._context.now())
        return await run_write(self._writer, append.append(self._n, batch, expect=expect))

    def turn(
        self, *, wait: float = 0.0, model: str | None = None, run_id: str | None = None
    ) -> AsyncTurn:
        """Open a turn in an `async with` block."""
        state = TurnCore(self._context, self._n, self.id, model=model, run_id=run_id)
        return AsyncTurn(state, wait=wait)

    async def messages(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        branch: int | None = None,
    ) -> list[Message]:
        """Read part of the history, oldest first."""
        return await asyncio.to_thread(
            self._session.messages, limit=limit, before=before, after=after, branch=branch
        )

    async def window(
        self,
        *,
        provider: Provider = "openai",
        max_tokens: int | None = None,
        reserve: int = 0,
        max_messages: int | None = None,
        keep_first_user: bool = False,
        system: str | None = None,
        timestamps: bool = False,
    ) -> Window:
        """Build the window to send to a model."""
        return await asyncio.to_thread(
            self._session.window,
            provider=provider,
            max_tokens=max_tokens,
            reserve=reserve,
            max_messages=max_messages,
            keep_first_user=keep_first_user,
            system=system,
            timestamps=timestamps,
        )

    async def fork(
        self,
        at: MessageRef | None = None,
        *,
        key: str | None = None,
        expect: Head | None = None,
        **fields: Unpack[ForkFields],
    ) -> AsyncSession:
        """Create a session whose history is this one's up to `at`, inclusive."""
        made = await asyncio.to_thread(self._session.fork, at, key=key, expect=expect, **fields)
        return AsyncSession(made)

    async def rewind(self, to: MessageRef, *, expect: Head | None = None) -> Head:
        """Make message `to` the newest."""
        operation = head_moves.rewind(self._n, to, token=ids.message_id(), expect=expect)
        return await run_write(self._writer, operation)

    async def undo(self, n: int = 1, *, expect: Head | None = None) -> Head:
        """Rewind to before the last `n` turns."""
        operation = head_moves.undo(self._n, n, token=ids.message_id(), expect=expect)
        return await run_write(self._writer, operation)

    async def redo(self, *, expect: Head | None = None) -> Head:
        """Revert the last undo, rewind or clear."""
        operation = head_moves.redo(self._n, token=ids.message_id(), expect=expect)
        return await run_write(self._writer, operation)

    async def replace(self, messages: Sequence[Message], *, expect: Head | None = None) -> Head:
        """Replace the history by these messages, atomically."""
        batch = codec.encode_history(messages, self._context.now())
        operation = head_moves.replace(self._n, batch, token=ids.message_id(), expect=expect)
        return await run_write(self._writer, operation)

    async def clear(self, *, expect: Head | None = None) -> Head:
        """Continue with an empty history."""
        operation = head_moves.clear(self._n, token=ids.message_id(), expect=expect)
        return await run_write(self._writer, operation)

    async def summarize(
        self, text: str, *, upto: MessageRef | None = None, expect: Head | None = None
    ) -> Head:
        """Append a summary that replaces, in windows, the history up to `upto`."""
        operation = head_moves.summarize(
            self._n,
            text,
            upto,
            message_id=ids.message_id(),
            now=self._context.now(),
            expect=expect,
        )
        return await run_write(self._writer, operation)

    async def summary(self) -> Message | None:
        """Read the newest summary."""
        return await asyncio.to_thread(self._session.summary)

    async def covered(self) -> int:
        """Return the last seq that the newest summary covers; 0 without one."""
        return await asyncio.to_thread(self._session.covered)

    async def erase(self, message: MessageRef) -> EraseReport:
        """Erase the content of a message wherever it is shared."""
        return await asyncio.to_thread(self._session.erase, message)

    async def branches(self) -> list[BranchInfo]:
        """List the branches by number."""
        return await asyncio.to_thread(self._session.branches)

    async def lineage(self) -> list[Link]:
        """List the ancestors of this session, and itself."""
        return await asyncio.to_thread(self._session.lineage)

    async def children(self) -> list[Link]:
        """List the direct children of this session."""
        return await asyncio.to_thread(self._session.children)

    async def recover(self) -> Recovered | None:
        """Close a turn that a crash left open."""
        return await run_write(self._writer, turns.recover(self._n))

    async def turns(self, *, limit: int | None = None) -> list[TurnInfo]:
        """Read the newest turns with their tool calls, oldest first."""
        return await asyncio.to_thread(self._session.turns, limit=limit)

    async def enqueue(self, content: Content | Message) -> QueuedInput:
        """Store input for the next turn."""
        message = to_input(content)
        item = codec.encode(message, self._context.now())
        operation = queue.enqueue(self._n, item, self._context.clock.micros())
        return queries.queued_input(*await run_write(self._writer, operation))

    async def queued(self, *, held: bool = False) -> list[QueuedInput]:
        """List queued input, in order; with `held`, the input that an import set aside."""
        return await asyncio.to_thread(self._session.queued, held=held)

    async def update(self, **changes: Unpack[SessionChanges]) -> SessionInfo:
        """Change title, model, cwd, scope, pinned, archived, goal or metadata."""
        operation = sessions.update(self._n, sessions.check_changes(changes))
        return await run_write(self._writer, operation)

    async def usage(self) -> UsageReport:
        """Return tokens and cost, in total and by model."""
        return await asyncio.to_thread(self._session.usage)

    def follow(self, after: Head | None = None) -> AsyncFollower:
        """Iterate over every message after `after` as it is written."""
        return AsyncFollower(self._context.backend, self._session.follow(after))


def sync_of(session: AsyncSession) -> Session:
    """Return the sync twin."""
    return session._session  # noqa: SLF001 - this module's own
