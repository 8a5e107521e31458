"""What a purge must keep, compared with the messages that remaining sessions can reach."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operations.purge_rules import BranchNode, required_ends

Row = tuple[int, int]  # branch, seq


def _seqs(lines: Iterable[BranchNode], purged: set[int]) -> dict[int, int]:
    return {branch: part.seq for branch, part in required_ends(lines, purged).items()}


@dataclass
class Forest:
    """Branches of sessions that fork from one another, each history written out."""

    lines: list[BranchNode] = field(default_factory=list)
    histories: dict[int, list[Row]] = field(default_factory=dict)

    def add(self, session: int, origin: int | None, at: int, length: int) -> None:
        """Add a branch of `length` messages that starts after message `at` of another history."""
        number = len(self.lines) + 1
        shared = self.histories[origin][:at] if origin is not None else []
        parent = shared[-1][0] if shared else None
        self.lines.append(BranchNode(number, session, parent, len(shared)))
        own = [(number, seq) for seq in range(len(shared) + 1, len(shared) + 1 + length)]
        self.histories[number] = shared + own

    def reachable(self, purged: set[int]) -> set[Row]:
        """Return every message in the history of a session that is not purged."""
        living = [line.branch for line in self.lines if line.session not in purged]
        return {row for branch in living for row in self.histories[branch]}


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Each branch belongs to a new or an existing session, and starts at any message."""
    forest = Forest()
    sessions = 0
    for number in range(draw(st.integers(1, 12))):
        new = sessions == 0 or draw(st.booleans())
        sessions += new
        session = sessions if new else draw(st.integers(1, sessions))
        origin = draw(st.none() | st.integers(1, number)) if number else None
        length = len(forest.histories[origin]) if origin is not None else 0
        forest.add(session, origin, draw(st.integers(0, length)), draw(st.integers(0, 4)))
    return forest


@given(forests(), st.sets(st.integers(1, 12)))
def test_what_can_be_reached_stays_and_nothing_else(forest: Forest, purged: set[int]) -> None:
    """Each branch of a purged session stays up to the last message that another session shares."""
    kept = _seqs(forest.lines, purged)
    reached = forest.reachable(purged)
    for line in forest.lines:
        if line.session in purged:
            stays = [seq for branch, seq in reached if branch == line.branch]
            assert kept.get(line.branch) == max(stays, default=None)


@given(forests(), st.sets(st.integers(1, 12)))
def test_the_order_of_the_branches_does_not_matter(forest: Forest, purged: set[int]) -> None:
    """A database may return the branches in any order."""
    assert _seqs(reversed(forest.lines), purged) == _seqs(forest.lines, purged)


@given(forests(), st.permutations(range(1, 13)))
def test_rows_kept_for_forks_go_with_the_last_of_them(forest: Forest, order: list[int]) -> None:
    """In whatever order sessions are purged, nothing is kept once all are."""
    purged: set[int] = set()
    before = forest.reachable(purged)
    for session in order:
        purged.add(session)
        after = forest.reachable(purged)
        assert after <= before
        before = after
    kept = _seqs(forest.lines, purged)
    assert {line.branch for line in forest.lines if line.branch in kept} == set()


@pytest.mark.parametrize(
    ("purged", "kept"),
    [
        (set(), {1: 7, 2: 9}),
        ({1}, {1: 7, 2: 9}),  # the branch of session 1 is needed as far as session 2 shares it
        ({2}, {1: 7, 2: 9}),  # needed by session 3, and what it starts on with it
        ({3}, {1: 7}),  # session 3 needs nothing any more; session 2 still needs session 1
        ({2, 3}, {}),
        ({1, 2}, {1: 7, 2: 9}),
        ({1, 2, 3}, {}),
    ],
)
def test_a_chain_of_forks(purged: set[int], kept: dict[int, int]) -> None:
    """A fork of a fork keeps both of its ancestors."""
    chain = [BranchNode(1, 1, None, 0), BranchNode(2, 2, 1, 7), BranchNode(3, 3, 2, 9)]
    assert _seqs(chain, purged) == kept


def test_a_branch_of_the_same_session_keeps_nothing_alive() -> None:
    """However often it was undone and redone, all branches of a session are erased at once."""
    lines = [BranchNode(1, 1, None, 0), BranchNode(2, 1, 1, 3), BranchNode(3, 1, 2, 4)]
    assert _seqs(lines, {1}) == {}
    assert _seqs([*lines, BranchNode(4, 2, 3, 6)], {1}) == {3: 6, 2: 4, 1: 3}


def test_records_stay_up_to_the_last_that_a_fork_has() -> None:
    """Also those of a branch that has no message of its own, and none that only the purged had."""
    first, state_alone = BranchNode(1, 1, None, 0), BranchNode(2, 1, 1, 5, 3)
    forks = [BranchNode(3, 2, 2, 5, 4), BranchNode(4, 3, 1, 2, 1), BranchNode(5, 1, 1, 7, 9)]
    assert required_ends([first, state_alone, *forks], {1}) == {2: (5, 4), 1: (5, 3)}
