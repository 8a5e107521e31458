"""Every backend keeps every promise."""

from pathlib import Path

import psycopg
import pytest

pytest.register_assert_rewrite("holdfast.testing.conformance")

from holdfast.backends.base import Backend  # noqa: E402 - the suite's asserts come first
from holdfast.backends.memory import MemoryBackend  # noqa: E402
from holdfast.backends.postgres.backend import PostgresBackend  # noqa: E402
from holdfast.backends.sqlite.backend import SQLiteBackend  # noqa: E402
from holdfast.clock import Clock  # noqa: E402
from holdfast.settings import Durability, Location, parse  # noqa: E402
from holdfast.testing import BackendConformance  # noqa: E402
from tests.places import with_options  # noqa: E402
from tests.servers import wipe  # noqa: E402

_LEASE = 600.0


class TestMemory(BackendConformance):
    """The reference."""

    persistent = False

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        location = Location("memory", "", lease=_LEASE)
        return MemoryBackend(location, tenant=tenant, readonly=readonly, clock=clock)


class TestSQLite(BackendConformance):
    """A file, synced by each commit."""

    durability: Durability = "power"

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        location = Location("sqlite", str(folder / "store.db"), lease=_LEASE)
        return SQLiteBackend(
            location, tenant=tenant, readonly=readonly, clock=clock, durability=self.durability
        )


class TestSQLiteProcess(TestSQLite):
    """A file that survives a kill, and leaves the power cut to others."""

    durability = "process"


class TestPostgres(BackendConformance):
    """A server, and a role that owns nothing."""

    proves = False

    @pytest.fixture(autouse=True)
    def _empty(self, postgres_admin: psycopg.Connection, postgres_url: str) -> None:
        wipe(postgres_admin)
        # Nothing here is about deadlines, and machines that run tests are busy.
        self.url = with_options(postgres_url, lease=_LEASE, deadline=60)

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        return PostgresBackend(
            parse(self.url, {}),
            tenant=tenant,
            readonly=readonly,
            clock=clock,
            durability="process",
        )
