"""Encoding messages as bytes, and decoding them.

A stored message is JSON, readable without this program. Decoding returns exactly what was encoded;
values for which that is impossible are rejected first (`validation`).

Three things go beyond JSON:

* *Lone surrogates.* Python text may contain them. They are encoded as three bytes each, which is
  not valid UTF-8 and therefore recognized when decoding.
* *Large parts.* A part over `BLOB_THRESHOLD` bytes is replaced by its SHA-256 and stored as a blob;
  so is the data of files.
* *Damage.* A checksum covers the id, the turn and the body.

What is stored may be a stranger's, with right checksums. So decoding accepts only what could have
been encoded: no deeper nesting, no NaN, no time without a zone, no negative count.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Annotated, Final, NoReturn, TypeAlias, TypeVar

import msgspec

from holdfast.clock import EPOCH
from holdfast.errors import BadMessage, Damaged, TooLarge
from holdfast.validation import (
    MAX_COST,
    MAX_DEPTH,
    check_message,
    check_record,
    to_cost,
    to_time,
)
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Provenance,
    Raw,
    Record,
    Role,
    Status,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

BLOB_THRESHOLD: Final = 64 * 1024
INLINE_FILE_BYTES: Final = 1024  # of a record
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
MAX_RECORD_FILES: Final = 10_000
MAX_BATCH_ENTRIES: Final = 10_000
MAX_MESSAGE_PARTS: Final = 10_000  # those within tool results included
_FEW_BYTES: Final = 4096
_MAX_NESTING: Final = MAX_DEPTH + 10  # of bytes: a value is nested in a part, and that in a body
_BRACKETS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|([\]}])', re.DOTALL)

S = TypeVar("S")
BlobReader = Callable[[str], bytes | None]


class BlobRef(msgspec.Struct, frozen=True, tag="blob"):
    """Stands in a stored body for a part that is stored as a blob."""

    sha256: str


StoredPart: TypeAlias = Text | Thinking | ToolCall | ToolResult | File | Raw | BlobRef


class StoredBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The stored fields of a message except its id, seq and turn."""

    role: Role
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    parts: tuple[StoredPart, ...] = ()
    status: Status = "complete"
    name: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    metadata: dict[str, JSON] = {}
    provenance: Provenance | None = None
    covers: str | None = None


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The stored fields of a record besides its columns; large data is a blob."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    data: JSON = None
    data_sha256: str | None = None
    files: dict[str, File] = {}


class EncodedRecord(msgspec.Struct, frozen=True):
    """A record ready to be stored: its body, its own blobs, and the hashes it only refers to.

    `behind` is how many messages of its batch come before it.
    """

    id: str
    record: Record
    body: bytes
    behind: int = 0
    blobs: tuple[tuple[str, bytes], ...] = ()
    blob_refs: tuple[str, ...] = ()


class EncodedMessage(msgspec.Struct, frozen=True):
    """A message ready to be stored: its body, its own blobs, and the hashes it only refers to."""

    id: str
    message: Message
    body: bytes
    blobs: tuple[tuple[str, bytes], ...] = ()
    blob_refs: tuple[str, ...] = ()


_to_bytes = msgspec.json.Encoder(decimal_format="string").encode
_encode_sorted = msgspec.json.Encoder(decimal_format="string", order="deterministic").encode
_decode_body = msgspec.json.Decoder(StoredBody).decode


# ------------------------------------------------------------------------------------- encoding


def encode_batch(
    entries: Sequence[Message | Record], now: datetime
) -> tuple[list[EncodedMessage], list[EncodedRecord]]:
    """Validate and encode messages and records; those without a time get `now`."""
    if type(entries) is not tuple and not isinstance(entries, Sequence):
        raise BadMessage("entries: expected a list of messages and records")
    if len(entries) > MAX_BATCH_ENTRIES:
        raise TooLarge(
            f"a batch of {len(entries)} entries is over the limit of {MAX_BATCH_ENTRIES}; "
            "nothing was stored. Append them in several batches."
        )
    messages: list[EncodedMessage] = []
    records: list[EncodedRecord] = []
    for entry in entries:
        if type(entry) is Record:
            records.append(encode_record(entry, now, len(messages)))
        else:
            messages.append(encode(entry, now))  # type: ignore[arg-type]
    return messages, records


