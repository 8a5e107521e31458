"""What a changed list has in common with the stored one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import holdfast
from holdfast import Head, Message
from holdfast.adapters.changed_list import matched, split


@pytest.mark.parametrize(
    ("items", "known", "places"),
    [
        ("", "abc", []),
        ("abc", "", [None, None, None]),
        ("abc", "abc", [0, 1, 2]),
        ("bxc", "abc", [1, None, 2]),
        ("ca", "abc", [2, None]),
        ("aab", "aba", [0, 2, None]),
        ("aaa", "aa", [0, 1, None]),
    ],
)
def test_each_item_is_the_next_known_one_that_is_equal(
    items: str, known: str, places: list[int | None]
) -> None:
    assert [*matched(items, known)] == places


@dataclass(frozen=True)
class Counted:
    """A text that counts how often it is compared."""

    text: str
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, Counted) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@pytest.mark.parametrize("different", [False, True])
def test_a_long_list_is_matched_without_comparing_all_with_all(different: bool) -> None:
    known = [Counted(f"{number % 7}") for number in range(500)]
    items = [Counted(f"{number % 7}{'!' * different}") for number in range(500)]
    Counted.compared = 0
    found = [*matched(items, known)]
    assert found == ([None] * 500 if different else [*range(500)])
    assert Counted.compared < 5 * 500


def test_what_others_said_is_what_was_neither_seen_nor_stored_by_the_writer() -> None:
    with holdfast.open("memory:") as store:
        session = store.session("s")
        seen = session.append(Message.user("seen", id="1"))
        session.append(Message.user("mine", id="me-1"), Message.user("theirs", id="2"))
        session.summarize("all of it")
        stored = session.messages()
        own, others = split(session, stored, seen, lambda message: message.id.startswith("me-"))
        assert [message.text for message in own] == ["seen", "mine"]
        assert [message.text for message in others] == ["theirs"]
        own, others = split(session, stored, Head(1, 0), lambda _: False)
        assert (own, len(others)) == ([], 3)
        session.clear()
        own, _ = split(session, stored, seen, lambda _: False)
        assert [message.text for message in own] == ["seen"]
