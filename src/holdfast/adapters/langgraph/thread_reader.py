"""Reading the checkpoints of a thread.

The newest checkpoint of a graph is the newest record of the current history, and its conversation
is what that history says: also what another program or another run added meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, Final

from holdfast import Head, Message, Record, Session, Store
from holdfast.adapters.langgraph import checkpoint_records as records
from holdfast.adapters.langgraph.checkpoint_records import CHECKPOINT, WRITES, key_of
from holdfast.adapters.langgraph.message_lists import (
    EMPTY,
    ReadList,
    Span,
    read_list,
    spans_of,
)
from holdfast.adapters.langgraph.messages import MessageCodec
from holdfast.adapters.langgraph.serialization import Foreign, Serializer
from holdfast.adapters.langgraph.views import Memory, StoredCheckpoint, View

CONVERSATION: Final = "messages"
_MANY_MESSAGES: Final = 500
_REWRITES: Final = frozenset({"start", "fork", "continue", "replace"})
# Ids of checkpoints that nobody stored: the end of a history in which no graph took part yet. They
# come before all others.
_UNSTORED: Final = "00000000-0000-6000-8000-"
_FIRST_VERSION: Final = f"{1:032}.{0:016}"


class ThreadReader:
    """The checkpoints of one thread, to read them."""

    def __init__(
        self, store: Store, session: Session, serializer: Serializer, memory: Memory
    ) -> None:
        self.session = session
        self._store = store
        self._serializer = serializer
        self._codec = MessageCodec(serializer, store.blobs)
        self._memory = memory

    def newest(self, ns: str) -> StoredCheckpoint | None:
        """Return the newest checkpoint of a namespace."""
        if ns:
            record = records.newest(self.session, ns)
            return None if record is None else self._read(record, is_newest=True)
        record = records.newest(self.session, ns)
        if record is not None and (whole := self._whole_history(record)) is not None:
            return self._read(record, conversation=whole[1], is_newest=True, head=whole[0])
        return self._newest_of_history(ns)

    def _newest_of_history(self, ns: str) -> StoredCheckpoint | None:
        while True:
            head = self.session.head()
            record = records.newest(self.session, ns)
            conversation = self._history(head)
            # If the branch was left meanwhile, the record may not lie on it.
            if self.session.head().branch == head.branch:
                break
        left = self._before_rewrite(head) if record is None else None
        if left is not None:
            return self._read(left, conversation=conversation, is_newest=True, head=head, left=True)
        if record is None and not head.seq:
            self._remember(ns, View(id=None, head=head))
            return None
        found = record or _unstored(head)
        return self._read(found, conversation=conversation, is_newest=True, head=head)

    def _before_rewrite(self, head: Head) -> Record | None:
        """Return the newest checkpoint of all branches if the history was only rewritten since.

        Then it has none of its own: a crash came first, or another program rewrote it.
        """
        branches = {branch.number: branch for branch in self.session.branches()}
        found = None
        if head.branch in branches and branches[head.branch].reason == "replace":
            found = records.newest(self.session, "", all_branches=True)
        if found is None or found.created_at is None:
            return None
        later = (one for one in branches.values() if one.created_at >= found.created_at)
        return found if {one.reason for one in later} <= _REWRITES else None

    def _whole_history(self, record: Record) -> tuple[Head, ReadList] | None:
        """Return the conversation of the newest checkpoint if it is all of the current history.

        That is the rule. On another branch the checkpoint's messages may have been amended.
        """
        data: Any = record.data
        spans = data["channels"].get(data["conversation"], {}).get("list", ())
        if len(spans) != 1 or data["session"] != self.session.id:
            return None
        session, branch, first, last = spans[0]
        if session or first != 1 or last != record.seq:
            return None
        stored = _messages(self.session, last)
        found = read_list(stored, self._codec.decode, "", branch)
        is_whole = found.listed.spans == (Span("", branch, 1, last),)
        if not is_whole or found.listed.last_id != data["last"]:
            return None
        if self.session.head().branch != branch:  # Asked last: no branch comes back.
            return None
        return Head(branch, last), found

    def find(self, ns: str, id: str) -> StoredCheckpoint | None:
        """Return a checkpoint, of any branch."""
        if id.startswith(_UNSTORED) and not ns:
            return self._read(_unstored(Head(int(id[24:28], 16), int(id[28:], 16))))
        record = records.find(self.session, CHECKPOINT, key_of(ns, id))
        return None if record is None or record.data is None else self._read(record)

    def read(self, record: Record) -> StoredCheckpoint:
        """Return the checkpoint of a record."""
        return self._read(record)

    def lists(self, record: Record) -> Mapping[str, ReadList]:
        """Return the lists of messages of a checkpoint, as they were when it was stored."""
        return self._lists(record, None)

    def metadata(self, record: Record) -> dict[str, Any]:
        """Return the metadata of a checkpoint."""
        return self._decoded(record, "metadata")

    def body(self, record: Record) -> dict[str, Any]:
        """Return a checkpoint without the values of its channels."""
        return self._decoded(record, "checkpoint")

    def _decoded(self, record: Record, field: str) -> dict[str, Any]:
        data: Any = record.data
        files = records.data_of(record, self._store.blobs)
        found: dict[str, Any] = self._serializer.decode(data[field], files)
        return found

    def _read(
        self,
        record: Record,
        *,
        conversation: ReadList | None = None,
        is_newest: bool = False,
        head: Head | None = None,
        left: bool = False,
    ) -> StoredCheckpoint:
        """Return the checkpoint of a record; `left`: of one that lies on a branch that was left."""
        ns, id = records.split_key(record.key or "")
        data: Any = record.data
        body, lists = self.body(record), self._lists(record, conversation)
        # LangGraph leaves out a channel without a version, such as one that only others filled.
        body["channel_versions"] = {
            **dict.fromkeys(lists, _FIRST_VERSION),
            **body.get("channel_versions", {}),
        }
        channels = {**data["channels"], **{name: {"list": []} for name in lists}}
        if is_newest or self._memory.newest.get((self.session.id, ns)) != id:
            view = View(
                id=id,
                head=head,
                versions=body["channel_versions"],
                channels=channels,
                lists={name: found.listed for name, found in lists.items()},
                conversation=data["conversation"] or next(iter(lists), None),
                run_id=data["run_id"],
            )
            self._remember(ns, view, is_newest=is_newest)
        body["channel_values"] = {
            name: lists[name].messages if name in lists else self._value(entry)
            for name, entry in channels.items()
        }
        return StoredCheckpoint(
            ns=ns,
            id=id,
            parent=data["parent"],
            checkpoint=body,
            metadata=self.metadata(record),
            writes=self._writes(record.key or "", all_branches=left or bool(ns) or not is_newest),
        )

    def _lists(self, record: Record, conversation: ReadList | None) -> dict[str, ReadList]:
        """Return the lists of messages of a checkpoint, with this conversation if one is given."""
        data: Any = record.data
        channels: dict[str, Any] = data["channels"]
        name = data["conversation"] or CONVERSATION
        found: dict[str, ReadList] = {}
        entry = channels.get(name, {"list": []})
        if conversation and "list" in entry and (conversation.messages or name in channels):
            found[name] = conversation
        is_inherited = data["session"] not in {"", self.session.id}
        for channel, entry in channels.items():
            if "list" in entry and channel not in found:
                found[channel] = self._list(spans_of(entry["list"], inherited=is_inherited))
        return found

    def _value(self, entry: Mapping[str, Any]) -> Foreign:
        if "value" not in entry:
            return self._serializer.decode(entry, {})
        record = records.value_record(self.session, entry)
        data: Any = record.data
        return self._serializer.decode(data, records.data_of(record, self._store.blobs))

    def _history(self, head: Head) -> ReadList:
        """Return the conversation up to a head."""
        if not head.seq:
            return EMPTY
        stored = _messages(self.session, head.seq, branch=head.branch, before=head.seq + 1)
        return read_list(stored, self._codec.decode, "", head.branch)

    def _list(self, spans: Sequence[Span]) -> ReadList:
        """Return the list whose messages are in these spans."""
        parts = []
        for (name, branch), group in groupby(spans, key=lambda span: span[:2]):
            session = self._store.get(name) if name else self.session
            stored = _stored(session, branch, list(group))
            parts.append(read_list(stored, self._codec.decode, name, branch))
        return reduce(ReadList.joined_with, parts, EMPTY) if len(parts) != 1 else parts[0]

    def _writes(self, key: str, *, all_branches: bool) -> list[tuple[str, str, Any]]:
        found = self.session.records(WRITES, key=key, all_branches=all_branches)
        data = {record.id: records.data_of(record, self._store.blobs) for record in found}
        return [
            (task, channel, self._serializer.decode(entry, data[record.id]))
            for task, channel, entry, record in records.merged_writes(found)
        ]

    def _remember(self, ns: str, view: View, *, is_newest: bool = True) -> None:
        self._memory.views.put((self.session.id, ns, view.id), view)
        if is_newest:
            self._memory.newest.put((self.session.id, ns), view.id)


def _messages(
    session: Session, count: int, *, branch: int | None = None, before: int | None = None
) -> Iterable[Message]:
    """Return the last `count` messages before a seq; many of them are not read at once."""
    if count > _MANY_MESSAGES:
        after = None if before is None else before - count - 1
        return session.iter_messages(branch=branch, after=after, before=before)
    return session.messages(branch=branch, before=before, limit=count)


def _stored(session: Session, branch: int, spans: Sequence[Span]) -> Iterable[Message]:
    first, last = min(span.first for span in spans), max(span.last for span in spans)
    found = _messages(session, last + 1 - first, branch=branch, before=last + 1)
    if len(spans) == 1:
        return found
    by_seq = {message.seq: message for message in found}
    return [by_seq[seq] for span in spans for seq in range(span.first, span.last + 1)]


def _unstored(head: Head) -> Record:
    """Return the checkpoint of a history in which no graph took part yet."""
    id = f"{_UNSTORED}{head.branch:04x}{head.seq:08x}"
    body = {
        "v": 4,
        "id": id,
        "ts": "1970-01-01T00:00:00+00:00",
        "channel_versions": {},
        "versions_seen": {},
        "updated_channels": None,
    }
    data: Any = {
        "checkpoint": {"json": body},
        "metadata": {"json": {"source": "update", "step": -2, "parents": {}}},
        "parent": None,
        "channels": {CONVERSATION: {"list": [["", head.branch, 1, head.seq]]}},
        "conversation": CONVERSATION,
        "session": "",
        "run_id": None,
    }
    return Record(CHECKPOINT, key=key_of("", id), data=data)
