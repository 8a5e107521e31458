"""New files: what a process leaves that fails or is killed, and what others find meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.storage.sqlite import new_file as module
from holdfast.storage.sqlite.new_file import new_file, remove_unfinished_copies


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


# ------------------------------------------------------------------------- unfinished copies


def _copy_killed(store: Path, target: Path) -> None:
    """Leave what a process leaves that is killed while it copies a store."""
    pid = os.fork()
    if pid == 0:
        with new_file(target, "nothing was made.", copy_of=store) as temporary:
            for suffix in ("", "-wal", "-rows"):
                temporary.with_name(temporary.name + suffix).write_text("half")
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "agent.db"
    path.write_text("a store")
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("beside", [True, False])
def test_an_unfinished_copy_is_found_wherever_it_is(
    store: Path, elsewhere: Path, beside: bool
) -> None:
    folder = store.parent if beside else elsewhere
    _copy_killed(store, folder / "backup.db")
    assert len([name for name in _names(folder) if name.startswith(".backup.db.")]) == 4
    assert list(remove_unfinished_copies(store)) == []
    assert (_names(elsewhere), _names(store.parent)) == ([], ["agent.db"])


def test_a_finished_copy_and_a_failed_one_leave_no_link(store: Path, elsewhere: Path) -> None:
    with new_file(elsewhere / "backup.db", "nothing was made.", copy_of=store) as temporary:
        temporary.write_text("whole")
        assert len(_names(store.parent)) == 2
    with (
        pytest.raises(ZeroDivisionError),
        new_file(elsewhere / "other.db", "nothing was made.", copy_of=store),
    ):
        raise ZeroDivisionError
    assert (_names(elsewhere), _names(store.parent)) == (["backup.db"], ["agent.db"])


def test_the_next_copy_removes_what_the_last_one_left(store: Path, elsewhere: Path) -> None:
    _copy_killed(store, elsewhere / "one.db")
    with new_file(elsewhere / "two.db", "nothing was made.", copy_of=store) as temporary:
        temporary.write_text("whole")
    assert (_names(elsewhere), _names(store.parent)) == (["two.db"], ["agent.db"])


def test_a_copy_that_is_being_written_stays_and_is_reported(store: Path, elsewhere: Path) -> None:
    with new_file(elsewhere / "backup.db", "nothing was made.", copy_of=store) as temporary:
        temporary.write_text("whole")
        (why,) = remove_unfinished_copies(store)
        assert why.startswith(f"{temporary} is a copy of the store that is being written")
    assert _names(elsewhere) == ["backup.db"]


def test_a_copy_that_cannot_be_reached_is_reported_and_not_forgotten(
    store: Path, elsewhere: Path
) -> None:
    _copy_killed(store, elsewhere / "backup.db")
    away = elsewhere.rename(elsewhere.with_name("unplugged"))
    (why,) = remove_unfinished_copies(store)
    assert "cannot be reached now" in why
    away.rename(elsewhere)
    assert list(remove_unfinished_copies(store)) == []
    assert (_names(elsewhere), _names(store.parent)) == ([], ["agent.db"])


@pytest.mark.parametrize("name", ["letters", "agent.db", ".hidden", ".a.abc.new", "x.new"])
def test_a_planted_link_removes_nothing(store: Path, elsewhere: Path, name: str) -> None:
    precious = elsewhere / name
    precious.write_text("precious")
    link = store.with_name(f".agent.db.{'a' * 16}.unfinished")
    link.symlink_to(precious)
    assert list(remove_unfinished_copies(store)) == []
    assert precious.read_text() == "precious"


def test_without_a_place_for_the_link_the_copy_is_made(
    store: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a store on a read-only disk."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with new_file(elsewhere / "backup.db", "nothing was made.", copy_of=store) as temporary:
        temporary.write_text("whole")
    assert (_names(elsewhere), _names(store.parent)) == (["backup.db"], ["agent.db"])
