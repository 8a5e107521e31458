"""A backend that was written from the documentation alone: it is found, and keeps every promise."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

import holdfast
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Damaged, StoreMoved, StoreUnavailable, UnknownBackend
from holdfast.storage import protocol, registry
from holdfast.storage.memory import MemoryBackend
from holdfast.storage.protocol import Backend
from holdfast.testing import BackendConformance
from holdfast.url import Location, parse_url
from holdfast.values import Message
from tests.storage.toy_backend import ToyBackend

_ROOT: Final = Path(__file__).parents[2]
_ENTRY_POINTS: Final = """
[holdfast.backends]
toy = tests.storage.toy_backend:ToyBackend
uninstalled = holdfast_uninstalled:Backend
renamed = tests.storage.toy_backend:FormerName
function = tests.storage.toy_backend:_unpack
broken = broken_backend:Backend
nested = nested_backend:Backends.toy
"""
_NESTED: Final = """
from tests.storage.toy_backend import ToyBackend

class Backends:
    toy = ToyBackend
"""
# Appends "a", then "b" with a process that is killed before the step with this number.
_KILLED: Final = """
import os, signal, sys
import holdfast

steps = int(sys.argv[2])

def killed_before(call):
    def run(*args):
        global steps
        steps -= 1
        if not steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args)
    return run

session = holdfast.open(sys.argv[1]).session("key")
session.append(holdfast.Message.user("a", id="a"))
os.fsync, os.replace = killed_before(os.fsync), killed_before(os.replace)
session.append(holdfast.Message.user("b", id="b"))
"""
_WRITER: Final = """
import sys
import holdfast

with holdfast.open(sys.argv[1] + "?deadline=600") as store:
    for n in range(20):
        store.session("key").append(holdfast.Message.user(f"{sys.argv[2]}{n}"))
"""


class TestToy(BackendConformance):
    """All of a tenant's rows in one file, which each commit replaces."""

    proves = False  # the disk blocks of replaced files cannot be searched

    def open_backend(self, folder: Path, *, tenant: str, readonly: bool, clock: Clock) -> Backend:
        return ToyBackend(
            Location("toy", str(folder / "store"), lease=600.0, deadline=60.0),
            tenant=tenant,
            durability="process",
            readonly=readonly,
            clock=clock,
        )


