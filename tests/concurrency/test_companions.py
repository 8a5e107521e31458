"""Companions deleted beside running processes: no seq given twice, nothing acknowledged lost."""

import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast import Head, Message, Store, codec
from holdfast.errors import OutcomeUnknown, StoreMoved
from holdfast.operations import append as append_operation
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.sqlite import open_files
from tests.concurrency.children import Child, Pipe
from tests.concurrency.conftest import StartChild

COMPANIONS = pytest.mark.parametrize("deleted", [("-wal",), ("-shm",), ("-wal", "-shm")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def _url(path: Path) -> str:
    return f"sqlite:///{path}?deadline=0.2"


def _delete(path: Path, suffixes: Sequence[str]) -> None:
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink()


def _answer(pipe: Pipe, path: Path) -> None:
    """Open the store, and append and read as told; say each receipt, or the error's name."""
    try:
        store = holdfast.open(_url(path))
    except StoreMoved:
        pipe.say("StoreMoved")
        return
    with store:
        session = store.session("talk")
        pipe.say("open")
        while (told := pipe.hear()) != "close":
            try:
                pipe.say(
                    [m.text for m in session.messages()]
                    if told == "read"
                    else session.append(Message.user(told, id=told)).seq
                )
            except (StoreMoved, OutcomeUnknown) as error:
                pipe.say(type(error).__name__)
    pipe.say("closed")


def _ask(child: Child, what: str) -> object:
    child.say(what)
    return child.hear()


def _open(child: StartChild, path: Path) -> Child:
    opened = child(_answer, path)
    assert opened.hear() == "open"
    return opened


def _stored(path: Path) -> list[str]:
    with holdfast.open(_url(path)) as store:
        assert store.verify() == []
        return [m.text for m in store.session("talk").messages()]


@COMPANIONS
def test_two_processes_never_acknowledge_one_seq(
    child: StartChild, path: Path, deleted: Sequence[str]
) -> None:
    """A process that comes later cannot see what only the deleted log holds: it is refused."""
    first = _open(child, path)
    assert _ask(first, "a") == 1
    _delete(path, deleted)
    assert child(_answer, path).hear() == "StoreMoved"
    assert _ask(first, "close") == "closed"
    second = _open(child, path)
    assert _ask(second, "b") == 2
    assert _ask(second, "close") == "closed"
    assert _stored(path) == ["a", "b"]


@COMPANIONS
def test_what_two_processes_stored_before_is_kept(
    child: StartChild, path: Path, deleted: Sequence[str]
) -> None:
    first, second = _open(child, path), _open(child, path)
    assert [_ask(first, "a"), _ask(second, "b"), _ask(first, "c")] == [1, 2, 3]
    _delete(path, deleted)
    for each in (second, first):
        assert _ask(each, "d") == "StoreMoved"
        assert _ask(each, "read") == "StoreMoved"
    for each in (first, second):
        assert _ask(each, "close") == "closed"
    assert _stored(path) == ["a", "b", "c"]


@COMPANIONS
def test_what_a_refused_process_stored_survives_its_kill(
    child: StartChild, path: Path, deleted: Sequence[str]
) -> None:
    """Refusing a write, it has put into the file what only the deleted log held."""
    killed = _open(child, path)
    assert _ask(killed, "a") == 1
    _delete(path, deleted)
    assert _ask(killed, "b") == "StoreMoved"
    killed.kill()
    assert _stored(path) == ["a"]


@COMPANIONS
def test_a_process_that_has_not_written_yet_writes_nothing(
    child: StartChild, path: Path, deleted: Sequence[str]
) -> None:
    """Its writing connection is opened later than its reading one, which has the old files."""
    first, second = _open(child, path), _open(child, path)
    assert _ask(first, "a") == 1
    assert _ask(first, "close") == "closed"
    assert _ask(second, "read") == ["a"]
    _delete(path, deleted)
    assert _ask(second, "b") == "StoreMoved"
    assert _ask(second, "close") == "closed"
    assert _stored(path) == ["a"]


@COMPANIONS
def test_deleted_while_a_transaction_is_open(path: Path, deleted: Sequence[str]) -> None:
    """It is not acknowledged; repeated with the same id, it is stored once."""
    with holdfast.open(_url(path)) as store:
        store.session("talk").append(Message.user("a", id="a"))
        append = _append(store, "b")

        def append_and_delete(tx: Transaction) -> Head:
            head = append(tx)
            _delete(path, deleted)
            return head

        with pytest.raises(OutcomeUnknown, match="retry with the same ids"):
            store.backend.write(append_and_delete)
        with pytest.raises(StoreMoved):
            store.backend.write(append)
    with holdfast.open(_url(path)) as store:
        assert store.backend.write(append).seq == 2
    assert _stored(path) == ["a", "b"]


def test_moved_while_a_transaction_is_open(path: Path) -> None:
    """What is committed to a file that is no longer at its path is not acknowledged."""
    with holdfast.open(_url(path)) as store:
        store.session("talk").append(Message.user("a", id="a"))
        append = _append(store, "b")
        with pytest.raises(StoreMoved):
            store.backend.write(lambda tx: (append(tx), path.rename(f"{path}.moved")))


def _append(store: Store, id: str) -> Operation[Head]:
    row = store.backend.read(lambda snapshot: snapshot.find_session(key="talk"))
    assert row is not None
    batch, _ = codec.encode_batch([Message.user(id, id=id)], datetime.now(UTC))
    return append_operation.append(row.n, batch, expect=None)


@COMPANIONS
def test_a_log_that_replaced_it_is_left_alone(path: Path, deleted: Sequence[str]) -> None:
    """The last connection to close removes the log by name: not one that is not its own."""
    wal = path.with_name(f"{path.name}-wal")
    with holdfast.open(_url(path)) as store:
        store.session("talk").append(Message.user("a"))
        _delete(path, deleted)
        wal.write_bytes(b"of another process")
    assert wal.read_bytes() == b"of another process"


def test_closing_all_and_opening_again_is_no_alarm(child: StartChild, path: Path) -> None:
    """SQLite itself deletes the companions, when the last connection of all is closed."""
    for each in [child(_open_and_close, path, 25) for _ in range(3)]:
        assert each.hear() == "done"


def _open_and_close(pipe: Pipe, path: Path, times: int) -> None:
    for number in range(times):
        with holdfast.open(path) as store:
            store.session("talk").append(Message.user(f"{number}"))
    pipe.say("done")


@pytest.fixture
def any_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a directory count as old as soon as the clock of its file system has moved on."""
    monkeypatch.setattr(open_files, "_MAX_TIMESTAMP_STEP_NS", 0)


def _wait_for_the_clock(directory: Path) -> None:
    """Wait until a change of a directory would have another time than its last one."""
    probe = directory.parent / "probe"
    while True:
        probe.touch()
        if probe.stat().st_ctime_ns > directory.stat().st_ctime_ns:
            return


@pytest.mark.usefixtures("any_age")
@pytest.mark.parametrize("kept", ["", "-wal", "-shm"])
def test_a_file_replaced_in_an_unchanged_directory_is_noticed(path: Path, kept: str) -> None:
    """Files are not compared while their directory is unchanged; restored times do not hide it."""
    with holdfast.open(path) as store:
        session = store.session("talk")
        session.append(Message.user("first"))
        _wait_for_the_clock(path.parent)
        for text in ("second", "third"):
            session.append(Message.user(text))
            assert [m.text for m in session.messages()][-1] == text
        before = path.parent.stat().st_mtime_ns
        moved = path.with_name(path.name + kept)
        moved.rename(path.parent / "elsewhere")
        shutil.copy(path.parent / "elsewhere", moved)
        os.utime(path.parent, ns=(before, before))
        with pytest.raises((StoreMoved, OutcomeUnknown)):
            session.append(Message.user("fourth"))


def test_files_in_a_directory_of_just_now_are_compared(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may count in seconds: what happens within them is not seen by the time."""
    later = path.parent.stat().st_ctime_ns + 3_600_000_000_000
    monkeypatch.setattr(open_files.OpenFiles, "_stat_directory", lambda _: (1, 1, later))
    with holdfast.open(path) as store:
        session = store.session("talk")
        for _ in range(3):
            session.append(Message.user("a"))
        _delete(path, ("-wal",))
        with pytest.raises(StoreMoved):
            session.append(Message.user("b"))


@pytest.mark.usefixtures("any_age")
def test_files_of_a_directory_that_was_replaced_are_compared(path: Path) -> None:
    store_path = path.parent / "store" / "agent.db"
    with holdfast.open(store_path) as store:
        session = store.session("talk")
        session.append(Message.user("a"))
        _wait_for_the_clock(store_path.parent)
        session.append(Message.user("a"))
        store_path.parent.rename(path.parent / "elsewhere")
        shutil.copytree(path.parent / "elsewhere", store_path.parent)
        with pytest.raises(StoreMoved):
            session.append(Message.user("b"))
