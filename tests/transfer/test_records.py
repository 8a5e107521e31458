"""Records go where their sessions go: exports, imports and copies have them, as they were."""

import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import File, Message, Record, Session, Store
from holdfast.codec import BLOB_THRESHOLD
from holdfast.errors import Diverged
from holdfast.storage.memory import MemoryTransaction
from holdfast.transfer.format import VERSION
from tests.storage import kept_store
from tests.transfer import edits
from tests.transfer.edits import change, find, flip
from tests.transfer.views import lines_of, shown

LARGE = File(name="large", data=b"large" * 1000)


@pytest.fixture
def source() -> Iterator[Store]:
    """A store with records in every place: a session `talk`, and a fork of it."""
    with holdfast.open("memory:") as store:
        fill(store)
        yield store


def fill(store: Store) -> None:
    """Store records before the first message, behind messages, and on branches without any."""
    talk = store.session("talk")
    talk.append(
        Record("state", id="r1", data={"n": 1}),
        Message.user("one", id="m1"),
        Record("state", id="r2", key="k", files={"s": File(data=b"small"), "l": LARGE}),
        Record("state", id="r3", data="x" * (BLOB_THRESHOLD + 1)),
        Message.assistant("two", id="m2"),
        Record("state", id="r4", data=4),
    )
    talk.rewind(1)
    talk.append(Record("state", id="r5", data=5))
    fork = talk.fork(key="fork")
    talk.append(Record("state", id="r6", data=6))
    fork.append(Record("state", id="r7", data=7))
    fork.rewind(0)
    fork.append(Message.user("three", id="m3"), Record("other", id="r8", data=[8]))
    store.put_record(Record("settings", id="s1", key="a", data=1))
    store.put_record(Record("settings", id="s2", key="a", data=2, files={"l": LARGE}))
    store.put_record(Record("settings", id="s3", key="a", data=3), scope="me")


@pytest.fixture
def empty() -> Iterator[Store]:
    """An empty store, where its kind does not matter: for what is decided before it is stored."""
    with holdfast.open("memory:") as store:
        yield store


@pytest.fixture
def exported(source: Store, tmp_path: Path) -> Path:
    """That store, exported to a file."""
    source.export(tmp_path / "out.jsonl", redact=None)
    return tmp_path / "out.jsonl"


