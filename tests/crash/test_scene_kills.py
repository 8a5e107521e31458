"""Movements, forks and purges by a process that is killed, or whose disk fails, at the Nth write.

The process runs a scene (see `_scenes`) on real files and prints each completed step. However it
ends, the store is intact and in the state after the last printed step, or after the next one unless
that was refused; and the scene can be run to its end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from holdfast.testing.faults import Outcome, Shim, every
from holdfast.testing.faults.shim import FaultKind, ShimOperation
from tests.crash._facts import DATABASE, open_store
from tests.crash._scenes import ERASE, MOVES, PURGE, REPLACE, SCENES, Rehearsals, Scene, copy, look

ROOT = Path(__file__).parents[2]
CHILD = "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.crash._scenes import main; "
TYPED = {"OutcomeUnknown", "StoreFull", "StoreUnavailable"}


@dataclass(frozen=True)
class Fault:
    """The fault, the kind of operation, once or from then on; and at which operations."""

    kind: FaultKind
    on: ShimOperation
    sticky: bool = False
    first: int = 8
    step: int = 3

    def __str__(self) -> str:
        return f"{self.kind}-{self.on}{'-sticky' if self.sticky else ''}"


FAULTS = [
    Fault("kill", "write"),
    Fault("tear", "write"),
    Fault("kill_after", "sync", step=1),
    Fault("eio", "sync", step=1),
    Fault("eio", "sync", sticky=True, step=1),
    Fault("enospc", "write", sticky=True),
    Fault("short", "write", sticky=True),
]


@dataclass(frozen=True)
class Stage:
    """What a scene needs to run with faults."""

    shim: Shim
    rehearsed: Rehearsals
    under: Path

    def play(self, scene: Scene, fault: Fault) -> None:
        """Run a scene with the fault at one operation after the other, and check each result."""
        base, looks = self.rehearsed.of(scene)
        reached = 0
        for outcome in every(
            self.shim,
            partial(_argv, scene, base),
            kind=fault.kind,
            on=fault.on,
            sticky=fault.sticky,
            under=self.under,
            first=fault.first,
            step=fault.step,
        ):
            _judge(scene, looks, outcome)
            reached += outcome.reached
        assert reached >= 3, "too few faults were met to prove anything"


@pytest.fixture
def stage(shim: Shim, rehearsed: Rehearsals, tmp_path: Path) -> Stage:
    return Stage(shim, rehearsed, tmp_path)


def _argv(scene: Scene, base: Path, directory: Path) -> list[str]:
    copy(base, directory)
    words = [sys.executable, "-c", CHILD + "main()", str(ROOT)]
    return [*words, scene.name, str(directory / DATABASE)]


def _judge(scene: Scene, looks: list[str], outcome: Outcome) -> None:
    assert not outcome.stderr, outcome.command + outcome.stderr
    said = outcome.stdout.split()
    done = said.count("done")
    told = said[done:]
    assert set(told) <= TYPED, outcome.command
    sure = done == len(scene.steps) or (bool(told) and told != ["OutcomeUnknown"])
    with open_store(outcome.directory / DATABASE, hours=10) as store:
        assert store.verify() == [], outcome.command
        found = look(store)
        possible = looks[done : done + 1] if sure else looks[done : done + 2]
        assert found in possible, outcome.command
        scene.finish(store, done + possible.index(found))
        assert look(store) == looks[-1], outcome.command
        assert store.verify() == [], outcome.command
    assert scene.left_nothing(outcome.directory), outcome.command


@pytest.mark.parametrize(
    ("scene", "fault"),
    [
        (MOVES, Fault("kill", "write", first=1, step=29)),
        (REPLACE, Fault("tear", "write", first=1, step=37)),
        (PURGE, Fault("kill_after", "sync", first=1, step=9)),
        (ERASE, Fault("enospc", "write", sticky=True, first=1, step=41)),
    ],
    ids=str,
)
def test_a_process_that_ends_leaves_old_or_new(stage: Stage, scene: Scene, fault: Fault) -> None:
    """Killed, torn or refused by the disk: the state before or after, and it can continue."""
    stage.play(scene, fault)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_process_that_ends_anywhere_leaves_old_or_new(
    stage: Stage, scene: Scene, fault: Fault
) -> None:
    """The same at many more operations."""
    stage.play(scene, fault)
