"""The whole API, driven at random, against the model in `reference`.

After every step everything that can be read is compared with it: every history of every branch,
heads, sums, lists, lineage, and the histories that followers have built. A crash is a turn that is
never ended and whose lease expires; reopening closes the store with whatever is open. What a crash
keeps of a streamed reply lies between what was flushed and what was written, because a timer
flushes, too: there the model accepts what it finds within these bounds.
"""

import itertools
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from holdfast.storage.memory import MemoryBackend
from holdfast.storage.postgres.backend import PostgresBackend
from holdfast.storage.protocol import Backend
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.url import Location, parse_url
from tests.model.appends import Talking
from tests.model.comparison import Comparing
from tests.model.driver import LEASE
from tests.model.head_moves import Moving
from tests.model.records import Recording
from tests.model.turns import Turning
from tests.servers import WORKER, as_user, shared_database
from tests.store_urls import with_options


class Machine(Talking, Moving, Turning, Recording, Comparing):
    """Steps that any number of clients could take; subclasses open the store."""


class MemoryMachine(Machine):
    """In memory, where nothing can be reopened."""

    reopens = False

    def open_backend(self) -> Backend:
        location = Location("memory", "", lease=LEASE)
        return MemoryBackend(location, tenant="t", readonly=False, clock=self.clock)


class SQLiteMachine(Machine):
    """In a file of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-model-"))
        super().__init__()

    def open_backend(self) -> Backend:
        location = Location("sqlite", str(self._folder / "store.db"), lease=LEASE)
        return SQLiteBackend(location, tenant="t", durability="process", clock=self.clock)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            shutil.rmtree(self._folder)


class PostgresMachine(Machine):
    """On a server, each as a tenant of its own."""

    proves = False

    def __init__(self) -> None:
        self._tenant = f"machine {next(_NUMBERS)}"
        super().__init__()

    def open_backend(self) -> Backend:
        url = with_options(as_user(shared_database(), WORKER), lease=LEASE)
        return PostgresBackend(
            parse_url(url, {}), tenant=self._tenant, durability="process", clock=self.clock
        )


_NUMBERS = itertools.count()
_EXAMPLES = settings().max_examples
_HOW = settings(max_examples=max(30, _EXAMPLES // 3), stateful_step_count=40)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = _HOW
TestSQLite = SQLiteMachine.TestCase
TestSQLite.settings = settings(max_examples=max(20, _EXAMPLES // 5), stateful_step_count=40)
TestPostgres = pytest.mark.long(PostgresMachine.TestCase)  # Each step reads everything.
TestPostgres.settings = settings(max_examples=max(10, _EXAMPLES // 10), stateful_step_count=40)
