"""Four processes on one session, through an adapter: nothing is lost, doubled, torn or reordered.

`make suites` does the same with more turns, through every adapter, and beside it with each
framework's own store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.adapters.environment import interpreter_of
from tests.adapters.programs.turns import MESSAGES, Mark, mark_of, turn
from tests.adapters.writers import (
    INTERFACES,
    TURNS_A_ROUND,
    WRITERS,
    Interface,
    Verdict,
    judge,
    run_writers,
    store_problems,
)
from tools.frameworks import FRAMEWORKS

ROUNDS: Final = 2
TESTED: Final = ("openai_agents", "langgraph", "pydantic_ai")
FINE: Final = Verdict(lost=0, doubled=0, reordered=0, torn=0, unknown=0)


@pytest.mark.parametrize(
    "interface",
    [one for one in INTERFACES if one.framework in TESTED],
    ids=lambda interface: interface.framework,
)
def test_four_processes_write_to_one_session(interface: Interface, tmp_path: Path) -> None:
    framework = next(one for one in FRAMEWORKS if one.name == interface.framework)
    python = interpreter_of(framework)
    report = run_writers(python, interface, "holdfast", tmp_path / "store", ROUNDS)
    assert report.verdict == FINE
    assert report.refused == {}
    assert report.messages == WRITERS * ROUNDS * TURNS_A_ROUND * MESSAGES
    assert store_problems(tmp_path / "store" / "agent.db") == []


def _history(*turns: tuple[str, int]) -> list[Mark | None]:
    return [Mark(writer, number, at) for writer, number in turns for at in range(MESSAGES)]


def _doubled(history: list[Mark | None]) -> None:
    history.append(history[-1])


def _swapped(history: list[Mark | None]) -> None:
    history[:8] = [*history[4:8], *history[:4]]


def _split(history: list[Mark | None]) -> None:
    history.insert(6, history.pop())


def _changed(history: list[Mark | None]) -> None:
    history[0] = None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda history: None, {}),
        (lambda history: history.pop(), {"lost": 1, "torn": 1}),
        (lambda history: history.clear(), {"lost": 12}),
        (_doubled, {"doubled": 1}),
        (_swapped, {"reordered": 4}),
        (_split, {"reordered": 3, "torn": 2}),
        (_changed, {"lost": 1, "torn": 1, "unknown": 1}),
    ],
)
def test_the_checker_notices_what_is_wrong(
    change: Callable[[list[Mark | None]], object], expected: dict[str, int]
) -> None:
    turns = [("w1", 0), ("w1", 1), ("w2", 0)]
    history = _history(*turns)
    change(history)
    found = judge(turns, history, whole_turns=True)
    assert found == msgspec.structs.replace(FINE, **expected)
    assert found.flawless == (not expected)


def test_turns_of_several_calls_may_be_among_one_another() -> None:
    history = [
        mark for pair in zip(_history(("w1", 0)), _history(("w2", 0)), strict=True) for mark in pair
    ]
    turns = [("w1", 0), ("w2", 0)]
    assert judge(turns, history, whole_turns=False) == FINE
    assert judge(turns, history, whole_turns=True) == msgspec.structs.replace(FINE, torn=2)


def test_a_message_is_recognised_by_its_mark_alone() -> None:
    given = turn("w1", 12)
    assert mark_of({"content": given.result}) == Mark("w1", 12, 2)
    assert mark_of({"call": given.call_id, "arguments": given.arguments}) == Mark("w1", 12, 1)
    assert mark_of([given.user, given.reply]) is None
    assert mark_of("Where is it?") is None