def encode_history(messages: Iterable[Message], now: datetime) -> list[EncodedMessage]:
    """Validate and encode a whole history; see `known` of `encode`."""
    if not isinstance(messages, Iterable):
        raise BadMessage("messages: expected a list of messages")
    return [encode(message, now, known=True) for message in messages]


def encode(
    message: Message,
    now: datetime,
    *,
    limit: int | None = MAX_MESSAGE_BYTES,
    known: bool = False,
) -> EncodedMessage:
    """Validate and encode one message; without a time it gets `now`.

    With `known` it may have a role or status that only the store sets: a summary, a tombstone.
    """
    message = check_message(message, known=known)
    item = _encode(message, now)
    size = len(item.body)
    if item.blobs:
        size += sum(len(blob) for _, blob in item.blobs)
    if limit is not None and size > limit:
        raise TooLarge(
            f"message {message.id!r} has {size} bytes, over the limit of {limit}; nothing was "
            "stored."
        )
    if limit is not None and size > MAX_MESSAGE_PARTS:  # Each part has more than one byte.
        check_part_count(message)
    return item


def check_part_count(message: Message) -> None:
    """Raise `TooLarge` if a message has too many parts."""
    count = len(message.parts) + sum(
        len(part.content)
        for part in message.parts
        if isinstance(part, ToolResult) and not isinstance(part.content, str)
    )
    if count > MAX_MESSAGE_PARTS:
        raise TooLarge(
            f"message {message.id!r} has {count} parts, over the limit of {MAX_MESSAGE_PARTS}; "
            "nothing was stored. Store them as several messages."
        )


def encode_unchecked(message: Message) -> EncodedMessage:
    """Encode a message that the store itself makes: a tombstone or a placeholder."""
    return _encode(message, EPOCH)


def _encode(message: Message, now: datetime) -> EncodedMessage:
    parts = message.parts
    body = StoredBody(
        role=message.role,
        at=now if message.created_at is None else to_time(message.created_at),
        parts=parts if type(parts) is tuple else tuple(parts),
        status=message.status,
        name=message.name,
        model=message.model,
        usage=message.usage,
        cost=None if message.cost is None else to_cost(message.cost),
        metadata=message.metadata,
        provenance=message.provenance,
        covers=message.covers,
    )
    for part in parts:
        kind = type(part)
        if kind is File or (kind is ToolResult and type(part.content) is not str):  # type: ignore[union-attr]
            return _encode_files(message, body)
    data = to_json(body)
    if len(data) <= BLOB_THRESHOLD:
        return EncodedMessage(message.id, message, data)
    return _encode_large(message, body, {}, ())


def _encode_files(message: Message, body: StoredBody) -> EncodedMessage:
    """Encode a message that may contain files; their data is stored as blobs."""
    blobs: dict[str, bytes] = {}
    parts = tuple(_strip_file_data(part, blobs) for part in body.parts)
    refers = tuple(dict.fromkeys(name for name in _file_hashes(parts) if name not in blobs))
    sizes = {name: len(data) for name, data in blobs.items()}
    _check_file_sizes(parts, sizes.get)
    body = msgspec.structs.replace(body, parts=parts) if parts != body.parts else body
    data = to_json(body)
    if len(data) > BLOB_THRESHOLD:
        return _encode_large(message, body, blobs, refers)
    return EncodedMessage(message.id, message, data, tuple(blobs.items()), refers)


def _encode_large(
    message: Message, body: StoredBody, blobs: dict[str, bytes], refers: tuple[str, ...]
) -> EncodedMessage:
    """Encode a message with large parts; these are stored as blobs."""
    small = tuple(_replace_if_large(part, blobs) for part in body.parts)
    data = to_json(msgspec.structs.replace(body, parts=small))
    return EncodedMessage(message.id, message, data, tuple(blobs.items()), refers)


def _replace_if_large(part: StoredPart, blobs: dict[str, bytes]) -> StoredPart:
    data = to_json(part)
    return part if len(data) <= BLOB_THRESHOLD else BlobRef(_add_blob(data, blobs))


def _strip_file_data(part: StoredPart, blobs: dict[str, bytes]) -> StoredPart:
    if isinstance(part, File):
        return _strip_file(part, blobs)
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        kept = tuple(
            _strip_file(inner, blobs) if isinstance(inner, File) else inner
            for inner in part.content
        )
        return ToolResult(part.call_id, kept, error=part.error, name=part.name)
    return part


