"""LangChain: a `BaseChatMessageHistory` in a store.

A history is the session whose key is its `session_id`; the first messages create it. Messages come
back equal to what was added, ids included: one that is added again under its id is stored once.
Clearing starts a new branch, and the cleared messages stay readable there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast import AsyncSession, Message, Store
from holdfast.adapters.langchain_messages import from_messages, to_message
from holdfast.adapters.shared_session import async_recovered, find_session, recovered
from holdfast.aio import AsyncStore
from holdfast.errors import SessionNotFound, install_command

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage
except ImportError as error:
    raise ImportError(
        f"this adapter needs langchain-core: {install_command('langchain')}", name=error.name
    ) from error


class HoldfastChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session, for `RunnableWithMessageHistory` and chains."""

    def __init__(self, session_id: str, store: Store, *, scope: str | None = None) -> None:
        self.session_id = session_id
        self._store = store
        self._scope = scope

    @property
    def messages(self) -> list[BaseMessage]:
        """Return the messages of the current history, oldest first."""
        session = find_session(self._store, self.session_id)
        found = [] if session is None else session.messages()
        return from_messages(found, blob=self._store.blobs(*_hashes(found)).__getitem__)

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages of the current history, oldest first."""
        try:
            session = await self._session(create=False)
        except SessionNotFound:
            return []
        found = await session.messages()
        blobs = await AsyncStore(self._store).blobs(*_hashes(found))
        return from_messages(found, blob=blobs.__getitem__)

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store messages: all of them when this returns, or none if it raises."""
        if batch := [to_message(message) for message in messages]:
            session = self._store.session(self.session_id, scope=self._scope)
            recovered(session).append(*batch)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Store messages: all of them when this returns, or none if it raises."""
        if batch := [to_message(message) for message in messages]:
            session = await self._session(create=True)
            await session.append(*batch)

    def clear(self) -> None:
        """Continue with no messages; the old ones stay on their branch.

        `SessionBusy` while another program's turn is open.
        """
        session = find_session(self._store, self.session_id)
        if session is not None:
            session.clear()

    async def aclear(self) -> None:
        """Continue with no messages; the old ones stay on their branch."""
        try:
            session = await self._session(create=False)
        except SessionNotFound:
            return
        await session.clear()

    async def _session(self, *, create: bool) -> AsyncSession:
        store = AsyncStore(self._store)
        found = await store.session(self.session_id, create=create, scope=self._scope)
        return await async_recovered(found)


def _hashes(messages: Iterable[Message]) -> set[str]:
    """Return the hashes of the files whose data is not in the messages."""
    files = (file for message in messages for file in message.files)
    return {file.sha256 for file in files if file.data is None and file.sha256 is not None}
