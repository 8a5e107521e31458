"""Checksums of rows: a flipped byte in a well-formed value does not pass for the truth.

`crc` is the CRC-32 of the JSON array of the values before it, in the order of the schema. Left out
are the numbers that the engine gives a row while it is being stored (`UNSEALED`); each of these is
in an index too, so it is in the file twice and can be compared.

A row that does not fit its checksum and must be written to nevertheless (a sum, a ledger) gets a
checksum that fits nothing: what was damaged stays known as damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

import msgspec

UNSEALED: Final[Mapping[str, str]] = {"sessions": "n", "heads": "activity", "branches": "n"}
SEALED: Final = (
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
UNFIT: Final = -1

_encode: Final = msgspec.json.Encoder().encode


def seal(values: Sequence[object]) -> int:
    """Sum up the values of a row."""
    return crc32(_encode(values))


def covered(table: str, columns: Iterable[str]) -> list[str]:
    """Name the columns that a table's checksum covers, of all it has in the schema's order."""
    names = list(columns)
    return [name for name in names[: names.index("crc")] if name != UNSEALED.get(table)]
