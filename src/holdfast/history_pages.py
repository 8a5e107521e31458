"""Pages of a history: some hundred messages at a time, so that it need not fit into memory.

The first page fixes which messages follow: those of one branch up to its end at that time. A branch
only grows and is never left for good, so the pages make up one history, whatever is written between
them.
"""

from __future__ import annotations

from holdfast.context import StoreContext
from holdfast.operations import queries
from holdfast.operations.history import MessageFilter
from holdfast.values import Message


class HistoryPages:
    """Reads part of a history page by page, as it is when the first page is read."""

    def __init__(
        self,
        context: StoreContext,
        session: int,
        bounds: queries.HistoryBounds,
        wanted: MessageFilter | None,
    ) -> None:
        self._context = context
        self._session = session
        self._bounds = queries.check_bounds(bounds)
        self._wanted = wanted
        self._rest: queries.HistoryPart | None = None

    def next(self) -> list[Message]:
        """Return the next messages, oldest first; none after the last."""
        while self._rest is None or self._rest.first <= self._rest.last:
            part = self._bounds if self._rest is None else self._rest
            query = queries.history_page(self._session, part, self._wanted, self._context.report)
            found, self._rest = self._context.backend.read(query)
            if found:
                return found
        return []