def encode_record(record: Record, now: datetime, behind: int = 0) -> EncodedRecord:
    """Validate and encode one record, `behind` the first messages of its batch.

    Without a time it gets `now`.
    """
    record = check_record(record)
    blobs: dict[str, bytes] = {}
    files = {name: _strip_large_file(file, blobs) for name, file in record.files.items()}
    refers = tuple(
        dict.fromkeys(
            file.sha256
            for file in files.values()
            if file.sha256 is not None and file.sha256 not in blobs
        )
    )
    at = now if record.created_at is None else to_time(record.created_at)
    body = to_json(StoredRecord(at=at, data=record.data, files=files))
    if len(body) > BLOB_THRESHOLD:
        data = to_json(record.data)
        if len(data) > BLOB_THRESHOLD:
            name = _add_blob(data, blobs)
            body = to_json(StoredRecord(at=at, data_sha256=name, files=files))
    size = len(body) + sum(map(len, blobs.values()))
    if size > MAX_MESSAGE_BYTES or len(files) > MAX_RECORD_FILES:
        raise TooLarge(
            f"record {record.id!r} has {size} bytes in {len(files)} files, over the limit of "
            f"{MAX_MESSAGE_BYTES} bytes and {MAX_RECORD_FILES} files; nothing was stored."
        )
    return EncodedRecord(record.id, record, body, behind, tuple(blobs.items()), refers)


def _strip_large_file(file: File, blobs: dict[str, bytes]) -> File:
    """Return a file of a record, with a hash in place of its data unless that is small."""
    if file.data is None or len(file.data) > INLINE_FILE_BYTES or file.sha256 is not None:
        return _strip_file(file, blobs)
    data = bytes(file.data)
    if file.size not in (None, len(data)):
        raise BadMessage(f"size: a file of {len(data)} bytes is said to have {file.size}")
    return File(name=file.name, mime=file.mime, data=data, size=len(data))


def _strip_file(file: File, blobs: dict[str, bytes]) -> File:
    """Return a file with hash and size in place of its data, which is added to `blobs`."""
    if file.data is None:
        return file
    data = bytes(file.data)
    name = _add_blob(data, blobs)
    if file.sha256 is not None and file.sha256 != name:
        raise BadMessage("sha256: does not match the file's data")
    size = len(data) if file.size is None else file.size
    return File(name=file.name, mime=file.mime, sha256=name, size=size)


def check_file_sizes(entry: Message | Record, size_of: Callable[[str], int | None]) -> None:
    """Raise `BadMessage` if a file states another size than its data has.

    `size_of` takes the hash of a file's data; it returns `None` where the size is not known.
    """
    given = tuple(entry.files.values()) if isinstance(entry, Record) else entry.parts
    _check_file_sizes(given, size_of)


def _check_file_sizes(parts: Sequence[StoredPart], size_of: Callable[[str], int | None]) -> None:
    for file in _files(parts):
        size = size_of(file.sha256 or "")
        if size is not None and file.size not in (None, size):
            raise BadMessage(f"size: a file of {size} bytes is said to have {file.size}")


def file_hashes(message: Message) -> list[str]:
    """Return the hashes of all files of a message."""
    return _file_hashes(message.parts)


def blob_hashes(body: bytes) -> tuple[list[str], list[str]]:
    """Return the hashes of the parts that a stored body has as blobs, and those of its files.

    There are none if the body is damaged.
    """
    try:
        parts = _decode(body).parts
    except ValueError:
        return [], []
    return [part.sha256 for part in parts if isinstance(part, BlobRef)], _file_hashes(parts)


def _file_hashes(parts: Sequence[StoredPart]) -> list[str]:
    return [file.sha256 for file in _files(parts) if file.sha256 is not None]


def _files(parts: Sequence[StoredPart]) -> Iterator[File]:
    for part in parts:
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from _files(part.content)
        elif isinstance(part, File):
            yield part


def _add_blob(data: bytes, blobs: dict[str, bytes]) -> str:
    name = sha256_hex(data)
    blobs[name] = data
    return name


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return sha256(data).hexdigest()


def intact(name: str, data: bytes | None) -> bytes | None:
    """Return the data of a blob; `None` if there is none, or if it does not match its hash."""
    return data if data is not None and sha256_hex(data) == name else None


# -------------------------------------------------------------------------------------- decoding


