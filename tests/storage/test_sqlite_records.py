"""Records in SQLite: what its statements find is what the reference in memory finds."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest
from msgspec import UNSET, structs

import holdfast
from holdfast import File, Message, Record, Session, Store
from holdfast.errors import Damaged
from holdfast.session import number_of
from holdfast.storage.ancestry import record_ranges
from holdfast.storage.protocol import Snapshot
from tests.storage.damage_cases import seal

KINDS = ("state", "rare", "nul\0", "lone \ud800")
KEYS = (None, "a", "ab", "ab\0c", "b", "\U0010ffff", "a\udc80")


def _fill(store: Store, seed: int) -> list[Session]:
    """Fill a store with sessions that fork, rewind and continue; return them."""
    rng = random.Random(seed)
    sessions = [store.create()]
    for n in range(60):
        session = rng.choice(sessions)
        entries: list[Message | Record] = []
        for m in range(rng.randrange(4)):
            if rng.random() < 0.4:
                entries.append(Message.user(f"{n} {m}", id=f"m{n}.{m}"))
            else:
                kind, key = rng.choice(KINDS), rng.choice(KEYS)
                entries.append(Record(kind, key=key, data=[n, m], id=f"r{n}.{m}"))
        if entries:
            session.append(*entries)
        if session.head().seq and rng.random() < 0.3:
            seq = rng.randint(1, session.head().seq)
            if rng.random() < 0.5:
                sessions.append(session.fork(seq))
            else:
                session.rewind(seq)
    return sessions


def _read(store: Store, session: Session, rng: random.Random) -> list[object]:
    """Read records of one history in many ways."""

    def run(snapshot: Snapshot) -> list[object]:
        head = snapshot.head(number_of(session))
        assert head is not None
        found: list[object] = []
        for _ in range(40):
            at = rng.choice((None, rng.randint(0, head.seq)))
            ranges = record_ranges(snapshot.path(head.branch), at)
            if ranges and rng.random() < 0.3:
                cut = structs.replace(ranges[0], last_record=rng.randrange(5))
                ranges = [cut, *ranges[1:]]
            kind = rng.choice((None, *KINDS))
            key = rng.choice((UNSET, *KEYS)) if kind else UNSET
            prefix = rng.choice((None, "a", "ab", "\U0010ffff")) if kind and key is UNSET else None
            limit = rng.choice((None, 1, 2, 5))
            rows = snapshot.records(ranges, kind=kind, key=key, prefix=prefix, limit=limit)
            found.append([(row.id, row.seq, row.number, row.is_intact) for _, row in rows])
            found.append(
                sorted(snapshot.stored_records(head.branch, [f"r{n}.1" for n in range(60)]))
            )
            if kind is not None:
                found.append([snapshot.record_numbers(s, kind, key, limit=limit) for s in ranges])
            found.append([snapshot.has_records(s.branch, rng.randrange(3)) for s in ranges])
        return found

    return store.backend.read(run)


@pytest.mark.parametrize("seed", range(6))
def test_every_read_finds_what_memory_finds(tmp_path: Path, seed: int) -> None:
    with (
        holdfast.open("memory:") as one,
        holdfast.open(tmp_path / "a.db", durability="process") as two,
    ):
        for left, right in zip(_fill(one, seed), _fill(two, seed), strict=True):
            found = [_read(s, t, random.Random(seed)) for s, t in ((one, left), (two, right))]
            assert found[0] == found[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three records, of which two have a file in common."""
    path = tmp_path / "a.db"
    shared = File(name="f", data=b"shared " * 500)
    with holdfast.open(path, durability="process") as store:
        session = store.session("talk")
        session.append(Message.user("a"), Record("state", data="old", files={"f": shared}))
        session.append(Record("state", data="new", files={"f": shared}), Record("other", data=1))
    return path


def _tamper(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    seal(connection)
    connection.close()


def _tables(path: Path, *queries: str) -> list[object]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = [connection.execute(query).get for query in queries]
    connection.close()
    return found


def test_a_dropped_record_leaves_no_reference_and_takes_no_blob_of_others(path: Path) -> None:
    with holdfast.open(path) as store:
        report = store.session("talk").drop(kind="state", keep=1)
        assert (report.records, report.blobs) == (1, 0)
        assert store.verify() == []
        assert store.session("talk").drop(kind="state").blobs == 1
        assert store.verify() == []
    uses = ("SELECT count(*) FROM record_blobs", "SELECT count(*) FROM blobs")
    assert _tables(path, *uses) == [0, 0]


def test_a_drop_that_was_not_wiped_is_noted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next process wipes it, if this one is killed."""
    with holdfast.open(path) as store:
        monkeypatch.setattr(store.backend, "wipe", lambda: ())
        store.session("talk").drop(kind="state")
        note = "SELECT count(*) FROM meta WHERE name LIKE 'scrub of %'"
        assert _tables(path, note) == [1]


@pytest.mark.parametrize("counted", [1, None])
def test_a_record_that_the_head_does_not_count_is_damage(path: Path, counted: int | None) -> None:
    """Its number would be given again."""
    _tamper(path, f"UPDATE heads SET records = {counted or 'NULL'}")  # noqa: S608
    with holdfast.open(path) as store:
        session = store.session("talk")
        with pytest.raises(Damaged, match="beyond its head"):
            session.record("other")
        with pytest.raises(Damaged, match="beyond its head"):
            session.records()
        with pytest.raises(Damaged):
            session.append(Record("other", data=2))
        assert {damage.session_id for damage in store.verify()} == {session.id}
    assert _tables(path, "SELECT count(*) FROM records") == [3]


def test_no_record_is_stored_beyond_the_numbers_of_its_branch(path: Path) -> None:
    """Its place would be that of another branch's record."""
    _tamper(path, "UPDATE heads SET records = 2147483647")
    with holdfast.open(path) as store, pytest.raises(Damaged, match="no numbers left"):
        store.session("talk").append(Record("other", data=2))
    assert _tables(path, "SELECT count(*) FROM records") == [3]


_CHANGES = {
    "seq": "seq = 0",
    "number": "place = place + 7",
    "id": "id = 'another'",
    "kind": "kind = 'kind'",
    "key": "key = 'key'",
    "body": "body = replace(body, 'new', 'now')",
    "checksum": "crc = crc + 1",
}


@pytest.mark.parametrize("what", _CHANGES)
def test_a_changed_value_of_a_record_is_noticed(path: Path, what: str) -> None:
    """By verifying the store, and by reading the record; it is set aside, and the rest salvaged."""
    _tamper(path, "UPDATE heads SET records = 20")
    _tamper(path, f"UPDATE records SET {_CHANGES[what]} WHERE body LIKE '%new%'")  # noqa: S608
    with holdfast.open(path) as store:
        session = store.session("talk")
        with pytest.raises(Damaged):
            session.records()
        found = store.verify()
        assert {damage.session_id for damage in found} == {session.id}
        assert any("checksum" in damage.what for damage in found)
        report = store.salvage(str(path.with_name("b.db")))
    assert report.quarantined == 1
    with holdfast.open(path.with_name("b.db")) as store:
        assert store.verify() == []
        assert [record.data for record in store.session("talk").records()] == ["old", 1]
