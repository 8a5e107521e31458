"""A stranger who chooses the names in a file: none of them comes before what is one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, Session, Store
from holdfast.cli import session_choice
from holdfast.errors import AmbiguousRef
from tests.security.planted_exports import rewrite
from tests.store_urls import KINDS, Kind, place


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    kind: Kind = request.param
    with place(kind, tmp_path) as url, holdfast.open(url) as store:
        yield store


def _planted(file: Path, *, id: str, title: str = "A gift", run_id: str = "r") -> Path:
    with holdfast.open("memory:") as there:
        session = there.create(title=title)
        with session.turn(run_id=run_id) as turn:
            turn.user("of a stranger")
        there.export(file, redact=None)
    return rewrite(file, renamed={session.id: id})


def _own(store: Store, key: str | None = None, title: str | None = None) -> Session:
    session = store.create(key=key, title=title)
    session.append(Message.user("mine"))
    return session


def test_a_name_of_ones_own_was_taken_by_an_import(store: Store, tmp_path: Path) -> None:
    """An id that reads like a key, a run id that reads like a title, a title in other letters."""
    by_key = _own(store, key="customersupports")
    by_title = _own(store, title="Roadmap")
    by_case = _own(store, title="plan")
    by_prefix = _own(store, title="dail")
    file = _planted(tmp_path / "1.jsonl", id="customersupports", title="Plan", run_id="Roadmap")
    store.import_(file)
    store.import_(_planted(tmp_path / "2.jsonl", id="dailyaaaaaaaaaaa"))
    for ref, own in (
        ("customersupports", by_key),
        ("Roadmap", by_title),
        ("Plan", by_case),
        ("dail", by_prefix),
    ):
        assert store.get(ref).id == own.id
    assert store.get("dailyaaaaaaaaaaa").messages()[0].text == "of a stranger"
    assert store.get("r").messages()[0].text == "of a stranger"


def test_an_id_of_ones_own_message_was_taken_by_an_import(store: Store, tmp_path: Path) -> None:
    """It would have been ambiguous, or the stranger's; alone, the stranger's is found."""
    own = _own(store, key="mine")
    taken = own.messages()[0].id
    with holdfast.open("memory:") as there:
        for name in (taken, "only theirs"):
            there.create().append(Message.user("of a stranger", id=name))
        there.export(tmp_path / "1.jsonl", redact=None)
    store.import_(tmp_path / "1.jsonl")
    assert store.message(taken)[0].id == own.id
    assert store.message("only theirs")[1].text == "of a stranger"
    fork = own.fork()
    store.trash(own.id)
    assert store.message(taken)[0].id == fork.id


def test_an_import_that_was_continued_is_a_session_like_any_other(
    store: Store, tmp_path: Path
) -> None:
    own = _own(store, title="Plan")
    store.import_(_planted(tmp_path / "1.jsonl", id="dailyaaaaaaaaaaa", title="Plan"))
    assert store.get("Plan").id == own.id
    store.get("dailyaaaaaaaaaaa").append(Message.user("go on"))
    with pytest.raises(AmbiguousRef):
        store.get("Plan")


def test_a_new_key_opened_a_session_that_begins_with_it(tmp_path: Path) -> None:
    """`holdfast run --session dailyreport` would have gone on with the stranger's."""
    with holdfast.open("memory:") as store:
        store.import_(_planted(tmp_path / "1.jsonl", id="dailyreportaaaaa"))
        with pytest.raises(AmbiguousRef, match="dailyreportaaaaa"):
            session_choice.find_or_create(store, "dailyreport", store.session)
        found, _ = session_choice.find_or_create(store, "dailyreportaaaaa", store.session)
        found.append(Message.user("go on"))
        again, created = session_choice.find_or_create(store, "dailyreport", store.session)
        assert (again.id, created) == (found.id, False)
