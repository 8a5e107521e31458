"""New files: what a process leaves that fails or is killed, and what others find meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.storage.sqlite import new_file as module
from holdfast.storage.sqlite.new_file import new_file


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def _write(target: Path, text: str = "whole") -> None:
    with new_file(target, "nothing was made.") as temporary:
        temporary.write_text(text)


def _killed_while_writing(target: Path) -> None:
    """Leave what a process leaves that is killed: nothing of it is cleaned up."""
    pid = os.fork()
    if pid == 0:
        with new_file(target, "nothing was made.") as temporary:
            for suffix in ("", "-wal", "-shm", "-journal"):
                temporary.with_name(temporary.name + suffix).write_text("half")
            os._exit(0)
    os.waitpid(pid, 0)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    _killed_while_writing(target)
    assert len(_names(tmp_path)) == 5
    assert not target.exists()
    (tmp_path / ".other.db.abc.new").write_text("another's")
    _write(target)
    assert _names(tmp_path) == [".other.db.abc.new", "new.db"]


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    with new_file(target, "nothing was made.") as slow:
        slow.write_text("slow")
        with new_file(tmp_path / "new.db", "nothing was made.") as quick:
            quick.write_text("quick")
            assert slow.read_text() == "slow"
        target.rename(tmp_path / "first.db")
    assert (target.read_text(), (tmp_path / "first.db").read_text()) == ("slow", "quick")
    assert _names(tmp_path) == ["first.db", "new.db"]


def test_the_second_of_two_writers_replaces_nothing(tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    with (
        pytest.raises(Invalid, match="exists already"),
        new_file(target, "nothing was made.") as slow,
    ):
        slow.write_text("slow")
        _write(target, "quick")
    assert target.read_text() == "quick"
    assert _names(tmp_path) == ["new.db"]


def test_a_file_taken_for_abandoned_before_it_is_locked_gets_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = module._acquire, list[int]()  # noqa: SLF001

    def acquire(lock: int) -> bool:
        if not taken:
            taken.append(lock)
            for name in _names(tmp_path):
                (tmp_path / name).unlink()
        return real(lock)

    monkeypatch.setattr(module, "_acquire", acquire)
    with new_file(tmp_path / "new.db", "nothing was made.") as temporary:
        temporary.write_text("whole")
        assert _names(tmp_path) == [temporary.name, f"{temporary.name}-lock"]
    assert _names(tmp_path) == ["new.db"]