def decode(
    body: bytes,
    *,
    id: str,
    seq: int | None,
    turn_id: str | None,
    blob: BlobReader,
) -> Message:
    """Return a stored message; raise `Damaged` if it cannot be decoded.

    `blob` returns `None` for a blob that is missing or damaged (`intact`).
    """
    try:
        stored = _decode(body)
        parts = stored.parts
        for part in parts:
            if type(part) is BlobRef:
                parts = tuple(_restore_part(part, blob, seq) for part in parts)
                break
    except ValueError as error:
        raise Damaged(f"message {seq} cannot be read: {type(error).__name__}") from error
    return Message(
        id=id,
        role=stored.role,
        parts=parts,  # type: ignore[arg-type]
        seq=seq,
        turn_id=turn_id,
        created_at=stored.at,
        status=stored.status,
        name=stored.name,
        model=stored.model,
        usage=stored.usage,
        cost=stored.cost,
        metadata=stored.metadata,
        provenance=stored.provenance,
        covers=stored.covers,
    )


def decode_record(
    body: bytes,
    *,
    kind: str,
    key: str | None,
    id: str,
    seq: int | None,
    blob: BlobReader,
) -> Record:
    """Return a stored record; raise `Damaged` if it cannot be decoded. `blob` as in `decode`."""
    try:
        stored = from_json(body, StoredRecord)
        data = stored.data
        if stored.data_sha256 is not None:
            large = blob(stored.data_sha256)
            if large is None:
                raise Damaged(
                    f"record {id!r} cannot be read: blob {stored.data_sha256} is missing or does "
                    "not match its hash",
                    blocking=False,
                )
            data = from_json(large, object)  # type: ignore[assignment]
    except ValueError as error:
        raise Damaged(f"record {id!r} cannot be read: {type(error).__name__}") from error
    return Record(
        kind, key=key, data=data, files=stored.files, id=id, seq=seq, created_at=stored.at
    )


def record_blob_hashes(body: bytes) -> tuple[list[str], list[str]]:
    """Return the hashes of the data that a stored record has as a blob, and those of its files.

    There are none if the body is damaged.
    """
    try:
        stored = from_json(body, StoredRecord)
    except ValueError:
        return [], []
    data = [] if stored.data_sha256 is None else [stored.data_sha256]
    return data, [file.sha256 for file in stored.files.values() if file.sha256 is not None]


def is_same_record(stored: bytes, given: bytes) -> bool:
    """Return whether two bodies of records are equal except for their time."""
    if stored == given:
        return True
    try:
        one, two = from_json(stored, StoredRecord), from_json(given, StoredRecord)
    except ValueError:
        return False
    return is_same_json(msgspec.structs.replace(one, at=two.at), two)


def record_checksum(*columns: str | int | None, body: bytes) -> int:
    """Return the checksum of a record's row: its columns before the body, and the body."""
    return zlib.crc32(body, zlib.crc32(to_json(columns)))


def _decode(body: bytes) -> StoredBody:
    # Few bytes cannot be nested so deeply that decoding them is unsafe; most are texts alone.
    is_short = len(body) < _FEW_BYTES
    if not is_short:
        _refuse_nesting(body)
    try:
        found = _decode_body(body)
    except RecursionError:
        _refuse_nesting(body)
        raise  # The caller's own stack is deep.
    except (ValueError, msgspec.DecodeError):
        # msgspec reports invalid UTF-8 as either error, depending on where it is.
        _refuse_nesting(body)
        found = _decode_surrogates(body, StoredBody)
    if is_short and (found.metadata or not _has_only_texts(found.parts)):
        _refuse_nesting(body)
    cost = found.cost
    if cost is not None and not (cost.is_finite() and 0 <= cost <= MAX_COST):
        raise ValueError("a cost is not an amount of money")
    return found


def _has_only_texts(parts: Sequence[StoredPart]) -> bool:
    """Return whether no part has a value that could be nested."""
    for part in parts:
        kind = type(part)
        if kind is not Text and (kind is not ToolResult or type(part.content) is not str):  # type: ignore[union-attr]
            return False
    return True


def _refuse_nesting(data: bytes) -> None:
    """Raise `ValueError` for JSON that is nested deeper than what is encoded."""
    if len(data) <= _MAX_NESTING or not _has_many_brackets(data):
        return
    depth = 0
    for bracket in _BRACKETS.finditer(data):
        opening, closing = bracket.span(1)[0] >= 0, bracket.span(2)[0] >= 0
        depth += opening - closing
        if depth > _MAX_NESTING:
            raise ValueError("nested too deeply")


