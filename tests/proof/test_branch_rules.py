"""The rules of movement catch what they must, and nothing else.

For every rule a smallest history that breaks it, next to a healthy twin; and random legal
executions of workers that move one head at once, in which nothing may be found, and which are then
corrupted in one known way. What a correct store does is said by the model of `tests.model`.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.proof.checker import (
    Acked,
    Branch,
    Event,
    Invoked,
    OperationName,
    Read,
    Refused,
    Stored,
    Unknown,
    Verdict,
    ViolationKind,
    check,
    digest,
)
from holdfast.proof.checker.branch_rules import length_after_undo
from holdfast.values import BranchReason, Head, Message, MessageRef, Text
from tests.model.reference import Identity, Line, Model

Branches = list[Branch]


# --- small histories, written by hand -----------------------------------------------------------


def _stored(ids: str) -> tuple[Stored, ...]:
    """Return messages with one-letter ids; vowels are said by the user, capitals are summaries."""
    return tuple(Stored(id_, seq, id_, _role(id_)) for seq, id_ in enumerate(ids, 1))


def _role(id_: str) -> str:
    if id_.isupper():
        return "summary"
    return "user" if id_ in "aeiou" else "assistant"


def _branches(*lines: tuple[BranchReason, str, int]) -> Branches:
    """Return branches by reason, history and where they start; they start where they were to."""
    return [
        Branch(number, reason, fork, fork, _stored(ids))
        for number, (reason, ids, fork) in enumerate(lines, 1)
    ]


def _begin(
    op: int, at: int, verb: OperationName, ids: str = "", **more: int | str | None
) -> Invoked:
    begun = Invoked("w", op, "s", tuple(ids), tuple(ids), at, operation=verb)
    return msgspec.structs.replace(begun, **more)


def _told(op: int, at: int, branch: int, seq: int) -> Acked:
    return Acked("w", op, "s", (), at, last=seq, branch=branch)


def _did(
    op: int, verb: OperationName, head: tuple[int, int], ids: str = "", **more: object
) -> list[Event]:
    """Begin and end something, behind what has a lower number."""
    begun = _begin(op, 10 * op, verb, ids, **more)  # type: ignore[arg-type]
    return [begun, _told(op, 10 * op + 5, *head)]


def _read(began: int, branch: int, ids: str) -> Read:
    seqs = tuple(range(1, len(ids) + 1))
    return Read(
        "r",
        "s",
        began,
        began + 1,
        tuple(ids),
        seqs,
        complete=True,
        digests=tuple(ids),
        branch=branch,
    )


def _check(events: Sequence[Event], branches: Branches, **others: Branches) -> Verdict:
    return check(events, {}, branches={"s": branches, **others})


# Two exchanges, a and b, e and f; then one is taken back.
_SAID = [*_did(1, "append", (1, 2), "ab"), *_did(2, "append", (1, 4), "ef")]
_UNDONE = [*_SAID, *_did(3, "undo", (2, 2))]
_FIRST: tuple[BranchReason, str, int] = ("start", "abef", 0)
_BACK = _branches(_FIRST, ("undo", "ab", 2))

Case = tuple[ViolationKind, Sequence[Event], Branches, Sequence[Event], Branches]

# name: (kind, sick events, sick branches, healthy events, healthy branches)
_CASES: dict[str, Case] = {
    "an undo takes back half an exchange": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "undo", (2, 3))],
        _branches(_FIRST, ("undo", "abe", 3)),
        _UNDONE,
        _BACK,
    ),
    "an undo takes back more than it was told to": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "undo", (2, 0))],
        _branches(_FIRST, ("undo", "", 0)),
        [*_SAID, *_did(3, "undo", (2, 0), turns=2)],
        _branches(_FIRST, ("undo", "", 0)),
    ),
    "a branch begins with something else than it shares": (
        ViolationKind.WRONG_MOVE,
        [*_UNDONE, *_did(9, "append", (1, 5), "x")],
        _branches(_FIRST, ("undo", "ax", 2)),
        _UNDONE,
        _BACK,
    ),
    "a rewind goes elsewhere": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "rewind", (2, 2), to=3)],
        _branches(_FIRST, ("rewind", "ab", 2)),
        [*_SAID, *_did(3, "rewind", (2, 3), to=3)],
        _branches(_FIRST, ("rewind", "abe", 3)),
    ),
    "a rewind to an id goes elsewhere": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "rewind", (2, 2), to="a")],
        _branches(_FIRST, ("rewind", "ab", 2)),
        [*_SAID, *_did(3, "rewind", (2, 1), to="a")],
        _branches(_FIRST, ("rewind", "a", 1)),
    ),
    "a rewind onto an old branch stays on the new one": (
        ViolationKind.WRONG_MOVE,
        [*_UNDONE, *_did(4, "append", (2, 4), "ix"), *_did(5, "rewind", (3, 3), to=3, to_branch=1)],
        _branches(_FIRST, ("undo", "abix", 2), ("rewind", "abi", 3)),
        [*_UNDONE, *_did(4, "append", (2, 4), "ix"), *_did(5, "rewind", (3, 3), to=3, to_branch=1)],
        _branches(_FIRST, ("undo", "abix", 2), ("rewind", "abe", 3)),
    ),
    "a redo goes somewhere else": (
        ViolationKind.WRONG_MOVE,
        [*_UNDONE, *_did(4, "undo", (3, 0)), *_did(5, "redo", (4, 4))],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0), ("redo", "abef", 4)),
        [*_UNDONE, *_did(4, "undo", (3, 0)), *_did(5, "redo", (4, 2))],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0), ("redo", "ab", 2)),
    ),
    "a redo behind an append": (
        ViolationKind.WRONG_MOVE,
        [*_UNDONE, *_did(4, "append", (2, 3), "x"), *_did(5, "redo", (3, 4))],
        _branches(_FIRST, ("undo", "abx", 2), ("redo", "abef", 4)),
        [*_UNDONE, *_did(5, "redo", (3, 4))],
        _branches(_FIRST, ("undo", "ab", 2), ("redo", "abef", 4)),
    ),
    "a clear leaves something": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "clear", (2, 1))],
        _branches(_FIRST, ("clear", "a", 1)),
        [*_SAID, *_did(3, "clear", (2, 0)), *_did(4, "clear", (2, 0))],
        _branches(_FIRST, ("clear", "", 0)),
    ),
    "a replace keeps what it was to drop": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "replace", (2, 3), "abx")],
        _branches(_FIRST, ("replace", "abex", 3)),
        [*_SAID, *_did(3, "replace", (2, 3), "abx")],
        _branches(_FIRST, ("replace", "abx", 2)),
    ),
    "a replace shares less than it could": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "replace", (2, 3), "abx")],
        _branches(_FIRST, ("replace", "abx", 1)),
        [*_SAID, *_did(3, "replace", (1, 5), "abefx")],
        _branches(("start", "abefx", 0)),
    ),
    "a movement did not compare": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "undo", (2, 2), expect=2, expect_branch=1)],
        _BACK,
        [*_SAID, *_did(3, "undo", (2, 2), expect=4, expect_branch=1)],
        _BACK,
    ),
    "a movement that changed nothing did not compare": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "rewind", (1, 4), to=4, expect=2, expect_branch=1)],
        _branches(_FIRST),
        [*_SAID, *_did(3, "rewind", (1, 4), to=4, expect=4, expect_branch=1)],
        _branches(_FIRST),
    ),
    "a replace was put on another head": (
        ViolationKind.WRONG_MOVE,
        [*_SAID, *_did(3, "replace", (2, 3), "abx", expect=2, expect_branch=1)],
        _branches(_FIRST, ("replace", "abx", 2)),
        [
            *_did(1, "append", (1, 2), "ab"),
            *_did(2, "replace", (1, 3), "abx", expect=2, expect_branch=1),
        ],
        _branches(("start", "abx", 0)),
    ),
    "an append did not compare branches": (
        ViolationKind.REORDER,
        [*_UNDONE, *_did(4, "append", (2, 3), "x", expect=2, expect_branch=1)],
        _branches(_FIRST, ("undo", "abx", 2)),
        [*_UNDONE, *_did(4, "append", (2, 3), "x", expect=2, expect_branch=2)],
        _branches(_FIRST, ("undo", "abx", 2)),
    ),
    "two undos are told one branch": (
        ViolationKind.DUPLICATE,
        [*_UNDONE, *_did(4, "undo", (2, 2))],
        _BACK,
        [*_UNDONE, *_did(4, "undo", (3, 0))],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0)),
    ),
    "messages are copied": (
        ViolationKind.DUPLICATE,
        _UNDONE,
        _branches(_FIRST, ("undo", "ab", 0)),
        _UNDONE,
        _BACK,
    ),
    "an id comes twice along a branch": (
        ViolationKind.DUPLICATE,
        [*_UNDONE, *_did(4, "append", (2, 3), "a")],
        _branches(_FIRST, ("undo", "aba", 2)),
        [*_UNDONE, *_did(4, "append", (2, 4), "ef")],
        _branches(_FIRST, ("undo", "abef", 2)),
    ),
    "a branch that was told is not there": (ViolationKind.LOST, _UNDONE, _BACK[:1], _UNDONE, _BACK),
    "the end of an old branch is gone": (
        ViolationKind.LOST,
        _UNDONE,
        _branches(("start", "ab", 0), ("undo", "ab", 2)),
        _UNDONE,
        _BACK,
    ),
    "a replace is not there": (
        ViolationKind.LOST,
        [*_SAID, *_did(3, "replace", (2, 3), "abx")],
        _branches(_FIRST),
        [*_SAID, _begin(3, 30, "replace", "abx")],
        _branches(_FIRST),
    ),
    "nobody opened a branch": (
        ViolationKind.INVENTED,
        _SAID,
        _BACK,
        [*_SAID, _begin(3, 30, "undo")],
        _BACK,
    ),
    "a refused movement opened a branch": (
        ViolationKind.INVENTED,
        [*_SAID, _begin(3, 30, "undo"), Refused("w", 3, "s", "HeadMoved", 35)],
        _BACK,
        [*_SAID, _begin(3, 30, "undo"), Unknown("w", 3, "s", 35)],
        _BACK,
    ),
    "one unknown movement opened two branches": (
        ViolationKind.INVENTED,
        [*_SAID, _begin(3, 30, "undo")],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0)),
        [*_SAID, _begin(3, 30, "undo"), _begin(4, 40, "undo")],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0)),
    ),
    "of two unknown movements neither can have opened the second branch": (
        ViolationKind.INVENTED,
        [
            *_SAID,
            _begin(3, 30, "undo", expect=4, expect_branch=1),
            _begin(4, 30, "undo", expect=4, expect_branch=1),
        ],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0)),
        # The first of these can have opened both: it must be left for the second branch.
        [*_SAID, _begin(3, 30, "undo"), _begin(4, 30, "undo", expect=4, expect_branch=1)],
        _branches(_FIRST, ("undo", "ab", 2), ("undo", "", 0)),
    ),
    "branches are numbered with a gap": (
        ViolationKind.GAP,
        _UNDONE,
        [_BACK[0], msgspec.structs.replace(_BACK[1], number=3)],
        _UNDONE,
        _BACK,
    ),
    "a branch shares more than it has": (
        ViolationKind.GAP,
        _UNDONE,
        [_BACK[0], msgspec.structs.replace(_BACK[1], fork_seq=5)],
        _UNDONE,
        _BACK,
    ),
    "an append behind an undo is stored before it": (
        ViolationKind.REORDER,
        [
            *_did(1, "append", (1, 2), "ab"),
            *_did(3, "undo", (2, 0)),
            *_did(4, "append", (1, 4), "ef"),
        ],
        _branches(_FIRST, ("undo", "", 0)),
        [
            *_did(1, "append", (1, 2), "ab"),
            *_did(3, "undo", (2, 0)),
            *_did(4, "append", (2, 2), "ef"),
        ],
        _branches(("start", "ab", 0), ("undo", "ef", 0)),
    ),
    "a movement behind another comes before it": (
        ViolationKind.REORDER,
        [*_SAID, *_did(3, "clear", (3, 0)), *_did(4, "undo", (2, 2))],
        _branches(_FIRST, ("undo", "ab", 2), ("clear", "", 0)),
        [*_SAID, *_did(3, "undo", (2, 2)), *_did(4, "clear", (3, 0))],
        _branches(_FIRST, ("undo", "ab", 2), ("clear", "", 0)),
    ),
    "an append is told the head of something else": (
        ViolationKind.REORDER,
        [*_did(1, "append", (1, 2), "ab"), *_did(2, "append", (1, 2), "ef")],
        _branches(_FIRST),
        _SAID,
        _branches(_FIRST),
    ),
    "a read shows the branch that was left": (
        ViolationKind.STALE_READ,
        [*_UNDONE, _read(50, 1, "abef")],
        _BACK,
        [*_UNDONE, _read(32, 1, "abef"), _read(50, 2, "ab")],
        _BACK,
    ),
    "a read shows a branch before it was whole": (
        ViolationKind.STALE_READ,
        [*_SAID, _begin(3, 30, "undo"), _read(32, 2, "a")],
        _BACK,
        [*_SAID, _begin(3, 30, "undo"), _read(32, 2, "ab")],
        _BACK,
    ),
    "a read shows what is on another branch": (
        ViolationKind.REORDER,
        [*_UNDONE, *_did(4, "append", (2, 4), "ix"), _read(50, 2, "abef")],
        _branches(_FIRST, ("undo", "abix", 2)),
        [*_UNDONE, *_did(4, "append", (2, 4), "ix"), _read(50, 2, "abix")],
        _branches(_FIRST, ("undo", "abix", 2)),
    ),
    "a summary is lost": (
        ViolationKind.LOST,
        [*_SAID, *_did(3, "summarize", (1, 5), "S")],
        _branches(_FIRST),
        [*_SAID, *_did(3, "summarize", (1, 5), "S"), *_did(4, "undo", (2, 2))],
        _branches(("start", "abefS", 0), ("undo", "ab", 2)),
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_the_sick_history_is_caught(name: str) -> None:
    kind, events, branches, _, _ = _CASES[name]
    verdict = _check(events, branches)
    assert kind in verdict.kinds, str(verdict)


@pytest.mark.parametrize("name", _CASES)
def test_its_healthy_twin_is_not(name: str) -> None:
    *_, events, branches = _CASES[name]
    verdict = _check(events, branches)
    assert verdict.ok, str(verdict)


def _forked(at: int, **more: object) -> list[Event]:
    begun = _begin(7, at, "fork", **more)  # type: ignore[arg-type]
    return [begun, Acked("w", 7, "s", (), at + 5, child="t")]


@pytest.mark.parametrize(
    ("events", "child", "fine"),
    [
        (_forked(40), ("fork", "ab", 2), True),
        (_forked(40), ("fork", "abef", 4), False),  # what the head was before the undo
        (_forked(22), ("fork", "abef", 4), True),  # it began before the undo ended
        (_forked(40), ("fork", "a", 1), False),
        (_forked(40, to=1), ("fork", "a", 1), True),
        (_forked(40, to="e"), ("fork", "abe", 3), True),
        (_forked(40, to=4, to_branch=1), ("fork", "abef", 4), True),
        (_forked(40, expect=2, expect_branch=2), ("fork", "ab", 2), True),
        (_forked(22, expect=2, expect_branch=2), ("fork", "abef", 4), False),
    ],
)
def test_a_fork_begins_with_a_state_of_its_parent(
    events: list[Event], child: tuple[BranchReason, str, int], fine: bool
) -> None:
    """The one it was in, or one it came to while the fork was made."""
    verdict = _check([*_UNDONE, *events], _BACK, t=_branches(child))
    assert verdict.kinds == (frozenset() if fine else {ViolationKind.WRONG_MOVE}), str(verdict)


def test_a_fork_that_is_not_there_is_lost() -> None:
    """The session that was told has to be one."""
    assert _check([*_UNDONE, *_forked(40)], _BACK).kinds == {ViolationKind.LOST}


def test_a_cut_inside_a_tool_exchange_may_move() -> None:
    """Only where there are tools: then less is shared than was asked for."""
    history = tuple(msgspec.structs.replace(m, role="tool") for m in _stored("abef"))
    back = Branch(2, "rewind", 1, 3, history[:1])
    events = [*_SAID, *_did(3, "rewind", (2, 1), to=3)]
    assert _check(events, [Branch(1, "start", 0, 0, history), back]).ok
    plain = [*_branches(_FIRST), msgspec.structs.replace(back, history=_stored("a"))]
    assert _check(events, plain).kinds == {ViolationKind.WRONG_MOVE}


@pytest.mark.parametrize(
    ("ids", "turns", "left"),
    [
        ("ab", 1, 0),
        ("abab", 1, 2),
        ("abab", 5, 0),
        ("aab", 1, 1),  # two questions, one reply: to the last
        ("abbb", 1, 0),
        ("abS", 1, 0),  # a summary goes along
        ("abSef", 1, 3),
        ("bb", 1, 1),  # nobody asked
        ("", 1, 0),
    ],
)
def test_what_an_undo_takes_back(ids: str, turns: int, left: int) -> None:
    """A question and what follows it."""
    assert length_after_undo(_stored(ids), turns) == left


def test_an_undo_takes_back_a_turn_with_what_came_in_between() -> None:
    """The messages of a turn belong together, whoever spoke meanwhile."""
    turns = [None, "1", "1", None, "1", "2"]
    history = [
        msgspec.structs.replace(m, turn=turn)
        for m, turn in zip(_stored("abefix"), turns, strict=True)
    ]
    assert length_after_undo(history, 1) == 5
    assert length_after_undo(history, 2) == 1
    assert length_after_undo(history, 3) == 0


# --- random legal executions --------------------------------------------------------------------


@dataclass
class _Pending:
    """What a worker has under way."""

    begun: Invoked
    act: Callable[[], Head | str]
    told: Head | str | HoldfastError | None = None
    child: list[Branch] = field(default_factory=list)


class _World:
    """A correct store, and workers that use it at once: every step is one tick of one clock."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.model = Model("s", Identity())
        self.events: list[Event] = []
        self.children: dict[str, list[Branch]] = {}
        self._pending: dict[str, _Pending] = {}
        self._said: list[list[Message]] = []
        self._clock = 0
        self._lives = ["w0", "w1", "w2"]

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def step(self) -> None:
        """Let one worker take one step: begin, do, or be told."""
        worker = self.chance.choice(self._lives)
        pending = self._pending.get(worker)
        if pending is None:
            self._pending[worker] = self._begin(worker)
        elif self.chance.random() < 0.05:
            self._pending.pop(worker)
            self._lives[self._lives.index(worker)] = f"{worker}'"
        elif pending.told is None:
            self._do(pending)
        else:
            self._tell(worker, self._pending.pop(worker))

    def branches(self) -> Branches:
        return [_as_branch(line) for line in self.model.lines]

    def _begin(self, worker: str) -> _Pending:
        verbs: list[OperationName] = [
            "append",
            "append",
            "append",
            "undo",
            "redo",
            "rewind",
            "replace",
        ]
        verb = self.chance.choice([*verbs, "clear", "summarize", "fork"])
        model = self.model
        expect = model.head if self.chance.random() < 0.3 else None
        to: MessageRef | None = None
        messages: list[Message] = []
        name = f"m{self.tick()}"
        new = [Message.user(name, id=name), Message.assistant(name, id=f"{name}'")]
        if verb == "append":
            messages = self.chance.choice(self._said) if self._said and expect is None else new
            messages = messages if self.chance.random() < 0.3 else new
            self._said.append(messages)
        elif verb == "replace":
            kept = [one.message for one in model.said][: self.chance.randint(0, len(model.said))]
            messages = [*kept, *new]
        elif verb == "summarize":
            messages = [Message(id=name, role="summary", parts=(Text(name),), covers="x")]
        elif verb == "rewind" or (verb == "fork" and self.chance.random() < 0.5):
            to = self._place()
        begun = Invoked(
            worker,
            self._clock,
            "s",
            tuple(m.id for m in messages),
            tuple(digest(m.text) for m in messages),
            self._clock,
            expect=expect.seq if expect else None,
            operation=verb,
            expect_branch=expect.branch if expect else None,
            to=to.seq if isinstance(to, Head) else to,
            to_branch=to.branch if isinstance(to, Head) else None,
        )
        self.events.append(begun)
        return _Pending(begun, lambda: self._act(verb, messages, to, f"f{name}"))

    def _place(self) -> MessageRef:
        line = self.chance.choice(self.model.lines)
        seq = self.chance.randint(0, len(line.said))
        if seq and self.chance.random() < 0.4:
            return line.said[seq - 1].id
        return Head(line.number, seq) if self.chance.random() < 0.5 else seq

    def _act(
        self, verb: OperationName, messages: list[Message], to: MessageRef | None, name: str
    ) -> Head | str:
        model = self.model
        if verb in {"append", "summarize"}:
            if not model.append(*messages):
                seqs = model.seqs()
                return Head(model.head.branch, max(seqs[m.id] for m in messages))
        elif verb == "replace":
            model.replace(messages)
        elif verb == "rewind":
            assert to is not None
            model.rewind(to)
        elif verb == "fork":
            self.children[name] = [_as_branch(model.start(*model.locate(to), "fork", 1))]
            return name
        elif verb == "undo":
            model.undo(1)
        elif verb == "redo":
            model.redo()
        else:
            model.clear()
        return model.head

    def _do(self, pending: _Pending) -> None:
        begun = pending.begun
        there = {one.id for one in self.model.said}
        retry = begun.operation == "append" and there.issuperset(begun.ids)
        seen = None if begun.expect is None else Head(begun.expect_branch or 0, begun.expect)
        if seen not in {None, self.model.head} and not retry:
            pending.told = HoldfastError("HeadMoved")
            return
        try:
            pending.told = pending.act()
        except HoldfastError as refusal:
            pending.told = refusal

    def _tell(self, worker: str, pending: _Pending) -> None:
        at, op, told = self.tick(), pending.begun.op, pending.told
        if isinstance(told, HoldfastError):
            self.events.append(Refused(worker, op, "s", str(told), at))
        elif self.chance.random() < 0.1:
            self.events.append(Unknown(worker, op, "s", at))
        elif isinstance(told, Head):
            self.events.append(Acked(worker, op, "s", (), at, last=told.seq, branch=told.branch))
        else:
            self.events.append(Acked(worker, op, "s", (), at, child=told))

    def look(self) -> None:
        """Read everything, in one tick."""
        said = self.model.said
        ids, seqs = tuple(one.id for one in said), tuple(range(1, len(said) + 1))
        digests = tuple(digest(one.message.text) for one in said)
        at, number = self.tick(), self.model.line.number
        self.events.append(Read("r", "s", at, at, ids, seqs, True, digests, number))

    def verdict(self, branches: Branches | None = None) -> Verdict:
        final = self.branches() if branches is None else branches
        return check(self.events, {}, branches={"s": final, **self.children})


