"""What an index is, wherever it is kept: in a file beside the store, or in tables of its database.

Whoever searches, adds or erases knows only this. An index knows nothing of the log. It is told
documents in the order in which they are to be numbered, and gives back places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeAlias, get_args

import msgspec

from holdfast.backends.base import Backend, Snapshot
from holdfast.core.branches import Segment
from holdfast.core.search.documents import Document
from holdfast.core.search.query import Query
from holdfast.records import Role

ROLES: Final[tuple[Role, ...]] = get_args(Role)
BUSY: Final = 0.1  # seconds that others are waited for
LOST: Final = -1  # stands for the length of a message that is not to be found
_MARK_BYTES: Final = 6


class Lost(Exception):
    """This index cannot be used any more: damaged, deleted, or not the one it was."""


class Gone(Lost):
    """It was deleted or replaced; what is there now may be sound."""


class Hindered(Exception):
    """This index cannot be used now: somebody else writes to it, or the disk is full."""


class Doc(msgspec.Struct, frozen=True, gc=False):
    """A message as it is indexed."""

    branch: int
    seq: int
    id: str
    role: Role
    at: int
    document: Document
    crc: int = 0
    lost: bool = False  # erased, damaged or missing: it is never found


# A message as it is found: branch, seq, time, mark, length, and counts, which `Chunk.frequencies`
# understands. There are a thousand of them in a search, so each is a plain tuple.
Entry: TypeAlias = tuple[int, int, int, int, int, Any]


class Chunk(msgspec.Struct, frozen=True):
    """Messages that were found, and how to read their counts."""

    entries: list[Entry]
    frequencies: Callable[[Any], tuple[int, ...]]


class Anchor(msgspec.Struct, frozen=True):
    """The message that was indexed last, by which the log is recognised."""

    branch: int
    seq: int
    crc: int


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What must be so beside the words: `since` (included) and `until` (not) in microseconds."""

    role: Role | None = None
    since: int | None = None
    until: int | None = None
    branches: tuple[int, ...] | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What will be asked for while an index is read.

    `certain`: messages will be asked for just so. `titles` are the words that are looked for in
    titles, if any are.
    """

    query: Query
    bounds: Bounds
    thinking: bool
    certain: bool
    titles: Sequence[str] | None


def mark_of(message_id: str) -> int:
    """Return a number by which the same message is known in several places."""
    name = message_id.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=_MARK_BYTES).digest())


class Kept(Protocol):
    """An open index. One that goes wrong raises `Lost`, `Hindered` or `OSError`, nothing else."""

    @property
    def shown(self) -> str:
        """Where it is."""
        ...

    @property
    def needs_words(self) -> bool:
        """Whether it can drop a message only if it is told its words again."""
        ...

    @property
    def far(self) -> bool:
        """Whether every question to it and to the log takes a journey, so that few are better."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

    def disown(self) -> None:
        """Let go of it in a forked child: what it uses is the parent's."""
        ...

    def moved(self) -> bool:
        """Return whether what is open is no longer what is there."""
        ...

    def be_patient(self, seconds: float) -> None:
        """Wait so long for others that write."""
        ...

    def reading(self, wanted: Wanted | None = None) -> AbstractContextManager[None]:
        """Let everything that is read be of one moment; `wanted` is a hint, no more."""
        ...

    def open_log(self, backend: Backend) -> AbstractContextManager[tuple[Snapshot, bool]]:
        """Open the log while the index is being read.

        Yield it, and whether it has messages that the index lacks.
        """
        ...

    def expect(self, places: Sequence[Segment]) -> None:
        """Be told which messages of the log will probably be read next."""
        ...

    def narrowed(
        self, scopes: Sequence[str], agents: Sequence[str], *, all_branches: bool
    ) -> tuple[int, ...] | None:
        """Name the branches that sessions of these scopes and agents may show.

        Nothing if it is no quicker to look only for messages on these.
        """
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Change it, all or nothing; it begins with the lock, so nobody else does meanwhile."""
        ...

    @property
    def activity(self) -> int:
        """Up to which activity of the log it has everything."""
        ...

    @property
    def erasures(self) -> int | None:
        """How many erasures of the log it knows of; nothing if it is new."""
        ...

    @property
    def anchor(self) -> Anchor | None:
        """The message that was indexed last."""
        ...

    @anchor.setter
    def anchor(self, anchor: Anchor | None) -> None: ...

    def put_meta(self, **values: int) -> None:
        """Note how far it is: `activity`, `erasures`."""
        ...

    def newest(self) -> tuple[int, int] | None:
        """Return where the message lies that was added last."""
        ...

    def last(self, branch: int) -> int:
        """Return up to which message of a branch it has them all; 0 for none."""
        ...

    def counts(self) -> dict[int, int]:
        """Count the messages it has of each branch."""
        ...

    def problems(self) -> list[str]:
        """Read all of it and say what is wrong with it."""
        ...

    def documents(self) -> int:
        """Count the messages it has."""
        ...

    def size(self) -> int:
        """Tell how many bytes it takes."""
        ...

    def text(self) -> int:
        """Tell about how much is said in the messages it has."""
        ...

    def add(self, docs: Sequence[Doc]) -> None:
        """Add messages that follow each other on one branch."""
        ...

    def forget(self, doomed: Sequence[Segment], docs: Sequence[Doc]) -> None:
        """Drop the words of messages; their places stay. `docs` has the words, if needed."""
        ...

    def cut(self, branch: int, last: int) -> None:
        """Forget the places of a branch behind `last`; their words are dropped already."""
        ...

    def wipe(self) -> None:
        """Let no byte be left of what was dropped, as far as that can be seen to from here."""
        ...

    def matching(self, query: Query, bounds: Bounds, *, thinking: bool) -> Iterator[Chunk]:
        """Return what has the words that are wanted and none that is not, the last added first.

        Terms without words are left out: whoever asks looks at the texts.
        """
        ...


class Place(Protocol):
    """Where the index of a store is kept, or would be."""

    @property
    def shown(self) -> str:
        """Where that is, in words."""
        ...

    def open(self, *, readonly: bool = False) -> Kept | None:
        """Open the index that is there; nothing if there is none."""
        ...

    def create(self) -> None:
        """Make an empty index, unless somebody just did."""
        ...

    def remove(self) -> None:
        """Take the index away; whoever has it open notices."""
        ...
