"""The write-ahead log: a damaged one, one of another store, and one that a crash left."""

import contextlib
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Message, Store
from holdfast.errors import Damaged, OutcomeUnknown, ReadOnly, SchemaTooNew
from holdfast.storage.sqlite import migrations, wal
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.storage.sqlite.migrations import build_store
from holdfast.storage.sqlite.repair.row_scan import open_damaged
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.wal import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    Binding,
    Frame,
    LogFile,
    LogHeader,
    read_binding,
)
from holdfast.storage.sqlite.wal_check import IgnoredFrames, find_ignored, refuse_foreign_log
from holdfast.url import Durability, Location
from tests.storage import kept_store
from tests.storage.damage_cases import copy_store

PAGE = 4096
FRAME = FRAME_HEADER_BYTES + PAGE
COMMITS = 6


def _append(store: Store, number: int) -> None:
    store.session("talk").append(Message.user(f"message {number}", id=f"m{number}"))


@contextmanager
def _open(path: Path, durability: Durability = "power") -> Iterator[Store]:
    with holdfast.open(path, durability=durability) as store:
        yield store


def _ids(path: Path) -> list[str]:
    with holdfast.open(path, readonly=True) as store:
        return [message.id for message in store.session("talk", create=False).messages()]


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _killed(live: Path, folder: Path) -> Path:
    """Copy file and log as a kill would leave them."""
    folder.mkdir(exist_ok=True)
    path = folder / live.name
    for source in (live, _log(live)):
        shutil.copy(source, folder / source.name)
    return path


def _crashed(folder: Path, durability: Durability = "power", commits: int = COMMITS) -> Path:
    """Return a store whose process died after these commits, all in one log."""
    live = folder / "live" / "store.db"
    live.parent.mkdir(parents=True)
    with _open(live) as store:
        store.session("talk")
    with _open(live, durability) as store:
        for number in range(1, commits + 1):
            _append(store, number)
        return _killed(live, folder / "crashed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return _crashed(tmp_path)


def _commits(path: Path) -> list[int]:
    """Return the numbers of the frames that end a transaction."""
    with LogFile(path, PAGE) as log:
        return [n for n, frame in enumerate(log.frames(1), 1) if frame.commit]


def _flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ (1 << bit)]))


def _offset(frame: int, within: int) -> int:
    return HEADER_BYTES + (frame - 1) * FRAME + within


def _bytes(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in (path, _log(path))]


EXPECTED = [f"m{number}" for number in range(1, COMMITS + 1)]


# -------------------------------------------------------------------------------- damaged logs


@pytest.mark.parametrize("within", [0, 5, 12, 18, FRAME_HEADER_BYTES + 4000])
def test_no_message_behind_a_flipped_bit_of_the_log_is_dropped_silently(
    path: Path, tmp_path: Path, within: int
) -> None:
    """In its page number, commit, salts, checksum or page: refused, named, and salvaged."""
    at = _offset(_commits(path)[2], within)
    _flip(_log(path), at)
    before = _bytes(path)
    with pytest.raises(Damaged, match=r"damaged at frame \d+.*salvage"):
        holdfast.open(path)
    with holdfast.open(path, readonly=True) as store:
        (found,) = [one for one in store.verify() if "write-ahead log" in one.what]
        assert "cannot be read" in found.what
        assert store.session("talk", create=False).messages()
    assert _bytes(path) == before
    report = salvage(path, tmp_path / "salvaged.db")
    assert any("write-ahead log" in one.what for one in report.damage)
    kept = _ids(tmp_path / "salvaged.db")
    assert len(kept) == COMMITS
    assert set(EXPECTED) - set(kept) <= {"m1", "m2", "m3"}, "only the damaged page is lost"
    assert _bytes(path) == before
    assert not list(tmp_path.glob(".salvaged*"))


