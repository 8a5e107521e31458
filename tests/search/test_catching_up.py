"""Searching while the index catches up: quick, with a small WAL, and silent about nothing."""

import errno
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Store
from holdfast.search import engine, fts5, index_file, indexer, manager, scan
from holdfast.search.fts5 import IndexFile, index_errors
from holdfast.search.index_erasure import Eraser
from holdfast.search.manager import IndexManager
from holdfast.search.protocol import Bounds, Chunk, IndexStorage
from holdfast.search.query import Query
from holdfast.storage.protocol import Backend
from holdfast.testing.conformance.fixtures import run_concurrently

_TALKS, _MESSAGES = 10, 40
_ALL = _TALKS * _MESSAGES
_LONG = 60.0  # seconds


def _fill(store: Store) -> None:
    for talk in range(_TALKS):
        words = (f"word{talk}x{number} of the talk" for number in range(_MESSAGES - 1))
        texts = [*words, f"needle n{talk} =="]
        store.session(f"talk-{talk}").append(*map(Message.user, texts))


def _hurry(patch: pytest.MonkeyPatch, *, step: int = 20, scanned: int = 50) -> None:
    """Let a search index one step, scan little, and leave the rest to others."""
    patch.setattr(indexer, "_BATCH_MESSAGES", step)
    patch.setattr(manager, "_QUICK_CATCH_UP_S", 0.0)
    patch.setattr(engine, "_SCAN_S", 0.0)
    patch.setattr(scan, "_MIN_SCANNED", scanned)


def _in_nobodys_background(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexManager, "_start_background", lambda self: None)


def _found(store: Store, query: str) -> list[str]:
    return [hit.snippet for hit in store.search(query, limit=1000)]


# ------------------------------------------------------------------------------- how far behind


