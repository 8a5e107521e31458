"""Storing the checkpoints of a thread, and the writes to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP

from holdfast import Head, Record, Session, Store
from holdfast.adapters.langgraph import checkpoint_records as records
from holdfast.adapters.langgraph.checkpoint_records import CHECKPOINT, RUN, WRITES, Values, key_of
from holdfast.adapters.langgraph.delegates import Delegates
from holdfast.adapters.langgraph.message_lists import EMPTY_LIST, MessageList
from holdfast.adapters.langgraph.messages import is_message_list
from holdfast.adapters.langgraph.serialization import Serializer, digest
from holdfast.adapters.langgraph.thread_conversation import Conversation
from holdfast.adapters.langgraph.thread_reader import CONVERSATION, ThreadReader
from holdfast.adapters.langgraph.views import Memory, NewCheckpoint, View
from holdfast.errors import PreconditionFailed
from holdfast.values import SessionChanges

MARK: Final = "langgraph"  # in the metadata of the sessions that are threads
Lists: TypeAlias = Mapping[str, list[BaseMessage]]
Channels: TypeAlias = dict[str, dict[str, Any]]


class Thread(ThreadReader):
    """The checkpoints of one thread, to read and store them."""

    def __init__(
        self, store: Store, session: Session, serializer: Serializer, memory: Memory
    ) -> None:
        super().__init__(store, session, serializer, memory)
        self._delegates = Delegates(store, session, self._codec)

    def put(self, new: NewCheckpoint) -> None:
        """Store a checkpoint, unless it is stored already."""
        base, is_remembered = self._base(new)
        lists = self._lists_in(new, base)
        values = Values(self._serializer)
        channels: Channels = {
            name: {"list": []} if name in lists else self._entry(values, new, base, name)
            for name in new.values
        }
        if not is_remembered and self._is_stored(new, channels, lists):
            return
        self._put_run(new, base)
        name = base.conversation
        if name is None and not new.ns:
            name = CONVERSATION if CONVERSATION in lists else next(iter(lists), None)
        placed = {
            other: self._place_beside(new, base, other, value)
            for other, value in lists.items()
            if new.ns or other != name
        }

        def to_records(conversation: MessageList | None) -> list[Record]:
            if conversation is not None and name is not None:
                placed[name] = conversation
            for channel in lists.keys() & placed.keys():
                channels[channel] = {"list": placed[channel].to_json()}
            return [*values.records, self._record(new, channels, name, placed)]

        head = self._store_in(new, base, name, lists, to_records)
        view = View(
            id=new.id,
            head=head,
            versions=new.versions,
            channels=channels,
            lists={one: found for one, found in placed.items() if one in lists},
            conversation=name,
            run_id=new.run_id,
        )
        self._remember(new.ns, view)
        self._memory.early_writes.put((self.session.id, key_of(new.ns, new.id)), [])

    def _store_in(
        self,
        new: NewCheckpoint,
        base: View,
        name: str | None,
        lists: Lists,
        to_records: Callable[[MessageList | None], list[Record]],
    ) -> Head:
        """Store a checkpoint with its conversation, if it has one; return where that ends."""
        mark: SessionChanges | None = {"metadata": {MARK: True}} if base.id is None else None
        listed = EMPTY_LIST if name is None else self._base_list(new, base, name)
        value = None if name is None else lists.get(name)
        is_emptied = bool(listed) and name in new.versions
        if new.ns or name is None or (value is None and not is_emptied and base.head is not None):
            end = self.session.append(*to_records(None), update=mark)
            return base.head or end
        key = self.session.id, key_of(new.ns, new.id)
        conversation = Conversation(
            self.session,
            self._codec,
            new.id,
            to_records,
            lambda: self._memory.early_writes.get(key) or [],
        )
        value = value or []
        shared = self._shared_length(new, base, name, value) if value else 0
        return conversation.store(listed, shared, value, base.head, mark)

    def _place_beside(
        self, new: NewCheckpoint, base: View, name: str, value: list[BaseMessage]
    ) -> MessageList:
        before = self._base_list(new, base, name)
        shared = self._shared_length(new, base, name, value)
        return self._delegates.place(new, name, before, shared, value)

    def _shared_length(
        self, new: NewCheckpoint, base: View, name: str, value: list[BaseMessage]
    ) -> int:
        """Return how many messages of a list are as before: all if its version is."""
        before = self._base_list(new, base, name)
        if name in base.lists and not _is_changed(new, base, name):
            return len(before)
        return before.shared_length(value)

    # ----------------------------------------------------------------- what a checkpoint follows

    def _base(self, new: NewCheckpoint) -> tuple[View, bool]:
        """Return the checkpoint that a new one follows, and whether this process knew it.

        It has no head if it is not the newest. If this process knew it, and not the new one, the
        new one cannot be stored yet.
        """
        known = self._memory.views.get((self.session.id, new.ns, new.parent))
        view = known
        if view is None and new.parent is not None and self.find(new.ns, new.parent) is not None:
            view = self._memory.views.get((self.session.id, new.ns, new.parent))
        if view is None:
            was_missing = new.parent is None and self._memory.missing.get(self.session.key)
            view = View(id=None, head=Head(1, 0) if was_missing else None)
        is_new = self._memory.views.get((self.session.id, new.ns, new.id)) is None
        return self._with_head(new.ns, view), known is not None and is_new

    def _with_head(self, ns: str, view: View) -> View:
        if view.head is not None or ns:
            return view
        newest = records.newest(self.session, ns)
        if newest is None or newest.key == key_of(ns, view.id or ""):
            # What came after it is not known to this process.
            seq = 0 if newest is None or newest.seq is None else newest.seq
            return msgspec.structs.replace(view, head=Head(self.session.head().branch, seq))
        data: Any = newest.data
        return msgspec.structs.replace(view, conversation=view.conversation or data["conversation"])

    def _base_list(self, new: NewCheckpoint, base: View, name: str) -> MessageList:
        """Return the list that a channel's new one is compared with.

        The first list of a subgraph is that of the graph which called it, as a rule.
        """
        if name in base.lists:
            return base.lists[name]
        newest = self._memory.newest.get((self.session.id, ""))
        caller = self._memory.views.get((self.session.id, "", newest))
        if caller is None or caller.conversation is None or not new.ns:
            return EMPTY_LIST
        return caller.lists.get(caller.conversation, EMPTY_LIST)

    def _lists_in(self, new: NewCheckpoint, base: View) -> Lists:
        """Return the channels that are lists of messages."""
        if not self._serializer.is_plain:
            return {}  # Nothing is stored but what the user's serializer returns.
        found = {}
        for name, value in new.values.items():
            before = base.lists.get(name)
            is_same = before is not None and not _is_changed(new, base, name)
            if is_same or is_message_list(value, is_known=before is not None):
                found[name] = value
        return found

    def _entry(self, values: Values, new: NewCheckpoint, base: View, name: str) -> dict[str, Any]:
        """Return the entry of a channel: the one of before if its version is that of before."""
        before = base.channels.get(name)
        if before is None or "list" in before or _is_changed(new, base, name):
            return values.encode(new.values[name])
        # If its checkpoint was erased meanwhile, so were its values.
        key = key_of(new.ns, base.id or "")
        if "value" in before and records.find(self.session, CHECKPOINT, key) is None:
            return values.encode(new.values[name])
        return before

    def _is_stored(self, new: NewCheckpoint, channels: Channels, lists: Lists) -> bool:
        """Return whether this is a retry of a write that succeeded."""
        record = records.find(self.session, CHECKPOINT, key_of(new.ns, new.id))
        if record is None or record.data is None:
            return False
        data: Any = record.data
        before, stored = self.lists(record), data["channels"]
        return (
            data["parent"] == new.parent
            and self.body(record) == new.body
            and self.metadata(record) == new.metadata
            and stored.keys() == channels.keys()
            and all(channels[name] == stored[name] for name in channels if name not in lists)
            and all(
                name in before
                and before[name].listed.shared_length(value) == len(value)
                and len(before[name].messages) == len(value)
                for name, value in lists.items()
            )
        )

    # -------------------------------------------------------------------------------- records

    def _record(
        self,
        new: NewCheckpoint,
        channels: Channels,
        conversation: str | None,
        placed: Mapping[str, MessageList],
    ) -> Record:
        listed = placed.get(conversation or "")
        files: dict[str, Any] = {}
        data: dict[str, Any] = {
            "checkpoint": self._serializer.encode(new.body, files),
            "metadata": self._serializer.encode(new.metadata, files),
            "parent": new.parent,
            "channels": dict(channels),
            "conversation": conversation,
            "last": None if listed is None else listed.last_id,
            "session": self.session.id,
            "run_id": new.run_id,
        }
        key = key_of(new.ns, new.id)
        contents = [file.data or b"" for file in files.values()]
        id = f"{CHECKPOINT}/{digest(key, repr(data), *contents)}"
        return Record(CHECKPOINT, key=key, data=data, files=files, id=id)

    def _put_run(self, new: NewCheckpoint, base: View) -> None:
        """Store by which run this thread is found, if it is that run's first checkpoint here."""
        while new.run_id is not None and new.run_id != base.run_id:
            before = self._store.record(RUN, new.run_id, scope=MARK)
            sessions: Any = [] if before is None else before.data
            if self.session.id in sessions:
                return
            after = None if before is None else before.id
            data = [*sessions, self.session.id]
            try:
                self._store.put_record(
                    Record(RUN, key=new.run_id, data=data, after=after, scope=MARK)
                )
            except PreconditionFailed:
                continue
            return

    def put_writes(
        self, ns: str, id: str, writes: Sequence[tuple[str, Any]], task: tuple[str, str]
    ) -> None:
        """Store the writes of a task to a checkpoint; `task` is its id and its path."""
        key = key_of(ns, id)
        indexed = [
            (WRITES_IDX_MAP.get(channel, index), channel, value)
            for index, (channel, value) in enumerate(writes)
        ]
        record = records.writes_record(self._serializer, key, indexed, task)
        if any(index < 0 for index, _, _ in indexed):
            record = self._as_newest(record, task[0])
        if self._memory.views.get((self.session.id, ns, id)) is None:
            self._memory.add_early(self.session.id, record)
        self.session.append(record)

    def _as_newest(self, record: Record, task: str) -> Record:
        """Return a record of special writes, which replace others: it must be the task's last."""
        stored: Any = self.session.records(WRITES, key=record.key)
        before = [one.id for one in stored if one.data["task"][0] == task]
        if record.id not in before[:-1] or before[-1] == record.id:
            return record
        return msgspec.structs.replace(record, id=f"{record.id}/{len(before)}")


def _is_changed(new: NewCheckpoint, base: View, name: str) -> bool:
    version = new.versions.get(name)
    return name in new.changed or version is None or base.versions.get(name) != version
