"""Every disk state a crash could leave, and how the store recovers from it.

Each scenario runs once through the recording VFS; then every state that a killed process or a
power cut could leave (see `holdfast.testing.faults.crash_states`) is opened as a user would open it
and checked against the facts that the run had promised by then (see `_facts`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import apsw
import msgspec
import pytest

import holdfast
from holdfast import Session, Store, Turn
from holdfast.storage.protocol import Transaction
from holdfast.storage.sqlite import backend as sqlite_backend
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.testing.faults import (
    CrashState,
    Recording,
    StateFailed,
    Trace,
    explore,
    record,
    states,
)
from holdfast.url import Durability
from tests.crash._bytes import is_one_in
from tests.crash._facts import (
    DATABASE,
    FIRST_LIFE,
    Closed,
    Ended,
    FirstLife,
    Flushed,
    Made,
    Migrated,
    Named,
    Opened,
    Recovered,
    Said,
    Started,
    Took,
    Waits,
    candidates,
    checkpoints_every,
    judge,
    open_store,
    promise,
    view,
    written,
)
from tests.crash._messages import message
from tests.crash._story import NEXT_VERSION, steps_to_next

FEW_PAGES = 6
PAGE = 4096
SOME = 4
THOUSANDS = 4_000

Scenario = Callable[[Recording, Store], None]
Check = Callable[[Path, CrashState], None]


def check_nothing_lost(directory: Path, state: CrashState) -> None:
    """The promise of durability="power"."""
    judge(directory, state)


def check_only_newest_lost(directory: Path, state: CrashState) -> None:
    """The promise of durability="process"."""
    judge(directory, state, "process")


def check_some(directory: Path, state: CrashState) -> None:
    """The promise of durability="power", for some of the states, chosen by their names."""
    if is_one_in(SOME, state):
        judge(directory, state)


def check_only_newest_lost_in_some(directory: Path, state: CrashState) -> None:
    """The promise of durability="process", for some of the states."""
    if is_one_in(SOME, state):
        judge(directory, state, "process")


def check_one_in_twelve(directory: Path, state: CrashState) -> None:
    """The promise of durability="power", where states are many and large."""
    if (state.point + state.pieces) % 12 == 0:
        judge(directory, state)


def check_opens(directory: Path, state: CrashState) -> None:
    """A store that has crashed opens, and holds what it must."""
    with open_store(directory / DATABASE, hours=10) as store:
        assert view(store) in candidates(state)


# --------------------------------------------------------------------------------- the scenarios


def appends(recording: Recording, store: Store) -> None:
    """Batches of one and of several messages."""
    session = store.session("talk")
    for batch in (("user-1",), ("user-2", "user-3", "user-4"), ("user-5",), ("user-6", "user-7")):
        _say(recording, session, *batch)


def large_messages(recording: Recording, store: Store) -> None:
    """Batches whose parts are kept as blobs, the same content twice."""
    _say(recording, store.session("talk"), "user-1", "big-2", "file-3")
    with promise(recording, Made("other")):
        other = store.session("other")
    _say(recording, other, "big-2")


def whole_turn(recording: Recording, store: Store) -> None:
    """A turn with tools and a streamed reply, sealed; then another one."""
    session = store.session("talk")
    with _turn(recording, session, 1) as turn:
        _add(recording, turn, 1, "user-1")
        _add(recording, turn, 1, "call-x")
        with promise(recording, Started("talk", 1, "x")):
            turn.tool_started("x")
        _add(recording, turn, 1, "result-x")
        _stream(recording, turn, 1)
    with _turn(recording, session, 2) as turn:
        _add(recording, turn, 2, "user-2")


def failed_turn(recording: Recording, store: Store) -> None:
    """A turn that ends by an exception in the middle of a reply, with a tool still running."""
    session = store.session("talk")
    with promise(recording, Opened("talk", 1)):
        turn = session.turn().__enter__()
    _add(recording, turn, 1, "call-x")
    _add(recording, turn, 1, "call-y")
    with promise(recording, Started("talk", 1, "x")):
        turn.tool_started("x")
    reply = turn.stream()
    with promise(recording, Flushed("talk", 1, reply.id, "so far")):
        reply.write("so far")
        reply.flush()
    kept = Closed("talk", 1, reply.id, "so far and no more", "partial")
    with promise(recording, kept, Ended("talk", 1, "failed")):
        reply.write(" and no more")
        turn.fail("the model went away")


def abandoned_turn(recording: Recording, store: Store) -> None:
    """A turn that never ends: its holder dies during a second reply."""
    session = store.session("talk")
    with promise(recording, Opened("talk", 1)):
        turn = session.turn().__enter__()
    _add(recording, turn, 1, "user-1")
    _add(recording, turn, 1, "call-x")
    with promise(recording, Started("talk", 1, "x")):
        turn.tool_started("x")
    reply = turn.stream()
    for text in ("one", "one two"):
        with promise(recording, Flushed("talk", 1, reply.id, text)):
            reply.write(text[3:] or text)
            reply.flush()


def queued_input(recording: Recording, store: Store) -> None:
    """Input that waits, some of it with a file, and a turn that takes it."""
    session = store.session("talk")
    for id in ("user-1", "file-2", "user-3"):
        with promise(recording, Waits("talk", id)):
            session.enqueue(message(id))
    with _turn(recording, session, 1) as turn:
        with promise(recording, Took("talk", 1)):
            turn.take_queued()
        with promise(recording, Waits("talk", "user-4")):
            session.enqueue(message("user-4"))


def sessions_and_titles(recording: Recording, store: Store) -> None:
    """Sessions are made, written to and renamed."""
    for key in ("one", "two"):
        with promise(recording, Made(key)):
            session = store.session(key)
        _say(recording, session, f"user-{key}")
        with promise(recording, Named(key, f"about {key}")):
            session.update(title=f"about {key}", metadata={"topic": f"topic of about {key}"})


def opened_again(recording: Recording, store: Store) -> None:
    """The store is closed, which checkpoints and removes its log, and opened again."""
    store.close()
    for number in (1, 2, 3):
        with open_store(recording.directory / DATABASE, vfs=recording.vfs) as again:
            _say(recording, again.session("talk"), f"user-{number}", f"user-{number}{number}")


def long_log(recording: Recording, store: Store) -> None:
    """Enough is written that the engine checkpoints automatically."""
    for number in range(1, 6):
        _say(recording, store.session("talk"), f"huge-{number}")


def _say(recording: Recording, session: Session, *ids: str) -> None:
    with promise(recording, Said(str(session.key), ids)):
        session.append(*map(message, ids))


def _add(recording: Recording, turn: Turn, number: int, id: str) -> None:
    with promise(recording, Said("talk", (id,), number)):
        turn.add(message(id))


@contextmanager
def _turn(recording: Recording, session: Session, number: int) -> Iterator[Turn]:
    with promise(recording, Opened("talk", number)):
        turn = session.turn().__enter__()
    yield turn
    with promise(recording, Ended("talk", number, "sealed")):
        turn.__exit__(None, None, None)


def _stream(recording: Recording, turn: Turn, number: int) -> None:
    reply, text = turn.stream(), ""
    for delta in ("Once", " upon a time", " there was " * 500):
        text += delta
        with promise(recording, Flushed("talk", number, reply.id, text)):
            reply.write(delta)
            reply.flush()
    with promise(recording, Closed("talk", number, reply.id, text)):
        reply.close()


# --------------------------------------------------------------------------------- the recording


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a small store, made beforehand, as every run finds it."""
    directory = tmp_path_factory.mktemp("base")
    with holdfast.open(directory / DATABASE) as store:
        store.session("talk").append(message("user-a"), message("user-b"))
    return directory


