"""Whether there is a store on a server, without making one."""

from __future__ import annotations

from contextlib import closing

import psycopg

from holdfast.backends.postgres.failures import translate
from holdfast.backends.postgres.link import Listener
from holdfast.backends.postgres.statements import SQL
from holdfast.backends.postgres.target import target
from holdfast.settings import Location


def empty_place(location: Location) -> str | None:
    """Name the place, without its password, if there is no store; `None` if there is one."""
    where = target(location, "process")
    try:
        with closing(Listener.open(where)) as asked:
            row = asked.execute(SQL["store_exists"], (where.schema,)).fetchone()
    except psycopg.Error as error:
        raise translate(error, "nothing was changed.") from error
    return None if row and row[0] else f"{where.shown} (schema {where.schema})"