def _as_branch(line: Line) -> Branch:
    history = tuple(
        Stored(one.id, seq, digest(one.message.text), one.message.role, one.turn)
        for seq, one in enumerate(line.said, 1)
    )
    return Branch(line.number, line.reason, line.fork_seq, line.asked_seq, history)


@st.composite
def _worlds(draw: st.DrawFn) -> _World:
    world = _World(draw(st.randoms(use_true_random=False)))
    for _ in range(draw(st.integers(0, 150))):
        world.step()
        if world.chance.random() < 0.1:
            world.look()
    return world


@given(_worlds())
def test_a_legal_execution_has_no_findings(world: _World) -> None:
    verdict = world.verdict()
    assert verdict.ok, str(verdict)


def _long_world(seed: int) -> _World:
    world = _World(random.Random(seed))
    for _ in range(600):
        world.step()
        if world.chance.random() < 0.05:
            world.look()
    return world


def test_legal_executions_are_not_vacuous() -> None:
    """The generator above does what it says: every verb is acknowledged, and some are refused."""
    world = _long_world(7)
    world.verdict().require(["overlaps", "retries", "refused", "unknown", "moves", "branches"])
    acked = {(e.worker, e.op) for e in world.events if isinstance(e, Acked)}
    verbs = {
        e.operation for e in world.events if isinstance(e, Invoked) and (e.worker, e.op) in acked
    }
    assert len(verbs) == 8