def ids(session: Session) -> list[str]:
    """Return the ids of the records of a history."""
    return [record.id for record in session.records()]


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of an export that have this type."""
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [line for line in found if line["type"] == kind]


# ------------------------------------------------------------------------------------ everything


def test_every_record_comes_back_where_it_was(
    source: Store, exported: Path, target: Store, tmp_path: Path
) -> None:
    """On every branch, with its number, its data and its files; and once."""
    report = target.import_(exported, trust=True)
    assert (report.damage, report.records, report.store_records) == ((), 8, 2)
    assert shown(target) == shown(source)
    assert target.verify() == []
    target.export(tmp_path / "two.jsonl", redact=None)
    assert lines_of(tmp_path / "two.jsonl") == lines_of(exported)
    again = target.import_(exported, trust=True)
    assert (again.records, again.store_records, again.records_left_out) == (0, 0, 0)
    for store in (source, target):
        store.session("talk").append(Record("state", id="next"))
    assert target.session("talk").records() != []
    numbers = [_numbers(store, tmp_path) for store in (source, target)]
    assert numbers[0] == numbers[1]


def _numbers(store: Store, folder: Path) -> list[tuple[str, int]]:
    store.export(folder / "numbers.jsonl", redact=None, overwrite=True)
    return [(line["id"], line["number"]) for line in lines(folder / "numbers.jsonl", "record")]


def test_a_record_follows_its_message(exported: Path) -> None:
    """So that what is left of a file that is cut off has the state of that moment."""
    found = [json.loads(line) for line in exported.read_bytes().splitlines()]
    first = [line["id"] for line in found if line["type"] in {"message", "record"}][:6]
    assert first == ["r1", "m1", "r2", "r3", "m2", "r4"]


def test_a_dropped_number_is_not_given_again(target: Store, tmp_path: Path) -> None:
    with holdfast.open("memory:") as store:
        store.session("k").append(Record("a"), Record("a"), Record("b"))
        store.session("k").drop(kind="a")
        store.session("k").drop(kind="b")
        store.export(tmp_path / "x", redact=None)
    assert target.import_(tmp_path / "x", trust=True).damage == ()
    target.session("k").append(Record("c"))
    target.export(tmp_path / "y", redact=None)
    assert [line["number"] for line in lines(tmp_path / "y", "record")] == [4]


def test_a_fork_alone_comes_with_the_state_it_started_from(
    source: Store, target: Store, tmp_path: Path
) -> None:
    """And with nothing that its parent stored later, also behind the same message."""
    source.export(tmp_path / "fork.jsonl", "fork", redact=None)
    assert [line["id"] for line in lines(tmp_path / "fork.jsonl", "record")] == [
        *("r1", "r2", "r3", "r5", "r7", "r8"),
    ]
    assert lines(tmp_path / "fork.jsonl", "store_record") == []
    report = target.import_(tmp_path / "fork.jsonl", trust=True)
    assert report.damage == ()
    assert ids(target.session("fork")) == ids(source.session("fork")) == ["r1", "r8"]
    all_of_it = target.session("fork").records(all_branches=True)
    assert all_of_it == source.session("fork").records(all_branches=True)
    assert target.verify() == []


def test_a_fork_joins_its_parent_with_the_same_state(
    source: Store, exported: Path, target: Store, tmp_path: Path
) -> None:
    source.export(tmp_path / "talk.jsonl", "talk", redact=None)
    target.import_(tmp_path / "talk.jsonl", trust=True)
    assert target.import_(exported, trust=True).damage == ()
    assert shown(target)["each"] == shown(source)["each"]


def test_a_fork_does_not_join_a_parent_with_another_state(
    source: Store, target: Store, tmp_path: Path
) -> None:
    """It would have another state than it started from."""
    source.export(tmp_path / "talk.jsonl", "talk", redact=None)
    source.export(tmp_path / "fork.jsonl", "fork", redact=None)
    target.import_(tmp_path / "talk.jsonl", trust=True)
    target.session("talk").drop(kind="state", keys=["k"])
    report = target.import_(tmp_path / "fork.jsonl", trust=True)
    assert ["has another history here" in damage.what for damage in report.damage] == [True]
    assert ids(target.session("fork")) == ["r1", "r8"]
    assert target.verify() == []


def test_an_export_of_the_first_version_is_read(target: Store, tmp_path: Path) -> None:
    """It has no records, and its lines are as today's."""
    old = lzma.decompress((kept_store.STORES / "0.1.0.jsonl.xz").read_bytes())
    sessions = old.count(b'{"type":"session"')
    header = {"type": "holdfast", "version": 1, "exported_at": "2026-01-01T00:00:00Z"}
    first = edits.sealed(header | {"sessions": sessions, "messages": 0})
    (tmp_path / "old.jsonl").write_bytes(first + old)
    assert VERSION > 1
    report = target.import_(tmp_path / "old.jsonl", trust=True)
    assert report.sessions > 0
    assert report.records == 0


# ----------------------------------------------------------------------------------------- copies


def test_a_copy_has_every_record_and_is_renewed(source: Store, target: Store) -> None:
    """New ones are added, those that were dropped are dropped; nothing is stored twice."""
    report = source.copy(target)
    assert report.same
    assert (report.source.records, report.source.store_records) == (8, 2)
    assert shown(target) == shown(source)
    talk = source.session("talk")
    talk.append(Record("state", id="r9", files={"l": File(data=b"new" * 1000)}))
    source.put_record(Record("settings", id="s4", key="a", data=4))
    renewed = source.copy(target)
    assert (renewed.same, renewed.renewed, renewed.unchanged) == (True, 1, 1)
    talk.drop(kind="state", keep=1)
    dropped = source.copy(target)
    assert (dropped.same, dropped.renewed, dropped.damage) == (True, 1, ())
    assert shown(target) == shown(source)
    current = target.record("settings", "a")
    assert current is not None
    assert current.id == "s4"
    assert source.copy(target).unchanged == 2
    assert target.verify() == []


