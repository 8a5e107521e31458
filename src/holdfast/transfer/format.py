r"""The format of an export: the lines, and how they are encoded and decoded.

Each line is one JSON object in UTF-8; `type` says which kind. docs/format.md describes every field.
Every line except blobs and the records of the store names its session, so that it can be understood
by itself. The last field is `crc`, the CRC-32 of everything before it on the line.

A line is accepted only if this program would write exactly the same bytes: the same fields in the
same order, no duplicates, none unknown. So no content can hide in a duplicate field, of which some
readers take the first and others the last, and no unknown field is silently dropped.

UTF-8 cannot encode lone surrogates, so they are written as escapes (`\ud800`), one by one, and
read back as they were; no other character is escaped this way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final, TypeAlias
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.clock import EPOCH
from holdfast.draft_parts import Delta
from holdfast.validation import MAX_DEPTH, MONEY_CONTEXT
from holdfast.values import (
    JSON,
    BranchReason,
    File,
    Goal,
    MeasuredTokens,
    Message,
    Part,
    Provenance,
    Record,
    Relation,
    Role,
    SessionProvenance,
    Status,
    TitleBy,
    ToolOutcome,
    TurnState,
    Usage,
)

VERSION: Final = 2  # 1 had no records.
MAX_HEADER_BYTES: Final = 4096
# A message may have 256 MiB, and escaping at most doubles it.
MAX_LINE_BYTES: Final = 2 * codec.MAX_MESSAGE_BYTES + 1024 * 1024
MAX_LINE_DEPTH: Final = MAX_DEPTH + 16

_MAX_INT64: Final = 2**63 - 1
_MAX_SEQ: Final = 2**32 - 1
_MAX_RECORD: Final = 2**31 - 1  # So that a session that is imported has room for as many again.
_PICO_DIGITS: Final = 12
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"\\(?:u(d[89a-f][0-9a-f]{2})|.)", re.DOTALL)
_CRC: Final = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_CRC_LENGTH: Final = len(b',"crc":"00000000"}')
_DECODE_ERRORS: Final = (msgspec.DecodeError, ValueError, RecursionError)
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT64)]
Seq: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX_SEQ)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_MAX_SEQ)]
RecordNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=_MAX_RECORD)]
RecordCount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MAX_RECORD)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
SessionId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z2-7]{16}\Z")]  # As `ids` makes.
Timestamp: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class BadLine(ValueError):
    """An invalid line; the message is a predicate ("is cut off") and quotes nothing of it."""


class ExportLine(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    """The fields of a line, without its checksum."""


class Header(ExportLine, frozen=True, kw_only=True, tag="holdfast"):
    """The first line: the version of the format, and how many sessions and messages follow.

    `store_records` counts the records of the store, which come behind the sessions. If it is
    `redacted`, detectors were applied, and the secrets that they found are not in the file.
    """

    version: int
    exported_at: Timestamp
    sessions: Count
    messages: Count
    redacted: bool = False
    store_records: Count = 0


class SessionLine(ExportLine, frozen=True, kw_only=True, tag="session"):
    """A session's own fields; with `purged_at` it is a stub for messages that forks share."""

    session: SessionId
    created_at: Timestamp
    key: Name | None = None
    scope: Name | None = None
    title: Name | None = None
    title_by: TitleBy | None = None
    agent: Name | None = None
    model: Name | None = None
    cwd: Name | None = None
    pinned: bool = False
    archived: bool = False
    trashed_at: Timestamp | None = None
    goal: Goal | None = None
    metadata: dict[str, JSON] = {}
    parent: SessionId | None = None
    relation: Relation | None = None
    purged_at: Timestamp | None = None
    provenance: SessionProvenance | None = None


class BranchLine(ExportLine, frozen=True, kw_only=True, tag="branch"):
    """A branch: it starts after `fork_seq` of its parent branch and ends with `seq`.

    Of the parent's own records behind those messages it has those up to number `fork_record`.
    """

    session: SessionId
    number: Number
    parent_id: SessionId | None = None
    parent: Number | None = None
    fork_seq: Seq = 0
    fork_record: RecordNumber | None = None
    asked_seq: Seq = 0
    seq: Seq
    reason: BranchReason
    created_at: Timestamp
    token: str


class MessageLine(ExportLine, frozen=True, kw_only=True, tag="message"):
    """A message and its position."""

    session: SessionId
    branch: Number
    seq: Number
    id: Name
    turn: Number | None = None
    role: Role
    at: Timestamp
    parts: tuple[Part, ...] = ()
    status: Status = "complete"
    name: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    metadata: dict[str, JSON] = {}
    provenance: Provenance | None = None
    covers: str | None = None