def _acked_moves(world: _World, *verbs: OperationName) -> list[tuple[Invoked, Acked]]:
    """Return the acknowledged movements that opened the branch they were told."""
    ends = {(e.worker, e.op): e for e in world.events if isinstance(e, Acked)}
    begun = [e for e in world.events if isinstance(e, Invoked) and e.operation in verbs]
    return [
        (e, end)
        for e in begun
        if (end := ends.get((e.worker, e.op))) is not None
        and end.branch is not None
        and world.model.lines[end.branch - 1].reason == e.operation
        and world.model.lines[end.branch - 1].fork_seq == end.last
    ]


@pytest.mark.parametrize("seed", range(5))
def test_a_movement_to_the_wrong_place_is_reported(seed: int) -> None:
    """Any one of them that shares one message less than it should."""
    world = _long_world(seed)
    found = 0
    for _, ack in _acked_moves(world, "undo", "redo", "rewind"):
        branches = world.branches()
        old = branches[(ack.branch or 0) - 1]
        if old.fork_seq != len(old.history) or not old.fork_seq:
            continue
        branches[old.number - 1] = msgspec.structs.replace(
            old, fork_seq=old.fork_seq - 1, asked_seq=old.asked_seq - 1, history=old.history[:-1]
        )
        found += 1
        verdict = world.verdict(branches)
        assert verdict.kinds & {ViolationKind.WRONG_MOVE, ViolationKind.LOST}, str(verdict)
    assert found


