"""The rules of the SQLite backend: which files it opens or refuses, and how it reports a write.

Location and ownership of the file; files that must not be changed; limits of a read-only store;
stores whose file is moved; schema migrations; and failed commits, which are reported truthfully and
end the connection.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import apsw
import msgspec
import pytest

import holdfast
from holdfast import File, Message, Store, codec
from holdfast.errors import (
    Damaged,
    HeadMoved,
    HoldfastError,
    OutcomeUnknown,
    ReadOnly,
    SchemaTooNew,
    SessionNotFound,
    StorageError,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
)
from holdfast.operations import append as append_operation
from holdfast.operations import queries, sessions, turns
from holdfast.operations.session_changes import SessionUpdate
from holdfast.storage.protocol import Operation, PendingWrite, Query, Transaction
from holdfast.storage.rows import BranchStart, HeadRow, MessageRow
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.storage.sqlite.connection import check_sqlite_version
from holdfast.storage.sqlite.location import NETWORK_FILESYSTEMS, filesystem_of
from holdfast.storage.sqlite.writer import SQLiteWriterConnection
from holdfast.testing.faults import Recording, record
from holdfast.url import Durability, Location
from holdfast.values import Head
from tests.sync_log import SyncLog

ROOT = Path(__file__).parents[2]
NOBODY = 65534
NEXT_STEP = """
CREATE TABLE flavours (session INTEGER PRIMARY KEY, flavour TEXT) STRICT;
INSERT INTO flavours SELECT n, 'plain' FROM sessions;
"""


def open_store(
    path: Path,
    *,
    tenant: str = "default",
    durability: Durability = "power",
    readonly: bool = False,
    deadline: float = 10.0,
    vfs: str | None = None,
    steps: migrations.Steps | None = None,
) -> Store:
    """Open a store with options that `holdfast.open` does not offer."""
    location = Location("sqlite", str(path), deadline=deadline)
    return Store(
        SQLiteBackend(
            location,
            tenant=tenant,
            durability=durability,
            readonly=readonly,
            vfs=vfs,
            steps=steps,
        )
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one session and two messages, closed."""
    where = tmp_path / "store.db"
    with holdfast.open(where) as store:
        store.session("talk").append(said("a"), said("b"))
    return where


def said(id: str) -> Message:
    """Make a message."""
    return Message.user(f"{id} was said", id=id)


def ids(store: Store, key: str = "talk") -> list[str]:
    """Return the ids of a history."""
    return [message.id for message in store.session(key, create=False).messages()]


def contents(directory: Path) -> dict[str, bytes]:
    """Read all files of a directory."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


def without_locks(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the files that hold no data: lock files, and SQLite's shared memory."""
    return {
        name: data for name, data in files.items() if not name.endswith(("-queue", "-lock", "-shm"))
    }


def raw(path: Path, *statements: str) -> None:
    """Change the file as another program would."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def crashed(path: Path, *statements: str) -> None:
    """The same, but the program died: its changes are in the log only."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / path.name
        if path.exists():
            shutil.copy(path, copy)
        connection = apsw.Connection(str(copy))
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for statement in statements:
            connection.execute(statement)
        shutil.copy(copy, path)
        shutil.copy(f"{copy}-wal", f"{path}-wal")
        connection.close()


# -------------------------------------------------------------------------- which engine is used


@pytest.mark.parametrize(
    "version",
    ["3.7.0", "3.7.17", "3.40.1", "3.44.5", "3.44.7", "3.50.6", "3.50.8", "3.51.0", "3.51.2"],
)
def test_an_engine_that_may_corrupt_is_refused(version: str) -> None:
    """All affected versions are refused, and the error says what to do."""
    with pytest.raises(StoreUnavailable, match="Install a current apsw"):
        check_sqlite_version(version)


@pytest.mark.parametrize(
    "version", ["3.6.23", "3.44.6", "3.50.7", "3.51.3", "3.51.10", "3.52.0", "3.54.1", "4.0.0"]
)
def test_an_engine_without_the_flaw_is_taken(version: str) -> None:
    """Older and newer versions, and the two patched ones, are accepted."""
    check_sqlite_version(version)


def test_the_engine_in_use_is_sound() -> None:
    """The installed version is accepted."""
    check_sqlite_version(apsw.sqlite_lib_version())


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
def test_durability_sets_how_the_engine_syncs(
    tmp_path: Path, durability: Durability, synchronous: int
) -> None:
    """Every connection of a store has the level of its durability, and a write-ahead log."""
    opened: list[apsw.Connection] = []
    apsw.connection_hooks.append(opened.append)
    try:
        holdfast.open(tmp_path / "store.db").close()
        opened.clear()
        with holdfast.open(tmp_path / "store.db", durability=durability) as store:
            store.session("talk").append(said("a"))
            assert len(opened) >= 2
            for connection in opened:
                assert connection.execute("PRAGMA synchronous").get == synchronous
                assert connection.execute("PRAGMA journal_mode").get == "wal"
    finally:
        apsw.connection_hooks.remove(opened.append)


@pytest.mark.parametrize(("durability", "syncs"), [("power", 20), ("process", 0)])
def test_durability_decides_whether_a_write_waits_for_the_disk(
    path: Path, durability: Durability, syncs: int
) -> None:
    """Twenty writes by a lone caller are twenty syncs of the log, or none."""

    def scenario(recording: Recording) -> None:
        copy = recording.directory / path.name
        with open_store(copy, vfs=recording.vfs, durability=durability) as store:
            session = store.session("talk")
            session.append(said("first"))
            recording.begin("counted")
            for number in range(20):
                session.append(said(str(number)))
            recording.ack("counted")

    trace = record(scenario, prepare=lambda directory: shutil.copy(path, directory))
    names = [type(event).__name__ for event in trace.events]
    assert names[names.index("Begin") : names.index("Ack")].count("Sync") == syncs