def test_a_fork_in_the_target_keeps_what_it_needs(source: Store, target: Store) -> None:
    """Whatever the source drops; the copy then says that they differ."""
    source.copy(target)
    own = target.session("talk").fork()
    before = own.records()
    source.session("talk").drop(kind="state")
    report = source.copy(target)
    assert not report.same
    assert own.records() == before


@pytest.mark.parametrize("where", ["session", "store"])
def test_a_copy_never_replaces_what_was_stored_in_the_target(
    source: Store, target: Store, where: str
) -> None:
    source.copy(target)
    if where == "session":
        target.session("talk").append(Record("state", id="own"))
        source.session("talk").append(Record("state", id="other"))
    else:
        target.put_record(Record("settings", id="own", key="a"))
        source.put_record(Record("settings", id="other", key="a"))
    with pytest.raises(Diverged) as refused:
        source.copy(target)
    (reason,) = refused.value.reasons.values()
    assert "record" in reason
    assert "own" in str([target.session("talk").records(), target.record("settings", "a")])


def test_a_damaged_record_does_not_take_its_copy_with_it(target: Store) -> None:
    """It is reported, and everything else is renewed."""
    with holdfast.open("memory:") as store:
        store.session("k").append(Record("state", id="good"), Record("state", id="bad", data=1))
        store.copy(target)
        damage(store, "bad")
        store.session("k").append(Record("state", id="new"))
        report = store.copy(target)
        assert ["bad" in one.what for one in report.damage] == [True]
    assert ids(target.session("k")) == ["good", "bad", "new"]


def damage(store: Store, record_id: str) -> None:
    """Change the bytes of a record."""

    def run(tx: MemoryTransaction) -> None:
        tables = tx._tables  # noqa: SLF001 - to damage it
        for rows in tables.records.values():
            for number, row in rows.items():
                if row.id == record_id:
                    rows[number] = msgspec.structs.replace(row, body=row.body + b" ")
        for number, shared in tables.store_records.items():
            if shared.id == record_id:
                tables.store_records[number] = msgspec.structs.replace(shared, crc=shared.crc ^ 1)

    store.backend.write(run)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ of the store


def test_a_file_replaces_no_record_of_the_store(exported: Path, target: Store) -> None:
    """Also a trusted one: what is here stays, and what was left out is counted."""
    target.put_record(Record("settings", id="own", key="a", data="mine"))
    report = target.import_(exported, trust=True)
    assert (report.store_records, report.records_left_out) == (1, 1)
    kept, added = target.record("settings", "a"), target.record("settings", "a", scope="me")
    assert kept is not None
    assert added is not None
    assert (kept.id, added.id) == ("own", "s3")


def test_a_strangers_file_has_no_record_for_the_store(exported: Path, target: Store) -> None:
    report = target.import_(exported)
    assert (report.store_records, report.records_left_out) == (0, 2)
    assert target.record("settings", "a") is None
    assert target.record("settings", "a", scope="me") is None
    assert target.backend.read(lambda snapshot: list(snapshot.store_records())) == []


def test_a_retry_is_recognized_in_the_copy(source: Store, exported: Path, target: Store) -> None:
    """The ids of replaced records come along."""
    target.import_(exported, trust=True)
    target.put_record(Record("settings", id="s1", key="a", data=1))
    current = target.record("settings", "a")
    assert current is not None
    assert current == source.record("settings", "a")


def test_a_file_of_records_that_is_cut_off(exported: Path, empty: Store) -> None:
    whole = exported.read_bytes().splitlines(keepends=True)
    exported.write_bytes(b"".join(whole[:-2]))
    report = empty.import_(exported, trust=True)
    assert [one.what for one in report.damage] == ["2 records of the store are missing at the end"]


# ------------------------------------------------------------------------------- without trust


