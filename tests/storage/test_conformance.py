"""Every backend keeps every promise. Those without a driver to install are tested without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.clock import Clock
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.protocol import Backend
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.testing import BackendConformance
from holdfast.testing.conformance.append_tests import AppendTests
from holdfast.testing.conformance.backend_protocol_tests import BackendProtocolTests
from holdfast.testing.conformance.blobs_tests import BlobTests
from holdfast.testing.conformance.drafts_tests import DraftTests
from holdfast.testing.conformance.purge_tests import PurgeTests
from holdfast.testing.conformance.recovery_tests import RecoveryTests
from holdfast.testing.conformance.retries_tests import RetryTests
from holdfast.url import Durability, Location, parse_url
from tests.servers import wipe
from tests.storage.damage_cases import copy_store
from tests.store_urls import with_options

if TYPE_CHECKING:
    import psycopg

_LEASE = 600.0


class TestMemory(BackendConformance):
    """The reference."""

    persistent = False

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        location = Location("memory", "", lease=_LEASE)
        return MemoryBackend(location, tenant=tenant, readonly=readonly, clock=clock)


class _InAFile:
    """Where a store of SQLite is, and how its commits are synced."""

    durability: Durability

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        file = folder / "store.db"
        if not readonly and not file.exists():
            copy_store(file)
        location = Location("sqlite", str(file), lease=_LEASE)
        return SQLiteBackend(
            location, tenant=tenant, readonly=readonly, clock=clock, durability=self.durability
        )


class TestSQLite(_InAFile, BackendConformance):
    """A file that survives a kill, and leaves the power cut to others."""

    durability = "process"


class TestSQLitePower(
    _InAFile,
    BackendProtocolTests,
    AppendTests,
    BlobTests,
    DraftTests,
    RecoveryTests,
    PurgeTests,
    RetryTests,
):
    """A file, synced by each commit.

    How it is synced is one setting of a connection, so only what writes in many ways is run again.
    """

    durability = "power"


class TestPostgres(BackendConformance):
    """A server, and a role that owns nothing."""

    proves = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _links(cls) -> Iterator[None]:
        from tests.storage.connections import kept_links  # noqa: PLC0415 - needs the driver

        with kept_links():
            yield

    @pytest.fixture(autouse=True)
    def _empty(self, postgres_admin: psycopg.Connection, postgres_url: str) -> None:
        wipe(postgres_admin)
        # Nothing here is about deadlines, and machines that run tests are busy.
        self.url = with_options(postgres_url, lease=_LEASE, deadline=60)

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        from holdfast.storage.postgres.backend import PostgresBackend  # noqa: PLC0415 - as above

        return PostgresBackend(
            parse_url(self.url, {}),
            tenant=tenant,
            readonly=readonly,
            clock=clock,
            durability="process",
        )
