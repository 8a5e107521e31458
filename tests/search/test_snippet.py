"""Snippets of texts that match."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.search import snippet as snippet_module
from holdfast.search.document import Document
from holdfast.search.match import count_present, frequencies, matches
from holdfast.search.query import parse
from holdfast.search.snippet import ELLIPSIS, Snippet, marked, snippet
from holdfast.search.tokenize import NAME_END, Span, TracedTokens, traced_parts, traced_words, words
from tests.search.material import NOW, texts

_FILLER = "Nobody knows why it takes so long to come this far. " * 20


def _shown(text: str, query: str, *, width: int = 160) -> Snippet:
    return snippet(text, parse(query, now=NOW), width=width)


def _marked(text: str, query: str, *, width: int = 160) -> str:
    return marked(_shown(text, query, width=width), "[", "]")


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("the red one", "red", "the [red] one"),
        ("the  red\n\n\tone ", "red", "the [red] one"),
        ("un Café noir", "cafe", "un [Café] noir"),
        ("un cafe\u0301 noir", "café", "un [cafe\u0301] noir"),
        ("die STRASSE, die Straße", "straße", "die [STRASSE], die [Straße]"),
        ("call getUserName()", "user", "call get[User]Name()"),
        ("call getUserName()", "userName", "call get[UserName]()"),
        ("call getUserName()", "getusername", "call [getUserName]()"),
        ("call getUserName()", '"get user" name', "call [getUser][Name]()"),
        ("concatenate it", "conca*", "[concatenate] it"),
        ("open gateway/run.py now", "gateway/run.py", "open [gateway/run.py] now"),
        ("in C++ and C", "c++", "in [C++] and C"),
        ("我爱编程", "编程", "我爱[编程]"),
        ("ﾃﾞｰﾀ", "デ", "[ﾃﾞ]ｰﾀ"),
        ("ok 👍🏽!", "👍", "ok [👍🏽]!"),
        ("if a == b:", "==", "if a [==] b:"),
        ("a == b == c", "==", "a [==] b [==] c"),
        ("a a a", '"a a"', "[a a a]"),
        ("red green", "-blue", "red green"),
        ("red green", "red -blue", "[red] green"),
        ("red green", "blue", "red green"),
        ("red green", "title:red", "red green"),
        ("½ of it", "1/2", "[½] of it"),
        ("\x1b[31mred\x1b[0m", "red", "\x1b[31m[red]\x1b[0m"),
        ("", "red", ""),
    ],
)
def test_marks(text: str, query: str, expected: str) -> None:
    assert _marked(text, query) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{_FILLER}the needle. {_FILLER}",
            "…so long to come this far. the [needle]. Nobody knows why it takes so…",
        ),
        (
            f"needle {_FILLER}",
            "[needle] Nobody knows why it takes so long to come this far. Nobody…",
        ),
        (
            f"{_FILLER}needle",
            "…this far. Nobody knows why it takes so long to come this far. [needle]",
        ),
        (_FILLER, "Nobody knows why it takes so long to come this far. Nobody knows why…"),
        ("好" * 300 + "needle" + "好" * 300, "…" + "好" * 31 + "[needle]" + "好" * 31 + "…"),
        ("needle" + "s" * 500, "[needle" + "s" * 58 + "]" + "s" * 4 + "…"),
    ],
)
def test_a_long_text_is_cut_around_what_was_found(text: str, expected: str) -> None:
    assert _marked(text, "needle*", width=70) == expected


def test_the_place_with_the_most_different_terms_is_shown() -> None:
    text = f"red red red {_FILLER} green {_FILLER} one red and green one {_FILLER} red green"
    assert "one [red] and [green] one" in _marked(text, "red green", width=70)


def test_a_place_far_behind_is_found() -> None:
    """Not only the first occurrence of one of the terms."""
    text = f"{_FILLER * 30} red {_FILLER * 300} red and green {_FILLER * 30}"
    assert "[red] and [green]" in _marked(text, "red green", width=70)


def test_a_phrase_of_many_words_is_found_in_a_long_text() -> None:
    phrase = " ".join(f"word{number}" for number in range(800))
    found = _shown(f"{_FILLER * 100}{phrase} {_FILLER}", f'"{phrase}"', width=70)
    assert found.text.startswith(f"{ELLIPSIS}word0 word1")
    assert found.marks == ((1, len(found.text) - 1),)


def test_a_width_too_small_to_show_anything_is_widened() -> None:
    assert _marked(_FILLER, "knows", width=1) == "…[knows] why…"


@given(text=texts, query=texts, width=st.integers(0, 60))
def test_a_snippet_is_a_piece_of_its_text(text: str, query: str, width: int) -> None:
    shown = _shown(text, query, width=width)
    assert len(shown.text) <= max(width, 16)
    inside = shown.text.removeprefix(ELLIPSIS).removesuffix(ELLIPSIS)
    assert inside in " ".join(text.split())
    at = 0
    for start, end in shown.marks:
        assert at <= start < end <= len(shown.text)
        at = end
    assert marked(shown, "", "") == shown.text


@given(text=texts, query=texts)
def test_what_is_found_is_marked(text: str, query: str) -> None:
    """If all of the text is shown; a mark is a match by itself, or a part of a name."""
    asked = parse(query, now=NOW)
    shown = snippet(text, asked, width=10_000)
    folded = " ".join(text.split())
    wanted = [term for term in asked.wanted if term.tokens]
    assert bool(shown.marks) >= any(frequencies(wanted, folded))
    if matches(asked, Document(folded)) is not None and wanted:
        assert any(words(shown.text[start:end]) for start, end in shown.marks)


# Both terms in every form, some alone and some together, with more or less between.
_BITS = [
    "red",
    "Red",
    "r\u00e9d",
    "green",
    "red green",
    "reddish",
    "好",
    "$ #",
    "-" * 30,
    _FILLER[:52],
]
_stretches = st.lists(
    st.tuples(st.sampled_from(_BITS), st.integers(0, 300)).map(
        lambda bit: f"{bit[0]} {_FILLER[: bit[1]]}"
    ),
    max_size=30,
).map(" ".join)
_RED_OR_GREEN = re.compile(r"\b(?:(r[e\u00e9]d)|green)\b", re.IGNORECASE)


def _most_together(text: str, room: int) -> int:
    """Find all occurrences in a text at once."""
    found = list(_RED_OR_GREEN.finditer(text))
    return max(
        (
            len({bool(other[1]) for other in found if _within(one, other, room)} | {bool(one[1])})
            for one in found
        ),
        default=0,
    )


def _within(one: re.Match[str], other: re.Match[str], room: int) -> bool:
    return one.start() <= other.start() and other.end() <= one.start() + room


@settings(max_examples=200)
@given(text=_stretches, width=st.integers(20, 300))
def test_looking_piece_by_piece_finds_as_much_as_looking_at_all(text: str, width: int) -> None:
    whole = " ".join(text.split())[:6_000]
    shown = _shown(whole, "red green", width=width)
    places = [found.span() for found in _RED_OR_GREEN.finditer(shown.text)]
    assert shown.marks == tuple(places)
    together = {shown.text[start:end].casefold() == "green" for start, end in shown.marks}
    assert len(together) >= _most_together(whole, width - 2)


@given(text=texts, query=texts)
def test_a_term_is_there_if_it_is_there_at_least_once(text: str, query: str) -> None:
    for asked in (parse(query, now=NOW), parse(text[: len(query)], now=NOW)):
        assert count_present(asked.terms, text) == sum(map(bool, frequencies(asked.terms, text)))


def _every_place(
    spans: list[Span], tokens: tuple[str, ...], *, prefix: bool
) -> list[tuple[int, int]]:
    """Check every sequence of tokens."""
    found = []
    for begin in range(len(spans) - len(tokens) + 1):
        stretch = spans[begin : begin + len(tokens)]
        last, wanted = stretch[-1][0], tokens[-1]
        alike = last.startswith(wanted) if prefix else last == wanted
        if alike and tuple(token for token, _, _ in stretch[:-1]) == tokens[:-1]:
            found.append((stretch[0][1], stretch[-1][2]))
    return found


def _wanted(traced: TracedTokens, query: str) -> Iterator[tuple[str, ...]]:
    """Return search terms: from the text itself, and from a query."""
    for tokens in (traced.tokens, words(query)):
        for size in (1, 2, 3):
            yield from (tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1))


@given(text=texts, query=texts)
def test_tokens_are_where_looking_at_every_stretch_finds_them(text: str, query: str) -> None:
    for traced in (traced_words(text), traced_parts(text)):
        for tokens in _wanted(traced, query):
            for prefix in (False, True):
                expected = _every_place(traced.spans(), tokens, prefix=prefix)
                for many in (False, True):
                    assert list(traced.find(tokens, prefix=prefix, many=many)) == expected
            if NAME_END not in tokens and not any(map(traced_words(text).may_be_within, tokens)):
                in_names = traced_parts(text).find(tokens, prefix=False)
                assert set(in_names) <= set(traced_words(text).find(tokens, prefix=False))


@given(text=texts, query=texts, width=st.integers(0, 60))
def test_many_terms_are_shown_as_few_are(text: str, query: str, width: int) -> None:
    """Terms that are found one by one, and by an index of all tokens."""
    with pytest.MonkeyPatch.context() as patch:
        shown = [_shown(text, query, width=width)]
        patch.setattr(snippet_module, "_MAX_UNINDEXED_TERMS", 0)
        shown.append(_shown(text, query, width=width))
    assert shown[0] == shown[1]


def test_a_query_of_very_many_words_that_are_all_there() -> None:
    """It takes time in proportion to its length."""
    said = [f"word{number * 7919 % 1_000}" for number in range(1_000)]
    shown = _shown(" ".join(said), " ".join(sorted(said)))
    inside = shown.text.removesuffix(ELLIPSIS)
    assert shown.text.startswith("word0 word919 ")
    assert [shown.text[start:end] for start, end in shown.marks] == inside.split()


@pytest.mark.parametrize(("behind", "expected"), [("green.", 2), ("green, or red.", 3)])
def test_where_a_piece_ends_makes_no_difference(behind: str, expected: int) -> None:
    """What is shown matches, and is marked, wherever it is in a long text."""
    for before in range(700, 1_700):
        text = f"{(_FILLER * 2)[:before]} red, or {_FILLER[:100]} {behind} {_FILLER * 2}"
        shown = _shown(text, "green red")
        assert tuple(found.span() for found in _RED_OR_GREEN.finditer(shown.text)) == shown.marks
        assert len(shown.marks) == expected
