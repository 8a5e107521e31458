"""Fragments of a text: as it is stored, spread evenly, and none if nothing is distinctive."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec
from holdfast.operations import residue
from holdfast.values import File, Message, Raw, Text, Thinking, ToolCall, ToolResult

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
LONG = "".join(f"word{n} " for n in range(200))


def body(message: Message) -> bytes:
    return codec.encode(message, NOW).body


@given(st.text(max_size=300), st.integers(1, 20))
def test_pieces_are_what_is_stored(text: str, most: int) -> None:
    """For any text: quotes, newlines, letters of all scripts."""
    stored = body(Message.user(text))
    found = residue.body_fragments(stored, most)
    assert len(found) <= most
    assert len(set(found)) == len(found)
    for piece in found:
        assert piece in stored
        assert residue.MIN_FRAGMENT_BYTES <= len(piece) <= residue.FRAGMENT_BYTES


def test_surrogates_are_looked_for_as_they_are_stored() -> None:
    """A body that is not valid UTF-8."""
    stored = body(Message.user("a text with \ud800 something that is none"))
    [first, *_] = residue.body_fragments(stored, 4)
    assert first in stored


def test_a_long_text_is_covered() -> None:
    """Its beginning, its end, and what lies between."""
    found = residue.body_fragments(body(Message.user(LONG)), 8)
    places = sorted(LONG.encode().index(piece) for piece in found)
    assert places[0] == 0
    assert places[-1] == len(LONG) - residue.FRAGMENT_BYTES
    assert max(b - a for a, b in pairwise(places)) < len(LONG) // 6


@pytest.mark.parametrize(
    "part",
    [
        Text(LONG),
        Thinking(LONG),
        ToolCall("c", "t", {"a": [{"b": LONG}]}),
        ToolResult("c", LONG),
        ToolResult("c", (Text(LONG),)),
        Raw("s", {"x": LONG}),
        File(name=LONG, data=b"x"),
    ],
)
def test_all_that_a_message_says_is_looked_for(part: object) -> None:
    """Texts of every kind of part."""
    stored = body(Message(role="assistant", parts=(part,)))  # type: ignore[arg-type]
    assert all(piece in LONG.encode() for piece in residue.body_fragments(stored, 4))
    assert len(residue.body_fragments(stored, 4)) == 4


def test_each_text_has_its_turn() -> None:
    """A short one is not crowded out by a long one."""
    message = Message.user([LONG, "the short and secret"], metadata={"x": "the hidden and secret"})
    found = residue.body_fragments(body(message), 4)
    assert {b"the short and secret", b"the hidden and secret"} <= set(found)


@pytest.mark.parametrize("text", ["", "short", "a" * 500, " " * 50, "ababababababab" * 9])
def test_what_is_nobodys_has_no_pieces(text: str) -> None:
    """Too short or repetitive; and the fields that every message has never count."""
    assert residue.body_fragments(body(Message.user(text)), 9) == []


def test_a_body_that_cannot_be_read_is_taken_as_bytes() -> None:
    """Damaged messages can be erased, too."""
    assert residue.body_fragments(b'{"role":"user", half of a message', 2)[0].startswith(b'{"role"')


def test_files_and_large_parts_are_named() -> None:
    """In tool results as well as in the message itself."""
    message = Message(
        role="tool", parts=(ToolResult("c", (File(data=b"one"), Text("x"))), File(data=b"two"))
    )
    stored = codec.encode(Message.user([LONG * 200, File(data=b"three")]), NOW)
    assert len(residue.blob_hashes(stored.body)) == 2
    assert residue.blob_hashes(body(message)) == [
        codec.sha256_hex(b"one"),
        codec.sha256_hex(b"two"),
    ]
    assert residue.blob_hashes(b"nonsense") == []


@given(st.lists(st.binary(max_size=3)), st.integers(1, 9))
def test_thinning(pieces: list[bytes], most: int) -> None:
    """At most the given number, each once, in order."""
    found = residue.sample_evenly(pieces, most)
    assert len(found) == min(most, len(set(pieces)))
    assert found == [piece for piece in dict.fromkeys(pieces) if piece in found]
