"""Converting between rows of the tables and values of the storage protocol.

Text is stored as its exact bytes. A *mark* is a 16-byte hash that stands for a name in an index,
because names may be longer than an index entry. What is found by a mark is compared by its name as
well.

The protocol's number of a branch is composed of its session's number and its number within the
session, so the session of a branch is known without a query.
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
from holdfast.errors import StorageError
from holdfast.storage.protocol import (
    BranchOwner,
    BranchRow,
    HeadRow,
    MessageRow,
    SessionRow,
    ToolRow,
    TurnRow,
)
from holdfast.titles import normalize_title
from holdfast.values import Holder, Usage

SESSION_COLUMNS: Final = 18
_NUMBER_BITS: Final = 24
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
_ROW_OVERHEAD_BYTES: Final = 500  # columns other than the body
_SUMMARY: Final = b'{"role":"summary"'
_UUID7: Final = re.compile("([0-9a-f]{8})-([0-9a-f]{4})-7")


def bind(text: str | None) -> bytes | None:
    """Encode text as its exact bytes, surrogates included."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def unbind(data: bytes | None) -> str | None:
    """Decode text from its exact bytes."""
    return None if data is None else data.decode("utf-8", "surrogatepass")


def text_of(data: bytes) -> str:
    """Decode text that is never NULL."""
    return data.decode("utf-8", "surrogatepass")


def mark(text: str) -> UUID:
    """Return the hash that stands for a name in an index."""
    return UUID(bytes=sha256(codec.encode_text(text)).digest()[:16])


@lru_cache(1024)  # Each message is looked up, and stored a moment later.
def message_mark(session: int, id: str) -> UUID:
    """Return the mark of a session's message.

    Marks of a session are adjacent, and those of ids with a time (UUIDv7) are in order of time:
    then an append touches one page of the index, and not one for each message.
    """
    prefix = session.to_bytes(8, "big")
    digest = sha256(prefix + codec.encode_text(id)).digest()
    timed = _UUID7.match(id)
    order = bytes.fromhex(timed[1] + timed[2]) if timed else digest[6:12]
    return UUID(bytes=prefix[4:] + order + digest[:6])


def mark_or_none(text: str | None) -> UUID | None:
    """Return the mark of a name, or `None` for `None`."""
    return None if text is None else mark(text)


def int8_array(values: Iterable[int]) -> list[Int8]:
    """Return integers as an array of bigint; the driver derives the type from the first."""
    return [Int8(value) for value in values]


def model_mark(model: str | None) -> UUID:
    """Return the mark of a model; zero, which no name has, if there is none."""
    return UUID(int=0) if model is None else mark(model)


def branch_number(session: int, number: int) -> int:
    """Return the protocol's number of a session's branch."""
    if number > _NUMBER_MASK:
        raise StorageError(f"a session has at most {_NUMBER_MASK} branches; nothing was stored.")
    return session << _NUMBER_BITS | number


def split_branch(n: int) -> tuple[int, int]:
    """Return the session of a branch, and its number within the session."""
    return n >> _NUMBER_BITS, n & _NUMBER_MASK


def session_row(row: Sequence[Any]) -> SessionRow:
    """Convert a session."""
    (n, id, key, scope, agent, title, title_by, model, cwd, created_at, pinned, archived,
     trashed_at, goal, metadata, parent, relation, purged_at) = row  # fmt: skip
    return SessionRow(
        n, text_of(id), unbind(key), unbind(scope), unbind(agent), unbind(title), title_by,
        unbind(model), unbind(cwd), created_at, pinned, archived, trashed_at, goal, metadata,
        unbind(parent), relation, purged_at,
    )  # fmt: skip


