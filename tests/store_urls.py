"""The locations of test stores: in memory, in a file, on a server.

A suite that states what every store promises takes its store from here, by URL, and so runs on all
kinds. On the server a location is a schema of its own: the store of a role that may use its tables
and owns nothing. Schemas that are no longer used are emptied and reused, which is faster than
creating new ones.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

import holdfast
from holdfast.clock import Clock
from holdfast.storage.protocol import Backend
from holdfast.storage.registry import open_backend
from holdfast.url import parse_url
from tests.servers import OWNER, WORKER, as_user, connect, grants, shared_database

if TYPE_CHECKING:
    import psycopg

Kind = Literal["memory", "sqlite", "postgres"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_NUMBERS: Final = itertools.count()
_FREE: Final[list[str]] = []
_EMPTY: Final = """
DO $$
DECLARE name regclass;
BEGIN
  FOR name IN SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p') AND c.relname <> 'meta'
  LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
END $$
"""


@contextmanager
def place(kind: Kind, folder: Path) -> Iterator[str]:
    """Yield the URL of a location without a store, or with an empty one."""
    if kind == "memory":
        yield "memory:"
    elif kind == "sqlite":
        yield f"sqlite:///{folder}/place-{next(_NUMBERS)}.db"
    else:
        schema = _FREE.pop() if _FREE else _new_schema()
        yield with_options(as_user(shared_database(), WORKER), schema=schema)
        _execute(_EMPTY.format(schema=schema))
        _FREE.append(schema)


def with_options(url: str, **options: object) -> str:
    """Add options to a URL."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}"


def backend(url: str, clock: Clock, *, lease: float | None = None) -> Backend:
    """Open the backend of a URL with a clock that the test sets."""
    if lease is not None:
        url = with_options(url, lease=lease)
    return open_backend(
        parse_url(url, {}), tenant="default", durability="process", readonly=False, clock=clock
    )


def _new_schema() -> str:
    let_the_owner_in()
    schema = f"place_{next(_NUMBERS)}"
    holdfast.open(with_options(as_user(shared_database(), OWNER), schema=schema)).close()
    _execute(grants(schema))
    return schema


@cache
def let_the_owner_in() -> None:
    """Allow the owner of tables to create schemas in the database of this process."""
    database = urlsplit(shared_database()).path.removeprefix("/")
    _execute(f"GRANT CREATE ON DATABASE {database} TO {OWNER}")


def _execute(text: str) -> None:
    with superuser() as admin:
        admin.execute(text)


def await_the_end_of(url: str) -> None:
    """Wait until the server has closed the connections of a location's former users.

    The server still executes what a killed process had sent before.
    """
    if not url.startswith("postgresql:"):
        return
    with superuser() as admin:
        for _ in range(3_000):
            row = admin.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE usename = %s AND datname = current_database()",
                (WORKER,),
            ).fetchone()
            if row is None:
                return
            time.sleep(0.01)
    raise AssertionError("connections are still there")


@contextmanager
def superuser(url: str = "") -> Iterator[psycopg.Connection]:
    """Connect to a schema as a superuser, in order to damage it."""
    schema = dict(parse_qsl(urlsplit(url).query)).get("schema", "public")
    options = f"-c synchronous_commit=off -c lock_timeout=10000 -c search_path={schema}"
    with connect(shared_database(), options) as admin:
        yield admin
