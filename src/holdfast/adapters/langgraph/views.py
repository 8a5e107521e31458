"""What a saver is given, returns and remembers of checkpoints."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from holdfast import Head, Record
from holdfast.adapters.langgraph.message_lists import MessageList

V = TypeVar("V")
_REMEMBERED: Final = 256
_REMEMBERED_MESSAGES: Final = 20_000
_ALWAYS: Final = 4


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as this process last saw it.

    `head` is where the session ended when it was the newest; `None` if nobody looked whether it is.
    `channels` are the stored entries of its channels, `lists` those that are lists of messages.
    """

    id: str | None
    head: Head | None = None
    versions: Mapping[str, Any] = {}
    channels: Mapping[str, Any] = {}
    lists: Mapping[str, MessageList] = {}
    conversation: str | None = None
    run_id: str | None = None


class NewCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to be stored: its channels' values, and all else of it as `body`."""

    ns: str
    id: str
    parent: str | None
    body: dict[str, Any]
    values: dict[str, Any]
    metadata: dict[str, Any]
    changed: Mapping[str, Any]

    @property
    def versions(self) -> Mapping[str, Any]:
        """The versions of its channels."""
        found: Mapping[str, Any] = self.body.get("channel_versions", {})
        return found

    @property
    def run_id(self) -> str | None:
        """The run that made it."""
        found = self.metadata.get("run_id")
        return found if isinstance(found, str) and found else None


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was read, with its pending writes: task, channel and value of each."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[tuple[str, str, Any]]


class RecentlyUsed(Generic[V]):
    """The values that were used last, for any thread: as many as weigh less than `limit`.

    The last few are kept whatever they weigh.
    """

    def __init__(self, limit: int, weight: Callable[[V], int] = lambda _: 1) -> None:
        self._limit = limit
        self._weight = weight
        self._total = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[object, V] = OrderedDict()

    def get(self, key: object) -> V | None:
        """Return a value, or `None`."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: object, value: V) -> None:
        """Set a value; those that were not used for longest may be forgotten."""
        with self._lock:
            before = self._values.pop(key, None)
            self._total += self._weight(value) - (0 if before is None else self._weight(before))
            self._values[key] = value
            while self._total > self._limit and len(self._values) > _ALWAYS:
                _, oldest = self._values.popitem(last=False)
                self._total -= self._weight(oldest)


class Memory:
    """What a saver remembers of all threads, so that most writes need no read.

    `views` are found by session, namespace and checkpoint, `newest` has the newest checkpoint of a
    session and namespace, `missing` the ids of threads that were not there. `early_writes` are
    those to checkpoints that are not stored yet: a graph stores both at the same time.
    """

    def __init__(self) -> None:
        self.missing: RecentlyUsed[bool] = RecentlyUsed(_REMEMBERED)
        self.views: RecentlyUsed[View] = RecentlyUsed(_REMEMBERED_MESSAGES, _size)
        self.newest: RecentlyUsed[str | None] = RecentlyUsed(_REMEMBERED)
        self.early_writes: RecentlyUsed[list[Record]] = RecentlyUsed(_REMEMBERED)
        self._lock = threading.Lock()

    def add_early(self, session: str, record: Record) -> None:
        """Remember a write to a checkpoint that is not stored yet."""
        with self._lock:
            before = self.early_writes.get((session, record.key)) or []
            self.early_writes.put((session, record.key), [*before, record])


def _size(view: View) -> int:
    return _REMEMBERED_MESSAGES // _REMEMBERED + sum(map(len, view.lists.values()))