# ---------------------------------------------------------------------------- whose file, and where


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_directories_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """With umask 000 all a store makes is for its owner only: 0600, and 0700."""
    path = tmp_path / "new" / "deep" / "store.db"
    with _umask(0), holdfast.open(path) as store:
        store.session("talk").append(said("a"))
        store.backup(path.with_name("backup.db"))
        names = {"store.db", "store.db-wal", "store.db-shm", "store.db-queue", "store.db-lock"}
        made = {file.name: _mode(file) for file in path.parent.iterdir()}
        assert made == dict.fromkeys({*names, "backup.db"}, 0o600)
        assert [_mode(directory) for directory in path.parents[:2]] == [0o700, 0o700]


def test_the_name_of_a_new_store_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are the file before it has its name, and the folders created for it."""
    path = tmp_path / "new" / "deep" / "store.db"
    log = SyncLog(monkeypatch)
    holdfast.open(path).close()
    assert log.of(path) == ["sync", "name", "sync folder"]
    assert log.of(path.parents[0]) == ["sync folder", "sync"]
    assert log.of(path.parents[1]) == ["sync folder", "sync"]


def test_the_backup_of_a_migration_is_private(path: Path) -> None:
    """So is what a migration leaves beside the store."""
    with _umask(0):
        open_store(path, steps=_with_next()).close()
    assert _mode(path.with_name(f"store.db.before-{_NEXT}")) == 0o600


def test_a_store_behind_a_symbolic_link_is_refused(path: Path, tmp_path: Path) -> None:
    """A link may lead anywhere; the file it leads to is not touched."""
    before = contents(path.parent)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        holdfast.open(link)
    assert contents(path.parent) == {**before, "link.db": before["store.db"]}


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    """No store is made at the other end."""
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(StoreUnavailable, match="symbolic link"):
        holdfast.open(tmp_path / "link.db")
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("suffix", ["-queue", "-lock", "-wal"])
def test_a_link_planted_beside_the_store_is_refused(path: Path, suffix: str) -> None:
    """A companion that is a link leads nowhere: its target is neither written nor locked."""
    target = path.with_name("precious")
    target.write_bytes(b"precious " * 100)
    companion = path.with_name(path.name + suffix)
    companion.unlink(missing_ok=True)
    companion.symlink_to(target)
    with pytest.raises(StoreUnavailable):
        holdfast.open(path).session("talk").append(said("c"))
    assert target.read_bytes() == b"precious " * 100


def test_somebody_elses_file_is_refused(path: Path) -> None:
    """A file of another user is not opened."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, NOBODY, NOBODY)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match=f"belongs to user {NOBODY}"):
        holdfast.open(path)
    assert path.read_bytes() == before


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A directory, a pipe, and a path through a file."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("text")
    for name in ("directory", "pipe", "file/store.db"):
        with pytest.raises(StoreUnavailable):
            holdfast.open(tmp_path / name)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_where_nothing_can_be_made_is_an_error_of_ours() -> None:
    """A directory that cannot be created raises `StoreUnavailable`, not `OSError`."""
    with pytest.raises(StoreUnavailable):
        holdfast.open("/proc/holdfast/store.db")


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
24 22 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=8G,nr_inodes=2M,mode=755
31 22 0:27 / /run rw,nosuid,nodev,noexec shared:5 - tmpfs tmpfs rw,size=1630272k,mode=755
40 22 0:45 / /home rw,relatime shared:30 - nfs4 nas:/home rw,vers=4.2,proto=tcp,addr=10.0.0.2
41 40 8:2 / /home/ann/scratch rw,relatime shared:31 - xfs /dev/sda2 rw,attr2,inode64
42 22 0:46 / /mnt/share rw,relatime shared:32 - cifs //nas/share rw,vers=3.1.1,username=ann
43 22 0:47 / /mnt/with\040a\040space rw,relatime shared:33 - fuse.sshfs ann@host:/ rw,user_id=1000
44 22 0:48 / /mnt/c rw,noatime - 9p drvfs rw,dirsync,aname=drvfs;path=C:\
45 22 0:49 / /var/lib/docker/overlay2/x/merged rw,relatime - overlay overlay rw,lowerdir=/l:/m
46 22 8:1 /srv/data /data rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
47 22 0:45 /ann /workspace rw,relatime shared:30 - nfs4 nas:/home rw,vers=4.2,addr=10.0.0.2
48 22 0:50 / /mnt/covered rw,relatime - nfs nas:/old rw,vers=3
49 48 0:51 / /mnt/covered rw,relatime - tmpfs tmpfs rw
50 22 0:52 / /mnt/Büro\040Süd rw,relatime shared:34 - nfs4 nas:/büro rw,vers=4.2
51 22 0:53 / /mnt/tab\011and\134slash rw,relatime - smb3 //nas/odd rw
this line is no mount
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/", "ext4"),
        ("/etc", "ext4"),
        ("/homework", "ext4"),
        ("/home", "nfs4"),
        ("/home/ann", "nfs4"),
        ("/home/ann/scratch", "xfs"),
        ("/home/ann/scratch/deep/down", "xfs"),
        ("/home/ann/scratchy", "nfs4"),
        ("/mnt/share/agents", "cifs"),
        ("/mnt/with a space/x", "fuse.sshfs"),
        ("/mnt/with", "ext4"),
        ("/mnt/c/Users", "9p"),
        ("/var/lib/docker/overlay2/x/merged/app", "overlay"),
        ("/data/agents", "ext4"),
        ("/workspace", "nfs4"),
        ("/mnt/covered", "tmpfs"),
        ("/mnt/tab\tand\\slash", "smb3"),
        ("/run/user/1000", "tmpfs"),
    ],
)
def test_the_file_system_of_a_directory_is_the_nearest_mount(directory: str, kind: str) -> None:
    """The deepest mount point counts, the newest of equals, and escapes are understood."""
    assert filesystem_of(Path(directory), MOUNTS) == kind


def test_a_mount_point_outside_of_ascii_is_understood() -> None:
    """A name with umlauts and an escaped space is still found."""
    assert filesystem_of(Path("/mnt/Büro Süd/x"), MOUNTS) == "nfs4"


