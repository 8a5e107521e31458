"""Rows of the log: what backends store and return. Times are in microseconds, money in 10⁻¹².

The annotations of the fields declare the columns of the tables (`columns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

import msgspec

from holdfast.codec import checksum, record_checksum
from holdfast.storage import metadata_marks
from holdfast.storage.ancestry import Segment
from holdfast.storage.columns import (
    Added,
    Count,
    Day,
    Derived,
    JsonOf,
    Name,
    Number,
    Seq,
    Text,
    Time,
)
from holdfast.values import (
    BranchReason,
    Goal,
    Holder,
    MeasuredTokens,
    Relation,
    SessionProvenance,
    TitleBy,
    ToolOutcome,
    TurnState,
    Usage,
)

_SUMMARY: Final = b'{"role":"summary"'


class SessionRow(msgspec.Struct, frozen=True):
    """A session's identity. `goal` and `metadata` are JSON, times are in microseconds.

    A row with `purged_at` is the stub that a purge leaves while a fork shares the session's
    messages. Reads along those messages find it by its id; nothing else does.
    """

    n: Number
    id: Name
    key: Name | None = None
    scope: Name | None = None
    agent: Name | None = None
    title: Name | None = None
    title_by: TitleBy | None = None
    model: Name | None = None
    cwd: Name | None = None
    created_at: Time = 0
    pinned: bool = False
    archived: bool = False
    trashed_at: Time | None = None
    goal: Annotated[bytes, JsonOf(Goal)] | None = None
    metadata: Annotated[bytes, JsonOf(dict)] = b"{}"
    parent: Name | None = None
    relation: Relation | None = None
    purged_at: Time | None = None
    provenance: Annotated[bytes | None, JsonOf(SessionProvenance), Added()] = None


class HeadRow(msgspec.Struct, frozen=True):
    """A session's head row, which every append reads and rewrites.

    `open_turn` is the number of the open turn and its fencing token: later turns have higher
    numbers, and a write by the holder of any other turn is refused. `records` is the number of the
    newest record on the branch; `None` if there never was one.
    """

    session: Number
    branch: Number
    branch_no: Number
    seq: Seq
    turns: Count
    open_turn: Number | None
    updated_at: Time
    activity: Count
    usage: Usage
    cost: Count
    preview: Text | None
    preview_rank: Count
    preview_seq: Seq
    queued: Count
    records: Annotated[Number | None, Added()] = None

    @classmethod
    def first(cls, session: int, branch: int, start: BranchStart, created_at: int) -> HeadRow:
        """Return the head of a new session, where its first branch starts."""
        return cls(
            session, branch, 1, start.fork_seq, 0, None, created_at, 0, Usage(), 0, None, 0, 0, 0
        )


class BranchStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where a new branch starts: after message `fork_seq`, which is on branch `parent`.

    Of the parent's own records it has those behind its messages, up to number `fork_record`. A
    parent that starts at `fork_seq` itself has no message of the history, only records.
    """

    parent: int | None = None
    fork_seq: int = 0
    asked_seq: int = 0
    reason: BranchReason = "start"
    token: str
    fork_record: int | None = None


class BranchRow(msgspec.Struct, frozen=True):
    """A branch. `session_id` and `purged` are those of its session.

    `last_seq` is where it ends now: at the session's head, if that is on it, else where
    `end_branch` or `cut_branch` put its end; at `fork_seq` before that.
    """

    n: Number
    session: Number
    session_id: Annotated[str, Derived()]
    purged: Annotated[bool, Derived()]
    number: Number
    parent: Number | None
    fork_seq: Seq
    asked_seq: Seq
    last_seq: Seq
    created_at: Time
    reason: BranchReason
    token: Text
    fork_record: Annotated[Number | None, Added()] = None

    @classmethod
    def create(
        cls, n: int, session: int, number: int, start: BranchStart, created_at: int
    ) -> BranchRow:
        """Return the row of a new branch, which ends where it starts; without derived fields."""
        return cls(
            n=n,
            session=session,
            session_id="",
            purged=False,
            number=number,
            parent=start.parent,
            fork_seq=start.fork_seq,
            asked_seq=start.asked_seq,
            last_seq=start.fork_seq,
            created_at=created_at,
            reason=start.reason,
            token=start.token,
            fork_record=start.fork_record,
        )

    def own(self, last_record: int | None = None) -> Segment:
        """Return the segment of its own messages and records; of these up to a number, if given."""
        return Segment(self.n, self.fork_seq + 1, None, self.session_id, last_record)


