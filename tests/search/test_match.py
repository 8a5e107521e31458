"""Matching, against an oracle that does not use tokens, and the order of scores."""

import re
from datetime import datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.search.document import Document
from holdfast.search.match import fits_title, frequencies, matches, score
from holdfast.search.query import Query, parse
from holdfast.search.tokenize import spans, words
from tests.search.material import NOW, texts


def _parse(text: str, *, literal: bool = False, now: datetime = NOW) -> Query:
    return parse(text, literal=literal, now=now)


def _finds(query: str, text: str, *, literal: bool = False) -> bool:
    return matches(_parse(query, literal=literal), Document(text)) is not None


# ------------------------------------------------------------------------------------- counting


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("a", "a b a", (2,)),
        ('"a a"', "a a a", (2,)),
        ("a b", "b a b", (1, 2)),
        ("b a", "b a b", (2, 1)),
        ("a*", "a ab abc b", (3,)),
        ("user", "user getUser setUser", (3,)),
        ("getUser", "getUser getUser", (2,)),
        ("userName", "getUserName userName username", (2,)),
        ("==", "a == b === c", (2,)),
        ("好", "好好 x", (2,)),
        ("a -z", "a", (1,)),
        ("-z", "a", ()),
    ],
)
def test_frequencies(query: str, text: str, expected: tuple[int, ...]) -> None:
    found = matches(_parse(query), Document(text))
    assert found is not None
    assert found.frequencies == expected
    assert found.length == len(words(text))
    assert frequencies(_parse(query).wanted, text) == expected


def test_thinking_counts_only_when_asked_for() -> None:
    document = Document("red", "green getName")
    assert matches(_parse("green"), document) is None
    asked = matches(_parse("red green"), document, thinking=True)
    assert asked is not None
    assert (asked.frequencies, asked.length) == ((1, 1), 3)
    assert matches(_parse("-green"), document) is not None
    assert matches(_parse("-green"), document, thinking=True) is None
    assert matches(_parse("name"), document, thinking=True) is None  # its names have no parts


def test_no_phrase_spans_from_the_text_into_the_thinking() -> None:
    document = Document("red green", "blue ==")
    assert matches(_parse('"green blue"'), document, thinking=True) is None
    assert matches(_parse("=="), document, thinking=True) is not None


@pytest.mark.parametrize(
    ("query", "title", "fits"),
    [
        ("title:red", "The Red One", True),
        ("title:red", "The blue one", False),
        ("title:red", None, False),
        ("-title:red", None, True),
        ("-title:red", "red", False),
        ('title:"red one" title:th*', "The red one", True),
        ("title:user", "getUser", True),
        ("title:==", "a == b", True),
        ("word", None, True),
    ],
)
def test_titles(query: str, title: str | None, fits: bool) -> None:
    assert fits_title(_parse(query), title) is fits


# ----------------------------------------------------------------------------------- properties


@given(text=texts, data=st.data())
def test_a_piece_of_a_text_that_has_whole_words_is_found_in_it(
    text: str, data: st.DataObject
) -> None:
    found = spans(text)
    assume(found)
    first = data.draw(st.integers(0, len(found) - 1))
    last = data.draw(st.integers(first, len(found) - 1))
    piece = text[found[first][1] : found[last][2]]
    assume("T" not in piece or len(piece) < 60)  # a cut run may end before the T of a time
    assert _finds(piece, text, literal=True)


@given(text=texts)
def test_a_text_is_found_by_itself(text: str) -> None:
    assert _finds(text, text, literal=True)


@given(text=texts, word=texts)
def test_an_exclusion_is_the_complement(text: str, word: str) -> None:
    wanted = _parse(word)
    assume(len(wanted.terms) == 1 and wanted.terms[0].tokens and not wanted.terms[0].excluded)
    unwanted = _parse(f"-{word.lstrip()}")
    assume(len(unwanted.terms) == 1 and unwanted.terms[0].excluded)
    found = matches(wanted, Document(text)) is not None
    assert found is not (matches(unwanted, Document(text)) is not None)


@given(text=texts, one=texts, other=texts)
def test_more_terms_find_less(text: str, one: str, other: str) -> None:
    terms, more = _parse(one).terms, _parse(other).terms
    if matches(Query(terms + more), Document(text)) is not None:
        assert matches(Query(terms), Document(text)) is not None
        assert matches(Query(more), Document(text)) is not None