def test_network_file_systems_are_known_by_name() -> None:
    """File systems without reliable locks are refused, local ones are not."""
    assert {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"} <= NETWORK_FILESYSTEMS
    assert NETWORK_FILESYSTEMS.isdisjoint(
        {"ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "f2fs"}
    )


def test_no_mounts_no_answer() -> None:
    """An empty table of mounts gives no file system."""
    assert filesystem_of(Path("/home"), "") is None


# ----------------------------------------------------------------- what is refused and left alone


def test_an_empty_file_is_damage(tmp_path: Path) -> None:
    """A store is never empty, so an empty file is no new store."""
    (tmp_path / "store.db").touch()
    with pytest.raises(Damaged, match="is empty"):
        holdfast.open(tmp_path / "store.db")
    assert (tmp_path / "store.db").read_bytes() == b""


def test_a_log_without_its_file_is_damage(path: Path) -> None:
    """The file was removed but its log was not: no new store is created beside the log."""
    crashed(path, "UPDATE heads SET turns = turns + 1")
    path.unlink()
    before = without_locks(contents(path.parent))
    with pytest.raises(Damaged, match=r"store\.db-wal is there"):
        holdfast.open(path)
    assert without_locks(contents(path.parent)) == before
    assert set(before) == {"store.db-wal"}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"these are my notes\n" * 300, id="text"),
        pytest.param(os.urandom(8192), id="noise"),
        pytest.param(b"x", id="byte"),
    ],
)
def test_what_is_no_database_is_damage_and_left_alone(tmp_path: Path, data: bytes) -> None:
    """A file that is no database is not written to."""
    path = tmp_path / "notes"
    path.write_bytes(data)
    with pytest.raises(Damaged):
        holdfast.open(path)
    assert contents(tmp_path) == {"notes": data}


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """Another program's database is refused; no byte of it changes, and no file is added."""
    path = tmp_path / "other.db"
    raw(path, "CREATE TABLE sessions (x)", "INSERT INTO sessions VALUES (1)")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program"):
        holdfast.open(path)
    assert contents(tmp_path) == {"other.db": before}


def test_another_programs_log_is_left_alone(tmp_path: Path) -> None:
    """So is one whose last changes are in its log: they are not moved into the file."""
    path = tmp_path / "other.db"
    crashed(path, "CREATE TABLE sessions (x)", "INSERT INTO sessions VALUES (1)")
    before = without_locks(contents(tmp_path))
    assert set(before) == {"other.db", "other.db-wal"}
    with pytest.raises(StoreUnavailable, match="another program"):
        holdfast.open(path)
    assert without_locks(contents(tmp_path)) == before


@pytest.mark.parametrize("change", [raw, crashed], ids=["in-the-file", "in-the-log"])
@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_format_is_left_alone(
    path: Path, change: Callable[..., None], readonly: bool
) -> None:
    """A store of a newer version is refused; no byte of it or its log changes."""
    change(path, "PRAGMA user_version=99")
    before = without_locks(contents(path.parent))
    with pytest.raises(SchemaTooNew, match="format 99"):
        holdfast.open(path, readonly=readonly)
    after = without_locks(contents(path.parent))
    after.pop("store.db-wal", None) if after.get("store.db-wal") == b"" else None
    assert after == before


def test_planted_triggers_and_views_do_nothing(path: Path) -> None:
    """A file may bring its own triggers and views; they are never run."""
    raw(
        path,
        "CREATE TRIGGER gone AFTER INSERT ON messages BEGIN DELETE FROM messages; END",
        "CREATE TRIGGER stop BEFORE UPDATE ON heads BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE VIEW empty AS SELECT 1 WHERE 0",
        "CREATE VIEW secrets AS SELECT load_extension('/tmp/evil.so')",
    )
    with holdfast.open(path) as store:
        store.session("talk").append(said("c"))
        with store.session("talk").turn() as turn:
            turn.user("d", id="d")
        assert ids(store) == ["a", "b", "c", "d"]
    with holdfast.open(path) as store:
        assert ids(store) == ["a", "b", "c", "d"]


# ---------------------------------------------------------------------------------- read-only


def test_a_read_only_store_changes_nothing(path: Path) -> None:
    """Reading, listing and verifying leave every byte as it was, and no lock files."""
    for suffix in ("-queue", "-lock"):
        path.with_name(path.name + suffix).unlink()
    before = contents(path.parent)
    with holdfast.open(path, readonly=True) as store:
        assert ids(store) == ["a", "b"]
        assert len(store.sessions()) == 1
        assert store.verify() == []
        assert store.stats().messages == 2
    after = contents(path.parent)
    assert {name: data for name, data in after.items() if name in before} == before
    # SQLite's shared memory and an empty log may remain; neither holds data.
    assert set(after) - set(before) <= {"store.db-shm", "store.db-wal"}
    assert not after.get("store.db-wal")


def test_a_read_only_store_reads_what_is_in_the_log(path: Path) -> None:
    """What a crashed writer left in the log is read, and stays there."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / path.name
        shutil.copy(path, copy)
        with holdfast.open(copy) as writer:
            writer.session("talk").update(title="in the log")
            for suffix in ("", "-wal"):
                shutil.copy(f"{copy}{suffix}", f"{path}{suffix}")
    before = without_locks(contents(path.parent))
    with holdfast.open(path, readonly=True) as store:
        assert store.session("talk").info().title == "in the log"
    assert without_locks(contents(path.parent)) == before


def test_a_read_only_store_refuses_every_write(path: Path) -> None:
    """Each way to write is refused with its own error, also of a session that is not there yet."""
    with holdfast.open(path, readonly=True) as store:
        session = store.session("talk")
        writes: list[Callable[[], object]] = [
            lambda: session.append(said("c")),
            lambda: session.turn().__enter__(),
            lambda: session.enqueue("input"),
            lambda: session.update(title="new"),
            session.recover,
            lambda: store.session("another"),
            store.create,
        ]
        for write in writes:
            with pytest.raises(ReadOnly):
                write()


def test_a_read_only_store_is_not_made(tmp_path: Path) -> None:
    """A read-only open creates no store."""
    with pytest.raises(StoreUnavailable, match="does not exist"):
        holdfast.open(tmp_path / "new" / "store.db", readonly=True)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_store_is_not_brought_up_to_date(path: Path) -> None:
    """An older format must be migrated by a writer first; nothing is changed."""
    before = path.read_bytes()
    with pytest.raises(ReadOnly, match="open it once for writing"):
        open_store(path, readonly=True, steps=_with_next())
    assert path.read_bytes() == before


READER = """
import os, sys
import holdfast
from holdfast.storage.sqlite import backend
if os.geteuid() == 0:
    os.setgid({nobody})
    os.setuid({nobody})
