"""The golden table: what a window must contain for histories that broke an agent.

Each case runs for every provider. The independent checker decides whether the window is valid; the
case states what it must contain, what not, and in which order. Building a window changes nothing.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast.session import Session
from holdfast.store import Store
from holdfast.testing.legality import problems
from holdfast.values import JSON, Provider, Window
from tests.store_urls import Kind, place
from tests.windows.cases import CASES, MADE_UP, Case
from tests.windows.worlds import with_seqs

PROVIDERS: tuple[Provider, ...] = get_args(Provider)


@pytest.fixture(params=CASES, ids=lambda case: case.name.replace(" ", "-"))
def case(request: pytest.FixtureRequest) -> Case:
    found = request.param
    assert isinstance(found, Case)
    return found


@pytest.fixture
def session(case: Case) -> Iterator[Session]:
    """The case's history, stored, and what was done with it since."""
    with holdfast.open("memory:") as store:
        yield _build(store, case)


def _build(store: Store, case: Case) -> Session:
    session = store.session(case.name)
    if case.history:
        session.append(*case.history)
    for step in case.steps:
        session = step.run(session)
    return session


@pytest.fixture
def windows(case: Case) -> dict[Provider, Window]:
    """The case's window for each provider."""
    return _windows(case.name)


@cache
def _windows(name: str) -> dict[Provider, Window]:
    case = next(case for case in CASES if case.name == name)
    with holdfast.open("memory:") as store:
        session = _build(store, case)
        return {provider: _window(session, provider, case) for provider in PROVIDERS}


def _window(session: Session, provider: Provider, case: Case) -> Window:
    return session.window(provider=provider, **case.ask)


def _strings(value: JSON) -> Iterator[str]:
    """Return the texts of a payload in the order they are sent, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _sent(window: Window) -> str:
    return "\n".join([*_strings(window.system), *_strings([*window.messages])])


def _places(text: str, sent: str) -> list[int]:
    """Find a text as whole words."""
    return [match.start() for match in re.finditer(rf"(?<!\w){re.escape(text)}(?!\w)", sent)]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_store_gives_the_same_windows(kind: Kind, tmp_path: Path) -> None:
    """All cases in one store, beside one in memory; providers in turns, for they read alike."""
    with place(kind, tmp_path) as url:
        with holdfast.open("memory:") as memory, holdfast.open(url, durability="process") as store:
            for case, provider in zip(CASES, cycle(PROVIDERS), strict=False):
                one, other = _build(memory, case), _build(store, case)
                first, second = (with_seqs(_window(s, provider, case), s) for s in (one, other))
                assert first == second


def test_the_names_tell_the_cases_apart() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60


def test_the_history_is_one_that_can_be_stored(session: Session, case: Case) -> None:
    assert len(session.messages()) > 0 or case.may_be_empty


def test_the_window_is_legal(windows: dict[Provider, Window], case: Case) -> None:
    for provider, window in windows.items():
        if not window.messages and case.may_be_empty:
            continue
        assert problems(provider, window.messages, window.system) == [], provider
        assert json.loads(json.dumps(list(window.messages))) == list(window.messages), provider


def test_the_window_holds_what_it_must(windows: dict[Provider, Window], case: Case) -> None:
    for provider, window in windows.items():
        sent = _sent(window)
        places = {text: _places(text, sent) for text in case.has}
        counts = {text: len(found) for text, found in places.items()}
        assert counts == dict.fromkeys(case.has, 1), provider
        order = [places[text][0] for text in case.has]
        assert order == sorted(order), provider
        for texts in case.either:
            assert any(text in sent for text in texts), provider
        for where, text in case.has_on:
            assert where != provider or len(_places(text, sent)) == 1, provider


def test_the_window_lacks_what_it_must_not_hold(
    windows: dict[Provider, Window], case: Case
) -> None:
    for provider, window in windows.items():
        sent = _sent(window)
        assert [text for text in case.lacks if _places(text, sent)] == [], provider
        lacks = [text for where, text in case.lacks_on if where == provider]
        assert [text for text in lacks if text in sent] == [], provider
        assert case.longest is None or len(sent) <= case.longest, provider


def test_only_missing_results_are_made_up(windows: dict[Provider, Window], case: Case) -> None:
    if any(MADE_UP[0] in texts for texts in case.either):
        return  # The case leaves it open.
    for provider, window in windows.items():
        sent = _sent(window)
        assert sum(sent.count(text) for text in MADE_UP) == case.fills, provider


def test_the_window_says_what_it_did(windows: dict[Provider, Window], case: Case) -> None:
    for provider, window in windows.items():
        said = " ".join(window.notes).lower()
        assert [word for word in case.notes if word not in said] == [], provider
        if case.left_out is not None:
            assert bool(window.left_out) is case.left_out, provider


def test_asking_changes_nothing_and_gives_the_same_again(session: Session, case: Case) -> None:
    before = session.messages(), session.head()
    for provider in PROVIDERS:
        first = _window(session, provider, case)
        again = _window(session, provider, case)
        assert json.dumps([first.system, *first.messages]) == json.dumps(
            [again.system, *again.messages]
        ), provider
        assert (session.messages(), session.head()) == before, provider
