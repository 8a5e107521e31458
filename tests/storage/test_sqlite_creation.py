"""A store that another process makes, or takes away, while it is opened.

Each test puts the other process between two steps of opening, so that the outcome does not depend
on which of them is faster.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import Damaged
from holdfast.storage import registry
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.url import Location


@pytest.fixture
def others() -> Iterator[list[Store]]:
    """Stores that another process keeps open: their logs stay."""
    kept: list[Store] = []
    yield kept
    for store in kept:
        store.close()


def _made_by_another(path: Path, others: list[Store]) -> None:
    store = holdfast.open(path)
    others.append(store)
    store.session("talk").append(Message.user("from the other process", id="other"))
    assert location.wal_size(path) > 0


def _missed(path: Path, then: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `then` right after the check that found no file."""
    look = os.lstat
    happened: list[bool] = []

    def lstat(name: str | Path, **options: int | None) -> os.stat_result:
        try:
            return look(name, **options)
        except FileNotFoundError:
            if Path(name) == path and not happened:
                happened.append(True)
                then()
            raise

    monkeypatch.setattr(os, "lstat", lstat)


def _before_the_lock(then: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `then` before the lock is acquired under which a store is created."""
    enter = ProcessLock.acquire_within
    happened: list[bool] = []

    def enter_within(self: ProcessLock, seconds: float) -> None:
        if not happened:
            happened.append(True)
            then()
        enter(self, seconds)

    monkeypatch.setattr(ProcessLock, "acquire_within", enter_within)


def _ids(path: Path, *, readonly: bool = False) -> list[str]:
    with holdfast.open(path, readonly=readonly) as store:
        return [message.id for message in store.session("talk", create=False).messages()]


@pytest.mark.parametrize("readonly", [False, True])
def test_a_store_made_right_after_the_check_is_opened(
    tmp_path: Path, others: list[Store], monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    """A file created between the checks of file and log is not damage; both processes share it."""
    path = tmp_path / "store.db"
    _missed(path, partial(_made_by_another, path, others), monkeypatch)
    assert _ids(path, readonly=readonly) == ["other"]


def test_a_store_made_right_after_the_check_is_there_for_commands(
    tmp_path: Path, others: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The existence check returns true and does not report damage."""
    path = tmp_path / "store.db"
    _missed(path, partial(_made_by_another, path, others), monkeypatch)
    assert registry.missing_store(Location("sqlite", str(path))) is None


def test_a_store_made_before_the_lock_is_acquired_is_opened(
    tmp_path: Path, others: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    _before_the_lock(partial(_made_by_another, path, others), monkeypatch)
    assert _ids(path) == ["other"]


def test_a_store_taken_away_before_the_lock_is_acquired_leaves_its_log_alone(
    tmp_path: Path, others: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process's new file is deleted: its log is not replayed into a store made then."""
    path = tmp_path / "store.db"
    logs = []

    def made_and_deleted() -> None:
        _made_by_another(path, others)
        path.unlink()
        logs.append(location.companion(path, "-wal").read_bytes())

    _before_the_lock(made_and_deleted, monkeypatch)
    with pytest.raises(Damaged, match=r"store\.db-wal is there"):
        holdfast.open(path)
    assert not path.exists()
    assert location.companion(path, "-wal").read_bytes() == logs[0]


def test_a_log_that_is_removed_meanwhile_has_no_bytes(tmp_path: Path) -> None:
    """The last process that uses a store removes its log: counting its bytes then does not fail."""
    assert location.wal_size(tmp_path / "store.db") == 0
    (tmp_path / "store.db-wal").write_bytes(b"1234")
    assert location.wal_size(tmp_path / "store.db") == 4
