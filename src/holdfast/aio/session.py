"""The async twin of `holdfast.session`: each method is documented at `Session`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Literal, Unpack, overload

from msgspec import UNSET, UnsetType

from holdfast import codec, ids
from holdfast.aio.completion_queue import run_write
from holdfast.aio.follow import AsyncFollower
from holdfast.aio.turn import AsyncTurn
from holdfast.context import GuardedWriter
from holdfast.history_pages import HistoryPages
from holdfast.operations import append, head_moves, queries, queue, sessions, turns
from holdfast.operations.session_changes import SessionUpdate, check_update
from holdfast.session import Session, context_of, number_of, to_input
from holdfast.turn import TurnCore, messages_from
from holdfast.values import (
    JSON,
    BranchChanged,
    BranchInfo,
    Content,
    DropReport,
    EraseReport,
    ForkFields,
    Head,
    Link,
    Message,
    MessageRef,
    Provider,
    QueuedInput,
    Record,
    Recovered,
    Role,
    SessionChanges,
    SessionInfo,
    TurnInfo,
    UsageReport,
    Window,
    to_parts,
)


class AsyncSession:
    """The async twin of `Session`, for asyncio."""

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

    async def append(
        self,
        *entries: Message | Record,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Store messages and records, all or none, each id once; return the new head."""
        messages, records = codec.encode_batch(entries, self._context.now())
        operation = append.append(
            self._n, messages, records, expect=expect, update=check_update(update)
        )
        return await run_write(self._writer, operation)

    async def record(
        self, kind: str, key: str | None = None, *, at: MessageRef | None = None
    ) -> Record | None:
        """Read the newest record of a kind and key; with `at`, as of that position."""
        return await asyncio.to_thread(self._session.record, kind, key, at=at)

    async def records(
        self,
        kind: str | None = None,
        *,
        key: str | UnsetType | None = UNSET,
        prefix: str | None = None,
        before: str | None = None,
        limit: int | None = None,
        all_branches: bool = False,
    ) -> list[Record]:
        """Read the newest `limit` records of the history, oldest first."""
        return await asyncio.to_thread(
            self._session.records,
            kind,
            key=key,
            prefix=prefix,
            before=before,
            limit=limit,
            all_branches=all_branches,
        )

    async def append_from(
        self, provider: Provider, *items: Mapping[str, JSON], expect: Head | None = None
    ) -> Head:
        """Store a provider's messages, or whole replies, as they are; see `append`."""
        return await self.append(*messages_from(provider, items), expect=expect)

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
        upto: MessageRef | None = None,
        role: Role | Sequence[Role] | None = None,
        hidden: bool | None = None,
    ) -> list[Message]:
        """Read part of the history, oldest first."""
        return await asyncio.to_thread(
            self._session.messages,
            limit=limit,
            before=before,
            after=after,
            branch=branch,
            upto=upto,
            role=role,
            hidden=hidden,
        )

    def iter_messages(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        branch: int | None = None,
        upto: MessageRef | None = None,
        role: Role | Sequence[Role] | None = None,
        hidden: bool | None = None,
    ) -> AsyncIterator[Message]:
        """Iterate over part of the history, oldest first, read some hundred at a time."""
        bounds = queries.HistoryBounds(before=before, after=after, branch=branch, upto=upto)
        wanted = queries.message_filter(role, hidden)
        return _each_message(HistoryPages(self._context, self._n, bounds, wanted))

    async def message(self, id: str) -> Message:
        """Read one message by its id; `MessageNotFound` if no branch has it."""
        return await asyncio.to_thread(self._session.message, id)

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
        exact: bool = False,
        entries: Sequence[Message | Record] = (),
        update: SessionChanges | None = None,
        expect: Head | None = None,
        **fields: Unpack[ForkFields],
    ) -> AsyncSession:
        """Create a session whose history is this one's up to `at`, inclusive."""
        made = await asyncio.to_thread(
            self._session.fork,
            at,
            key=key,
            exact=exact,
            entries=entries,
            update=update,
            expect=expect,
            **fields,
        )
        return AsyncSession(made)

    async def rewind(
        self,
        to: MessageRef,
        *,
        exact: bool = False,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Make message `to` the newest."""
        operation = head_moves.rewind(
            self._n,
            to,
            token=ids.message_id(),
            expect=expect,
            exact=exact,
            update=check_update(update),
        )
        return await run_write(self._writer, operation)

    async def pop(self, *, expect: Head | None = None) -> Message | None:
        """Rewind by one message, exactly, and return it."""
        operation = head_moves.pop(self._n, token=ids.message_id(), expect=expect)
        return await run_write(self._writer, operation)

    async def undo(
        self, n: int = 1, *, expect: Head | None = None, update: SessionChanges | None = None
    ) -> Head:
        """Rewind to before the last `n` turns."""
        operation = head_moves.undo(
            self._n, n, token=ids.message_id(), expect=expect, update=check_update(update)
        )
        return await run_write(self._writer, operation)

    async def redo(
        self, *, expect: Head | None = None, update: SessionChanges | None = None
    ) -> Head:
        """Revert the last undo, rewind, pop or clear."""
        operation = head_moves.redo(
            self._n, token=ids.message_id(), expect=expect, update=check_update(update)
        )
        return await run_write(self._writer, operation)

    async def replace(
        self,
        messages: Sequence[Message],
        *,
        keep: MessageRef | None = None,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Replace the history by these messages, atomically."""
        batch = codec.encode_history(messages, self._context.now())
        operation = head_moves.replace(
            self._n,
            batch,
            token=ids.message_id(),
            expect=expect,
            keep=keep,
            update=check_update(update),
        )
        return await run_write(self._writer, operation)

    async def amend(
        self, message: MessageRef, parts: Content, *, expect: Head | None = None
    ) -> Head:
        """Replace the parts of a message, on a new branch with what follows it."""
        operation = head_moves.amend(
            self._n,
            message,
            to_parts(parts),
            token=ids.message_id(),
            now=self._context.now(),
            expect=expect,
        )
        return await run_write(self._writer, operation)

    async def clear(
        self, *, expect: Head | None = None, update: SessionChanges | None = None
    ) -> Head:
        """Continue with an empty history."""
        operation = head_moves.clear(
            self._n, token=ids.message_id(), expect=expect, update=check_update(update)
        )
        return await run_write(self._writer, operation)

    async def summarize(
        self,
        text: str,
        *,
        upto: MessageRef | None = None,
        expect: Head | None = None,
        update: SessionChanges | None = None,
    ) -> Head:
        """Append a summary that replaces, in windows, the history up to `upto`."""
        operation = head_moves.summarize(
            self._n,
            text,
            upto,
            message_id=ids.message_id(),
            now=self._context.now(),
            expect=expect,
            update=check_update(update),
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

    async def drop(
        self, *, kind: str, keys: Collection[str | None] | None = None, keep: int | None = None
    ) -> DropReport:
        """Erase the records of a kind, on all branches: those with one of `keys`, or all."""
        return await asyncio.to_thread(self._session.drop, kind=kind, keys=keys, keep=keep)

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

    async def update(
        self, *, expect: Head | None = None, **changes: Unpack[SessionChanges]
    ) -> SessionInfo:
        """Change title, model, cwd, scope, pinned, archived, goal or metadata."""
        operation = sessions.update(self._n, SessionUpdate(changes), expect=expect)
        return await run_write(self._writer, operation)

    async def usage(self) -> UsageReport:
        """Return tokens and cost, in total and by model."""
        return await asyncio.to_thread(self._session.usage)

    @overload
    def follow(
        self, after: Head | str | None = None, *, records: Literal[False] = False
    ) -> AsyncFollower[Message | BranchChanged]: ...

    @overload
    def follow(
        self, after: Head | str | None = None, *, records: bool
    ) -> AsyncFollower[Message | Record | BranchChanged]: ...

    def follow(
        self, after: Head | str | None = None, *, records: bool = False
    ) -> AsyncFollower[Message | BranchChanged] | AsyncFollower[Message | Record | BranchChanged]:
        """Iterate over every message after `after` as it is written; with `records`, those too."""
        return AsyncFollower(self._context.backend, self._session.follow(after, records=records))


def sync_of(session: AsyncSession) -> Session:
    """Return the sync twin."""
    return session._session  # noqa: SLF001 - this module's own


async def _each_message(pages: HistoryPages) -> AsyncIterator[Message]:
    while page := await asyncio.to_thread(pages.next):
        for message in page:
            yield message
