"""What earlier releases have written is read as it was, to the last checksum."""

from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Message, Record, codec
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.repair.verify import verify_file
from holdfast.storage.sqlite.tables import TABLES, Table
from tests.storage import kept_store
from tests.storage.damage_cases import carried, content_of

VERSIONS = sorted(
    path.name.removesuffix(".store.xz") for path in kept_store.STORES.glob("*.store.xz")
)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def path(version: str, tmp_path: Path) -> Path:
    """A copy of the store that this release has written."""
    return kept_store.unpack(version, tmp_path / "a.db")


@pytest.fixture
def migrated(path: Path) -> Path:
    """The same, with the tables of today."""
    holdfast.open(path).close()
    return path


def test_a_store_of_every_release_is_kept() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("tenant", kept_store.TENANTS)
def test_it_opens_and_is_sound(path: Path, tenant: str) -> None:
    """By all that `verify` knows, and whatever is read of it."""
    with holdfast.open(path, tenant=tenant) as store:
        assert store.verify() == []
        for info in store.sessions(limit=100):
            assert all(m.status != "damaged" for m in store.get(info.id).messages())
        assert store.damage == []
    assert verify_file(path) == []


def test_it_holds_what_it_held(migrated: Path, version: str, tmp_path: Path) -> None:
    """Every session, branch, message, turn, draft and file, and input that waits."""
    lines, heads, checksums = kept_store.expected(version)
    assert kept_store.exported(migrated, tmp_path) == lines
    assert kept_store.heads(migrated) == heads
    assert {**kept_store.checksums(migrated), "heads": checksums["heads"]} == checksums


def test_its_checksums_are_those_that_would_be_made_today(migrated: Path, version: str) -> None:
    """Of every row of every table; those of heads were made anew, to cover the activity."""
    _, _, kept = kept_store.expected(version)
    kept["heads"] = kept_store.checksums(migrated)["heads"]
    connection = apsw.Connection(str(migrated))
    made = {name: _sealed(connection, table) for name, table in TABLES.items()}
    query = "SELECT id, turn, CAST(body AS BLOB) FROM messages ORDER BY place"
    made["messages"] = [codec.checksum(*row) for row in connection.execute(query)]
    connection.close()
    assert all(kept[table] for table in kept)
    assert made == kept


def _sealed(connection: apsw.Connection, table: Table[Any]) -> list[int]:
    names, key = ", ".join(table.covered), kept_store.KEYS[table.name]
    query = f"SELECT {names} FROM {table.name} ORDER BY {key}"  # noqa: S608
    return [table.checksum(row) for row in connection.execute(query)]


def test_it_can_be_gone_on_with(path: Path) -> None:
    """What was open is recovered, input that waited is taken, and more is said everywhere."""
    with holdfast.open(path) as store:
        session = store.session("open")
        recovered = session.recover()
        assert recovered is not None
        assert session.messages()[-1].status == "partial"
        assert "partial text" in session.messages()[-1].text
        with session.turn() as turn:
            one, two = turn.take_queued()
        assert one.text == "and then?"
        assert store.blob(codec.sha256_hex(b"wait")) == b"wait"
        assert [part.size for part in two.parts if isinstance(part, holdfast.File)] == [4]
        for info in store.sessions(limit=100):
            head = store.get(info.id).head()
            assert store.get(info.id).append(Message.user("more")).seq == head.seq + 1
            store.get(info.id).append(Record("state", data=info.id))
            newest = store.get(info.id).record("state")
            assert newest is not None
            assert (newest.data, newest.seq) == (info.id, head.seq + 1)
        assert store.verify() == []


def test_it_is_backed_up_before_it_is_migrated(path: Path, tmp_path: Path) -> None:
    """The backup has the format and the rows of before."""
    before = verify_file(path), path.read_bytes()[60:64]
    holdfast.open(path).close()
    backup = path.with_name(f"{path.name}.before-{max(migrations.load())}")
    assert (verify_file(backup), backup.read_bytes()[60:64]) == before == ([], before[1])
    assert path.read_bytes()[60:64] != before[1]
    assert salvage(backup, tmp_path / "b.db").damage == ()
    assert verify_file(tmp_path / "b.db") == []


def test_it_is_salvaged_whole_without_its_header(path: Path, tmp_path: Path) -> None:
    expected = salvage(path, tmp_path / "b.db")
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    report = salvage(path, tmp_path / "c.db")
    before, after = content_of(tmp_path / "b.db"), content_of(tmp_path / "c.db")
    assert before is not None
    assert after is not None
    assert carried(after) == carried(before)
    assert report.messages == expected.messages > 0


def test_it_is_salvaged_whole(path: Path, tmp_path: Path) -> None:
    report = salvage(path, tmp_path / "b.db")
    assert report.damage == ()
    holdfast.open(path).close()  # Its tables are those of today now.
    before, after = content_of(path), content_of(tmp_path / "b.db")
    assert before is not None
    assert after is not None
    assert carried(after) == carried(before)
