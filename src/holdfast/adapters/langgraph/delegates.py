"""The lists of messages that are not the conversation: sessions that the thread's delegated.

Each channel of a subgraph has one, and each further list of the graph itself. It has only what the
conversation has not, in the order in which it came, and nothing is ever removed from it: a
checkpoint names the messages of its list.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage

from holdfast import Message, Session, Store
from holdfast.adapters.langgraph.message_lists import MessageList, Place
from holdfast.adapters.langgraph.messages import MessageCodec
from holdfast.adapters.langgraph.serialization import digest
from holdfast.adapters.langgraph.views import NewCheckpoint
from holdfast.errors import IdConflict, KeyTaken, SessionNotFound
from holdfast.values import JSON


class Delegates:
    """The sessions delegated by that of a thread."""

    def __init__(self, store: Store, session: Session, codec: MessageCodec) -> None:
        self._store = store
        self._session = session
        self._codec = codec

    def place(
        self,
        new: NewCheckpoint,
        channel: str,
        before: MessageList,
        shared: int,
        value: list[BaseMessage],
    ) -> MessageList:
        """Store what a channel's list has behind the first `shared` messages, and return it."""
        added = value[shared:]
        places = self._append(new, channel, added, shared) if added else []
        return before.cut(shared).followed_by(added, places)

    def _append(
        self, new: NewCheckpoint, channel: str, added: Sequence[BaseMessage], first: int
    ) -> list[Place]:
        delegate = self._open(new.ns, channel)
        taken: set[str] = set()
        while True:
            batch: dict[str, Message] = {}
            for index, one in enumerate(added, first):
                own = f"{new.id}/{index}"
                id = own if not one.id or one.id in taken or one.id in batch else one.id
                batch[id] = self._codec.encode(one, id)
            try:
                head = delegate.append(*batch.values())
            except IdConflict as conflict:
                if conflict.message_id in taken:
                    raise
                if not taken:  # One conflict is told at a time; there may be thousands.
                    taken |= self._taken(delegate, added)
                taken.add(conflict.message_id)
            else:
                return [
                    Place(delegate.id, head.branch, delegate.message(id).seq or 0) for id in batch
                ]

    def _taken(self, delegate: Session, added: Sequence[BaseMessage]) -> set[str]:
        """Return the ids of messages that others have in the list's session."""
        own = {one.id: one for one in added}
        found = ((one, own[one.id]) for one in delegate.iter_messages() if one.id in own)
        return {stored.id for stored, one in found if not self._codec.is_same(stored, one)}

    def _open(self, ns: str, channel: str) -> Session:
        key = f"langgraph/{digest(self._session.id, ns, channel)}"
        try:
            return self._store.session(key, create=False)
        except SessionNotFound:
            pass
        origin: dict[str, JSON] = {"langgraph": {"checkpoint_ns": ns, "channel": channel}}
        scope = self._session.info().scope
        try:
            return self._store.create(
                key=key, parent=self._session, relation="delegate", scope=scope, metadata=origin
            )
        except KeyTaken:
            return self._store.session(key, create=False)