with holdfast.open(sys.argv[1], readonly=True) as store:
    print([message.id for message in store.session("talk").messages()], store.verify())
try:
    holdfast.open(sys.argv[1])
except holdfast.HoldfastError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_a_read_only_store_can_lie_in_a_read_only_place(path: Path, mode: int) -> None:
    """In a read-only directory reading works, and writing raises an error of Holdfast's."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "store.db"
        shutil.copy(path, copy)
        copy.chmod(mode)
        Path(made).chmod(0o500)
        if os.geteuid() == 0:  # Nothing is read-only for root, so the child changes its user.
            os.chown(copy, NOBODY, NOBODY)
            os.chown(made, NOBODY, NOBODY)
        script = READER.format(nobody=NOBODY)
        ended = subprocess.run(
            [sys.executable, "-c", script, str(copy)], capture_output=True, text=True, check=False
        )
        Path(made).chmod(0o700)
        assert sorted(file.name for file in Path(made).iterdir()) == ["store.db"]
    assert ended.stdout.splitlines() == ["['a', 'b'] []", "ReadOnly"], ended.stderr


# --------------------------------------------------------------------------- the file is moved


def _move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def _delete(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    shutil.copy(path, path.with_name("other.db"))
    path.with_name("other.db").replace(path)


MOVES = [_move, _delete, _replace]


@pytest.mark.parametrize("move", MOVES)
def test_a_write_to_a_moved_file_is_not_acknowledged(
    path: Path, move: Callable[[Path], None]
) -> None:
    """A write to a file that is no longer at its path would be lost, so it raises."""
    with holdfast.open(path) as store:
        session = store.session("talk")
        session.append(said("c"))
        move(path)
        for _ in range(2):
            with pytest.raises(StoreMoved):
                session.append(said("d"))


@pytest.mark.parametrize("move", MOVES)
def test_a_read_of_a_moved_file_is_an_error(path: Path, move: Callable[[Path], None]) -> None:
    """What is read does not come from the file at the path."""
    with holdfast.open(path) as store:
        session = store.session("talk")
        move(path)
        with pytest.raises(StoreMoved):
            session.messages()


def test_writes_that_were_handed_over_learn_of_the_move(path: Path) -> None:
    """Each write that the writer thread runs raises, too, even one that would be refused."""
    with _held_up(path) as (store, submit, go_on):
        pending = [submit(_append(store, said(id))) for id in "cde"]
        pending.append(submit(_append(store, said("f"), expect=Head(1, 4))))
        # Once their transaction has begun: a file that was moved before is noticed there.
        store.backend.submit(lambda _: _move(path))
        go_on()
        for ticket in pending:
            with pytest.raises(StoreMoved):
                ticket.result()


def test_a_store_whose_file_came_back_goes_on(path: Path) -> None:
    """Nothing was closed: with the file back in its place, the store works."""
    with holdfast.open(path) as store:
        session = store.session("talk")
        session.append(said("c"))
        _move(path)
        with pytest.raises(StoreMoved):
            session.append(said("d"))
        path.with_name("moved.db").rename(path)
        session.append(said("d"))
        assert ids(store) == ["a", "b", "c", "d"]


# ---------------------------------------------------------------------------------- migrations


_NOW = max(migrations.load())
_NEXT = _NOW + 1


def _with_next(step: str = NEXT_STEP) -> migrations.Steps:
    return {**migrations.load(), _NEXT: step}


def _version(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        version: int = connection.execute("PRAGMA user_version").get
        return version
    finally:
        connection.close()


def test_a_migration_makes_a_backup_first(path: Path) -> None:
    """The store as it was stays beside it, whole, and opens as a store."""
    with open_store(path, steps=_with_next()) as store:
        store.session("talk").append(said("c"))
        assert ids(store) == ["a", "b", "c"]
        assert store.verify() == []
    assert _version(path) == _NEXT
    backup = path.with_name(f"store.db.before-{_NEXT}")
    assert _version(backup) == _NOW
    with open_store(backup, steps=migrations.load()) as store:
        assert ids(store) == ["a", "b"]
        assert store.verify() == []


def test_a_migration_happens_once(path: Path) -> None:
    """Opening again finds nothing to do, and the older program finds a store that is too new."""
    for _ in range(2):
        open_store(path, steps=_with_next()).close()
    with pytest.raises(SchemaTooNew):
        open_store(path, steps=migrations.load())


@pytest.mark.parametrize(
    "second",
    ["DELETE FROM messages WHERE id = 'a'", "DELETE FROM sessions", "DELETE FROM turns"],
)
def test_a_migration_that_loses_rows_is_undone(path: Path, second: str) -> None:
    """Rows are counted before and after; one that is missing undoes everything."""
    with holdfast.open(path) as store, store.session("talk").turn() as turn:
        turn.user("c", id="c")
    with pytest.raises(Damaged, match="lost rows"):
        open_store(path, steps=_with_next(second))
    assert _version(path) == _NOW
    with holdfast.open(path) as store:
        assert ids(store) == ["a", "b", "c"]
        assert store.verify() == []


def test_a_migration_that_fails_is_undone(path: Path) -> None:
    """A statement that cannot be run undoes those before it, and the store is as it was."""
    broken = "CREATE TABLE half (x); INSERT INTO half VALUES (1); SELECT x FROM nowhere;"
    with pytest.raises(StorageError, match="nothing was changed"):
        open_store(path, steps=_with_next(broken))
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert not connection.table_exists(None, "half")
    connection.close()
    with holdfast.open(path) as store:
        assert ids(store) == ["a", "b"]
        store.session("talk").append(said("c"))


def test_the_backup_is_of_the_migration_that_happened(path: Path) -> None:
    """What was written between a migration that failed and one that did not is in the backup."""
    with pytest.raises(StorageError):
        open_store(path, steps=_with_next("SELECT x FROM nowhere"))
    with holdfast.open(path) as store:
        store.session("talk").append(said("c"))
    open_store(path, steps=_with_next()).close()
    backups = [file for file in path.parent.glob(f"store.db.before-{_NEXT}*") if file.is_file()]
    held = []
    for number, backup in enumerate(backups):
        copy = path.with_name(f"copy-{number}.db")
        shutil.copy(backup, copy)
        with holdfast.open(copy) as store:
            held.append(ids(store))
    assert ["a", "b", "c"] in held


MIGRATOR = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.storage import test_sqlite_writer as engine
sys.stdin.readline()
with engine.open_store(Path(sys.argv[2]), steps=engine._with_next()) as store:
    store.session("talk").append(engine.said(sys.argv[3]))
"""