def _has_many_brackets(data: bytes) -> bool:
    """Return whether JSON has more opening brackets than may be nested."""
    if len(data) < _FEW_BYTES:
        return data.count(b"[") + data.count(b"{") > _MAX_NESTING
    # Searching from bracket to bracket skips long texts; counting does not.
    found = 0
    for bracket in (b"[", b"{"):
        at = data.find(bracket)
        while at >= 0:
            found += 1
            if found > _MAX_NESTING:
                return True
            at = data.find(bracket, at + 1)
    return False


def _decode_surrogates(data: bytes, kind: type[S]) -> S:
    """Decode JSON that may contain lone surrogates; raise `ValueError` for anything else."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return _as_value_error(lambda: msgspec.json.decode(data, type=kind))
    plain = json.loads(
        decode_text(data), parse_float=_finite_float, parse_constant=_refuse_constant
    )
    return _as_value_error(lambda: msgspec.convert(plain, kind, strict=True))


def _as_value_error(decode: Callable[[], S]) -> S:
    """Return what `decode` returns; errors of older versions of msgspec are no `ValueError`."""
    try:
        return decode()
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _restore_part(part: object, blob: BlobReader, seq: int | None) -> Part:
    if isinstance(part, BlobRef):
        data = blob(part.sha256)
        if data is None:
            raise Damaged(
                f"message {seq} cannot be read: blob {part.sha256} is missing or does not match "
                "its hash",
                blocking=False,
            )
        return _decode_part(data)
    return part  # type: ignore[return-value]


class _PartWrapper(msgspec.Struct):
    """Wraps a part so that it can be decoded by itself."""

    part: Part


def _decode_part(data: bytes) -> Part:
    return from_json(b'{"part":' + data + b"}", _PartWrapper).part


def tombstone(message: Message) -> Message:
    """Return the tombstone of a message: its id, role and time, and the status `erased`."""
    return Message(id=message.id, role=message.role, created_at=message.created_at, status="erased")


def placeholder(message_id: str, left: JSON) -> Message:
    """Return the placeholder of a message that cannot be read, with what is left of it."""
    return Message(
        id=message_id,
        role="system",
        parts=(Raw("damaged", left),),
        created_at=EPOCH,
        status="damaged",
    )


def is_tombstone(body: bytes) -> bool:
    """Return whether a body is that of an erased message."""
    try:
        return _decode(body).status == "erased"
    except ValueError:
        return False


def is_same_body(stored: bytes, given: bytes) -> bool:
    """Return whether two bodies are equal except for their time."""
    if stored == given:
        return True
    try:
        one, two = _decode(stored), _decode(given)
    except ValueError:
        return False
    return is_same_json(msgspec.structs.replace(one, at=two.at), two)


def is_same_json(one: object, two: object) -> bool:
    """Return whether two values are the same JSON: unlike in Python, 1, 1.0 and true differ."""
    return to_sorted_json(one) == to_sorted_json(two)


def checksum(message_id: str, turn: int | None, body: bytes) -> int:
    """Return the checksum of a message row: its id, turn and body."""
    name = message_id.encode("utf-8", "surrogatepass")
    return zlib.crc32(body, zlib.crc32(name, turn or 0))


# ------------------------------------------------------------------------------ text and structs


def encode_text(text: str) -> bytes:
    """Encode any Python text, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def decode_text(data: bytes) -> str:
    """Decode text encoded by `encode_text`."""
    return data.decode("utf-8", "surrogatepass")


def to_json(value: object, encoder: Callable[[object], bytes] = _to_bytes) -> bytes:
    """Encode a struct or plain JSON values, lone surrogates included."""
    try:
        return encoder(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(), str_keys=True)
        ordered = encoder is _encode_sorted
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=ordered)
        return encode_text(text)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise BadMessage(f"the value cannot be encoded as JSON: {error}") from error


def to_sorted_json(value: object) -> bytes:
    """Encode plain JSON values so that equal ones give equal bytes: names are sorted."""
    return to_json(value, _encode_sorted)


def from_json(data: bytes | str, kind: type[S]) -> S:
    """Decode bytes encoded by `to_json`; raise `ValueError` for any others."""
    raw = encode_text(data) if isinstance(data, str) else data
    _refuse_nesting(raw)
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, msgspec.DecodeError):
        return _decode_surrogates(raw, kind)
