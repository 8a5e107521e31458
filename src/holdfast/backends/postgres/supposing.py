"""A transaction that asks nothing: where its session stands is supposed.

All of it is one journey. The server checks what is supposed before anything else, and if it is not
so undoes everything. Whoever needs to know more than that gets no answer, and begins anew with a
transaction that looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.backends.base import MessageRow
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
        """Say where the session stands, and what time it is.

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
        self._ask(
            "suppose", n, head.branch_no, head.seq, head.updated_at, head.activity,
            [rows.place_mark(*place) for place in places], self._whose.known, time,
        )  # fmt: skip
        self._found[n] = self._heads[n] = head
        self._own.add(n)
        self._looked.update((place, []) for place in places)
        self._end = head.branch, standing.tail

    def _at_the_end(self, span: Segment) -> list[MessageRow]:
        """Give the last messages, if they were kept."""
        branch, kept = self._end
        if branch == span.branch and kept and kept[0].seq <= span.first:
            return [row for row in kept if span.first <= row.seq <= (span.last or 0)]
        return []

    def add_messages(self, branch: int, rows_: Sequence[MessageRow]) -> None:
        """Store messages at their places."""
        super().add_messages(branch, rows_)
        self._end = (0, ())
        self.trace = branch, rows_
