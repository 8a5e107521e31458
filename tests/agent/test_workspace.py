"""No path leads out of the workspace: written, linked, or swapped at the last moment."""

from __future__ import annotations

import fcntl
import fnmatch
import os
import secrets
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Message
from holdfast.agent.tools import workspace
from holdfast.agent.tools.file_tools import file_tools
from holdfast.agent.tools.function_tools import ToolError
from holdfast.agent.tools.glob import matcher
from holdfast.agent.tools.workspace import Workspace, WorkspacePath
from tests.agent.tools import Desk, refusal
from tests.sync_log import SyncLog


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "work-two").mkdir()
    (tmp_path / "work-two" / "x.txt").write_text("secret")
    return made


@pytest.fixture
def space(root: Path) -> Workspace:
    return Workspace(str(root))


# ------------------------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    "path",
    [
        *("../secret.txt", "..", "a/../../secret.txt", "/etc/passwd", "../work-two/x.txt", "/"),
        *("./../secret.txt", "a/b/../../../secret.txt", "//etc/passwd", "../work/../secret.txt"),
        *("~", "~/x"),
    ],
)
def test_a_path_that_leads_outside_is_refused(space: Workspace, path: str) -> None:
    assert "outside the workspace" in refusal(lambda: space.resolve(path))


def test_paths_inside_are_found_however_they_are_written(space: Workspace, root: Path) -> None:
    (root / "a").mkdir()
    for path in ("a/b.txt", "./a//b.txt", "a/../a/b.txt", f"{root}/a/b.txt", "../work/a/b.txt"):
        assert space.resolve(path) == WorkspacePath(("a", "b.txt"))
        assert space.resolve(path).display == "a/b.txt"
    assert space.resolve(".") == space.resolve("") == WorkspacePath(())


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "\ud800"])
def test_what_is_no_path_is_refused(space: Workspace, path: str) -> None:
    assert "not a valid path" in refusal(lambda: space.read(space.resolve(path)))


def test_links_are_followed_inside_and_refused_where_they_lead_out(
    space: Workspace, root: Path
) -> None:
    (root / "real.txt").write_text("inside")
    (root / "inner").symlink_to("real.txt")
    (root / "file").symlink_to("../secret.txt")
    (root / "folder").symlink_to(root.parent)
    (root / "chain").symlink_to("folder/secret.txt")
    (root / "loop").symlink_to("loop")
    assert space.read(space.resolve("inner")) == b"inside"
    for path in ("file", "folder", "folder/secret.txt", "chain"):
        assert "outside" in refusal(partial(space.resolve, path))
    assert "link" in refusal(lambda: space.read(space.resolve("loop")))


def test_a_workspace_that_is_a_link_itself_is_where_it_leads(root: Path) -> None:
    (root / "a.txt").write_text("a")
    (root.parent / "alias").symlink_to(root)
    space = Workspace(str(root.parent / "alias"))
    assert space.read(space.resolve("a.txt")) == b"a"
    assert space.read(space.resolve(f"{root.parent}/alias/a.txt")) == b"a"


# ------------------------------------------------------------------------------------- swapping


def test_a_file_swapped_for_a_link_after_the_check_is_not_followed(
    space: Workspace, root: Path
) -> None:
    (root / "a.txt").write_text("mine")
    place = space.resolve("a.txt")
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to("../secret.txt")
    assert "link" in refusal(lambda: space.read(place))
    assert "is a link" in refusal(lambda: space.write(place, b"new"))
    assert (root.parent / "secret.txt").read_text() == "secret"


def test_a_folder_swapped_for_a_link_after_the_check_is_not_followed(
    space: Workspace, root: Path
) -> None:
    (root / "a").mkdir()
    read, new = space.resolve("a/secret.txt"), space.resolve("a/new.txt")
    (root / "a").rmdir()
    (root / "a").symlink_to(root.parent)
    for work in (
        lambda: space.read(read),
        lambda: space.write(new, b"x"),
        lambda: space.write(WorkspacePath(("a", "b", "c")), b"x"),
    ):
        assert "is not a folder" in refusal(work)
    assert not (root.parent / "new.txt").exists()
    assert not (root.parent / "b").exists()
    assert space.is_file(read) is None