class BranchOwner(msgspec.Struct, frozen=True, gc=False):
    """What a search reads of a session first: its identity, and its current branch.

    It is read for many sessions at once, without verifying checksums; the rows of hits that are
    shown are verified.
    """

    n: int
    id: str
    scope: str | None
    agent: str | None
    cwd: str | None
    title: str | None
    parent: str | None
    relation: Relation | None
    branch: int
    updated_at: int

    @classmethod
    def of(cls, row: SessionRow, head: HeadRow) -> BranchOwner:
        """Return the owner with this identity and head."""
        return cls(
            row.n, row.id, row.scope, row.agent, row.cwd, row.title, row.parent, row.relation,
            head.branch, head.updated_at,
        )  # fmt: skip


class CutResult(msgspec.Struct, frozen=True):
    """What was erased of a branch: messages, records, and the blobs they referred to."""

    messages: int
    blobs: frozenset[str]
    records: int = 0


class SessionRowCounts(msgspec.Struct, frozen=True):
    """How many rows were erased together with a session; `drafts` counts the chunks of drafts."""

    turns: int
    drafts: int
    queued: int


class SessionSize(msgspec.Struct, frozen=True):
    """How many messages a session wrote, and the approximate size of them and their files."""

    messages: int
    bytes: int


class MessageRow(msgspec.Struct, frozen=True, gc=False):
    """A stored message: its seq, id, turn, checksum and encoded body."""

    seq: int
    id: str
    turn: int | None
    crc: int
    body: bytes

    @classmethod
    def create(cls, seq: int, id: str, turn: int | None, body: bytes) -> MessageRow:
        """Return the row of a new message, with its checksum."""
        return cls(seq, id, turn, checksum(id, turn, body), body)


class RecordRow(msgspec.Struct, frozen=True, gc=False):
    """A stored record: its number on its branch, the seq it lies behind, and its encoded body.

    Later records of a branch have higher numbers, and lie behind the same or later messages.
    """

    number: int
    seq: int
    id: str
    kind: str
    key: str | None
    crc: int
    body: bytes

    @classmethod
    def create(
        cls, number: int, seq: int, id: str, name: tuple[str, str | None], body: bytes
    ) -> RecordRow:
        """Return the row of a new record, named by its kind and key, with its checksum."""
        kind, key = name
        crc = record_checksum(number, seq, id, kind, key, body=body)
        return cls(number, seq, id, kind, key, crc, body)

    @property
    def is_intact(self) -> bool:
        """Whether it matches its checksum."""
        columns = (self.number, self.seq, self.id, self.kind, self.key)
        return record_checksum(*columns, body=self.body) == self.crc


class StoreRecordRow(msgspec.Struct, frozen=True, gc=False):
    """A record of the store, beyond sessions: of a scope, or of all.

    One that a later record of its scope, kind and key replaced has no body: its id remains, so that
    a retry is recognized.
    """

    scope: str | None
    kind: str
    key: str | None
    id: str
    crc: int
    body: bytes | None

    @classmethod
    def create(
        cls, scope: str | None, kind: str, key: str | None, id: str, body: bytes | None
    ) -> StoreRecordRow:
        """Return the row of a record, with its checksum."""
        crc = record_checksum(scope, kind, key, id, body=body or b"")
        return cls(scope, kind, key, id, crc, body)

    @property
    def is_intact(self) -> bool:
        """Whether it matches its checksum."""
        columns = (self.scope, self.kind, self.key, self.id)
        return record_checksum(*columns, body=self.body or b"") == self.crc


def is_summary(row: MessageRow) -> bool:
    """Return whether a message is a summary, by its first bytes."""
    return row.body.startswith(_SUMMARY)


class BlobUse(msgspec.Struct, frozen=True, gc=False):
    """A blob that a message or record refers to, by its seq or number on the branch.

    Without `data` it is stored; the caller has checked that.
    """

    seq: int
    sha256: str
    data: bytes | None = None


