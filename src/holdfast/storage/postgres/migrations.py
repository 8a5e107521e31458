"""The schema, in numbered migration steps.

`meta.version` is the number of steps that a store has seen. They run under a lock that one process
holds at a time, all in one transaction. A store with more steps than this version has is refused
before anything is written to it. One that is up to date is not changed, so that a role which owns
nothing can open it. A process that has the store open meanwhile notices with its next
transaction.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import psycopg

from holdfast.errors import ReadOnly, SchemaTooNew, StoreUnavailable
from holdfast.storage import metadata_marks
from holdfast.storage.postgres.connection import Connection
from holdfast.storage.postgres.conninfo import ConnInfo
from holdfast.storage.postgres.conversion import metadata_uuids
from holdfast.storage.postgres.errors import translate
from holdfast.storage.postgres.snapshot import schema_lock
from holdfast.storage.sql_files import load_migrations

Steps = dict[int, str]
_METADATA_STEP: Final = 5  # It makes a table that is filled from others.
_PAGE_SESSIONS: Final = 1000


def load() -> Steps:
    """Read the numbered steps."""
    return load_migrations(__package__)


def prepare_schema(
    connection: Connection, conninfo: ConnInfo, steps: Steps, *, readonly: bool
) -> None:
    """Create the store or bring it up to date, if necessary; refuse a newer one."""
    found = schema_version(connection, conninfo)
    if found == max(steps):
        return
    _refuse_newer(found, steps, conninfo)
    if readonly and found is None:
        raise StoreUnavailable(
            f"{conninfo.redacted_url} has no store in its schema {conninfo.schema}; nothing was "
            "created."
        )
    if readonly:
        raise ReadOnly(
            f"{conninfo.redacted_url} has the older format {found}; open it once for writing to "
            "bring it up to date."
        )
    _migrate(connection, conninfo, steps)


def schema_version(connection: Connection, conninfo: ConnInfo) -> int | None:
    """Return how many steps the store has seen; `None` if there is no store."""
    row = connection.execute("store_exists", (conninfo.schema,)).fetchone()
    if row is None or not row[0]:
        return None
    found = connection.execute("version").fetchone()
    return 0 if found is None else found[0]


def _refuse_newer(found: int | None, steps: Steps, conninfo: ConnInfo) -> None:
    if found is not None and found > max(steps):
        raise SchemaTooNew(
            f"{conninfo.redacted_url} was written by a newer Holdfast (format {found}, this one "
            f"supports {max(steps)}); nothing was changed. Update this program to open it."
        )


def _migrate(connection: Connection, conninfo: ConnInfo, steps: Steps) -> None:
    lock = schema_lock(conninfo.schema)
    try:
        connection.begin("begin_writing")
        connection.execute("lock_store", (lock,)).fetchone()
        if connection.execute("lacks_schema", (conninfo.schema,)).fetchone() == (True,):
            # The name was validated; the quotes are for names that are keywords of SQL.
            connection.execute_unprepared(f'CREATE SCHEMA "{conninfo.schema}"')
        connection.execute("search_in", (conninfo.schema,))
        row = connection.execute("store_exists", (conninfo.schema,)).fetchone()
        found = connection.execute("version").fetchone() if row and row[0] else None
        before = 0 if found is None else found[0]
        _refuse_newer(before, steps, conninfo)
        for number, script in steps.items():
            if number > before:
                for statement in _split_statements(script):
                    connection.execute_unprepared(statement)
                if number == _METADATA_STEP:
                    _fill_metadata_marks(connection)
                connection.execute("put_version", (number,))
        connection.commit()
    except psycopg.Error as error:
        raise translate(error, "the store was not created or brought up to date.") from error


def _fill_metadata_marks(connection: Connection) -> None:
    """Insert the marks of the metadata of all tenants' sessions, without the policies."""
    tables = ("sessions", "metadata_marks")
    for table in tables:
        connection.execute_unprepared(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    after = (UUID(int=0), 0)
    while found := connection.execute(
        "sessions_with_metadata", (*after, _PAGE_SESSIONS)
    ).fetchall():
        for tenant, session, metadata in found:
            marks = metadata_uuids(metadata_marks.pairs(metadata))
            connection.execute("add_marks", (tenant, session, marks))
            after = tenant, session
    for table in tables:
        connection.execute_unprepared(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def _split_statements(script: str) -> list[str]:
    """Return the statements of a step: each ends with a semicolon at the end of a line.

    Semicolons between `$$` belong to the body of a function.
    """
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    found: list[str] = []
    current: list[str] = []
    within = False
    for line in lines:
        current.append(line)
        if line.count("$$") % 2:
            within = not within
        if line.rstrip().endswith(";") and not within:
            found.append("\n".join(current).strip().removesuffix(";"))
            current = []
    return [text for text in found if text]