def test_a_strangers_state_is_nobodys_own(exported: Path, target: Store) -> None:
    """It is there, under a kind that no program looks for, and the report counts it."""
    report = target.import_(exported)
    assert report.records == 8
    assert sum(one.records for one in report.demotions) == 8
    for info in target.sessions():
        session = target.get(info.id)
        assert session.record("state") is None
        assert {record.kind for record in session.records(all_branches=True)} <= {
            "imported:state",
            "imported:other",
        }
    assert target.import_(exported).skipped != ()


def test_it_is_demoted_once(exported: Path, empty: Store, tmp_path: Path) -> None:
    """However often it is passed on; and one's own file brings it back as it is."""
    with holdfast.open("memory:") as between:
        between.import_(exported)
        between.export(tmp_path / "again.jsonl", redact=None)
    assert empty.import_(tmp_path / "again.jsonl").records == 8
    sessions = [empty.get(info.id) for info in empty.sessions()]
    kinds = {record.kind for one in sessions for record in one.records(all_branches=True)}
    assert kinds == {"imported:state", "imported:other"}


@pytest.mark.parametrize("there", [True, False])
def test_a_strangers_fork_saw_what_its_parent_stored_later(
    source: Store, target: Store, tmp_path: Path, there: bool
) -> None:
    """A number that is not taken yet is none that a fork may have, of whatever parent."""
    mine = source.session("mine")
    mine.append(Message.user("hello", id="h"), Record("state", id="shown"))
    source.export(tmp_path / "mine.jsonl", "mine", redact=None)
    if there:
        target.import_(tmp_path / "mine.jsonl", trust=True)
    mine.fork(key="theirs")
    source.export(tmp_path / "theirs.jsonl", redact=None)
    for at in _lines_with(tmp_path / "theirs.jsonl", b'"reason":"fork"', mine.id):
        change(tmp_path / "theirs.jsonl", at, _claim_more)
    target.import_(tmp_path / "theirs.jsonl")
    target.get(mine.id).append(Record("state", id="private"))
    others = [info.id for info in target.sessions() if info.id != mine.id]
    assert others
    for id in others:
        assert "private" not in [record.id for record in target.get(id).records()]


def _lines_with(path: Path, field: bytes, parent: str) -> list[int]:
    found = enumerate(path.read_bytes().splitlines())
    return [at for at, line in found if field in line and parent.encode() in line]


def _claim_more(line: dict[str, Any]) -> None:
    for branch in line.get("branches", [line]):
        if "fork_record" in branch:
            branch["fork_record"] = 1000


def test_a_strangers_record_got_the_data_of_a_file_by_its_hash(
    exported: Path, target: Store
) -> None:
    """Only the data that is in the file is the stranger's."""
    target.session("mine").append(Record("private", files={"l": LARGE}))
    _without_blobs(exported)
    report = target.import_(exported)
    assert any("whose data is not its own" in one.what for one in report.damage)
    for info in target.sessions():
        records = target.get(info.id).records("imported:state", all_branches=True)
        assert all(not record.files for record in records)


def _without_blobs(path: Path) -> None:
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in whole if b'{"type":"blob"' not in line))


# ----------------------------------------------------------------------------------------- damage


def test_a_damaged_record_is_left_out_of_an_export(target: Store, tmp_path: Path) -> None:
    """It is reported, and everything else is there."""
    with holdfast.open("memory:") as store:
        fill(store)
        damage(store, "r2")
        damage(store, "s3")
        report = store.export(tmp_path / "x", redact=None)
        assert (report.messages, report.records) == (3, 8)
        found = [(one.session_id is None, one.seq) for one in store.damage]
        assert found == [(False, 1), (True, None)]
        assert "'r2'" in store.damage[0].what
    report_here = target.import_(tmp_path / "x", trust=True)
    what = [one.what for one in report_here.damage]
    assert what == ["a record of the store is missing at the end"]
    assert ids(target.session("talk")) == ["r1", "r3", "r5", "r6"]


