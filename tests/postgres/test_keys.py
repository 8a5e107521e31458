"""Every unique index and key begins with the tenant and the session: by the server's catalog.

So each table can be partitioned or distributed by these two (by the tenant, if its rows belong to
no session).
"""

import psycopg

_UNIQUE = """
SELECT c.relname, i.relname, array(
  SELECT a.attname::text FROM unnest(x.indkey::smallint[]) WITH ORDINALITY AS k (number, place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number ORDER BY k.place),
  EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'session')
FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indisunique AND c.relnamespace = 'holdfast'::regnamespace
"""
_SHARED = {"meta"}  # a few rows about the whole store


def test_unique_indexes_begin_with_the_tenant_and_the_session(
    postgres_admin: psycopg.Connection,
) -> None:
    found = postgres_admin.execute(_UNIQUE).fetchall()
    assert {"heads", "recent", "messages", "sessions", "tenants"} <= {row[0] for row in found}
    wrong = [
        (table, index, columns)
        for table, index, columns, has_session in found
        if table not in _SHARED
        and columns[: 1 + has_session] != ["tenant", "session"][: 1 + has_session]
    ]
    assert wrong == []


def test_tables_have_no_reference_to_others(postgres_admin: psycopg.Connection) -> None:
    """A foreign key or an exclusion would have to be compared across nodes."""
    found = postgres_admin.execute(
        "SELECT conname FROM pg_constraint"
        " WHERE connamespace = 'holdfast'::regnamespace AND contype NOT IN ('p', 'n', 'c')"
    )
    assert found.fetchall() == []
