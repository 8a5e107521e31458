"""Every rule of the history checker catches a store that breaks it, and no healthy one.

The workload is the same for all. A mutant that passed would mean that the checker, or the
workload, proves less than it says.
"""

from pathlib import Path

import pytest

from holdfast.proof.checker import ViolationKind
from tests.mutants import stores
from tests.mutants.workload import ROUNDS, WORKERS, Log, run, run_calmly
from tests.store_urls import place

MUTANTS: dict[type[Log], ViolationKind] = {
    stores.NoIdempotency: ViolationKind.DUPLICATE,
    stores.NoFence: ViolationKind.ZOMBIE_WRITE,
    stores.SkipsSeqs: ViolationKind.GAP,
    stores.SeqFromClock: ViolationKind.GAP,
    stores.SortsByTime: ViolationKind.REORDER,
    stores.TidiesBodies: ViolationKind.MUTATED,
    stores.LastWriteWins: ViolationKind.MUTATED,
    stores.IgnoresExpect: ViolationKind.INVENTED,
    stores.InventsMessages: ViolationKind.INVENTED,
    stores.DropsRepeats: ViolationKind.LOST,
    stores.LostUpdate: ViolationKind.LOST,
    stores.AcksFirst: ViolationKind.LOST,
    stores.ClearsFirst: ViolationKind.STALE_READ,
    stores.CachesReads: ViolationKind.STALE_READ,
    stores.TearsBatches: ViolationKind.TORN,
}


# These break their rule above the database. One is tried there in every run, all in long ones.
_ABOVE = [mutant for mutant in MUTANTS if not issubclass(mutant, stores.BrokenTransaction)]
_ON_A_SERVER = [
    pytest.param(mutant, marks=() if mutant is stores.LostUpdate else pytest.mark.long)
    for mutant in _ABOVE
]


@pytest.mark.parametrize(
    ("mutant", "kind"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_a_mutant_is_caught(mutant: type[Log], kind: ViolationKind, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("mutant", _ON_A_SERVER)
def test_a_mutant_is_caught_on_a_server(mutant: type[Log], tmp_path: Path) -> None:
    """The workload stresses a server as well; which rule finds it depends on the order there."""
    with place("postgres", tmp_path) as url:
        log = mutant.at(url)
        try:
            verdict = run(log, tmp_path)
        finally:
            log.close()
    assert not verdict.ok
    assert verdict.vacuous() == []


def test_every_kind_of_finding_has_a_mutant() -> None:
    """Every rule of the checker has a mutant; the branch rules have mutants of their own."""
    assert set(MUTANTS.values()) == set(ViolationKind) - {ViolationKind.WRONG_MOVE}


def test_a_healthy_store_passes(store_url: str, tmp_path: Path) -> None:
    """The same workload, with the same coverage, finds nothing."""
    events = tmp_path / "events"
    events.mkdir()
    log = Log.at(store_url)
    try:
        verdict = run(log, events)
    finally:
        log.close()
    verdict.require(["kills", "retries", "overlaps", "refused", "reads", "takeovers"])
    assert verdict.coverage.stored >= WORKERS * ROUNDS


def test_a_run_in_which_nothing_happened_proves_nothing(tmp_path: Path) -> None:
    """No kill, no retry, no overlap: it fails as vacuous, although there are no findings."""
    log = Log()
    verdict = run_calmly(log, tmp_path)
    log.close()
    assert verdict.ok
    with pytest.raises(AssertionError, match="proves nothing: no kills, no retries, no overlaps"):
        verdict.require()
