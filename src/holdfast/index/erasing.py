"""Taking the words of erased messages out of an index.

A file can drop a message's words only if it is told them again, so they are read from the log
before they are erased there. The index is locked from then until it has dropped them: nobody adds
them again in between. What comes to stand in the file's log, and between the cells of its pages,
is overwritten as in the store's own file (see `backends.sqlite.scrub`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from holdfast.backends.base import Backend, Snapshot
from holdfast.core.branches import Segment
from holdfast.index import catching_up
from holdfast.index.catching_up import Outdated, doc_of
from holdfast.index.kept import Anchor, Doc, Hindered, Kept, Lost

_MOST = 5_000  # messages: beyond, it takes less time to make the index anew


class Eraser:
    """One erasure, from before the log is written to until nothing is left in the index."""

    def __init__(self, backend: Backend, file: Kept) -> None:
        """Erase from this index."""
        self._backend = backend
        self._file = file
        self._open = ExitStack()
        self._docs: list[Doc] = []
        self._doomed: tuple[Segment, ...] = ()
        self._erasures = 0

    def prepare(self, doomed: Sequence[Segment] | None) -> None:
        """Lock the index, and read what is going to be erased."""
        if doomed is None:
            raise Outdated("nobody knows what will be erased")
        self._open.enter_context(self._file.writing())
        self._doomed = tuple(doomed)
        self._docs, self._erasures = self._backend.read(self._read)

    def _read(self, snapshot: Snapshot) -> tuple[list[Doc], int]:
        catching_up.check(snapshot, self._file)
        docs: list[Doc] = []
        for doc in _docs(snapshot, self._doomed) if self._file.needs_words else ():
            docs.append(doc)
            if len(docs) > _MOST:
                raise Outdated("too much is erased")
        return docs, snapshot.erasures()

    def finish(self) -> None:
        """Drop the words from the index, now that they are erased in the log."""
        now, lasts = self._backend.read(self._left)
        if now == self._erasures:  # nothing was erased after all
            self._open.close()
            return
        if now != self._erasures + 1:
            raise Outdated("somebody else erased something, too")
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
        """Find anew by which message the log is recognised."""
        newest = self._file.newest()
        if newest is None:
            return None
        branch, seq = newest
        for _, rows in snapshot.messages([Segment(branch, seq, seq, "")]):
            for row in rows:
                return Anchor(branch, seq, row.crc)
        return None

    def _refuse_unknown(self, branch: int, last: int) -> None:
        """Refuse to go on if the log lost more than was announced."""
        seq, indexed = last + 1, self._file.last(branch)
        for part in sorted(self._doomed, key=lambda part: part.first):
            if part.branch == branch and part.first <= seq:
                seq = max(seq, (part.last or 0) + 1)
        if seq <= indexed:
            raise Outdated("more was erased than was known before")

    def undo(self) -> bool:
        """Leave everything as it was, if the log is; say whether it is."""
        try:
            now = self._backend.read(lambda snapshot: snapshot.erasures())
        except Exception:  # noqa: BLE001 - whatever it is, nobody knows then
            now = -1
        self.give_up()
        return now == self._erasures

    def give_up(self) -> None:
        """Let go of the lock without a change."""
        with suppress(Hindered, Lost, _Undone), self._open:
            raise _Undone


class _Undone(Exception):
    """Ends a transaction that is not to be committed."""


def _docs(snapshot: Snapshot, doomed: Sequence[Segment]) -> Iterator[Doc]:
    for segment in doomed:
        for owner, rows in snapshot.messages([segment]):
            for row in rows:
                yield doc_of(snapshot, owner, segment.branch, row)