def session_values(row: SessionRow) -> tuple[object, ...]:
    """Return the column values of a session, without its number."""
    folded = None if row.title is None else normalize_title(row.title)
    return (
        bind(row.id), bind(row.key), bind(row.scope), bind(row.agent), bind(row.title),
        row.title_by, bind(row.model), bind(row.cwd), row.created_at, row.pinned, row.archived,
        row.trashed_at, row.goal, row.metadata, bind(row.parent), row.relation, row.purged_at,
        mark_or_none(row.key), mark_or_none(row.scope), mark_or_none(row.agent),
        mark_or_none(row.cwd), mark_or_none(row.title), bind(folded), mark_or_none(folded),
        row.title is None or row.title.isascii(),
    )  # fmt: skip


def owner(row: Sequence[Any]) -> BranchOwner:
    """Convert the columns of a session that a search reads."""
    n, id, scope, agent, title, parent, relation, branch, updated_at = row
    return BranchOwner(
        n, text_of(id), unbind(scope), unbind(agent), unbind(title), unbind(parent), relation,
        branch_number(n, branch), updated_at,
    )  # fmt: skip


def head_row(row: Sequence[Any]) -> HeadRow:
    """Convert a session's head."""
    session, branch, seq, turns, open_turn, updated_at, activity = row[:7]
    return HeadRow(
        session, branch_number(session, branch), branch, seq, turns, open_turn, updated_at,
        activity, Usage(*row[7:12]), row[12], unbind(row[13]), row[14], row[15], row[16],
    )  # fmt: skip


def head_values(row: HeadRow) -> tuple[object, ...]:
    """Return the column values of a head, without its session and activity."""
    return (
        split_branch(row.branch)[1], row.seq, row.turns, row.open_turn, row.updated_at,
        *msgspec.structs.astuple(row.usage), row.cost, bind(row.preview), row.preview_rank,
        row.preview_seq, row.queued,
    )  # fmt: skip


def branch_row(row: Sequence[Any]) -> BranchRow:
    """Convert a branch; the active one of a session ends at the head."""
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
    """Convert a message."""
    seq, id, turn, crc, body = row
    return MessageRow(seq, text_of(id), turn, crc, body)


def message_values(session: int, row: MessageRow) -> tuple[object, ...]:
    """Return the column values of a message, without its branch."""
    return (
        row.seq, bind(row.id), message_mark(session, row.id), row.turn, row.crc, is_summary(row),
        row.body,
    )  # fmt: skip


def message_columns(session: int, found: Sequence[MessageRow]) -> tuple[list[object], ...]:
    """Return the values of several messages, one list for each column."""
    turns: list[object] = [None if row.turn is None else Int8(row.turn) for row in found]
    return (
        [Int8(row.seq) for row in found], [bind(row.id) for row in found],
        [message_mark(session, row.id) for row in found], turns, [Int8(row.crc) for row in found],
        [is_summary(row) for row in found], [row.body for row in found],
    )  # fmt: skip


def split_by_size(messages: Sequence[MessageRow], max_bytes: int) -> Iterator[list[MessageRow]]:
    """Divide messages into parts of about `max_bytes`."""
    part: list[MessageRow] = []
    size = 0
    for row in messages:
        part.append(row)
        size += len(row.body) + _ROW_OVERHEAD_BYTES
        if size >= max_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def is_summary(row: MessageRow) -> bool:
    """True if a message is a summary, by its first bytes."""
    return row.body.startswith(_SUMMARY)


def turn_row(row: Sequence[Any]) -> TurnRow:
    """Convert a turn."""
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
    """Return the column values of a turn."""
    return (
        row.session, row.number, bind(row.token), row.state, bind(row.run_id),
        mark_or_none(row.run_id), bind(row.model), codec.to_json(row.holder), row.lease_until,
        row.first_seq, row.started_at, row.ended_at, *msgspec.structs.astuple(row.usage), row.cost,
        bind(row.error),
    )  # fmt: skip


def tool_row(row: Sequence[Any]) -> ToolRow:
    """Convert a row of the tool ledger."""
    return ToolRow(
        session=row[0],
        turn=row[1],
        call_id=text_of(row[2]),
        name=unbind(row[3]),
        outcome=row[4],
        started_at=row[5],
        ended_at=row[6],
    )