def test_processes_that_migrate_at_once_do_it_once(path: Path) -> None:
    """Three processes open an older store together: one migrates, the others wait and go on."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", MIGRATOR, str(ROOT), str(path), name],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("x", "y", "z")
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert (child.returncode, errors) == (0, "")
    assert _version(path) == _NEXT
    with open_store(path, steps=_with_next()) as store:
        assert ids(store)[:2] == ["a", "b"]
        assert sorted(ids(store)[2:]) == ["x", "y", "z"]
        assert store.verify() == []


# -------------------------------------------------------------------------- commits that fail


_serial = itertools.count(1)


class _FailingFile(apsw.VFSFile):
    """A log whose syncs or writes fail as often as the disk says."""

    def __init__(
        self, disk: FailingDisk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.suffer("sync")
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.suffer("write")
        super().xWrite(data, offset)


class FailingDisk(apsw.VFS):
    """The default VFS, whose write-ahead logs fail on demand: `fail("sync", times=1)`."""

    def __init__(self) -> None:
        self.name = f"failing-{os.getpid()}-{next(_serial)}"
        super().__init__(self.name, "", maxpathname=0)
        self.opened = 0
        self._left = {"sync": 0, "write": 0}
        self._error: type[apsw.Error] = apsw.IOError

    def fail(self, what: str, *, times: int, error: type[apsw.Error] = apsw.IOError) -> None:
        """Let the next operations of this sort fail."""
        self._left[what], self._error = times, error

    def suffer(self, what: str) -> None:
        """Fail if this is due."""
        if self._left[what] > 0:
            self._left[what] -= 1
            raise self._error("the disk fails on demand")

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        if not flags[0] & apsw.SQLITE_OPEN_WAL:
            return apsw.VFSFile("", name, flags)
        self.opened += 1
        return _FailingFile(self, name, flags)


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    """A disk that fails on demand."""
    vfs = FailingDisk()
    yield vfs
    vfs.unregister()


def _fresh_look(path: Path) -> list[str]:
    """Read the store as it is on the disk, as another process would after a crash."""
    with tempfile.TemporaryDirectory() as made:
        for suffix in ("", "-wal"):
            if path.with_name(path.name + suffix).exists():
                shutil.copy(path.with_name(path.name + suffix), made)
        with holdfast.open(Path(made) / path.name) as store:
            assert store.verify() == []
            return ids(store)


@pytest.mark.parametrize("times", [1, 2, 3, 4, 10**6])
@pytest.mark.parametrize("what", ["sync", "write"])
def test_a_failed_commit_is_told_truthfully(
    path: Path, disk: FailingDisk, what: str, times: int
) -> None:
    """Stored, not stored or unknown: the report is what is found, and a retry settles it."""
    with open_store(path, vfs=disk.name) as store:
        session = store.session("talk")
        session.append(said("c"))
        disk.fail(what, times=times)
        told: type[HoldfastError] | None = None
        try:
            session.append(said("d"))
        except HoldfastError as error:
            told = type(error)
        disk.fail(what, times=0)
        found = "d" in _fresh_look(path)
        assert told in {None, OutcomeUnknown, StoreUnavailable}
        if told is not OutcomeUnknown:
            assert found == (told is None)
        session.append(said("d"))
        session.append(said("e"))
        assert ids(store) == ["a", "b", "c", "d", "e"]
        assert _fresh_look(path) == ["a", "b", "c", "d", "e"]


def test_one_failed_sync_is_mended_unseen(path: Path, disk: FailingDisk) -> None:
    """The connection is discarded and the write repeated on a new one; the caller sees no error."""
    with open_store(path, vfs=disk.name) as store:
        session = store.session("talk")
        session.append(said("c"))
        opened = disk.opened
        disk.fail("sync", times=1)
        session.append(said("d"))
        assert disk.opened > opened, "the connection was kept"
        assert _fresh_look(path) == ["a", "b", "c", "d"]


def test_syncs_that_fail_for_good_leave_the_outcome_unknown(path: Path, disk: FailingDisk) -> None:
    """If no sync succeeds, the outcome cannot be known, and `OutcomeUnknown` is raised."""
    with open_store(path, vfs=disk.name) as store:
        session = store.session("talk")
        session.append(said("c"))
        disk.fail("sync", times=10**6)
        with pytest.raises(OutcomeUnknown, match="same ids"):
            session.append(said("d"))
        disk.fail("sync", times=0)
        session.append(said("d"))
        assert ids(store) == ["a", "b", "c", "d"]


def test_what_was_refused_after_a_failed_commit_does_not_come_back(
    path: Path, disk: FailingDisk
) -> None:
    """A commit that failed may have left its pages in the log; a crash must not bring them back."""
    with open_store(path, vfs=disk.name) as store:
        store.session("talk").append(said("c"))
        append, runs = _append(store, said("d")), itertools.count()

        def refused_the_second_time(tx: Transaction) -> Head:
            if next(runs):
                raise HeadMoved(Head(1, 3), Head(1, 4))
            return append(tx)

        disk.fail("sync", times=1)
        with pytest.raises(HeadMoved):
            store.backend.write(refused_the_second_time)
        assert ids(store) == ["a", "b", "c"]
        assert _fresh_look(path) == ["a", "b", "c"]


def test_a_full_disk_stores_nothing_and_says_so(path: Path, disk: FailingDisk) -> None:
    """Without space nothing is stored; with space again the same store goes on."""
    with open_store(path, vfs=disk.name) as store:
        session = store.session("talk")
        session.append(said("c"))
        disk.fail("write", times=10**6, error=apsw.FullError)
        for _ in range(2):
            with pytest.raises(StoreFull, match="nothing was stored"):
                session.append(said("d"))
        assert ids(store) == ["a", "b", "c"]
        disk.fail("write", times=0)
        assert _fresh_look(path) == ["a", "b", "c"]
        session.append(said("d"))
        assert ids(store) == ["a", "b", "c", "d"]


def test_writes_that_shared_a_failed_commit_are_all_kept(path: Path, disk: FailingDisk) -> None:
    """After a failed group commit each write is done again by itself: each is there once."""
    with _held_up(path, vfs=disk.name) as (store, submit, go_on):
        pending = [submit(_append(store, said(id))) for id in "cdefg"]
        go_on(before=partial(disk.fail, "sync", times=1))
        assert [ticket.result().seq for ticket in pending] == [3, 4, 5, 6, 7]
        assert ids(store) == list("abcdefg")
    assert _fresh_look(path) == list("abcdefg")


# -------------------------------------------------------------------------------- group commit


def _append(store: Store, *messages: Message, expect: Head | None = None) -> Operation[Head]:
    batch, _ = codec.encode_batch(messages, datetime.now(UTC))
    return append_operation.append(_number(store), batch, expect=expect)


def _number(store: Store, key: str = "talk") -> int:
    """Return the number by which the backend knows a session."""
    row = store.backend.read(lambda snapshot: snapshot.find_session(key=key))
    assert row is not None
    return row.n


class _GoOn:
    """Lets the writer go on that `_held_up` holds up."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.held = threading.Event()
        self._before: Callable[[], None] | None = None

    def __call__(self, before: Callable[[], None] | None = None) -> None:
        """Go on; call this first, in the writer's thread, once its first commit has come."""
        self._before = before
        self._event.set()

    def hold(self, _: Transaction) -> None:
        """Block inside an operation."""
        self.held.set()
        assert self._event.wait(60)

    def then(self) -> None:
        """Do what was asked for."""
        if self._before is not None:
            self._before()


