"""Columns are declared once, by the rows: statements and tables have these and no others."""

import psycopg
import pytest

from holdfast.storage.columns import Name
from holdfast.storage.postgres.tables import SESSIONS, TABLES, PostgresTable
from holdfast.storage.rows import SessionRow

# Columns that statements write by themselves.
_OWN = {"heads": {"activity", "recency"}, "branches": {"last_seq"}, "tools": {"position"}}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_the_columns_that_its_rows_declare(
    postgres_admin: psycopg.Connection, name: str
) -> None:
    """A field without a migration is noticed here, and a migration without a field."""
    found = postgres_admin.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'holdfast' AND table_name = %s",
        (name,),
    )
    assert {column for (column,) in found} == {*TABLES[name].columns} | _OWN.get(name, set())


class _Longer(SessionRow, frozen=True):
    """A session with one field more."""

    note: Name | None = None


def test_a_field_is_read_and_written_once_it_is_declared() -> None:
    table = PostgresTable(
        _Longer, "s", key=SESSIONS.key, own=("mark",), own_values=lambda _: ("m",)
    )
    row = _Longer(n=1, id="i", note="\udc80")
    values = table.values(row)
    assert dict(zip(table.columns[1:], values, strict=True))["note"] == b"\xed\xb2\x80"
    assert table.expressions[-1] == "s.note"
    assert table.row(values) == row
