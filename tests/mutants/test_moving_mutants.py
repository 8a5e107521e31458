"""Every rule of movement catches a store that breaks it, and no healthy one."""

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.settings import Location
from holdfast.testing.checker import Kind
from tests.mutants import movers
from tests.mutants.moving import Heads, run

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


class SQLiteHeads(Heads):
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
def test_a_mutant_is_caught(mutant: type[Heads], kind: Kind, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "make",
    [lambda _: Heads(), lambda folder: SQLiteHeads(folder / "store.db")],
    ids=["memory", "sqlite"],
)
def test_a_healthy_store_passes(make: Callable[[Path], Heads], tmp_path: Path) -> None:
    """The same workload finds nothing in it, though it was tried as hard."""
    events = tmp_path / "events"
    events.mkdir()
    heads = make(tmp_path)
    try:
        verdict = run(heads, events)
    finally:
        heads.close()
    verdict.require(["kills", "retries", "overlaps", "refused", "reads", "moves", "branches"])