class TurnRow(msgspec.Struct, frozen=True):
    """A turn. `token` identifies the attempt that opened it, `first_seq` is the head's seq then."""

    session: Number
    number: Number
    token: Text
    state: TurnState
    run_id: Name | None
    model: Name | None
    holder: Annotated[Holder, JsonOf(Holder)]
    lease_until: int
    first_seq: Seq
    started_at: Time
    ended_at: Time | None
    usage: Usage
    cost: Count
    error: Text | None


class ToolRow(msgspec.Struct, frozen=True):
    """A row of the tool ledger: one tool call of a turn."""

    session: Number
    turn: Number
    call_id: Text
    name: Text | None
    outcome: ToolOutcome
    started_at: Time | None
    ended_at: Time | None


class QueueRow(msgspec.Struct, frozen=True):
    """Input queued for the next turn. If it is `held`, no turn takes it."""

    number: Number
    id: Name
    created_at: Time
    body: Annotated[bytes, JsonOf(object)]
    blobs: Annotated[tuple[tuple[str, bytes], ...], Derived()]
    held: Annotated[bool | None, Added()] = None


class UsageRow(msgspec.Struct, frozen=True):
    """The usage of one model in a session on one day (days since 1970, UTC)."""

    day: Day
    model: Text | None
    usage: Usage
    cost: Count
    measured: MeasuredTokens = MeasuredTokens()

    def __add__(self, other: UsageRow) -> UsageRow:
        """Return the sum of two rows of one day and model."""
        return UsageRow(
            self.day,
            self.model,
            self.usage + other.usage,
            self.cost + other.cost,
            self.measured + other.measured,
        )


def sort_usage(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """Return usage sorted by day and model, rows without a model first."""
    return sorted(rows, key=lambda row: (row.day, row.model is not None, row.model or ""))


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list: those that match every field that is not `None`.

    `since` (inclusive) and `until` (exclusive) bound the time of the last write, `busy` is whether
    a turn is open. All pairs of `metadata` must be there.
    """

    scope: str | None = None
    agent: str | None = None
    cwd: str | None = None
    text: str | None = None
    pinned: bool | None = None
    archived: bool | None = None
    trashed: bool = False
    delegates: bool = True
    since: int | None = None
    until: int | None = None
    busy: bool | None = None
    key_prefix: str | None = None
    metadata: frozenset[metadata_marks.Pair] = frozenset()

    def matches(self, row: SessionRow, head: HeadRow) -> bool:
        """Return whether a session belongs in the list."""
        fields = (
            (self.scope, row.scope),
            (self.agent, row.agent),
            (self.cwd, row.cwd),
            (self.pinned, row.pinned),
            (self.archived, row.archived),
            (self.busy, head.open_turn is not None),
        )
        return (
            all(wanted is None or wanted == actual for wanted, actual in fields)
            and self.trashed == (row.trashed_at is not None)
            and (self.delegates or row.relation != "delegate")
            and (self.since is None or head.updated_at >= self.since)
            and (self.until is None or head.updated_at < self.until)
            and (self.text is None or _contains(self.text, row.title, head.preview, row.key))
            and self.matches_names(row)
        )

    def matches_names(self, row: SessionRow) -> bool:
        """Return whether a session has the key and the metadata; both are found by indexes."""
        return (
            self.key_prefix is None or (row.key is not None and row.key.startswith(self.key_prefix))
        ) and (not self.metadata or self.metadata <= metadata_marks.pairs(row.metadata))

    @property
    def includes_damaged(self) -> bool:
        """Whether no filter is set that unreadable sessions might fail: then they are listed."""
        filters = (
            self.scope, self.agent, self.cwd, self.text, self.since, self.until, self.busy,
            self.key_prefix,
        )  # fmt: skip
        return all(value is None for value in filters) and not (
            self.pinned or self.archived or self.trashed or self.metadata
        )


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the first bytes that have a prefix, and the first behind all that have it.

    The prefix is part of a text, so no byte of it is 255.
    """
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1])


def _contains(text: str, *shown: str | None) -> bool:
    return any(text.lower() in (value or "").lower() for value in shown)


class UnreadableSession(msgspec.Struct, frozen=True):
    """Stands in a list for a session whose rows cannot be read.

    It has what could be read: perhaps the id, and the rows without a valid checksum.
    """

    activity: int
    why: str
    id: str | None = None
    row: SessionRow | None = None
    head: HeadRow | None = None


ListedSession: TypeAlias = tuple[SessionRow, HeadRow] | UnreadableSession
