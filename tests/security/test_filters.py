"""A filter is a value, never a piece of a statement: it finds what equals it, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import Message
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.values import JSON
from tests.store_urls import KINDS, Kind, place

_HOSTILE = [
    "' OR '1'='1", "') OR 1=1 --", '" OR ""="', "x'; DROP TABLE sessions; --", "%", "_", "*", "?",
    "?1", "$1", ":scope", "%(scope)s", "{scope}", "\\", "\\'", "NULL", "scope", "1; SELECT 1",
    "' UNION SELECT id FROM sessions --", "/* */",
    "a'||'b", "\u02bc OR 1=1", "\uff07 OR 1=1", "\x1b'",
]  # fmt: skip
_FILTERS = (
    ("scope", "agent", "cwd", "text", "state", "since", "until", "order", "cursor"),
    ("scope", "agent", "cwd", "role", "session", "since", "until", "cursor"),
)
Read = Callable[..., Iterable[object]]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Store]:
    """A store with one session, which none of the values matches."""
    kind: Kind = request.param
    with place(kind, tmp_path) as url, holdfast.open(url) as opened:
        session = opened.session("k", scope="mine", agent="bot", cwd="/work", title="A parcel")
        session.append(Message.user("harbour"))
        opened.search("harbour")
        yield opened


def _reads(store: holdfast.Store) -> tuple[Read, Read]:
    return store.sessions, partial(store.search, "harbour")


def _found(read: Read, **options: str) -> list[object]:
    """Return what a call finds; a value that no filter can have is a typed error."""
    try:
        return list(read(**options))
    except (Invalid, NotFound):
        return []


def test_no_value_of_a_filter_finds_more_than_what_equals_it(store: holdfast.Store) -> None:
    for value in _HOSTILE:
        for read, names in zip(_reads(store), _FILTERS, strict=True):
            for name in names:
                assert _found(read, **{name: value}) == [], (name, value)
        assert store.latest(scope=value) is None
        assert store.latest(cwd=value) is None
        for refer in (store.get, store.trash, store.purge):
            with pytest.raises(HoldfastError):
                refer(value)
    (own,) = store.sessions(scope="mine", agent="bot", cwd="/work", text="parcel")
    assert own.messages == 1
    assert len(store.search("harbour", scope="mine", agent="bot", cwd="/work").items) == 1


def test_a_name_is_a_filters_or_refused_and_in_metadata_a_name(store: holdfast.Store) -> None:
    for name in _HOSTILE:
        for read in _reads(store):
            with pytest.raises((Invalid, TypeError)):
                read(**{f"{name} ": "x"})
    metadata: dict[str, JSON] = {name: name for name in _HOSTILE}
    session = store.create(metadata=metadata)
    assert session.info().metadata == metadata
    assert session.update(metadata={"scope": None}).metadata.keys() == metadata.keys() - {"scope"}
    assert store.session("k").info().metadata == {}


def test_a_limit_is_a_number(store: holdfast.Store) -> None:
    for number in ("1", "1; DROP TABLE sessions", 1.5, None, -1, 0, True):
        for read in _reads(store):
            with pytest.raises(Invalid):
                read(limit=number)
    assert len(store.sessions(limit=1 << 70)) == 1
