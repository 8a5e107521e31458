"""Restoring a backup: what it holds takes the store's place, and what was there is kept."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Message
from holdfast.errors import Damaged, Invalid, SchemaTooNew, StoreMoved, StoreUnavailable
from holdfast.storage.sqlite import connection as connection_module
from holdfast.storage.sqlite import location, restore
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.restore import restore_backup
from holdfast.values import RestoreReport


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def backup(path: Path, tmp_path: Path) -> Path:
    """A backup of a store that was written to afterwards, by a process that crashed."""
    to, crashed = tmp_path / "backup.db", tmp_path / "crashed"
    with holdfast.open(path) as store:
        store.session("talk").append(Message.user("a"))
        store.backup(to)
    with holdfast.open(path) as store:
        store.session("talk").append(Message.user("b"))
        assert len(store.search("b").items) == 1
        crashed.mkdir()
        for file in tmp_path.glob("agent.db*"):
            shutil.copy(file, crashed)
    for file in crashed.iterdir():
        file.rename(tmp_path / file.name)
    crashed.rmdir()
    assert location.wal_size(path)
    return to


def _texts(path: Path) -> list[str]:
    with holdfast.open(path) as store:
        assert store.verify() == []
        return [m.text for m in store.session("talk").messages()]


def _files(path: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in path.parent.iterdir()
        if not file.name.endswith(("-lock", "-queue", "-shm"))
    }


def test_a_crashed_store_is_replaced_and_kept(path: Path, backup: Path) -> None:
    """Its log, which held the newest message, is not read into the restored store."""
    report = restore_backup(backup, path)
    assert (report.sessions, report.messages) == (1, 1)
    assert _texts(path) == ["a"]
    assert _texts(backup) == ["a"]
    assert report.replaced is not None
    assert _texts(Path(report.replaced)) == ["a", "b"]
    assert not list(path.parent.glob(".*"))


def test_search_finds_what_was_restored(path: Path, backup: Path) -> None:
    """The index of the replaced store goes with it."""
    restore_backup(backup, path)
    with holdfast.open(path) as store:
        assert [hit.snippet for hit in store.search("a").items] == ["a"]
        assert store.search("b").items == ()


def test_a_store_that_is_missing_is_made(path: Path, backup: Path) -> None:
    report = restore_backup(backup, path.parent / "new" / "agent.db")
    assert report.replaced is None
    assert _texts(Path(report.path)) == ["a"]


@pytest.mark.parametrize("harm", [lambda _: b"", lambda data: b"x" * 100 + data[100:]])
def test_a_damaged_store_is_replaced(
    path: Path, backup: Path, harm: Callable[[bytes], bytes]
) -> None:
    harmed = harm(path.read_bytes())
    path.write_bytes(harmed)
    report = restore_backup(backup, path)
    assert _texts(path) == ["a"]
    assert report.replaced is not None
    assert Path(report.replaced).read_bytes() == harmed


def _cut(backup: Path) -> None:
    backup.write_bytes(backup.read_bytes()[:-5000])


def _garble(backup: Path) -> None:
    data = bytearray(backup.read_bytes())
    at = data.rindex(b'"a"') + 1
    data[at] ^= 1
    backup.write_bytes(data)


def _newer(backup: Path) -> None:
    data = bytearray(backup.read_bytes())
    data[60:64] = (999).to_bytes(4, "big")
    backup.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (lambda backup: backup.write_text("no store at all" * 100), Damaged),
        (lambda backup: backup.write_text(""), Damaged),
        (Path.unlink, Invalid),
        (_cut, Damaged),
        (_garble, Damaged),
        (_newer, SchemaTooNew),
    ],
)
def test_a_bad_backup_changes_nothing(
    path: Path, backup: Path, harm: Callable[[Path], Any], error: type[Exception]
) -> None:
    harm(backup)
    before = _files(path)
    with pytest.raises(error):
        restore_backup(backup, path)
    assert _files(path) == before
    assert _texts(path) == ["a", "b"]


def test_the_store_itself_is_no_backup_of_itself(path: Path, backup: Path) -> None:
    with pytest.raises(Invalid, match="the store itself"):
        restore_backup(path, path)


def test_a_store_in_use_is_not_replaced(path: Path, backup: Path) -> None:
    with holdfast.open(path) as store:
        with pytest.raises(StoreUnavailable, match="is open in another process"):
            restore_backup(backup, path)
        assert len(store.session("talk").messages()) == 2


# ------------------------------------------------------------------------- opened at the same time


@pytest.fixture
def restored(path: Path, backup: Path) -> Path:
    """A backup of a store that was restored from it, written to again, and crashed again.

    Its pages have the numbers that they have in the backup, so its log fits the backup's pages.
    """
    restore_backup(backup, path)
    with holdfast.open(path) as store:
        store.session("talk").append(Message.user("c"))
        files = {file: file.read_bytes() for file in (path, location.companion(path, "-wal"))}
    for file, data in files.items():
        file.write_bytes(data)
    return backup


@pytest.mark.parametrize("step", ["_set_aside", "_detach"])
def test_no_process_reads_the_old_log_into_the_restored_store(
    path: Path, restored: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It has found file and log to be of one store, and opens them before or after the swap."""
    call = getattr(restore, step)

    def open_before(*arguments: object) -> object:
        with pytest.raises(apsw.BusyError):
            connect(path, readonly=True, durability="power", busy=0)
        return call(*arguments)

    monkeypatch.setattr(restore, step, open_before)
    restore_backup(restored, path)
    assert _texts(path) == ["a"]