class RecordLine(ExportLine, frozen=True, kw_only=True, tag="record"):
    """A record: its number on its branch, and the message it lies behind. Small files are in it."""

    session: SessionId
    branch: Number
    number: RecordNumber
    seq: Seq
    id: Name
    kind: Name
    key: Name | None = None
    at: Timestamp
    data: JSON = None
    files: dict[str, File] = {}


class StoreRecordLine(ExportLine, frozen=True, kw_only=True, tag="store_record"):
    """A record of the store. Of one that was `replaced` by a later line only the id is left."""

    scope: Name | None = None
    kind: Name
    key: Name | None = None
    id: Name
    at: Timestamp | None = None
    data: JSON = None
    files: dict[str, File] = {}
    replaced: bool = False


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call in a turn's ledger."""

    call_id: str
    name: str | None = None
    outcome: ToolOutcome
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None


class TurnLine(ExportLine, frozen=True, kw_only=True, tag="turn"):
    """A turn and its ledger of tool calls."""

    session: SessionId
    number: Number
    state: TurnState
    run_id: str | None = None
    model: str | None = None
    first_seq: Seq
    started_at: Timestamp
    ended_at: Timestamp | None = None
    usage: Usage = Usage()
    cost: Decimal = Decimal(0)
    error: str | None = None
    tools: tuple[LedgerEntry, ...] = ()
    token: str


class UsageLine(ExportLine, frozen=True, kw_only=True, tag="usage"):
    """What one model used and cost in a session on one day."""

    session: SessionId
    day: date
    model: str | None = None
    usage: Usage = Usage()
    cost: Decimal = Decimal(0)
    measured: MeasuredTokens = MeasuredTokens()


class MessageContent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a message that has no position yet."""

    role: Role
    at: Timestamp
    parts: tuple[Part, ...] = ()
    status: Status = "complete"
    name: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    metadata: dict[str, JSON] = {}
    provenance: Provenance | None = None


class QueuedLine(ExportLine, frozen=True, kw_only=True, tag="queued"):
    """A queued message; `blobs` are the files queued with it. No turn takes a `held` one."""

    session: SessionId
    id: Name
    created_at: Timestamp
    message: MessageContent
    blobs: tuple[str, ...] = ()
    held: bool = False


class DraftLine(ExportLine, frozen=True, kw_only=True, tag="draft"):
    """A chunk of a draft: number 0 opens it, each later one appends to it."""

    session: SessionId
    turn: Number
    number: Count
    id: Name | None = None
    model: str | None = None
    at: Timestamp | None = None
    deltas: tuple[Delta, ...] = ()
    usage: Usage | None = None
    cost: Decimal | None = None


class BlobLine(ExportLine, frozen=True, kw_only=True, tag="blob"):
    """The bytes of a file, written before the first message or record that refers to it."""

    sha256: str
    data: bytes


class EndLine(ExportLine, frozen=True, kw_only=True, tag="end"):
    """The end of a session: repeats its fields and branches, and counts the lines before.

    `newest_record` is the highest number that a record of the active branch ever had.
    """

    session: SessionId
    identity: SessionLine
    branches: tuple[BranchLine, ...] = ()
    updated_at: Timestamp | None = None
    turns: Count = 0
    rank: Count = 0
    messages: Count = 0
    newest_record: RecordCount = 0
    lines: Count
    checksum: str


AnyLine: TypeAlias = (
    SessionLine
    | BranchLine
    | MessageLine
    | RecordLine
    | StoreRecordLine
    | TurnLine
    | UsageLine
    | QueuedLine
    | DraftLine
    | BlobLine
    | EndLine
)


class FormatVersion(msgspec.Struct, frozen=True):
    """The fields that the first line has in every version of the format."""

    type: str
    version: int


# ------------------------------------------------------------------------------------- encoding


def encode_line(line: Header | AnyLine) -> bytes:
    """Return the bytes of a line, including the newline."""
    data = _escape_surrogates(codec.to_json(line))[:-1]
    return b'%s,"crc":"%08x"}\n' % (data, crc32(data))


def _escape_surrogates(data: bytes) -> bytes:
    """Return the data with lone surrogates written as escapes."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        text = codec.decode_text(data)
        return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8")
    return data


# ------------------------------------------------------------------------------------- decoding


_decode_any: Callable[[bytes], AnyLine] = msgspec.json.Decoder(AnyLine).decode


def decode_line(line: bytes) -> AnyLine:
    """Decode a line; raise `BadLine` unless `encode_line` would write the same bytes."""
    data = _verify_checksum(line)
    try:
        found = _decode_any(data) if b"\\ud" not in data else _decode_escaped(data)
        again = _escape_surrogates(codec.to_json(found))
    except _DECODE_ERRORS:
        raise BadLine("is not a valid line") from None
    if again != data:
        raise BadLine("is not as it was written")
    return found


