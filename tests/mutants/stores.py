"""Stores with one defect each. Every one of them was seen in a real session store.

Those that keep the log but get a rule wrong replace one part of the healthy memory store: a method
of its transaction, or an operation. Those that are wrong by design (rewrite everything, merge,
cache) override the calls themselves.
"""

import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest

from holdfast import codec
from holdfast.errors import HeadMoved
from holdfast.operations import append as append_operation
from holdfast.operations.session_changes import SessionUpdate
from holdfast.session import number_of
from holdfast.storage import memory
from holdfast.storage.ancestry import ranges
from holdfast.storage.protocol import Snapshot, Transaction
from holdfast.storage.rows import BlobUse, HeadRow, MessageRow
from holdfast.turn import Turn
from holdfast.values import Head, Message, Part, Text
from tests.mutants.workload import Log


def pause(until: Callable[[], bool]) -> None:
    """Wait until another writer has run; give up after some attempts, if alone.

    Attempts are counted, not seconds: on a busy machine other threads may not run for seconds.
    """
    for _ in range(30):
        if until():
            return
        time.sleep(0.001)


@contextmanager
def replaced(where: object, name: str, what: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, what)
        yield


class Patched(Log):
    """A healthy store in which one part is replaced while it is used."""

    where: object
    name: str

    def __init__(self) -> None:
        self._patch = replaced(self.where, self.name, self.broken())
        self._patch.__enter__()
        super().__init__()

    def broken(self) -> object:
        """Return the broken part."""
        raise NotImplementedError

    def close(self) -> None:
        super().close()
        self._patch.__exit__(None, None, None)


class BrokenTransaction(Patched):
    """A healthy store whose transaction has one broken method."""

    where = memory
    name = "MemoryTransaction"


# -------------------------------------------------------------------------- one broken part each


class NoIdempotency(BrokenTransaction):
    """It never checks whether an id is stored: a retry is stored again."""

    def broken(self) -> object:
        class Broken(memory.MemoryTransaction):
            looked = False

            def stored(self, branch: int, ids: Sequence[str]) -> dict[str, tuple[str, MessageRow]]:
                """Return nothing before the write; own writes are visible."""
                found = super().stored(branch, ids) if self.looked else {}
                self.looked = True
                return found

        return Broken


class NoFence(Patched):
    """It lets former holders of the turn write."""

    where = append_operation
    name = "fenced_head"

    def broken(self) -> object:
        def find(tx: Transaction, session: int, turn: int) -> HeadRow:
            return append_operation.find_head(tx, session)

        return find


class SkipsSeqs(BrokenTransaction):
    """It counts a number for every attempt, as a database sequence does: refusals leave gaps."""

    def broken(self) -> object:
        class Broken(memory.MemoryTransaction):
            def head(self, n: int) -> HeadRow | None:
                row = super().head(n)
                if row is None or row.seq % 7 != 5:
                    return row
                return msgspec.structs.replace(row, seq=row.seq + 1)

        return Broken

    def read(self) -> list[Message]:
        """Read whatever rows there are: its own reader does not mind the gaps."""
        return self.store.backend.read(partial(_rows, session=number_of(self.session())))


def _rows(snapshot: Snapshot, session: int) -> list[Message]:
    head = snapshot.head(session)
    assert head is not None
    found = snapshot.messages(ranges(snapshot.path(head.branch), 1, head.seq))
    return [
        codec.decode(row.body, id=row.id, seq=row.seq, turn_id=None, blob=snapshot.blob)
        for _, rows in found
        for row in rows
    ]


class TidiesBodies(BrokenTransaction):
    """It rewrites what it stores: normalised, and without the spaces around it."""

    def broken(self) -> object:
        class Broken(memory.MemoryTransaction):
            def add_messages(
                self, branch: int, rows: Sequence[MessageRow], blobs: Iterable[BlobUse] = ()
            ) -> None:
                super().add_messages(branch, [_tidied(row) for row in rows], blobs)

        return Broken


def _tidied(row: MessageRow) -> MessageRow:
    said = row.body.decode()
    body = unicodedata.normalize("NFC", said).replace('" ', '"').encode()
    return MessageRow.create(row.seq, row.id, row.turn, body)


class IgnoresExpect(Patched):
    """It compares heads and writes all the same; then it says that it has not."""

    where = append_operation
    name = "append"

    def broken(self) -> object:
        healthy = append_operation.append

        def append(
            session: int,
            batch: Sequence[codec.EncodedMessage],
            records: Sequence[codec.EncodedRecord] = (),
            *,
            expect: Head | None = None,
            update: SessionUpdate | None = None,
        ) -> Callable[[Transaction], Head]:
            return healthy(session, batch, records, update=update)

        return append

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        before = self.head()
        last = super().append(*messages)
        if expect is not None and expect != before:
            raise HeadMoved(expect, before)
        return last


