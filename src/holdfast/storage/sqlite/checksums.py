"""Row checksums: they reveal a flipped byte in a value that is still well-formed.

`crc` is the CRC-32 of the JSON array of the columns before it, in schema order. Excluded are the
numbers that SQLite assigns while it stores a row (`EXCLUDED_COLUMNS`). Each of these is in an index
as well, so the file holds it twice and the two can be compared.

A row that does not match its checksum but must still be updated (a usage total, a tool outcome)
gets `INVALID_CRC`, which matches no row, so that the damage is not hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

import msgspec

EXCLUDED_COLUMNS: Final[Mapping[str, str]] = {"sessions": "n", "heads": "activity", "branches": "n"}
CHECKSUMMED_TABLES: Final = (
    "sessions",
    "heads",
    "branches",
    "turns",
    "tools",
    "drafts",
    "queue",
    "usage",
    "quarantine",
)
INVALID_CRC: Final = -1

_encode: Final = msgspec.json.Encoder().encode


def row_checksum(values: Sequence[object]) -> int:
    """Return the checksum of a row's covered values."""
    return crc32(_encode(values))


def covered_columns(table: str, columns: Iterable[str]) -> list[str]:
    """Return those of a table's columns (given in schema order) that its checksum covers."""
    names = list(columns)
    return [name for name in names[: names.index("crc")] if name != EXCLUDED_COLUMNS.get(table)]
