"""Every disk a crash could leave in the middle of an import of several families of sessions.

A family, sessions that share messages, comes in one transaction. So every session of the file is
there whole or not at all; what was there before is as it was; and importing the file again brings
the rest, after which everything looks as if nothing had happened.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Store
from holdfast.testing.faults import CrashState, Recording, Trace, explore, record
from tests.crash._bytes import is_one_in
from tests.crash._facts import DATABASE, checkpoints_every, open_store
from tests.crash._messages import message
from tests.crash._scenes import copy, look

FILE = "family.jsonl"


class Looks(msgspec.Struct, frozen=True):
    """The views of the store before the import and after it."""

    before: str
    after: str


def _fill(store: Store) -> None:
    """Three families: a talk with forks, one that stands alone, one in the trash."""
    talk = store.session("talk", title="the talk")
    talk.append(*map(message, ("user-1", "file-2", "user-3")))
    fork = talk.fork(2, key="fork")
    alone = store.session("alone")
    alone.append(*map(message, ("big-1", "file-2")))
    alone.undo()
    fork.append(message("user-f"))
    store.session("thrown away").append(message("user-1"))
    talk.append(message("user-4"))
    store.create(key="run", parent="talk").append(message("file-r"))
    store.trash("thrown away")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something in it, and beside it a file."""
    directory = tmp_path_factory.mktemp("base")
    with holdfast.open("memory:") as elsewhere:
        _fill(elsewhere)
        elsewhere.export(directory / FILE, redact=None)
    with open_store(directory / DATABASE) as store:
        store.session("own").append(message("user-own"), message("file-2"))
    return directory


@pytest.fixture(scope="module")
def looks(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Looks:
    directory = tmp_path_factory.mktemp("undisturbed")
    copy(base, directory)
    with open_store(directory / DATABASE) as store:
        before = look(store)
        assert store.import_(directory / FILE, trust=True).sessions == 5
        return Looks(before, look(store))


def _record(base: Path, looks: Looks, pages: int) -> Trace:
    said = msgspec.json.encode(looks).decode()

    def run(recording: Recording) -> None:
        path = recording.directory / DATABASE
        with checkpoints_every(pages), open_store(path, vfs=recording.vfs) as store:
            recording.begin(said)
            store.import_(recording.directory / FILE, trust=True)
            recording.ack(said)

    return record(run, prepare=partial(copy, base))


def _sessions(seen: str) -> dict[str, Any]:
    return {told["name"]: told for told in msgspec.json.decode(seen)["sessions"]}


def check_whole_or_absent(directory: Path, state: CrashState) -> None:
    """Each session is as it was, or whole; and the import can be done again."""
    if not state.begun:
        return
    looks = msgspec.json.decode(state.begun[0], type=Looks)
    before, after = _sessions(looks.before), _sessions(looks.after)
    with open_store(directory / DATABASE, hours=10) as store:
        assert store.verify() == []
        seen = look(store)
        found = _sessions(seen)
        assert before.keys() <= found.keys()
        assert all(found[name] == after[name] for name in found), "a session is there by half"
        if state.acked:
            assert seen == looks.after
        store.import_(directory / FILE, trust=True)
        # Only an import that ran through puts the sessions in the order they had elsewhere.
        assert _sessions(look(store)) == after, "the second import did not bring the rest"
        assert store.verify() == []


def check_one_in_twelve(directory: Path, state: CrashState) -> None:
    """The same for some of the states, chosen by their names."""
    if is_one_in(12, state):
        check_whole_or_absent(directory, state)


def test_a_crash_during_an_import_leaves_whole_sessions(base: Path, looks: Looks) -> None:
    """A crash leaves some whole families, and importing again brings the rest."""
    trace = _record(base, looks, 1000)
    explored = explore(trace, check_one_in_twelve, limit=len(trace.events))
    assert explored.kill > 20
    assert explored.torn > 5


@pytest.mark.long
@pytest.mark.parametrize("pages", [1000, 6])
def test_a_crash_during_an_import_leaves_whole_sessions_in_many_more_states(
    base: Path, looks: Looks, pages: int
) -> None:
    """The same in many more states, and while checkpoints happen."""
    explored = explore(_record(base, looks, pages), check_whole_or_absent, limit=2_000)
    assert explored.torn > 200
