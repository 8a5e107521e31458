"""The history checker catches what it must, and nothing else.

Three layers: for every rule a smallest history that breaks it next to a healthy twin; random legal
executions, in which nothing may be found, and which are then corrupted in one known way; and the
recording itself, with a real process that is really killed.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.proof import checker
from holdfast.proof.checker import (
    Acked,
    BadHistory,
    Event,
    Fenced,
    Invoked,
    Killed,
    Read,
    Recorder,
    Refused,
    Stored,
    TornLine,
    Unknown,
    Verdict,
    ViolationKind,
    check,
    digest,
    load,
)

if TYPE_CHECKING:
    from _typeshed import TraceFunction

Final = dict[str, list[Stored]]


# --- small histories, written by hand -----------------------------------------------------------


def _begin(op: int, at: int, ids: str, **more: int | str) -> Invoked:
    """Begin to write messages with one-letter ids; a body's digest is its id in capitals."""
    worker = str(more.pop("worker", "w"))
    bodies = tuple(str(more.pop("bodies", ids.upper())))
    begun = Invoked(worker, op, "s", tuple(ids), bodies, at)
    return msgspec.structs.replace(begun, **more)


def _ack(op: int, at: int, *seqs: int, worker: str = "w", last: int | None = None) -> Acked:
    return Acked(worker, op, "s", seqs, at, last)


def _refuse(op: int, at: int, worker: str = "w") -> Refused:
    return Refused(worker, op, "s", "HeadMoved", at)


def _read(began: int, ended: int, ids: str, first: int = 1, *, complete: bool = True) -> Read:
    seqs = tuple(range(first, first + len(ids)))
    return Read("r", "s", began, ended, tuple(ids), seqs, complete, tuple(ids.upper()))


def _final(ids: str) -> Final:
    return {"s": [Stored(id_, seq, id_.upper()) for seq, id_ in enumerate(ids, 1)]}


def _kinds(events: Sequence[Event], final: Final) -> set[ViolationKind]:
    return set(check(events, final).kinds)


_ONE = [_begin(1, 10, "a"), _ack(1, 20, 1)]
_TWO = [*_ONE, _begin(2, 30, "b"), _ack(2, 40, 2)]
_TOGETHER = [_begin(1, 10, "a"), _begin(1, 11, "b", worker="x")]
_BATCH = [_begin(1, 10, "ab"), Unknown("w", 1, "s", 20)]
_HOLDER = [_begin(1, 10, "a", fence=1), _ack(1, 20, 1), Fenced("s", 2, 30)]
_RENUMBERED = {"s": [Stored("a", 1, "A"), Stored("b", 3, "B")]}

Case = tuple[ViolationKind, Sequence[Event], Final, Sequence[Event], Final]

