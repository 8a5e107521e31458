"""The target of `redo`, compared with an editor's redo stack."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operations.head_moves import redo_target
from holdfast.values import BranchReason


@dataclass(frozen=True)
class Branch:
    """A branch as the rule reads it, with a number to identify it."""

    number: int
    reason: BranchReason
    fork_seq: int
    last_seq: int


def _branches(story: str) -> list[Branch]:
    """Build branches from letters: start S, fork F, undo U, rewind W, clear C, redo R, replace P.

    A `+` after a letter means that something was appended to the branch.
    """
    names: dict[str, BranchReason] = {
        "S": "start",
        "F": "fork",
        "U": "undo",
        "W": "rewind",
        "C": "clear",
        "R": "redo",
        "P": "replace",
    }
    return [
        Branch(number, names[word[0]], 5, 5 + word.count("+"))
        for number, word in enumerate(story.split(), 1)
    ]


@pytest.mark.parametrize(
    ("story", "target"),
    [
        ("S", None),
        ("S+", None),
        ("F", None),
        ("S+ U", 1),
        ("S+ W", 1),
        ("S+ C", 1),
        ("F U", 1),
        ("S+ U+", None),  # appended since
        ("S+ P+", None),
        ("S+ P", None),  # a replace is no step back
        ("S+ U P", None),
        ("S+ U U", 2),
        ("S+ U U R", 1),  # one by one
        ("S+ U U R R", None),
        ("S+ U R", None),
        ("S+ U R U", 3),  # undone again
        ("S+ U R U R", None),
        ("S+ U U R U", 4),
        ("S+ U U R U R", 1),
        ("S+ U U R+", None),
        ("S+ U+ U", 2),  # the older step back is behind what was appended
        ("S+ U+ U R", None),
        ("S+ P+ C", 2),
        ("S+ P+ C R", None),
        ("S+ C W U R R R", None),
        ("S+ C W U R R", 1),
    ],
)
def test_the_newest_step_back_that_was_not_redone(story: str, target: int | None) -> None:
    """There is one until something is appended."""
    found = redo_target(reversed(_branches(story)))
    assert (found and found.number) == target


@dataclass
class Editor:
    """A session's branches, and the redo stack: the branches that undo, rewind and clear left."""

    branches: list[Branch] = field(default_factory=lambda: [Branch(1, "start", 0, 3)])
    left: list[Branch] = field(default_factory=list)

    def do(self, what: str) -> None:
        """Apply one operation."""
        newest = self.branches[-1]
        if what == "append":
            self.branches[-1] = Branch(
                newest.number, newest.reason, newest.fork_seq, newest.last_seq + 1
            )
            self.left.clear()
        elif what == "replace":
            self._move("replace")
            self.left.clear()
        elif what == "redo":
            if self.left:
                self.left.pop()
                self._move("redo")
        else:
            self.left.append(newest)
            self._move({"undo": "undo", "rewind": "rewind"}.get(what, "clear"))  # type: ignore[arg-type]

    def _move(self, reason: BranchReason) -> None:
        self.branches.append(Branch(len(self.branches) + 1, reason, 2, 2))


@given(st.lists(st.sampled_from(["append", "replace", "undo", "undo", "rewind", "clear", "redo"])))
def test_redo_is_a_stack(steps: list[str]) -> None:
    """After any sequence of operations the target is the top of the redo stack."""
    editor = Editor()
    for step in [*steps, "redo", "redo"]:
        expected = editor.left[-1] if editor.left else None
        assert redo_target(reversed(editor.branches)) == expected
        editor.do(step)


@given(st.integers(1, 30), st.integers(0, 30))
def test_so_many_undos_are_redone_by_as_many_redos(undos: int, redos: int) -> None:
    """In reverse order, until nothing is left to redo."""
    editor = Editor()
    for _ in range(undos):
        editor.do("undo")
    ends = []
    for _ in range(redos):
        target = redo_target(reversed(editor.branches))
        ends.append(target and target.number)
        editor.do("redo")
    wanted = [*range(undos, 0, -1), *[None] * redos]
    assert ends == wanted[:redos]