@contextmanager
def _held_up(
    path: Path, vfs: str | None = None
) -> Iterator[tuple[Store, Callable[[Operation[Head]], PendingWrite[Head]], _GoOn]]:
    """Open a store whose writer is busy: what is submitted waits, and is then run together."""
    go_on = _GoOn()
    with open_store(path, vfs=vfs) as store:
        store.session("talk").update(title="the log is begun")
        first = store.backend.submit(go_on.hold)
        first.when_done(go_on.then)
        assert go_on.held.wait(60)
        try:
            yield store, store.backend.submit, go_on
        finally:
            go_on()


def test_a_verb_that_fails_costs_only_itself(path: Path) -> None:
    """One of several writes raises, after it wrote: the others are stored, its own is not."""
    with _held_up(path) as (store, submit, go_on):
        bad = _append(store, said("bad"))

        def fails(tx: Transaction) -> Head:
            bad(tx)
            raise ZeroDivisionError

        before = [submit(_append(store, said(id))) for id in "cd"]
        failing = submit(fails)
        after = [submit(_append(store, said(id))) for id in "ef"]
        go_on()
        with pytest.raises(ZeroDivisionError):
            failing.result()
        assert [ticket.result().seq for ticket in (*before, *after)] == [3, 4, 5, 6]
        assert ids(store) == list("abcdef")
        assert store.verify() == []


def _say(tx: Transaction, head: HeadRow) -> None:
    item = codec.encode(said("no"), datetime.now(UTC))
    tx.add_messages(head.branch, [MessageRow.create(head.seq + 1, item.id, None, item.body)])


def _rename(tx: Transaction, head: HeadRow) -> None:
    row = tx.session(head.session)
    assert row is not None
    tx.put_session(msgspec.structs.replace(row, title="refused"))


def _branch(tx: Transaction, head: HeadRow) -> None:
    start = BranchStart(parent=head.branch, fork_seq=1, asked_seq=1, reason="rewind", token="-")  # noqa: S106
    tx.add_branch(head.session, 2, start, tx.now())


@pytest.mark.parametrize("write", [_say, _rename, _branch])
def test_a_refusal_behind_a_write_costs_only_itself(
    path: Path, write: Callable[[Transaction, HeadRow], None]
) -> None:
    """What it wrote is undone, whatever that was; the others are stored once each."""
    with _held_up(path) as (store, submit, go_on):
        number = _number(store)

        def refused(tx: Transaction) -> Head:
            head = tx.head(number)
            assert head is not None
            write(tx, head)
            raise HeadMoved(Head(1, 2), Head(1, 3))

        # The last one: no later write could fail because of what it left.
        before = [submit(_append(store, said(id))) for id in "cd"]
        refusing = submit(refused)
        go_on()
        with pytest.raises(HeadMoved):
            refusing.result()
        assert [ticket.result().seq for ticket in before] == [3, 4]
        assert ids(store) == list("abcd")
        session = store.session("talk")
        assert (session.info().title, len(session.branches())) == ("the log is begun", 1)
        assert store.verify() == []


class _Interrupted(BaseException):
    """What no operation raises by itself."""


@pytest.mark.parametrize("when", ["the first time", "run again"])
def test_a_write_that_is_broken_off_costs_only_itself(
    path: Path, disk: FailingDisk, when: str
) -> None:
    """Whatever ended it: nothing of it is stored, the others are, and the store goes on."""
    with _held_up(path, vfs=disk.name) as (store, submit, go_on):
        bad, runs = _append(store, said("bad")), itertools.count()

        def broken_off(tx: Transaction) -> Head:
            head = bad(tx)
            if next(runs) or when == "the first time":
                raise _Interrupted
            return head

        before, breaking = submit(_append(store, said("c"))), submit(broken_off)
        after = submit(_append(store, said("d")))
        go_on(before=partial(disk.fail, "sync", times=int(when == "run again")))
        with pytest.raises(_Interrupted):
            breaking.result()
        assert [before.result().seq, after.result().seq] == [3, 4]
        store.session("talk").append(said("e"))
        assert ids(store) == list("abcde")
    assert _fresh_look(path) == list("abcde")


