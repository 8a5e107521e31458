"""`holdfast ls`: which sessions there are, the pinned ones first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Message, Store, Usage
from holdfast.cli.commands.ls import ListFilter, find
from holdfast.clock import to_micros
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.testing.conformance import SetClock
from holdfast.url import Location
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


def test_sessions_are_listed_by_metadata_and_the_beginning_of_a_key(shell: Shell) -> None:
    """A value is text, unless it is given as JSON."""
    with holdfast.open(shell.store) as store:
        store.session("slack:1", metadata={"user": "42", "n": 1, "tags": ["a", "b"]})
        parent = store.session("slack:2", metadata={"user": 42})
        store.create(key="mail:1", parent=parent, relation="delegate", metadata={"user": "42"})
    assert _keys(shell, "--metadata", "user=42") == ["mail:1", "slack:1"]
    assert _keys(shell, "--meta", "user:=42") == ["slack:2"]
    assert _keys(shell, "--metadata", "user=42", "--metadata", "n:=1") == ["slack:1"]
    assert _keys(shell, "--metadata", 'tags:=["a","b"]') == ["slack:1"]
    assert _keys(shell, "--metadata", "user=42", "--key-prefix", "slack:") == ["slack:1"]
    assert _keys(shell, "--key-prefix", "slack:") == ["slack:2", "slack:1"]
    assert _keys(shell, "--no-delegates") == ["slack:2", "slack:1"]
    assert "slack:1" in shell.ok("ls", "--metadata", "user=42")
    assert "No sessions." in shell.ok("ls", "--metadata", "user=43")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--metadata", "user"), "NAME=TEXT"),
        (("--metadata", "user:=null"), "null"),
        (("--metadata", "a=1", "--metadata", "a=2"), "twice"),
        (("--key-prefix", ""), "key_prefix"),
    ],
)
def test_a_filter_that_is_none_is_refused(
    several: Shell, arguments: tuple[str, ...], problem: str
) -> None:
    """Before anything is listed."""
    ran = several.run("ls", *arguments)
    assert ran.code
    assert problem in ran.err
    assert ran.out == ""


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
        "AGENT", "FORKS", "FROM", "TITLE",
    ]  # fmt: skip
    rows = {line.split()[1]: re.split(r"  +", line) for line in lines[1:5]}
    assert rows["pinned"][2] == "pinned"
    assert rows["dear"][-8:] == ["2", "1", "124.2k", "1.23", "gpt-9", "web", "desk", "Think hard"]
    assert rows["fork"][-2:] == [f"fork {ids['first']}", "Another try"]
    assert rows["first"][0] == ids["first"]
    assert rows["first"][-2:] == ["1", "This one is first"]


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
        (160, "ID KEY STATE ACTIVE MESSAGES TURNS TOKENS COST MODEL SCOPE AGENT FORKS FROM TITLE"),
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


def test_a_wide_terminal_shows_everything(several: Shell) -> None:
    """Also directories, from home on, and how many branches and forks there are."""
    with holdfast.open(several.store) as store:
        session = store.session("there", cwd="/home/me/project")
        session.append(Message.user("one"), Message.user("two"))
        session.rewind(1)
        session.fork(key="split off")
    several.environment["HOME"] = "/home/me"
    lines = _STYLES.sub("", look(several, "ls", columns=240)).splitlines()
    assert lines[0].split()[-6:] == ["AGENT", "CWD", "BRANCHES", "FORKS", "FROM", "TITLE"]
    [row] = [line for line in lines if line.split()[1:2] == ["there"]]
    assert re.split(r"  +", row.strip())[-4:] == ["~/project", "2", "1", "one"]
    assert "/home/me/project" in several.ok("ls"), "programs are given the whole directory"


# --------------------------------------------------------------------------------------- filters


@pytest.fixture
def dated(shell: Shell) -> Shell:
    """Three sessions: written to in January, ten days ago, and now."""
    now = datetime.now(UTC)
    for key, when in (
        ("winter", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("lately", now - timedelta(days=10)),
        ("now", now),
    ):
        clock = SetClock(to_micros(when))
        with Store(
            SQLiteBackend(Location("sqlite", str(shell.store)), clock=clock), clock
        ) as store:
            store.session(key).append(Message.user(key))
    return shell


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        (["--since", "7d"], ["now"]),
        (["--since", "2w"], ["now", "lately"]),
        (["--until", "7d"], ["lately", "winter"]),
        (["--since", "2026-01", "--until", "2026-01"], ["winter"]),
        (["--since", "2026-01-31", "--until", "2026-01-31"], ["winter"]),
        (["--until", "2026-01-30"], []),
        (["--until", "2026-01-31T11:59"], []),
        (["--until", "2026-01-31T12:01"], ["winter"]),
        (["--since", "2025"], ["now", "lately", "winter"]),
        (["--since", "7d", "--text", "winter"], []),
    ],
)
def test_since_and_until(dated: Shell, asked: list[str], keys: list[str]) -> None:
    """By when a session was written to last."""
    assert _keys(dated, *asked) == keys


def test_a_time_that_is_none(dated: Shell) -> None:
    """Is said to be none, with what would be one."""
    ran = dated.run("ls", "--since", "yesterday")
    assert (ran.code, ran.out) == (2, "")
    assert "since: expected a time such as 7d" in ran.err


def test_states(crashed: Shell) -> None:
    """Each is a filter."""
    crashed.ok("append", "other", "x")
    assert _keys(crashed, "--state", "interrupted") == ["support-42"]
    assert _keys(crashed, "--state", "done") == ["other"]
    assert _keys(crashed, "--state", "open") == _keys(crashed, "--state", "damaged") == []
    assert "No sessions." in crashed.ok("ls", "--state", "open")
    assert "'closed' is not one of" in crashed.run("ls", "--state", "closed").err


def test_order(several: Shell) -> None:
    """By activity alone, if asked for."""
    assert _keys(several, "--order", "activity") == ["fork", "dear", "pinned", "first"]
    assert _keys(several, "--order", "pinned") == ["pinned", "fork", "dear", "first"]


# ----------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("order", ["pinned", "activity"])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages(several: Shell, order: str, limit: int) -> None:
    """A page has the cursor of the next; together they are the list."""
    keys: list[str] = []
    cursor = "start"
    asked = ["--order", order, "-n", str(limit)]
    while cursor is not None:
        page = several.json("ls", "--cursor", cursor, *asked)
        assert 0 < len(page["items"]) <= limit
        keys += [info["key"] for info in page["items"]]
        cursor = page["cursor"]
    assert keys == _keys(several, "--order", order)


def test_a_page_says_how_to_go_on(several: Shell) -> None:
    """In words that can be typed."""
    said = several.ok("ls", "-n", "2").splitlines()[-1]
    cursor = said.rpartition(" ")[2]
    rest = several.ok("ls", "-n", "2", "--cursor", cursor)
    assert [line.split()[1] for line in rest.splitlines()[1:3]] == ["dear", "first"]
    assert "There are more" not in rest
    for bad in ("x", "5" if cursor.startswith(("p", "u")) else "p5", ""):
        ran = several.run("ls", "--cursor", bad)
        assert (ran.code, ran.out) == (2, "")
        assert (
            "cursor: invalid for this list; pass the cursor of its last page unchanged" in ran.err
        )
    assert "exclude each other" in several.run("ls", "--all", "--cursor", cursor).err


# ---------------------------------------------------------------------------------------- damage


def test_a_damaged_session_is_listed_as_damaged(several: Shell) -> None:
    """In its place, with its title, beside all the others; and it is said."""
    ids = _ids(several)
    connection = apsw.Connection(str(several.store))
    connection.execute("UPDATE sessions SET model = 'other' WHERE key = 'dear'")
    connection.close()
    ran = several.run("ls")
    assert ran.code == 0
    assert [line.split()[1] for line in ran.out.splitlines()[1:5]] == [
        "pinned", "fork", "dear", "first"
    ]  # fmt: skip
    [row] = [line for line in ran.out.splitlines() if line.split()[:1] == [ids["dear"]]]
    assert "  damaged  " in row
    assert row.endswith("  Think hard")
    assert ran.err == (
        "holdfast: 1 session is damaged and may be listed incorrectly\n"
        "    hint: `holdfast doctor` shows details\n"
    )
    found = json.loads(several.run("ls", "--state", "damaged", "--json").out)
    assert [(info["id"], info["state"]) for info in found] == [(ids["dear"], "damaged")]
    assert len(json.loads(several.run("ls", "--json").out)) == 4
    assert several.run("show", "dear").code == 5


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
            find(store, ListFilter(archived=False), 50)  # The first reading learns the schema.
            steps.taken = steps.statements = 0
            found, more = find(store, ListFilter(archived=False), 50)
            taken.append((steps.statements, steps.taken))
        assert [info.title for info in found[:2]] == ["session 7", "the newest"]
        assert len(found) == 50
        assert more is not None
    assert taken[0][0] == taken[1][0]
    assert taken[1][1] < taken[0][1] * 1.2
