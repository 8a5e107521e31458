"""The log as a search reads it: in the transaction that also reads the search index.

A search reads few rows of the log, and most of them are known beforehand: the highest activity, the
message by which the index recognizes the log, titles, and the messages that will probably be shown.
These are prefetched with another query. Branches that are no longer active are read together with
all their descendants and sessions, many at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from holdfast.storage.ancestry import Segment
from holdfast.storage.postgres import conversion, statements
from holdfast.storage.postgres.ancestry_cache import AncestryCache
from holdfast.storage.postgres.conversion import bind, branch_number, mark, split_branch
from holdfast.storage.postgres.snapshot import (
    PostgresSnapshot,
    StatementExecutor,
    StatementResult,
    Tenant,
)
from holdfast.storage.postgres.tables import SESSIONS, branch_row, session_and_head
from holdfast.storage.rows import BranchOwner, BranchRow, HeadRow, MessageRow, SessionRow

S = TypeVar("S", SessionRow, BranchOwner)
_MAX_BIGINT: Final = (1 << 63) - 1
_MAX_TITLE_WORDS: Final = 4  # that the server compares; the caller compares the others


SQL: Final = statements.load("search.sql")


class PostgresSearchSnapshot(PostgresSnapshot):
    """A snapshot of the log for one search."""

    def __init__(self, statements: StatementExecutor, tenant: Tenant, paths: AncestryCache) -> None:
        """Read through `statements`; there is no horizon, all that is committed is visible."""
        super().__init__(statements, tenant, None, paths, _MAX_BIGINT)
        self._activity_result: StatementResult | None = None
        self._erasures_result: StatementResult | None = None
        self._titles_result: tuple[tuple[str, ...], StatementResult] | None = None
        self._prefetched_messages: dict[tuple[int, int], tuple[StatementResult, int]] = {}
        self._known_branches: dict[int, BranchRow | None] = {}
        self._known_children: dict[int, list[BranchRow]] = {}
        self._known_sessions: dict[int, tuple[SessionRow, HeadRow] | None] = {}
        self._known_relatives: dict[str, SessionRow | None] = {}
        self._parents: set[str] = set()  # of sessions that were read

    # ------------------------------------------------------------------------------ prefetching

    def prefetch_search(self, segments: Sequence[Segment], titles: Sequence[str] | None) -> None:
        """Queue reads of messages, titles and activity; they are sent with the next query."""
        if self._activity_result is None:
            self._activity_result, self._erasures_result = (
                self._execute("highest_activity"),
                self._execute("erasures"),
            )
        if titles is not None:
            self._titles_result = (tuple(titles), self._query_titles(titles))
        wanted = [
            segment
            for segment in segments
            if segment.first == segment.last
            and (segment.branch, segment.first) not in self._prefetched_messages
        ]
        if wanted:
            answer = self._execute("messages_of_ranges", *_range_arrays(wanted))
            for ordinal, segment in enumerate(wanted, 1):
                self._prefetched_messages[segment.branch, segment.first] = answer, ordinal

    def _query_titles(self, words: Sequence[str]) -> StatementResult:
        """Queue a read of titles that may hold these words: all non-ASCII ones are among them."""
        values: list[object] = [self._tenant]
        pieces = [SQL["titles"]]
        if all(word.isascii() for word in words):
            pieces.append(SQL["titles_plain"])
            for word in sorted(set(words), key=len, reverse=True)[:_MAX_TITLE_WORDS]:
                values.append(word.encode())
                pieces.append(SQL["titles_with"].format(word=f"${len(values)}"))
        return self._statements.execute_sql("\n".join((*pieces, SQL["titles_end"])), values)

    # -------------------------------------------------------------------------------- reading

    def activity(self) -> int:
        """Return the highest activity number; a lower one may still be committed later."""
        row = (self._activity_result or self._execute("highest_activity")).fetchone()
        return 0 if row is None or row[0] is None else row[0]

    def erasures(self) -> int:
        """Return how many transactions have erased messages."""
        row = (self._erasures_result or self._execute("erasures")).fetchone()
        return row[0] if row else 0

    def titled(self, words: Sequence[str]) -> list[BranchOwner]:
        """Find sessions whose title may contain all these words."""
        known = self._titles_result
        answer = known[1] if known and known[0] == tuple(words) else self._query_titles(words)
        return [self._note_parent(conversion.owner(row)) for row in answer.fetchall()]

    def _note_parent(self, session: S) -> S:
        if session.parent is not None:
            self._parents.add(session.parent)
        return session

    def find_session(
        self, *, id: str | None = None, key: str | None = None, stubs: bool = False
    ) -> SessionRow | None:
        """Find a session; by its id, the parents of sessions read so far come along."""
        if id is None or not stubs:
            return super().find_session(id=id, key=key, stubs=stubs)
        if id not in self._known_relatives:
            wanted = (self._parents | {id}) - self._known_relatives.keys()
            self._known_relatives.update(dict.fromkeys(wanted))
            values = (self._tenant, [bind(name) for name in wanted])
            for row in self._statements.execute_sql(SQL["relatives"], values).fetchall():
                found = SESSIONS.row(row)
                self._known_relatives[found.id] = found
        return self._known_relatives[id]

    def messages(self, ranges: Iterable[Segment]) -> list[tuple[str, list[MessageRow]]]:
        """Return the messages of each range, in order."""
        wanted = list(ranges)
        unknown = [span for span in wanted if not self._is_prefetched(span)]
        read = iter(super().messages(unknown) if unknown else ())
        return [
            (span.session_id, self._prefetched_at(span))
            if self._is_prefetched(span)
            else next(read)
            for span in wanted
        ]

    def _is_prefetched(self, span: Segment) -> bool:
        return span.first == span.last and (span.branch, span.first) in self._prefetched_messages

    def _prefetched_at(self, span: Segment) -> list[MessageRow]:
        answer, ordinal = self._prefetched_messages[span.branch, span.first]
        return [conversion.message_row(row[1:]) for row in answer.fetchall() if row[0] == ordinal]

    def owners(self, branches: Collection[int]) -> dict[int, BranchOwner]:
        """Return the sessions that own these branches; load those branches that are not active."""
        if not branches:
            return {}
        answer = self._execute("owners", *_branch_arrays(branches))
        found = {
            branch_number(row[0], number): self._note_parent(conversion.owner(row))
            for number, *row in answer.fetchall()
        }
        self._load_branches([n for n in branches if n not in found or found[n].branch != n])
        return found

    def _load_branches(self, branches: Sequence[int]) -> None:
        """Read branches with their descendants, and the sessions of all of them."""
        new = [n for n in branches if n not in self._known_children]
        if not new:
            return
        values = (self._tenant, *_branch_arrays(new))
        found = self._execute("branches_below", *values[1:])
        sessions = self._statements.execute_sql(SQL["sessions_below"], values)
        self._note_branches(new, [branch_row(row) for row in found.fetchall()])
        for n in self._known_branches:
            self._known_sessions.setdefault(split_branch(n)[0], None)
        for row in sessions.fetchall():
            session, head = session_and_head(row)
            assert head is not None  # noqa: S101 - the statement joins them
            self._known_sessions[session.n] = self._note_parent(session), head

    def _note_branches(self, requested: Iterable[int], found: Sequence[BranchRow]) -> None:
        """Cache the requested branches and their descendants, each with its children."""
        self._known_branches.update(dict.fromkeys(requested))
        self._known_branches.update((branch.n, branch) for branch in found)
        children: dict[int, list[BranchRow]] = {n: [] for n in requested}
        children.update((branch.n, []) for branch in found)
        for branch in found:
            if branch.parent in children:
                children[branch.parent].append(branch)
        self._known_children.update(children)

    def forked_branches(self, branches: Collection[int]) -> set[int]:
        """Return those of these branches on which others start; they are loaded together."""
        self._load_branches(list(branches))
        return {n for n in branches if self._known_children[n]}

    def _load_ancestors(self, n: int) -> None:
        values = (self._tenant, *split_branch(n))
        found = self._statements.execute_sql(SQL["branches_above"], values).fetchall()
        self._known_branches[n] = None
        self._known_branches.update((row.n, row) for row in map(branch_row, found))

    def branches(
        self,
        *,
        n: int | None = None,
        session: int | None = None,
        number: int | None = None,
        token: str | None = None,
        parent: int | None = None,
    ) -> list[BranchRow]:
        """Find branches; one by its number comes with its ancestors, and stays known."""
        if parent in self._known_children:
            return self._known_children[parent]
        if n is not None:
            if n not in self._known_branches:
                self._load_ancestors(n)
            known = self._known_branches[n]
            return [] if known is None else [known]
        return super().branches(n=n, session=session, number=number, token=token, parent=parent)

    def session(self, n: int) -> SessionRow | None:
        """Return a session's identity."""
        if n not in self._known_sessions:
            return super().session(n)
        known = self._known_sessions[n]
        return None if known is None else known[0]

    def head(self, n: int) -> HeadRow | None:
        """Return a session's head."""
        known = self._known_sessions.get(n)
        return super().head(n) if known is None else known[1]

    def visible_branches(
        self,
        scopes: Sequence[str],
        agents: Sequence[str],
        cwds: Sequence[str],
        *,
        all_branches: bool,
    ) -> list[int]:
        """Return the branches that sessions of these scopes, agents and directories can show."""
        values: list[object] = [self._tenant, all_branches]
        pieces = [SQL["shown"]]
        for kind, names in (("scope", scopes), ("agent", agents), ("cwd", cwds)):
            for name in names:
                values += [mark(name), bind(name)]
                last = len(values)
                pieces.append(SQL[f"shown_of_{kind}"].format(mark=f"${last - 1}", name=f"${last}"))
        answer = self._statements.execute_sql("\n".join((*pieces, SQL["shown_end"])), values)
        return [branch_number(*row) for row in answer.fetchall()]


def _array_literal(numbers: Iterable[int]) -> str:
    """Return numbers as an array literal: far quicker to bind than a list, if there are many."""
    return f"{{{','.join(map(str, numbers))}}}"


def _branch_arrays(branches: Iterable[int]) -> tuple[str, ...]:
    sessions, numbers = zip(*map(split_branch, branches), strict=True)
    return _array_literal(sessions), _array_literal(numbers)


def _range_arrays(spans: Sequence[Segment]) -> tuple[Any, ...]:
    branches = _branch_arrays(span.branch for span in spans)
    firsts = _array_literal(span.first for span in spans)
    return (*branches, firsts, firsts)
