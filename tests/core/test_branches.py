"""Paths through branches, against a history spelled out message by message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.branches import Path, Segment, cut, extend, interval, lies_on, ranges

Place = tuple[int, int]


def _spell(path: Path, head: int) -> list[Place]:
    """Write a history out: the branch of every seq up to the head."""
    return [
        (segment.branch, seq)
        for segment in path
        for seq in range(segment.first, (segment.last or head) + 1)
        if seq <= head
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Path, list[Place]]:
    """Fork again and again, each time from anywhere on the path; keep both forms of it."""
    path = extend((), 0, 1, "s1")
    places = [(1, seq) for seq in range(1, draw(st.integers(0, 6)) + 1)]
    for branch in range(2, draw(st.integers(1, 6)) + 1):
        fork = draw(st.integers(0, len(places)))
        path = extend(path, fork, branch, f"s{branch}")
        more = draw(st.integers(0, 6))
        places = places[:fork] + [(branch, seq) for seq in range(fork + 1, fork + more + 1)]
    return path, places


@given(histories())
def test_a_path_runs_through_every_seq_once(history: tuple[Path, list[Place]]) -> None:
    """Cutting and extending is what happens to the list of messages."""
    path, places = history
    assert _spell(path, len(places)) == places
    assert path[-1].last is None
    assert [segment.first for segment in path] == sorted(segment.first for segment in path)


@given(histories(), st.integers(-2, 20), st.integers(-2, 20))
def test_ranges_are_the_places_asked_for(
    history: tuple[Path, list[Place]], low: int, high: int
) -> None:
    """No more, no less, oldest first, none empty."""
    path, places = history
    high = min(high, len(places))
    found = [
        (r.branch, seq)
        for r in ranges(path, low, high)
        for seq in range(r.first, (r.last or 0) + 1)
    ]
    assert found == [(b, seq) for b, seq in places if low <= seq <= high]
    assert all(r.last is not None and r.first <= r.last for r in ranges(path, low, high))


@given(histories(), st.integers(0, 8), st.integers(0, 40))
def test_a_place_lies_on_a_history_or_not(
    history: tuple[Path, list[Place]], branch: int, seq: int
) -> None:
    """Up to the head, which the path itself does not know."""
    path, places = history
    if seq <= len(places):
        assert lies_on(path, branch, seq) == ((branch, seq) in places)


@given(histories())
def test_each_segment_knows_its_session(history: tuple[Path, list[Place]]) -> None:
    """The session that wrote it, through any number of forks."""
    path, _ = history
    assert all(segment.session_id == f"s{segment.branch}" for segment in path)


def test_a_segment_is_only_ever_shortened() -> None:
    """A cut behind its end changes nothing."""
    segment = Segment(1, 3, 7, "s")
    assert cut(segment, 5).last == 5
    assert cut(segment, 9) is segment
    assert cut(Segment(1, 3, None, "s"), 9).last == 9


@given(
    head=st.integers(0, 12),
    limit=st.none() | st.integers(0, 14),
    before=st.none() | st.integers(0, 14),
    after=st.none() | st.integers(0, 14),
)
def test_an_interval_is_the_end_of_what_lies_between(
    head: int, limit: int | None, before: int | None, after: int | None
) -> None:
    """The newest `limit`; with `after` alone the first `limit`: paging works both ways."""
    low, high = interval(head, limit=limit, before=before, after=after)
    between = [
        seq
        for seq in range(1, head + 1)
        if (after is None or seq > after) and (before is None or seq < before)
    ]
    if limit is not None:
        forward = after is not None and before is None
        between = between[:limit] if forward else between[len(between) - min(limit, len(between)) :]
    assert list(range(low, high + 1)) == between


@pytest.mark.parametrize("page", [1, 2, 3, 10])
def test_pages_cover_a_history_both_ways(page: int) -> None:
    """Back by `before`, forward by `after`: every seq once."""
    back: list[int] = []
    low, high = interval(10, limit=page, before=None, after=None)
    while low <= high:
        back = [*range(low, high + 1), *back]
        low, high = interval(10, limit=page, before=low, after=None)
    forward: list[int] = []
    low, high = interval(10, limit=page, before=None, after=0)
    while low <= high:
        forward += range(low, high + 1)
        low, high = interval(10, limit=page, before=None, after=high)
    assert back == forward == list(range(1, 11))
