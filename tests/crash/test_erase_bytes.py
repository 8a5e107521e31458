"""Erasing one message wipes its bytes, whatever interrupts it, or the proof reports otherwise.

An erasure commits a tombstone first; then the bytes that the engine no longer uses are wiped. If it
is killed in between, the message is erased, and its bytes are wiped when the store is next opened,
or by the next erasure of anything.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest

import holdfast
from holdfast import File, Message, Store
from holdfast.errors import StorageError
from holdfast.operations import erase as erase_operation
from holdfast.session import number_of
from holdfast.storage.protocol import Operation
from holdfast.testing.faults import CrashState, FailingDisk, Recording, Trace, explore, failing_disk
from holdfast.testing.faults.failing_disk import FileOperation
from holdfast.values import EraseReport
from tests.crash._bytes import (
    CANARY,
    OPERATIONS,
    SOME,
    at_every_place,
    die,
    holding,
    is_one_in,
    long_or_short,
    reading,
    recorded,
)
from tests.crash._facts import DATABASE, open_store
from tests.crash._nursery import Nursery

GONE = "CANARY7"
BEFORE_THE_WIPING = """
import os, signal, sys, holdfast
from holdfast.session import number_of
from holdfast.operations.erase import erase
store = holdfast.open(sys.argv[1])
session = store.session("talk-2", create=False)
for message in session.messages():
    if "CANARY" in message.id + message.text:
        store.backend.write(erase(number_of(session), message.id, None))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which pages were split and joined, with canaries in some messages of one talk.

    One of these is streamed, one has a file, one is large, and a fork has them as well, with a
    copy of each by a replace.
    """
    path = tmp_path_factory.mktemp("base") / DATABASE
    chance = random.Random(26)
    with open_store(path, durability="process") as store:
        sessions = [store.session(f"talk-{number}") for number in range(5)]
        for number in range(250):
            of = chance.randrange(len(sessions))
            word = f"{'CANARY' if of == 2 and number % 3 == 0 else 'plain'}{number} "
            sessions[of].append(Message.user(long_or_short(word, chance), id=word))
        talk = sessions[2]
        talk.append(Message.user("CANARY7 said this, and nobody else did", id=GONE))
        talk.append(Message.user([File("f", data=b"CANARY" * 2000)], id="CANARY file"))
        talk.append(Message.user("CANARY large " * 9000, id="CANARY large"))
        with talk.turn() as turn, turn.stream() as reply:
            reply.write("CANARY streamed ")
            reply.flush()
            reply.write("and CANARY more")
        fork = talk.fork()
        fork.replace([Message.system("plain"), *fork.messages()])
    return path


@pytest.fixture
def path(base: Path, tmp_path: Path) -> Path:
    """That store, to be changed."""
    return Path(shutil.copy(base, tmp_path / DATABASE))


IDS = [GONE, "CANARY file", "CANARY large", *(f"CANARY{n} " for n in range(0, 250, 3))]


def _holding(path: Path, what: bytes = CANARY) -> set[str]:
    """Return the files that contain a canary, apart from the ids, which stay."""
    return holding(path, what, IDS)


def _canaries(store: Store) -> list[Message]:
    messages = store.session("talk-2").messages()
    return [message for message in messages if "CANARY" in f"{message.id} {message.text}"]


def _must_be_erased(store: Store) -> None:
    """The canaries are tombstones, in the talk and in its fork, and all the rest is there."""
    fork = next(link.session_id for link in store.session("talk-2").children())
    for session in (store.session("talk-2"), store.get(fork)):
        assert "CANARY" not in "".join(message.text for message in session.messages())
        assert sum(message.status == "erased" for message in session.messages()) > 10
    for number in (0, 1, 3, 4):
        found = store.session(f"talk-{number}").messages()
        assert len(found) > 30
        assert all(message.text.startswith("plain") for message in found)
    assert store.verify() == []


def test_no_byte_of_what_was_erased_is_left(path: Path) -> None:
    """In no file, while the store is open and afterwards; every report confirms it."""
    # Ids of ours are not searched for: they stay. What is streamed has one of the store's own.
    assert _holding(path) == {DATABASE}
    with holdfast.open(path) as store:
        for message in _canaries(store):
            report = store.session("talk-2").erase(message.id)
            assert (report.places, report.pending) == (2, ())
            assert report.scan is not None
            assert report.scan.clean
        assert _holding(path) == set()
        _must_be_erased(store)
        assert store.stats().blobs == 0
    assert _holding(path) == set()


def test_an_erasure_that_was_killed_before_it_wiped_is_finished_at_the_next_opening(
    nursery: Nursery, path: Path
) -> None:
    """The bytes are in the files until the store is next opened."""
    die(nursery, BEFORE_THE_WIPING, path)
    assert _holding(path), "nothing was left to wipe"
    with holdfast.open(path) as store:
        assert _holding(path) == set()
        _must_be_erased(store)


# ------------------------------------------------------------------------ the proof can fail, too


def test_the_proof_finds_what_a_reader_holds(path: Path) -> None:
    """It is reported as pending and as found; after the reader's end the next erasure wipes it."""
    with holdfast.open(path) as store:
        session = store.session("talk-2")
        session.append(Message.user("plain, and in the log"))
        with reading(path):
            report = session.erase(GONE)
            assert len(report.pending) == 1
            assert report.scan is not None
            assert not report.scan.clean
            assert report.scan.found
        assert session.messages()[-1].text.startswith("plain")
        again = session.erase(GONE)
        assert (again.places, again.pending) == (0, ())
        assert _holding(path, b"said this, and nobody else did") == set()


