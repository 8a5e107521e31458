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
from holdfast.search.indexer import Outdated, doc_of
from holdfast.search.protocol import Anchor, Doc, Hindered, Kept, Lost
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Backend, Snapshot

_MOST = 5_000  # rebuilding the index is faster than removing more messages than that


class Eraser:
    """One erasure, from before the write to the log until the words are out of the index."""

    def __init__(self, backend: Backend, storage: Kept) -> None:
        self._backend = backend
        self._file = storage
        self._open = ExitStack()
        self._docs: list[Doc] = []
        self._doomed: tuple[Segment, ...] = ()
        self._erasures = 0

    def prepare(self, erased: Sequence[Segment] | None) -> None:
        """Lock the index, and read the messages that will be erased."""
        if erased is None:
            raise Outdated("it is unknown which messages are erased")
        self._open.enter_context(self._file.writing())
        self._doomed = tuple(erased)
        self._docs, self._erasures = self._backend.read(self._read)

    def _read(self, snapshot: Snapshot) -> tuple[list[Doc], int]:
        indexer.check(snapshot, self._file)
        docs: list[Doc] = []
        for doc in _docs(snapshot, self._doomed) if self._file.needs_words else ():
            docs.append(doc)
            if len(docs) > _MOST:
                raise Outdated("too many messages are erased")
        return docs, snapshot.erasures()

    def finish(self) -> None:
        """Remove the words from the index, now that they are erased in the log."""
        now, lasts = self._backend.read(self._left)
        if now == self._erasures:  # The write erased nothing.
            self._open.close()
            return
        if now != self._erasures + 1:
            raise Outdated("another process erased messages at the same time")
        self._file.forget(self._doomed, self._docs)
        for branch, last in lasts.items():
            self._refuse_unknown(branch, last)
            self._file.cut(branch, last)
        self._file.anchor = self._backend.read(self._anchor)
        self._file.put_meta(erasures=now)
        self._open.close()
        self._file.wipe()

    def _left(self, snapshot: Snapshot) -> tuple[int, dict[int, int]]:
        rows = {n: snapshot.find_branch(n) for n in {part.branch for part in self._doomed}}
        lasts = {n: 0 if row is None else row.last_seq for n, row in rows.items()}
        return snapshot.erasures(), lasts

    def _anchor(self, snapshot: Snapshot) -> Anchor | None:
        """Return the anchor again: the message that is last in the index now."""
        newest = self._file.newest()
        if newest is None:
            return None
        branch, seq = newest
        for _, rows in snapshot.messages([Segment(branch, seq, seq, "")]):
            for row in rows:
                return Anchor(branch, seq, row.crc)
        return None

    def _refuse_unknown(self, branch: int, last: int) -> None:
        """Raise `IndexStale` if the log lost more messages than were planned."""
        seq, indexed = last + 1, self._file.last(branch)
        for part in sorted(self._doomed, key=lambda part: part.first):
            if part.branch == branch and part.first <= seq:
                seq = max(seq, (part.last or 0) + 1)
        if seq <= indexed:
            raise Outdated("more messages were erased than were planned")

    def undo(self) -> bool:
        """Release the index unchanged. Return True if the log is unchanged, too."""
        try:
            now = self._backend.read(lambda snapshot: snapshot.erasures())
        except Exception:  # noqa: BLE001 - after any error the state of the log is unknown
            now = -1
        self.give_up()
        return now == self._erasures

    def give_up(self) -> None:
        """Roll back the index transaction, which releases its lock."""
        with suppress(Hindered, Lost, _Undone), self._open:
            raise _Undone


class _Undone(Exception):
    """Raised inside a transaction to roll it back."""


def _docs(snapshot: Snapshot, segments: Sequence[Segment]) -> Iterator[Doc]:
    for segment in segments:
        for owner, rows in snapshot.messages([segment]):
            for row in rows:
                yield doc_of(snapshot, owner, segment.branch, row)
