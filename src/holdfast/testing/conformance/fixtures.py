"""The fixtures of the tests: a folder, a settable clock, stores that are closed at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from holdfast.clock import Clock
from holdfast.follow import BaseFollower
from holdfast.session import Session
from holdfast.storage.protocol import Backend
from holdfast.store import Store
from holdfast.turn import Turn
from holdfast.values import Damage, Scan

T = TypeVar("T")
_START_US = 1_700_000_000_000_000
_SECOND_US = 1_000_000


class SetClock:
    """A clock that moves only when it is told to, and by a microsecond at each reading."""

    def __init__(self, micros: int = _START_US) -> None:
        self._now = micros
        self._monotonic = 0
        self._guard = threading.Lock()

    def micros(self) -> int:
        """Return the time; no two readings are the same."""
        with self._guard:
            self._now += 1
            return self._now

    def monotonic(self) -> int:
        """Return the time that has passed; `step` does not change it."""
        with self._guard:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._guard:
            self._now += int(seconds * _SECOND_US)
            self._monotonic += int(seconds * _SECOND_US)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        with self._guard:
            self._now += int(seconds * _SECOND_US)


class StoreFixtures:
    """The fixtures that every group of tests shares."""

    persistent: ClassVar[bool] = True
    proves: ClassVar[bool] = True

    clock: SetClock
    expect_no_damage: bool  # false for a test that does damage
    _folder: Path
    _opened: list[Store]

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        """Open the store in this folder, creating it if there is none; subclasses define this."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _begin(self, tmp_path: Path) -> Iterator[None]:
        self.clock = SetClock()
        self._folder = tmp_path
        self._opened = []
        self.expect_no_damage = True
        yield
        damage = [found for store in self._opened for found in self.damage_of(store)]
        for store in self._opened:
            store.close()
        assert damage == []

    def damage_of(self, store: Store) -> list[Damage]:
        """Return the damage in a store; none for tests that cause damage on purpose."""
        return store.verify() if self.expect_no_damage and not store.backend.closed else []

    @pytest.fixture
    def store(self) -> Store:
        """A new, empty store."""
        return self.open()

    @pytest.fixture
    def session(self, store: Store) -> Session:
        """A new session of it."""
        return store.session("the session")

    def open(self, *, tenant: str = "default", readonly: bool = False) -> Store:
        """Open the store of this test."""
        backend = self.open_backend(
            self._folder, tenant=tenant, readonly=readonly, clock=self.clock
        )
        store = Store(backend, self.clock)
        self._opened.append(store)
        return store

    def reopen(self, store: Store) -> Store:
        """Return the store as a later process finds it; the same object if it is not persistent."""
        if not self.persistent:
            return store
        store.close()
        return self.open(tenant=store.tenant)

    def check_proof(self, scan: Scan | None) -> None:
        """Assert that an erasure was proved, or that it reports why it could not be."""
        assert scan is not None
        assert scan.found == ()
        assert scan.clean == self.proves
        assert (scan.problem is None) == self.proves
        assert scan.searchable == self.proves

    def need_persistence(self) -> None:
        """Skip a test that needs a store that can be opened twice."""
        if not self.persistent:
            pytest.skip("this store ends with its backend and cannot be opened twice")

    def open_turn(self, session: Session, *, model: str | None = None) -> Turn:
        """Open a turn that is never ended."""
        return session.turn(model=model).__enter__()

    def expire_leases(self, store: Store) -> None:
        """Let time pass until every lease has expired."""
        self.clock.advance(store.backend.lease + 1)


def drain(following: BaseFollower[T]) -> list[T]:
    """Return all items that a follower has now."""
    found: list[T] = []
    while (item := following.poll()) is not None:
        found.append(item)
    return found


def run_concurrently(*calls: Callable[[], object]) -> None:
    """Run calls in threads that start at the same moment; raise the first error."""
    gate = threading.Barrier(len(calls))
    failed: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        gate.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
