"""Every disk a crash could leave in the middle of a movement, a fork or a purge.

Each scene (see `_scenes`) is run once through the recording VFS. Before a step the view expected
after it is recorded, and again when the step returned. Then every state that a killed process or a
power cut could leave is opened as a user would: it is intact, its view is the one before the step
in progress or the one after it, and the latter once the step was acknowledged; and when the program
retries the step and continues, it ends in the same state as an uninterrupted run.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.testing.faults import CrashState, Recording, StateFailed, Trace, explore, record
from tests.crash._bytes import is_one_in
from tests.crash._facts import DATABASE, checkpoints_every, open_store
from tests.crash._scenes import MOVES, SCENES, Rehearsals, Scene, copy, look

FEW_PAGES = 6
THOUSANDS = 3_000
MANY_POINTS = 160


class Seen(msgspec.Struct, frozen=True):
    """The view of a store after this many steps of a scene."""

    scene: str
    done: int
    look: str
    end: str
    """What is seen when all are done."""


def _record(scene: Scene, rehearsed: Rehearsals, pages: int = 1000) -> Trace:
    base, looks = rehearsed.of(scene)

    def said(done: int) -> str:
        return msgspec.json.encode(Seen(scene.name, done, looks[done], looks[-1])).decode()

    def run(recording: Recording) -> None:
        recording.begin(said(0))
        recording.ack(said(0))
        path = recording.directory / DATABASE
        with checkpoints_every(pages), open_store(path, vfs=recording.vfs, hours=1) as store:
            for done, step in enumerate(scene.steps, 1):
                recording.begin(said(done))
                step.do(store)
                recording.ack(said(done))
            assert look(store) == looks[-1]

    return record(run, prepare=partial(copy, base))


def check_old_or_new(directory: Path, state: CrashState) -> None:
    """The state is the one before or after the step, and the scene can be run to its end."""
    begun = [msgspec.json.decode(said, type=Seen) for said in state.begun]
    if not state.acked:
        return
    possible = begun[len(state.acked) - 1 :]
    scene = next(scene for scene in SCENES if scene.name == begun[0].scene)
    with open_store(directory / DATABASE, hours=10) as store:
        assert store.verify() == []
        found = look(store)
        fitting = [seen.done for seen in possible if seen.look == found]
        assert fitting, f"between {[seen.done for seen in possible]}: {found}"
        scene.finish(store, fitting[0])
        assert look(store) == begun[0].end
        assert store.verify() == []
    assert scene.left_nothing(directory), "what was purged is still in a file"


def check_one_in_six(directory: Path, state: CrashState) -> None:
    """The same for some of the states, chosen by their names."""
    if is_one_in(6, state):
        check_old_or_new(directory, state)


def check_one_in_eighteen(directory: Path, state: CrashState) -> None:
    """The same for fewer of them, where there are many."""
    if is_one_in(18, state):
        check_old_or_new(directory, state)


def _look_around(trace: Trace) -> None:
    """Visit states at every point, of which some are checked; few would prove nothing."""
    points = len(trace.events)
    check = check_one_in_six if points < MANY_POINTS else check_one_in_eighteen
    explored = explore(trace, check, limit=points)
    assert explored.power > points * 2 // 3
    assert explored.torn > points // 20
    assert explored.kill > points // 2


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_crash_leaves_old_or_new(scene: Scene, rehearsed: Rehearsals) -> None:
    """Whatever a crash leaves is the state before a step or the one after it."""
    _look_around(_record(scene, rehearsed))


@pytest.mark.long
@pytest.mark.parametrize("pages", [1000, FEW_PAGES])
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_a_crash_leaves_old_or_new_in_many_more_states(
    scene: Scene, rehearsed: Rehearsals, pages: int
) -> None:
    """The same in thousands of states, and while checkpoints happen all the time."""
    trace = _record(scene, rehearsed, pages)
    assert explore(trace, check_old_or_new, limit=THOUSANDS).power > 5 * len(trace.events)


def test_the_check_detects_a_state_between(rehearsed: Rehearsals) -> None:
    """A store in any other state is detected."""
    trace = _record(MOVES, rehearsed)
    _, looks = rehearsed.of(MOVES)
    wrong = looks[1].replace("user-1", "user-7")
    events = [
        msgspec.structs.replace(event, what=event.what.replace(_quoted(looks[1]), _quoted(wrong)))
        if hasattr(event, "what")
        else event
        for event in trace.events
    ]
    with pytest.raises(StateFailed, match="between"):
        explore(msgspec.structs.replace(trace, events=events), check_old_or_new, limit=0)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
