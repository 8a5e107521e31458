"""The table of marks, by which sessions are found by their metadata; it is derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import apsw

from holdfast.storage import metadata_marks

_MARK_BYTES: Final = 8
_SOURCE: Final = (
    "SELECT n, tenant, CAST(metadata AS BLOB) FROM sessions WHERE CAST(metadata AS BLOB) <> ?"
)


def marks_of(pairs: Iterable[metadata_marks.Pair]) -> set[int]:
    """Return the marks of pairs, as the table has them."""
    found = metadata_marks.marks(pairs)
    return {int.from_bytes(mark[:_MARK_BYTES], "big", signed=True) for mark in found}


def fill_marks(connection: apsw.Connection) -> None:
    """Insert the marks of all sessions into the table, which is empty."""
    for session, tenant, metadata in connection.execute(_SOURCE, (b"{}",)):
        connection.executemany(
            "INSERT INTO metadata_marks (session, mark, tenant) VALUES (?, ?, ?)",
            [(session, mark, tenant) for mark in marks_of(metadata_marks.pairs(metadata))],
        )