def test_what_was_committed_when_the_writer_is_interrupted_is_unknown(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller gets `OutcomeUnknown`, and a retry finds what was stored; the store goes on."""
    commit, commits = SQLiteWriterConnection.commit, itertools.count()

    def commit_and_break_off(connection: SQLiteWriterConnection) -> None:
        commit(connection)
        if next(commits) == 1:  # The first commit is of the operation that held it up.
            raise _Interrupted

    with _held_up(path) as (store, submit, go_on):
        verbs = [_append(store, said(id)) for id in "cd"]
        monkeypatch.setattr(SQLiteWriterConnection, "commit", commit_and_break_off)
        pending = [submit(verb) for verb in verbs]
        go_on()
        for ticket in pending:
            with pytest.raises(OutcomeUnknown, match="was interrupted"):
                ticket.result()
        assert [submit(verb).result().seq for verb in verbs] == [3, 4]
        assert ids(store) == list("abcd")


def test_a_refusal_costs_only_itself_and_the_rest_share_one_sync(path: Path) -> None:
    """A write that is refused before it wrote leaves the others in their one transaction."""
    seqs: list[int] = []

    def scenario(recording: Recording) -> None:
        with _held_up(recording.directory / path.name, vfs=recording.vfs) as held:
            store, submit, go_on = held
            pending = [submit(_append(store, said(id))) for id in "cd"]
            refused = submit(_append(store, said("no"), expect=Head(1, 1)))
            pending += [submit(_append(store, said(id))) for id in "ef"]
            go_on(before=partial(recording.begin, "together"))
            seqs.extend(ticket.result().seq for ticket in pending)
            with pytest.raises(HeadMoved):
                refused.result()
            recording.ack("together")

    trace = record(scenario, prepare=lambda directory: shutil.copy(path, directory))
    names = [type(event).__name__ for event in trace.events]
    assert seqs == [3, 4, 5, 6]
    assert names[names.index("Begin") : names.index("Ack")].count("Sync") == 1


def test_a_withdrawn_write_is_not_done(path: Path) -> None:
    """A write withdrawn before it began is never run, and its result says so."""
    with _held_up(path) as (store, submit, go_on):
        kept, withdrawn = submit(_append(store, said("c"))), submit(_append(store, said("d")))
        assert withdrawn.withdraw()
        go_on()
        assert kept.result().seq == 3
        store.flush()
        assert not kept.withdraw(), "what is done cannot be given up"
        with pytest.raises(StoreUnavailable, match="nothing was stored"):
            withdrawn.result()
        assert ids(store) == ["a", "b", "c"]


@pytest.mark.parametrize("step", ["enter", "begin"])
def test_a_write_can_be_withdrawn_until_its_transaction_has_begun(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """While the writer waits for the process lock or SQLite's own, nothing has begun."""
    waits, go_on = threading.Event(), threading.Event()
    real = getattr(SQLiteWriterConnection, step)

    def wait(engine: SQLiteWriterConnection) -> object:
        waits.set()
        assert go_on.wait(60)
        return real(engine)

    with open_store(path) as store:
        verbs = [_append(store, said(id)) for id in "cd"]
        monkeypatch.setattr(SQLiteWriterConnection, step, wait)
        withdrawn, kept = (store.backend.submit(verb) for verb in verbs)
        assert waits.wait(60)
        try:
            assert withdrawn.withdraw()
        finally:
            go_on.set()
        with pytest.raises(StoreUnavailable, match="nothing was stored"):
            withdrawn.result()
        assert kept.result().seq == 3
        assert ids(store) == ["a", "b", "d"]


def test_a_write_that_runs_is_not_withdrawn(path: Path) -> None:
    """It is stored, and the caller that tried to withdraw it learns that."""
    running, go_on = threading.Event(), threading.Event()
    with open_store(path) as store:
        append = _append(store, said("c"))

        def slow(tx: Transaction) -> Head:
            running.set()
            assert go_on.wait(60)
            return append(tx)

        pending = store.backend.submit(slow)
        assert running.wait(60)
        try:
            assert not pending.withdraw()
        finally:
            go_on.set()
        assert pending.result().seq == 3
        assert ids(store) == ["a", "b", "c"]


@pytest.mark.parametrize("error", [apsw.BusyError, apsw.IOError])
def test_a_transaction_that_cannot_begin_is_told_to_all_who_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: type[apsw.Error]
) -> None:
    """They fail at once, not at their deadlines; the store works again when it can begin."""

    def fail(_: SQLiteWriterConnection) -> None:
        raise error("fails on demand")

    with open_store(path) as store:
        verbs = [_append(store, said(id)) for id in "cd"]
        monkeypatch.setattr(SQLiteWriterConnection, "begin", fail)
        for pending in [store.backend.submit(verb) for verb in verbs]:
            with pytest.raises(StoreUnavailable, match="fails on demand"):
                pending.result()
        monkeypatch.undo()
        assert [store.backend.submit(verb).result().seq for verb in verbs] == [3, 4]


def _start_no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_be_started_costs_one_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller learns that nothing was stored; others write, and the next one starts it."""
    with open_store(path) as store:
        handed_over = [_append(store, said(id)) for id in "ce"]
        monkeypatch.setattr(threading.Thread, "start", _start_no_thread)
        with pytest.raises(StoreUnavailable, match="no thread can be started"):
            store.backend.submit(handed_over[0])
        store.session("talk").append(said("d"))
        monkeypatch.undo()
        assert store.backend.submit(handed_over[1]).result().seq == 4
        assert ids(store) == ["a", "b", "d", "e"]


def test_a_store_whose_thread_could_not_be_started_is_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no writer to wait for."""
    with open_store(path) as store:
        append = _append(store, said("c"))
        monkeypatch.setattr(threading.Thread, "start", _start_no_thread)
        with pytest.raises(StoreUnavailable, match="no thread can be started"):
            store.backend.submit(append)
    assert store.backend.closed


