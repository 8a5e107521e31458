"""`holdfast ls`: which sessions there are, the pinned ones first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Usage
from holdfast.cli.ls import Wanted, find
from tests.cli.shell import Shell
from tests.cli.test_terminal import look

_STYLES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def several(shell: Shell) -> Shell:
    """A pinned session, an archived one, one in the trash, a fork, and one that cost something."""
    with holdfast.open(shell.store) as store:
        for key in ("first", "pinned", "archived", "trashed"):
            store.session(key).append(Message.user(f"This one is {key}"))
        store.session("pinned").update(pinned=True)
        store.session("archived").update(archived=True)
        store.trash("trashed")
        with store.session("dear", model="gpt-9", scope="web", agent="desk").turn() as turn:
            turn.user("Think hard")
            usage = Usage(input=123_456, output=789)
            turn.assistant("Done.", usage=usage, cost=Decimal("1.234"))
        store.session("first").fork(title="Another try", key="fork")
    return shell


def _keys(shell: Shell, *arguments: str) -> list[str]:
    return [info["key"] for info in shell.json("ls", *arguments)]


def _ids(shell: Shell) -> dict[str, str]:
    return {info["key"]: info["id"] for info in shell.json("ls", "--all")}


def test_pinned_sessions_come_first_then_the_newest(several: Shell) -> None:
    """However long ago the pinned one was written to."""
    assert _keys(several) == ["pinned", "fork", "dear", "first"]


def test_archived_ones_are_left_out_and_counted(several: Shell) -> None:
    """Unless they are asked for; the trash is a list of its own."""
    assert several.ok("ls").splitlines()[-1] == "Not listed: 1 archived (--archived or --all)"
    assert _keys(several, "--archived") == ["archived"]
    assert _keys(several, "--all") == ["pinned", "fork", "dear", "archived", "first"]
    assert "Not listed" not in several.ok("ls", "--all")
    assert _keys(several, "--trashed") == ["trashed"]
    assert _keys(several, "--pinned") == ["pinned"]


def test_what_is_hidden_is_counted_among_what_was_asked_for(several: Shell) -> None:
    """An archived session of another scope is not missed."""
    assert "Not listed" not in several.ok("ls", "--scope", "web")
    assert "Not listed: 1" in several.ok("ls", "--text", "this one")


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_counts_the_pinned_ones(several: Shell, limit: int) -> None:
    """And says that there is more, also when the pinned ones alone fill it."""
    assert _keys(several, "-n", str(limit)) == ["pinned", "fork", "dear", "first"][:limit]
    assert f"There are more: --limit {limit * 2}, or --all" in several.ok("ls", "-n", str(limit))
    assert "There are more" not in several.ok("ls", "-n", "4")


def test_more_pinned_ones_than_the_limit(several: Shell) -> None:
    """The newest of them are listed."""
    with holdfast.open(several.store) as store:
        store.session("first").update(pinned=True)
    assert _keys(several, "-n", "1") in (["pinned"], ["first"])
    assert "There are more" in several.ok("ls", "-n", "1")


def test_a_working_directory_means_the_same_from_anywhere(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.` is the directory one is in."""
    monkeypatch.chdir(tmp_path)
    with holdfast.open(shell.store) as store:
        store.session("here", cwd=str(tmp_path))
        store.session("there", cwd="/somewhere")
    assert _keys(shell, "--cwd", ".") == _keys(shell, "--cwd", str(tmp_path)) == ["here"]


def test_columns_tell_what_a_session_is_and_cost(several: Shell) -> None:
    """Numbers are short, the parent is named with how the session came from it."""
    ids = _ids(several)
    lines = several.ok("ls").splitlines()
    assert lines[0].split() == [
        "ID", "KEY", "STATE", "ACTIVE", "MESSAGES", "TURNS", "TOKENS", "COST", "MODEL", "SCOPE",
        "AGENT", "FROM", "TITLE",
    ]  # fmt: skip
    rows = {line.split()[1]: re.split(r"  +", line) for line in lines[1:5]}
    assert rows["pinned"][2] == "pinned"
    assert rows["dear"][-8:] == ["2", "1", "124.2k", "1.23", "gpt-9", "web", "desk", "Think hard"]
    assert rows["fork"][-2:] == [f"fork {ids['first']}", "Another try"]
    assert rows["first"][0] == ids["first"]


def test_columns_that_nobody_has_are_left_out(shell: Shell) -> None:
    """A store of plain conversations has a plain list."""
    shell.ok("append", "a", "Good morning")
    heading, row = shell.ok("ls").splitlines()
    assert heading.split() == ["ID", "KEY", "STATE", "ACTIVE", "MESSAGES", "TITLE"]
    assert row.endswith("  1  Good morning")


def test_a_state_tells_all_that_is_so(crashed: Shell) -> None:
    """Interrupted and pinned at once."""
    with holdfast.open(crashed.store) as store:
        store.session("support-42").update(pinned=True)
    assert "  interrupted, pinned  " in crashed.ok("ls")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (160, "ID KEY STATE ACTIVE MESSAGES TURNS TOKENS COST MODEL SCOPE AGENT FROM TITLE"),
        (80, "ID KEY STATE ACTIVE MESSAGES FROM TITLE"),
        (60, "ID KEY STATE ACTIVE TITLE"),
        (40, "ID KEY STATE TITLE"),
    ],
)
def test_a_narrow_terminal_drops_what_matters_least(
    several: Shell, columns: int, shown: str
) -> None:
    """Ids and states are whole; no line is longer than the window."""
    lines = _STYLES.sub("", look(several, "ls", columns=columns)).splitlines()
    assert lines[0].split() == shown.split()
    assert max(map(len, lines[:5])) <= columns
    assert {line.split()[0] for line in lines[1:5]} == {
        id[:8] for key, id in _ids(several).items() if key != "archived"
    }
    assert [line.split()[1] for line in lines if "↳ Another" in line] == ["fork"]


# --------------------------------------------------------------------------------- many of them


class _Steps:
    """What the engine did, by its own count."""

    taken = 0
    statements = 0

    def note(self, event: dict[str, object]) -> None:
        status = event["stmt_status"]
        assert isinstance(status, dict)
        self.taken += status["SQLITE_STMTSTATUS_VM_STEP"]
        self.statements += 1


@pytest.fixture
def steps() -> Iterator[_Steps]:
    found = _Steps()

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, found.note)

    apsw.connection_hooks.append(watch)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(watch)


def test_ten_thousand_sessions_are_listed_like_a_hundred(tmp_path: Path, steps: _Steps) -> None:
    """Pages are read, never the store: the engine takes as many steps for both."""
    taken = []
    for number in (100, 10_000):
        path = tmp_path / f"{number}.db"
        with holdfast.open(path, durability="process") as store:
            for n in range(number):
                store.create(title=f"session {n}")
            store.get("session 7").update(pinned=True)
            store.create(title="the newest")
        with holdfast.open(path, readonly=True) as store:
            find(store, Wanted(archived=False), 50)  # The first reading learns the schema.
            steps.taken = steps.statements = 0
            found, more = find(store, Wanted(archived=False), 50)
            taken.append((steps.statements, steps.taken))
        assert [info.title for info in found[:2]] == ["session 7", "the newest"]
        assert (len(found), more) == (50, True)
    assert taken[0][0] == taken[1][0]
    assert taken[1][1] < taken[0][1] * 1.2