def _put(**fields: Any) -> Callable[[dict[str, Any]], object]:  # noqa: ANN401 - any field
    return lambda line: line.update(fields)


def _deep(line: dict[str, Any]) -> None:
    value: Any = 1
    for _ in range(201):
        value = [value]
    line["data"] = value


def _lie(line: dict[str, Any]) -> None:
    line["files"]["l"]["size"] = 3


def _other_data(line: dict[str, Any]) -> None:
    line["files"]["s"] |= {"sha256": "0" * 64}


@pytest.mark.parametrize(
    "how",
    [
        _put(seq=0),  # behind a message that was passed
        _put(seq=7),  # behind one that the branch does not have
        _put(number=1),
        _put(number=0),
        _put(number=2**31),
        _put(branch=9),
        _put(kind=""),
        _put(kind="x" * 5000),
        _put(id="r1"),
        _put(extra=1),
        _deep,
        _lie,
        _other_data,
    ],
    ids=[
        *("passed", "beyond", "not growing", "no number", "out of range", "no branch", "no kind"),
        *("long kind", "same id", "unknown field", "too deep", "size", "hash"),
    ],
)
def test_a_bad_line_costs_one_record(
    exported: Path, empty: Store, how: Callable[[dict[str, Any]], object]
) -> None:
    """It is left out, and the messages and records around it keep their places."""
    change(exported, find(exported, type="record", id="r2"), how)
    report = empty.import_(exported, trust=True)
    assert report.damage
    assert report.messages == 3
    assert report.records == 7
    assert ids(empty.session("talk")) == ["r1", "r3", "r5", "r6"]
    assert [m.id for m in empty.session("talk").messages()] == ["m1"]
    assert empty.verify() == []


def test_a_line_that_was_damaged(exported: Path, empty: Store) -> None:
    """Also the only record of a branch that has no message."""
    flip(exported, find(exported, type="record", id="r5"))
    report = empty.import_(exported, trust=True)
    assert any("does not match its checksum" in one.what for one in report.damage)
    assert ids(empty.session("talk")) == ["r1", "r2", "r3", "r6"]
    assert ids(empty.session("fork")) == ["r1", "r8"]
    assert empty.verify() == []


def test_a_message_that_is_lost_leaves_the_state_behind_it(exported: Path, empty: Store) -> None:
    flip(exported, find(exported, type="message", id="m1"))
    empty.import_(exported, trust=True)
    talk = empty.session("talk")
    assert [message.status for message in talk.messages()] == ["damaged"]
    assert ids(talk) == ["r1", "r2", "r3", "r5", "r6"]


@pytest.mark.parametrize("field", ["fork_record", "parent"])
def test_a_branch_that_starts_nowhere(exported: Path, empty: Store, field: str) -> None:
    """On a record it must have a parent, and start where that one starts, or later."""
    whole = exported.read_bytes().splitlines()
    for at, line in enumerate(whole):
        if b'"reason":"rewind"' in line and b'"fork_record"' in line:
            change(exported, at, lambda found: _strip(found, field))
    report = empty.import_(exported, trust=True)
    assert any("the session was not imported" in one.what for one in report.damage)
    assert empty.verify() == []


def _strip(line: dict[str, Any], field: str) -> None:
    for branch in line.get("branches", [line]):
        if branch["reason"] == "rewind":
            branch.pop(field, None)
            branch.pop("fork_seq", None)


def test_cut_off_anywhere(exported: Path, source: Store) -> None:
    """What is left is imported, with the state that belongs to it."""
    whole = exported.read_bytes().splitlines(keepends=True)
    talk = ids(source.session("talk"))
    longest = 0
    for end in range(2, len(whole)):
        exported.write_bytes(b"".join(whole[:end]))
        with holdfast.open("memory:") as target:
            target.import_(exported, trust=True)
            assert target.verify() == []
            for info in target.sessions():
                if info.key == "talk":
                    found = ids(target.get(info.id))
                    assert found == talk[: len(found)] or "r4" in found
                    longest = max(longest, len(found))
    assert longest == len(talk)
