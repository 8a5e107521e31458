"""`holdfast stats`: amounts, days and models."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Message, Usage
from holdfast.cli.commands.stats import by_model, group_days, horizontal_bar, sparkline
from holdfast.values import DayUsage
from tests.cli.shell import Shell, talk
from tests.cli.test_terminal import look

_TODAY = date(2026, 3, 1)


@pytest.fixture
def used(shell: Shell) -> Shell:
    """The conversation, a turn of another model, a fork, and a session in the trash; all today."""
    shell.store.parent.mkdir(mode=0o700)
    talk(shell.store)
    with holdfast.open(shell.store) as store:
        session = store.session("second")
        with session.turn(model="claude-9") as turn:
            turn.user("Think hard")
            usage = Usage(input=100_000, output=500)
            turn.assistant("Done.", usage=usage, cost=Decimal("0.99"), model="claude-9")
        session.fork()
        store.session("third").append(Message.user("old"))
        store.trash("third")
    return shell


def test_people_see_amounts_days_and_models(used: Shell) -> None:
    """What there is, how it grew, who used how much."""
    today = datetime.now(UTC).date()
    [*amounts, empty, span, sessions, messages, tokens, cost, gap, heading, dear, cheap] = used.ok(
        "stats", "--days", "5"
    ).splitlines()
    assert amounts[0] == f"store      {used.store}"
    assert amounts[2] == "messages   10 on 4 branches"
    assert amounts[3] == "turns      3"
    assert (empty, gap) == ("", "")
    assert span == f"{today - timedelta(days=4)} to {today}"
    assert sessions.startswith("sessions   ····█  ")
    assert messages.startswith("messages   ····█  ")
    assert tokens == "tokens     ····█  101.7k"
    assert cost == "cost       ····█  1.00"
    assert heading.split() == ["MODEL", "INPUT", "OUTPUT", "COST"]
    assert dear.split() == ["claude-9", "100,000", "500", "0.99", "█" * 20]
    assert cheap.split() == ["gpt-9", "1,200", "34", "0.01", "▎"]


def test_programs_get_everything(used: Shell) -> None:
    """Amounts of money are texts, days are dates, and models are summed up."""
    found = used.json("stats")
    assert (found["messages"], found["turns"], found["branches"]) == (10, 3, 4)
    assert found["trashed"] == 1
    assert found["file_bytes"] > 0
    today = str(datetime.now(UTC).date())
    assert [one["day"] for one in found["growth"]] == [today]
    assert {one["model"] for one in found["days"]} == {"gpt-9", "claude-9"}
    assert found["models"][0] == {
        "model": "claude-9",
        "usage": {"input": 100_000, "output": 500},
        "cost": "0.99",
    }


def test_a_store_without_usage_has_no_table(shell: Shell) -> None:
    """And rows of nothing."""
    shell.ok("append", "a", "hello")
    said = shell.ok("stats", "--days", "3")
    assert "tokens     ···  0\n" in said
    assert "MODEL" not in said


@pytest.mark.parametrize("columns", [80, 40])
def test_it_fits_the_window(used: Shell, columns: int) -> None:
    """Where days are too many for it, a bar stands for several."""
    used.environment["NO_COLOR"] = "1"
    said = look(used, "stats", "--days", "90", columns=columns)
    assert max(map(len, said.splitlines()[1:])) <= columns
    assert ", a bar for " in said.replace("\n", " ")


# ------------------------------------------------------------------------------------ the parts


@given(st.integers(1, 4000), st.integers(7, 200))
def test_days_are_grouped_evenly_up_to_today(days: int, most: int) -> None:
    """No day is missing or counted twice, and the groups have room."""
    found = group_days(_TODAY, days, most)
    assert len(found) <= most
    assert len({len(group) for group in found}) == 1
    every = [day for group in found for day in group]
    assert every[-1] == _TODAY
    assert every[0] <= _TODAY - timedelta(days=days - 1)
    assert all(later - earlier == timedelta(days=1) for earlier, later in pairwise(every))


def test_the_highest_day_has_the_highest_bar() -> None:
    """Nothing is a dot, the least thing a bar."""
    days = group_days(_TODAY, 5, 7)
    values = {group[0]: value for group, value in zip(days, (0, 1, 50, 80, 100), strict=True)}
    assert sparkline(values, days) == "·▁▅▇█"
    assert sparkline({}, days) == "·····"


@pytest.mark.parametrize(("share", "drawn"), [(1.0, "████"), (0.5, "██"), (0.3, "█▎"), (0, "▏")])
def test_a_bar_is_as_long_as_its_share(share: float, drawn: str) -> None:
    """To an eighth of a cell; what is there is always seen."""
    assert horizontal_bar(share, 4) == drawn


def test_models_are_summed_up_over_the_days() -> None:
    """The dearest first; usage without a model is one of its own."""
    spent = [
        DayUsage(_TODAY, "a", Usage(input=1), Decimal(1)),
        DayUsage(_TODAY, None, Usage(input=5), Decimal(0)),
        DayUsage(_TODAY - timedelta(days=1), "a", Usage(output=2), Decimal(1)),
        DayUsage(_TODAY, "b", Usage(input=9), Decimal(3)),
    ]
    assert [(one.model, one.usage.total, one.cost) for one in by_model(spent)] == [
        ("b", 9, Decimal(3)),
        ("a", 3, Decimal(2)),
        (None, 5, Decimal(0)),
    ]