# name: (kind, sick events, sick final, healthy events, healthy final)
_CASES: dict[str, Case] = {
    "an acknowledged message is absent": (ViolationKind.LOST, _ONE, _final(""), _ONE, _final("a")),
    "an acknowledged session is absent": (ViolationKind.LOST, _ONE, {}, _ONE, _final("a")),
    "an unknown message was read and is absent": (
        ViolationKind.LOST,
        [*_BATCH, _read(30, 31, "ab")],
        _final(""),
        _BATCH,
        _final(""),
    ),
    "an id is stored twice": (ViolationKind.DUPLICATE, _ONE, _final("aa"), _ONE, _final("a")),
    "a retry is stored again": (
        ViolationKind.DUPLICATE,
        [_begin(1, 10, "a"), _begin(2, 30, "a"), _ack(2, 40, 2)],
        _final("aa"),
        [_begin(1, 10, "a"), _begin(2, 30, "a"), _ack(2, 40, 1)],
        _final("a"),
    ),
    "a read shows an id twice": (
        ViolationKind.DUPLICATE,
        [*_ONE, _read(30, 31, "aa")],
        _final("a"),
        [*_ONE, _read(30, 31, "a")],
        _final("a"),
    ),
    "a later write is stored first": (
        ViolationKind.REORDER,
        [_begin(1, 10, "a"), _ack(1, 20), _begin(2, 30, "b"), _ack(2, 40)],
        _final("ba"),
        [_begin(1, 10, "a"), _ack(1, 30), _begin(2, 20, "b"), _ack(2, 40)],
        _final("ba"),
    ),
    "a later write that nobody acknowledged is stored first": (
        ViolationKind.REORDER,
        [*_ONE, _begin(2, 30, "b")],
        _final("ba"),
        [*_ONE, _begin(2, 30, "b")],
        _final("ab"),
    ),
    "a later write is stored before what had been read": (
        ViolationKind.REORDER,
        [_begin(1, 10, "a"), _read(20, 21, "a"), _begin(2, 30, "b")],
        _final("ba"),
        [_begin(1, 10, "a"), _read(20, 30, "a"), _begin(2, 30, "b")],
        _final("ab"),
    ),
    "the furthest of all that was settled counts, not the latest": (
        ViolationKind.REORDER,
        [*_TOGETHER, _ack(1, 30), _ack(1, 20, worker="x"), _begin(2, 40, "c")],
        _final("acb"),
        [*_TOGETHER, _ack(1, 30), _ack(1, 20, worker="x"), _begin(2, 40, "c")],
        _final("abc"),
    ),
    "a batch is turned round": (ViolationKind.REORDER, _BATCH, _final("ba"), _BATCH, _final("ab")),
    "a message lies inside a batch": (
        ViolationKind.REORDER,
        [*_BATCH, _begin(2, 12, "x")],
        _final("axb"),
        [*_BATCH, _begin(2, 12, "x")],
        _final("xab"),
    ),
    "a message lies inside a batch of which a part may be older": (
        ViolationKind.REORDER,
        [_begin(1, 10, "b"), _begin(2, 10, "abc"), _begin(3, 10, "x")],
        _final("abxc"),
        [_begin(1, 10, "b"), _begin(2, 10, "abc"), _begin(3, 10, "x")],
        _final("abcx"),
    ),
    "another seq was acknowledged": (
        ViolationKind.REORDER,
        [*_TOGETHER, _ack(1, 20, 1), _ack(1, 20, 1, worker="x")],
        _final("ab"),
        [*_TOGETHER, _ack(1, 20, 1), _ack(1, 20, 2, worker="x")],
        _final("ab"),
    ),
    "another last seq was acknowledged": (
        ViolationKind.REORDER,
        [_begin(1, 10, "ab"), _ack(1, 20, last=1)],
        _final("ab"),
        [_begin(1, 10, "ab"), _ack(1, 20, last=2)],
        _final("ab"),
    ),
    "another seq was read": (
        ViolationKind.REORDER,
        [*_TOGETHER, _read(20, 21, "ba")],
        _final("ab"),
        [*_TOGETHER, _read(20, 21, "ab")],
        _final("ab"),
    ),
    "a write is not behind the head it expected": (
        ViolationKind.REORDER,
        [*_ONE, _begin(2, 30, "b", expect=0), _ack(2, 40, 2)],
        _final("ab"),
        [*_ONE, _begin(2, 30, "b", expect=1), _ack(2, 40, 2)],
        _final("ab"),
    ),
    "a seq is missing": (
        ViolationKind.GAP,
        [_begin(1, 10, "a"), _begin(2, 10, "b")],
        _RENUMBERED,
        [_begin(1, 10, "a"), _begin(2, 10, "b")],
        _final("ab"),
    ),
    "two messages share a seq": (
        ViolationKind.GAP,
        _TOGETHER,
        {"s": [Stored("a", 1, "A"), Stored("b", 1, "B")]},
        _TOGETHER,
        _final("ab"),
    ),
    "a whole read does not begin at 1": (
        ViolationKind.GAP,
        [*_TWO, _read(50, 51, "b", 2)],
        _final("ab"),
        [*_TWO, _read(50, 51, "b", 2, complete=False)],
        _final("ab"),
    ),
    "a read leaves one out": (
        ViolationKind.GAP,
        [*_TOGETHER, _begin(2, 12, "c"), Read("r", "s", 5, 90, ("a", "c"), (1, 3), complete=False)],
        _final("abc"),
        [*_TOGETHER, _begin(2, 12, "c"), Read("r", "s", 5, 90, ("b", "c"), (2, 3), complete=False)],
        _final("abc"),
    ),
    "nobody wrote it": (ViolationKind.INVENTED, _ONE, _final("ax"), _ONE, _final("a")),
    "nobody wrote what was read": (
        ViolationKind.INVENTED,
        [_read(1, 2, "x")],
        _final(""),
        [_read(1, 2, "")],
        _final(""),
    ),
    "a refused write is stored": (
        ViolationKind.INVENTED,
        [_begin(1, 10, "a"), _refuse(1, 20)],
        _final("a"),
        [_begin(1, 10, "a"), _refuse(1, 20), _begin(2, 30, "a"), _ack(2, 40, 1)],
        _final("a"),
    ),
    "the body changed": (
        ViolationKind.MUTATED,
        _ONE,
        {"s": [Stored("a", 1, "Z")]},
        _ONE,
        {"s": [Stored("a", 1, "A")]},
    ),
    "an unacknowledged body changed": (
        ViolationKind.MUTATED,
        [_begin(1, 10, "a")],
        {"s": [Stored("a", 1, "Z")]},
        [_begin(1, 10, "a"), _begin(2, 30, "a", bodies="Z")],
        {"s": [Stored("a", 1, "Z")]},
    ),
    "a conflicting body is acknowledged": (
        ViolationKind.MUTATED,
        [*_ONE, _begin(2, 30, "a", bodies="Z"), _ack(2, 40, 1)],
        _final("a"),
        [*_ONE, _begin(2, 30, "a", bodies="Z"), _refuse(2, 40)],
        _final("a"),
    ),
    "a conflicting body replaces the acknowledged one": (
        ViolationKind.MUTATED,
        [*_ONE, _begin(2, 30, "a", bodies="Z")],
        {"s": [Stored("a", 1, "Z")]},
        [*_ONE, _begin(2, 30, "a", bodies="Z")],
        _final("a"),
    ),
    "a read saw another body": (
        ViolationKind.MUTATED,
        [*_ONE, Read("r", "s", 30, 31, ("a",), (1,), complete=True, digests=("Z",))],
        _final("a"),
        [*_ONE, Read("r", "s", 30, 31, ("a",), (1,), complete=True, digests=())],
        _final("a"),
    ),
    "half of a batch is stored": (ViolationKind.TORN, _BATCH, _final("a"), _BATCH, _final("")),
    "half of a batch is stored though it was tried twice": (
        ViolationKind.TORN,
        [*_BATCH, _begin(2, 30, "ab")],
        _final("b"),
        # The other half may have been stored by a write of its own.
        [*_BATCH, _begin(2, 30, "b")],
        _final("b"),
    ),
    "a read misses what was acknowledged": (
        ViolationKind.STALE_READ,
        [*_TWO, _read(50, 60, "a")],
        _final("ab"),
        [*_TWO, _read(40, 60, "a")],
        _final("ab"),
    ),
    "a read misses what an earlier read saw": (
        ViolationKind.STALE_READ,
        [_begin(1, 10, "a"), _read(20, 30, "a"), _read(31, 32, "")],
        _final("a"),
        [_begin(1, 10, "a"), _read(20, 30, "a"), _read(30, 32, "")],
        _final("a"),
    ),
    "a whole read misses the oldest": (
        ViolationKind.STALE_READ,
        [*_TWO, _read(50, 60, "b", 2)],
        _final("ab"),
        [*_TWO, _read(50, 60, "b", 2, complete=False)],
        _final("ab"),
    ),
    "a read of the newest misses the newest": (
        ViolationKind.STALE_READ,
        [*_TWO, _read(50, 60, "a", complete=False)],
        _final("ab"),
        [*_TWO, _read(50, 60, "b", 2, complete=False)],
        _final("ab"),
    ),
    "a read of the newest is empty": (
        ViolationKind.STALE_READ,
        [*_TWO, _read(50, 60, "", complete=False)],
        _final("ab"),
        [_read(1, 2, "", complete=False), *_TWO],
        _final("ab"),
    ),
    "an old holder is acknowledged": (
        ViolationKind.ZOMBIE_WRITE,
        [*_HOLDER, _begin(2, 40, "b", fence=1), _ack(2, 50, 2)],
        _final("ab"),
        # It began before the takeover was acknowledged: it may have come first.
        [*_HOLDER, _begin(2, 25, "b", fence=1), _ack(2, 50, 2)],
        _final("ab"),
    ),
    "an old holder begins just after the takeover": (
        ViolationKind.ZOMBIE_WRITE,
        [*_HOLDER, _begin(2, 31, "b", fence=1), _ack(2, 50, 2)],
        _final("ab"),
        [*_HOLDER, _begin(2, 30, "b", fence=1), _ack(2, 50, 2)],
        _final("ab"),
    ),
    "an old holder writes after two takeovers that were recorded crosswise": (
        ViolationKind.ZOMBIE_WRITE,
        [Fenced("s", 3, 10), Fenced("s", 2, 11), _begin(1, 20, "a", fence=2), _ack(1, 30, 1)],
        _final("a"),
        [Fenced("s", 3, 10), Fenced("s", 2, 11), _begin(1, 20, "a", fence=3), _ack(1, 30, 1)],
        _final("a"),
    ),
    "an old holder is killed and had stored": (
        ViolationKind.ZOMBIE_WRITE,
        [*_HOLDER, _begin(2, 40, "b", fence=1)],
        _final("ab"),
        [*_HOLDER, _begin(2, 40, "b", fence=1)],
        _final("a"),
    ),
    "an old holder is refused": (
        ViolationKind.ZOMBIE_WRITE,
        [*_HOLDER, _begin(2, 40, "b", fence=1), _ack(2, 50)],
        _final("ab"),
        [*_HOLDER, _begin(2, 40, "b", fence=1), _refuse(2, 50)],
        _final("a"),
    ),
    "an old holder's write comes behind the new one's": (
        ViolationKind.ZOMBIE_WRITE,
        [_begin(1, 10, "a", fence=1), _begin(1, 11, "b", worker="x", fence=2)],
        _final("ba"),
        [_begin(1, 10, "a", fence=1), _begin(1, 11, "b", worker="x", fence=2)],
        _final("ab"),
    ),
    "the new holder retries what the old one began": (
        ViolationKind.ZOMBIE_WRITE,
        [_begin(1, 10, "a", fence=1), _begin(1, 11, "b", worker="x", fence=2)],
        _final("ba"),
        [
            _begin(1, 10, "a", fence=1),
            _begin(1, 11, "b", worker="x", fence=2),
            _begin(2, 12, "a", worker="x", fence=2),
        ],
        _final("ba"),
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_the_sick_history_is_caught(name: str) -> None:
    kind, events, final, _, _ = _CASES[name]
    assert kind in _kinds(events, final)


@pytest.mark.parametrize("name", _CASES)
def test_its_healthy_twin_is_not(name: str) -> None:
    _, _, _, events, final = _CASES[name]
    assert _kinds(events, final) == set()


def test_every_kind_has_a_case() -> None:
    assert {case[0] for case in _CASES.values()} == set(ViolationKind) - {ViolationKind.WRONG_MOVE}


@pytest.mark.parametrize("name", _CASES)
def test_the_order_of_events_in_the_record_does_not_matter(name: str) -> None:
    """Files are read one after the other; only times say what came first."""
    _, events, final, _, _ = _CASES[name]
    backwards = set(check(list(reversed(events)), final).findings)
    assert {f.kind for f in backwards} == _kinds(events, final)


def test_one_fault_is_called_by_its_name_alone() -> None:
    """A second copy is not also a wrong order; a stranger that was read is not also a loss."""
    again = [*_TWO, _begin(3, 50, "a"), _ack(3, 60, 3)]
    assert _kinds(again, _final("aba")) == {ViolationKind.DUPLICATE}
    assert _kinds([_read(1, 2, "x")], _final("")) == {ViolationKind.INVENTED}
    assert _kinds(_TWO, _final("a")) == {ViolationKind.LOST}
    assert _kinds(_ONE, {"s": [Stored("a", 1, "Z")]}) == {ViolationKind.MUTATED}


def test_sessions_are_judged_apart() -> None:
    """One id may live in two sessions, and order between sessions is not promised."""
    other = [msgspec.structs.replace(event, session="t", op=9) for event in _ONE]
    final = _final("a") | {"t": [Stored("a", 1, "A")]}
    assert _kinds([*_ONE, *other], final) == set()
    assert check([*_ONE, *other], _final("a")).findings[0].session == "t"


def test_messages_of_the_store_itself_are_not_invented_when_named() -> None:
    assert check(_ONE, _final("ap"), own={"p"}).ok
    assert check(_ONE, _final("ap")).kinds == {ViolationKind.INVENTED}
    assert check([*_ONE, _read(30, 31, "ap")], _final("a"), own={"p"}).kinds == {ViolationKind.LOST}


@pytest.mark.parametrize(
    "events",
    [
        [_ack(1, 20, 1)],
        [*_ONE, _begin(1, 30, "b")],
        [*_ONE, Unknown("w", 1, "s", 30)],
        [_begin(1, 10, "a"), _ack(1, 9, 1)],
        [_begin(1, 10, "a"), _ack(1, 20, 1, 2)],
        [_begin(1, 10, "a"), Acked("w", 1, "other", (1,), 20)],
    ],
    ids=["no beginning", "op used twice", "two ends", "time runs back", "seqs", "session"],
)
def test_a_record_that_contradicts_itself_is_an_error_of_the_harness(
    events: Sequence[Event],
) -> None:
    with pytest.raises(BadHistory):
        check(events, _final("a"))


def test_columns_must_have_one_length() -> None:
    with pytest.raises(BadHistory, match="one digest per id"):
        Invoked("w", 1, "s", ("a", "b"), ("A",), 1)
    with pytest.raises(BadHistory, match="one seq per id"):
        Read("w", "s", 1, 2, ("a",), (), complete=True)


# --- what a run has tried -----------------------------------------------------------------------

_BUSY = [
    _begin(1, 10, "a"),
    _begin(1, 11, "b", worker="x"),
    _ack(1, 20, 1),
    Killed("x", 30),
    _begin(1, 40, "b", worker="y"),
    Acked("y", 1, "s", (2,), 50, duplicate=True),
    _begin(2, 60, "c"),
    _refuse(2, 70),
    _begin(3, 80, "c"),
    _ack(3, 90, 3),
    Fenced("s", 1, 95),
    _read(100, 101, "abc"),
    TornLine("x.jsonl"),
]


def test_coverage_counts_what_happened() -> None:
    assert check(_BUSY, _final("abc")).coverage == checker.Coverage(
        workers=4,
        sessions=1,
        writes=5,
        acked=3,
        refused=1,
        unknown=1,
        reads=1,
        retries=1,
        duplicates=1,
        overlaps=1,
        kills=1,
        takeovers=1,
        torn_lines=1,
        stored=3,
    )


def test_a_busy_run_passes_and_an_idle_one_fails_as_vacuous() -> None:
    check(_BUSY, _final("abc")).require()
    idle = check(_ONE, _final("a"))
    assert idle.ok
    assert idle.vacuous() == ["kills", "retries", "overlaps"]
    assert idle.vacuous(["acked", "kills"]) == ["kills"]
    with pytest.raises(AssertionError, match="no kills, no retries, no overlaps"):
        idle.require()
    idle.require(happened=())


def test_an_empty_run_is_vacuous() -> None:
    with pytest.raises(AssertionError, match="no acked"):
        check([], {}).require(["acked"])


def test_only_what_is_counted_can_be_required() -> None:
    with pytest.raises(ValueError, match="does not count earthquakes"):
        check(_BUSY, _final("abc")).vacuous(["earthquakes"])


def test_the_kill_of_a_worker_that_never_wrote_does_not_count() -> None:
    assert check([*_ONE, Killed("idle", 30)], _final("a")).coverage.kills == 0


def test_trying_again_after_a_refusal_is_not_a_retry() -> None:
    """It does not try idempotency: nothing can have been stored before."""
    events = [_begin(1, 10, "a"), _refuse(1, 20), _begin(2, 30, "a"), _ack(2, 40, 1)]
    assert check(events, _final("a")).coverage.retries == 0


def test_writes_of_one_worker_or_to_two_sessions_do_not_overlap() -> None:
    own = [_begin(1, 10, "a"), _begin(2, 11, "b"), _ack(1, 20), _ack(2, 20)]
    assert check(own, _final("ab")).coverage.overlaps == 0
    elsewhere = Invoked("x", 1, "t", ("b",), ("B",), 11)
    assert check([*_ONE, elsewhere], _final("a")).coverage.overlaps == 0


def test_a_killed_write_was_under_way_until_the_kill() -> None:
    late = [_begin(1, 10, "a"), Killed("w", 30), _begin(1, 29, "b", worker="x")]
    assert check(late, _final("b")).coverage.overlaps == 1
    later = [_begin(1, 10, "a"), Killed("w", 30), _begin(1, 30, "b", worker="x")]
    assert check(later, _final("b")).coverage.overlaps == 0


def test_an_overlap_behind_a_write_of_ones_own_is_seen() -> None:
    """The longest write is the worker's own; the rival ends earlier, and is still under way."""
    events = [
        _begin(1, 10, "a"),
        _begin(1, 11, "b", worker="x"),
        _begin(2, 15, "c"),
        _ack(1, 90),
        _ack(1, 20, worker="x"),
        _ack(2, 95),
    ]
    assert check(events, _final("abc")).coverage.overlaps == 2


def test_an_overlap_with_a_rival_that_ends_before_ones_own_last_write_is_seen() -> None:
    events = [
        _begin(1, 10, "a"),
        _begin(1, 11, "b", worker="x"),
        _begin(2, 20, "c", worker="x"),
        _ack(1, 50),
        _ack(1, 90, worker="x"),
        _ack(2, 95, worker="x"),
    ]
    assert check(events, _final("abc")).coverage.overlaps == 2


def test_the_verdict_reads_well() -> None:
    verdict = check(_TWO, _final("a"))
    assert str(verdict).splitlines() == [
        "history check: 1 findings",
        "  LOST                1",
        "  DUPLICATE           0",
        "  REORDER             0",
        "  GAP                 0",
        "  INVENTED            0",
        "  MUTATED             0",
        "  TORN                0",
        "  STALE READ          0",
        "  ZOMBIE WRITE        0",
        "  WRONG MOVE          0",
        (
            "workers 1, sessions 1, writes 2, acked 2, refused 0, unknown 0, reads 0, retries 0, "
            "duplicates 0, overlaps 0, kills 0, takeovers 0, torn lines 0, stored 1, "
            "moves 0, branches 0"
        ),
        "  LOST: session 's': 'b' was acknowledged to 'w' (op 2) and is not stored",
    ]
    with pytest.raises(AssertionError, match="'b' was acknowledged"):
        verdict.require(happened=())


def test_a_flood_of_findings_is_cut_in_the_report_alone() -> None:
    ids = tuple(f"m{n}" for n in range(100))
    events = [Invoked("w", 1, "s", ids, ids, 1), Acked("w", 1, "s", (), 2)]
    verdict = check(events, {})
    assert len(verdict.findings) == 100
    assert str(verdict).endswith("and 80 more")


# --- random legal executions --------------------------------------------------------------------

_SESSIONS = ("s", "t")


class _Pending:
    """A write or a read that a worker has under way."""

    def __init__(self, begun: Invoked | None, session: str, began: int) -> None:
        self.begun = begun
        self.session = session
        self.began = began
        self.newest: int | None = None
        self.seen: list[Stored] | None = None
        self.outcome: tuple[int, ...] | str | None = None


class _World:
    """A correct store, and workers that use it at once: every step is one tick of one clock."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.events: list[Event] = []
        self.final: Final = {session: [] for session in _SESSIONS}
        self.fences = dict.fromkeys(_SESSIONS, 0)
        self._held: dict[tuple[str, str], int] = {}
        self._pending: dict[str, _Pending] = {}
        self._workers = ["w0", "w1", "w2"]
        self._written: list[Invoked] = []
        self._clock = 0
        self._serial = 0

    def step(self) -> None:
        """Let one worker take one step of its own choice."""
        worker = self.chance.choice(self._workers)
        pending = self._pending.get(worker)
        if pending is None:
            self._start(worker)
        elif self.chance.random() < 0.1:
            self._kill(worker)
        elif pending.seen is None and pending.outcome is None:
            self._apply(pending)
        else:
            self._finish(worker)

    def finish(self) -> None:
        """End what is under way, then write, take over, retry and read once more everywhere.

        So that whatever corruption comes next finds something to corrupt.
        """
        for worker in list(self._pending):
            self._kill(worker)
        for session in _SESSIONS:
            self._run("coda", self._batch("coda", session, self._fresh(3)))
            self._take_over("coda", session)
            self._run("coda", self._batch("coda", session, self._fresh(1)))
            self._run("coda", self._batch("coda", session, self._fresh(1)))
            self._run("coda", _Pending(None, session, self.tick()))

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def _run(self, worker: str, pending: _Pending) -> None:
        self._pending[worker] = pending
        self._apply(pending)
        self._finish(worker)

    def _start(self, worker: str) -> None:
        session = self.chance.choice(_SESSIONS)
        dice = self.chance.random()
        if dice < 0.1:
            self._take_over(worker, session)
        elif dice < 0.3:
            self._pending[worker] = _Pending(None, session, self.tick())
            self._pending[worker].newest = self.chance.choice([None, 1, 3])
        elif dice < 0.55 and self._written:
            old = self.chance.choice(self._written)
            bodies = dict(zip(old.ids, old.digests, strict=True))
            if self.chance.random() < 0.2:
                bodies[old.ids[0]] = "another body"
            if self.chance.random() < 0.2:
                bodies |= self._fresh(1)
            self._pending[worker] = self._batch(worker, old.session, bodies)
        else:
            bodies = self._fresh(self.chance.randint(1, 4))
            self._pending[worker] = self._batch(worker, session, bodies)

    def _fresh(self, count: int) -> dict[str, str]:
        self._serial += count
        numbers = range(self._serial - count, self._serial)
        return {f"m{number}": f"body of {number}" for number in numbers}

    def _batch(self, worker: str, session: str, bodies: dict[str, str]) -> _Pending:
        head = len(self.final[session])
        begun = Invoked(
            worker,
            self.tick(),
            session,
            tuple(bodies),
            tuple(bodies.values()),
            self._clock,
            expect=head if worker != "coda" and self.chance.random() < 0.3 else None,
            fence=self._held.get((worker, session)),
        )
        self.events.append(begun)
        self._written.append(begun)
        return _Pending(begun, session, begun.at)

    def _take_over(self, worker: str, session: str) -> None:
        self.fences[session] += 1
        self._held[worker, session] = self.fences[session]
        self.events.append(Fenced(session, self.fences[session], self.tick()))

    def _apply(self, pending: _Pending) -> None:
        stored = self.final[pending.session]
        if pending.begun is None:
            pending.seen = stored[-pending.newest :] if pending.newest else list(stored)
        else:
            pending.outcome = self._store(pending.begun, stored)

    def _store(self, begun: Invoked, stored: list[Stored]) -> tuple[int, ...] | str:
        there = {message.id: message for message in stored}
        bodies = dict(zip(begun.ids, begun.digests, strict=True))
        fresh = [id_ for id_ in begun.ids if id_ not in there]
        if begun.fence is not None and begun.fence < self.fences[begun.session]:
            return "TurnLost"
        if any(id_ in there and there[id_].digest != body for id_, body in bodies.items()):
            return "IdConflict"
        if fresh and begun.expect not in {None, len(stored)}:
            return "HeadMoved"
        for id_ in fresh:
            stored.append(Stored(id_, len(stored) + 1, bodies[id_]))
        seqs = {message.id: message.seq for message in stored}
        return tuple(seqs[id_] for id_ in begun.ids)

    def _finish(self, worker: str) -> None:
        pending = self._pending.pop(worker)
        if pending.begun is None:
            self._finish_read(worker, pending)
            return
        op, session, outcome = pending.begun.op, pending.session, pending.outcome
        if isinstance(outcome, str):
            self.events.append(Refused(worker, op, session, outcome, self.tick()))
        elif worker != "coda" and self.chance.random() < 0.1:
            self.events.append(Unknown(worker, op, session, self.tick()))
        elif outcome is not None:
            last = outcome[-1]
            if worker != "coda" and self.chance.random() < 0.3:
                outcome = ()
            self.events.append(Acked(worker, op, session, outcome, self.tick(), last))

    def _finish_read(self, worker: str, pending: _Pending) -> None:
        seen = pending.seen or []
        self.events.append(
            Read(
                worker,
                pending.session,
                pending.began,
                self.tick(),
                tuple(message.id for message in seen),
                tuple(message.seq for message in seen),
                complete=pending.newest is None,
                digests=tuple(message.digest for message in seen),
            )
        )

    def _kill(self, worker: str) -> None:
        """End a worker in the middle of what it does; another life takes its place."""
        self._pending.pop(worker)
        self.events.append(Killed(worker, self.tick()))
        if worker in self._workers:
            self._workers[self._workers.index(worker)] = f"{worker}'"


@st.composite
def _worlds(draw: st.DrawFn) -> _World:
    chance = draw(st.randoms(use_true_random=False))
    world = _World(chance)
    for _ in range(draw(st.integers(0, 120))):
        world.step()
    world.finish()
    return world


@given(_worlds())
def test_a_legal_execution_has_no_findings(world: _World) -> None:
    verdict = check(world.events, world.final)
    assert verdict.ok, str(verdict)


def _acked_ids(world: _World, session: str) -> list[str]:
    acked = {(e.worker, e.op) for e in world.events if isinstance(e, Acked)}
    begun = (e for e in world.events if isinstance(e, Invoked) and (e.worker, e.op) in acked)
    return list(dict.fromkeys(id_ for e in begun if e.session == session for id_ in e.ids))


def _told_ids(world: _World, session: str) -> list[str]:
    """Return the ids whose seq somebody was told."""
    told = {(e.worker, e.op) for e in world.events if isinstance(e, Acked) and e.seqs}
    begun = (e for e in world.events if isinstance(e, Invoked) and (e.worker, e.op) in told)
    return list(dict.fromkeys(id_ for e in begun if e.session == session for id_ in e.ids))


def _renumber(messages: Sequence[Stored]) -> list[Stored]:
    return [msgspec.structs.replace(m, seq=seq) for seq, m in enumerate(messages, 1)]


def _drop(world: _World, session: str) -> None:
    victim = world.chance.choice(_acked_ids(world, session))
    left = [message for message in world.final[session] if message.id != victim]
    world.final[session] = _renumber(left)


def _repeat(world: _World, session: str) -> None:
    stored = world.final[session]
    again = world.chance.choice(stored)
    stored.insert(world.chance.randint(0, len(stored)), again)
    world.final[session] = _renumber(stored)


def _swap(world: _World, session: str) -> None:
    stored = world.final[session]
    one, two = world.chance.sample(_told_ids(world, session), 2)
    places = {message.id: place for place, message in enumerate(stored)}
    a, b = places[one], places[two]
    stored[a], stored[b] = stored[b], stored[a]
    world.final[session] = _renumber(stored)


def _change(world: _World, session: str) -> None:
    stored = world.final[session]
    place = world.chance.randrange(len(stored))
    stored[place] = msgspec.structs.replace(stored[place], digest="corrupt")


def _cut_out(world: _World, session: str) -> None:
    stored = world.final[session]
    del stored[world.chance.randrange(len(stored) - 1)]


def _add(world: _World, session: str) -> None:
    stored = world.final[session]
    stored.insert(world.chance.randint(0, len(stored)), Stored("stranger", 0, "x"))
    world.final[session] = _renumber(stored)


def _tear(world: _World, session: str) -> None:
    """Take one message out of a batch whose ids no other write mentions."""
    begun = [e for e in world.events if isinstance(e, Invoked) and e.session == session]
    places = {message.id for message in world.final[session]}
    sole = [
        e
        for e in begun
        if len(e.ids) > 1
        and places.issuperset(e.ids)
        and all(o is e or not set(o.ids) & set(e.ids) for o in begun)
    ]
    victim = world.chance.choice(world.chance.choice(sole).ids)
    left = [message for message in world.final[session] if message.id != victim]
    world.final[session] = _renumber(left)


def _age(world: _World, session: str) -> None:
    """Let a read forget the last thing that was acknowledged before it began, and all behind."""
    reads = [e for e in world.events if isinstance(e, Read) and e.session == session]
    last = reads[-1]
    keep = world.chance.randrange(len(last.ids))
    aged = msgspec.structs.replace(
        last, ids=last.ids[:keep], seqs=last.seqs[:keep], digests=last.digests[:keep]
    )
    world.events[world.events.index(last)] = aged


def _rise(world: _World, session: str) -> None:
    """Let a holder that lost its turn write once more."""
    stored = world.final[session]
    stored.append(Stored("zombie", len(stored) + 1, "x"))
    fence = world.chance.randrange(world.fences[session])
    begun = Invoked("z", 1, session, ("zombie",), ("x",), world.tick(), fence=fence)
    world.events += [begun, Acked("z", 1, session, (len(stored),), world.tick())]


_CORRUPTIONS: dict[ViolationKind, Callable[[_World, str], None]] = {
    ViolationKind.LOST: _drop,
    ViolationKind.DUPLICATE: _repeat,
    ViolationKind.REORDER: _swap,
    ViolationKind.MUTATED: _change,
    ViolationKind.GAP: _cut_out,
    ViolationKind.INVENTED: _add,
    ViolationKind.TORN: _tear,
    ViolationKind.STALE_READ: _age,
    ViolationKind.ZOMBIE_WRITE: _rise,
}


@pytest.mark.parametrize("kind", _CORRUPTIONS)
@settings(max_examples=settings().max_examples // 3)  # The cases above have each rule by itself.
@given(world=_worlds(), session=st.sampled_from(_SESSIONS))
def test_one_corruption_of_a_legal_execution_is_reported(
    kind: ViolationKind, world: _World, session: str
) -> None:
    _CORRUPTIONS[kind](world, session)
    verdict = check(world.events, world.final)
    assert kind in verdict.kinds, str(verdict)
    assert {finding.session for finding in verdict.findings} == {session}


def test_legal_executions_are_not_vacuous() -> None:
    """The generator above does what it says: all that can happen happens."""
    world = _World(random.Random(7))
    for _ in range(2000):
        world.step()
    world.finish()
    verdict = check(world.events, world.final)
    moving = {"moves", "branches"}
    counted = set(checker.Coverage.__struct_fields__) - {"duplicates", "torn_lines"} - moving
    verdict.require(sorted(counted))
    errors = {event.error for event in world.events if isinstance(event, Refused)}
    assert errors == {"TurnLost", "IdConflict", "HeadMoved"}


# --- size ---------------------------------------------------------------------------------------


def _long_run(writes: int) -> tuple[list[Event], Final]:
    """Two workers write in turn; each retries now and then; short reads all along."""
    events: list[Event] = []
    stored: list[Stored] = []
    for n in range(writes):
        worker, at = f"w{n % 2}", n * 10
        events.append(Invoked(worker, n, "s", (f"m{n}",), ("x",), at, fence=n // 100))
        stored.append(Stored(f"m{n}", n + 1, "x"))
        events.append(Acked(worker, n, "s", (n + 1,), at + 15))
        if n % 10 == 9:
            newest = stored[-3:]
            ids, seqs = tuple(m.id for m in newest), tuple(m.seq for m in newest)
            events.append(Read("r", "s", at + 16, at + 17, ids, seqs, complete=False))
            # One batch that is tried again and again, as a stuck worker would.
            events.append(Invoked("stuck", n, "s", ("a", "b", "c"), ("x",) * 3, at))
    return events, {"s": stored}


_FOLDER = str(Path(checker.__file__).parent)


@contextlib.contextmanager
def _counted() -> Iterator[list[int]]:
    """Count the instructions the interpreter executes in the checker."""
    count = [0]

    def trace(frame: FrameType, event: str, _: object) -> "TraceFunction":
        if event == "call":
            frame.f_trace_opcodes = frame.f_code.co_filename.startswith(_FOLDER)
        count[0] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def _instructions(writes: int) -> int:
    events, final = _long_run(writes)
    with _counted() as count:
        verdict = check(events, final)
    assert verdict.ok, str(verdict)
    return count[0]


def test_twice_the_history_takes_twice_the_work() -> None:
    """Counted in instructions, not in seconds; a quadratic rule would need four times as many."""
    small, large = _instructions(400), _instructions(800)
    assert small > 400
    assert large < 2.2 * small


def test_a_stuck_worker_and_a_broken_store_are_judged_in_linear_work_too() -> None:
    """When everything is lost, every rule sees its worst case."""
    counts = []
    for writes in (400, 800):
        events, final = _long_run(writes)
        with _counted() as count:
            check(events, {"s": final["s"][::-2]})
        counts.append(count[0])
    assert counts[1] < 2.2 * counts[0]


@pytest.mark.parametrize(
    "writes", [9_100, pytest.param(91_000, marks=pytest.mark.long)], ids=["20,000", "200,000"]
)
def test_very_many_events_are_checked(writes: int) -> None:
    """Deep recursion, or anything else that only a long history has, would end here."""
    events, final = _long_run(writes)
    assert len(events) > 2.19 * writes
    verdict = check(events, final)
    assert verdict.ok
    assert verdict.coverage.acked == writes


# --- recording ----------------------------------------------------------------------------------


def _record_everything(path: Path) -> list[Stored]:
    recorder = Recorder(path, "w")
    rows = [Stored("a", 1, digest("one")), Stored("b", 2, digest(b"two"))]
    for row in rows:
        write = recorder.invoked("s", [row.id], [row.digest], expect=row.seq - 1, fence=3)
        recorder.acked(write, [row.seq])
    recorder.refused(recorder.invoked("s", ["c"], ["C"]), "HeadMoved")
    recorder.unknown(recorder.invoked("s", ["d"], ["D"]))
    recorder.acked(recorder.invoked("s", ["b"], [rows[1].digest]), last=2, duplicate=True)
    recorder.read("s", checker.now(), rows, complete=True)
    recorder.fenced("s", 4)
    recorder.killed("x")
    recorder.close()
    return rows


def test_what_is_recorded_is_loaded(tmp_path: Path) -> None:
    rows = _record_everything(tmp_path / "w.jsonl")
    events = load([tmp_path / "w.jsonl"])
    types = [type(event) for event in events]
    assert types == [Invoked, Acked] * 2 + [
        *(Invoked, Refused, Invoked, Unknown, Invoked, Acked, Read, Fenced, Killed)
    ]
    begun, read = events[0], events[10]
    assert isinstance(begun, Invoked)
    assert (begun.worker, begun.op, begun.expect, begun.fence) == ("w", 1, 0, 3)
    assert isinstance(read, Read)
    assert (read.ids, read.seqs, read.complete) == (("a", "b"), (1, 2), True)
    assert read.began <= read.ended
    verdict = check(events, {"s": rows})
    assert verdict.ok, str(verdict)
    assert verdict.coverage.duplicates == 1


def test_each_event_is_on_disk_when_its_method_returns(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    recorder = Recorder(path, "w")
    recorder.fenced("s", 1)
    assert len(load([path])) == 1
    recorder.fenced("s", 2)
    assert len(load([path])) == 2
    recorder.close()


def test_a_file_belongs_to_one_life_of_one_worker(tmp_path: Path) -> None:
    """Appending behind a torn line would damage the middle of a file."""
    Recorder(tmp_path / "w.jsonl", "w").close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "w.jsonl", "w")


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_torn_last_line_is_tolerated_and_counted(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "w.jsonl"
    _record_everything(path)
    whole = load([path])
    path.write_bytes(path.read_bytes()[:-cut])
    events = load([path])
    assert events == [*whole[:-1], TornLine(str(path))]
    assert check(events, {}).coverage.torn_lines == 1


@pytest.mark.parametrize(
    "damage", [b'{"event":"inv\n', b"\n", b'{"event":"earthquake"}\n', b"\x00\xff\n"]
)
def test_any_other_damage_is_an_error_that_names_the_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "w.jsonl"
    _record_everything(path)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + damage + rest)
    with pytest.raises(BadHistory, match=r"w\.jsonl:2 is not an event"):
        load([path])


def test_a_batch_without_digests_in_a_file_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    line = b'{"event":"invoked","worker":"w","op":1,"session":"s","ids":["a"],"digests":[],"at":1}'
    path.write_bytes(line + b"\n")
    with pytest.raises(BadHistory, match=r"w\.jsonl:1 is not an event.*one digest per id"):
        load([path])


def test_an_empty_file_is_a_worker_that_did_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.touch()
    assert load([path]) == []


def test_digests_tell_bodies_apart() -> None:
    assert digest("a") == digest(b"a")
    assert digest("a") != digest("b")
    assert digest("\ud800") != digest("?")


_WORKER = """
import itertools, sys, time
from holdfast.proof.checker import Recorder
recorder = Recorder(sys.argv[1], sys.argv[2])
for n in itertools.count():
    ids = [f"{sys.argv[2]}-{n}-{k}" for k in range(50)]
    write = recorder.invoked("s", ids, ids)
    recorder.acked(write)
    if n > 50:  # It is busy; what it records while others are awaited has to be judged as well.
        time.sleep(0.005)
"""


def _start(path: Path) -> "subprocess.Popen[bytes]":
    source = str(Path(checker.__file__).parents[2])
    command = [sys.executable, "-c", _WORKER, str(path), path.stem]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": source})


def _wait_until_busy(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < 20_000:
        assert time.monotonic() < deadline, "the worker records nothing"
        time.sleep(0.005)


def test_a_killed_process_leaves_a_record_that_can_be_judged(tmp_path: Path) -> None:
    paths = [tmp_path / f"w{n}.jsonl" for n in range(3)]
    harness = Recorder(tmp_path / "harness.jsonl", "harness")
    workers = [_start(path) for path in paths]
    for path, worker in zip(paths, workers, strict=True):
        _wait_until_busy(path)
        worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
        harness.killed(path.stem)
    harness.close()
    verdict = _judge_as_lost(tmp_path)
    assert verdict.coverage.kills == 3
    assert verdict.coverage.workers == 3
    assert verdict.coverage.unknown <= 3


def _judge_as_lost(directory: Path) -> Verdict:
    """Judge against an empty store: exactly what was acknowledged is lost."""
    events = load(directory.glob("*.jsonl"))
    verdict = check(events, {})
    acked = sum(isinstance(event, Acked) for event in events)
    assert len(verdict.findings) == 50 * acked
    assert verdict.kinds == {ViolationKind.LOST}
    return verdict
