"""The records of a thread: its checkpoints, their pending writes, and values too long for them.

A checkpoint is one record, found by its namespace and id. It has the values of its channels: short
ones as they are, a list of messages as the places of these, any other as the name of a record that
has it, which all checkpoints share that have the same value. One without data was deleted.

A record goes where the history goes, so the newest one of a namespace is the state at the head. One
that lies on another branch is found by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast import File, Record, Session
from holdfast.adapters.langgraph.serialization import Serializer, digest
from holdfast.values import JSON

CHECKPOINT: Final = "langgraph.checkpoint"
WRITES: Final = "langgraph.writes"
VALUE: Final = "langgraph.value"
RUN: Final = "langgraph.run"

_INLINE_CHARS: Final = 200
_NO_DATA: Final[Mapping[str, bytes]] = {}


def key_of(ns: str, id: str = "") -> str:
    """Return the key of a checkpoint; without an id, the beginning of all keys of a namespace."""
    return f"{len(ns)}:{ns}{id}"


def split_key(key: str) -> tuple[str, str]:
    """Return the namespace and the id of a checkpoint's key."""
    length, _, rest = key.partition(":")
    return rest[: int(length)], rest[int(length) :]


def find(session: Session, kind: str, key: str) -> Record | None:
    """Return the newest record of a key, of the current history or else of any branch."""
    found = session.record(kind, key)
    if found is None:
        found = next(iter(session.records(kind, key=key, limit=1, all_branches=True)), None)
    return found


def newest(session: Session, ns: str, *, all_branches: bool = False) -> Record | None:
    """Return the newest checkpoint of a namespace.

    That of the graph itself is the newest of the current history, unless of all branches. A
    subgraph goes on where it was when its graph goes back to an older checkpoint: its newest is
    that of all branches.
    """
    limit, anywhere = 1, all_branches or bool(ns)
    while True:
        found = session.records(CHECKPOINT, prefix=key_of(ns), limit=limit, all_branches=anywhere)
        deleted: set[str | None] = set()
        for record in reversed(found):
            if record.data is None:
                deleted.add(record.key)
            elif record.key not in deleted:
                return record
        if len(found) < limit:
            return None
        limit *= 8


def all_checkpoints(session: Session, ns: str | None = None) -> list[Record]:
    """Return the checkpoints of a namespace or of all, on all branches, the highest id first."""
    prefix = None if ns is None else key_of(ns)
    found = session.records(CHECKPOINT, prefix=prefix, all_branches=True)
    by_key = {record.key or "": record for record in found}  # the newest of each key
    kept = [record for record in by_key.values() if record.data is not None]
    return sorted(kept, key=lambda record: split_key(record.key or "")[1], reverse=True)


class Values:
    """Encodes the values of channels for one checkpoint, and collects the records they need."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self.records: list[Record] = []

    def encode(self, value: object) -> dict[str, JSON]:
        """Return a channel's entry for a value."""
        files: dict[str, File] = {}
        entry = self._serializer.encode(value, files)
        contents = [file.data or b"" for file in files.values()]
        if not files and len(repr(entry)) <= _INLINE_CHARS:
            return entry
        name = digest(repr(entry), *contents)
        record = Record(VALUE, key=name, data=entry, files=files, id=f"{VALUE}/{name}")
        self.records.append(record)
        return {"value": name}


def value_record(session: Session, entry: Mapping[str, Any]) -> Record:
    """Return the record that an entry names; raise `LookupError` if it is missing."""
    found = find(session, VALUE, entry["value"])
    if found is None:
        raise LookupError(f"the value {entry['value']} of a channel is missing")
    return found


def bare(record: Record) -> Record:
    """Return a record without its place, to be stored elsewhere."""
    return msgspec.structs.replace(record, seq=None, created_at=None)


def again(record: Record) -> Record:
    """Return a record to be stored once more, behind others."""
    return msgspec.structs.replace(bare(record), id=Record(record.kind).id)


def data_of(record: Record, blobs: Callable[..., dict[str, bytes]]) -> Mapping[str, bytes]:
    """Return the data of a record's files; `blobs` reads what the record does not have."""
    if not record.files:
        return _NO_DATA
    names = [file.sha256 for file in record.files.values() if file.data is None]
    read = blobs(*names) if names else {}
    return {
        name: read[file.sha256 or ""] if file.data is None else file.data
        for name, file in record.files.items()
    }


# ------------------------------------------------------------------------------- pending writes


def writes_record(
    serializer: Serializer,
    key: str,
    writes: Sequence[tuple[int, str, Any]],
    task: tuple[str, str],
) -> Record:
    """Return the record of a task's writes to a checkpoint; `task` is its id and its path."""
    files: dict[str, File] = {}
    encoded: list[JSON] = [
        [index, channel, serializer.encode(value, files)] for index, channel, value in writes
    ]
    data: JSON = {"task": list(task), "writes": encoded}
    contents = [file.data or b"" for file in files.values()]
    id = f"{WRITES}/{digest(key, repr(data), *contents)}"
    return Record(WRITES, key=key, data=data, files=files, id=id)


def merged_writes(records: Sequence[Record]) -> Iterator[tuple[str, str, Any, Record]]:
    """Yield the writes to a checkpoint as task, channel, entry and record, in their order.

    Of two with the same place in a task the first counts; of special ones (errors, interrupts), the
    last.
    """
    found: dict[tuple[str, int], tuple[str, str, Any, Record]] = {}
    for record in records:
        data: Any = record.data
        task, path = data["task"]
        for index, channel, entry in data["writes"]:
            if index < 0 or (task, index) not in found:
                found[task, index] = (path, channel, entry, record)
    for task, index in sorted(found, key=lambda name: (found[name][0], *name)):
        _, channel, entry, record = found[task, index]
        yield task, channel, entry, record