# --------------------------------------------------------------------------------- entry points


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that has backends; return the folder it is in."""
    info = tmp_path / "site" / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    (info.parent / "broken_backend.py").write_text("raise ValueError('of its own')")
    (info.parent / "nested_backend.py").write_text(_NESTED)
    monkeypatch.syspath_prepend(info.parent)
    return info.parent


def _python(*arguments: str, also: Path | None = None) -> subprocess.Popen[str]:
    """Start a process that can import the library and these tests."""
    path = [str(found) for found in (_ROOT / "src", _ROOT, also) if found is not None]
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_package_adds_a_backend(package: Path, tmp_path: Path) -> None:
    """`holdfast.open` and the command find it by the scheme; options that are ours are parsed."""
    url = f"toy:{tmp_path}/store"
    with holdfast.open(f"{url}?lease=7&size=5") as store:
        assert isinstance(store.backend, ToyBackend)
        assert (store.url, store.backend.lease) == (url, 7)
        store.session("a key", title="A title").append(Message.user("hello"))
    listing = _python("-m", "holdfast", "ls", "--store", url, also=package)
    out, err = listing.communicate()
    assert (listing.returncode, err) == (0, "")
    assert "A title" in out


def test_an_entry_point_may_refer_to_an_attribute_of_a_class(package: Path) -> None:
    assert registry.find_backend("nested") is ToyBackend


def test_the_password_of_a_url_is_not_shown() -> None:
    """Of any backend, unless it shows it itself."""
    location = parse_url("toy://user:a/secret:@host:5/name?password=secret", {})
    backend = MemoryBackend(location, tenant="default", readonly=False, clock=SystemClock())
    assert backend.url == "toy://user@host:5/name"
    assert Backend.shown(location) == "toy://user@host:5/name"
    assert Backend.shown(parse_url("toy://host:5/name", {})) == "toy://host:5/name"
    assert Backend.shown(parse_url("toy:a:b@c", {})) == "toy:a:b@c"


def test_the_command_creates_no_store_to_list(package: Path, tmp_path: Path) -> None:
    listing = _python("-m", "holdfast", "ls", "--store", f"toy:{tmp_path}/none", also=package)
    out, _ = listing.communicate()
    assert f"There is no store at toy:{tmp_path}/none yet" in out
    assert not (tmp_path / "none").exists()
    with pytest.raises(StoreUnavailable, match="there is no store"):
        holdfast.open(f"toy:{tmp_path}/none", readonly=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("toys", "no backend for 'toys'"),
        ("uninstalled", "needs the package holdfast_uninstalled"),
        ("renamed", "cannot be imported.*FormerName"),
        ("function", "is not a Backend"),
        ("broken", "cannot be imported: of its own"),
    ],
)
def test_a_backend_that_is_not_there(package: Path, tmp_path: Path, scheme: str, why: str) -> None:
    """One error for all, which says whose fault it is; no file is created."""
    with pytest.raises(UnknownBackend, match=why):
        holdfast.open(f"{scheme}:{tmp_path}/store")
    assert not (tmp_path / "store").exists()


def test_the_built_in_backends_are_entry_points() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][registry.ENTRY_POINTS] == registry.BUILT_IN


def test_the_documentation_lists_what_a_backend_implements() -> None:
    """All abstract methods, and no others."""
    page = (_ROOT / "docs" / "backends.md").read_text()
    for name in ("Snapshot", "Transaction", "Backend"):
        (row,) = re.findall(rf"^\| `{name}` \|([^|]*)\|([^|]*)\|$", page, re.MULTILINE)
        listed, derived = (set(re.findall(r"`(\w+)`", cell)) for cell in row)
        kind = getattr(protocol, name)
        assert listed == {one for one in kind.__abstractmethods__ if one in vars(kind)}
        assert derived <= {one for one in vars(kind) if one not in kind.__abstractmethods__}


# ------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("step", "stored"),
    [(1, ["a"]), (2, ["a"]), (3, ["a", "b"])],
    ids=["written", "synced", "renamed"],
)
def test_a_kill_between_the_steps_of_a_commit_loses_nothing(
    package: Path, tmp_path: Path, step: int, stored: list[str]
) -> None:
    """What was acknowledged is there, and a retry stores the rest once."""
    url = f"toy:{tmp_path}/store"
    child = _python("-c", _KILLED, url, str(step), also=package)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    with holdfast.open(url) as store:
        session = store.session("key")
        assert [m.text for m in session.messages()] == stored
        session.append(Message.user("b", id="b"))
        assert [m.text for m in session.messages()] == ["a", "b"]
        assert store.verify() == []


def test_processes_that_write_at_once_lose_nothing(package: Path, tmp_path: Path) -> None:
    """Each message is stored once, in the order of its process."""
    url = f"toy:{tmp_path}/store"
    names = ("x", "y", "z")
    writers = [_python("-c", _WRITER, url, name, also=package) for name in names]
    errors = [writer.communicate()[1] for writer in writers]
    assert errors == [""] * len(names)
    with holdfast.open(url) as store:
        texts = [m.text for m in store.session("key").messages()]
    for name in names:
        assert [text for text in texts if text[0] == name] == [f"{name}{n}" for n in range(20)]
    assert len(texts) == 60


def test_a_write_waits_for_the_lock_until_the_deadline(package: Path, tmp_path: Path) -> None:
    with holdfast.open(f"toy:{tmp_path}/store?deadline=0.01") as store:
        session = store.session("key")
        (lock,) = (tmp_path / "store").glob("*.lock")
        with lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailable, match="locked; nothing was stored"):
                session.append(Message.user("a"))
            assert session.messages() == []
        session.append(Message.user("b"))
        assert [m.text for m in session.messages()] == ["b"]


def test_a_changed_byte_is_found(package: Path, tmp_path: Path) -> None:
    """Reading raises, and `verify` reports it, although the rows were read before."""
    url = f"toy:{tmp_path}/store"
    with holdfast.open(url) as store:
        store.session("key").append(Message.user("hello"))
        (file,) = (path for path in (tmp_path / "store").iterdir() if not path.suffix)
        file.write_bytes(file.read_bytes().replace(b"hello", b"jello"))
        (damage,) = store.verify()
        assert "checksum" in damage.what
        with holdfast.open(url, readonly=True) as reader, pytest.raises(Damaged):
            reader.session("key")


def test_a_file_that_was_removed_is_not_an_empty_store(package: Path, tmp_path: Path) -> None:
    with holdfast.open(f"toy:{tmp_path}/store") as store:
        session = store.session("key")
        for path in (tmp_path / "store").iterdir():
            path.unlink()
        for use in (session.messages, lambda: session.append(Message.user("b"))):
            with pytest.raises(StoreMoved):
                use()
