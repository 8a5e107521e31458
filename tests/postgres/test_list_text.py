"""Lists by a text: the server leaves out what cannot have it, and the deadline ends it."""

import pytest

import holdfast
from holdfast import Message, Store
from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres import snapshot
from tests.postgres.conftest import OpenStore

_TITLES = (
    "Parcel", "PARCEL 2", "pa\\rcel", "Stra\N{LATIN SMALL LETTER SHARP S}e",
    "\N{KELVIN SIGN}ilo",
    "\N{LATIN CAPITAL LETTER E WITH ACUTE}t\N{LATIN CAPITAL LETTER E WITH ACUTE}", "100 % \\ x",
    "nul \0 x",
)  # fmt: skip
_TEXTS = (
    "parcel", "Cel", "\\", "kilo", "\N{LATIN SMALL LETTER E WITH ACUTE}t", "%", "\0", "\\000",
    "hello", "HELLO 3", "key-", "missing",
)  # fmt: skip


def _fill(store: Store) -> Store:
    for number, title in enumerate(_TITLES):
        session = store.session(f"key-{number}", title=title)
        session.append(Message.user(f"Hello {number}"))
    return store


@pytest.mark.parametrize("part", [1, 3, len(_TITLES), 100])
def test_the_same_sessions_are_found_as_without_a_server(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """However many are compared at once, and whatever letters fold to."""
    monkeypatch.setattr(snapshot, "_TEXT_PART_SESSIONS", part)
    here, there = _fill(holdfast.open("memory:")), _fill(open_store())
    for text in _TEXTS:
        expected = [info.key for info in here.sessions(text=text)]
        assert (text, [info.key for info in there.sessions(text=text)]) == (text, expected)
    here.close()


def test_a_search_that_takes_too_long_is_ended(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do instead; a page that is full before that is returned."""
    monkeypatch.setattr(snapshot, "_TEXT_PART_SESSIONS", 2)
    store = _fill(open_store())
    store.backend.deadline = 0.0
    with pytest.raises(StoreUnavailable, match="the newest 2 sessions were compared"):
        store.sessions(text="missing")
    assert [info.key for info in store.sessions(text="hello", limit=1)] == ["key-7"]
