"""Whatever makes a store or a copy of one, killed at the Nth write or sync: whole, or not there.

What the killed process left is hidden, and is removed when the same file is made again.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.testing.faults import Shim, every
from holdfast.testing.faults.shim import FaultKind, ShimOperation

NEW = "new.db"
MAKERS = {
    "salvage": "holdfast.open(source, readonly=True).salvage(new)",
    "backup": "holdfast.open(source, readonly=True).backup(new)",
    "export": "holdfast.open(source, readonly=True).export(new, redact=None)",
    "creation": "holdfast.open(new).close()",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.db"
    with holdfast.open(path) as store:
        for name in ("one", "two"):
            store.session(name).append(*(Message.user(f"{name} {n} " * 50) for n in range(20)))
    return path


@pytest.fixture
def private_source(source: Path, tmp_path: Path) -> Path:
    """A copy outside of the folders that fail."""
    (tmp_path / "source").mkdir()
    return Path(shutil.copy(source, tmp_path / "source"))


def _make(maker: str, source: Path, folder: Path) -> list[str]:
    names = {"holdfast": holdfast, "source": str(source), "new": str(folder / NEW)}
    exec(MAKERS[maker], names)  # noqa: S102 - the line that the killed child ran
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("on", ["write", "sync"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_killed_maker_of_a_file_leaves_a_whole_one_or_none(
    shim: Shim, private_source: Path, tmp_path: Path, maker: str, on: ShimOperation
) -> None:
    (tmp_path / "expected").mkdir()
    made = _make(maker, private_source, tmp_path / "expected")
    whole = _content(tmp_path / "expected", maker)

    def child(folder: Path) -> list[str]:
        script = f"import sys, holdfast; source, new = sys.argv[1:]; {MAKERS[maker]}"
        return [sys.executable, "-c", script, str(private_source), str(folder / NEW)]

    kills = 0
    kind: FaultKind = "kill"
    for outcome in every(shim, child, kind=kind, on=on, under=tmp_path / on, first=3, step=11):
        folder = outcome.directory
        shown = {file.name for file in folder.iterdir() if not file.name.startswith(".")}
        if outcome.killed:
            kills += 1
            assert NEW not in shown or _content(folder, maker) == whole, outcome.command
        if NEW not in shown:
            assert _make(maker, private_source, folder) == made, outcome.command
        assert _content(folder, maker) == whole, outcome.command
    assert kills


def _content(folder: Path, maker: str) -> object:
    """Everything that a file says, except when and by what it was made."""
    if maker == "export":
        return (folder / NEW).read_bytes().partition(b"\n")[2]
    assert verify_file(folder / NEW) == []
    with holdfast.open(folder / NEW, readonly=True) as store:
        infos = sorted(store.sessions(limit=9), key=lambda info: info.id)
        return [(info.key, store.get(info.id).messages()) for info in infos]