def test_a_search_says_how_many_messages_it_has_not_searched(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scans the newest, whole sessions of 40 here, and each search indexes 20 of the oldest."""
    _hurry(monkeypatch)
    _in_nobodys_background(monkeypatch)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        for before in range(3):
            page = store.search("needle", limit=1000)
            assert {hit.snippet for hit in page} >= {"needle n9 ==", "needle n8 =="}
            assert page.behind == _ALL - 20 * (before + 1) - 2 * _MESSAGES
        store.catch_up_index()
        page = store.search("needle", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)


def test_what_can_be_searched_at_once_is(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is not looked at before the newest messages are scanned: a small backlog is all seen."""
    _hurry(monkeypatch, scanned=_ALL)
    _in_nobodys_background(monkeypatch)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        page = store.search("needle", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)


def test_what_was_just_said_is_found_while_the_index_catches_up(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search does not wait for the thread that indexes."""
    _hurry(monkeypatch)
    at_work, go_on = threading.Event(), threading.Event()
    step = indexer.step

    def slow(backend: Backend, storage: IndexStorage, batches: int) -> bool:
        if threading.current_thread().name == "holdfast-index":
            at_work.set()
            assert go_on.wait(_LONG)
        return step(backend, storage, batches)

    monkeypatch.setattr(indexer, "step", slow)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        assert store.search("nothing").behind
        assert at_work.wait(_LONG)
        try:
            for number in range(3):
                store.session("talk-0").append(Message.user(f"just{number}"))
                assert _found(store, f"just{number}") == [f"just{number}"]
        finally:
            go_on.set()
        store.catch_up_index()
        page = store.search("needle", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)


def test_punctuation_is_searched_for_in_all_messages(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index will never have it, so there is nothing to wait for."""
    _hurry(monkeypatch)
    _in_nobodys_background(monkeypatch)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        page = store.search("==", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)


def test_one_session_is_searched_whatever_the_others_have(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hurry(monkeypatch)
    _in_nobodys_background(monkeypatch)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        page = store.search("needle", session="talk-3")
        assert ([hit.snippet for hit in page], page.behind) == (["needle n3 =="], 0)


def test_all_is_scanned_where_nobody_can_index_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, and in a store opened read-only with a partial index."""
    _hurry(monkeypatch, scanned=0)
    _in_nobodys_background(monkeypatch)
    path = tmp_path / "agent.db"
    with holdfast.open(path, durability="process") as store:
        _fill(store)
        assert store.search("nothing").behind
    with holdfast.open(path, readonly=True) as store:
        assert store.index_status().state == "behind"
        page = store.search("needle", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)

    def full(self: IndexFile, docs: object) -> None:
        with index_errors():
            raise apsw.FullError

    monkeypatch.setattr(IndexFile, "add", full)
    with holdfast.open(path) as store:
        page = store.search("needle", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)


def test_a_search_without_an_index_ends_at_the_deadline(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads whole sessions of 40, the newest first, and says how many messages it missed."""
    monkeypatch.setattr(scan, "_MIN_SCANNED", 50)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
    with holdfast.open(shared_url, readonly=True) as store:
        assert store.index_status().state == "missing"
        page = store.search("needle", limit=1000)
        assert (len(page), page.behind) == (_TALKS, 0)
        monkeypatch.setattr(store._backend, "deadline", 0.0)  # noqa: SLF001 - it has passed
        page = store.search("needle", limit=1000)
        assert {hit.snippet for hit in page} == {"needle n9 ==", "needle n8 =="}
        assert page.behind == _ALL - 2 * _MESSAGES


def test_a_search_for_punctuation_ends_at_the_deadline(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and beside a word, where only the messages with the word are read."""
    monkeypatch.setattr(scan, "_MIN_SCANNED", 0)
    with holdfast.open(shared_url, durability="process") as store:
        _fill(store)
        store.catch_up_index()
        monkeypatch.setattr(store._backend, "deadline", 0.0)  # noqa: SLF001 - it has passed
        for query in ("==", "needle =="):
            page = store.search(query, limit=1000)
            assert (len(page), page.behind) == (0, _ALL)
        assert store.search("needle", limit=1000).behind == 0


def test_another_process_that_indexes_is_not_waited_for(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its work counts: what is missing will be there soon."""
    _hurry(monkeypatch)
    _in_nobodys_background(monkeypatch)
    with (
        holdfast.open(shared_url, durability="process") as store,
        holdfast.open(shared_url, durability="process") as other,
    ):
        _fill(store)
        assert store.search("nothing").behind == _ALL - 20 - 2 * _MESSAGES
        step = indexer.step
        seen: list[int] = []

        def meanwhile(backend: Backend, storage: IndexStorage, batches: int) -> bool:
            monkeypatch.setattr(indexer, "step", step)
            seen.append(other.search("needle").behind)
            return step(backend, storage, batches)

        monkeypatch.setattr(indexer, "step", meanwhile)
        assert store.search("needle").behind == _ALL - 40 - 2 * _MESSAGES
        assert seen == [_ALL - 20 - 2 * _MESSAGES]


# ------------------------------------------------------------------------------ its WAL, its size


def test_the_wal_stays_small_although_the_index_is_always_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader begins before the last one ends, so the WAL is never free by itself."""
    bound = 200_000
    monkeypatch.setattr(indexer, "_BATCH_MESSAGES", 10)
    monkeypatch.setattr(manager, "_STEP_BATCHES", 1)
    monkeypatch.setattr(manager, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(fts5, "_MAX_WAL_BYTES", bound)
    sizes: list[int] = []
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        _fill(store)
        index_file.create(tmp_path / "agent.db-search")

        def note(_done: int, _all: int) -> None:
            sizes.append((tmp_path / "agent.db-search-wal").stat().st_size)

        reader = _Reader(tmp_path)
        while store.index_status().behind:
            store.catch_up_index(note)
            reader, last = _Reader(tmp_path), reader
            last.close()
        reader.close()
        assert len(_found(store, "needle")) == _TALKS
    steps = [after - before for before, after in pairwise(sizes)]
    assert sum(step for step in steps if step > 0) > 5 * bound
    assert max(sizes) <= bound + max(steps)


class _Reader:
    """A search that does not come to its end."""

    def __init__(self, folder: Path) -> None:
        self._index = IndexFile(folder / "agent.db-search")
        self._snapshot = self._index.reading()
        self._snapshot.__enter__()

    def close(self) -> None:
        self._snapshot.__exit__(None, None, None)
        self._index.close()


def test_a_step_has_no_more_text_than_a_search_can_wait_for(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one session with long messages."""
    monkeypatch.setattr(indexer, "_BATCH_TEXT", 250)
    monkeypatch.setattr(manager, "_STEP_BATCHES", 1)
    done: list[int] = []
    with holdfast.open(shared_url, durability="process") as store:
        store.session("long").append(*(Message.user("x" * 100) for _ in range(10)))
        store.catch_up_index(lambda number, _: done.append(number))
    assert done == [3, 6, 9, 10]


@pytest.mark.parametrize("refused", [1, 2, 10**6])
def test_a_thread_that_cannot_be_started_costs_no_message_and_adds_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """The batches are added one after the other then; what was handed over is not added later."""
    monkeypatch.setattr(indexer, "_BATCH_MESSAGES", 30)
    start, refusals = threading.Thread.start, iter(range(refused))

    def start_if_possible(thread: threading.Thread) -> None:
        if thread.name.startswith("holdfast-index-writer") and next(refusals, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        _fill(store)
        monkeypatch.setattr(threading.Thread, "start", start_if_possible)
        assert store.catch_up_index()
        assert next(refusals, refused) > 0
        assert store.check_index() == []
        assert store.index_status().messages == _ALL
        assert len(_found(store, "needle")) == _TALKS


# ------------------------------------------------------------------------------------ check_index


def test_an_index_that_grows_is_not_reported_as_corrupt(shared_url: str) -> None:
    """Its segments are merged between the checks, which a reader's cached list of them misses."""
    with holdfast.open(shared_url, durability="process") as store:
        session = store.session("talk")
        for number in range(40):
            session.append(Message.user(f"word{number} and more"))
            store.catch_up_index()
            assert store.check_index() == [], number


def test_an_erasure_under_way_is_not_reported_as_an_unusable_index(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its write to the log and its removal from the index, the index is stale."""
    written, waited_for = threading.Event(), threading.Event()
    finish, await_erasure = Eraser.finish, IndexManager._await_erasure  # noqa: SLF001 - to pause it

    def paused(eraser: Eraser) -> None:
        written.set()
        assert waited_for.wait(_LONG)
        finish(eraser)

    def waiting(index: IndexManager) -> None:
        waited_for.set()
        await_erasure(index)

    monkeypatch.setattr(Eraser, "finish", paused)
    monkeypatch.setattr(IndexManager, "_await_erasure", waiting)
    monkeypatch.setattr(manager, "_LOCK_TIMEOUT_S", _LONG)
    found: list[list[str]] = []
    with (
        holdfast.open(shared_url, durability="process") as store,
        holdfast.open(shared_url, durability="process") as other,
    ):
        _fill(store)
        store.catch_up_index()
        store.trash("talk-3")

        def check() -> None:
            assert written.wait(_LONG)
            found.append(other.check_index())

        run_concurrently(lambda: store.purge("talk-3"), check)
    assert found == [[]]


# -------------------------------------------------------------------------------- too many files


@pytest.mark.parametrize("file_exists", [True, False])
def test_too_many_open_files_cost_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_exists: bool
) -> None:
    """A search reads the log meanwhile; the index is used, or made, when files can be opened."""
    path, index = tmp_path / "agent.db", tmp_path / "agent.db-search"
    with holdfast.open(path, durability="process") as store:
        _fill(store)
        if file_exists:
            store.catch_up_index()
    before = index.stat().st_ino if file_exists else None

    def refuse(*_: object, **__: object) -> None:
        raise apsw.CantOpenError

    def refuse_creation(_: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with holdfast.open(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(index_file, "connect", refuse)
            patch.setattr(index_file, "create", refuse_creation)
            for _ in range(5):
                assert len(_found(store, "needle")) == _TALKS
            assert store.damage == []
        assert len(_found(store, "needle")) == _TALKS
        store.catch_up_index()
        assert store.index_status().state == "ready"
    assert before in (None, index.stat().st_ino)


def _overwrite(index: IndexFile, patch: pytest.MonkeyPatch) -> None:
    """Do what another process does that deletes an index, but for the last step."""
    unlink = Path.unlink

    def keep_it(file: Path, *, missing_ok: bool = False) -> None:
        if file != index.path:
            unlink(file, missing_ok=missing_ok)

    with patch.context() as removing:
        removing.setattr(Path, "unlink", keep_it)
        index_file.remove(index.path)


def test_no_check_reports_an_index_that_another_process_is_deleting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is overwritten before it is deleted: what a check reads then is no damage."""
    problems = IndexFile.problems

    def read(index: IndexFile) -> list[str]:
        _overwrite(index, monkeypatch)
        try:
            return problems(index)
        finally:
            index.path.unlink()

    with holdfast.open(tmp_path / "a.db", durability="process") as store:
        _fill(store)
        store.catch_up_index()
        monkeypatch.setattr(IndexFile, "problems", read)
        assert store.check_index() == []


def test_an_index_is_not_rebuilt_because_a_search_read_one_that_was_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search reads the log, and takes the next index for what it is."""
    path, matching = tmp_path / "a.db", IndexFile.matching

    def read(index: IndexFile, query: Query, bounds: Bounds, *, thinking: bool) -> Iterator[Chunk]:
        _overwrite(index, monkeypatch)
        try:
            yield from matching(index, query, bounds, thinking=thinking)
        finally:
            index.path.unlink()

    with holdfast.open(path, durability="process") as store:
        _fill(store)
        store.catch_up_index()
    with holdfast.open(path, durability="process") as store:
        with monkeypatch.context() as patch:
            patch.setattr(IndexFile, "matching", read)
            patch.setattr(IndexManager, "catch_up_briefly", lambda _: False)
            assert len(store.search("needle")) == _TALKS
        with holdfast.open(path, durability="process") as another:
            another.catch_up_index()
        made = (tmp_path / "a.db-search").stat().st_ino
        assert len(store.search("needle")) == _TALKS
        store.catch_up_index()
        assert (tmp_path / "a.db-search").stat().st_ino == made
