"""Texts to search in: every kind of character that is treated differently."""

from datetime import UTC, datetime
from typing import Final

from hypothesis import strategies as st

NOW: Final = datetime(2026, 3, 31, 12, 30, tzinfo=UTC)

# One character, and why it is odd.
ODD: Final = {
    "letter": "x",
    "capital": "X",
    "digit": "7",
    "plus": "+",
    "number sign": "#",
    "dollar": "$",
    "underscore": "_",
    "quote": '"',
    "star": "*",
    "hyphen": "-",
    "escape": "\x1b",
    "null": "\0",
    "lone surrogate": "\ud800",
    "soft hyphen": "\u00ad",
    "e with an accent": "é",
    "accent": "\u0301",
    "eszett": "ß",
    "dotted capital i": "\u0130",
    "capital sigma": "\u03a3",
    "Cyrillic": "ж",
    "Cherokee": "\uab70",
    "Arabic ligature of four words": "\ufdfa",
    "Hindi vowel": "\u093f",
    "Thai vowel": "\u0e33",
    "Chinese": "好",
    "compatibility Chinese": "\uf900",
    "kana": "か",
    "voicing mark": "\u3099",
    "half-width kana": "\uff76",
    "half-width voicing mark": "\uff9e",
    "leading jamo": "\u1112",
    "vowel jamo": "\u1161",
    "Hangul": "한",
    "full-width letter": "\uff21",
    "full-width plus": "\uff0b",
    "half": "½",
    "superscript": "²",
    "modifier apostrophe": "\u02bc",
    "quotation mark": "\u201c",
    "emoji": "😀",
    "circled capital": "\u24b6",
    "skin tone": "\U0001f3fd",
    "joiner": "\u200d",
    "variation selector": "\ufe0f",
    "flag": "\U0001f1e9",
    "line of a box": "─",
    "private": "\ue000",
    "unassigned": "\U0003fffd",
    "noncharacter": "\uffff",
}
_SOME: Final = [
    *ODD.values(),
    *"abTZ0159 .,/'@%\t\n",
    "getUserName",
    "HTTPServer2",
    "2026-01-31T10:00",
    "\x1b[1;31m",
    "x" * 65,
    "7" * 130,
    "+" * 70,
    "\u11ab",
    "\uac00",
]

odd_texts = st.lists(st.sampled_from(_SOME), max_size=24).map("".join)
texts = odd_texts | st.text(st.characters(exclude_categories=()), max_size=24)
