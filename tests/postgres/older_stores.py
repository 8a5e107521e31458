"""Stores as earlier versions left them: their tables, with the rows of a store of today."""

import psycopg
from psycopg import sql

from holdfast.storage.postgres import migrations
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.url import parse_url

_COLUMNS = """
SELECT c.table_name, array_agg(c.column_name::text ORDER BY c.ordinal_position)
FROM information_schema.columns c JOIN information_schema.columns b
  ON (b.table_name, b.column_name) = (c.table_name, c.column_name)
JOIN information_schema.tables t
  ON (t.table_schema, t.table_name) = (c.table_schema, c.table_name)
WHERE c.table_schema = %s AND b.table_schema = 'of_today' AND t.table_type = 'BASE TABLE'
  AND c.table_name <> 'meta'
GROUP BY c.table_name ORDER BY c.table_name
"""


def make_older(url: str, database: str, schema: str, steps: int) -> None:
    """Give a store, which must be closed, the tables that it had after so many steps.

    `url` is the store's, for its owner; `database` is that of a superuser.
    """
    with psycopg.connect(database, autocommit=True) as admin:
        before, after = sql.Identifier("of_today"), sql.Identifier(schema)
        admin.execute(sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(after, before))
        earlier = {number: step for number, step in migrations.load().items() if number <= steps}
        PostgresBackend(parse_url(url, {}), steps=earlier).close()
        for table, columns in admin.execute(_COLUMNS, (schema,)).fetchall():
            _copy(admin, table, columns, before, after)
        admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(before))


def _copy(
    admin: psycopg.Connection,
    table: str,
    columns: list[str],
    before: sql.Identifier,
    after: sql.Identifier,
) -> None:
    """Copy the rows of a table; a head had its tenant twice, for the index of lists."""
    names = [sql.Identifier(name) for name in columns]
    again = table == "heads"
    admin.execute(
        sql.SQL("INSERT INTO {}.{} ({}) SELECT {} FROM {}.{}").format(
            after,
            sql.Identifier(table),
            sql.SQL(", ").join([*names, *([sql.Identifier("whose")] if again else [])]),
            sql.SQL(", ").join([*names, *([sql.Identifier("tenant")] if again else [])]),
            before,
            sql.Identifier(table),
        )
    )
