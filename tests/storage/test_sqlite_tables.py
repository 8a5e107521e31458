"""A field that is added to a row needs one migration, which rewrites no row; damage is noticed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import pytest

import holdfast
from holdfast import codec
from holdfast.storage.columns import Added, Column, Count, Name, Number
from holdfast.storage.rows import SessionRow
from holdfast.storage.sqlite.tables import SESSIONS, TABLES, Table


class Narrow(msgspec.Struct, frozen=True):
    n: Number
    name: Name
    size: Count | None


class Wide(Narrow, frozen=True):
    mood: Annotated[Name | None, Added()] = None
    rank: Annotated[Count | None, Added()] = None


_OWN = {"n": Column("tenant", "number")}
NARROW = Table("things", Narrow, own=_OWN, assigned="n", keys={"tenant"})
WIDE = Table("things", Wide, own=_OWN, assigned="n", keys={"tenant"})


def test_lists_of_columns_are_made_from_the_fields() -> None:
    """The number that SQLite assigns is read but not written, a key is not updated."""
    assert WIDE.lists() == {
        "things": "t.crc, t.n, t.tenant, t.name, t.size, t.mood, t.rank",
        "things.names": "tenant, name, size, mood, rank, crc",
        "things.values": "?1, ?2, ?3, ?4, ?5, ?6",
        "things.set": "name = ?2, size = ?3, mood = ?4, rank = ?5, crc = ?6",
    }


@pytest.mark.parametrize("mood", [None, "glad", "\ud800"])
@pytest.mark.parametrize("rank", [None, 0, 7])
def test_a_row_comes_back_as_it_was(mood: str | None, rank: int | None) -> None:
    row = Wide(5, "a\0b", None, mood, rank)
    *covered, crc = WIDE.values(row, 3)
    read = (crc, 5, *covered)
    assert covered[0] == 3
    assert WIDE.is_intact(read)
    assert WIDE.row(read) == row
    assert not WIDE.is_intact((crc, 5, 4, *covered[1:]))


@pytest.mark.parametrize(
    ("changes", "sealed", "intact"),
    [
        ({}, True, True),
        ({"name": "\\u0000"}, True, True),
        ({"name": codec.encode_text("a\0b")}, True, True),
        ({"name": codec.encode_text("\ud800")}, True, True),
        ({"rank": 7}, True, True),
        ({"name": "b"}, False, False),
        ({"rank": 7}, False, False),
        ({"name": "a\0b"}, True, False),
        ({"name": b"a"}, True, False),
        ({"name": ""}, True, False),
        ({"name": None}, True, False),
        ({"size": -1}, True, False),
        ({"size": 1.0}, True, False),
        ({"size": "1"}, True, False),
        ({"tenant": 0}, True, False),
    ],
)
def test_rows_are_checked_together_as_each_is_alone(
    changes: dict[str, Any], sealed: bool, intact: bool
) -> None:
    """A value that was changed is noticed; `sealed` by a stranger, whether it is possible."""
    stored = dict(zip(WIDE.covered, (3, "a", 5, None, None), strict=True))
    *_, crc = WIDE.values(Wide(5, "a", 5), 3)
    good = (crc, 5, *stored.values())
    changed = list((stored | changes).values())
    row = (WIDE.checksum(changed) if sealed else crc, 5, *changed)
    assert WIDE.is_intact(row) == intact
    assert WIDE.are_intact([good, row, good]) == intact


def test_a_checksum_covers_an_added_column_only_if_it_has_a_value() -> None:
    """A NULL before a value is covered; the checksums of older rows still hold."""
    old = NARROW.values(Narrow(5, "a", None), 3)
    assert WIDE.values(Wide(5, "a", None), 3)[-1] == old[-1]
    seen = {
        WIDE.values(Wide(5, "a", None, mood, rank), 3)[-1]
        for mood in (None, "glad")
        for rank in (None, 7)
    }
    assert len(seen) == 4


def test_only_added_columns_are_left_out() -> None:
    """A column that was always there is covered also if it is NULL, and if it is the last."""
    assert NARROW.checksum([3, "a", None]) != NARROW.checksum([3, "a"])


def test_no_table_has_an_added_column_before_another_one() -> None:
    for table in TABLES.values():
        added = [column.added for column in table.columns]
        assert added == sorted(added), table.name


def test_a_session_is_stored_as_its_columns_say() -> None:
    row = SessionRow(7, "id", title="\ud800", pinned=True, metadata=b'{"a":1}')
    values = dict(zip(SESSIONS.covered, SESSIONS.values(row, 3), strict=False))
    assert values["tenant"] == 3
    assert values["title"] == codec.encode_text("\ud800")
    assert (values["pinned"], values["archived"]) == (1, 0)
    assert values["metadata"] == '{"a":1}'


# ---------------------------------------------------------------------------- a real migration


def _later(path: Path, *actions: str) -> list[Any]:
    """Do something with a store as a later version, whose sessions have two columns more."""
    command = [sys.executable, "-m", "tests.storage.wider_sessions", str(path), *actions]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of today, with three sessions."""
    with holdfast.open(tmp_path / "a.db") as store:
        for title in ("one", "three", "two"):
            store.create(title=title)
    return tmp_path / "a.db"


