"""The query language: what each form means, and that every string is valid."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadQuery
from holdfast.search.query import Filters, Query, Term, describe, parse
from holdfast.search.tokenize import words
from tests.search.material import NOW, ODD, texts

_OPERATORS = [
    '"',
    "-",
    "*",
    ":",
    "title:",
    "role:",
    "role:tool",
    "since:",
    "since:7d",
    "scope:",
    " ",
]
_pieces = st.sampled_from([*_OPERATORS, "\u201c", "\u201d", "until:2026", "==", "a", "getUserName"])
_queries = st.lists(_pieces | texts, max_size=12).map("".join)


def _parse(text: str) -> Query:
    return parse(text, now=NOW)


def _told(text: str) -> list[str]:
    """Return the terms of a query in short form: excluded, their tokens, prefix."""
    return [
        f"{'-' * term.excluded}{' '.join(term.tokens)}{'*' * term.prefix}"
        for term in _parse(text).terms
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("   ", []),
        ("red green", ["red", "green"]),
        ("red RED r\u00e9d", ["red"]),
        ("it's gateway/run.py", ["it s", "gateway run py"]),
        ("TODO: fix a:b", ["todo", "fix", "a b"]),
        ('"red green" blue', ["red green", "blue"]),
        ('red"green blue"', ["red green", "blue"]),
        ('"red"green', ["red", "green"]),
        ('"red green', ["red", "green"]),
        ("\u201cred green\u201d", ["red green"]),
        ("\u201cred green", ["red", "green"]),
        ('"" " " "', []),
        ('-red -"green blue"', ["-red", "-green blue"]),
        ("red-green - -- red", ["red green", "", "red"]),
        ("--force ->x -=y", ["force", "x", "y"]),
        ("-- ->", ["", ""]),
        ('* - "', []),
        ('"*" -" red', ["", "red"]),
        ("pre* red-pre*", ["pre*", "red pre*"]),
        ('"red pre"* -pre*', ["red pre*", "-pre*"]),
        ("**bold** *it* *.py src/* a*b", ["bold", "it", "py", "src", "a b"]),
        ("c++* 好*", ["c ++*", "好*"]),
        ("AND OR NEAR( ^x", ["and", "or", "near", "x"]),
        ("role:nobody -role:tool role:", ["role nobody", "-role tool", "role"]),
        ("Role:tool rôle:tool", ["role tool"]),
        ("since:soon until:2026-02-30 since:", ["since soon", "until 2026 02 30", "since"]),
        ('title: title:"" title:"', ["title"]),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert _told(text) == expected
    assert _parse(text).filters == Filters()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("role:tool", Filters(role="tool")),
        ("role:Tool", Filters(role="tool")),
        ('role:"user"', Filters(role="user")),
        ("role:user role:tool", Filters(role="tool")),
        ("scope:work", Filters(scope="work")),
        ('scope:"my work" agent:coder', Filters(scope="my work", agent="coder")),
        ("scope:a/b:c*", Filters(scope="a/b:c*")),
        ("session:@latest", Filters(session="@latest")),
        ("since:2h", Filters(since=datetime(2026, 3, 31, 10, 30, tzinfo=UTC))),
        ("since:7d", Filters(since=datetime(2026, 3, 24, 12, 30, tzinfo=UTC))),
        ("since:2w", Filters(since=datetime(2026, 3, 17, 12, 30, tzinfo=UTC))),
        ("since:1m", Filters(since=datetime(2026, 2, 28, 12, 30, tzinfo=UTC))),
        ("since:4m", Filters(since=datetime(2025, 11, 30, 12, 30, tzinfo=UTC))),
        ("since:1y", Filters(since=datetime(2025, 3, 31, 12, 30, tzinfo=UTC))),
        ("until:7d", Filters(until=datetime(2026, 3, 24, 12, 30, tzinfo=UTC))),
        ("since:2026-01-31", Filters(since=datetime(2026, 1, 31, tzinfo=UTC))),
        ("until:2026-01-31", Filters(until=datetime(2026, 2, 1, tzinfo=UTC))),
        ("since:2026-02", Filters(since=datetime(2026, 2, 1, tzinfo=UTC))),
        ("until:2025-12", Filters(until=datetime(2026, 1, 1, tzinfo=UTC))),
        ("until:2025", Filters(until=datetime(2026, 1, 1, tzinfo=UTC))),
        ("since:2025", Filters(since=datetime(2025, 1, 1, tzinfo=UTC))),
        ("until:2026-01-31T08:15", Filters(until=datetime(2026, 1, 31, 8, 15, tzinfo=UTC))),
        ("until:2026-01-31T08:15Z", Filters(until=datetime(2026, 1, 31, 8, 15, tzinfo=UTC))),
    ],
)
def test_filters(text: str, expected: Filters) -> None:
    assert _parse(text) == Query((), expected)


@pytest.mark.parametrize(
    "text",
    [
        "since:99999y",
        "since:99999m",
        "until:9999-12-31",
        "until:9999",
        "since:0000-01-01",
        "since:2026-13",
        "since:2026-01-31T25:00",
        "since:2026-01-31T10:00nonsense",
        "since:7",
        "since:-7d",
        "since:7D",
    ],
)
def test_a_time_that_is_none_is_text(text: str) -> None:
    """Also one that is not in the calendar."""
    assert _parse(text).filters == Filters()
    assert _parse(text).terms[0].tokens == tuple(words(text))


def test_a_day_is_one_of_where_now_is() -> None:
    zone = timezone(timedelta(hours=9))
    filters = parse("since:2026-01-31 until:2026-01-31", now=NOW.astimezone(zone)).filters
    assert filters.since == datetime(2026, 1, 30, 15, tzinfo=UTC)
    assert filters.until == datetime(2026, 1, 31, 15, tzinfo=UTC)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse("since:1h", now=NOW.replace(tzinfo=None)) == parse("since:1h", now=NOW)


def test_title_terms_are_apart() -> None:
    query = _parse('title:red -title:"green blue" title:pre* word')
    assert [term.tokens for term in query.terms] == [("word",)]
    assert [(t.tokens, t.prefix, t.excluded) for t in query.filters.title] == [
        (("red",), False, False),
        (("green", "blue"), False, True),
        (("pre",), True, False),
    ]


def test_a_name_is_looked_for_by_its_parts_too() -> None:
    name, plain, phrase, beginning = _parse("userName username a.userName getUserN*").terms
    assert (name.tokens, name.parts) == (("username",), ("user", "name"))
    assert plain.parts == phrase.parts == ()
    assert (beginning.parts, beginning.prefix) == (("get", "user", "n"), True)


def test_what_has_no_words_is_kept_as_it_is() -> None:
    query = _parse("a == -=> =*")
    assert [term.raw for term in query.terms] == ["a", "==", "-=>", "=*"]
    assert query.needs_scan
    assert [bool(term.tokens) for term in query.terms] == [True, False, False, False]
    assert not _parse("a b -c title:==").needs_scan


def test_wanted_and_unwanted_are_all_there_is() -> None:
    query = _parse("a -b c -d")
    assert [term.raw for term in query.wanted] == ["a", "c"]
    assert [term.raw for term in query.unwanted] == ["b", "d"]


def test_literal_takes_everything_as_one_phrase() -> None:
    query = parse(' -a "b" title:c* ', literal=True, now=NOW)
    assert query == Query((Term(("a", "b", "title", "c"), False, False, '-a "b" title:c*'),))
    assert parse(" ", literal=True, now=NOW) == Query()


def test_a_query_can_be_told() -> None:
    assert describe(Query()) == "everything"
    told = describe(
        _parse('gateway/run.py pre* -"red green" == role:tool title:x since:2026-01-31')
    )
    assert told == (
        '"gateway run py", "pre…", not "red green", "==", title "x", role tool,'
        " since 2026-01-31T00:00+00:00"
    )


@given(text=_queries, literal=st.booleans())
def test_no_string_is_wrong(text: str, literal: bool) -> None:
    query = parse(text, literal=literal, now=NOW)
    assert describe(query)
    for term in (*query.terms, *query.filters.title):
        assert term.raw
        assert term.tokens or not term.prefix
        assert tuple(words(term.raw)) == term.tokens


@given(text=_queries)
def test_every_word_of_a_query_means_something(text: str) -> None:
    """A query with words has terms or filters: no word is dropped silently."""
    query = _parse(text)
    assert query != Query() or not words(text)


@pytest.mark.parametrize("kind", ODD)
def test_a_long_query_is_read_in_a_moment(kind: str) -> None:
    """Also one that opens a quote again and again."""
    character = ODD[kind]
    assert len(parse(character * 60, now=NOW).terms) <= 1
    assert len(parse(f"{character} " * 2_000 + "\u201c " * 3_000, now=NOW).terms) <= 2


@pytest.mark.parametrize("literal", [False, True])
def test_a_query_beyond_a_limit_is_refused_and_the_limit_is_named(literal: bool) -> None:
    words = " ".join(f"{n:x}" for n in range(2_000))
    assert parse(words, literal=literal, now=NOW).terms
    with pytest.raises(BadQuery, match="2,001 words is over the limit of 2,000"):
        parse(f"{words} more", literal=literal, now=NOW)
    assert parse("=" * 10_000, literal=literal, now=NOW).terms
    with pytest.raises(BadQuery, match="10,001 characters is over the limit of 10,000"):
        parse("=" * 10_001, literal=literal, now=NOW)


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"-{n:x}" for n in range(2_001)),
        'title:"' + "a " * 2_001 + '"',
        " ".join(f"{n:x}*" for n in range(2_001)),
        " ".join([*("=" * n for n in range(1, 50)), *(f"{n:x}" for n in range(1_952))]),
        '"' + "a " * 2_001 + '"',
        "\u5305" * 2_001,
    ],
    ids=["excluded", "title", "prefix", "punctuation", "phrase", "chinese"],
)
def test_every_kind_of_word_counts(text: str) -> None:
    assert len(text) <= 10_000
    with pytest.raises(BadQuery, match="words is over the limit of 2,000"):
        _parse(text)