def test_what_a_read_leaves_out_behind_a_flipped_bit_of_the_log_is_reported(
    path: Path, tmp_path: Path
) -> None:
    """To readers and copiers, without `verify`; a backup would pass for whole: it is refused."""
    _flip(_log(path), _offset(_commits(path)[2], 4000))
    with (
        holdfast.open(path, readonly=True) as store,
        holdfast.open(tmp_path / "copy.db") as target,
    ):
        (found,) = store.damage
        assert "write-ahead log is damaged" in found.what
        report = store.copy(target)
        assert found in report.damage
        assert not report.same
        with pytest.raises(Damaged, match="write-ahead log is damaged"):
            store.backup(tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


def test_salvaging_an_emptied_file_deletes_nothing_of_its_log(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"")
    before = _bytes(path)
    with pytest.raises(Damaged, match="is empty"):
        salvage(path, tmp_path / "salvaged.db")
    assert _bytes(path) == before


def test_messages_behind_an_unsupported_number_of_the_header_can_be_salvaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    with holdfast.open(path) as store:
        _append(store, 1)
    _flip(path, 47, bit=6)
    with pytest.raises(Damaged, match="unsupported file format"):
        holdfast.open(path)
    with holdfast.open(path, readonly=True) as store:
        assert store.salvage(tmp_path / "salvaged.db").messages == 1
    assert _ids(tmp_path / "salvaged.db") == ["m1"]


def test_a_frame_that_is_whole_but_for_its_checksum_costs_nothing(
    path: Path, tmp_path: Path
) -> None:
    _flip(_log(path), _offset(_commits(path)[2], 20))
    salvage(path, tmp_path / "salvaged.db")
    assert _ids(tmp_path / "salvaged.db") == EXPECTED


@pytest.mark.parametrize("at", [0, 3, 5, 9, 17, 21, 25, 30])
def test_no_message_behind_a_damaged_header_is_dropped_silently(
    path: Path, tmp_path: Path, at: int
) -> None:
    """SQLite ignores a log whose header is wrong in one bit; every frame of it is whole."""
    _flip(_log(path), at)
    with pytest.raises(Damaged, match="its header"):
        holdfast.open(path)
    salvage(path, tmp_path / "salvaged.db")
    assert _ids(tmp_path / "salvaged.db") == EXPECTED


def test_a_damaged_header_of_a_log_that_is_in_the_file_costs_nothing(tmp_path: Path) -> None:
    """So is a log that was to be started anew when the power was cut."""
    live = tmp_path / "store.db"
    with _open(live) as store:
        for number in range(1, COMMITS + 1):
            _append(store, number)
        connection = apsw.Connection(str(live))
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        connection.close()
        path = _killed(live, tmp_path / "crashed")
    _flip(_log(path), 17)
    with _open(path) as store:
        assert [m.id for m in store.session("talk").messages()] == EXPECTED
        assert store.verify() == []


@pytest.mark.parametrize("start", [0, 2 * FRAME + 700])
def test_a_destroyed_block_of_the_log_is_noticed(path: Path, start: int) -> None:
    """Also where it covers the header, or parts of two frames."""
    with _log(path).open("r+b") as file:
        file.seek(start)
        file.write(bytes(4096))
    with pytest.raises(Damaged, match="damaged at"):
        holdfast.open(path)


def test_every_flipped_bit_is_harmless_refused_or_at_the_end(tmp_path: Path) -> None:
    """Whatever is acknowledged and missing is refused, or one of the last two and reported."""
    crashed = _crashed(tmp_path)
    log, chance = _log(crashed).read_bytes(), random.Random(17)
    heads = [_offset(f, chance.randrange(24)) for f in range(1, len(log) // FRAME + 1)]
    places = [*range(0, HEADER_BYTES, 3), *heads, *chance.choices(range(len(log)), k=25)]
    refused = 0
    for at in places:
        path = _killed(crashed, tmp_path / "flipped")
        _flip(_log(path), at, chance.randrange(8))
        try:
            with holdfast.open(path) as store:
                missing = set(EXPECTED) - {m.id for m in store.session("talk").messages()}
                told = [
                    check for check in store.backend.health() if check.name == "write-ahead log"
                ]
        except Damaged:
            refused += 1
            continue
        finally:
            shutil.rmtree(path.parent)
        assert missing <= set(EXPECTED[-2:]), at
        assert told or not missing, at
    assert refused > len(places) // 3


@pytest.mark.parametrize("page_size", [512, 65536])
def test_the_log_is_checked_whatever_the_page_size(tmp_path: Path, page_size: int) -> None:
    live = tmp_path / "live" / "store.db"
    live.parent.mkdir()
    build_store(live)
    connection = apsw.Connection(str(live))
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute(f"PRAGMA page_size={page_size}")
    connection.execute("VACUUM")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    with _open(live) as store:
        for number in range(1, COMMITS + 1):
            _append(store, number)
        path = _killed(live, tmp_path / "crashed")
    with LogFile(path, page_size) as log:
        commits = [n for n, frame in enumerate(log.frames(1), 1) if frame.commit]
    _flip(_log(path), HEADER_BYTES + commits[-4] * (FRAME_HEADER_BYTES + page_size) + 20)
    with pytest.raises(Damaged, match="damaged at frame"):
        holdfast.open(path)
    salvage(path, tmp_path / "salvaged.db")
    assert _ids(tmp_path / "salvaged.db") == EXPECTED


# ------------------------------------------------------------------- what a crash may leave


def _assert_opens(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is refused or called damage; doctor and a warning name what was not read."""
    with holdfast.open(path) as store:
        (check,) = [check for check in store.backend.health() if check.name == "write-ahead log"]
        assert check.ok
        assert "not read" in check.value
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert store.verify() == []
        assert "not read" in caplog.text


def test_a_torn_last_commit_is_no_damage(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _flip(_log(path), _offset(_commits(path)[-2] + 1, 100))
    _assert_opens(path, caplog)


def test_a_log_that_was_not_always_synced_is_never_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut may tear any frame that `durability="process"` has written."""
    path = _crashed(tmp_path, "process")
    _flip(_log(path), _offset(_commits(path)[2], 100))
    _assert_opens(path, caplog)


@pytest.mark.parametrize("order", [("power", "process"), ("process", "power")])
def test_a_log_of_both_durabilities_is_never_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: tuple[Durability, Durability]
) -> None:
    live = tmp_path / "store.db"
    with _open(live, order[0]) as first, _open(live, order[1]) as second:
        for number in range(3):
            _append(first, 2 * number)
            _append(second, 2 * number + 1)
        path = _killed(live, tmp_path / "crashed")
    for commit in _commits(path)[3:-1]:
        copy = _killed(path, tmp_path / f"torn-{commit}")
        _flip(_log(copy), _offset(commit, 100))
        _assert_opens(copy, caplog)


def _frames_with(path: Path, what: Callable[[bytes], bool]) -> list[int]:
    with LogFile(path, PAGE) as log:
        return [n for n, frame in enumerate(log.frames(1), 1) if what(frame.data)]


def test_a_process_writer_marks_the_log_before_it_leaves_anything_unsynced(tmp_path: Path) -> None:
    live = tmp_path / "store.db"
    with _open(live) as first, _open(live, "process") as second:
        _append(first, 1)
        assert not _binding(live).unsynced
        _append(second, 2)
        assert _binding(live).unsynced
        marks = _frames_with(live, lambda page: any(b.unsynced for b in wal.bindings_in(page)))
        said = _frames_with(live, lambda page: b"message 2" in page)
        assert min(marks) < min(said)


def test_a_process_writer_marks_a_log_that_another_writer_has_begun(tmp_path: Path) -> None:
    """The log restarts in the commit of a writer that syncs; then the other one goes on in it."""
    live = tmp_path / "store.db"
    with _open(live, "process") as first, _open(live) as second:
        _append(first, 1)
        with closing(apsw.Connection(str(live))) as outside:
            outside.execute("PRAGMA user_version").fetchall()  # The first read opens the log.
            logged, saved = outside.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            assert logged == saved > 0
        _append(second, 2)
        assert not _binding(live).unsynced
        _append(first, 3)
        assert _binding(live).unsynced
        marks = _frames_with(live, lambda page: any(b.unsynced for b in wal.bindings_in(page)))
        said = _frames_with(live, lambda page: b"message 3" in page)
        assert min(marks) < min(said)


def _binding(path: Path) -> Binding:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = read_binding(connection)
        assert found is not None
        return found
    finally:
        connection.close()


# ------------------------------------------------------------------------- the log that is bound


def test_a_log_with_an_acknowledged_write_holds_its_binding(tmp_path: Path) -> None:
    """Each time the log is started anew, and the one before it is named."""
    path = tmp_path / "store.db"
    apsw.connection_hooks.append(lambda connection: connection.wal_autocheckpoint(20))
    try:
        with _open(path) as store:
            seen = [_binding(path).salts]
            for number in range(60):
                _append(store, number)
                found = _binding(path)
                with LogFile(path, PAGE) as log:
                    header = LogHeader.decode(log.header_bytes())
                    assert header is not None
                    assert found.salts == header.salts
                if found.salts != seen[-1]:
                    assert found.previous == seen[-1]
                    seen.append(found.salts)
    finally:
        apsw.connection_hooks.pop()
    assert len(seen) > 5


def test_a_log_that_is_in_the_file_after_every_commit_is_written_to(tmp_path: Path) -> None:
    """Storing the binding starts it anew each time: that must end."""
    apsw.connection_hooks.append(lambda connection: connection.wal_autocheckpoint(1))
    try:
        with _open(tmp_path / "store.db") as store:
            _append(store, 1)
            _append(store, 2)
            crashed = _killed(tmp_path / "store.db", tmp_path / "crashed")
    finally:
        apsw.connection_hooks.pop()
    assert _ids(crashed) == ["m1", "m2"]


@pytest.mark.parametrize("failures", [1, 1000])
def test_a_write_whose_log_cannot_be_bound_is_stored_once_or_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """It is committed by then, so it is never reported as not stored, also on a full disk."""
    store_binding, left = wal.LogBinder._store, iter(range(failures))  # noqa: SLF001

    def fail(self: wal.LogBinder, salts: bytes) -> None:
        if next(left, None) is not None:
            raise apsw.FullError("database or disk is full")
        store_binding(self, salts)

    with _open(tmp_path / "store.db") as store:
        store.session("talk")
        with contextlib.closing(apsw.Connection(str(tmp_path / "store.db"))) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        monkeypatch.setattr(wal.LogBinder, "_store", fail)
        if failures == 1:
            _append(store, 1)
        else:
            with pytest.raises(OutcomeUnknown):
                _append(store, 1)
        monkeypatch.undo()
        _append(store, 1)
        assert [m.id for m in store.session("talk").messages()] == ["m1"]


def test_a_binding_is_valid_only_as_it_was_written() -> None:
    binding = Binding(b"12345678", b"abcdefgh", unsynced=True)
    value = binding.encode()
    assert Binding.decode(value) == binding
    for at in range(len(value)):
        assert Binding.decode(value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]) is None
    assert Binding.decode(value[:-1]) is None
    assert Binding.decode(None) is None
    assert list(wal.bindings_in(b"HoldfLog.." + value + b"HoldfLog" + value)) == [binding] * 2


def test_new_stores_and_copies_have_bindings_of_their_own(tmp_path: Path) -> None:
    with _open(tmp_path / "a.db") as store:
        _append(store, 1)
        store.backup(tmp_path / "b.db")
        store.backup(tmp_path / "c.db")
    build_store(tmp_path / "d.db")
    names = [_binding(tmp_path / f"{name}.db").salts for name in "abcd"]
    assert len(set(names)) == 4


# ------------------------------------------------------------------------- another store's log


@pytest.fixture
def restored(path: Path, tmp_path: Path) -> Path:
    """A crashed store with an older backup of it copied over its file; its log is still there."""
    backup = tmp_path / "backup.db"
    with holdfast.open(_killed(path, tmp_path / "original")) as store:
        store.backup(backup)
    shutil.copy(backup, path)
    return path


def test_a_log_that_is_bound_while_it_is_checked_is_not_called_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held no binding at the first look, and a binding that continues the file's at the next."""
    path = tmp_path / "store.db"
    read = LogFile.frames

    def read_later(log: LogFile, first: int, last: int | None = None) -> Iterator[Frame]:
        monkeypatch.setattr(LogFile, "frames", read)
        return read(log, first, 0)

    with _open(path) as store:
        _append(store, 1)
        monkeypatch.setattr(LogFile, "frames", read_later)
        refuse_foreign_log(path, None)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_leftover_log_is_not_shown_as_the_restored_store(restored: Path, readonly: bool) -> None:
    before = _bytes(restored)
    with pytest.raises(Damaged, match=r"not the write-ahead log.*restore-backup"):
        holdfast.open(restored, readonly=readonly)
    assert _bytes(restored) == before
    _log(restored).rename(restored.with_name("aside"))
    restored.with_name("store.db-shm").unlink(missing_ok=True)
    assert _ids(restored) == EXPECTED


def test_a_half_written_frame_is_no_evidence_of_another_stores_log(tmp_path: Path) -> None:
    """A power cut leaves its header in front of a page of the log two before this one."""
    path = tmp_path / "store.db"
    build_store(path)
    header = LogHeader.seal(PAGE, b"new salt")
    earlier = Binding(b"old salt", previous=b"older st").encode().ljust(PAGE, b"\0")
    frame = Frame(2, 1, header.salts, (0, 0), earlier)
    _log(path).write_bytes(header.encode() + frame.encode())
    refuse_foreign_log(path, None)
    whole = frame._replace(checksum=frame.continued(header.checksum, big_endian=False))
    _log(path).write_bytes(header.encode() + whole.encode())
    with pytest.raises(Damaged, match="not the write-ahead log"):
        refuse_foreign_log(path, None)


def test_another_stores_log_is_refused(path: Path, tmp_path: Path) -> None:
    """Whatever is in it, as soon as anything in it was acknowledged."""
    other = _crashed(tmp_path / "other", commits=1)
    shutil.copy(other, path)
    with pytest.raises(Damaged, match="not the write-ahead log"):
        holdfast.open(path)


def test_an_older_copy_of_the_file_is_refused_beside_a_newer_log(tmp_path: Path) -> None:
    """The file was copied without its log, and laid over the store two logs later."""
    path = tmp_path / "store.db"
    with _open(path) as store:
        _append(store, 1)
    older = path.read_bytes()
    for number in (2, 3):
        with _open(path) as store:
            _append(store, number)
            crashed = _killed(path, tmp_path / "crashed")
    crashed.write_bytes(older)
    with pytest.raises(Damaged, match="not the write-ahead log"):
        holdfast.open(crashed)


def test_a_log_that_nobody_bound_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that died right after the first commit of a log has acknowledged nothing in it."""
    path = tmp_path / "store.db"
    with _open(path) as store:
        store.session("talk")
    monkeypatch.setattr(wal.LogBinder, "bind", lambda _: None)
    with _open(path) as store:
        _append(store, 1)
        crashed = _killed(path, tmp_path / "crashed")
    monkeypatch.undo()
    with _open(crashed) as store:
        _append(store, 2)
        again = _killed(crashed, tmp_path / "again")
    assert _ids(again) == ["m1", "m2"]


def test_a_store_is_opened_while_another_process_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is started anew twice between the reads of file and log: that is no other log."""
    path = tmp_path / "store.db"
    with _open(path) as store:
        _append(store, 1)
        read, left = LogFile.header_bytes, iter((2, 3))

        def meanwhile(self: LogFile) -> bytes:
            for number in left:
                with contextlib.closing(apsw.Connection(str(path))) as connection:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                _append(store, number)
            return read(self)

        monkeypatch.setattr(LogFile, "header_bytes", meanwhile)
        assert _ids(path) == ["m1", "m2", "m3"]


_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # SQLite's shared locks
"""


def test_checking_the_log_drops_no_lock(tmp_path: Path) -> None:
    """The file is read beside its log while this process has it open: its locks stay."""
    path = tmp_path / "store.db"
    with _open(path) as store:
        _append(store, 1)
        refuse_foreign_log(path, None)
        child = [sys.executable, "-c", _LOCK, str(path)]
        ended = subprocess.run(child, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in ended.stderr
        _append(store, 2)


# --------------------------------------------------------------------- logs of any kind, made up


def _made_up(tail: list[list[bool]]) -> bytes:
    """Return a log of segments behind a prefix of one commit, each with its own checksums.

    A segment is what one transaction left: for each frame whether it is a commit.
    """
    header = LogHeader.seal(PAGE, b"saltsalt")
    data, before = [header.encode()], header.checksum
    page = Binding(b"saltsalt").encode().ljust(PAGE, b"\0")
    for number, segment in enumerate([[True], *tail]):
        for commit in segment:
            frame = Frame(2, int(commit), b"saltsalt", (0, 0), page)
            before = frame.continued(before, big_endian=False)
            data.append(frame._replace(checksum=before).encode())
            page = page[:-8] + (number * 1000 + len(data)).to_bytes(8, "big")
        before = (number, number)  # The next one was written behind something else.
    return b"".join(data)


@given(st.lists(st.integers(1, 4), max_size=4), st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_transactions_left_one_by_one_is_never_damage(
    lengths: list[int], committed: bool
) -> None:
    """However many of them: each ends with its only commit, and none continues another."""
    tail = [[False] * (length - 1) + [committed] for length in lengths]
    found = _judge(_made_up(tail))
    assert found is None or not found.damaged


@given(st.integers(0, 3), st.integers(2, 5), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_two_commits_in_one_chain_are_damage(stale: int, commits: int, more: int) -> None:
    """Whatever lies before and behind them."""
    tail = [[False, True]] * stale + [[False, True] * commits] + [[True]] * more
    found = _judge(_made_up(tail))
    assert found is not None
    assert found.damaged
    # The first frame of a chain is proven by those behind it, but what it continues is lost.
    assert found.commits == commits
    assert found.last == 1 + 2 * stale + 2 * commits


def _judge(log: bytes) -> IgnoredFrames | None:
    """Lay a log beside a store whose pages differ from those in it, and check it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        copy_store(path)
        _log(path).write_bytes(log)
        connection = open_damaged(path)
        try:
            return find_ignored(connection, path)
        finally:
            connection.close()


# ---------------------------------------------------------------------------------- migrations


def test_a_store_of_the_first_release_is_bound_after_a_backup(tmp_path: Path) -> None:
    """Its tables stay as they are; the copy from before has the first format still."""
    path = kept_store.unpack("0.1.0", tmp_path / "store.db")
    with pytest.raises(ReadOnly, match="older format 1"):
        holdfast.open(path, readonly=True)
    with _open(path) as store:
        _append(store, 1)
        migrated = _killed(path, tmp_path / "killed")
        assert store.verify() == []
    assert _ids(migrated) == ["m1"]
    newest = max(migrations.load())
    for file, version in ((path, newest), (tmp_path / f"store.db.before-{newest}", 1)):
        with contextlib.closing(apsw.Connection(str(file))) as connection:
            assert connection.execute("PRAGMA user_version").get == version
            assert (read_binding(connection) is None) == (version == 1)


_NEXT = {max(migrations.load()) + 1: "ALTER TABLE queue RENAME TO waiting"}


def _migrate(path: Path) -> None:
    steps = migrations.load() | _NEXT
    SQLiteBackend(Location("sqlite", str(path)), steps=steps).close()


def test_a_writer_notices_a_migration_in_its_next_transaction(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with _open(path) as store:
        session = store.session("talk")
        session.append(Message.user("one"))
        _migrate(path)
        with pytest.raises(SchemaTooNew, match="newer Holdfast"):
            session.append(Message.user("two"))
        with pytest.raises(SchemaTooNew):
            session.append(Message.user("two"))
    assert _count(path) == 1


@pytest.mark.parametrize("durability", ["power", "process"])
def test_a_writer_changes_nothing_in_a_store_that_was_migrated(
    tmp_path: Path, durability: Durability
) -> None:
    """Neither its tenant nor the log that it would write through is noted there."""
    path = tmp_path / "store.db"
    with (
        holdfast.open(path, durability=durability) as wrote,
        holdfast.open(path, durability=durability, tenant="new") as store,
    ):
        session = wrote.session("talk")
        session.append(Message.user("one"))
        _migrate(path)
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute("INSERT INTO meta VALUES ('next', 1)")  # In a log of its own.
            before = connection.execute(_NOTED).fetchall()
            with pytest.raises(SchemaTooNew):
                store.backend.write(lambda _: None)
            with pytest.raises(SchemaTooNew):
                session.append(Message.user("two"))
            assert connection.execute(_NOTED).fetchall() == before


_NOTED = "SELECT name, NULL FROM tenants UNION ALL SELECT name, value FROM meta"


def test_a_reader_notices_a_migration_in_its_next_transaction(tmp_path: Path) -> None:
    """Also where the tables that it reads have other names by then."""
    path = tmp_path / "store.db"
    with _open(path) as store:
        store.session("talk").append(Message.user("one"))
        with holdfast.open(path, readonly=True) as reader:
            session = reader.session("talk", create=False)
            assert session.messages()
            _migrate(path)
            with pytest.raises(SchemaTooNew):
                session.messages()
            with pytest.raises(SchemaTooNew):
                session.queued()


def _count(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found: int = connection.execute("SELECT count(*) FROM messages").get
        return found
    finally:
        connection.close()


def test_the_format_is_read_only_after_commits_of_others(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    build_store(path)
    connection, other = apsw.Connection(str(path)), apsw.Connection(str(path))
    read: list[object] = []
    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: read.append(event["sql"]))
    probe = migrations.FormatProbe(connection, path, max(migrations.load()))
    for writer in (connection, connection, other, connection):
        writer.execute("UPDATE meta SET value = value + 1 WHERE name = 'fence'")
        if writer is connection:
            probe.note_commit()
        connection.execute("SELECT count(*) FROM meta").fetchall()
        probe.check()
    connection.close()
    other.close()
    assert read.count("PRAGMA user_version") == 1