@pytest.mark.parametrize("suffix", ["-search", "-search-wal", ".before-2", "-wal"])
def test_the_proof_searches_every_file_beside_the_store(path: Path, suffix: str) -> None:
    """A copy of the words in any of them is found, in whatever half of a chunk it lies."""
    with holdfast.open(path) as store:
        beside = path.with_name(path.name + suffix)
        text = b"CANARY7 said this, and nobody else did"
        if suffix == "-wal":
            store.session("talk-2").erase(GONE)  # Its log is empty now, and the engine's own.
            beside.write_bytes(b"\0" * ((1 << 20) - 10) + text)
            scan = store.backend.scan([text[:32]])
            beside.write_bytes(b"")
        else:
            beside.write_bytes(b"\0" * ((1 << 20) - 10) + text)
            with_it = store.backend.scan([text[:32]])
            assert with_it.found == ()  # Another message still contains it.
            store.backend.write(_erase_only(store))
            scan = store.backend.scan([text[:32]])
    assert beside.name in scan.found
    assert scan.bytes > 1 << 20


def _erase_only(store: Store) -> Operation[EraseReport]:
    return erase_operation.erase(number_of(store.session("talk-2")), GONE, None)


def test_the_proof_says_when_it_cannot_search(path: Path) -> None:
    """The report is then no proof."""
    with failing_disk() as disk, open_store(path, vfs=disk.name) as store:
        disk.fail("read", at=1, lasting=True)
        scan = store.backend.scan([b"x" * 32])
        disk.heal()
    assert scan.problem is not None
    assert not scan.clean


# ------------------------------------------------------------------- crashes and faults meanwhile


def _state(store: Store) -> tuple[str, bool]:
    """Return the texts of all other messages, and whether the message is stored."""
    found = {
        f"{info.key}": [m.text for m in store.get(info.id).messages() if m.id != GONE]
        for info in store.sessions(limit=100)
    }
    (message,) = [m for m in store.session("talk-2").messages() if m.id == GONE]
    assert (message.status == "erased") == (message.text == "")
    return f"{crc32(repr(sorted(found.items())).encode()):08x}", message.status != "erased"


def check_all_or_nothing(directory: Path, state: CrashState) -> None:
    """The message is there or erased, in both sessions alike; then it is erased, bytes and all."""
    (before,) = state.begun or ("",)
    if not before:
        return
    path = directory / DATABASE
    with open_store(path, hours=10) as store:
        assert store.verify() == []
        found, there = _state(store)
        assert found == before
        assert not (there and state.acked)
        for link in store.session("talk-2").children():
            [copy] = [m for m in store.get(link.session_id).messages() if m.id == GONE]
            assert (copy.status != "erased") == there
        assert store.session("talk-2").erase(GONE).pending == ()
        assert _holding(path, b"said this, and nobody else did") == set()
        assert store.verify() == []


def _record(base: Path, pages: int) -> Trace:
    def erase(store: Store, recording: Recording) -> None:
        before, _ = _state(store)
        recording.begin(before)
        assert store.session("talk-2").erase(GONE).pending == ()
        recording.ack(before)

    return recorded(base, pages, erase)


def check_one_in_four(directory: Path, state: CrashState) -> None:
    """The same for some of the states, chosen by their names."""
    if is_one_in(4, state):
        check_all_or_nothing(directory, state)


def test_a_crash_while_a_message_is_erased(base: Path) -> None:
    """It is erased everywhere or nowhere, and nothing else is changed."""
    trace = _record(base, 1000)
    explored = explore(trace, check_one_in_four, limit=len(trace.events))
    assert explored.torn > 10


@pytest.mark.long
@pytest.mark.parametrize("pages", [1000, 6])
def test_a_crash_while_a_message_is_erased_in_many_more_states(base: Path, pages: int) -> None:
    """The same in many more states."""
    explored = explore(_record(base, pages), check_all_or_nothing, limit=2_000)
    assert explored.torn > 100


def _erase_on_a_failing_disk(
    path: Path, disk: FailingDisk, operation: FileOperation, at: int
) -> bool:
    """Erase, with one fault: nothing else is changed, and a second attempt wipes all."""
    with open_store(path, vfs=disk.name) as store:
        before, _ = _state(store)
        session = store.session("talk-2")
        disk.fail(operation, at=at, lasting=at % 2 == 0)
        erased = False
        with suppress(StorageError):
            erased = session.erase(GONE).places == 2
        met = disk.met
        disk.heal()
        found, there = _state(store)
        assert found == before
        assert not (erased and there)
        report = session.erase(GONE)
        assert report.pending == ()
        assert report.scan is not None
        assert report.scan.clean
        assert _holding(path, b"said this, and nobody else did") == set()
        assert store.verify() == []
    return met


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_while_a_message_is_erased_hurts_nothing(
    base: Path, tmp_path: Path, operation: FileOperation
) -> None:
    """What could not be wiped is reported, and wiped by the next erasure."""
    at_every_place(base, tmp_path, operation, SOME[operation], _erase_on_a_failing_disk)
