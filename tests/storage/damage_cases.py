"""Damaging stores, and what must hold of any damaged one, for the tests beside this.

What is compared is everything a store holds: each row of each table, all columns. Left out are the
engine's own tables: a counter of numbers given out that is too high or too low does no harm.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import apsw

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.storage.sqlite.migrations import build_store
from holdfast.storage.sqlite.repair.row_scan import open_damaged
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.storage.sqlite.tables import TABLES as CHECKSUMMED_TABLES
from holdfast.values import SalvageReport

RECORD_TABLES = ("records", "record_blobs", "store_records", "store_record_blobs")
TABLES = (
    *CHECKSUMMED_TABLES,
    *RECORD_TABLES,
    *("messages", "blobs", "blob_uses", "queue_blobs", "tenants", "meta", "metadata_marks"),
    "recent",
)
REMADE = {"meta", "quarantine", "recent"}  # What a salvaged store has of its own.
Content = dict[str, list[tuple[Any, ...]]]


def seal(connection: apsw.Connection) -> None:
    """Make the checksums right, as docs/format.md says: values in order, by JSON and CRC-32.

    Columns behind the checksum came with migrations; the last ones that are NULL do not count.
    """
    connection.create_scalar_function("crc", _crc, -1)
    for table, known in CHECKSUMMED_TABLES.items():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        at = columns.index("crc")
        first = [name for name in columns[:at] if name != known.assigned]
        names = ", ".join((*first, *columns[at + 1 :]))
        connection.execute(f"UPDATE {table} SET crc = crc({len(first)}, {names})")  # noqa: S608


def _crc(*given: str | bytes | float | None) -> int:
    first, *values = given
    while len(values) > int(str(first)) and values[-1] is None:
        values.pop()
    plain = [b64encode(v).decode() if isinstance(v, bytes) else v for v in values]
    return crc32(json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode())


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


@cache
def empty_store() -> bytes:
    """Return the file of an empty store."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        build_store(path)
        return path.read_bytes()


def copy_store(path: Path) -> None:
    """Make an empty store by copying one: `build_store` takes ten times as long."""
    put(path, empty_store())


def content_of(path: Path) -> Content | None:
    """All rows of all tables, with all columns; `None` if the engine cannot read it through."""
    connection = open_damaged(path)
    try:
        return {
            name: sorted(map(tuple, connection.execute(_all_of(connection, name))), key=repr)
            for name in TABLES
        }
    except (apsw.Error, UnicodeDecodeError):
        return None
    finally:
        connection.close()


def _all_of(connection: apsw.Connection, table: str) -> str:
    """Ask for rows as they are, text by its bytes, and not from an index."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    exact = ", ".join(
        f"typeof({c}), iif(typeof({c}) = 'text', CAST({c} AS BLOB), {c})" for c in columns
    )
    return f"SELECT {exact} FROM {table} NOT INDEXED"  # noqa: S608


def messages_of(content: Content) -> set[tuple[Any, ...]]:
    """Place, id, turn and body."""
    return {(row[1], row[3], row[5], row[9]) for row in content["messages"]}


def records_of(content: Content) -> set[tuple[Any, ...]]:
    """Place, seq, id, kind, key and body."""
    return {(*row[1:11:2], row[13]) for row in content["records"]}


def session_ids(content: Content) -> set[str]:
    return {row[5].decode() for row in content["sessions"]}


def carried(content: Content) -> Content:
    return {name: rows for name, rows in content.items() if name not in REMADE}


def _readable(path: Path, truth: Content) -> set[tuple[Any, ...]]:
    """The messages that somebody who looks for each by its place finds as they were."""
    columns = "place, CAST(id AS BLOB), turn, CAST(body AS BLOB)"
    return {
        (place, name, turn, body)
        for (place, name, turn, body), crc in _found(path, columns, messages_of(truth), "messages")
        if crc == codec.checksum(codec.decode_text(name), turn, body)
    }


def _readable_records(path: Path, truth: Content) -> set[tuple[Any, ...]]:
    """The records that are found so."""
    names = ("id", "kind", "key")
    columns = f"place, seq, {', '.join(f'CAST({n} AS BLOB)' for n in names)}, CAST(body AS BLOB)"
    return {row for row, _ in _found(path, columns, records_of(truth), "records")}


def _found(
    path: Path, columns: str, rows: set[tuple[Any, ...]], table: str
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield those of these rows that are found by their places, and their checksums."""
    query = f"SELECT {columns}, crc FROM {table} NOT INDEXED WHERE place = ?"  # noqa: S608
    connection = open_damaged(path)
    for row in rows:
        try:
            for *values, crc in connection.execute(query, (row[0],)):
                if tuple(values) == row:
                    yield row, crc
        except (apsw.Error, UnicodeDecodeError):
            continue
    connection.close()


def _without_lost_blobs(messages: set[tuple[Any, ...]], salvaged: Content) -> set[tuple[Any, ...]]:
    """Leave out messages that have lost a part which was kept apart."""
    kept = {blob[5] for blob in salvaged["blobs"]}
    return {
        message
        for message in messages
        if b'"type":"blob"' not in message[-1] or any(sha in message[-1] for sha in kept)
    }


def check_case(folder: Path, data: bytes, truth: Content) -> SalvageReport | None:
    """Everything that must hold of any damaged file."""
    path, target = put(folder / "a.db", data), folder / "b.db"
    damage = verify_file(path)
    now = content_of(path)
    assert damage or now == truth, "damage was not noticed"
    readable = _readable(path, truth)
    records = _readable_records(path, truth)
    try:
        report = salvage(path, target, copy_store)
    except Damaged:
        assert not readable, "messages could be read and were not salvaged"
        assert not target.exists()
        return None
    assert path.read_bytes() == data, "the damaged file was written to"
    assert verify_file(target) == []
    salvaged = content_of(target)
    assert salvaged is not None
    missing = _without_lost_blobs(readable, salvaged) - messages_of(salvaged)
    assert not missing, f"not salvaged: {[hex(message[0]) for message in missing]}"
    _check_records(records, salvaged)
    assert report.damage or carried(salvaged) == carried(truth)
    assert report.messages + report.quarantined >= len(readable)
    return report


def _check_records(readable: set[tuple[Any, ...]], salvaged: Content) -> None:
    """Each record that could be read is there, or its branch, data or checksum is lost."""
    branches = {row[1] for row in salvaged["branches"]}
    kept = {blob[5] for blob in salvaged["blobs"]}
    bodies = {(row[0], row[-1]) for row in records_of(salvaged)}
    set_aside = {row[7] for row in salvaged["quarantine"]}
    for row in readable:
        needed = codec.record_blob_hashes(row[-1])[0]
        if row[0] >> 32 in branches and all(name.encode() in kept for name in needed):
            assert (row[0], row[-1]) in bodies or row[-1] in set_aside, f"lost: {row}"


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def check_all(folder: Path, cases: Iterator[tuple[str, bytes]], truth: Content) -> None:
    for number, (name, data) in enumerate(cases):
        case = folder / str(number)
        case.mkdir()
        try:
            check_case(case, data, truth)
        except BaseException as error:
            error.add_note(f"case: {name}")
            raise


def tamper(path: Path, statement: str, *, fitting: bool = False) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    if fitting:
        seal(connection)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
