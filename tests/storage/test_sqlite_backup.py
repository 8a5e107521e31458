"""Backups: made while the store is in use, verified, and never in the way of anything."""

from __future__ import annotations

import os
import resource
import signal
import stat
import threading
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import File, Message
from holdfast.errors import Damaged, HoldfastError, Invalid, StoreFull, StoreUnavailable
from holdfast.storage.sqlite import migrations, new_file
from holdfast.storage.sqlite.backup import backup
from holdfast.storage.sqlite.connection import APPLICATION_ID, connect
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.values import BackupReport
from tests.sync_log import SyncLog, without_links


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a few conversations, in a folder of its own."""
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "a.db"
    with holdfast.open(path) as store:
        for n in range(5):
            session = store.session(f"session {n}")
            session.append(*(Message.user(f"message {m}") for m in range(20)))
        session.append(Message.user(["see", File(name="f", data=b"data" * 1000)]))
    return path


def _read(path: Path) -> apsw.Connection:
    return connect(path, readonly=True, durability="power", busy=1.0)


def _rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = _read(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def _everything(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows but the one that binds a store to its log: a copy has its own."""
    tables = _rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return {
        str(name): [
            row
            for row in _rows(path, f"SELECT * FROM {name} ORDER BY 1, 2")  # noqa: S608
            if row[0] != "log"
        ]
        for (name,) in tables
    }


def _backup(path: Path, target: Path) -> BackupReport:
    connection = _read(path)
    try:
        return backup(connection, path, target)
    finally:
        connection.close()


def test_a_backup_holds_everything_and_is_a_store(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    report = _backup(path, target)
    assert (report.path, report.sessions, report.messages) == (str(target), 5, 101)
    assert report.size == target.stat().st_size
    assert _everything(target) == _everything(path)
    assert verify_file(target) == []
    for name, value in (
        ("application_id", APPLICATION_ID),
        ("user_version", max(migrations.load())),
    ):
        assert _rows(target, f"PRAGMA {name}") == [(value,)]
    assert _rows(target, "PRAGMA journal_mode") == [("wal",)]
    with holdfast.open(target) as store:
        assert len(store.session("session 3").messages()) == 20
        store.session("session 3").append(Message.user("goes on"))


def test_numbers_of_removed_rows_are_not_given_again(path: Path, tmp_path: Path) -> None:
    connection = connect(path, readonly=False, durability="power", busy=1.0)
    for statement in (
        "heads WHERE session = 5",
        "recent WHERE session = 5",
        "branches WHERE session = 5",
        "sessions WHERE n = 5",
    ):
        connection.execute(f"DELETE FROM {statement}")  # noqa: S608
    connection.execute("DELETE FROM messages WHERE place >> 32 = 5; DELETE FROM blob_uses")
    connection.close()
    _backup(path, tmp_path / "copy.db")
    query = "SELECT seq FROM sqlite_sequence WHERE name IN ('sessions', 'branches')"
    assert _rows(tmp_path / "copy.db", query) == [(5,), (5,)]
    assert _rows(tmp_path / "copy.db", "SELECT max(n) FROM sessions") == [(4,)]


def test_a_backup_is_private_and_whole_in_one_file(path: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _backup(path, tmp_path / "copy.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.db", "store"]


@pytest.mark.parametrize("links", [False, True])
def test_a_backup_is_on_the_disk_before_it_has_its_name(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """A power cut leaves the whole backup or none; and when it is done, the whole one."""
    if not links:
        without_links(monkeypatch)
    log = SyncLog(monkeypatch)
    _backup(path, tmp_path / "copy.db")
    assert log.of(tmp_path / "copy.db") == ["sync", "name", "sync folder"]


def test_an_existing_file_is_never_replaced(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_bytes(b"mine")
    with pytest.raises(Invalid, match="exists already"):
        _backup(path, target)
    assert target.read_bytes() == b"mine"
    (tmp_path / "link.db").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Invalid, match="exists already"):
        _backup(path, tmp_path / "link.db")


def test_a_file_that_comes_meanwhile_is_not_replaced(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy.db"
    monkeypatch.setattr(
        new_file, "_check_target", lambda there, *_, **__: there.write_bytes(b"mine")
    )
    with pytest.raises(Invalid, match="exists already"):
        _backup(path, target)
    assert target.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.db", "store"]


def test_a_folder_that_is_not_there_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="not a directory"):
        _backup(path, tmp_path / "nowhere" / "copy.db")


def test_a_full_disk_leaves_nothing_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(draft: Path) -> int:
        raise OSError(28, os.strerror(28), str(draft))

    monkeypatch.setattr(new_file, "_sync", full)
    with pytest.raises(StoreFull, match="no backup was made"):
        _backup(path, tmp_path / "copy.db")
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_a_copy_that_cannot_grow_leaves_nothing_behind(path: Path, tmp_path: Path) -> None:
    """The file size limit of the process stands for a disk that fills up while copying."""
    pid = os.fork()
    if pid == 0:
        os._exit(_copy_with_small_files(path, tmp_path / "copy.db"))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def _copy_with_small_files(path: Path, target: Path) -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    connection = _read(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    try:
        backup(connection, path, target)
    except (StoreFull, StoreUnavailable):
        return 0
    except HoldfastError:
        return 1
    return 2


def test_a_damaged_store_is_not_taken_for_a_backup(path: Path, tmp_path: Path) -> None:
    connection = connect(path, readonly=False, durability="power", busy=1.0)
    connection.execute("UPDATE messages SET crc = crc + 1 WHERE place = (2 << 32) + 7")
    connection.close()
    with pytest.raises(Damaged, match=r"found 1 problem.*does not match its checksum"):
        _backup(path, tmp_path / "copy.db")
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_a_backup_while_others_write_is_of_one_moment(path: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with holdfast.open(path) as store:
            session = store.session("busy")
            while not stop.is_set():
                session.append(Message.user("one"), Message.assistant("two"))
                written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for n in range(5):
            before = written
            report = _backup(path, tmp_path / f"copy{n}.db")
            # All or nothing of each batch, and at least what was there before.
            assert (report.messages - 101) % 2 == 0
            assert report.messages >= 101 + 2 * before
    finally:
        stop.set()
        thread.join()
    assert written > 5
