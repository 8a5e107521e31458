"""The search itself: find the messages that match, rank them, and return a page of hits.

Candidates are the messages that match the query, pass the filters and are visible in a session; of
more than a thousand, those that were written last. Each gets a score (`match.score`). Of several in
one lineage the best is returned and the others are counted, unless one session is searched.
Sessions whose title has all wanted words come first. Messages are read only for the hits of the
page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from holdfast.clock import to_datetime, to_micros
from holdfast.operations.history import DamageCallback, read_row, read_span
from holdfast.search import indexer, scan
from holdfast.search.document import Document, document
from holdfast.search.manager import IndexManager, NoUsableIndex
from holdfast.search.match import fits_title, match_title, score
from holdfast.search.protocol import Bounds, Candidate, Chunk, IndexStorage, SearchPrefetch
from holdfast.search.query import Query
from holdfast.search.request import MAX_HITS, Rank, SearchRequest
from holdfast.search.scan import ScanBudget
from holdfast.search.snippet import Snippet, snippet
from holdfast.search.visibility import Visibility
from holdfast.storage.ancestry import Path, Segment
from holdfast.storage.protocol import Backend, Snapshot
from holdfast.storage.rows import BranchOwner, MessageRow, SessionRow
from holdfast.values import Hit, Message, Page

_HOUR_US = 3_600_000_000
_READ_BATCH = 50
_SCAN_S = 0.05  # how long a search scans what an index that is catching up lacks
_MAX_TITLE_WORDS = 50  # in a database query for titles; further words are checked here


def search(
    backend: Backend, index: IndexManager, request: SearchRequest, report: DamageCallback
) -> Page[Hit]:
    """Return a page of hits.

    Query the index, and scan the log for messages that it lacks. An index that is behind is first
    brought up to date as far as that is quick; if it will be soon, only the newest of the messages
    that it lacks are scanned. Without a usable index, and for a query of punctuation only, the log
    is scanned up to the deadline of the store. The page has the number of messages that were not
    searched.
    """
    texts, searched = _scan_budget(backend), 0
    page: Page[Hit] | None = None
    if index.location is not None and _index_helps(request.query):
        budget = _scan_budget(backend)
        prefetch = _prefetch(request)
        for caught_up in (False, True):
            with suppress(NoUsableIndex), index.snapshot(prefetch) as (storage, log, behind):
                if caught_up or not behind:
                    budgets = budget, texts
                    page = _Search(log, storage, request, report, budgets, behind=behind).page()
                    if budget.exceeded:
                        searched = storage.message_count() + budget.scanned
            if caught_up or page is not None:
                break
            if index.catch_up_briefly():
                budget = ScanBudget(_SCAN_S)
    if page is None:
        budget = _scan_budget(backend)
        page = backend.read(
            lambda log: _Search(log, None, request, report, (budget, texts), behind=True).page()
        )
        searched = budget.scanned
    if not (budget.exceeded or texts.exceeded):
        return page
    searched = searched if budget.exceeded else texts.scanned
    return msgspec.structs.replace(page, behind=max(1, index.stored_messages() - searched))


def _scan_budget(backend: Backend) -> ScanBudget:
    """Return the budget of what no index will have soon."""
    return ScanBudget(backend.deadline)


def _index_helps(query: Query) -> bool:
    """True if the query has a word: an index has no punctuation, and never will."""
    return not query.needs_scan or any(term.tokens for term in query.wanted)


def _prefetch(request: SearchRequest) -> SearchPrefetch:
    """Return what the search will read."""
    return SearchPrefetch(
        query=request.query,
        bounds=request.bounds,
        thinking=request.thinking,
        exact=not (request.filters_sessions or request.session or request.query.filters.session),
        titles=_required_title_words(request),
    )


def _required_title_words(request: SearchRequest) -> list[str] | None:
    """Return the words to search for in titles; None if titles are not searched."""
    query = request.query
    if not query.wanted or request.bounds.role is not None or request.is_contradictory:
        return None
    return [word for term in query.wanted for word in term.parts or term.tokens][:_MAX_TITLE_WORDS]


def _in_chunks(entries: Iterator[Candidate]) -> Iterator[Chunk]:
    """Group candidates whose counts are plain frequencies."""
    while batch := list(islice(entries, _READ_BATCH)):
        yield Chunk(batch, tuple)


class _WordScores(dict[tuple[Any, int], float]):
    """The scores of a chunk's term counts with a length, without the age of the message."""

    def __init__(self, frequencies: Callable[[Any], tuple[int, ...]]) -> None:
        super().__init__()
        self._frequencies = frequencies

    def __missing__(self, key: tuple[Any, int]) -> float:
        counts, length = key
        self[key] = found = score(self._frequencies(counts), length, 0.0)
        return found


