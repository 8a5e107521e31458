"""A move and appends after it, in one transaction that fails: no cache keeps any of it.

A move opens a branch, whose number the database reuses after a rollback, perhaps for another
session. A store caches the ancestry of branches; entries made inside a failed transaction must be
discarded, or it would read one session's history as another's.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from holdfast import Head, Message, Session, Store, codec
from holdfast.clock import EPOCH
from holdfast.errors import (
    BadQuery,
    Conflict,
    HeadMoved,
    OutcomeUnknown,
    StorageError,
)
from holdfast.operations import append, deletion, head_moves, sessions
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, PendingWrite, Transaction
from holdfast.testing.faults import FailingDisk, failing_disk
from tests.crash._facts import DATABASE, open_store
from tests.crash._messages import message
from tests.crash._scenes import look

PATIENCE = 60
MARK = "the mark of one write"
MakeVerb: TypeAlias = Callable[[Session], Operation[Any]]


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    """A disk that fails on demand."""
    with failing_disk() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path, disk: FailingDisk) -> Iterator[Store]:
    """A store with two talks of three messages each, and a third of one."""
    with open_store(tmp_path / DATABASE, vfs=disk.name) as made:
        for key in ("one", "two"):
            made.session(key).append(*(message(f"user-{key}{number}") for number in (1, 2, 3)))
        made.session("three").append(message("user-three1"))
        yield made


@contextmanager
def _gathered(store: Store) -> Iterator[None]:
    """Queue the operations submitted in this block, and run them in one transaction at its end."""
    entered, go_on = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        entered.set()
        go_on.wait(PATIENCE)

    holding = store.backend.submit(hold)
    assert entered.wait(PATIENCE)
    yield
    go_on.set()
    holding.result()


def _rewind(session: Session, to: int, token: str) -> Operation[Head]:
    return head_moves.rewind(number_of(session), to, token=token, expect=None)


def _append(session: Session, *ids: str, expect: Head | None = None) -> Operation[Head]:
    batch, _ = codec.encode_batch([message(id) for id in ids], EPOCH)
    return append.append(number_of(session), batch, expect=expect)


def _together(store: Store, verbs: Sequence[Operation[Head]]) -> list[PendingWrite[Head]]:
    with _gathered(store):
        return [store.backend.submit(verb) for verb in verbs]


def _ids(session: Session) -> list[str]:
    return [found.id for found in session.messages()]


def _must_be_as_on_the_disk(store: Store, path: Path) -> None:
    """Assert that this store, with its caches, reads the same as a newly opened one."""
    assert store.verify() == []
    with open_store(path / DATABASE) as fresh:
        assert look(fresh) == look(store)


def test_a_branch_of_a_failed_commit_is_not_taken_for_the_next_one(
    store: Store, disk: FailingDisk, tmp_path: Path
) -> None:
    """The whole batch fails permanently; then another session gets the number of its branch."""
    one, two = store.session("one"), store.session("two")
    verbs = [
        _rewind(one, 1, "token"),
        _append(one, "user-a", "user-b"),
        _rewind(one, 1, "another token"),  # Finding it reads the ancestry of the new branch.
        _append(one, "user-c"),
    ]
    disk.fail("sync", lasting=True)
    for failed in _together(store, verbs):
        with pytest.raises(OutcomeUnknown):
            failed.result()
    disk.heal()
    assert two.rewind(2).seq == 2
    two.append(message("user-z"))
    assert _ids(two) == ["user-two1", "user-two2", "user-z"]
    assert [done.result() for done in _together(store, verbs)] == [
        Head(2, 1),
        Head(2, 3),
        Head(3, 1),
        Head(3, 2),
    ]
    assert _ids(one) == ["user-one1", "user-c"]
    assert _ids(two) == ["user-two1", "user-two2", "user-z"]
    _must_be_as_on_the_disk(store, tmp_path)


def _only_the_first_time(verb: Operation[Head]) -> Operation[Head]:
    """A move that is refused on its second run, like one whose head was moved."""
    runs = count()

    def run(tx: Transaction) -> Head:
        if next(runs):
            raise HeadMoved(Head(1, 3), Head(1, 4))
        return verb(tx)

    return run


def _stumbles(tx: Transaction) -> Head:
    """Another operation of the batch fails, so that the whole batch is rolled back."""
    raise ZeroDivisionError


@pytest.mark.parametrize("how", ["a failed commit", "a verb that fails"])
def test_numbers_that_shift_when_a_batch_is_run_again_do_no_harm(
    store: Store, disk: FailingDisk, tmp_path: Path, how: str
) -> None:
    """One of the batch is refused the second time; the others get the numbers before theirs."""
    one, two, three = (store.session(key) for key in ("one", "two", "three"))
    verbs = [
        _only_the_first_time(_rewind(three, 0, "not again")),
        _append(three, "user-alone"),
        _rewind(three, 1, "here already, or not"),
        _rewind(one, 1, "token of one"),
        _append(one, "user-a"),
        _rewind(one, 1, "second token of one"),
        _rewind(two, 2, "token of two"),
        _append(two, "user-b", "user-c"),
    ]
    if how == "a failed commit":
        disk.fail("sync")
    else:
        verbs.append(_stumbles)
    refused, *done = _together(store, verbs)
    with pytest.raises(HeadMoved):
        refused.result()
    assert [pending.result() for pending in done[:7]] == [
        Head(1, 2), Head(2, 1), Head(2, 1), Head(2, 2), Head(3, 1), Head(2, 2), Head(2, 4),
    ]  # fmt: skip
    assert _ids(three) == ["user-three1"]
    assert _ids(one) == ["user-one1"]
    assert _ids(two) == ["user-two1", "user-two2", "user-b", "user-c"]
    _must_be_as_on_the_disk(store, tmp_path)


@pytest.mark.parametrize("how", ["a failed commit", "a verb that fails"])
def test_a_refusal_by_what_was_undone_is_forgotten(
    store: Store, disk: FailingDisk, tmp_path: Path, how: str
) -> None:
    """The move is rolled back with its batch; then the write it had caused to fail is stored."""
    one = store.session("one")
    verbs = [
        _only_the_first_time(_append(one, "user-not-again")),
        _append(one, "user-a", expect=Head(1, 3)),
        _append(one, "user-b"),
    ]
    if how == "a failed commit":
        disk.fail("sync")
    else:
        verbs.append(_stumbles)
    refused, *done = _together(store, verbs)
    with pytest.raises(HeadMoved):
        refused.result()
    assert [pending.result() for pending in done[:2]] == [Head(1, 4), Head(1, 5)]
    assert _ids(one)[3:] == ["user-a", "user-b"]
    _must_be_as_on_the_disk(store, tmp_path)


# ------------------------------------------------------------------------------------- run again


def _undo(session: Session) -> Operation[Any]:
    return head_moves.undo(number_of(session), 1, token=MARK, expect=None)


def _redo(session: Session) -> Operation[Any]:
    session.rewind(1)
    return head_moves.redo(number_of(session), token=MARK, expect=None)


def _clear(session: Session) -> Operation[Any]:
    return head_moves.clear(number_of(session), token=MARK, expect=None)


def _replace(session: Session) -> Operation[Any]:
    wanted = [message(id) for id in ("user-one1", "file-2", "big-3")]
    batch, _ = codec.encode_batch(wanted, EPOCH)
    return head_moves.replace(number_of(session), batch, token=MARK, expect=None)


def _summarize(session: Session) -> Operation[Any]:
    return head_moves.summarize(
        number_of(session), "in short", 2, message_id="once", now=EPOCH, expect=None
    )


def _fork(session: Session) -> Operation[Any]:
    nothing = dict.fromkeys(("scope", "title", "agent", "model", "cwd", "metadata"))
    who = sessions.new_row(id="o" * 16, key="once", **nothing)
    origin = sessions.Origin(parent=number_of(session), relation="fork", at=2)
    return sessions.create(who, origin=origin)


def _purge(session: Session) -> Operation[Any]:
    return deletion.purge(number_of(session), session.id, forks="keep")


VERBS = [_undo, _redo, _clear, _replace, _summarize, _fork, _purge]


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("make", VERBS)
def test_an_operation_whose_outcome_is_unknown_is_done_once_when_it_is_run_again(
    store: Store, disk: FailingDisk, tmp_path: Path, make: MakeVerb, lasting: bool
) -> None:
    """By its token, its message's id or its session's id; however often it is run."""
    verb = make(store.session("one"))
    before = look(store)
    disk.fail("sync", lasting=lasting)
    if lasting:
        with pytest.raises(OutcomeUnknown):
            store.backend.write(verb)
        disk.heal()
        assert look(store) == before
    store.backend.write(verb)
    after = look(store)
    assert after != before
    store.backend.write(verb)
    assert look(store) == after
    _must_be_as_on_the_disk(store, tmp_path)


# ------------------------------------------------------------------------- threads, and a bad disk


class _Crew:
    """Threads that move and write in a few sessions while syncs fail now and then."""

    def __init__(self, store: Store, disk: FailingDisk, seed: int) -> None:
        self._store = store
        self._disk = disk
        self._seed = seed
        self._guard = threading.Lock()
        self.acked: dict[str, list[str]] = {"one": [], "two": []}
        self.moved = self.failed = 0

    def work(self, name: str, rounds: int) -> None:
        """Run random operations; those that fail are retried with their ids."""
        chance = random.Random(f"{self._seed} {name}")
        for number in range(rounds):
            key = chance.choice(["one", "two"])
            session = self._store.session(key)
            if chance.random() < 0.3:
                self._move(session, chance)
            else:
                self._say(session, f"user-{name}.{number}")
            if chance.random() < 0.15:
                self._disk.fail("sync", at=chance.randint(1, 3), lasting=chance.random() < 0.5)

    def _say(self, session: Session, id: str) -> None:
        said = Message.user(f"{id} says so", id=id)
        self._until_it_works(lambda: session.append(said))
        with self._guard:
            self.acked[str(session.key)].append(id)

    def _move(self, session: Session, chance: random.Random) -> None:
        head = session.head()
        choices: list[Callable[[], object]] = [
            lambda: session.rewind(head.seq // 2, expect=head),
            lambda: session.undo(expect=head),
            lambda: session.redo(expect=head),
            lambda: session.clear(expect=head),
        ]
        do = chance.choices(choices, [4, 4, 3, 1])[0]
        try:
            self._until_it_works(do)
        except (Conflict, BadQuery):
            return
        with self._guard:
            self.moved += 1

    def _until_it_works(self, do: Callable[[], object]) -> None:
        while True:
            try:
                do()
            except StorageError:
                self._disk.heal()
                with self._guard:
                    self.failed += 1
            else:
                return


def _stress(store: Store, disk: FailingDisk, path: Path, *, seed: int, rounds: int) -> _Crew:
    crew = _Crew(store, disk, seed)
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(crew.work, f"t{n}", rounds) for n in range(4)]:
            future.result(PATIENCE)
    disk.heal()
    for key, acked in crew.acked.items():
        session = store.session(key)
        own = [
            found.id
            for branch in session.branches()
            for found in session.messages(branch=branch.number, after=branch.fork_seq)
        ]
        # Stored once: only a message on an abandoned branch may be stored again by a retry.
        assert set(acked) <= set(own)
    _must_be_as_on_the_disk(store, path)
    return crew


def test_threads_that_move_and_write_on_a_failing_disk_agree_with_it(
    store: Store, disk: FailingDisk, tmp_path: Path
) -> None:
    """What was acknowledged is stored, and the store's caches agree with the file."""
    crew = _stress(store, disk, tmp_path, seed=1, rounds=40)
    assert crew.moved > 5
    assert crew.failed > 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_threads_that_move_and_write_on_a_failing_disk_agree_with_it_for_long(
    store: Store, disk: FailingDisk, tmp_path: Path, seed: int
) -> None:
    """The same, often."""
    _stress(store, disk, tmp_path, seed=seed, rounds=120)
