"""The export file: private, complete or absent, and never in place of another file."""

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import Invalid, StoreFull, StoreUnavailable
from holdfast.transfer import export_file
from tests.sync_log import SyncLog, without_links


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_export_is_private(source: Store, tmp_path: Path, overwrite: bool) -> None:
    """Whatever the umask, also when it replaces a file that was not private."""
    path = tmp_path / "out.jsonl"
    if overwrite:
        path.write_text("old")
        path.chmod(0o666)
    with _umask(0):
        source.export(path, overwrite=overwrite)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert _names(tmp_path) == {"out.jsonl"}


def test_it_is_private_while_it_is_written(source: Store, tmp_path: Path) -> None:
    """Only its owner can read it from the start; until it is complete only its lock has a name."""
    seen: list[tuple[bool, int]] = []

    def look(done: int, total: int) -> None:
        for path in tmp_path.iterdir():
            mode = stat.S_IMODE(path.lstat().st_mode)
            seen.append((path.name.startswith(".out.jsonl."), mode))

    with _umask(0):
        source.export(tmp_path / "out.jsonl", progress=look)
    assert set(seen) == {(True, 0o600)}


@pytest.mark.parametrize("named", [False, True])
def test_until_it_is_complete_it_has_no_name_where_that_is_possible(
    source: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """So a kill leaves nothing of it; where every file has a name, it is a temporary one."""
    if named:
        monkeypatch.setattr(export_file, "_UNNAMED_FLAGS", os.O_WRONLY)
    sizes: list[int] = []

    def look(done: int, total: int) -> None:
        sizes.append(len(_names(tmp_path)))

    source.export(tmp_path / "out.jsonl", progress=look)
    assert set(sizes) == {2 if named else 1}  # its lock is there in both
    assert _names(tmp_path) == {"out.jsonl"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("links", [False, True])
def test_it_is_on_the_disk_before_it_has_its_name(
    source: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, links: bool
) -> None:
    """A power cut leaves a complete export or none; after the call returned, a complete one."""
    path = tmp_path / "out.jsonl"
    if overwrite:
        path.write_text("old")
    if not links:
        without_links(monkeypatch)
    log = SyncLog(monkeypatch)
    source.export(path, overwrite=overwrite)
    assert log.of(path)[-3:] == ["sync", "name", "sync folder"]


def test_an_existing_file_is_left_alone(source: Store, tmp_path: Path) -> None:
    """Unless the caller passes `overwrite`."""
    path = tmp_path / "out.jsonl"
    path.write_text("mine")
    with pytest.raises(Invalid, match="exists already"):
        source.export(path)
    assert path.read_text() == "mine"
    assert _names(tmp_path) == {"out.jsonl"}
    source.export(path, overwrite=True)
    assert path.read_bytes().startswith(b'{"type":"holdfast","version":2,')


def test_a_file_that_comes_meanwhile_is_left_alone(source: Store, tmp_path: Path) -> None:
    """The file is renamed at the end, and only if the target still does not exist."""
    path = tmp_path / "out.jsonl"

    def come(done: int, total: int) -> None:
        path.write_text("first")

    with pytest.raises(Invalid, match="exists already"):
        source.export(path, progress=come)
    assert path.read_text() == "first"
    assert _names(tmp_path) == {"out.jsonl"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_not_followed(
    source: Store, tmp_path: Path, overwrite: bool, dangling: bool
) -> None:
    """Neither the link nor its target is changed."""
    victim, path = tmp_path / "victim", tmp_path / "out.jsonl"
    if not dangling:
        victim.write_text("mine")
    path.symlink_to(victim)
    with pytest.raises(Invalid, match="is a symbolic link and is not followed"):
        source.export(path, overwrite=overwrite)
    assert path.is_symlink()
    assert victim.exists() != dangling
    assert dangling or victim.read_text() == "mine"
    assert _names(tmp_path) == {"out.jsonl"} | ({"victim"} - ({"victim"} if dangling else set()))


def test_a_link_that_comes_meanwhile_is_not_followed(source: Store, tmp_path: Path) -> None:
    """Also with `overwrite`."""
    victim, path = tmp_path / "victim", tmp_path / "out.jsonl"
    victim.write_text("mine")

    def come(done: int, total: int) -> None:
        if not path.is_symlink():
            path.symlink_to(victim)

    with pytest.raises(Invalid, match="is a symbolic link"):
        source.export(path, overwrite=True, progress=come)
    assert victim.read_text() == "mine"


def test_what_is_no_place_for_a_file(source: Store, tmp_path: Path) -> None:
    """A directory, a pipe, a missing directory, an empty name."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    before = _names(tmp_path)
    for name in ("folder", "pipe", "none/out.jsonl", "file/out.jsonl", "new/"):
        with pytest.raises(Invalid):
            source.export(os.fspath(tmp_path) + "/" + name, overwrite=True)
    with pytest.raises(Invalid):
        source.export("")
    assert _names(tmp_path) == before


@pytest.mark.parametrize("suffix", ["", "-wal", "-lock"])
def test_the_store_itself_is_not_written_over(tmp_path: Path, suffix: str) -> None:
    """However the path is spelled."""
    with holdfast.open(tmp_path / "agent.db") as store:
        store.session("k").append(Message.user("one"))
        (tmp_path / "sub").mkdir()
        for path in (tmp_path / f"agent.db{suffix}", tmp_path / "sub" / ".." / f"agent.db{suffix}"):
            with pytest.raises(Invalid, match="is the store itself"):
                store.export(path, overwrite=True)
        assert store.verify() == []


def test_nothing_is_left_when_the_disk_is_full(source: Store, tmp_path: Path) -> None:
    """The error says so, and no partial export remains."""
    source.session("talk").append(*[Message.user("x" * 60_000) for _ in range(100)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        with pytest.raises((StoreFull, StoreUnavailable)) as refused:
            source.export(tmp_path / "out.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.EFBIG
    assert _names(tmp_path) == set()


def test_an_empty_store(target: Store, tmp_path: Path) -> None:
    """An empty store can be exported and imported, too."""
    report = target.export(tmp_path / "out.jsonl")
    assert (report.sessions, report.messages, report.blobs) == (0, 0, 0)
    assert report.size == (tmp_path / "out.jsonl").stat().st_size
    assert target.import_(tmp_path / "out.jsonl", trust=True).damage == ()


def test_a_store_opened_for_reading_can_be_exported(tmp_path: Path) -> None:
    """Nothing is written to it."""
    with holdfast.open(tmp_path / "agent.db") as store:
        store.session("k").append(Message.user("one"))
    with holdfast.open(tmp_path / "agent.db", readonly=True) as store:
        assert store.export(tmp_path / "out.jsonl").messages == 1
