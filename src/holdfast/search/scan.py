"""The fallback scan: finds messages in the log itself that the index does not have.

Sessions are scanned by activity, newest first, and each from its end, so the messages that were
written last are found first. Only visible messages are read, and none twice. A message is decoded
only if its stored bytes may contain the wanted words. Only as much is scanned as the budget of a
search allows: while the index is catching up a moment, without an index up to the deadline.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from holdfast.operations.history import DamageCallback
from holdfast.search.indexer import to_indexed
from holdfast.search.match import matches
from holdfast.search.protocol import Bounds, Candidate, IndexedMessage, id_hash
from holdfast.search.query import Query, Term
from holdfast.search.visibility import Visibility
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import MessageRow, SessionFilter, SessionRow, UnreadableSession
from holdfast.values import Damage

_PAGE = 200
_MIN_SCANNED = 500  # messages that are scanned however long it takes
_LETTERS = re.compile("[a-z]+")


class ScanBudget:
    """How long a search may scan. What was written last is scanned in any case."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.scanned = 0
        self.exceeded = False

    def spend(self, messages: int) -> bool:
        """Count messages that are to be scanned next; False if there is no time for them."""
        self.exceeded = self.scanned >= _MIN_SCANNED and time.monotonic() >= self._until
        if not self.exceeded:
            self.scanned += messages
        return not self.exceeded


def recent_sessions(
    snapshot: Snapshot, activity: int, views: Visibility, report: DamageCallback
) -> Iterator[SessionRow]:
    """Yield the sessions that were written to after an activity number, newest first."""
    if views.only is not None:
        yield views.only
        return
    before: int | None = None
    while True:
        found = snapshot.list_sessions(SessionFilter(), before=before, limit=_PAGE)
        for item in found:
            before = item.activity if isinstance(item, UnreadableSession) else item[1].activity
            if before <= activity:
                return
            if isinstance(item, UnreadableSession):
                report(Damage(what=item.why, session_id=item.id))
            else:
                views.remember(*item)
                yield item[0]
        if len(found) < _PAGE:
            return


def unindexed_parts(
    session: SessionRow, views: Visibility, lasts: dict[int, int]
) -> Iterator[Segment]:
    """Yield the segments of a session's visible history that are not indexed, newest first.

    `lasts` has the last indexed or scanned seq of each branch, and is updated.
    """
    for segment in views.new_segments(session):
        last = segment.last or 0
        first = max(segment.first, lasts[segment.branch] + 1)
        if first <= last:
            lasts[segment.branch] = last
            yield Segment(segment.branch, first, last, segment.session_id)


def find_in_segment(
    snapshot: Snapshot,
    segment: Segment,
    query: Query,
    bounds: Bounds,
    budget: ScanBudget,
    *,
    thinking: bool,
) -> Iterator[Candidate]:
    """Yield the messages of a segment that match, the last one first, as the budget allows."""
    may_match = prefilter(query)
    rest: Segment | None = segment
    while rest is not None and (rest := snapshot.stored_part(rest)) is not None:
        last = rest.last or 0
        first = max(rest.first, last - _PAGE + 1)
        if not budget.spend(last - first + 1):
            return
        part = Segment(segment.branch, first, last, segment.session_id)
        rest = Segment(segment.branch, rest.first, first - 1, segment.session_id)
        for owner, rows in snapshot.messages([part]):
            for row in reversed(rows):
                if may_match(row):
                    doc = to_indexed(snapshot, owner, segment.branch, row)
                    entry = to_candidate(doc, query, bounds, thinking=thinking)
                    if entry is not None:
                        yield entry


def to_candidate(
    doc: IndexedMessage, query: Query, bounds: Bounds, *, thinking: bool
) -> Candidate | None:
    """Return a message as a candidate; None if it does not match."""
    if doc.unreadable or not _within(doc, bounds):
        return None
    match = matches(query, doc.document, thinking=thinking)
    if match is None:
        return None
    return doc.branch, doc.seq, doc.at, id_hash(doc.id), match.length, match.frequencies


def _within(doc: IndexedMessage, bounds: Bounds) -> bool:
    return (
        (bounds.role is None or doc.role == bounds.role)
        and (bounds.since is None or doc.at >= bounds.since)
        and (bounds.until is None or doc.at < bounds.until)
    )


def prefilter(query: Query) -> Callable[[MessageRow], bool]:
    """Return a test that is False only for messages that cannot have all wanted words.

    ASCII letters are stored as they are in the text. Other characters may fold to a wanted word,
    and a text that is stored as a blob has to be read.
    """
    letters = [word.encode() for term in query.wanted for word in _ascii_words(term)]

    def may_match(row: MessageRow) -> bool:
        body = row.body
        if not letters or not body.isascii() or b'"blob"' in body:
            return True
        lower = body.lower()
        return all(word in lower for word in letters)

    return may_match


def _ascii_words(term: Term) -> list[str]:
    return [word for word in term.parts or term.tokens if _LETTERS.fullmatch(word)]
