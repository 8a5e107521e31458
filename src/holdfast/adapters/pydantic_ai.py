"""Pydantic AI: a `ConversationStore` in a store of Holdfast.

A conversation is the session whose key is its id; a session without a key is found by its own id.
Its entries are the session's messages (`pydantic_ai_messages`), with the ids that the framework
gave them. What its record has beside them (revision, usage, tool calls that wait, branches it left)
is one field of the session's metadata, written in the same commit and compared there.

Saving what was rewritten, and branching, start a branch of the session; a fork is a fork. Deleting
moves the session to the trash, and entries that a fork shares stay in it. If another program wrote
to a session, its revision is a new one: a copy that was loaded before is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from holdfast import AsyncSession, Head, Message, Record, Store
from holdfast.adapters.pydantic_ai_messages import (
    SOURCE,
    from_messages,
    grouped,
    plain,
    to_messages,
)
from holdfast.adapters.shared_session import async_recovered
from holdfast.aio import AsyncStore
from holdfast.errors import (
    AmbiguousRef,
    BadMessage,
    HeadMoved,
    KeyTaken,
    MessageNotFound,
    NotFound,
    PreconditionFailed,
    SessionNotFound,
    install_command,
)
from holdfast.values import JSON, SessionChanges, SessionInfo

try:
    import pydantic
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.usage import RunUsage
except ImportError as error:
    raise ImportError(
        f"pydantic-ai-slim 2.66 or newer is not installed: {install_command('pydantic-ai')}",
        name=error.name,
    ) from error

__all__ = ["HoldfastConversationStore"]

# Only an adapter of a list takes this configuration.
_RECORDS: Final = pydantic.TypeAdapter(
    list[ConversationRecord], config=pydantic.ConfigDict(ser_json_bytes="base64")
)
_AT: Final = "at"
_SESSION_ID: Final = re.compile("[a-z2-7]{16}")
_PAGE_SESSIONS: Final = 200


class _EntryId(str):
    """The id of an entry, and the session that it was read in, which may share it with others."""

    __slots__ = ("session_id",)
    session_id: str

    @classmethod
    def of(cls, session_id: str, id: str) -> Self:
        """Return the id of an entry of a session."""
        made = cls(id)
        made.session_id = session_id
        return made


class _Found(msgspec.Struct, frozen=True):
    """A conversation as it is stored."""

    session: AsyncSession
    info: SessionInfo
    record: ConversationRecord

    @property
    def head(self) -> Head:
        return _head(self.info)

    @property
    def state(self) -> JSON:
        return self.info.metadata.get(SOURCE)


class HoldfastConversationStore(ConversationStore):
    """The conversations of a store; with `scope`, only those of this scope.

    The caller opens and closes the store.
    """

    def __init__(self, store: Store, *, scope: str | None = None) -> None:
        self._store = AsyncStore(store)
        self._scope = scope

    # ----------------------------------------------------------------------------------- records

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is none."""
        found = await self._find(conversation_id)
        return None if found is None else found.record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records of a scope, or of all; the newest first."""
        if limit == 0 or (self._scope is not None and scope not in {None, self._scope}):
            return []
        records: list[ConversationRecord] = []
        async for info in self._listed(scope if self._scope is None else self._scope, limit):
            records.append(await self._record(info))
            if len(records) == limit:
                break
        return records

    async def _listed(self, scope: str | None, limit: int | None) -> AsyncIterator[SessionInfo]:
        """Yield the sessions of a scope, newest first, without those that cannot be read."""
        size = _PAGE_SESSIONS if limit is None else min(limit, _PAGE_SESSIONS)
        cursor = None
        while True:
            page = await self._store.sessions(
                scope=scope, delegates=False, limit=size, cursor=cursor
            )
            for info in page:
                if info.state != "damaged":  # `store.damage` has these.
                    yield info
            cursor = page.cursor
            if cursor is None:
                return

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record with its new entries; `ConversationConflict` if the stored one changed."""
        id = record.conversation_id
        if self._scope is not None and record.scope not in {None, self._scope}:
            raise UserError(f"This store is of scope {self._scope!r}, not of {record.scope!r}.")
        found = await self._find(id)
        if (None if found is None else found.record.revision) != expected_revision:
            raise ConversationConflict(id)
        after = new_entries[0].parent_id if new_entries else record.head_id
        base = None if after is None else str(after)
        messages = [m for entry in new_entries for m in to_messages(entry.id, entry.message)]
        try:
            if found is None:
                await self._create(record, base, messages)
            else:
                await self._change(found, record, base, messages)
        except (HeadMoved, KeyTaken, MessageNotFound, PreconditionFailed) as error:
            raise ConversationConflict(id) from error

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Move a conversation to the trash; `ConversationConflict` if it changed."""
        found = await self._find(conversation_id)
        if found is None or found.record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        try:
            await self._store.trash(found.session.id, expect=found.head)
        except (HeadMoved, SessionNotFound) as error:
            raise ConversationConflict(conversation_id) from error

    async def _find(self, conversation_id: str) -> _Found | None:
        session = await self._open(conversation_id)
        if session is None:
            return None
        info = await (await async_recovered(session)).info()
        if info.trashed or self._scope not in {None, info.scope}:
            return None
        return _Found(session, info, await self._record(info))

    async def _open(self, conversation_id: str) -> AsyncSession | None:
        try:
            return await self._store.session(conversation_id, create=False)
        except BadMessage as error:
            raise UserError(f"conversation_id is the key of a session; {error}") from error
        except SessionNotFound:
            if _SESSION_ID.fullmatch(conversation_id) is None:
                return None
        try:
            session = await self._store.get(conversation_id)
        except (AmbiguousRef, SessionNotFound):
            return None
        return session if session.id == conversation_id and session.key is None else None

    async def _record(self, info: SessionInfo) -> ConversationRecord:
        """Return the record of a session; what another program changed is in it."""
        state, head = info.metadata.get(SOURCE), _head(info)
        given: dict[str, Any] = {**state} if isinstance(state, dict) else {}
        if given.pop(_AT, None) != [head.branch, head.seq]:
            session = await self._store.get(info.id)
            newest = await session.messages(limit=1, upto=head)
            given |= {
                "head_id": newest[0].id if newest else None,
                "deferred_tool_requests": None,
                "revision": f"{given.get('revision', info.id)}+{head.branch}.{head.seq}",
                "updated_at": info.updated_at,
                "usage": given.get("usage") or _usage(info),
            }
        given |= {"conversation_id": info.key or info.id, "scope": info.scope}
        try:
            (record,) = _RECORDS.validate_python([given])
        except pydantic.ValidationError:  # Not ours, as in a session that a stranger exported.
            return await self._record(msgspec.structs.replace(info, metadata={}))
        if record.head_id is not None:
            record.head_id = _EntryId.of(info.id, record.head_id)
        record.branches = [_EntryId.of(info.id, tip) for tip in record.branches]
        return record

    # ------------------------------------------------------------------------------------ writes

    async def _create(
        self, record: ConversationRecord, base: str | None, messages: Sequence[Message]
    ) -> None:
        key = record.conversation_id
        if base is None:
            update = self._update(record, Head(1, len(messages)))
            await self._store.create(key=key, entries=messages, update=update)
            return
        source = await self._holder(base, record.forked_from)
        seq = (await source.message(base)).seq or 0
        update = self._update(record, Head(1, seq + len(messages)))
        await source.fork(base, key=key, exact=True, entries=messages, update=update)

    async def _change(
        self, found: _Found, record: ConversationRecord, base: str | None, messages: list[Message]
    ) -> None:
        """Append to the history, or start a branch after `base`, and store the record."""
        session, head = found.session, found.head
        if base == found.record.head_id:
            update = self._update(record, Head(head.branch, head.seq + len(messages)))
            update["expect_metadata"] = {SOURCE: found.state}
            # A record counts as a write: lists have the conversation that was saved last first.
            entries: Sequence[Message | Record] = messages or [Record(SOURCE, data=record.revision)]
            await session.append(*entries, expect=head, update=update)
            return
        seq = 0 if base is None else (await session.message(base)).seq or 0
        update = self._update(record, Head(head.branch + 1, seq + len(messages)))
        update["expect_metadata"] = {SOURCE: found.state}
        await session.replace(messages, keep=base, expect=head, update=update)

    def _update(self, record: ConversationRecord, at: Head) -> SessionChanges:
        """Return the update that stores a record, whose history then ends at this head."""
        state = plain(_RECORDS.dump_python([record], mode="json")[0])
        del state["conversation_id"], state["scope"]
        return {
            "metadata": {SOURCE: {**state, _AT: [at.branch, at.seq]}},
            "scope": self._scope if record.scope is None else record.scope,
        }

    async def _holder(self, entry_id: str, conversation_id: str | None = None) -> AsyncSession:
        """Return a session of the scope that has an entry: this conversation, if it does."""
        session = await self._any_holder(entry_id, conversation_id)
        if self._scope not in {None, (await session.info()).scope}:
            raise MessageNotFound(f"scope {self._scope!r} has no entry {str(entry_id)!r}.")
        return session

    async def _any_holder(self, entry_id: str, conversation_id: str | None) -> AsyncSession:
        if isinstance(entry_id, _EntryId):
            return await self._store.get(entry_id.session_id)
        if conversation_id is not None:
            session = await self._open(conversation_id)
            if session is not None:
                with suppress(MessageNotFound):
                    await session.message(entry_id)
                    return session
        return (await self._store.message(str(entry_id)))[0]

    # ----------------------------------------------------------------------------------- entries

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; `KeyError` if there is none."""
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to one, oldest first, or the last `limit` of them."""
        if head_id is None or limit == 0:
            return []
        try:
            session = await self._holder(head_id)
            groups = await _read_groups(session, str(head_id), limit)
        except NotFound as error:
            raise KeyError(head_id) from error
        kept = groups if limit is None else groups[-limit:]
        hashes = {file.sha256 for group in kept for message in group for file in message.files}
        blobs = await self._store.blobs(*(hash for hash in hashes if hash is not None))
        return await asyncio.to_thread(_entries, groups, len(kept), blobs)


def _entries(
    groups: Sequence[Sequence[Message]], count: int, blobs: Mapping[str, bytes]
) -> list[ConversationEntry]:
    """Return the last `count` entries; those before them name tools and the parent."""
    names = {call.id: call.name for group in groups for m in group for call in m.tool_calls}
    ids = [None, *(group[-1].id for group in groups)]
    return [
        ConversationEntry(
            id=group[-1].id,
            parent_id=parent,
            message=from_messages(group, names, blobs.__getitem__),
        )
        for parent, group in [*zip(ids, groups, strict=False)][-count:]
    ]


async def _read_groups(
    session: AsyncSession, last_id: str, limit: int | None
) -> list[list[Message]]:
    """Return the messages of each entry up to one: of all, or of more than `limit`, if there are.

    Of the first of them, the messages may not be complete.
    """
    size = None if limit is None else 2 * limit + 2
    while True:
        messages = await session.messages(upto=last_id, limit=size)
        groups = [*grouped(messages)]
        if limit is None or size is None or len(messages) < size or len(groups) > limit:
            return groups
        size *= 4


def _head(info: SessionInfo) -> Head:
    """Return where a session ends: its newest branch is the current one, and nothing has a gap."""
    return Head(info.branches, info.messages)


def _usage(info: SessionInfo) -> RunUsage:
    """Return the usage of a conversation that another framework began."""
    return RunUsage(
        input_tokens=info.usage.input,
        output_tokens=info.usage.output,
        cache_read_tokens=info.usage.cache_read,
        cache_write_tokens=info.usage.cache_write,
        output_reasoning_tokens=info.usage.reasoning,
    )
