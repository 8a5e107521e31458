"""A turn of some rounds with parallel tools, killed at every one of its durable steps.

Two rounds have all there is: what is whole, and what is under way behind it. Ten take long.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from holdfast import Session
from holdfast.agent import Agent
from holdfast.testing import legality
from holdfast.testing.scripted_model import ScriptedModel, say
from holdfast.values import Provider, Window
from tests.agent.crash_child import TOGETHER


def _table(root: Path, rounds: int) -> None:
    """Every step, dead before it and after it."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.agent.crash_child", str(root), str(rounds)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    # Opening, the user's words, in each round a reply and three starts and answers, the last word,
    # the end: that many at least.
    assert int(run.stdout) >= 3 + rounds * (1 + 2 * TOGETHER) + 1


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.long)])
def test_every_step_of_a_turn_can_be_the_last(rounds: int, tmp_path: Path) -> None:
    """What was acknowledged is there; no tool had an effect that the ledger does not know of.

    The next window is legal, nothing is run again, and the next turn works.
    """
    table = tmp_path / "table"
    table.mkdir()
    _table(table, rounds)
    fallen = sorted(table.iterdir())
    replies = set()
    for folder in fallen:
        with holdfast.open(folder / "a.db", durability="process") as store:
            session = store.session("talk")
            replies.add(len([m for m in session.messages() if m.role == "assistant"]))
            _nothing_acknowledged_is_missing(folder, session)
            _no_effect_without_a_start(folder, session)
            _rounds_are_whole(session)
            _the_next_turn_works(folder, session)
    # Every round was somebody's last: the kills fell everywhere.
    assert replies == set(range(rounds + 2))


def _nothing_acknowledged_is_missing(folder: Path, session: Session) -> None:
    acked = (folder / "acked").read_text().split()
    assert set(acked) <= {message.id for message in session.messages()}, folder


def _no_effect_without_a_start(folder: Path, session: Session) -> None:
    effects = (folder / "effects").read_text().split()
    started = [tool for turn in session.turns() for tool in turn.tools if tool.started_at]
    assert len(effects) == len(set(effects)), folder
    assert len(effects) <= len(started), folder
    answered = [part.text for m in session.messages() for part in m.tool_results]
    assert {f"bumped {n}" for n in effects} >= set(answered), folder


def _rounds_are_whole(session: Session) -> None:
    """Replies are in order; all but the newest have all their answers."""
    replies = [m for m in session.messages() if m.tool_calls]
    answers = {part.call_id for m in session.messages() for part in m.tool_results}
    for n, reply in enumerate(replies):
        asked = [call.id for call in reply.tool_calls]
        assert asked == [f"r{n}c{c}" for c in range(TOGETHER)]
        assert n == len(replies) - 1 or answers.issuperset(asked)


def _the_next_turn_works(folder: Path, session: Session) -> None:
    before = (folder / "effects").read_text()
    had = len(session.messages())
    for provider in get_args(Provider) if had else ():
        _legal(session.window(provider=provider), folder)
    model = ScriptedModel(say("I see"))
    with Agent(model, titles=False) as agent:
        assert agent.run(session, "and now?").text == "I see"
    _legal(model.requests[0].window, folder)
    assert (folder / "effects").read_text() == before, folder
    assert len(session.messages()) == had + 2, folder
    assert all(turn.state != "open" for turn in session.turns()), folder


def _legal(window: Window, folder: Path) -> None:
    assert legality.problems(window.provider, window.messages, window.system) == [], folder
