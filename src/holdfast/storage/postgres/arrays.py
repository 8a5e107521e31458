"""Arrays in the server's binary format, one for each column of the rows that a statement inserts.

`INSERT … SELECT unnest(…)` is how many rows are sent at once: `COPY` refuses tables with row-level
security, and through a temporary table it costs the server more than the arrays do. Encoding a
column is a join of its values, many times cheaper than an adapter for each of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import ClassVar, Final

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_NULL: Final = struct.pack(">i", -1)
_HEADER: Final = struct.Struct(">iiIii")  # dimensions, has NULL, type of the elements, length, 1
_LENGTH: Final = struct.Struct(">i")
_BIGINT: Final = struct.Struct(">iq")
_TRUE, _FALSE = struct.pack(">i?", 1, True), struct.pack(">i?", 1, False)  # noqa: FBT003 - a value


class BinaryArray(bytes):
    """An array as the server receives it."""

    element: ClassVar[int]

    __slots__ = ()


class BigintArray(BinaryArray):
    """An array of bigint."""

    element = 20


class ByteaArray(BinaryArray):
    """An array of bytea."""

    element = 17


class UuidArray(BinaryArray):
    """An array of uuid."""

    element = 2950


class BooleanArray(BinaryArray):
    """An array of boolean."""

    element = 16


def bigints(values: Sequence[int | None]) -> BigintArray:
    """Return integers as an array."""
    items = [_NULL if value is None else _BIGINT.pack(8, value) for value in values]
    return BigintArray(_array(BigintArray, items, nulls=None in values))


def byteas(values: Sequence[bytes | None]) -> ByteaArray:
    """Return bytes as an array."""
    items = [_NULL if value is None else _LENGTH.pack(len(value)) + value for value in values]
    return ByteaArray(_array(ByteaArray, items, nulls=None in values))


def uuids(values: Sequence[bytes]) -> UuidArray:
    """Return the bytes of UUIDs as an array."""
    items = map(bytes.__add__, repeat(_LENGTH.pack(16)), values)
    return UuidArray(_array(UuidArray, list(items)))


def booleans(values: Sequence[bool]) -> BooleanArray:
    """Return truth values as an array."""
    return BooleanArray(_array(BooleanArray, [_TRUE if value else _FALSE for value in values]))


def _array(kind: type[BinaryArray], items: list[bytes], *, nulls: bool = False) -> bytes:
    if not items:
        return _HEADER.pack(0, 0, kind.element, 0, 1)[:12]
    return _HEADER.pack(1, nulls, kind.element, len(items), 1) + b"".join(items)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: BinaryArray) -> BinaryArray:
        """Return the array: it is encoded."""
        return obj


def _register(kind: type[BinaryArray], oid: int) -> None:
    dumper = type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": oid})
    psycopg.adapters.register_dumper(kind, dumper)


for _kind, _oid in (
    (BigintArray, 1016),
    (ByteaArray, 1001),
    (UuidArray, 2951),
    (BooleanArray, 1000),
):
    _register(_kind, _oid)
