"""Built-in references and time filters: what they mean, and what is refused; titles folded."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import titles
from holdfast.errors import BadQuery, BadRef
from holdfast.operations import refs
from holdfast.search import time_filter

_NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("@latest", refs.BuiltinRef("latest")),
        ("@latest:web", refs.BuiltinRef("latest", "web")),
        ("@latest:a:b", refs.BuiltinRef("latest", "a:b")),
        ("@latest: ", refs.BuiltinRef("latest", " ")),
        ("@pinned", refs.BuiltinRef("pinned")),
        ("@pinned:web", None),
        ("@latestx", None),
        ("@Latest", None),
        (" @latest", None),
        ("@", None),
        ("latest", None),
    ],
)
def test_names_that_a_store_gives(ref: str, found: refs.BuiltinRef | None) -> None:
    """Exactly these, and `is_builtin` agrees."""
    assert refs.parse_builtin(ref) == found
    assert refs.is_builtin(ref) is (found is not None)


@pytest.mark.parametrize("ref", ["", " ", "\n\t", "-", None, 5, b"x"])
def test_what_cannot_name_a_session(ref: Any) -> None:  # noqa: ANN401 - anything may be passed
    """Empty or blank values, a lone dash, and what is not a text."""
    with pytest.raises(BadRef, match="an empty name"):
        refs.check_ref(ref)


def test_a_scope_must_be_named() -> None:
    """An empty variable must not mean all scopes; shell completion offers no such key."""
    with pytest.raises(BadRef, match="the scope is missing"):
        refs.parse_builtin("@latest:")
    assert refs.is_builtin("@latest:")


@given(st.text(), st.text())
def test_a_title_is_like_itself_in_any_case(title: str, other: str) -> None:
    """Folding is idempotent, and ignores case."""
    loose = titles.normalize_title(title)
    assert titles.normalize_title(loose) == loose
    assert (titles.normalize_title(other) == loose) is (
        titles.normalize_title(other) == titles.normalize_title(title)
    )
    if title.isascii():
        assert (
            titles.normalize_title(title.upper()) == titles.normalize_title(title.lower()) == loose
        )


@pytest.mark.parametrize(
    ("value", "bound", "found"),
    [
        (None, "since", None),
        ("12h", "since", _NOW - timedelta(hours=12)),
        ("7d", "until", _NOW - timedelta(days=7)),
        ("1m", "since", datetime(2026, 2, 28, 12, tzinfo=UTC)),
        ("2026-01-31", "since", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31", "until", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2026-01", "until", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2025", "until", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-31T18:00", "since", datetime(2026, 1, 31, 18, tzinfo=UTC)),
        ("2026-01-31T18:00+02:00", "since", datetime(2026, 1, 31, 16, tzinfo=UTC)),
        (
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=3))),
            "since",
            datetime(2025, 12, 31, 21, tzinfo=UTC),
        ),
    ],
)
def test_times(value: Any, bound: time_filter.Bound, found: datetime | None) -> None:  # noqa: ANN401
    """As in a search query; a day ends where the next one begins."""
    assert time_filter.parse_time(value, bound, _NOW) == found


def test_days_are_those_of_the_place() -> None:
    """A date means the day in the time zone of `now`."""
    there = _NOW.astimezone(timezone(timedelta(hours=14)))
    begin = time_filter.parse_time("2026-04-01", "since", there)
    assert begin == datetime(2026, 3, 31, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "value", ["", " ", "7", "d", "7 d", "7d 8d", "tomorrow", "2026-02-30", "title:x", '"7d"', 7]
)
def test_what_is_no_time(value: Any) -> None:  # noqa: ANN401 - anything may be passed
    """The error shows examples of valid times."""
    with pytest.raises(BadQuery, match="since: expected a time such as 7d"):
        time_filter.parse_time(value, "since", _NOW)
    with pytest.raises(BadQuery, match="until: has no time zone"):
        time_filter.parse_time(datetime(2026, 1, 1), "until", _NOW)  # noqa: DTZ001 - that is the point
