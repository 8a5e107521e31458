"""Lists of chat messages, and where each of their messages is stored.

A list is kept as spans: of a session and branch, from one seq to another. What a session stored
there never changes, so a list can be read again whatever the session did since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter, eq
from typing import Any, Final, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage

from holdfast import Message
from holdfast.adapters.langgraph.messages import Snapshot, is_unchanged, snapshot
from holdfast.values import JSON

Decode: TypeAlias = Callable[[Sequence[Message]], Sequence[BaseMessage | list[BaseMessage]]]

_PAGE_MESSAGES: Final = 200
_STATE: Final = attrgetter("__dict__", "__pydantic_extra__")


class Place(NamedTuple):
    """Where a message is stored: a session (`""`: that of the thread), a branch and a seq."""

    session: str
    branch: int
    seq: int


class Span(NamedTuple):
    """The messages of a branch from `first` to `last`."""

    session: str
    branch: int
    first: int
    last: int


class MessageList:
    """A list as a graph has it: a snapshot of each of its messages, and where they are stored.

    The messages themselves are the graph's. Without `places`, each message of the spans is one of
    the list.
    """

    def __init__(
        self,
        types: list[type],
        snapshots: list[Snapshot],
        spans: Sequence[Span],
        places: Sequence[Place] | None = None,
    ) -> None:
        self.spans = tuple(spans)
        self._types = types
        self._snapshots = snapshots
        self._places = places

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self._types)

    @property
    def places(self) -> Sequence[Place]:
        """Where each message is stored."""
        if self._places is not None:
            return self._places
        return [
            Place(span.session, span.branch, seq)
            for span in self.spans
            for seq in range(span.first, span.last + 1)
        ]

    @property
    def last_id(self) -> str | None:
        """The id of the last message."""
        if not self._snapshots:
            return None
        id: str | None = self._snapshots[-1][0]["id"]
        return id

    def shared_length(self, value: Sequence[BaseMessage]) -> int:
        """Return how many messages at the beginning of a list are as they are in this one."""
        most = min(len(value), len(self))
        begin = value[:most]
        types = [*map(type, begin)]
        # Each of these is one call that loops in C: a thread has thousands of messages.
        if types == self._types[:most] and all(map(eq, map(_STATE, begin), self._snapshots)):
            return most
        before = zip(self._types, self._snapshots, strict=True)
        for at, (one, (kind, fields)) in enumerate(zip(begin, before, strict=False)):
            if type(one) is not kind or not is_unchanged(one, kind, fields):
                return at
        return most

    def has_id(self, id: str | None) -> bool:
        """Return whether a message of the list has this id."""
        return any(fields["id"] == id for fields, _ in self._snapshots)

    def cut(self, length: int) -> MessageList:
        """Return the list of the first `length` messages."""
        if length == len(self):
            return self
        places = self.places[:length]
        return MessageList(self._types[:length], self._snapshots[:length], to_spans(places), places)

    def followed_by(self, messages: Sequence[BaseMessage], places: Sequence[Place]) -> MessageList:
        """Return this list with others behind it."""
        if not messages:
            return self
        return MessageList(
            [*self._types, *map(type, messages)],
            [*self._snapshots, *map(snapshot, messages)],
            _joined(self.spans, to_spans(places)),
            None if self._places is None else [*self._places, *places],
        )

    def joined_with(self, other: MessageList) -> MessageList:
        """Return this list with another behind it."""
        places = [*self.places, *other.places]
        return MessageList(
            [*self._types, *other._types],
            [*self._snapshots, *other._snapshots],
            to_spans(places),
            places,
        )

    def moved(self, places: Sequence[Place]) -> MessageList:
        """Return the same list with its messages in other places."""
        return MessageList(self._types, self._snapshots, to_spans(places), places)

    def to_json(self) -> JSON:
        """Return the spans of the list."""
        return [list(span) for span in self.spans]


class ReadList(NamedTuple):
    """A list that was read: its messages, for a graph, and what is remembered of them."""

    messages: list[BaseMessage]
    listed: MessageList

    def joined_with(self, other: ReadList) -> ReadList:
        """Return this list with another behind it."""
        listed = self.listed.joined_with(other.listed)
        return ReadList([*self.messages, *other.messages], listed)


EMPTY_LIST: Final = MessageList([], [], ())
EMPTY: Final = ReadList([], EMPTY_LIST)


def to_spans(places: Iterable[Place]) -> list[Span]:
    """Return the spans of places; one message may be several of a list, and is named once."""
    found: list[Span] = []
    for place in places:
        last = found[-1] if found else None
        if last is None or last[:2] != place[:2] or place.seq not in {last.last, last.last + 1}:
            found.append(Span(*place, place.seq))
        elif place.seq != last.last:
            found[-1] = last._replace(last=place.seq)
    return found


def _joined(spans: Sequence[Span], more: Sequence[Span]) -> list[Span]:
    if spans and more and spans[-1][:2] == more[0][:2] and spans[-1].last + 1 == more[0].first:
        whole = spans[-1]._replace(last=more[0].last)
        return [*spans[:-1], whole, *more[1:]]
    return [*spans, *more]


def spans_of(data: Iterable[Any], *, inherited: bool) -> list[Span]:
    """Return spans that were stored; the history that a fork inherited is that of its branch 1."""
    found = [Span(*span) for span in data]
    if not inherited:
        return found
    return [span if span.session else span._replace(branch=1) for span in found]


def read_list(stored: Iterable[Message], decode: Decode, session: str, branch: int) -> ReadList:
    """Return the list that messages of a branch are; `decode` returns what each is for a graph.

    They are taken a few at a time, so that of thousands not all are held in both forms.
    """
    messages: list[BaseMessage] = []
    snapshots: list[Snapshot] = []
    seqs: list[int] = []
    is_plain, rest = True, iter(stored)
    while page := [*islice(rest, _PAGE_MESSAGES)]:
        numbers, decoded = [message.seq or 0 for message in page], decode(page)
        if list in set(map(type, decoded)):
            is_plain = False
            numbers = [
                number
                for number, found in zip(numbers, decoded, strict=True)
                for _ in (found if isinstance(found, list) else (found,))
            ]
            decoded = [
                one for found in decoded for one in (found if isinstance(found, list) else (found,))
            ]
        seqs += numbers
        messages += decoded
        snapshots += map(snapshot, decoded)
    types = [*map(type, messages)]
    if is_plain and seqs and seqs == [*range(seqs[0], seqs[-1] + 1)]:
        spans = [Span(session, branch, seqs[0], seqs[-1])]
        return ReadList(messages, MessageList(types, snapshots, spans))
    places = [Place(session, branch, seq) for seq in seqs]
    return ReadList(messages, MessageList(types, snapshots, to_spans(places), places))