class DropsRepeats(Patched):
    """It takes two equal texts for one message: de-duplication by content."""

    where = append_operation
    name = "new_messages"

    def broken(self) -> object:
        seen: set[str] = set()
        healthy = append_operation.new_messages

        def fresh(
            batch: Sequence[codec.EncodedMessage], there: dict[str, tuple[int, bytes]]
        ) -> list[codec.EncodedMessage]:
            new = [item for item in healthy(batch, there) if item.message.text not in seen]
            seen.update(item.message.text for item in new)
            return new

        return fresh


# ----------------------------------------------------------------------------- wrong by design


class Rewriting(Log):
    """A list in memory that is read, changed and put back; the rest is the healthy store's."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Message] = []
        self.guard = threading.Lock()

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        rows = self.load()
        if expect is not None and expect.seq != len(rows):
            raise HeadMoved(expect, Head(1, len(rows)))
        there = {row.id for row in rows}
        rows += [message for message in messages if message.id not in there]
        self.save(_numbered(rows))
        return next(seq for seq, row in enumerate(rows, 1) if row.id == messages[-1].id)

    def add(self, turn: Turn, message: Message) -> int:
        turn.add(message)
        return self.append(message)

    def head(self) -> Head:
        return Head(1, len(self.rows))

    def read(self) -> list[Message]:
        return list(self.rows)

    def load(self) -> list[Message]:
        """Read everything."""
        return list(self.rows)

    def save(self, rows: list[Message]) -> None:
        """Write everything."""
        self.rows = rows


def _numbered(rows: Iterable[Message]) -> list[Message]:
    return [msgspec.structs.replace(row, seq=seq) for seq, row in enumerate(rows, 1)]


class LostUpdate(Rewriting):
    """It reads all, adds its own, and writes all: writes in between are overwritten."""

    def load(self) -> list[Message]:
        before, rows = self.rows, super().load()
        pause(lambda: self.rows is not before)
        return rows


class ClearsFirst(Rewriting):
    """It clears the history and adds it again, one by one: a reader comes in between."""

    def __init__(self) -> None:
        super().__init__()
        self.cleared = False
        self.reads = 0

    def read(self) -> list[Message]:
        pause(lambda: self.cleared)
        rows = super().read()
        self.reads += 1
        return rows

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        with self.guard:
            return super().append(*messages, expect=expect)

    def save(self, rows: list[Message]) -> None:
        self.rows = []
        before, self.cleared = self.reads, True
        pause(lambda: self.reads > before)
        self.cleared = False
        for row in rows:
            self.rows = [*self.rows, row]


class SeqFromClock(Rewriting):
    """It numbers messages by the time: two in one tick share it, a pause leaves a gap."""

    def save(self, rows: list[Message]) -> None:
        self.rows = [
            row if row.seq else msgspec.structs.replace(row, seq=time.time_ns() // 1000)
            for row in rows
        ]

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        with self.guard:
            rows = self.load()
            there = {row.id for row in rows}
            self.save(rows + [message for message in messages if message.id not in there])
            return next(row.seq or 0 for row in self.rows if row.id == messages[-1].id)


class SortsByTime(Log):
    """It gives messages in the order of their times; a clock that stands or goes back rules."""

    def read(self) -> list[Message]:
        by_time = sorted(super().read(), key=lambda m: (m.role, m.created_at))
        return _numbered(by_time)


class TearsBatches(Log):
    """It stores a batch one by one; the process ends in between."""

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        if messages[0].text == "last words":
            messages = messages[:1]
        for message in messages:
            seq = super().append(message, expect=expect)
            expect = None
        return seq


class AcksFirst(Log):
    """It acknowledges buffered writes; a crash comes before the buffer is written."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: list[Message] = []

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        if messages[0].text != "life goes on":
            return super().append(*messages, expect=expect)
        self.buffer += messages
        return self.head().seq + len(self.buffer)

    def read(self) -> list[Message]:
        kept = super().read()
        return kept + _numbered([*kept, *self.buffer])[len(kept) :]

    def crash(self) -> None:
        self.buffer.clear()


class CachesReads(Log):
    """It returns cached reads after later writes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: list[Message] | None = None
        self.age = 0

    def read(self) -> list[Message]:
        if self.cache is None or self.age % 4 == 0:
            self.cache = super().read()
        self.age += 1
        return self.cache

    def crash(self) -> None:
        self.cache = None


class InventsMessages(Log):
    """It adds messages of its own to what it returns: a greeting, a repaired reply."""

    def read(self) -> list[Message]:
        return _numbered([Message.system("Welcome!", id="greeting"), *super().read()])


class LastWriteWins(Log):
    """It takes the newest body for an id: a retry rewrites a stored message."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}

    def append(self, *messages: Message, expect: Head | None = None) -> int:
        for message in messages:
            self.versions[message.id] = self.versions.get(message.id, 0) + 1
        return super().append(*messages, expect=expect)

    def read(self) -> list[Message]:
        return [self._newest(message) for message in super().read()]

    def _newest(self, message: Message) -> Message:
        parts: tuple[Part, ...] = (Text(f"{message.text} v{self.versions.get(message.id, 1)}"),)
        if self.versions.get(message.id, 1) == 1:
            return message
        return msgspec.structs.replace(message, parts=parts)
