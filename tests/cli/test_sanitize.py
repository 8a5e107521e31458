"""What is shown is what is there: no character can act on a terminal, or hide."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.output.sanitize import sanitize, split_escapes

# Format characters that have a shape of their own, such as the Arabic number signs.
_SEEN = {
    *range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD,
    *range(0x13430, 0x13440),
}  # fmt: skip


def test_every_control_and_format_character_is_escaped() -> None:
    """All of Unicode's control, format, surrogate and line separator characters."""
    escaped = {
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and code not in _SEEN
    }
    assert len(escaped) > 2200
    assert [f"{code:x}" for code in escaped if not sanitize(chr(code)).isascii()] == []
    assert [f"{code:x}" for code in escaped if not sanitize(chr(code)).isprintable()] == []


def test_letters_marks_and_symbols_stay() -> None:
    """Everything with a shape is shown as it is, but for the fillers, which have none."""
    fillers = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0}
    selectors = {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
    changed = {
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code))[0] in "LMNPS" and sanitize(chr(code)) != chr(code)
    }
    assert changed == (fillers | selectors) & changed
    assert fillers <= changed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b31m", r"\x9b31m"),
        ("\x7f", r"\x7f"),
        ("a\u202eb", r"a\u202eb"),
        ("pay\u200bpal", r"pay\u200bpal"),
        ("pay\u200dpal", r"pay\u200dpal"),
        ("x\ufe0f", r"x\ufe0f"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("\u2028", r"\u2028"),
        ("one\r\n\ttwo", r"one\r\n\ttwo"),
    ],
)
def test_what_fools_is_shown_as_an_escape(text: str, shown: str) -> None:
    """The escape names the character."""
    assert sanitize(text) == shown


@pytest.mark.parametrize(
    "text",
    ["👨‍👩‍👧", "❤️", "🏳️‍🌈", "1️⃣", "نمی‌خواهم", "क्‍ष", "日本　語", "naïve", r"C:\x1b"],
)
def test_what_writing_needs_stays(text: str) -> None:
    """Joined emoji, keycaps, Persian, Hindi, wide spaces and backslashes are no trick."""
    assert sanitize(text) == text


def test_a_second_joiner_in_a_row_is_shown() -> None:
    """Joiners cannot be piled up behind a letter to hide something."""
    assert sanitize("é\u200d\u200d\u200c") == "é\u200d\\u200d\\u200c"


def test_a_body_keeps_lines_and_tabs() -> None:
    """But not a carriage return, which would overwrite the line."""
    assert sanitize("a\n\tb\rc", body=True) == "a\n\tb\\rc"


@given(st.text(st.characters(), max_size=40), st.booleans())
def test_pieces_are_what_is_visible(text: str, body: bool) -> None:
    """The two functions never differ, and nothing that acts on a terminal is left."""
    shown = sanitize(text, body=body)
    assert "".join(piece for piece, _ in split_escapes(text, body=body)) == shown
    left = shown.replace("\n", "").replace("\t", "") if body else shown
    assert not any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in left)
    shown.encode()
