"""Limits of the system: each is an error of ours that says what to do, and nothing is stored."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import Invalid, ReadOnly, StoreFull, StoreUnavailable

_MAX_FREE = 8  # Descriptors; with as many, every call below succeeds at least once.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    with holdfast.open(path) as store:
        store.session("talk").append(Message.user("hello"), Message.assistant("x" * 70_000))
        store.export(tmp_path / "agent.jsonl", redact=None)
    return path


@contextmanager
def _descriptors_left(free: int) -> Iterator[None]:
    """Leave this process only so many descriptors that it may still open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, (entry.name for entry in Path("/proc/self/fd").iterdir())))
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + free, limits[1]))
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for descriptor in held[:free]:
            os.close(descriptor)
        del held[:free]
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


_CALLS: dict[str, Callable[[Store, Path], object]] = {
    "open": lambda _, at: holdfast.open(at / "agent.db").close(),
    "create": lambda _, at: holdfast.open(at / "new.db").close(),
    "read": lambda store, _: store.session("talk").messages(),
    "append": lambda store, _: store.session("talk").append(Message.user("more")),
    "window": lambda store, _: store.session("talk").window(),
    "verify": lambda store, _: store.verify(),
    "search": lambda store, _: store.search("hello"),
    "rebuild_index": lambda store, _: store.rebuild_index(),
    "export": lambda store, at: store.export(at / "new.jsonl"),
    "review": lambda store, _: store.review(),
    "import": lambda store, at: store.import_(at / "agent.jsonl"),
    "copy": lambda store, at: store.copy(at / "copy.db"),
    "backup": lambda store, at: store.backup(at / "backup.db"),
    "salvage": lambda store, at: store.salvage(at / "salvaged.db"),
    "stats": lambda store, _: store.stats(),
    "purge": lambda store, _: store.purge(store.session("other").id),
}


def _run_without_descriptors(name: str, path: Path) -> None:
    """Make a call with 0, 1, 2 … descriptors left; it succeeds, or raises an error of ours."""
    told = 0
    for free in range(_MAX_FREE + 1):
        with holdfast.open(path) as store, _descriptors_left(free):
            try:
                _CALLS[name](store, path.parent)
            except StoreUnavailable as error:
                told += "too many open files" in str(error)
            except Invalid:
                pass  # The file that an earlier round made exists.
    sys.stdout.write(str(told))


@pytest.mark.parametrize("name", _CALLS)
def test_a_process_without_descriptors_gets_errors_of_ours(name: str, path: Path) -> None:
    """Also from modules that are loaded late, as in a process of its own they all are."""
    script = "from tests.storage import test_system_limits as t; from pathlib import Path; "
    script += f"t._run_without_descriptors({name!r}, Path({str(path)!r}))"
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) > 0 or name in {"read", "search", "stats", "purge", "rebuild_index"}
    with holdfast.open(path) as store:
        assert store.verify() == []


def test_a_file_that_may_not_grow_is_a_full_store(path: Path) -> None:
    """The limit stops the log: nothing was stored, and that is what the error says."""
    with holdfast.open(path) as store:
        session = store.session("talk")
        session.append(Message.user("before"))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = path.with_name("agent.db-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, limits[1]))
        try:
            with pytest.raises(StoreFull, match="may not grow"):
                session.append(Message.user("y" * 60_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [m.text[:6] for m in session.messages()][2:] == ["before"]
        session.append(Message.user("after"))
    with holdfast.open(path) as store:
        assert [m.text[:6] for m in store.session("talk").messages()][2:] == ["before", "after"]
        assert store.verify() == []


# ------------------------------------------------------------------------------ read-only storage


def _mount_read_only(directory: Path) -> list[str]:
    bind = f"mount --bind '{directory}' '{directory}'"
    only_read = f"mount -o remount,ro,bind '{directory}'"
    return ["unshare", "--mount", "sh", "-c", f'{bind} && {only_read} && exec "$@"', "sh"]


def _refuse_to_write(path: Path) -> None:
    for name in ("agent.db", "new.db", "new/new.db"):
        with pytest.raises(ReadOnly):
            holdfast.open(path.parent / name)
    with holdfast.open(path, readonly=True) as store:
        assert len(store.session("talk").messages()) == 2
        assert store.verify() == []
        with pytest.raises(ReadOnly):
            store.backup(path.with_name("backup.db"))


def test_a_read_only_mount_is_called_so(path: Path) -> None:
    """Trying again does not help there."""
    mounted = _mount_read_only(path.parent)
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    script = "from tests.storage import test_system_limits as t; from pathlib import Path; "
    script += f"t._refuse_to_write(Path({str(path)!r}))"
    child = subprocess.run(
        [*mounted, sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
