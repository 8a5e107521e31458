"""Rows of tables and the seam's values, one from the other.

Text is stored as its bytes, exactly. A *mark* stands for a name in an index: names may be longer
than an index entry, marks have 16 bytes. What is found by a mark is compared by its name as well.

The seam's number of a branch is made of its session's number and its number there, so whoever has
one knows which session's rows to look for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec
from psycopg.types.numeric import Int8

from holdfast import codec
from holdfast.backends.base import (
    BranchRow,
    HeadRow,
    MessageRow,
    Owner,
    SessionRow,
    ToolRow,
    TurnRow,
)
from holdfast.core.titles import loose
from holdfast.errors import StorageError
from holdfast.records import Holder, Usage

SESSION_COLUMNS: Final = 18
_NUMBER_BITS: Final = 24
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
_ROW: Final = 500  # What the rest of a row counts as.
_SUMMARY: Final = b'{"role":"summary"'
_UUID7: Final = re.compile("([0-9a-f]{8})-([0-9a-f]{4})-7")


def bind(text: str | None) -> bytes | None:
    """Return text to the engine exactly."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def unbind(data: bytes | None) -> str | None:
    """Take text from the engine exactly."""
    return None if data is None else data.decode("utf-8", "surrogatepass")


def text_of(data: bytes) -> str:
    """Take text that is always there."""
    return data.decode("utf-8", "surrogatepass")


def mark(text: str) -> UUID:
    """Return what stands for a name in an index."""
    return UUID(bytes=sha256(codec.encode_text(text)).digest()[:16])


@lru_cache(1024)  # A message is looked up, and stored a moment later.
def place_mark(session: int, id: str) -> UUID:
    """Return what stands for a session's message in an index.

    Marks of a session lie together, and those of ids that have a time (UUIDv7) in their order: then
    an append touches one page of the index, and not one for each message.
    """
    place = session.to_bytes(8, "big")
    digest = sha256(place + codec.encode_text(id)).digest()
    timed = _UUID7.match(id)
    order = bytes.fromhex(timed[1] + timed[2]) if timed else digest[6:12]
    return UUID(bytes=place[4:] + order + digest[:6])


def mark_or_none(text: str | None) -> UUID | None:
    """Return the mark of a name that may be absent."""
    return None if text is None else mark(text)


def numbers(values: Iterable[int]) -> list[Int8]:
    """Return a list of numbers to the engine; it takes the type of all from the first."""
    return [Int8(value) for value in values]


def model_mark(model: str | None) -> UUID:
    """Return the mark of a model; that of none is no model's."""
    return UUID(int=0) if model is None else mark(model)


def branch_number(session: int, number: int) -> int:
    """Return what the seam calls a session's branch."""
    if number > _NUMBER_MASK:
        raise StorageError(f"a session has at most {_NUMBER_MASK} branches; nothing was stored.")
    return session << _NUMBER_BITS | number


def split_branch(n: int) -> tuple[int, int]:
    """Return the session of a branch, and its number there."""
    return n >> _NUMBER_BITS, n & _NUMBER_MASK


def session_row(row: Sequence[Any]) -> SessionRow:
    """Read a session."""
    (n, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned, archived,
     trashed_at, goal, metadata, parent, relation, purged_at) = row  # fmt: skip
    return SessionRow(
        n, text_of(id), unbind(key), unbind(scope), unbind(agent), unbind(title), title_by,
        unbind(model), unbind(cwd), created_at, pinned, archived, trashed_at, goal, metadata,
        unbind(parent), relation, purged_at,
    )  # fmt: skip


def session_values(row: SessionRow) -> tuple[object, ...]:
    """Return the values of a session behind its number."""
    folded = None if row.title is None else loose(row.title)
    return (
        bind(row.id), bind(row.key), bind(row.scope), bind(row.agent), bind(row.title),
        row.title_by, bind(row.model), bind(row.cwd), row.created_at, row.pinned, row.archived,
        row.trashed_at, row.goal, row.metadata, bind(row.parent), row.relation, row.purged_at,
        mark_or_none(row.key), mark_or_none(row.scope), mark_or_none(row.agent),
        mark_or_none(row.cwd), mark_or_none(row.title), bind(folded), mark_or_none(folded),
        row.title is None or row.title.isascii(),
    )  # fmt: skip


def owner(row: Sequence[Any]) -> Owner:
    """Read what a search asks of a session."""
    n, id, scope, agent, title, parent, relation, branch, updated_at = row
    return Owner(
        n, text_of(id), unbind(scope), unbind(agent), unbind(title), unbind(parent), relation,
        branch_number(n, branch), updated_at,
    )  # fmt: skip


