"""The trace of a run: the list of its effects on files.

A trace is the whole history of one run as the storage saw it: which names were bound to which
files, which bytes were written where, what was synced, and what the code under test reported
meanwhile (`Begin`, `Ack`). A file is identified by a number, not by its name, because a name can be
deleted and reused for another file while the first is still in doubt.

A sync makes durable what was done before it *began*: `covers` is the number of events that had
happened by then. A name is durable once its directory was synced (`SyncNames`), as in POSIX.

Traces are saved to a file when a crash state fails, so that the very bytes can be rebuilt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec


class LinkName(msgspec.Struct, frozen=True, tag="Link"):
    """A file was created under a name."""

    name: str
    file: int


class Unlink(msgspec.Struct, frozen=True, tag=True):
    """A name was deleted."""

    name: str


class Adopt(msgspec.Struct, frozen=True, tag=True):
    """A file created outside the recording was opened: taken as durable, as nothing is known."""

    name: str
    file: int
    data: bytes


class Write(msgspec.Struct, frozen=True, tag=True):
    """Bytes were written."""

    file: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, tag=True):
    """A file was given a size."""

    file: int
    size: int


class Sync(msgspec.Struct, frozen=True, tag=True):
    """A file was synced."""

    file: int
    covers: int


class SyncNames(msgspec.Struct, frozen=True, tag=True):
    """The directory was synced."""

    covers: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The code under test is about to do something."""

    what: str


class Ack(msgspec.Struct, frozen=True, tag=True):
    """The code under test promised that something is stored."""

    what: str


TraceEvent = LinkName | Unlink | Adopt | Write | Truncate | Sync | SyncNames | Begin | Ack


class Trace(msgspec.Struct, frozen=True):
    """The files that were there before the run, all durable, and the events of the run."""

    before: dict[str, bytes]
    events: list[TraceEvent]

    def save(self, path: Path) -> None:
        """Write the trace to a file."""
        path.write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a trace that `save` wrote."""
        return msgspec.msgpack.decode(path.read_bytes(), type=cls)

    def files_of(self, name: str) -> set[int]:
        """Return the numbers of all files that ever had this name."""
        numbers = {number for number, known in enumerate(self.before) if known == name}
        for event in self.events:
            if isinstance(event, LinkName | Adopt) and event.name == name:
                numbers.add(event.file)
        return numbers

    def syncs_of(self, name: str) -> int:
        """Count the syncs of a name: on a main database in WAL mode, its checkpoints."""
        numbers = self.files_of(name)
        return sum(isinstance(event, Sync) and event.file in numbers for event in self.events)
