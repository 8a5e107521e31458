"""What the proof of an erasure searches, beside the store: no copy is missed, none is harmed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import File, Goal, Message, Session, Store
from holdfast.storage.sqlite import connection, residue_scan
from holdfast.values import Scan

CANARY = "zanzibar-quokka-8841 under the third stone"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def _erased(store: Store, *, before: Callable[[], object]) -> Scan:
    """Say the canary, do something, and erase it."""
    session = store.session("talk")
    session.append(Message.user(CANARY))
    before()
    report = session.erase(1)
    assert report.scan is not None
    return report.scan


@pytest.mark.parametrize("size", [20, 60_000, 200_000])
@pytest.mark.parametrize("shift", range(3))
def test_an_export_that_holds_an_erased_file_is_named(path: Path, size: int, shift: int) -> None:
    """An export has files in base64, at any distance from a multiple of three bytes."""
    data = b"-" * shift + b"".join(b"line %d; " % number for number in range(size // 8))
    with holdfast.open(path) as store:
        store.session("talk").append(Message.user([File("a.txt", "text/plain", data[:size])]))
        store.export(path.with_name("kept.jsonl"), redact=None)
        report = store.purge("talk")
    assert report.scan is not None
    assert (report.scan.found, report.scan.copies) == ((), ("kept.jsonl",))


@pytest.mark.parametrize("name", ["support-queue", "notes-lock", "old-shm", "agent.db.before-2024"])
def test_a_copy_whose_name_is_like_one_of_ours_is_named_and_stays(path: Path, name: str) -> None:
    copy = path.with_name(name)
    with holdfast.open(path) as store:
        scan = _erased(store, before=lambda: store.backup(copy))
    assert scan.copies == (name,)
    assert copy.exists()


@pytest.mark.parametrize("name", ["unfinished", "tasks.unfinished"])
def test_a_store_of_any_name_is_searched(tmp_path: Path, name: str) -> None:
    with holdfast.open(tmp_path / name) as store:
        scan = store.backend.scan([b"SQLite format 3"])  # In the file, and in no row of it.
    assert (scan.found, scan.copies) == ((name,), ())


def test_an_unfinished_copy_without_its_link_is_named(path: Path) -> None:
    """The directory was moved since, and the copy's first bytes are not written yet."""
    left = path.with_name(".b.db.aaaaaaaaaaaaaaaa.new")
    with holdfast.open(path) as store:
        scan = _erased(store, before=lambda: left.write_bytes(bytes(4096) + CANARY.encode()))
    assert scan.copies == (left.name,)


def test_a_copy_with_a_name_that_cannot_be_opened_is_a_problem(path: Path) -> None:
    copy = os.path.join(os.fsencode(path.parent), b"caf\xe9.db")  # noqa: PTH118 - bytes
    with holdfast.open(path) as store:
        store.backup(path.with_name("kept.db"))
        scan = _erased(store, before=lambda: path.with_name("kept.db").rename(os.fsdecode(copy)))
    assert not scan.clean
    assert scan.problem is not None
    assert "caf\\udce9.db" in scan.problem


def test_a_copy_that_may_not_be_read_is_a_problem(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup that root's nightly job left beside a user's store is not passed over."""

    def open_file(file: Path, vfs: str | None) -> AbstractContextManager[apsw.VFSFile]:
        if file.name == "nightly.db":
            raise apsw.CantOpenError
        return connection.open_file(file, vfs)

    monkeypatch.setattr(residue_scan, "open_file", open_file)
    with holdfast.open(path) as store:
        scan = _erased(store, before=lambda: store.backup(path.with_name("nightly.db")))
    assert not scan.clean
    assert scan.problem is not None
    assert scan.problem.endswith("cannot be read, and was not searched: nightly.db")
    assert scan.files == 2  # The others were.


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_what_is_planted_in_the_place_of_an_index_neither_hangs_nor_is_read(
    path: Path, kind: str
) -> None:
    """The proof says that it is none."""
    planted = path.with_name("agent.db-search.7")
    victim = path.parent / "victim"
    victim.write_text(CANARY)
    plant: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(planted),
        "link": lambda: planted.symlink_to(victim),
        "directory": planted.mkdir,
    }
    with holdfast.open(path) as store:
        scan = _erased(store, before=plant[kind])
    assert scan.problem is not None
    assert "agent.db-search.7 is not a regular file" in scan.problem
    assert victim.read_text() == CANARY


def test_a_link_in_the_place_of_the_damaged_store_is_not_followed(path: Path) -> None:
    private = path.parent / "private"
    private.mkdir()
    (private / "diary.txt").write_text(CANARY)
    path.with_name("agent.damaged").symlink_to(private)
    with holdfast.open(path) as store:
        assert _erased(store, before=lambda: None).copies == ()


_FIELDS: dict[str, Callable[[Session], object]] = {
    "title": lambda session: session.update(title=CANARY),
    "goal": lambda session: session.update(goal=Goal(CANARY)),
    "metadata": lambda session: session.update(metadata={"note": CANARY}),
    "queue": lambda session: session.enqueue(CANARY),
    "file in the queue": lambda session: session.enqueue(
        Message.user([File("a.txt", "text/plain", CANARY.encode())])
    ),
}


@pytest.mark.parametrize("how", ["purge", "retention"])
@pytest.mark.parametrize("field", _FIELDS)
def test_copies_that_hold_only_a_purged_session_s_fields_are_named(
    path: Path, field: str, how: str
) -> None:
    with holdfast.open(path) as store:
        session = store.session("talk")
        _FIELDS[field](session)
        store.backup(path.with_name("kept.db"))
        store.export(path.with_name("kept.jsonl"), redact=None)
        if how == "purge":
            scan = store.purge("talk").scan
        else:
            store.trash("talk")
            scan = store.apply(store.retention(empty_trash=timedelta(0))).scan
    assert scan is not None
    assert (scan.found, scan.copies) == ((), ("kept.db", "kept.jsonl"))