def test_a_file_that_was_replaced_while_it_was_opened_is_not_used(
    path: Path, restored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite opens the file first, and later the log that has the file's name by then."""
    configure = connection_module._configure  # noqa: SLF001 - between opening and reading

    def restore_before(*arguments: Any) -> None:  # noqa: ANN401 - passed on
        monkeypatch.setattr(connection_module, "_configure", configure)
        reports.append(restore_backup(restored, path))
        with holdfast.open(path) as store:
            store.session("talk").append(Message.user("d"))
            configure(*arguments)

    reports: list[RestoreReport] = []
    # The check of the log reads the file without its log.
    monkeypatch.setattr("holdfast.storage.sqlite.backend.refuse_foreign_log", lambda *_: None)
    monkeypatch.setattr(connection_module, "_configure", restore_before)
    with pytest.raises(StoreMoved, match="replaced while it was opened"):
        holdfast.open(path)
    monkeypatch.undo()
    assert _texts(path) == ["a", "d"]
    assert reports[0].replaced is not None
    assert _texts(Path(reports[0].replaced)) == ["a", "c"]


# ---------------------------------------------------------------------------------------- killed


_DIE = """
import importlib, os, sys
from pathlib import Path
from holdfast.storage.sqlite.restore import restore_backup
backup, path, owner, name, number = sys.argv[1:]
owner = Path if owner == "Path" else importlib.import_module(owner)
call, left = getattr(owner, name), [int(number)]
def dying(*arguments, **options):
    left[0] -= 1
    if not left[0]:
        os._exit(9)
    return call(*arguments, **options)
setattr(owner, name, dying)
restore_backup(Path(backup), Path(path))
"""
_STEPS = [
    ("os", "link", 1),
    ("os", "link", 2),
    ("holdfast.storage.sqlite.new_file", "_sync", 1),
    ("holdfast.storage.sqlite.new_file", "_publish", 1),
    ("holdfast.storage.sqlite.new_file", "_remove", 1),
    ("holdfast.storage.sqlite.restore", "_detach", 1),
    ("Path", "rename", 1),
]


@pytest.mark.parametrize("step", _STEPS)
def test_killed_before_any_step_it_is_finished_by_the_next(
    path: Path, backup: Path, step: tuple[str, str, int]
) -> None:
    """Whatever was set aside keeps its log, and no half of a restore is left."""
    arguments = [str(backup), str(path), *map(str, step)]
    killed = subprocess.run([sys.executable, "-c", _DIE, *arguments], check=False)
    assert killed.returncode == 9
    restore_backup(backup, path)
    assert _texts(path) == ["a"]
    names = re.compile(r"agent\.db\.replaced-\d+T\d+")
    kept = [file for file in path.parent.iterdir() if names.fullmatch(file.name)]
    assert ["a", "b"] in [_texts(file) for file in kept]
    assert len({file.stat().st_ino for file in (path, *kept)}) == 1 + len(kept)
    assert not list(path.parent.glob(".*"))