def _decode_escaped(data: bytes) -> AnyLine:
    """Decode a line that has escaped surrogates, or text that looks like them."""
    plain = codec.encode_text(_ESCAPE.sub(_unescape, data.decode("utf-8")))
    if plain == data:
        return _decode_any(data)
    return msgspec.convert(json.loads(codec.decode_text(plain)), AnyLine)  # type: ignore[no-any-return]


def decode_header(line: bytes) -> Header:
    """Decode the first line; raise `BadLine` as `decode_line` does."""
    data = _verify_checksum(line)
    try:
        header = codec.from_json(data, Header)
    except _DECODE_ERRORS:
        raise BadLine("is not a valid header") from None
    if codec.to_json(header) != data:
        raise BadLine("is not as it was written")
    return header


def _verify_checksum(line: bytes) -> bytes:
    """Verify the checksum, and return the line without it; raise `BadLine` if it is wrong."""
    body = line.removesuffix(b"\n")
    found = _CRC.fullmatch(body, max(0, len(body) - _CRC_LENGTH))
    if found is None:
        raise BadLine("has no checksum")
    data = body[:-_CRC_LENGTH]
    if crc32(data) != int(found[1], 16):
        raise BadLine("does not match its checksum")
    return data + b"}"


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[0]


def is_too_deep(line: bytes) -> bool:
    """True if a line is nested deeper than an export can be."""
    if line.count(b"[") + line.count(b"{") <= MAX_LINE_DEPTH:
        return False
    depth = 0
    for found in _BRACKETS.finditer(line):
        token = found[0]
        if token in b"[{":
            depth += 1
            if depth > MAX_LINE_DEPTH:
                return True
        elif token in b"]}":
            depth -= 1
    return False


# --------------------------------------------------------------------------------------- values


def to_money(pico: int) -> Decimal:
    """Convert an amount from units of 10⁻¹² to a decimal."""
    return (
        MONEY_CONTEXT.normalize(Decimal(pico).scaleb(-_PICO_DIGITS, MONEY_CONTEXT))
        if pico
        else Decimal(0)
    )


def from_money(amount: Decimal) -> int:
    """Convert an amount to units of 10⁻¹²; raise `BadLine` if a store cannot hold it."""
    try:
        pico = int(amount.scaleb(_PICO_DIGITS, MONEY_CONTEXT)) if amount.is_finite() else -1
    except InvalidOperation:
        pico = -1
    if not 0 <= pico <= _MAX_INT64:
        raise BadLine("has a cost that is negative or out of range")
    return pico


def message_line(*, session: str, branch: int, turn: int | None, message: Message) -> MessageLine:
    """Return the line of a stored message (one with `seq` and `created_at`)."""
    return MessageLine(
        session=session,
        branch=branch,
        seq=message.seq or 0,
        id=message.id,
        turn=turn,
        role=message.role,
        at=message.created_at or EPOCH,
        parts=message.parts,
        status=message.status,
        name=message.name,
        model=message.model,
        usage=message.usage,
        cost=message.cost,
        metadata=message.metadata,
        provenance=message.provenance,
        covers=message.covers,
    )


def record_line(*, session: str, branch: int, number: int, record: Record) -> RecordLine:
    """Return the line of a stored record (one with `seq` and `created_at`)."""
    return RecordLine(
        session=session,
        branch=branch,
        number=number,
        seq=record.seq or 0,
        id=record.id,
        kind=record.kind,
        key=record.key,
        at=record.created_at or EPOCH,
        data=record.data,
        files=record.files,
    )


def store_record_line(record: Record, *, replaced: bool) -> StoreRecordLine:
    """Return the line of a record of the store, one with a `scope`."""
    return StoreRecordLine(
        scope=record.scope or None,
        kind=record.kind,
        key=record.key,
        id=record.id,
        at=record.created_at,
        data=record.data,
        files=record.files,
        replaced=replaced,
    )


def to_record(line: RecordLine | StoreRecordLine) -> Record:
    """Return the record of a line."""
    return Record(
        line.kind,
        key=line.key,
        data=line.data,
        files=line.files,
        id=line.id,
        created_at=line.at,
    )


def message_content(message: Message) -> MessageContent:
    """Return the content of a message that has no position yet."""
    return MessageContent(
        role=message.role,
        at=message.created_at or EPOCH,
        parts=message.parts,
        status=message.status,
        name=message.name,
        model=message.model,
        usage=message.usage,
        cost=message.cost,
        metadata=message.metadata,
        provenance=message.provenance,
    )


def to_message(line: MessageLine | MessageContent, message_id: str) -> Message:
    """Return the message of a line."""
    return Message(
        id=message_id,
        role=line.role,
        parts=line.parts,
        created_at=line.at,
        status=line.status,
        name=line.name,
        model=line.model,
        usage=line.usage,
        cost=line.cost,
        metadata=line.metadata,
        provenance=line.provenance,
        covers=line.covers if isinstance(line, MessageLine) else None,
    )
