"""Storing the conversation of a thread with a checkpoint.

A list that grew is an append, in which the checkpoint is stored, too. If others wrote meanwhile,
its messages come behind theirs. A list that was rewritten, or that continues an older checkpoint,
opens a branch first; what others wrote meanwhile is placed there again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from langchain_core.messages import BaseMessage

from holdfast import Head, Message, Record, Session
from holdfast.adapters.langgraph.message_lists import MessageList, Place
from holdfast.adapters.langgraph.messages import MessageCodec
from holdfast.errors import HeadMoved, IdConflict
from holdfast.values import SessionChanges

_MAX_ID_CHARS: Final = 1000


class Conversation:
    """The conversation of one checkpoint that is stored in a session."""

    def __init__(
        self,
        session: Session,
        codec: MessageCodec,
        id: str,
        to_records: Callable[[MessageList | None], list[Record]],
        early_writes: Callable[[], Sequence[Record]],
    ) -> None:
        self._session = session
        self._codec = codec
        self._id = id
        self._to_records = to_records
        self._early_writes = early_writes
        self._taken: set[str] = set()

    def store(
        self,
        before: MessageList,
        shared: int,
        value: list[BaseMessage],
        head: Head | None,
        update: SessionChanges | None,
    ) -> Head:
        """Store a list that was `before`, and the checkpoint; return where the list ends.

        The first `shared` messages are as they were. `head` is where the session ended then;
        `None` if the list continues an older checkpoint.
        """
        if head is None or shared < len(before):
            return self._rewrite(before, shared, value, head, update)
        if len(value) <= shared:
            self._session.append(*self._to_records(before), update=update)
            return head
        return self._grow(before, value, head, update)

    def _grow(
        self,
        before: MessageList,
        value: list[BaseMessage],
        seen: Head,
        update: SessionChanges | None,
    ) -> Head:
        added = value[len(before) :]
        head, arrived = seen, dict[str, Message]()
        while True:
            messages, places = self._placed(before, added, head, arrived)
            entries: list[Message | Record] = [*messages]
            entries += self._to_records(before.followed_by(added, places))
            try:
                return self._session.append(*entries, expect=head, update=update)
            except HeadMoved as moved:
                if not self._continues(moved.actual, seen):
                    return self._rewrite(before, len(before), value, seen, update)
                head = moved.actual
                arrived = {message.id: message for message in self._between(seen, head)}
            except IdConflict as conflict:
                if conflict.message_id in self._taken:
                    raise
                self._taken.add(conflict.message_id)

    def _placed(
        self,
        before: MessageList,
        added: Sequence[BaseMessage],
        head: Head,
        arrived: Mapping[str, Message],
    ) -> tuple[list[Message], list[Place]]:
        """Return the messages to append after `head`, and the place of each that was added."""
        messages: list[Message] = []
        places: list[Place] = []
        for index, one in enumerate(added, len(before)):
            stored = arrived.get(one.id or "")
            if stored is not None and self._codec.is_same(stored, one):
                places.append(Place("", head.branch, stored.seq or 0))
                continue
            is_free = one.id not in arrived and not before.has_id(one.id)
            messages.append(self._encode(one, index, messages, is_free=is_free))
            places.append(Place("", head.branch, head.seq + len(messages)))
        return messages, places

    def _encode(
        self, one: BaseMessage, index: int, others: Iterable[Message], *, is_free: bool
    ) -> Message:
        """Return a message under its id, or one of our own if another message has that."""
        id = one.id
        is_free = is_free and id not in self._taken and all(other.id != id for other in others)
        if not id or len(id) > _MAX_ID_CHARS or not is_free:
            id = f"{self._id}/{index}"
        return self._codec.encode(one, id)

    def _between(self, seen: Head, head: Head) -> list[Message]:
        """Return the messages that came after `seen`, if the history still has that."""
        if head.seq <= seen.seq or not self._continues(head, seen):
            return []
        return self._session.messages(branch=head.branch, after=seen.seq, before=head.seq + 1)

    def _continues(self, head: Head, seen: Head) -> bool:
        """Return whether the history of a head begins with that of an earlier one."""
        if head.branch == seen.branch:
            return head.seq >= seen.seq
        branches = {branch.number: branch for branch in self._session.branches()}
        number: int | None = head.branch
        while number in branches and number != seen.branch:
            if branches[number].fork_seq < seen.seq:
                return False
            number = branches[number].parent
        return number == seen.branch

    # ----------------------------------------------------------------------------- rewriting

    def _rewrite(
        self,
        before: MessageList,
        shared: int,
        value: list[BaseMessage],
        seen: Head | None,
        update: SessionChanges | None,
    ) -> Head:
        places = before.places
        shared = _whole(places, shared)
        kept = _whole(places, _leading(places[:shared]))
        keep = Head(places[kept - 1].branch, kept) if kept else None
        again = self._stored_again(places[kept:shared])
        known = before.cut(kept)
        while True:
            head = self._session.head()
            arrived = [] if seen is None else self._between(seen, head)
            new = self._new_messages(known, again, value, shared, arrived)
            others = {message.id for message in (*again, *new)}
            late = [message for message in arrived if message.id not in others]
            try:
                moved = self._session.replace([*again, *new, *late], keep=keep, expect=head)
            except HeadMoved:
                continue
            break
        seqs = {message.seq: kept + at for at, message in enumerate(again, 1)}
        found = [Place("", moved.branch, at + 1) for at in range(kept)]
        found += [Place("", moved.branch, seqs[place.seq]) for place in places[kept:shared]]
        first = kept + len(again) + 1
        more = [Place("", moved.branch, first + at) for at in range(len(new))]
        whole = before.cut(shared).moved(found).followed_by(value[shared:], more)
        self._session.append(*self._early_writes(), *self._to_records(whole), update=update)
        return moved

    def _new_messages(
        self,
        known: MessageList,
        again: Sequence[Message],
        value: list[BaseMessage],
        shared: int,
        arrived: Sequence[Message],
    ) -> list[Message]:
        """Return what follows the shared part of a list, as messages."""
        late = {message.id: message for message in arrived}
        found: list[Message] = []
        for index, one in enumerate(value[shared:], shared):
            stored = late.get(one.id or "")
            if stored is not None and self._codec.is_same(stored, one):
                found.append(stored)
                continue
            is_free = one.id not in late and not known.has_id(one.id)
            found.append(self._encode(one, index, (*again, *found), is_free=is_free))
        return found

    def _stored_again(self, places: Sequence[Place]) -> list[Message]:
        """Return the messages in these places of the thread, to be placed again."""
        found: dict[Place, Message] = {}
        for branch in dict.fromkeys(place.branch for place in places):
            seqs = {place.seq for place in places if place.branch == branch}
            for message in self._session.messages(
                branch=branch, after=min(seqs) - 1, before=max(seqs) + 1
            ):
                if message.seq in seqs:
                    found[Place("", branch, message.seq)] = message
        return [found[place] for place in dict.fromkeys(places)]


def _leading(places: Sequence[Place]) -> int:
    """Return how many places are the first ones of the session's history."""
    at = 0
    while at < len(places) and places[at].session == "" and places[at].seq == at + 1:
        at += 1
    return at


def _whole(places: Sequence[Place], length: int) -> int:
    """Return the length at which no stored message is cut that is several of the list."""
    while 0 < length < len(places) and places[length - 1] == places[length]:
        length -= 1
    return length