def _swap_behind_the_look(
    patch: pytest.MonkeyPatch, file: Path, swap: Callable[[], object]
) -> None:
    """Let something else have the name of a file once it was looked at, before it is opened."""
    look = os.stat

    def swapping(
        path: str | int, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        found = look(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        if path == file.name:
            file.unlink()
            swap()
        return found

    patch.setattr(os, "stat", swapping)


def _note_opened(patch: pytest.MonkeyPatch, name: str) -> list[tuple[int, int]]:
    """Note with which flags a file is opened, and its descriptor."""
    opened: list[tuple[int, int]] = []
    really = os.open

    def noting(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = really(path, flags, mode, dir_fd=dir_fd)
        if path == name:
            opened.append((flags, fd))
        return fd

    patch.setattr(os, "open", noting)
    return opened


def test_a_file_swapped_for_a_link_at_the_very_last_moment_is_not_followed(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at it and its opening."""
    file = root / "a.txt"
    file.write_text("mine")
    _swap_behind_the_look(monkeypatch, file, lambda: file.symlink_to("../secret.txt"))
    assert "is a link" in refusal(lambda: space.read(WorkspacePath(("a.txt",))))
    assert file.is_symlink()


def test_a_link_swapped_in_at_the_very_last_moment_is_not_written_through(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file takes the place of the link; where that led stays as it was."""
    file = root / "a.txt"
    file.write_text("mine")
    _swap_behind_the_look(monkeypatch, file, lambda: file.symlink_to("../secret.txt"))
    space.write(WorkspacePath(("a.txt",)), b"new")
    monkeypatch.undo()
    assert not file.is_symlink()
    assert file.read_text() == "new"
    assert (root.parent / "secret.txt").read_text() == "secret"


def test_a_link_planted_where_a_file_is_prepared_is_not_written_through(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name under which it is written first could be guessed, or seen."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (root / ".holdfast-guessed.new").symlink_to("../secret.txt")
    assert "File exists" in refusal(lambda: space.write(WorkspacePath(("a.txt",)), b"new"))
    assert (root.parent / "secret.txt").read_text() == "secret"
    assert not (root / "a.txt").exists()


def test_a_folder_swapped_for_a_link_when_it_was_just_made_is_not_followed(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.mkdir

    def swapping(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        really(name, mode, dir_fd=dir_fd)
        (root / name).rmdir()
        (root / name).symlink_to(root.parent)

    monkeypatch.setattr(os, "mkdir", swapping)
    assert "is not a folder" in refusal(lambda: space.write(WorkspacePath(("a", "new.txt")), b"x"))
    assert not (root.parent / "new.txt").exists()


def test_a_file_swapped_for_a_pipe_is_refused_without_waiting(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is opened is looked at again; and opening a pipe waits for a writer if it may."""
    file = root / "a.txt"
    file.write_text("mine")
    os.mkfifo(root / "pipe")
    writer = os.open(root / "pipe", os.O_RDWR)
    os.write(writer, b"of the pipe")
    opened = _note_opened(monkeypatch, "a.txt")
    _swap_behind_the_look(monkeypatch, file, lambda: (root / "pipe").rename(file))
    assert "is not a regular file" in refusal(lambda: space.read(WorkspacePath(("a.txt",))))
    os.close(writer)
    ((flags, _),) = opened
    assert flags & os.O_NONBLOCK


def test_a_file_swapped_for_a_folder_is_told_as_one(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root / "a.txt"
    file.write_text("mine")
    _swap_behind_the_look(monkeypatch, file, file.mkdir)
    assert "is a folder" in refusal(lambda: space.read(WorkspacePath(("a.txt",))))


def test_a_file_swapped_for_a_larger_one_is_read_up_to_the_limit(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root / "a.txt"
    file.write_text("mine")
    _swap_behind_the_look(monkeypatch, file, lambda: file.write_bytes(bytes(100)))
    assert "has 100 bytes, more than 10" in refusal(
        lambda: space.read(WorkspacePath(("a.txt",)), max_bytes=10)
    )


def test_nothing_gets_out_while_somebody_swaps_all_the_time(space: Workspace, root: Path) -> None:
    """A folder is a folder and a link by turns, as fast as that goes."""
    (root / "real").mkdir()
    (root / "real" / "secret.txt").write_text("mine")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for target in (root / "real", root.parent):
                link = root / "next"
                link.symlink_to(target)
                link.replace(root / "a")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(2_000):
            try:
                seen.add(space.read(space.resolve("a/secret.txt")))
            except ToolError:
                seen.add(b"")
    finally:
        stop.set()
        thread.join()
    assert b"secret" not in seen
    assert seen <= {b"mine", b""}


# -------------------------------------------------------------------------------------- reading


@pytest.fixture
def strange(root: Path) -> Iterator[list[str]]:
    os.mkfifo(root / "pipe")
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(root)  # The path of a socket may not be long.
    try:
        server.bind("socket")
    finally:
        os.chdir(here)
    (root / "dev").symlink_to("/dev/zero")
    yield ["pipe", "socket"]
    server.close()


def test_pipes_and_sockets_are_refused_without_waiting(
    space: Workspace, strange: list[str]
) -> None:
    for name in strange:
        place = space.resolve(name)
        assert "not a regular file" in refusal(partial(space.read, place))
        assert "not a regular file" in refusal(partial(space.write, place, b""))
    assert "outside" in refusal(lambda: space.resolve("dev"))


def test_folders_and_what_is_not_there_are_told(space: Workspace, root: Path) -> None:
    (root / "a").mkdir()
    (root / "f").write_text("x")
    assert "is a folder" in refusal(lambda: space.read(space.resolve("a")))
    assert "is a folder" in refusal(lambda: space.read(space.resolve(".")))
    assert "no such file" in refusal(lambda: space.read(space.resolve("b")))
    assert "not a folder" in refusal(lambda: space.read(space.resolve("f/x")))
    assert (space.is_file(space.resolve("f")), space.is_file(space.resolve("a"))) == (True, False)


def test_what_is_too_large_is_not_read(space: Workspace, root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(workspace.MAX_FILE_BYTES + 1)
    assert "more than 8,388,608" in refusal(lambda: space.read(space.resolve("sparse")))
    (root / "small").write_bytes(b"12345")
    assert space.read(space.resolve("small"), max_bytes=5) == b"12345"
    assert "more than 4" in refusal(lambda: space.read(space.resolve("small"), max_bytes=4))


def test_a_file_that_does_not_know_its_size_is_read_up_to_the_limit() -> None:
    """Files of the system say 0 bytes and hold more."""
    space = Workspace("/proc/self")
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc")
    assert "more than 10" in refusal(lambda: space.read(space.resolve("status"), max_bytes=10))


# -------------------------------------------------------------------------------------- writing


def test_a_file_is_written_with_its_folders_and_keeps_its_permissions(
    space: Workspace, root: Path
) -> None:
    assert space.write(space.resolve("a/b/c.txt"), b"one")
    assert (root / "a/b/c.txt").read_bytes() == b"one"
    (root / "a/b/c.txt").chmod(0o750)
    assert not space.write(space.resolve("a/b/c.txt"), b"two")
    assert (root / "a/b/c.txt").read_bytes() == b"two"
    assert stat.S_IMODE((root / "a/b/c.txt").stat().st_mode) == 0o750
    assert os.listdir(root / "a/b") == ["c.txt"]  # noqa: PTH208 - names are wanted


def test_a_link_to_a_file_inside_stays_a_link_and_its_target_is_written(
    space: Workspace, root: Path
) -> None:
    (root / "real").write_text("old")
    (root / "link").symlink_to("real")
    space.write(space.resolve("link"), b"new")
    assert (root / "link").is_symlink()
    assert (root / "real").read_text() == "new"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")

    def full(fd: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert "No space left" in refusal(lambda: space.write(space.resolve("a"), b"new"))
    assert (root / "a").read_text() == "old"
    assert os.listdir(root) == ["a"]  # noqa: PTH208 - names are wanted


@pytest.mark.parametrize("old", [None, "old"])
def test_a_file_is_on_the_disk_before_it_has_its_name(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch, old: str | None
) -> None:
    """A power cut leaves the old file or the new one, whole; and when it is done, the new one."""
    if old is not None:
        (root / "a").write_text(old)
    log = SyncLog(monkeypatch)
    space.write(space.resolve("a"), b"new")
    assert log.of(root / "a") == ["sync", "name", "sync folder"]


def test_the_folders_that_were_made_for_a_file_are_on_the_disk(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file would be lost with them."""
    log = SyncLog(monkeypatch)
    space.write(space.resolve("a/b/c"), b"new")
    assert log.of(root / "a/b/c") == ["sync", "name", "sync folder"]
    assert log.of(root / "a/b") == ["sync folder", "sync"]
    assert log.of(root / "a") == ["sync folder", "sync"]


@pytest.mark.parametrize(
    "path", [".git/config", ".GIT/hooks/x", "sub/.git", ".hg/x", ".g\u200cit/x"]
)
def test_a_repositorys_own_files_are_not_written(space: Workspace, path: str, root: Path) -> None:
    """Git runs what is named in there."""
    assert "version control" in refusal(lambda: space.write(space.resolve(path), b"x"))
    (root / ".git").mkdir()
    (root / "alias").symlink_to(".git")
    assert "version control" in refusal(lambda: space.write(space.resolve("alias/config"), b"x"))


@pytest.mark.parametrize("target", ["holdfast.toml", "sub/HoldFast.toml"])
def test_no_other_name_may_lead_to_what_says_what_is_allowed(
    space: Workspace, root: Path, target: str
) -> None:
    """Whoever allows writes looks at the name; by its own name it can be asked for."""
    (root / "sub").mkdir()
    (root / target).write_text("mine")
    (root / "notes.txt").symlink_to(target)
    (root / "folder").symlink_to("sub")
    place = space.resolve("notes.txt")
    said = refusal(lambda: space.check_writable(place, "notes.txt"))
    assert said == f"'notes.txt' leads to {target}; name that file itself."
    space.check_writable(space.resolve(target), target)
    space.check_writable(space.resolve("folder/a.txt"), "folder/a.txt")


def test_a_name_that_could_fool_whoever_is_asked_is_not_written(space: Workspace) -> None:
    assert "control characters" in refusal(lambda: space.write(space.resolve("a\n+b"), b""))
    assert space.write(space.resolve("für 日本.txt"), b"")


# ---------------------------------------------------------------------------- files of our own


_TRY_TO_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(3)
"""


def _is_locked(path: Path) -> bool:
    command = [sys.executable, "-c", _TRY_TO_LOCK, str(path)]
    return subprocess.run(command, check=False).returncode == 3


def test_reading_does_not_unlock_what_this_process_has_locked(root: Path) -> None:
    """Closing any descriptor of a file drops all locks on it: so would reading a database."""
    (root / "ours.db").write_text("needle")
    (root / "other.txt").write_text("needle")
    (root / "alias").hardlink_to(root / "ours.db")
    desk = Desk(file_tools(str(root)), root)
    with (root / "ours.db").open("r+") as ours:
        fcntl.lockf(ours, fcntl.LOCK_EX)
        assert _is_locked(root / "ours.db")
        for name in ("ours.db", "alias"):
            assert "in use by this program" in desk.fail("read_file", path=name)
            assert "in use" in desk.fail("write_file", path=name, content="x")
            assert "in use" in desk.fail("edit_file", path=name, old="needle", new="x")
        assert desk.run("search_files", text="needle").split("\n") == [
            "other.txt:1: needle",
            "[not searched: 2 files, too large or unreadable]",
        ]
        desk.run("list_files")
        assert _is_locked(root / "ours.db")
    assert not _is_locked(root / "ours.db")
    assert desk.run("read_file", path="ours.db") == "needle"
    desk.close()


def test_a_file_swapped_for_one_of_our_own_does_not_unlock_it(
    space: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened by then: so it stays open, for closing it would drop the locks."""
    ours, file = root.parent / "ours.db", root / "a.txt"
    ours.write_text("ours")
    file.write_text("mine")
    opened = _note_opened(monkeypatch, "a.txt")
    with ours.open("r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            _swap_behind_the_look(patch, file, lambda: file.hardlink_to(ours))
            assert "in use by this program" in refusal(
                lambda: space.read(WorkspacePath(("a.txt",)))
            )
        assert _is_locked(ours)
    ((_, fd),) = opened
    os.close(fd)


def test_a_store_in_the_workspace_is_left_alone(root: Path) -> None:
    desk = Desk(file_tools(str(root)), root)
    with holdfast.open(root / "agent.db", durability="process") as store:
        store.create().append(Message.user("hello"))
        assert "in use" in desk.fail("read_file", path="agent.db")
        assert desk.run("search_files", text="hello").startswith("(not found)")
    desk.close()


# -------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/deep/a.py", True),
        ("*.py", "a.pyc", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/deep/a.py", False),
        ("src/**/*.py", "src/deep/er/a.py", True),
        ("src/**/*.py", "src/a.py", True),
        ("**/test_*", "test_x", True),
        ("**", "a/b/c", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*.{ts,tsx}", "a.tsx", True),
        ("*.{ts,tsx}", "a.t", False),
        ("{a,b}/{c,d}.x", "b/d.x", True),
        ("./a.py", "a.py", True),
        ("a[b].py", "a[b].py", True),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("*", "", False),
    ],
)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    assert matcher(pattern)(path.split("/") if path else []) is fits


@given(st.text("ab*?", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=8))
def test_a_name_fits_as_elsewhere(pattern: str, name: str) -> None:
    assert matcher(f"x/{pattern}")(["x", name]) is fnmatch.fnmatchcase(name, pattern)


@given(
    st.lists(st.sampled_from(["**", "*", "a", "b", "a*"]), min_size=2, max_size=5),
    st.lists(st.sampled_from(["a", "b", "ab"]), max_size=5),
)
def test_a_path_fits_if_it_can_be_cut_to_fit(parts: list[str], names: list[str]) -> None:
    def fits(parts: list[str], names: list[str]) -> bool:
        if not parts:
            return not names
        if parts[0] == "**":
            return any(fits(parts[1:], names[n:]) for n in range(len(names) + 1))
        return (
            bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and fits(parts[1:], names[1:])
        )

    assert matcher("/".join(parts))(names) is fits(parts, names)


def test_evil_patterns_are_not_slow() -> None:
    name = "a" * 255
    assert not matcher("*a" * 200 + "b")([name])
    assert not matcher("**/" * 160 + "b")([name] * 100)
    assert "alternatives" in refusal(lambda: matcher("{a,b}" * 30))
    assert "characters" in refusal(lambda: matcher("*" * 501))
