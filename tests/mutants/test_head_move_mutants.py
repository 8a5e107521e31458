"""Every branch rule catches a store that breaks it, and no healthy one."""

from pathlib import Path

import pytest

from holdfast.proof.checker import ViolationKind
from tests.mutants import head_move_stores
from tests.mutants.head_move_workload import Heads, run
from tests.store_urls import place

MUTANTS: dict[type[Heads], ViolationKind] = {
    head_move_stores.ForgetsCompare: ViolationKind.WRONG_MOVE,
    head_move_stores.RefusesAndMoves: ViolationKind.INVENTED,
    head_move_stores.ReusesNumbers: ViolationKind.DUPLICATE,
    head_move_stores.RedoesTheFirst: ViolationKind.WRONG_MOVE,
    head_move_stores.UndoesOneMessage: ViolationKind.WRONG_MOVE,
    head_move_stores.LosesRacingAppend: ViolationKind.LOST,
    head_move_stores.CopiesHistories: ViolationKind.DUPLICATE,
    head_move_stores.DropsTheTail: ViolationKind.LOST,
    head_move_stores.ReplacesStaleHead: ViolationKind.WRONG_MOVE,
    head_move_stores.ForksStaleHead: ViolationKind.WRONG_MOVE,
    head_move_stores.ForgetsMoves: ViolationKind.LOST,
    head_move_stores.CachesHistories: ViolationKind.STALE_READ,
    head_move_stores.RenamesBranches: ViolationKind.GAP,
}


# These break their rule above the database. One is tried there in every run, all in long ones.
# Branch numbers cannot be reused on a server: the primary key does not allow it.
_ON_A_SERVER = [
    pytest.param(mutant, marks=() if mutant is head_move_stores.DropsTheTail else pytest.mark.long)
    for mutant in MUTANTS
    if mutant is not head_move_stores.ReusesNumbers
]


@pytest.mark.parametrize(
    ("mutant", "kind"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_a_mutant_is_caught(mutant: type[Heads], kind: ViolationKind, tmp_path: Path) -> None:
    """By the rule it breaks, in a run in which enough happened."""
    heads = mutant()
    try:
        verdict = run(heads, tmp_path)
    finally:
        heads.close()
    assert kind in verdict.kinds, str(verdict)
    assert verdict.vacuous(["moves", "branches", "overlaps"]) == []
    with pytest.raises(AssertionError, match=kind.value):
        verdict.require(["moves"])


@pytest.mark.parametrize("mutant", _ON_A_SERVER)
def test_a_mutant_is_caught_on_a_server(mutant: type[Heads], tmp_path: Path) -> None:
    """The workload stresses a server as well; which rule finds it depends on the order there."""
    with place("postgres", tmp_path) as url:
        heads = mutant.at(url)
        try:
            verdict = run(heads, tmp_path)
        finally:
            heads.close()
    assert not verdict.ok
    assert verdict.vacuous(["moves", "branches", "overlaps"]) == []


def test_a_healthy_store_passes(store_url: str, tmp_path: Path) -> None:
    """The same workload, with the same coverage, finds nothing."""
    events = tmp_path / "events"
    events.mkdir()
    heads = Heads.at(store_url)
    try:
        verdict = run(heads, events)
    finally:
        heads.close()
    verdict.require(["kills", "retries", "overlaps", "refused", "reads", "moves", "branches"])