# --------------------------------------------------------------------------------------- oracle

# Letters and separators of which the oracle knows everything; 好 stands alone. No capitals and no
# digits, so that nothing has parts.
_texts = st.text("aabbc é好 ./_'\n", max_size=30)
_some_words = st.lists(st.sampled_from(["a", "b", "ab", "ba", "é", "abc", "好"]), min_size=1)
_terms = st.tuples(_some_words.map(lambda found: found[:3]), st.booleans(), st.booleans())


def _written(words: list[str], *, excluded: bool, prefix: bool) -> str:
    quoted = f'"{" ".join(words)}"' if len(words) > 1 else words[0]
    return f"{'-' * excluded}{quoted}{'*' * prefix}"


def _oracle(text: str, words: list[str], *, prefix: bool) -> bool:
    """Find words by a regular expression for the characters around and between them."""
    plain = re.sub("好", " 好 ", text.replace("é", "e"))
    wanted = [word.replace("é", "e") for word in words]
    phrase = r"[^abce好]+".join(wanted)
    return re.search(rf"(?<![abce]){phrase}{'' if prefix else '(?![abce])'}", plain) is not None


@given(text=_texts, asked=st.lists(_terms, min_size=1, max_size=3))
def test_an_oracle_finds_the_same(text: str, asked: list[tuple[list[str], bool, bool]]) -> None:
    query = " ".join(_written(found, excluded=out, prefix=pre) for found, out, pre in asked)
    expected = all(_oracle(text, found, prefix=pre) is not out for found, out, pre in asked)
    assert _finds(query, text) is expected


_names = st.lists(st.sampled_from(["get", "user", "name", "of"]), min_size=1, max_size=4)


@given(name=_names, asked=_names)
def test_an_oracle_finds_the_same_parts(name: list[str], asked: list[str]) -> None:
    """Of a camelCase name made of words, and a phrase of words."""
    text = f"({name[0]}{''.join(word.title() for word in name[1:])})"
    together = [name[at : at + len(asked)] for at in range(len(name))]
    assert _finds(f'"{" ".join(asked)}"', text) is (asked in together)


# ---------------------------------------------------------------------------------------- score

_counts = st.lists(st.integers(1, 1_000), min_size=1, max_size=5)
_lengths = st.integers(0, 100_000)
_ages = st.floats(0, 10_000)


@given(often=_counts, length=_lengths, age=_ages, more=st.integers(1, 1_000))
def test_more_often_is_better(often: list[int], length: int, age: float, more: int) -> None:
    better = [often[0] + more, *often[1:]]
    assert score(better, length, age) > score(often, length, age) > 0


@given(often=_counts, length=_lengths, age=_ages, longer=st.integers(1, 100_000))
def test_longer_is_worse(often: list[int], length: int, age: float, longer: int) -> None:
    assert score(often, length + longer, age) < score(often, length, age)


@given(often=_counts, length=_lengths, age=_ages, older=st.floats(0.1, 10_000))
def test_older_is_worse_but_never_by_more_than_half(
    often: list[int], length: int, age: float, older: float
) -> None:
    new, old = score(often, length, age), score(often, length, age + older)
    assert new / 2 <= old < new


@given(often=_counts, length=_lengths, age=_ages, term=st.integers(1, 1_000))
def test_another_term_is_better(often: list[int], length: int, age: float, term: int) -> None:
    assert score([*often, term], length, age) > score(often, length, age)


def test_the_weight_of_age() -> None:
    """As documented: a month takes a quarter, a year not quite half."""
    today = score([1], 100, 0)
    assert score([1], 100, 30) == pytest.approx(today * 0.75)
    assert 0.5 < score([1], 100, 365) / today < 0.55
    assert score([1], 100, -1) == today  # a clock that is ahead


def test_without_terms_the_newest_is_the_best() -> None:
    assert score([], 10, 1) == score([], 10_000, 1) > score([], 10, 2) > 0


def test_a_term_that_is_rare_among_many_is_not_drowned() -> None:
    """Two terms once each are better than one of them a thousand times and the other never."""
    assert score([1, 1], 100, 0) > score([1_000], 100, 0)