@pytest.mark.parametrize("seed", range(5))
def test_an_ignored_expectation_is_reported(seed: int) -> None:
    """Whatever head a movement expected other than the one that it left."""
    world = _long_world(seed)
    moves = _acked_moves(world, "undo", "redo")
    assert moves
    for begun, _ in moves:
        events = list(world.events)
        wrong = msgspec.structs.replace(begun, expect=1_000, expect_branch=1)
        events[events.index(begun)] = wrong
        verdict = check(events, {}, branches={"s": world.branches(), **world.children})
        assert verdict.kinds == {ViolationKind.WRONG_MOVE}, str(verdict)


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_end_of_an_old_branch_is_reported(seed: int) -> None:
    """Every message that was acknowledged, and lies on one branch alone, is missed there."""
    world = _long_world(seed)
    places = Counter(m.id for b in world.branches() for m in b.history[b.fork_seq :])
    acked = {(e.worker, e.op) for e in world.events if isinstance(e, Acked)}
    told = {
        id_
        for e in world.events
        if isinstance(e, Invoked) and (e.worker, e.op) in acked
        for id_ in e.ids
    }
    found = 0
    for number, branch in enumerate(world.branches()[:-1]):
        own = branch.history[branch.fork_seq :]
        if own and own[-1].id in told and places[own[-1].id] == 1:
            branches = world.branches()
            shorter = msgspec.structs.replace(branch, history=branch.history[:-1])
            branches[number] = shorter
            found += 1
            assert ViolationKind.LOST in world.verdict(branches).kinds
    assert found
