"""A transaction that asks nothing: where its session stands is supposed.

All of it is one journey. The head is put first, by a statement that compares what is supposed and
fails if it is not so; everything else is sent behind it, and undone with it. Whoever needs to know
more than is supposed gets no answer, and begins anew with a transaction that looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.backends.base import HeadRow, MessageRow
from holdfast.backends.postgres import rows
from holdfast.backends.postgres.link import Withheld
from holdfast.backends.postgres.rows import split_branch
from holdfast.backends.postgres.standing import Standing
from holdfast.backends.postgres.transaction import PostgresTransaction
from holdfast.core.branches import Segment

_MOST_PLACES: Final = 5_000


class SupposingTransaction(PostgresTransaction):
    """Writes to a session that is supposed to be as it was left."""

    _end: tuple[int, tuple[MessageRow, ...]] = (0, ())  # of a branch

    def suppose(self, standing: Standing, ids: Sequence[str]) -> None:
        """Go on from where the session stands, and from what time it is.

        Its history, and that of those it was split off from, has no messages of these ids.
        """
        self.supposed, head = standing, standing.head
        n = head.session
        self._began = standing.told
        time = self.now() if self._clock is None else None
        path = self._paths.get(head.branch) or ()
        sessions = dict.fromkeys((n, *(split_branch(segment.branch)[0] for segment in path)))
        places = [(session, id) for session in sessions for id in ids]
        if len(places) > _MOST_PLACES:
            raise Withheld
        marks = [rows.place_mark(*place) for place in places]
        stands = (head.branch_no, head.seq, head.updated_at, head.activity)
        self._said = (*stands, marks, self._whose.known, time)
        self._behind: list[tuple[str, tuple[object, ...]]] | None = []
        self._found[n] = self._heads[n] = head
        self._own.add(n)
        self._looked.update((place, []) for place in places)
        self._end = head.branch, standing.tail

    def _write(self, name: str, *values: object) -> None:
        if self._behind is None:
            super()._write(name, *values)
        else:
            self._behind.append((name, values))

    def _put_head(self, name: str, row: HeadRow) -> None:
        if self._behind is None:
            super()._put_head(name, row)
            return
        behind, self._behind = self._behind, None
        self._steps += 1
        self.writes += 1
        values = (*rows.head_values(row), self._whose.activity_lock, *self._said)
        self._note_left(row, self._ask("put_head_supposed", row.session, *values))
        for waiting, given in behind:
            self._write(waiting, *given)

    def finish(self) -> None:
        """See that it was said what is supposed: the head says it."""
        if self._behind is not None:
            raise Withheld

    def _at_the_end(self, span: Segment) -> list[MessageRow]:
        """Return the last messages, if they were kept."""
        branch, kept = self._end
        if branch == span.branch and kept and kept[0].seq <= span.first:
            return [row for row in kept if span.first <= row.seq <= (span.last or 0)]
        return []

    def add_messages(self, branch: int, rows_: Sequence[MessageRow]) -> None:
        """Store messages at their places."""
        super().add_messages(branch, rows_)
        self._end = (0, ())
        self.trace = branch, rows_