def _sessions(path: Path, columns: str = "*") -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    found = list(connection.execute(f"SELECT {columns} FROM sessions ORDER BY title"))  # noqa: S608
    connection.close()
    return found


def _change(path: Path, title: str, change: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE sessions SET {change} WHERE title = ?", (title,))  # noqa: S608
    connection.close()


def test_a_migration_adds_a_column_and_rewrites_no_row(path: Path) -> None:
    """Old rows and new values are read, verified and salvaged alike."""
    before, sums = _sessions(path), _sessions(path, "crc")
    to = path.with_name("b.db")
    *_, verified, read, salvaged = _later(
        path, "put one glad 7", "put two - 5", "verify", "read", f"salvage {to}"
    )
    assert (verified, salvaged) == ([], [])
    assert read == [["one", "glad", 7], ["three", None, None], ["two", None, 5]]
    after = _sessions(path)
    assert after[1] == (*before[1], None, None)
    now = _sessions(path, "crc")
    assert [new == old for new, old in zip(now, sums, strict=True)] == [False, True, False]
    assert _sessions(to) == after
    assert _later(to, "verify", "read") == [[], read]


def test_a_store_of_the_older_format_is_salvaged_whole(path: Path) -> None:
    to = path.with_name("b.db")
    assert _later(path, f"salvage {to}") == [[]]
    assert _sessions(to) == [(*row, None, None) for row in _sessions(path)]


@pytest.mark.parametrize(
    "change", ["mood = 'sad'", "mood = NULL", "rank = NULL", "mood = NULL, rank = NULL"]
)
def test_a_changed_value_of_an_added_column_is_noticed(path: Path, change: str) -> None:
    """Also if it is gone: then the row looks like one that never had it."""
    _later(path, "put one glad 7")
    _change(path, "one", change)
    verified, read, salvaged = _later(path, "verify", "read", f"salvage {path}.new")
    assert verified == ["the row of sessions does not match its checksum"]
    assert read == [["three", None, None], ["two", None, None]]
    assert salvaged == ["a row of sessions: does not match its checksum"]


def test_a_value_that_an_old_row_never_had_is_noticed(path: Path) -> None:
    assert _later(path, "verify") == [[]]
    _change(path, "three", "mood = 'sad'")
    assert _later(path, "verify") == [["the row of sessions does not match its checksum"]]


def test_a_flipped_bit_of_an_added_number_is_restored(path: Path) -> None:
    _later(path, "put one glad 7")
    _change(path, "one", "rank = 5")
    to = path.with_name("b.db")
    assert _later(path, f"salvage {to}") == [
        ["a row of sessions: rank was damaged, and is restored"]
    ]
    assert _sessions(to, "title, mood, rank")[0] == ("one", "glad", 7)
    assert _later(to, "verify") == [[]]


def test_an_added_value_that_is_not_valid_is_replaced(path: Path) -> None:
    _later(path, "put one glad 7")
    _change(path, "one", "mood = ''")
    to = path.with_name("b.db")
    (verified, salvaged) = _later(path, "verify", f"salvage {to}")
    assert verified == ["mood of the row of sessions cannot be read"]
    assert "mood of a row of sessions cannot be read" in salvaged
    assert _sessions(to, "title, mood, rank")[0] == ("one", None, 7)
    assert _later(to, "verify") == [[]]
