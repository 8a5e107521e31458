"""The storage of an index: a file next to the store, or tables of its database.

Searching, indexing and erasing depend on this protocol only. An index stores the words of messages,
numbered in the order in which they are added, and returns positions in the log (branch and `seq`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias, get_args

import msgspec

from holdfast.search.document import Document
from holdfast.search.query import Query
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Snapshot
from holdfast.values import Role

ROLES: Final[tuple[Role, ...]] = get_args(Role)
BUSY_TIMEOUT_S: Final = 0.1  # how long to wait for another connection's lock
UNSEARCHABLE_LENGTH: Final = -1  # stored as the length of a message that no search may find
_ID_HASH_BYTES: Final = 6


class IndexInvalid(Exception):
    """The index is corrupt, of another version or gone: it has to be discarded and rebuilt."""


class IndexReplaced(IndexInvalid):
    """The index was deleted or replaced; the one that is there now may be sound."""


class IndexUnavailable(Exception):
    """The index cannot be used now: it cannot be opened, or the disk is full."""


class IndexBusy(IndexUnavailable):
    """Another connection keeps the index from being written to: a writer, or readers of its WAL."""


class IndexedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it is indexed."""

    branch: int
    seq: int
    id: str
    role: Role
    at: int
    document: Document
    crc: int = 0
    unreadable: bool = False  # erased, damaged or missing: no search finds it


# A message that matches: branch, seq, time, hash of its id, length in words, and term counts, which
# `Chunk.frequencies` decodes. A search has up to a thousand of them, so each is a plain tuple.
Candidate: TypeAlias = tuple[int, int, int, int, int, Any]


class Chunk(msgspec.Struct, frozen=True):
    """Messages that match, and a function that decodes their term counts."""

    candidates: list[Candidate]
    frequencies: Callable[[Any], tuple[int, ...]]


# What an index stores of some messages, in a form of its own.
PreparedRows: TypeAlias = Any


class Anchor(msgspec.Struct, frozen=True):
    """The message that was indexed last; if the log has another one there, it is another log."""

    branch: int
    seq: int
    crc: int


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions apart from the words; `since` (inclusive), `until` (exclusive) in microseconds."""

    role: Role | None = None
    since: int | None = None
    until: int | None = None
    branches: tuple[int, ...] | None = None


class SearchPrefetch(msgspec.Struct, frozen=True, kw_only=True):
    """What a search will probably read, so that storage on a server can send it ahead.

    `exact`: the index will be queried with just these bounds. `titles`: the words that are searched
    for in titles; None if titles are not searched.
    """

    query: Query
    bounds: Bounds
    thinking: bool
    exact: bool
    titles: Sequence[str] | None


def id_hash(message_id: str) -> int:
    """Return a hash of a message id: it identifies a message that is on several branches."""
    name = message_id.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=_ID_HASH_BYTES).digest())


class IndexStorage(Protocol):
    """An open index. On failure it raises `IndexInvalid`, `IndexUnavailable` or `OSError` only."""

    @property
    def label(self) -> str:
        """Its file or tables, as shown to users."""
        ...

    @property
    def needs_words(self) -> bool:
        """True if it can remove a message only when given the message's words again."""
        ...

    @property
    def is_remote(self) -> bool:
        """True if every query of it and of the log takes a round trip to a server."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

    def abandon_after_fork(self) -> None:
        """Abandon the connection in a forked child: it belongs to the parent process."""
        ...

    def moved(self) -> bool:
        """True if the index that is open was deleted or replaced."""
        ...

    def set_busy_timeout(self, seconds: float) -> None:
        """Set how long to wait for another writer."""
        ...

    def reading(self, prefetch: SearchPrefetch | None = None) -> AbstractContextManager[None]:
        """Read everything in the block from one snapshot; `prefetch` is only a hint."""
        ...

    def open_log(self, backend: Backend) -> AbstractContextManager[tuple[Snapshot, bool]]:
        """Open the log while the index is being read.

        Yield the log, and True if it has messages that the index lacks.
        """
        ...

    def prefetch_messages(self, segments: Sequence[Segment]) -> None:
        """Prefetch messages of the log that will probably be read next."""
        ...

    def visible_branches(
        self,
        scopes: Sequence[str],
        agents: Sequence[str],
        cwds: Sequence[str],
        *,
        all_branches: bool,
    ) -> tuple[int, ...] | None:
        """Return the branches that sessions of these scopes, agents and directories may show.

        None if it would not be faster to search these branches only.
        """
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Run the block as one write transaction. It takes the writer lock when it begins."""
        ...

    @property
    def activity(self) -> int:
        """The activity number of the log up to which everything is indexed."""
        ...

    @property
    def erasures(self) -> int | None:
        """The number of erasures in the log when it was last updated; None if it is new."""
        ...

    @property
    def anchor(self) -> Anchor | None:
        """The message that was indexed last."""
        ...

    @anchor.setter
    def anchor(self, anchor: Anchor | None) -> None: ...

    def put_meta(self, **values: int) -> None:
        """Store its state: `activity`, `erasures`."""
        ...

    def newest_position(self) -> tuple[int, int] | None:
        """Return branch and seq of the message that was added last."""
        ...

    def last_seq(self, branch: int) -> int:
        """Return the seq of a branch up to which all messages are indexed; 0 for none."""
        ...

    def counts_by_branch(self) -> dict[int, int]:
        """Return the number of indexed messages by branch."""
        ...

    def problems(self) -> list[str]:
        """Read the whole index and return what is wrong with it."""
        ...

    def message_count(self) -> int:
        """Return the number of indexed messages."""
        ...

    def size(self) -> int:
        """Return its size in bytes."""
        ...

    def text_size(self) -> int:
        """Return the approximate number of characters in the indexed messages."""
        ...

    def prepare(self, docs: Sequence[IndexedMessage]) -> PreparedRows:
        """Return what `add` needs to add messages; another thread may be adding meanwhile."""
        ...

    def add(self, rows: PreparedRows) -> None:
        """Add messages after all others. Those of one branch are added in their order."""
        ...

    def remove_words(self, erased: Sequence[Segment], docs: Sequence[IndexedMessage]) -> None:
        """Remove the words of messages, not their rows. `docs` has the words, if needed."""
        ...

    def truncate_branch(self, branch: int, last: int) -> None:
        """Remove the rows of a branch after `last`; their words are removed already."""
        ...

    def wipe(self) -> None:
        """Overwrite the bytes of words that were removed, as far as the storage allows that."""
        ...

    def matching(self, query: Query, bounds: Bounds, *, thinking: bool) -> Iterator[Chunk]:
        """Return the messages with all wanted and no unwanted words, the last added first.

        Terms without words are ignored: for those the caller checks the texts.
        """
        ...


class IndexLocation(Protocol):
    """The file or the tables of a store's index, whether or not there is one yet."""

    @property
    def label(self) -> str:
        """The file or the tables, as shown to users."""
        ...

    def open(self, *, readonly: bool = False) -> IndexStorage | None:
        """Open the index; None if there is none."""
        ...

    def create(self) -> None:
        """Create an empty index, unless another process just did."""
        ...

    def remove(self) -> None:
        """Remove the index; other connections to it notice."""
        ...
