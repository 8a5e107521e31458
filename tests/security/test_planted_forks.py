"""A stranger's file that names what is one's own: it gets nothing that its author lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import File, Message, Session, Store
from holdfast.transfer.format import AnyLine, BlobLine, EndLine, MessageLine
from holdfast.values import Relation
from tests.security.planted_exports import Edit, rewrite
from tests.store_urls import KINDS, Kind, place


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind: Kind = request.param
    with place(kind, tmp_path) as url, holdfast.open(url) as store:
        yield store


def _fork_of(own: Session, file: Path, edit: Edit) -> str:
    """Write a file with a fork of a session of which its author knows the id; return its id."""
    with holdfast.open("memory:") as there:
        parent = there.create()
        parent.append(*(Message.user(f"guessed {n}") for n in range(3)))
        fork = parent.fork()
        fork.append(Message.user("of a stranger"))
        there.export(file, redact=None)
    rewrite(file, edit, {parent.id: own.id})
    return fork.id


def _without_messages(records: list[AnyLine]) -> list[AnyLine]:
    parent = records[0].session if not hasattr(records[0], "data") else ""
    return [r for r in records if not (isinstance(r, MessageLine) and r.session == parent)]


def _cut_off(records: list[AnyLine]) -> list[AnyLine]:
    """Return the fork, then the beginning of its parent."""
    end = next(at for at, record in enumerate(records) if isinstance(record, EndLine))
    parent = _without_messages(records[:end])
    return [*records[end + 1 :], *parent]


@pytest.mark.parametrize("edit", [_without_messages, _cut_off])
def test_a_private_session_was_given_to_a_strangers_fork(
    store: Store, tmp_path: Path, edit: Edit
) -> None:
    """Exporting the fork, or going on with it, would have sent what was never shared."""
    own = store.create()
    own.append(Message.system("mine"), *(Message.user(f"private {n}") for n in range(2)))
    before = own.info()
    fork = _fork_of(own, tmp_path / "gift.jsonl", edit)
    report = store.import_(tmp_path / "gift.jsonl")
    assert (report.sessions, report.skipped) == (1, (own.id,))
    *shared, last = store.get(fork).messages()
    assert last.text == "of a stranger"
    assert {message.status for message in shared} <= {"damaged"}
    store.export(tmp_path / "back.jsonl", fork, redact=None)
    assert b"private" not in (tmp_path / "back.jsonl").read_bytes()
    assert own.info() == before


@pytest.mark.parametrize("relation", ["delegate", "reset", "fork"])
def test_a_search_showed_a_strangers_session_in_place_of_ones_own(
    store: Store, tmp_path: Path, relation: Relation
) -> None:
    """It had named one's own as its parent, and a search shows the best hit of a lineage."""
    own = store.create()
    own.append(Message.user("the door code, and many other words beside it"))
    with holdfast.open("memory:") as there:
        parent = there.create()
        parent.append(Message.user("x"))
        child = there.create(parent=parent, relation=relation)
        child.append(Message.user("door code"))
        there.export(tmp_path / "gift.jsonl", redact=None)
    rewrite(tmp_path / "gift.jsonl", renamed={parent.id: own.id})
    store.import_(tmp_path / "gift.jsonl")
    store.catch_up_index()
    assert own.id in {hit.session_id for hit in store.search("door code")}
    assert (own.info().forks, own.children(), store.get(child.id).info().parent) == (0, [], None)


def test_a_fork_of_what_was_shared_stays_a_fork(store: Store, tmp_path: Path) -> None:
    own = store.create()
    own.append(Message.user("shared"))
    store.export(tmp_path / "shared.jsonl", redact=None)
    with holdfast.open("memory:") as there:
        there.import_(tmp_path / "shared.jsonl", trust=True)
        fork = there.get(own.id).fork()
        fork.append(Message.user("an answer"))
        there.export(tmp_path / "back.jsonl", redact=None)
    own.append(Message.user("private"))
    store.import_(tmp_path / "back.jsonl")
    assert store.get(fork.id).info().parent == own.id
    assert [message.text for message in store.get(fork.id).messages()] == ["shared", "an answer"]


def test_a_private_file_was_given_to_a_message_that_has_its_hash(
    store: Store, tmp_path: Path
) -> None:
    """Whoever knows the hash of a file need not know the file."""
    private = File(name="private", data=b"private" * 20_000)
    store.create().append(Message.user([private]))
    for name, edit in (("hash", _without_blobs), ("whole", list)):
        with holdfast.open("memory:") as there:
            session = there.create()
            session.append(Message.user(["look", private]))
            there.export(tmp_path / f"{name}.jsonl", redact=None)
        rewrite(tmp_path / f"{name}.jsonl", edit)
        report = store.import_(tmp_path / f"{name}.jsonl")
        (message,) = store.get(session.id).messages()
        assert message.status == ("damaged" if name == "hash" else "complete")
        assert len(report.damage) == (name == "hash")
        assert store.verify() == []


def _without_blobs(records: list[AnyLine]) -> list[AnyLine]:
    return [record for record in records if not isinstance(record, BlobLine)]
