"""Every rule of movement catches a store that breaks it, and no healthy one."""

from pathlib import Path

import pytest

from holdfast.testing.checker import Kind
from tests.mutants import movers
from tests.mutants.moving import Heads, run
from tests.places import place

MUTANTS: dict[type[Heads], Kind] = {
    movers.ForgetsCompare: Kind.WRONG_MOVE,
    movers.RefusesAndMoves: Kind.INVENTED,
    movers.ReusesNumbers: Kind.DUPLICATE,
    movers.RedoesTheFirst: Kind.WRONG_MOVE,
    movers.UndoesOneMessage: Kind.WRONG_MOVE,
    movers.LosesRacingAppend: Kind.LOST,
    movers.CopiesHistories: Kind.DUPLICATE,
    movers.DropsTheTail: Kind.LOST,
    movers.ReplacesStaleHead: Kind.WRONG_MOVE,
    movers.ForksStaleHead: Kind.WRONG_MOVE,
    movers.ForgetsMoves: Kind.LOST,
    movers.CachesHistories: Kind.STALE_READ,
    movers.RenamesBranches: Kind.GAP,
}


# Each breaks its rule above the database. One is caught there in every run, the others in long ones.
_ON_A_SERVER = [
    pytest.param(mutant, marks=() if mutant is movers.DropsTheTail else pytest.mark.long)
    for mutant in MUTANTS
]


@pytest.mark.parametrize(
    ("mutant", "kind"), MUTANTS.items(), ids=[mutant.__name__ for mutant in MUTANTS]
)
def test_a_mutant_is_caught(mutant: type[Heads], kind: Kind, tmp_path: Path) -> None:
    """By the rule it breaks, in a run in which enough happened."""
    _catch(mutant(), kind, tmp_path)


@pytest.mark.parametrize("mutant", _ON_A_SERVER)
def test_a_mutant_is_caught_on_a_server(mutant: type[Heads], tmp_path: Path) -> None:
    """The workload tries a server as hard."""
    with place("postgres", tmp_path) as url:
        _catch(mutant.at(url), MUTANTS[mutant], tmp_path)


def _catch(heads: Heads, kind: Kind, tmp_path: Path) -> None:
    try:
        verdict = run(heads, tmp_path)
    finally:
        heads.close()
    assert kind in verdict.kinds, str(verdict)
    assert verdict.vacuous(["moves", "branches", "overlaps"]) == []
    with pytest.raises(AssertionError, match=kind.value):
        verdict.require(["moves"])


def test_a_healthy_store_passes(store_url: str, tmp_path: Path) -> None:
    """The same workload finds nothing in it, though it was tried as hard."""
    events = tmp_path / "events"
    events.mkdir()
    heads = Heads.at(store_url)
    try:
        verdict = run(heads, events)
    finally:
        heads.close()
    verdict.require(["kills", "retries", "overlaps", "refused", "reads", "moves", "branches"])
