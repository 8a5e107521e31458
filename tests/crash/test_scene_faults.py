"""Movements, forks and purges on a disk that fails, in this process, at any of its operations.

A scene (see `_scenes`) is performed on a disk whose Nth operation fails, once or from then on until
it is healed. What the caller is told is true: after an error that guarantees "not stored" the store
is unchanged, without an error the step is stored, and after `OutcomeUnknown` it is one of the two.
A retried step takes effect once, in the same store object, whatever happened to its connections and
caches; and at the end the store equals one without faults, also when it is opened again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import apsw
import pytest

from holdfast import Store
from holdfast.errors import (
    HoldfastError,
    OutcomeUnknown,
    StorageError,
    StoreFull,
    StoreUnavailable,
)
from holdfast.testing.faults import FailingDisk, failing_disk
from holdfast.testing.faults.failing_disk import FileOperation
from holdfast.testing.faults.recorder import fast_directory
from tests.crash._facts import DATABASE, checkpoints_every, open_store
from tests.crash._scenes import SCENES, Rehearsals, Scene, Step, copy, look

FEW_PAGES = 6
NEVER = 10**9


@dataclass(frozen=True)
class Fault:
    """What fails, how, and for how long."""

    operation: FileOperation
    lasting: bool = False
    error: type[apsw.Error] = apsw.IOError

    def __str__(self) -> str:
        kind = "full" if self.error is apsw.FullError else "fails"
        return f"{self.operation}-{kind}{'-lasting' if self.lasting else ''}"


FAULTS = [
    Fault("write"),
    Fault("write", error=apsw.FullError),
    Fault("write", lasting=True),
    Fault("write", lasting=True, error=apsw.FullError),
    Fault("sync"),
    Fault("sync", lasting=True),
    Fault("open", error=apsw.CantOpenError),
    Fault("open", lasting=True, error=apsw.CantOpenError),
    Fault("truncate"),
    Fault("truncate", lasting=True),
    Fault("read"),
    Fault("read", lasting=True),
]


@dataclass
class Performance:
    """One performance of a scene, in which something fails once."""

    scene: Scene
    looks: list[str]
    disk: FailingDisk
    fault: Fault
    at: int
    met: bool = False
    operations: int = 0
    told: type[HoldfastError] | None = None

    def play(self, directory: Path) -> None:
        """Run to the end; each step that fails is retried on a healed disk."""
        path = directory / DATABASE
        with open_store(path, vfs=self.disk.name, hours=1) as store:
            self.disk.fail(
                self.fault.operation,
                at=self.at,
                lasting=self.fault.lasting,
                error=self.fault.error,
                log_only=self.fault.error is apsw.FullError,
            )
            for done, step in enumerate(self.scene.steps):
                self._do(store, step, done)
            self._heal()
            assert look(store) == self.looks[-1]
            assert store.verify() == []
        with open_store(path, hours=10) as store:
            assert look(store) == self.looks[-1]
            assert store.verify() == []
        assert self.scene.left_nothing(directory)

    def _do(self, store: Store, step: Step, done: int) -> None:
        try:
            step.do(store)
        except StorageError as error:
            self._heal()
            self.told = type(error)
            self._do_again(store, step, done)

    def _do_again(self, store: Store, step: Step, done: int) -> None:
        old, new = self.looks[done : done + 2]
        found = look(store)
        assert found in {old, new}, f"neither before nor after step {done + 1}: {found}"
        if self.told is not OutcomeUnknown:
            assert found == old, f"{self.told} said that nothing was stored"
        if found == new:
            step.repeat(store)
        else:
            step.do(store)
        assert look(store) == new

    def _heal(self) -> None:
        self.operations = self.disk.counts[self.fault.operation]
        self.met = self.met or self.disk.met
        self.disk.heal()


@contextmanager
def _place(base: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_directory(), prefix="holdfast-scene-") as made:
        copy(base, Path(made))
        yield Path(made)


def _play(scene: Scene, rehearsed: Rehearsals, fault: Fault, at: int) -> Performance:
    base, looks = rehearsed.of(scene)
    with failing_disk() as disk, _place(base) as directory:
        performance = Performance(scene, looks, disk, fault, at)
        performance.play(directory)
    return performance


class Places:
    """Where the disk can fail while a scene is played."""

    def __init__(self, scene: Scene, rehearsed: Rehearsals) -> None:
        self._scene = scene
        self._rehearsed = rehearsed
        self._counted: dict[tuple[FileOperation, bool], int] = {}

    def of(self, fault: Fault, visits: int) -> list[int]:
        """Return some of the operations that can fail, and the last one."""
        last = max(1, self._count(fault))
        return sorted({1 + number * last // visits for number in range(visits)} | {last})

    def _count(self, fault: Fault) -> int:
        """Count the operations of a kind when none of them fails."""
        kind = fault.operation, fault.error is apsw.FullError
        if kind not in self._counted:
            undisturbed = _play(self._scene, self._rehearsed, fault, NEVER)
            assert not undisturbed.met
            self._counted[kind] = undisturbed.operations
        return self._counted[kind]


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_what_fails_is_reported_and_done_once(scene: Scene, rehearsed: Rehearsals) -> None:
    """The state before or after the step, as reported; a retry takes effect once."""
    told, places = set(), Places(scene, rehearsed)
    for number, fault in enumerate(FAULTS):
        for at in places.of(fault, 2 + number % 2):
            told.add(_play(scene, rehearsed, fault, at).told)
    assert {StoreFull, StoreUnavailable, OutcomeUnknown, None} <= told, "too little was met"


@pytest.mark.long
@pytest.mark.parametrize("pages", [1000, FEW_PAGES])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_what_fails_anywhere_is_reported_and_done_once(
    scene: Scene, rehearsed: Rehearsals, fault: Fault, pages: int
) -> None:
    """The same at every single operation, and while checkpoints happen all the time."""
    with checkpoints_every(pages):
        for at in count(1):
            if not _play(scene, rehearsed, fault, at).met:
                return