def test_a_write_that_waits_too_long_is_withdrawn(path: Path) -> None:
    """A process holds the store's lock beyond the deadline: nothing is stored later."""
    with open_store(path, deadline=0.3) as store:
        session = store.session("talk")
        with path.with_name("store.db-lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailable, match="held the store's lock"):
                session.append(said("c"))
    with open_store(path) as store:
        store.session("talk").append(said("d"))
        assert ids(store) == ["a", "b", "d"]


def test_a_foreign_programs_lock_is_waited_for_and_no_longer(path: Path) -> None:
    """A program that holds SQLite's own lock makes writes fail truthfully, not hang."""
    other = apsw.Connection(str(path))
    try:
        with open_store(path, deadline=0.3) as store:
            session = store.session("talk")
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                session.append(said("c"))
            assert ids(store) == ["a", "b"]
            other.execute("ROLLBACK")
        with open_store(path) as store:
            store.session("talk").append(said("d"))
            assert ids(store) == ["a", "b", "d"]
    finally:
        other.close()


def test_closing_finishes_what_was_handed_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that wait when the store is closed are done first."""
    join = threading.Thread.join
    with _held_up(path) as (store, submit, go_on):
        pending = [submit(_append(store, said(id))) for id in "cde"]

        def go_on_and_join(thread: threading.Thread, timeout: float | None = None) -> None:
            if thread.name == "holdfast-writer":
                go_on()
            join(thread, timeout)

        monkeypatch.setattr(threading.Thread, "join", go_on_and_join)
        store.close()
        assert [ticket.outcome().seq for ticket in pending] == [3, 4, 5]
    with holdfast.open(path) as store:
        assert ids(store) == list("abcde")


def test_closing_withdraws_what_cannot_begin(path: Path) -> None:
    """Another process holds the lock: waiting callers get an error, and nothing is stored later."""
    threads = set(threading.enumerate())
    with path.with_name("store.db-lock").open("rb") as lock:
        store = open_store(path, deadline=0.1)
        append = _append(store, said("c"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        pending, told = store.backend.submit(append), threading.Event()
        pending.when_done(told.set)
        store.close()
        assert told.is_set()
        with pytest.raises(StoreUnavailable, match="nothing was stored"):
            pending.outcome()
    for left_behind in set(threading.enumerate()) - threads:
        left_behind.join(60)
    with holdfast.open(path) as store:
        assert ids(store) == ["a", "b"]


@pytest.mark.parametrize("how", ["write", "submit"])
def test_a_write_that_meets_a_close_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The store is closed after the write was accepted: its resources are not used any more."""
    with open_store(path) as store:
        append = _append(store, said("c"))
        monkeypatch.setattr(store.backend, "_refuse_write", store.close)
        with pytest.raises(StoreUnavailable, match="closed; nothing was stored"):
            getattr(store.backend, how)(append)
    with holdfast.open(path) as store:
        assert ids(store) == ["a", "b"]


def test_flushing_waits_for_what_runs(path: Path) -> None:
    """Not only for what has not begun; it says so if that takes too long."""
    running, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(_: Transaction) -> None:
        running.set()
        assert go_on.wait(60)

    with open_store(path, deadline=0.1) as store:
        store.backend.submit(slow).when_done(done.set)
        assert running.wait(60)
        with pytest.raises(StoreUnavailable, match="still waiting"):
            store.flush()
        go_on.set()
        assert done.wait(60)


def test_a_closed_store_refuses_everything(path: Path, tmp_path: Path) -> None:
    """Every call on a closed store says that it is closed; closing again does nothing."""
    store = holdfast.open(path)
    session = store.session("talk")
    store.close()
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: session.append(said("c")),
        session.messages,
        lambda: session.turn().__enter__(),
        lambda: session.enqueue("input"),
        session.recover,
        lambda: store.session("talk"),
        store.sessions,
        store.verify,
        store.stats,
        lambda: store.backup(tmp_path / "backup.db"),
        store.backend.health,
    ]
    for use in uses:
        with pytest.raises(StoreUnavailable, match="closed"):
            use()
    assert not (tmp_path / "backup.db").exists()


# -------------------------------------------------------------------------------------- tenants


def test_tenants_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """Same file, same key, same ids: two tenants, and neither finds anything of the other."""
    path = tmp_path / "store.db"
    with open_store(path, tenant="ann") as ann, open_store(path, tenant="bob") as bob:
        secret = ann.session("talk", title="plans", scope="work")
        secret.append(Message.user(["one", File(name="f", data=b"secret data")], id="a"))
        with secret.turn(run_id="run-1") as turn:
            turn.user("two", id="b")
        [sha256] = [part.sha256 for part in secret.messages()[0].parts if isinstance(part, File)]
        assert sha256 is not None
        assert bob.sessions().items == ()
        assert bob.latest() is None
        for ref in (secret.id, secret.id[:6], "talk", "plans", "run-1"):
            with pytest.raises(SessionNotFound):
                bob.get(ref)
        with pytest.raises(HoldfastError):
            bob.blob(sha256)
        assert bob.stats().sessions == bob.stats().messages == bob.stats().blobs == 0
        bob.session("talk").append(said("a"))
        assert bob.session("talk").id != secret.id
        assert (ids(ann), ids(bob)) == (["a", "b"], ["a"])
        assert ann.stats().sessions == bob.stats().sessions == 1
        assert ann.verify() == bob.verify() == []


READS: dict[str, Callable[[int], Query[object]]] = {
    "head": queries.head,
    "info": queries.info,
    "turns": partial(queries.turns, limit=None),
    "queued": queries.queued,
    "usage": queries.usage,
}
WRITES: dict[str, Callable[[int], Operation[object]]] = {
    "recover": turns.recover,
    "update": partial(sessions.update, update=SessionUpdate({"title": "mine now"})),
    "append": partial(append_operation.append, batch=[codec.encode(said("c"), datetime.now(UTC))]),
}


@pytest.mark.parametrize(
    "use",
    [
        "head",
        "info",
        "turns",
        "queued",
        "usage",
        *WRITES,
    ],
)
def test_a_number_of_one_tenant_is_of_no_use_to_another(tmp_path: Path, use: str) -> None:
    """Even by its internal number, another tenant's backend does not return a session."""
    path = tmp_path / "store.db"
    with open_store(path, tenant="ann") as ann, open_store(path, tenant="bob") as bob:
        ann.session("talk").append(said("a"))
        bob.session("mine").append(said("b"))
        number = _number(ann)
        with pytest.raises(SessionNotFound):
            if use in READS:
                bob.backend.read(READS[use](number))
            else:
                bob.backend.write(WRITES[use](number))
        assert ids(ann) == ["a"]