def _record(
    scenario: Scenario, base: Path, *, pages: int = 1000, durability: Durability = "power"
) -> Trace:
    def run(recording: Recording) -> None:
        path = recording.directory / DATABASE
        with checkpoints_every(pages):
            with open_store(path, vfs=recording.vfs, durability=durability) as store:
                scenario(recording, store)

    return record(run, prepare=partial(_copy, base))


def _copy(source: Path, target: Path) -> None:
    shutil.copy(source / DATABASE, target / DATABASE)


def _look(trace: Trace, check: Check, *, seed: int = 0) -> None:
    """Visit states at every point, of which some are checked; few would prove nothing."""
    points = len(trace.events)
    explored = explore(trace, check, limit=points * 3 // 2, seed=seed)
    assert explored.power > points
    assert explored.torn > points // 5
    assert explored.kill > points // 2
    assert explored.points > points // 2


SCENARIOS = [
    appends,
    large_messages,
    whole_turn,
    failed_turn,
    abandoned_turn,
    queued_input,
    sessions_and_titles,
    opened_again,
]


# ------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_crash_loses_what_was_acknowledged(scenario: Scenario, base: Path) -> None:
    """Whatever a crash leaves: all that was acknowledged is there, the rest whole or absent."""
    _look(_record(scenario, base), check_some)


@pytest.mark.parametrize("scenario", [appends, whole_turn])
def test_no_crash_during_a_checkpoint_loses_anything(scenario: Scenario, base: Path) -> None:
    """The same while the log is copied into the file and written over from its start."""
    trace = _record(scenario, base, pages=FEW_PAGES)
    assert trace.syncs_of(DATABASE) >= 2, "there was no checkpoint before the close"
    _look(trace, check_some, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("pages", [1000, FEW_PAGES])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_crash_loses_anything_in_many_more_states(
    scenario: Scenario, base: Path, pages: int
) -> None:
    """The same in thousands of states."""
    trace = _record(scenario, base, pages=pages)
    assert explore(trace, check_nothing_lost, limit=THOUSANDS).power > 10 * len(trace.events)


@pytest.mark.long
def test_no_crash_during_the_engines_own_checkpoint_loses_anything(base: Path) -> None:
    """The same with so large a log that the engine checkpoints at its own size."""
    trace = _record(long_log, base)
    assert trace.syncs_of(DATABASE) >= 2, "there was no checkpoint before the close"
    assert explore(trace, check_one_in_twelve, limit=400).power == 400


@pytest.mark.parametrize("pages", [1000, FEW_PAGES])
def test_the_weaker_durability_loses_only_the_newest(base: Path, pages: int) -> None:
    """durability="process": a kill takes nothing, a power cut a suffix or nothing."""
    _look(_record(appends, base, pages=pages, durability="process"), check_only_newest_lost_in_some)


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_weaker_durability_loses_only_the_newest_in_many_more_states(
    scenario: Scenario, base: Path
) -> None:
    """The same in thousands of states."""
    trace = _record(scenario, base, pages=FEW_PAGES, durability="process")
    assert explore(trace, check_only_newest_lost, limit=THOUSANDS).power > 10 * len(trace.events)


def test_the_two_durabilities_differ(base: Path, tmp_path: Path) -> None:
    """The check detects that the weaker one loses data that the stronger one keeps."""
    trace = _record(appends, base, durability="process")
    with pytest.raises(StateFailed, match="none of what it may be"):
        explore(trace, check_nothing_lost, keep=tmp_path)


# ----------------------------------------------------- logs that look damaged and are not


def rolled_back(recording: Recording, store: Store) -> None:
    """A transaction so large that its frames are in the log before it is rolled back."""
    log = recording.directory / f"{DATABASE}-wal"
    _say(recording, store.session("talk"), "user-1")
    before = log.stat().st_size
    with pytest.raises(ZeroDivisionError):
        store.backend.write(_fill_and_fail)
    assert log.stat().st_size > before + 20 * PAGE, "nothing was written before the end"
    for id in ("user-2", "user-3"):
        _say(recording, store.session("talk"), id)


def _fill_and_fail(tx: Transaction) -> None:
    for number in range(40):
        tx.put_draft(1, 1, number, bytes(3000))
    raise ZeroDivisionError


@contextmanager
def _small_cache() -> Iterator[None]:
    def limit(connection: apsw.Connection) -> None:
        connection.execute("PRAGMA cache_size=5")
        connection.execute("PRAGMA cache_spill=5")

    apsw.connection_hooks.append(limit)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(limit)


def both_durabilities(recording: Recording, store: Store) -> None:
    """Two writers to one log, of which one does not sync."""
    path = recording.directory / DATABASE
    with open_store(path, vfs=recording.vfs, durability="process") as other:
        for number in range(3):
            _say(recording, store.session("talk"), f"user-{number}a")
            _say(recording, other.session("talk"), f"user-{number}b")


def _killed_before_its_sync(recording: Recording) -> None:
    """A writer leaves a commit that it has not synced, and the next one goes on behind it."""
    path = recording.directory / DATABASE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_backend, "enable_checkpoint_on_close", lambda _: None)
        for ids in (("user-1",), ("user-2", "user-3"), ("user-4",)):
            with open_store(path, vfs=recording.vfs) as store:
                for id in ids:
                    _say(recording, store.session("talk"), id)
            killed = connect(path, readonly=False, durability="power", busy=1, vfs=recording.vfs)
            killed.execute("PRAGMA synchronous=OFF")
            killed.execute("UPDATE meta SET value = value + 1 WHERE name = 'fence'")
            killed.close()


def test_frames_of_a_transaction_that_was_rolled_back_are_no_damage(base: Path) -> None:
    """They stay behind the last commit, and later ones go over them."""
    with _small_cache():
        trace = _record(rolled_back, base)
    _look(trace, check_some)


def test_a_log_of_both_durabilities_loses_only_the_newest(base: Path) -> None:
    _look(_record(both_durabilities, base), check_only_newest_lost_in_some)


def test_a_power_cut_after_a_kill_is_no_damage(base: Path) -> None:
    """What the killed writer had not synced is synced before anything is written behind it."""
    trace = record(_killed_before_its_sync, prepare=partial(_copy, base))
    assert trace.syncs_of(DATABASE) == 0, "all of it must be in one log"
    assert explore(trace, check_opens, limit=600).power > 300


# ------------------------------------------------------------------ crashes during the recovery


def _crashed(base: Path, *, every: int) -> list[CrashState]:
    """Some of the states in which a turn was left open, torn ones first of all."""
    found = states(_record(abandoned_turn, base), limit=400)
    opened = [state for state in found if written(Opened("talk", 1)) in state.acked]
    return [state for state in opened if state.torn][::every] + opened[:: every * 4]


def _recovers(recording: Recording) -> None:
    with open_store(recording.directory / DATABASE, vfs=recording.vfs, hours=1) as store:
        session = store.session("talk")
        with promise(recording, Recovered("talk")):
            session.recover()
        with _turn(recording, session, 2) as turn:
            _add(recording, turn, 2, "user-2")


def _begin_again(state: CrashState, directory: Path, *, durability: Durability = "power") -> None:
    """Write the crashed store, and beside it what its first life had promised."""
    scratch = directory / "scratch"
    state.write_to(scratch)
    possible = candidates(state, durability)
    with open_store(scratch / DATABASE, hours=10, durability=durability) as store:
        store.session("talk").recover()
        missing = len(possible) - 1 - possible.index(view(store))
    shutil.rmtree(scratch)
    state.write_to(directory)
    seen = len(state.begun) - missing
    life = FirstLife(state.begun[:seen], state.begun[seen:])
    (directory / FIRST_LIFE).write_bytes(msgspec.json.encode(life))


def _explore_recoveries(crashed: list[CrashState], check: Check, *, limit: int | None) -> int:
    visited = 0
    for state in crashed:
        trace = record(_recovers, prepare=partial(_begin_again, state))
        visited += explore(trace, check, limit=limit).states
    return visited


def test_a_crash_during_recovery_loses_nothing(base: Path) -> None:
    """A store that crashed, and crashes again while it is recovered, is recovered all the same."""
    crashed = _crashed(base, every=60)
    assert len(crashed) >= 3
    assert _explore_recoveries(crashed, check_some, limit=25) > 40 * len(crashed)


@pytest.mark.long
def test_a_crash_during_recovery_loses_nothing_in_many_more_states(base: Path) -> None:
    """The same from many more first crashes."""
    crashed = _crashed(base, every=4)
    assert _explore_recoveries(crashed, check_nothing_lost, limit=300) > 5_000


def _writes_again(recording: Recording, *, pages: int, durability: Durability) -> None:
    path = recording.directory / DATABASE
    with checkpoints_every(pages):
        with open_store(path, vfs=recording.vfs, hours=1, durability=durability) as store:
            for batch in (("user-8",), ("user-9", "user-10"), ("user-11",)):
                _say(recording, store.session("talk"), *batch)


@pytest.mark.parametrize("pages", [1000, FEW_PAGES])
@pytest.mark.parametrize("durability", ["power", "process"])
def test_a_repeated_cut_is_no_damage(base: Path, durability: Durability, pages: int) -> None:
    """What the first cut left in the log, the second finds behind what was written since."""
    first = list(states(_record(appends, base, pages=pages, durability=durability), limit=400))
    torn = [state for state in first if state.torn]
    crashed = [torn[len(torn) // 3], torn[-1], first[len(first) // 2]]
    for state in crashed:
        trace = record(
            partial(_writes_again, pages=pages, durability=durability),
            prepare=partial(_begin_again, state, durability=durability),
        )
        explored = explore(trace, partial(judge, durability=durability), limit=10)
        assert explored.power
        assert explored.kill


# ------------------------------------------------------- crashes during migration and creation


def _migrates(recording: Recording) -> None:
    """Migrate, then write; the backup, which does not go through the VFS, is left out here."""
    path = recording.directory / DATABASE
    with checkpoints_every(FEW_PAGES):
        with promise(recording, Migrated("talk")):
            _migrate(path, recording.vfs)
        with open_store(path, vfs=recording.vfs, steps=steps_to_next()) as store:
            _say(recording, store.session("talk"), "user-1")


def _migrate(path: Path, vfs: str) -> None:
    lock = ProcessLock(path)
    connection = connect(path, readonly=False, durability="power", busy=1.0, vfs=vfs)
    try:
        migrations.migrate(
            connection, path, steps_to_next(), lock, deadline=10.0, backup=lambda _: None
        )
    finally:
        connection.close()
        lock.close()


def _shape(directory: Path) -> tuple[int, bool, bool]:
    """Return a copy's format number, and whether table and column of the next one exist."""
    with_column = "SELECT count(*) FROM pragma_table_info('turns') WHERE name = 'flavour'"
    copy = directory / "looked-at"
    copy.mkdir()
    for file in directory.glob(f"{DATABASE}*"):
        shutil.copy(file, copy)
    connection = apsw.Connection(str(copy / DATABASE))
    try:
        version: int = connection.execute("PRAGMA user_version").get
        column = connection.execute(with_column).get == 1
        return version, connection.table_exists(None, "flavours"), column
    finally:
        connection.close()


def check_migrated_or_not(directory: Path, state: CrashState) -> None:
    """The file is of the old format or of the new one, and opening it finishes the work."""
    old, new = (NEXT_VERSION - 1, False, False), (NEXT_VERSION, True, True)
    acknowledged = written(Migrated("talk")) in state.acked
    assert _shape(directory) in ({new} if acknowledged else {old, new})
    with open_store(directory / DATABASE, steps=steps_to_next(), hours=10) as store:
        assert store.verify() == []
        assert view(store) in candidates(state)
        store.session("talk").append(message("user-z"))
        assert store.verify() == []
    assert _shape_after(directory) == new


def check_some_migrated_or_not(directory: Path, state: CrashState) -> None:
    """The same for some of the states."""
    if is_one_in(2, state):
        check_migrated_or_not(directory, state)


def _shape_after(directory: Path) -> tuple[int, bool, bool]:
    shutil.rmtree(directory / "looked-at")
    return _shape(directory)


def test_a_crash_during_migration_leaves_old_or_new(base: Path) -> None:
    """A migration that is cut off happened or did not, and the next open finishes it."""
    _look(record(_migrates, prepare=partial(_copy, base)), check_some_migrated_or_not)


@pytest.mark.long
def test_a_crash_during_migration_leaves_old_or_new_in_many_more_states(base: Path) -> None:
    """The same in thousands of states."""
    trace = record(_migrates, prepare=partial(_copy, base))
    assert explore(trace, check_migrated_or_not, limit=THOUSANDS).power > 10 * len(trace.events)


def _builds(recording: Recording) -> None:
    """Build a store under its first name, as `create` does before it renames it."""
    migrations.build_store(recording.directory / DATABASE, vfs=recording.vfs)
    recording.ack("built")


def test_a_new_store_is_whole_on_the_disk_before_it_gets_its_name(tmp_path: Path) -> None:
    """A power cut after the rename leaves a whole store: all of it was synced before."""
    built = [state for state in states(record(_builds), limit=300) if state.acked]
    assert len({state.files.get(f"{DATABASE}-wal") for state in built}) > 1, "nothing in doubt"
    for number, state in enumerate(built):
        path = tmp_path / str(number) / DATABASE
        path.parent.mkdir()
        path.write_bytes(state.files[DATABASE])  # The log keeps its first name, and is not read.
        with holdfast.open(path) as store:
            assert store.verify() == []
            assert store.sessions().items == ()
            store.session("talk").append(message("user-1"))
