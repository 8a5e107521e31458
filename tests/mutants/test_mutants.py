"""Every rule of the history checker catches a store that breaks it, and no healthy one.

The workload is the same for all. A mutant that passed would mean that the checker, or the
workload, proves less than it says.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.settings import Location
from holdfast.testing.checker import Kind
from tests.mutants import stores
from tests.mutants.workload import ROUNDS, WORKERS, Log, run, run_calmly

MUTANTS: dict[type[Log], Kind] = {
    stores.NoIdempotency: Kind.DUPLICATE,
    stores.NoFence: Kind.ZOMBIE_WRITE,
    stores.SkipsSeqs: Kind.GAP,
    stores.SeqFromClock: Kind.GAP,
    stores.SortsByTime: Kind.REORDER,
    stores.TidiesBodies: Kind.MUTATED,
    stores.LastWriteWins: Kind.MUTATED,
    stores.IgnoresExpect: Kind.INVENTED,
    stores.InventsMessages: Kind.INVENTED,
    stores.DropsRepeats: Kind.LOST,
    stores.LostUpdate: Kind.LOST,
    stores.AcksFirst: Kind.LOST,
    stores.ClearsFirst: Kind.STALE_READ,
    stores.CachesReads: Kind.STALE_READ,
    stores.TearsBatches: Kind.TORN,
}


class SQLiteLog(Log):
    """The healthy store in a file; a crash opens it again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()

    def open(self) -> holdfast.Store:
        location = Location("sqlite", str(self._path), lease=600.0)
        backend = SQLiteBackend(location, clock=self.clock)
        return holdfast.Store(backend, self.clock)

    def crash(self) -> None:
        self.store.close()
        self.store = self.open()


@pytest.mark.parametrize(
    ("mutant", "kind"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_a_mutant_is_caught(mutant: type[Log], kind: Kind, tmp_path: Path) -> None:
    """By the rule it breaks, in a run in which enough happened."""
    log = mutant()
    try:
        verdict = run(log, tmp_path)
    finally:
        log.close()
    assert kind in verdict.kinds, str(verdict)
    assert verdict.vacuous() == []
    with pytest.raises(AssertionError, match=kind.value):
        verdict.require()


def test_every_kind_of_finding_has_a_mutant() -> None:
    """None of the checker's rules goes untried; those of movement have mutants of their own."""
    assert set(MUTANTS.values()) == set(Kind) - {Kind.WRONG_MOVE}


@pytest.mark.parametrize(
    "make",
    [lambda _: Log(), lambda folder: SQLiteLog(folder / "store.db")],
    ids=["memory", "sqlite"],
)
def test_a_healthy_store_passes(make: Callable[[Path], Log], tmp_path: Path) -> None:
    """The same workload finds nothing in it, though it was tried as hard."""
    events = tmp_path / "events"
    events.mkdir()
    log = make(tmp_path)
    try:
        verdict = run(log, events)
    finally:
        log.close()
    verdict.require(["kills", "retries", "overlaps", "refused", "reads", "takeovers"])
    assert verdict.coverage.stored >= WORKERS * ROUNDS


def test_a_run_in_which_nothing_happened_proves_nothing(tmp_path: Path) -> None:
    """No kill, no retry, no overlap: it fails as vacuous, though nothing is wrong."""
    log = Log()
    verdict = run_calmly(log, tmp_path)
    log.close()
    assert verdict.ok
    with pytest.raises(AssertionError, match="proves nothing: no kills, no retries, no overlaps"):
        verdict.require()
