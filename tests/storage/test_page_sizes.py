"""A store keeps the page size that it has: all that reads pages takes it from the file."""

import shutil
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message
from holdfast.errors import Damaged

SIZES = pytest.mark.parametrize("size", [512, 4096, 8192, 65536])
_NUMBER = 60
_MARK = "canary-in-the-store"


@pytest.fixture
def path(tmp_path: Path, size: int) -> Path:
    """A store of this page size with one session."""
    path = tmp_path / "a.db"
    holdfast.open(path).close()
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA journal_mode=DELETE; PRAGMA page_size={size}; VACUUM").fetchall()
    connection.close()
    with holdfast.open(path) as store:
        session = store.session("k")
        for n in range(_NUMBER):
            session.append(Message.user(f"{n} " + "word " * 300, id=f"m{n}"))
    assert _page_size(path) == size
    return path


def _page_size(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("PRAGMA page_size").get)
    finally:
        connection.close()


def _ids(path: Path) -> list[str]:
    with holdfast.open(path) as store:
        return [message.id for message in store.session("k").messages()]


def _every() -> list[str]:
    return [f"m{n}" for n in range(_NUMBER)]


@SIZES
def test_backups_and_their_restoring(path: Path, tmp_path: Path, size: int) -> None:
    """The copy is sound and has the same pages."""
    with holdfast.open(path) as store:
        store.backup(tmp_path / "backup.db")
    assert _page_size(tmp_path / "backup.db") == size
    assert _ids(tmp_path / "backup.db") == _every()


@SIZES
def test_a_log_left_by_a_killed_process(path: Path, tmp_path: Path, size: int) -> None:
    """It is read to its end; one that lost a frame of what was acknowledged is refused."""
    crashed = tmp_path / "crashed.db"
    with holdfast.open(path) as store:
        store.session("k").append(Message.user("in the log", id="last"))
        store.session("k").append(Message.user("behind it", id="behind"))
        store.session("k").append(Message.user("and behind", id="end"))
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{crashed}{suffix}")
    log = Path(f"{crashed}-wal").read_bytes()
    damaged = bytearray(log)
    damaged[32 + 24 + size // 2 - 1 : 32 + 24 + size] = b"\xa5" * (size - size // 2 + 1)
    Path(f"{crashed}-wal").write_bytes(damaged)
    with pytest.raises(Damaged, match="damaged at"):
        holdfast.open(crashed)
    Path(f"{crashed}-wal").write_bytes(log)
    assert _ids(crashed) == [*_every(), "last", "behind", "end"]


@SIZES
def test_an_erased_message_leaves_no_bytes(path: Path) -> None:
    """Neither in a page nor in the log."""
    with holdfast.open(path) as store:
        session = store.session("k")
        session.append(Message.user(f"{_MARK} " * 50, id="secret"))
        report = session.erase("secret")
        assert report.pending == ()
        assert store.verify() == []
    files = path.parent.glob(f"{path.name}*")
    assert not [file for file in files if _MARK.encode() in file.read_bytes()]


@SIZES
def test_a_destroyed_page_costs_what_is_on_it(path: Path, tmp_path: Path, size: int) -> None:
    """What is salvaged is sound and has everything else."""
    data = bytearray(path.read_bytes())
    at = data.index(b'"30 w') // size * size
    data[at : at + size] = bytes(b"\xff" * size)
    path.write_bytes(data)
    with holdfast.open(path, readonly=True) as store:
        assert store.verify()
        store.salvage(tmp_path / "salvaged.db")
    with holdfast.open(tmp_path / "salvaged.db") as store:
        assert store.verify() == []
        messages = store.session("k").messages()
    kept = [message.id for message in messages if message.status == "complete"]
    assert [name for name in _every() if name in kept] == kept
    lost = len(_every()) - len(kept)
    assert 1 <= lost <= size // 1_500 + 2