def head_row(row: Sequence[Any]) -> HeadRow:
    """Read where a session stands."""
    session, branch, seq, turns, open_turn, updated_at, activity = row[:7]
    return HeadRow(
        session, branch_number(session, branch), branch, seq, turns, open_turn, updated_at,
        activity, Usage(*row[7:12]), row[12], unbind(row[13]), row[14], row[15], row[16],
    )  # fmt: skip


def head_values(row: HeadRow) -> tuple[object, ...]:
    """Return the values of a head behind its session, but for its activity."""
    return (
        split_branch(row.branch)[1], row.seq, row.turns, row.open_turn, row.updated_at,
        *msgspec.structs.astuple(row.usage), row.cost, bind(row.preview), row.preview_rank,
        row.preview_seq, row.queued,
    )  # fmt: skip


def branch_row(row: Sequence[Any]) -> BranchRow:
    """Read a branch; the one that its session is on ends at the head."""
    (session_id, purged, active, head_seq, session, number, parent_session, parent_number,
     fork_seq, asked_seq, last_seq, created_at, reason, token) = row  # fmt: skip
    parent = None if parent_session is None else branch_number(parent_session, parent_number)
    return BranchRow(
        n=branch_number(session, number),
        session=session,
        session_id=text_of(session_id),
        purged=purged,
        number=number,
        parent=parent,
        fork_seq=fork_seq,
        asked_seq=asked_seq,
        last_seq=head_seq if number == active else last_seq,
        created_at=created_at,
        reason=reason,
        token=text_of(token),
    )


def message_row(row: Sequence[Any]) -> MessageRow:
    """Read a message."""
    seq, id, turn, crc, body = row
    return MessageRow(seq, text_of(id), turn, crc, body)


def message_values(session: int, row: MessageRow) -> tuple[object, ...]:
    """Return the values of a message behind its branch."""
    return (
        row.seq, bind(row.id), place_mark(session, row.id), row.turn, row.crc, is_summary(row),
        row.body,
    )  # fmt: skip


def message_columns(session: int, found: Sequence[MessageRow]) -> tuple[list[object], ...]:
    """Return the values of several messages, column by column."""
    turns: list[object] = [None if row.turn is None else Int8(row.turn) for row in found]
    return (
        [Int8(row.seq) for row in found], [bind(row.id) for row in found],
        [place_mark(session, row.id) for row in found], turns, [Int8(row.crc) for row in found],
        [is_summary(row) for row in found], [row.body for row in found],
    )  # fmt: skip


def by_weight(found: Sequence[MessageRow], most: int) -> Iterator[list[MessageRow]]:
    """Divide messages into parts of about so many bytes."""
    part: list[MessageRow] = []
    weight = 0
    for row in found:
        part.append(row)
        weight += len(row.body) + _ROW
        if weight >= most:
            yield part
            part, weight = [], 0
    if part:
        yield part


def is_summary(row: MessageRow) -> bool:
    """Return whether a message is a summary, by its first bytes."""
    return row.body.startswith(_SUMMARY)


def turn_row(row: Sequence[Any]) -> TurnRow:
    """Read a turn."""
    return TurnRow(
        session=row[0],
        number=row[1],
        token=text_of(row[2]),
        state=row[3],
        run_id=unbind(row[4]),
        model=unbind(row[5]),
        holder=codec.from_json(row[6], Holder),
        lease_until=row[7],
        first_seq=row[8],
        started_at=row[9],
        ended_at=row[10],
        usage=Usage(*row[11:16]),
        cost=row[16],
        error=unbind(row[17]),
    )


def turn_values(row: TurnRow) -> tuple[object, ...]:
    """Return the values of a turn."""
    return (
        row.session, row.number, bind(row.token), row.state, bind(row.run_id),
        mark_or_none(row.run_id), bind(row.model), codec.to_json(row.holder), row.lease_until,
        row.first_seq, row.started_at, row.ended_at, *msgspec.structs.astuple(row.usage), row.cost,
        bind(row.error),
    )  # fmt: skip


def tool_row(row: Sequence[Any]) -> ToolRow:
    """Read a line of the ledger."""
    return ToolRow(
        session=row[0],
        turn=row[1],
        call_id=text_of(row[2]),
        name=unbind(row[3]),
        outcome=row[4],
        started_at=row[5],
        ended_at=row[6],
    )
