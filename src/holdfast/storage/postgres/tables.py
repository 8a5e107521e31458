"""The tables of the log: their columns, and the conversion between these and rows.

The fields of a row declare its columns (`columns_of`). Added here is what only this database has:
marks, and branches by session and number. The statements take their lists of columns from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic

from holdfast.errors import Damaged
from holdfast.storage.columns import Layout, RowT, columns_of
from holdfast.storage.postgres.conversion import (
    BRANCH_NUMBER_BITS,
    bind,
    key_start,
    mark,
    mark_or_none,
    mark_or_zero,
    readable_text,
    split_branch,
    text_of,
)
from holdfast.storage.rows import (
    BranchRow,
    HeadRow,
    QueueRow,
    SessionRow,
    ToolRow,
    TurnRow,
    UnreadableSession,
    UsageRow,
)
from holdfast.titles import normalize_title


class PostgresTable(Generic[RowT]):
    """A table: its columns in SQL, and the conversion of its rows."""

    def __init__(
        self,
        row: type[RowT],
        alias: str,
        *,
        key: Sequence[str],
        read: Mapping[str, str] | None = None,
        unwritten: Collection[str] = (),
        own: Sequence[str] = (),
        own_values: Callable[[RowT], tuple[Any, ...]] = lambda _: (),
    ) -> None:
        """Store the fields of `row`, except the `unwritten` ones, and the backend's `own`.

        `read` has the expressions of columns that are not read as they are stored. Columns of the
        `key` that are neither are bound before the others.
        """
        fields = [column.name for column in columns_of(row)]
        written = [*(name for name in fields if name not in unwritten), *own]
        layout = Layout(
            row,
            encode={"name": bind, "text": bind},
            decode={"name": text_of, "text": text_of},
            own=own,
            written=written,
        )
        self.alias = alias
        self.fields = fields
        self.key = key
        self.columns = (*(name for name in key if name not in written), *written)
        self.counts = [column.name for column in layout.columns if column.kind == "count"]
        self.expressions = [(read or {}).get(name, f"{alias}.{name}") for name in fields]
        self.row = layout.row
        self._values = layout.values
        self._own_values = own_values

    def values(self, row: RowT) -> list[Any]:
        """Return the values of a row's columns, without those bound before them."""
        return self._values(row, *self._own_values(row))


def _branch_expression(session: str, number: str) -> str:
    """Return the protocol's number of a branch (`branch_number`) in SQL."""
    return f"{session} << {BRANCH_NUMBER_BITS} | {number}"


def _session_marks(row: SessionRow) -> tuple[Any, ...]:
    loose = None if row.title is None else normalize_title(row.title)
    names = (row.key, row.scope, row.agent, row.cwd, row.title, loose)
    plain = row.title is None or row.title.isascii()
    return (*map(mark_or_none, names), bind(loose), plain, key_start(row.key))


def _branch_parts(row: BranchRow) -> tuple[Any, ...]:
    parent = (None, None) if row.parent is None else split_branch(row.parent)
    return (*parent, mark(row.token))


SESSIONS: Final = PostgresTable(
    SessionRow,
    "s",
    key=("tenant", "n"),
    own=(
        "key_mark", "scope_mark", "agent_mark", "cwd_mark", "title_mark", "loose_mark", "loose",
        "plain", "key_start",
    ),
    own_values=_session_marks,
)  # fmt: skip
HEADS: Final = PostgresTable(
    HeadRow,
    "h",
    key=("tenant", "session"),
    read={"branch": _branch_expression("h.session", "h.branch"), "branch_no": "h.branch"},
    unwritten=("branch", "branch_no", "activity"),
    own=("branch",),
    own_values=lambda row: (row.branch_no,),
)
BRANCHES: Final = PostgresTable(
    BranchRow,
    "b",
    key=("tenant", "session", "number"),
    read={
        "n": _branch_expression("b.session", "b.number"),
        "parent": _branch_expression("b.parent_session", "b.parent_number"),
        # The active branch of a session ends at its head.
        "last_seq": "CASE WHEN b.number = h.branch THEN h.seq ELSE b.last_seq END",
    },
    unwritten=("n", "parent", "last_seq"),
    own=("parent_session", "parent_number", "token_mark"),
    own_values=_branch_parts,
)
TURNS: Final = PostgresTable(
    TurnRow,
    "t",
    key=("tenant", "session", "number"),
    own=("run_mark",),
    own_values=lambda row: (mark_or_none(row.run_id),),
)
TOOLS: Final = PostgresTable(
    ToolRow,
    "c",
    key=("tenant", "session", "turn", "call_mark"),
    own=("call_mark",),
    own_values=lambda row: (mark(row.call_id),),
)
QUEUE: Final = PostgresTable(QueueRow, "q", key=("tenant", "session", "number"))
USAGE: Final = PostgresTable(
    UsageRow,
    "u",
    key=("tenant", "session", "day", "model_mark"),
    own=("model_mark",),
    own_values=lambda row: (mark_or_zero(row.model),),
)


TABLES: Final[dict[str, PostgresTable[Any]]] = {
    "sessions": SESSIONS,
    "heads": HEADS,
    "branches": BRANCHES,
    "turns": TURNS,
    "tools": TOOLS,
    "queue": QUEUE,
    "usage": USAGE,
}


def session_and_head(values: Sequence[Any]) -> tuple[SessionRow, HeadRow | None]:
    """Convert a session and, if it has one, its head, which were read together."""
    head = values[len(SESSIONS.expressions) :]
    return SESSIONS.row(values), None if head[0] is None else HEADS.row(head)


def unreadable_session(values: Sequence[Any], why: Damaged) -> UnreadableSession:
    """Stand in for a session and its head, which were read together and cannot be converted."""
    found = dict(zip((*SESSIONS.fields, *(f"head.{f}" for f in HEADS.fields)), values, strict=True))
    return UnreadableSession(found["head.activity"], str(why), readable_text(found["id"]))


def branch_row(values: Sequence[Any]) -> BranchRow:
    """Convert a branch; the id of its session and whether that was purged follow its columns.

    Raise `Damaged` if it has no end: the active branch ends at the head of its session.
    """
    session_id, purged = values[len(BRANCHES.expressions) :]
    if values[BRANCHES.fields.index("last_seq")] is None:
        raise Damaged(
            f"session {text_of(session_id)} has no head; nothing was changed. Run store.verify()."
        )
    return BRANCHES.row(values, text_of(session_id), purged)
