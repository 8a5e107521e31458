"""Removing the words of erased messages from an index.

An index in a file can remove a message's words only when given the words again, so they are read
from the log before they are erased there. The index is locked from then until they are removed, so
that no other process adds them again. Remains in the file's WAL and between the cells of its pages
are overwritten as in the store's own file (see `storage.sqlite.wipe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from holdfast.search import indexer
from holdfast.search.indexer import IndexStale, to_indexed
from holdfast.search.protocol import (
    Anchor,
    IndexedMessage,
    IndexInvalid,
    IndexStorage,
    IndexUnavailable,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Snapshot

_MAX_MESSAGES = 5_000  # rebuilding the index is faster than removing more messages than that


class Eraser:
    """One erasure, from before the write to the log until the words are out of the index."""

    def __init__(self, backend: Backend, storage: IndexStorage) -> None:
        self._backend = backend
        self._storage = storage
        self._transaction = ExitStack()
        self._docs: list[IndexedMessage] = []
        self._segments: tuple[Segment, ...] = ()
        self._erasures = 0

    def prepare(self, erased: Sequence[Segment] | None) -> None:
        """Lock the index, and read the messages that will be erased."""
        if erased is None:
            raise IndexStale("it is unknown which messages are erased")
        self._transaction.enter_context(self._storage.writing())
        self._segments = tuple(erased)
        self._docs, self._erasures = self._backend.read(self._read)

    def _read(self, snapshot: Snapshot) -> tuple[list[IndexedMessage], int]:
        indexer.check_not_stale(snapshot, self._storage)
        docs: list[IndexedMessage] = []
        for doc in _docs(snapshot, self._segments) if self._storage.needs_words else ():
            docs.append(doc)
            if len(docs) > _MAX_MESSAGES:
                raise IndexStale("too many messages are erased")
        return docs, snapshot.erasures()

    def finish(self) -> None:
        """Remove the words from the index, now that they are erased in the log."""
        now, lasts = self._backend.read(self._read_remaining)
        if now == self._erasures:  # The write erased nothing.
            self._transaction.close()
            return
        if now != self._erasures + 1:
            raise IndexStale("another process erased messages at the same time")
        self._storage.remove_words(self._segments, self._docs)
        for branch, last in lasts.items():
            self._refuse_unplanned(branch, last)
            self._storage.truncate_branch(branch, last)
        self._storage.anchor = self._backend.read(self._anchor)
        self._storage.put_meta(erasures=now)
        self._transaction.close()
        self._storage.wipe()

    def _read_remaining(self, snapshot: Snapshot) -> tuple[int, dict[int, int]]:
        rows = {n: snapshot.find_branch(n) for n in {part.branch for part in self._segments}}
        lasts = {n: 0 if row is None else row.last_seq for n, row in rows.items()}
        return snapshot.erasures(), lasts

    def _anchor(self, snapshot: Snapshot) -> Anchor | None:
        """Return the anchor again: the message that is last in the index now."""
        newest = self._storage.newest_position()
        if newest is None:
            return None
        branch, seq = newest
        for _, rows in snapshot.messages([Segment(branch, seq, seq, "")]):
            for row in rows:
                return Anchor(branch, seq, row.crc)
        return None

    def _refuse_unplanned(self, branch: int, last: int) -> None:
        """Raise `IndexStale` if the log lost more messages than were planned."""
        seq, indexed = last + 1, self._storage.last_seq(branch)
        for part in sorted(self._segments, key=lambda part: part.first):
            if part.branch == branch and part.first <= seq:
                seq = max(seq, (part.last or 0) + 1)
        if seq <= indexed:
            raise IndexStale("more messages were erased than were planned")

    def cancel(self) -> bool:
        """Release the index unchanged. Return True if the log is unchanged, too."""
        try:
            now = self._backend.read(lambda snapshot: snapshot.erasures())
        except Exception:  # noqa: BLE001 - after any error the state of the log is unknown
            now = -1
        self.roll_back()
        return now == self._erasures

    def roll_back(self) -> None:
        """Roll back the index transaction, which releases its lock."""
        with suppress(IndexUnavailable, IndexInvalid, _RollBack), self._transaction:
            raise _RollBack


class _RollBack(Exception):
    """Raised inside a transaction to roll it back."""


def _docs(snapshot: Snapshot, segments: Sequence[Segment]) -> Iterator[IndexedMessage]:
    for segment in segments:
        for owner, rows in snapshot.messages([segment]):
            for row in rows:
                yield to_indexed(snapshot, owner, segment.branch, row)
