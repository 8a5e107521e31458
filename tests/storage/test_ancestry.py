"""Paths of branches, compared with histories listed message by message."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage.ancestry import (
    Path,
    PathBranch,
    Segment,
    branch_at,
    cut_segment,
    is_on_path,
    join_path,
    ranges,
    record_ranges,
    seq_range,
    shared_length,
)

Place = tuple[int, int]


def extend(path: Path, fork_seq: int, branch: int, session_id: str) -> Path:
    """Return the path of a branch that leaves this path after `fork_seq`, one step at a time."""
    kept = [cut_segment(segment, fork_seq, 0) for segment in path if segment.first <= fork_seq]
    return (*kept, Segment(branch, fork_seq + 1, None, session_id))


def _spell(path: Path, head: int) -> list[Place]:
    """Return the branch of every seq up to the head."""
    return [
        (segment.branch, seq)
        for segment in path
        for seq in range(segment.first, (head if segment.last is None else segment.last) + 1)
        if seq <= head
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Path, list[Place]]:
    """Fork repeatedly from any point of the path; return the path and the listed history."""
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
    """Cutting and extending a path has the same effect as on the list of messages."""
    path, places = history
    assert _spell(path, len(places)) == places
    assert path[-1].last is None
    assert [segment.first for segment in path] == sorted(segment.first for segment in path)


@given(histories(), st.integers(-2, 20), st.integers(-2, 20))
def test_ranges_are_the_places_asked_for(
    history: tuple[Path, list[Place]], low: int, high: int
) -> None:
    """Exactly the requested messages, oldest first, without empty ranges."""
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
    """Up to the head, which is not part of the path."""
    path, places = history
    if seq <= len(places):
        assert is_on_path(path, branch, seq) == ((branch, seq) in places)


@given(histories())
def test_each_segment_knows_its_session(history: tuple[Path, list[Place]]) -> None:
    """It has the id of the session that wrote it, through any number of forks."""
    path, _ = history
    assert all(segment.session_id == f"s{segment.branch}" for segment in path)


# ------------------------------------------------------------------------------ trees of branches


@dataclass(frozen=True)
class Grown:
    """A branch of a tree: its path, its history as a list, and where it started."""

    path: Path
    places: list[Place]
    fork_seq: int
    parent: int | None


@st.composite
def trees(draw: st.DrawFn) -> list[Grown]:
    """Branches that leave any of those before them anywhere, many of them without a message.

    As in a store, the parent is the branch on which the last shared message lies.
    """
    grown: list[Grown] = []
    for branch in range(1, draw(st.integers(2, 8)) + 1):
        origin = draw(st.none() | st.sampled_from(grown)) if grown else None
        old = [] if origin is None else origin.places
        fork = draw(st.integers(0, len(old)))
        parent = old[fork - 1][0] if fork else None
        above: Path = () if parent is None else grown[parent - 1].path
        more = draw(st.sampled_from([0, 0, 1, 3]))
        places = old[:fork] + [(branch, fork + n) for n in range(1, more + 1)]
        grown.append(Grown(extend(above, fork, branch, f"s{branch}"), places, fork, parent))
    return grown


@given(trees())
def test_every_branch_of_a_tree_has_its_history(tree: list[Grown]) -> None:
    """Also one that starts on a branch without messages, or where that one started."""
    for each in tree:
        assert _spell(each.path, len(each.places)) == each.places
        firsts = [segment.first for segment in each.path]
        assert firsts == sorted(set(firsts))


@given(trees())
def test_the_holder_is_the_branch_a_message_lies_on(tree: list[Grown]) -> None:
    """Every message has one; seq 0 has none."""
    for each in tree:
        assert branch_at(each.path, 0) is None
        held = [branch_at(each.path, seq) for seq in range(1, len(each.places) + 1)]
        assert held == [branch for branch, _ in each.places]


def _paths(known: dict[int, Path]) -> Callable[[int, int], Path]:
    """Return a function that reads each path back to a message, not to its start."""

    def path(branch: int, low: int) -> Path:
        return tuple(part for part in known[branch] if part.last is None or part.last >= low)

    return path


@given(trees(), st.data())
def test_two_histories_share_what_they_begin_with_alike(
    tree: list[Grown], data: st.DataObject
) -> None:
    """Exactly their common messages, in either order of the arguments."""
    paths = _paths({number: each.path for number, each in enumerate(tree, 1)})
    first, second = (data.draw(st.integers(1, len(tree))) for _ in range(2))
    one, two = tree[first - 1], tree[second - 1]
    shorter = min(len(one.places), len(two.places))
    alike = [left == right for left, right in zip(one.places, two.places, strict=False)]
    common = [*alike, False].index(False)
    assert shared_length(paths, first, second, shorter) == common
    assert shared_length(paths, second, first, shorter) == common
    limit = data.draw(st.integers(0, shorter))
    assert shared_length(paths, first, second, limit) == min(limit, common)


@given(trees(), st.data())
def test_a_path_is_put_together_from_its_branches(tree: list[Grown], data: st.DataObject) -> None:
    """From the newest branch upwards, also from a path that is cached already."""
    each = data.draw(st.sampled_from(tree))
    steps: list[PathBranch] = []
    older: list[Path] = [each.path]
    current: int | None = tree.index(each) + 1
    while current is not None:
        up = tree[current - 1]
        steps.append(PathBranch(current, up.fork_seq, f"s{current}"))
        current = up.parent
        older.append(() if current is None else tree[current - 1].path)
    assert join_path(steps) == each.path
    known = data.draw(st.integers(0, len(steps)))
    assert join_path(steps[:known], older[known]) == each.path


# --------------------------------------------------------------------------- branches with records


@dataclass(frozen=True)
class Recorded:
    """A branch with records: its start, its history, and all the records of that.

    A record is (branch, number, seq); a message is (branch, seq).
    """

    step: PathBranch
    parent: int | None
    places: list[Place]
    records: list[tuple[int, int, int]]


@st.composite
def recorded_trees(draw: st.DrawFn) -> list[Recorded]:
    """Branches that leave any of those before them; many of them have records and no message.

    As in a store, the parent is the newest branch that has the last shared message or record.
    """
    grown: list[Recorded] = []
    for branch in range(1, draw(st.integers(2, 7)) + 1):
        origin = draw(st.sampled_from([*grown, *grown[-1:] * len(grown)])) if grown else None
        end = len(origin.places) if origin else 0
        fork = draw(st.just(end) | st.integers(0, end))
        places = origin.places[:fork] if origin else []
        records = [one for one in origin.records if one[2] <= fork] if origin else []
        holders = [places[-1][0]] if places else []
        parent = max([*holders, *(one[0] for one in records)], default=None)
        last = max((one[1] for one in records if one[0] == parent), default=None)
        step = PathBranch(branch, fork, f"s{branch}", last)
        number = 0
        for is_record in draw(st.lists(st.booleans(), max_size=5)):
            if is_record:
                number += 1
                records = [*records, (branch, number, len(places))]
            else:
                places = [*places, (branch, len(places) + 1)]
        grown.append(Recorded(step, parent, places, records))
    return grown


def _records_of(tree: list[Recorded], ranges: list[Segment]) -> list[tuple[int, int, int]]:
    """Return the records of these segments, as a store reads them, oldest first."""
    own = [[one for one in each.records if one[0] == n] for n, each in enumerate(tree, 1)]
    return [
        one
        for segment in reversed(ranges)
        for one in own[segment.branch - 1]
        if segment.first - 1 <= one[2]
        and (segment.last is None or one[2] <= segment.last)
        and (segment.last_record is None or one[1] <= segment.last_record)
    ]


def _steps(tree: list[Recorded], branch: int) -> list[PathBranch]:
    steps: list[PathBranch] = []
    current: int | None = branch
    while current is not None:
        steps.append(tree[current - 1].step)
        current = tree[current - 1].parent
    return steps


@given(recorded_trees())
def test_a_history_has_the_records_that_were_there_when_it_left(tree: list[Recorded]) -> None:
    """Those behind its messages, and none that its parents stored later."""
    for branch, each in enumerate(tree, 1):
        path = join_path(_steps(tree, branch))
        assert _spell(path, len(each.places)) == each.places
        assert _records_of(tree, record_ranges(path)) == each.records
        for at in range(len(each.places) + 1):
            behind = [one for one in each.records if one[2] <= at]
            assert _records_of(tree, record_ranges(path, at)) == behind


@given(recorded_trees(), st.data())
def test_a_path_with_records_is_put_together_from_its_branches(
    tree: list[Recorded], data: st.DataObject
) -> None:
    """Also from a path that is cached already: a branch with records alone is not lost."""
    branch = data.draw(st.integers(1, len(tree)))
    steps = _steps(tree, branch)
    known = data.draw(st.integers(1, len(steps)))
    older = join_path(steps[known:])
    assert join_path(steps[:known], older) == join_path(steps)


def test_a_chain_of_branches_with_records_alone_is_kept_by_a_cached_path() -> None:
    """Three branches start behind one message, each on the records of the one before."""
    steps = [
        PathBranch(4, 5, "s", 2),
        PathBranch(3, 5, "s", 2),
        PathBranch(2, 5, "s", 3),
        PathBranch(1, 0, "s"),
    ]
    assert [segment.branch for segment in join_path(steps)] == [1, 2, 3, 4]
    for known in range(len(steps) + 1):
        assert join_path(steps[:known], join_path(steps[known:])) == join_path(steps)


def test_branches_without_messages_leave_no_trace_in_a_path() -> None:
    """A branch that starts on an empty one skips it."""
    first = extend((), 0, 1, "s")
    empty = extend(first, 3, 2, "s")
    past = extend(empty, 3, 3, "s")
    assert past == (Segment(1, 1, 3, "s", 0), Segment(3, 4, None, "s"))
    assert join_path([PathBranch(3, 3, "s"), PathBranch(2, 3, "s"), PathBranch(1, 0, "s")]) == past
    paths = _paths({1: first, 2: empty, 3: past, 4: extend(past, 0, 4, "s")})
    assert shared_length(paths, 2, 3, 3) == shared_length(paths, 1, 3, 3) == 3
    assert extend(past, 0, 4, "s") == (Segment(4, 1, None, "s"),)
    assert shared_length(paths, 3, 4, 0) == 0


def test_a_segment_is_only_ever_shortened() -> None:
    """A cut after its end changes nothing."""
    segment = Segment(1, 3, 7, "s")
    assert cut_segment(segment, 5).last == 5
    assert cut_segment(segment, 9) is segment
    assert cut_segment(Segment(1, 3, None, "s"), 9).last == 9


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
    low, high = seq_range(head, limit=limit, before=before, after=after)
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
    low, high = seq_range(10, limit=page, before=None, after=None)
    while low <= high:
        back = [*range(low, high + 1), *back]
        low, high = seq_range(10, limit=page, before=low, after=None)
    forward: list[int] = []
    low, high = seq_range(10, limit=page, before=None, after=0)
    while low <= high:
        forward += range(low, high + 1)
        low, high = seq_range(10, limit=page, before=None, after=high)
    assert back == forward == list(range(1, 11))
