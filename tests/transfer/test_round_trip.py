"""An import restores what was exported: between any backends, byte for byte."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import File, Message, Store
from holdfast.errors import HoldfastError
from holdfast.transfer.session_reader import FileSource
from tests.model.strategies import names
from tests.store_urls import KINDS, Kind, place
from tests.transfer.builders import numbers, steps, take, talk
from tests.transfer.views import lines_of, listed, shown


@contextmanager
def _opened(kind: Kind, folder: Path) -> Iterator[Store]:
    with place(kind, folder) as url, holdfast.open(url, durability="process") as store:
        yield store


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_no_branch_of_many_is_lost(kind: Kind, tmp_path: Path) -> None:
    """Neither of a session, nor of one that was purged and of which forks keep the messages."""
    with _opened("memory", tmp_path) as source, _opened(kind, tmp_path) as target:
        for key in ("kept", "purged"):
            session = source.session(key)
            session.append(*map(Message.user, "abcd"))
            for seq in (3, 2, 1):
                session.fork(at=seq)
                session.rewind(seq)
                session.append(Message.user(f"after {seq}"))
        source.purge("purged")
        source.export(tmp_path / "one.jsonl", redact=None)
        assert target.import_(tmp_path / "one.jsonl", trust=True).damage == ()
        assert shown(target) == shown(source)
        assert target.verify() == []


@settings(max_examples=20)
@given(st.sampled_from(KINDS), st.sampled_from(KINDS), names, steps)
def test_a_round_trip_is_identical(
    first: Kind, second: Kind, name: str, steps: list[tuple[str, int, Any]]
) -> None:
    """Everything the API shows is equal, and a second export is identical byte for byte."""
    with _folder() as folder, _opened(first, folder) as source, _opened(second, folder) as target:
        source.create(key=name, title=name, scope=name, cwd=name, agent=name, model=name)
        for verb, which, what in steps:
            try:
                take(source, verb, which, what)
            except (HoldfastError, ZeroDivisionError):
                continue  # A refusal, or a store without sessions: both can be exported.
        out = source.export(folder / "one.jsonl", redact=None)
        report = target.import_(folder / "one.jsonl", trust=True)
        assert report.damage == ()
        assert report.skipped == ()
        assert (report.sessions, report.messages) == (out.sessions, out.messages)
        assert shown(target) == shown(source)
        assert target.verify() == []
        target.export(folder / "two.jsonl", redact=None)
        assert lines_of(folder / "two.jsonl") == lines_of(folder / "one.jsonl")
        again = target.import_(folder / "one.jsonl", trust=True)
        assert (again.sessions, again.messages) == (0, 0)
        assert len(again.skipped) == out.sessions
        assert shown(target) == shown(source)


@settings(max_examples=15)
@given(st.sampled_from(KINDS), names, steps, numbers)
def test_one_session_comes_with_all_it_shares(
    kind: Kind, name: str, steps: list[tuple[str, int, Any]], which: int
) -> None:
    """A fork without its parent has the same history; the parent becomes a stub."""
    with _folder() as folder, _opened("memory", folder) as source, _opened(kind, folder) as target:
        source.create(key=name)
        for verb, number, what in steps:
            try:
                take(source, verb, number, what)
            except (HoldfastError, ZeroDivisionError):
                continue
        there = [*listed(source), *listed(source, trashed=True)]
        if not there:
            return
        chosen = there[which % len(there)]
        source.export(folder / "one.jsonl", chosen.id, redact=None)
        assert target.import_(folder / "one.jsonl", trust=True).damage == ()
        assert [i.id for i in (*listed(target), *listed(target, trashed=True))] == [chosen.id]
        before, after = source.get(chosen.id), target.get(chosen.id)
        assert after.info() == msgspec.structs.replace(before.info(), forks=0)
        assert after.branches() == before.branches()
        for branch in before.branches():
            one = before.messages(branch=branch.number)
            assert after.messages(branch=branch.number) == one
        assert target.verify() == []
        target.export(folder / "two.jsonl", redact=None)
        assert lines_of(folder / "two.jsonl") == lines_of(folder / "one.jsonl")


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: Kind, tmp_path: Path) -> None:
    """An emptied store gets its sessions back."""
    with _opened(kind, tmp_path) as source, _opened("memory", tmp_path) as other:
        session = source.session("k", metadata={"a": [1, 2.5, None, "\0\ud800"]})
        talk(session, Message.user("x" * 70_000), "hello \ud83d", "m")
        fork = session.fork(title="fork")
        fork.append(Message.user("more"))
        head = fork.rewind(3)
        assert (head.seq, fork.branches()[-1].asked_seq) == (2, 3), "inside a tool exchange"
        fork.append(Message.user("other"))
        source.purge(session.id)
        before = shown(source)
        source.export(tmp_path / "one.jsonl", redact=None)
        other.import_(tmp_path / "one.jsonl", trust=True)
        other.export(tmp_path / "two.jsonl", redact=None)
        source.purge(fork.id)
        assert source.stats().messages == 0
        source.import_(tmp_path / "two.jsonl", trust=True)
        assert shown(source) == before
        assert source.verify() == []


def test_a_file_of_many_messages_is_read_once_and_stays_until_the_last_is_erased(
    target: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = FileSource.blob

    def blob(source: FileSource, sha256: str) -> bytes | None:
        read.append(sha256)
        return real(source, sha256)

    file = File(name="f", data=b"file" * 10)
    with holdfast.open("memory:") as source:
        session = source.session("s")
        session.append(*(Message.user(["look", file], id=str(n)) for n in range(3)))
        source.export(tmp_path / "out.jsonl", redact=None)
    monkeypatch.setattr(FileSource, "blob", blob)
    assert target.import_(tmp_path / "out.jsonl", trust=True).damage == ()
    assert len(read) == 1
    found = target.session("s", create=False)
    assert [found.erase(str(n)).blobs for n in range(3)] == [0, 0, 1]