class _AgeFactors(dict[int, float]):
    """The factors by which the scores of messages are reduced, by age in hours."""

    def __missing__(self, hours: int) -> float:
        self[hours] = factor = score((), 0, hours / 24)
        return factor


# A scored match: its rank (five fields), the hash of the message's id (for a title a unique number
# below 0), and the session that shows it.
ScoredMatch: TypeAlias = tuple[int, float, int, int, int, int, SessionRow | BranchOwner]


class _RankedHit(msgspec.Struct, gc=False):
    """A hit, and the number of further matches in its lineage."""

    rank: Rank
    session: SessionRow | BranchOwner
    more: int = 0


class _LastIndexed(dict[int, int]):
    """The last indexed seq of each branch, read when first needed."""

    def __init__(self, storage: IndexStorage | None) -> None:
        super().__init__()
        self._storage = storage

    def __missing__(self, branch: int) -> int:
        self[branch] = last = 0 if self._storage is None else self._storage.last_seq(branch)
        return last


class _Search:
    """One search of a snapshot of the log, and of the index if there is one."""

    def __init__(
        self,
        snapshot: Snapshot,
        storage: IndexStorage | None,
        request: SearchRequest,
        report: DamageCallback,
        budgets: tuple[ScanBudget, ScanBudget],
        *,
        behind: bool,
    ) -> None:
        """Search with one budget for messages that the index lacks, and one for texts."""
        self._snapshot = snapshot
        self._request = request
        self._report = report
        self._query = request.query
        self._now = to_micros(request.now)
        self._one_session, self._session = request.resolve_session(snapshot)
        self._visibility = Visibility(
            snapshot, self._passes_filters, all_branches=request.all_branches, only=self._session
        )
        self._storage = storage
        self._budget, self._text_budget = budgets
        self._behind = behind
        self._rows: dict[tuple[int, int], tuple[str, MessageRow]] = {}
        self._word_scores: dict[Callable[[Any], tuple[int, ...]], _WordScores] = {}
        self._age_factors = _AgeFactors()

    def page(self) -> Page[Hit]:
        """Return the best hits after the cursor."""
        request = self._request
        if request.is_contradictory or (self._one_session and self._session is None):
            return Page((), None)
        matching = [*self._title_matches(), *self._message_matches()]
        ranked = self._rank_all(matching) if self._one_session else self._best_per_lineage(matching)
        if request.after is not None:
            after = request.after
            ranked = [item for item in ranked if item.rank > after]
        hits: list[Hit] = []
        batch = min(_READ_BATCH, request.limit)
        for at, item in enumerate(ranked, 1):
            if at % batch == 1 % batch:
                self._fetch(ranked[at - 1 : at - 1 + batch])
            hit = self._hit(item)
            if hit is not None:
                hits.append(hit)
            if len(hits) == request.limit and at < len(ranked):
                return Page(tuple(hits), request.cursor(item.rank))
        return Page(tuple(hits), None)

    # ----------------------------------------------------------------------------- candidates

    def _best_per_lineage(self, items: list[ScoredMatch]) -> list[_RankedHit]:
        """Return the best match of each lineage in order, with the number of its other matches.

        A message that is on several branches counts once.
        """
        by_session: defaultdict[int, list[ScoredMatch]] = defaultdict(list)
        for item in items:
            by_session[item[6].n].append(item)
        by_lineage: defaultdict[str, list[ScoredMatch]] = defaultdict(list)
        for group in by_session.values():
            by_lineage[self._visibility.lineage(group[0][6])] += group
        # No two have the same rank, their first five fields, so sessions are never compared.
        best = [(min(group), len({item[5] for item in group})) for group in by_lineage.values()]
        best.sort(key=itemgetter(0))
        return [_RankedHit(Rank(*item[:5]), item[6], count - 1) for item, count in best]

    def _rank_all(self, items: list[ScoredMatch]) -> list[_RankedHit]:
        """Return all matches in order, each message once."""
        seen: set[int] = set()
        found = []
        for item in sorted(items):
            if item[5] not in seen:
                seen.add(item[5])
                found.append(_RankedHit(Rank(*item[:5]), item[6]))
        return found

    def _message_matches(self) -> list[ScoredMatch]:
        """Return the messages that match and are visible, with their scores."""
        found: list[ScoredMatch] = []
        shown_by, hidden = self._visibility.visible_in, self._visibility.hidden_branches
        for chunk in self._candidates():
            candidates = [entry for entry in chunk.candidates if entry[0] not in hidden]
            scores = self._negated_scores(candidates, chunk.frequencies)
            if self._storage is not None and self._storage.is_remote and not found:
                self._storage.prefetch_messages(self._likely_hits(candidates, scores))
            owners = self._visibility.owners_on_branch({entry[0] for entry in candidates})
            for (branch, seq, at, id_hash, _, _), negated in zip(candidates, scores, strict=True):
                session = owners[branch] or (None if branch in hidden else shown_by(branch, seq))
                if session is None:
                    continue
                found.append((1, negated, -at, -branch, -seq, id_hash, session))
                if len(found) == MAX_HITS:
                    return found
        return found

    def _negated_scores(
        self, candidates: Sequence[Candidate], frequencies: Callable[[Any], tuple[int, ...]]
    ) -> list[float]:
        """Return the negated scores of messages, so that the best sorts first.

        A score is the product of a factor for the words and one for the age. Both repeat often, so
        they are cached.
        """
        ages, now = self._age_factors, self._now
        weights = self._word_scores.get(frequencies)
        if weights is None:
            weights = self._word_scores[frequencies] = _WordScores(frequencies)
        return [
            -weights[counts, length] * ages[(now - at) // _HOUR_US]
            for _, _, at, _, length, counts in candidates
        ]

    def _likely_hits(self, entries: Sequence[Candidate], scores: Sequence[float]) -> list[Segment]:
        """Guess which messages the page will show: the best of each branch, if all are visible."""
        if self._request.after is not None:
            return []
        best: dict[int, tuple[float, int, int, int]] = {}
        for (branch, seq, at, _, _, _), negated in zip(entries, scores, strict=True):
            rank = (negated, -at, -branch, -seq)
            if branch not in best or rank < best[branch]:
                best[branch] = rank
        likely = nsmallest(min(_READ_BATCH, self._request.limit), best.values())
        return [Segment(-branch, -seq, -seq, "") for _, _, branch, seq in likely]

    def _candidates(self) -> Iterator[Chunk]:
        """Yield the messages that match, visible or not: unindexed ones first, being newer."""
        yield from _in_chunks(self._scan_unindexed())
        if self._storage is None:
            return
        bounds = self._index_bounds(self._storage)
        found = self._storage.matching(self._query, bounds, thinking=self._request.thinking)
        yield from _in_chunks(self._check_texts(found)) if self._query.needs_scan else found

    def _index_bounds(self, storage: IndexStorage) -> Bounds:
        """Return the conditions for the index, with the branches to search if they are known."""
        request, branches = self._request, None
        if self._session is not None:
            branches = tuple(self._visibility.reach())
        elif request.filters_sessions:
            branches = storage.visible_branches(
                request.scopes, request.agents, request.cwds, all_branches=request.all_branches
            )
        if branches is None:
            return request.bounds
        return msgspec.structs.replace(request.bounds, branches=branches)

    def _scan_unindexed(self) -> Iterator[Candidate]:
        request, lasts = self._request, _LastIndexed(self._storage)
        if not self._behind:
            return
        activity = 0 if self._storage is None else self._storage.activity
        for session in scan.recent_sessions(
            self._snapshot, activity, self._visibility, self._report
        ):
            for part in scan.unindexed_parts(session, self._visibility, lasts):
                yield from scan.find_in_segment(
                    self._snapshot,
                    part,
                    self._query,
                    request.bounds,
                    self._budget,
                    thinking=request.thinking,
                )
                if self._budget.exceeded:
                    return

    def _check_texts(self, found: Iterator[Chunk]) -> Iterator[Candidate]:
        """Check candidates in their texts, for terms that an index of words cannot answer."""
        query, bounds, thinking = self._query, self._request.bounds, self._request.thinking
        entries = (entry for chunk in found for entry in chunk.candidates)
        while batch := list(islice(entries, _READ_BATCH)):
            if not self._text_budget.spend(len(batch)):
                return
            segments = [Segment(entry[0], entry[1], entry[1], "") for entry in batch]
            read = zip(segments, self._snapshot.messages(segments), strict=True)
            for segment, (owner, rows) in read:
                for row in rows:
                    doc = indexer.to_indexed(self._snapshot, owner, segment.branch, row)
                    match = scan.to_candidate(doc, query, bounds, thinking=thinking)
                    if match is not None:
                        yield match

    def _passes_filters(self, session: SessionRow | BranchOwner) -> bool:
        if self._query.filters.title and not fits_title(self._query, session.title):
            return False
        return not self._request.filters_sessions or self._request.accepts(session)

    # --------------------------------------------------------------------------------- titles

    def _title_matches(self) -> Iterator[ScoredMatch]:
        """Return the sessions whose title has all wanted words, with their scores."""
        query, bounds, needed = (
            self._query,
            self._request.bounds,
            _required_title_words(self._request),
        )
        if needed is None:
            return
        wanted, unwanted, weights = query.wanted, query.unwanted, _WordScores(tuple)
        for session in self._snapshot.titled(needed):
            at = session.updated_at
            too_early = bounds.since is not None and at < bounds.since
            too_late = bounds.until is not None and at >= bounds.until
            if too_early or too_late or not self._is_searched(session):
                continue
            match = match_title(wanted, unwanted, session.title or "")
            if match is not None:
                weight = weights[match.frequencies, match.length]
                weight *= self._age_factors[(self._now - at) // _HOUR_US]
                yield 0, -weight, -at, -session.n, 0, -session.n, session

    def _is_searched(self, session: BranchOwner) -> bool:
        return (self._session is None or self._session.n == session.n) and self._passes_filters(
            session
        )

    # ----------------------------------------------------------------------------------- hits

    def _fetch(self, items: Sequence[_RankedHit]) -> None:
        """Read the messages of some hits in one query."""
        ranks = [item.rank for item in items if item.rank.kind]
        segments = [Segment(-rank.branch, -rank.seq, -rank.seq, "") for rank in ranks]
        found = zip(segments, self._snapshot.messages(segments), strict=True)
        self._rows = {
            (segment.branch, segment.first): (owner, row)
            for segment, (owner, rows) in found
            for row in rows
        }

    def _hit(self, item: _RankedHit) -> Hit | None:
        """Return the public form of a hit; None if its message cannot be read."""
        if not item.rank.kind:
            return self._make_hit(item, snippet(item.session.title or "", self._query), None)
        branch, seq = -item.rank.branch, -item.rank.seq
        message = self._read(branch, seq)
        if message is None:
            return None
        hit = self._make_hit(item, self._snippet(document(message)), message)
        if not self._request.around:
            return hit
        before, after = self._neighbours(item.session.n, branch, seq)
        return msgspec.structs.replace(hit, before=before, after=after)

    def _make_hit(self, item: _RankedHit, shown: Snippet, message: Message | None) -> Hit:
        return Hit(
            session_id=item.session.id,
            title=item.session.title,
            message_id=None if message is None else message.id,
            seq=None if message is None else message.seq,
            role=None if message is None else message.role,
            snippet=shown.text,
            marks=shown.marks,
            score=-item.rank.score,
            created_at=to_datetime(
                -item.rank.at if message is None else indexer.created_micros(message)
            ),
            more=item.more,
        )

    def _read(self, branch: int, seq: int) -> Message | None:
        if (branch, seq) not in self._rows:
            return None
        owner, row = self._rows[branch, seq]
        message = read_row(self._snapshot, owner, row, self._report)
        return None if message.status in {"erased", "damaged"} else message

    def _snippet(self, found: Document) -> Snippet:
        shown = snippet(found.text, self._query)
        if shown.marks or not self._request.thinking or not found.thinking:
            return shown
        from_thinking = snippet(found.thinking, self._query)
        return from_thinking if from_thinking.marks or not found.text else shown

    def _neighbours(
        self, session: int, branch: int, seq: int
    ) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Read the neighbours of a message in the history that shows it."""
        count = self._request.around
        path, end = self._history(session, branch, seq)
        before = (max(1, seq - count), seq - 1)
        after = (seq + 1, min(end, seq + count))
        return tuple(self._span(path, before)), tuple(self._span(path, after))

    def _span(self, path: Path, span: tuple[int, int]) -> list[Message]:
        if span[0] > span[1]:
            return []
        return read_span(self._snapshot, path, span, report=self._report)

    def _history(self, session: int, branch: int, seq: int) -> tuple[Path, int]:
        """Return the path of a history of the session that has the message, and its last seq.

        The current history is preferred.
        """
        row = self._visibility.session(session)
        root = None if row is None else self._visibility.root_showing(row, branch, seq)
        if root is None:
            return self._snapshot.path(branch), seq
        end = self._visibility.branch(root)
        return self._snapshot.path(root), seq if end is None else end.last_seq
