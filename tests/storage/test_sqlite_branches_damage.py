"""Branches, forks and stubs of purged sessions: damage found by `verify`, repaired by `salvage`.

Stores are made by random sequences of operations (`stories`), so that everything they can leave
behind occurs; each illegal state is then made by hand in a small family of sessions that share
histories.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import holdfast
from holdfast import File, Message, Record, codec
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.repair.verify import verify_file
from tests.storage.damage_cases import (
    Content,
    carried,
    check_all,
    check_case,
    content_of,
    copy_store,
    flipped,
    put,
    seal,
    tamper,
)
from tests.storage.random_stores import TENANTS, told, write_story

PAGE = 4096
STEPS = 150
EVERYBODY = (*TENANTS, "salvaged", "salvaged 2")


def _of(path: Path) -> Content:
    content = content_of(path)
    assert content is not None
    return content


def _floors(content: Content) -> list[tuple[Any, ...]]:
    return [row for row in content["meta"] if row[1].startswith(b"activity of ")]


# ------------------------------------------------------------------------------- legal stores


@pytest.mark.parametrize("seed", range(10))
def test_whatever_was_done_a_store_is_sound_and_is_salvaged_and_copied_whole(
    tmp_path: Path, seed: int
) -> None:
    path, target, copy = (tmp_path / name for name in ("a.db", "b.db", "c.db"))
    write_story(path, seed, STEPS)
    assert verify_file(path) == []
    report = salvage(path, target)
    assert (report.damage, report.quarantined) == ((), 0)
    with holdfast.open(path) as store:
        store.backup(copy)
        counts = store.stats()
    before = told(path)
    assert told(target) == before
    assert told(copy) == before
    assert carried(_of(target)) == carried(_of(path))
    assert _floors(_of(target)) == _floors(_of(path))
    with holdfast.open(target) as store:
        now = store.stats()
    assert (now.sessions, now.branches, now.messages) == (
        counts.sessions,
        counts.branches,
        counts.messages,
    )
    assert verify_file(target) == []


def test_the_stories_leave_behind_all_that_there_can_be(tmp_path: Path) -> None:
    """Else the test above proves little."""
    wanted = {
        "a stub": "FROM sessions WHERE purged_at IS NOT NULL",
        "a stub of a stub": (
            "FROM branches b JOIN branches p ON p.n = b.parent JOIN sessions s ON s.n = b.session "
            "JOIN sessions t ON t.n = p.session WHERE s.purged_at AND t.purged_at AND s.n <> t.n"
        ),
        "a stub that has lost a branch": (
            "FROM branches b JOIN sessions s ON s.n = b.session WHERE purged_at AND number > "
            "(SELECT count(*) FROM branches c WHERE c.session = b.session)"
        ),
        "a name of nobody": (
            "FROM sessions s WHERE parent IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM sessions t WHERE t.id = s.parent)"
        ),
        "a tombstone": 'FROM messages WHERE body LIKE \'%"status":"erased"%\'',
        "a summary": "FROM messages WHERE body LIKE '%\"covers\":%'",
        "a start moved back": "FROM branches WHERE asked_seq > fork_seq",
        "a trashed session": "FROM sessions WHERE trashed_at IS NOT NULL",
        "a floor of activity": "FROM meta WHERE name LIKE 'activity of %'",
        "a use of a blob": "FROM blob_uses",
        "a use of a blob by a record": "FROM record_blobs",
        "a record of the store": "FROM store_records WHERE body IS NOT NULL",
        "a record of the store that was replaced": "FROM store_records WHERE body IS NULL",
        "a record of a stub": (
            "FROM records r JOIN branches b ON b.n = r.place >> 32 JOIN sessions s "
            "ON s.n = b.session WHERE purged_at IS NOT NULL"
        ),
        "a start behind records without a message": (
            "FROM branches b JOIN branches p ON p.n = b.parent WHERE p.fork_seq = b.fork_seq"
        ),
        "numbers of dropped records": (
            "FROM heads h WHERE records > coalesce((SELECT max(place) & 4294967295 FROM records "
            "WHERE place >> 32 = h.branch), 0)"
        ),
    }
    missing = set(wanted)
    for seed in range(10):
        path = tmp_path / f"{seed}.db"
        write_story(path, seed, STEPS)
        connection = apsw.Connection(str(path))
        there = {name for name in missing if connection.execute(f"SELECT 1 {wanted[name]}").get}
        connection.close()
        missing -= there
    assert not missing


# ------------------------------------------------------------------------------------ rows lost


class Branch(NamedTuple):
    """A branch as the file has it."""

    n: int
    session: int
    number: int
    parent: int | None
    fork_seq: int


def _branches(path: Path) -> dict[int, Branch]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute("SELECT n, session, number, parent, fork_seq FROM branches")
    branches = {row[0]: Branch(*row) for row in found}
    connection.close()
    return branches


LOST = {"sessions": "n", "heads": "session", "branches": "n", "messages": "place"}


def _lose(path: Path, chance: random.Random) -> dict[str, set[int]]:
    """Delete a few rows; return them."""
    lost: dict[str, set[int]] = {table: set() for table in LOST}
    connection = apsw.Connection(str(path))
    for _ in range(chance.randint(1, 4)):
        table = chance.choice([*LOST, "branches"])
        every = f"SELECT {LOST[table]} FROM {table} ORDER BY 1"  # noqa: S608
        key = chance.choice([row[0] for row in connection.execute(every)])
        connection.execute(f"DELETE FROM {table} WHERE {LOST[table]} = ?", (key,))  # noqa: S608
        lost[table].add(key)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return lost


def _way(branches: dict[int, Branch], leaf: int, seq: int) -> list[int]:
    """The branches from the one that holds a message of a history to the newest, which shows it."""
    way = [leaf]
    while seq <= branches[way[-1]].fork_seq:
        parent = branches[way[-1]].parent
        assert parent is not None
        way.append(parent)
    return way[::-1]


def _same(one: Message, two: Message) -> bool:
    """Compare what was said. A turn's name has the session's, which may be lost."""
    return (one.id, one.role, one.parts, one.status) == (two.id, two.role, two.parts, two.status)


@pytest.mark.parametrize("seed", range(16))
def test_lost_rows_cost_only_what_they_held(tmp_path: Path, seed: int) -> None:
    path, target = tmp_path / "a.db", tmp_path / "b.db"
    write_story(path, seed % 8, STEPS)
    branches, before = _branches(path), told(path)
    leaves = {(branch.session, branch.number): branch.n for branch in branches.values()}
    lost = _lose(path, random.Random(seed))
    assert verify_file(path)
    report = salvage(path, target, copy_store)
    assert report.damage
    assert verify_file(target) == []
    after = {number: facts for (_, number), facts in told(target, EVERYBODY).items()}
    compared = 0
    for (_, session), (_, infos, _, _, _, histories, *_) in before.items():
        for number, history in histories.items():
            leaf, active = leaves[session, number], number == infos[-1].number
            if leaf in lost["branches"] and (not active or session in lost["heads"]):
                continue  # Nothing shows any more which tenant it belonged to.
            now = after[session][5][number]
            for seq, message in enumerate(history, 1):
                way = _way(branches, leaf, seq)
                hit = way[0] << 32 | seq in lost["messages"] or lost["branches"] & set(way[1:])
                assert hit or _same(now[seq - 1], message), (lost, session, number, seq)
                compared += not hit
    assert compared > 0


# ----------------------------------------------------------------------------------- flipped bytes


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_byte_is_noticed_or_changes_nothing(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "sound.db"
    write_story(path, seed, STEPS)
    data, truth, chance = path.read_bytes(), _of(path), random.Random(seed)
    places = [(chance.randrange(len(data)), 1 << chance.randrange(8)) for _ in range(12)]
    check_all(tmp_path, ((f"{at} ^ {bit}", flipped(data, at, bit)) for at, bit in places), truth)
    for target in tmp_path.glob("*/b.db"):
        told(target, EVERYBODY)


@pytest.mark.parametrize("table", ["sessions", "heads", "branches", "meta", "blob_uses"])
def test_a_flipped_byte_of_a_row_is_noticed_or_changes_nothing(tmp_path: Path, table: str) -> None:
    path = tmp_path / "sound.db"
    write_story(path, 3, STEPS)
    data, truth, chance = path.read_bytes(), _of(path), random.Random(table)
    places = chance.sample(_bytes_of(path, table), k=8)
    cases = ((f"{at}", flipped(data, at, 1 << chance.randrange(8))) for at in places)
    check_all(tmp_path, cases, truth)
    for target in tmp_path.glob("*/b.db"):
        told(target, EVERYBODY)


def test_a_title_into_which_a_null_was_flipped_is_salvaged_with_its_session(tmp_path: Path) -> None:
    """Text with a NUL is stored as a blob: as text, its row would be damaged in the copy too."""
    path, copy = tmp_path / "sound.db", tmp_path / "copy.db"
    with holdfast.open(path) as store:
        store.session("k", title="two words").append(Message.user("hello"))
    path.write_bytes(path.read_bytes().replace(b"two words", b"two\0words"))
    with holdfast.open(path, readonly=True) as store:
        store.salvage(copy)
    with holdfast.open(copy) as store:
        assert store.verify() == []
        assert store.get("k").info().title == "two\0words"


def _bytes_of(path: Path, table: str) -> list[int]:
    """Where in the file the rows of a table are."""
    connection = apsw.Connection(str(path))
    query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'"
    pages = [row[0] for row in connection.execute(query, (table,))]
    connection.close()
    data = path.read_bytes()
    found: list[int] = []
    for page in pages:
        start = (page - 1) * PAGE
        content = int.from_bytes(data[start + 5 : start + 7], "big")
        found += range(start + content, start + PAGE)
    return found


@pytest.mark.long
def test_very_many_damaged_stories(tmp_path: Path) -> None:
    chance = random.Random()
    for number in range(40):
        path = tmp_path / f"{number}.db"
        write_story(path, chance.randrange(1 << 30), STEPS)
        data, truth, folder = path.read_bytes(), _of(path), tmp_path / f"cases of {number}"
        folder.mkdir()
        places = [(chance.randrange(len(data)), 1 << chance.randrange(8)) for _ in range(20)]
        check_all(folder, ((f"{at} ^ {bit}", flipped(data, at, bit)) for at, bit in places), truth)


# ------------------------------------------------------------------------------- illegal states


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small store of sessions that share histories; see the numbers below."""
    path = tmp_path_factory.mktemp("family") / "a.db"
    with holdfast.open(path) as store:
        root = store.session("root", title="Root")  # Session 1: branch 1, left at 6, and branch 2.
        root.append(*(Message.user(f"root {n}") for n in range(6)))
        root.append(Record("state", data=1), Record("state", data=2))
        root.rewind(3)
        with root.turn() as turn:
            turn.user("another way")
            turn.assistant("indeed")
        fork = root.fork(holdfast.Head(1, 5), key="fork")  # Session 2: branch 3, after 5 of 1.
        fork.append(Message.user("fork 6"), Message.user("fork 7"))
        fork.append(Record("state", data=3), Record("state", data=4))
        gone = store.session("gone")  # Session 3: branch 4, a stub up to message 3.
        gone.append(*(Message.user(f"gone {n}") for n in range(5)))
        heir = gone.fork(3, key="heir")  # Session 4: branch 5, after 3 of 4.
        heir.append(Message.user("heir 4"))
        data = File(name="f", mime="text/plain", data=b"file")
        erased = store.session("erased")  # Session 5: branch 6, a stub of two tombstones.
        erased.append(Message.user("erased 1"), Message.user([data]))
        erased.fork(key="keeper").append(Message.user([data]))  # Session 6: branch 7, and blob 1.
        parent = store.session("parent")  # Session 7: branch 8, purged without a trace.
        store.create(key="child", parent=parent, relation="delegate")  # Session 8: branch 9.
        store.purge(gone.id)
        store.purge(erased.id, forks="erase")
        store.purge(parent.id)
    with holdfast.open(path, tenant="other") as store:
        store.session("far").append(Message.user("far away"))  # Session 9: branch 10.
    with holdfast.open(path) as store:
        twig = store.session("fork").fork(key="twig")  # Session 10: branch 11, after 7 of 3.
        twig.append(Record("state", data=5))
        twig.fork(key="leaf")  # Session 11: branch 12, behind the record of 11.
    return path.read_bytes()


@pytest.fixture(scope="module")
def truth(family: bytes, tmp_path_factory: pytest.TempPathFactory) -> Content:
    return _of(put(tmp_path_factory.mktemp("truth") / "a.db", family))


LISTED = {"root", "fork", "heir", "keeper", "child", "twig", "leaf"}
ILLEGAL = {
    "records that no head counts": (
        "UPDATE heads SET records = 1 WHERE session = 2",
        "is beyond the head, which counts 1 records",
    ),
    "records behind a message that is not there": (
        """UPDATE heads SET seq = 6 WHERE session = 2;
           DELETE FROM messages WHERE place = 3 << 32 | 7""",
        "lies behind a message that is not on its branch",
    ),
    "more records of a parent than it has": (
        "UPDATE branches SET fork_record = 9 WHERE n = 11",
        "starts at a record that its parent does not have there",
    ),
    "records of a later message of a parent": (
        "UPDATE branches SET fork_record = 2 WHERE n = 3",
        "starts at a record that its parent does not have there",
    ),
    "a start behind records that are none": (
        "UPDATE branches SET fork_record = NULL WHERE n = 12",
        "starts at a message that its parent does not have",
    ),
    "a first branch that has records of none": (
        "UPDATE branches SET fork_record = 1 WHERE n = 1",
        "but names no parent",
    ),
    "a stub with a head": (
        """INSERT INTO heads SELECT 3, tenant, 4, 1, 3, 0, NULL, 0, activity + 1000, 0, 0, 0, 0, 0,
             0, NULL, 0, 0, 0, 0, NULL FROM heads WHERE session = 1""",
        "was purged but has a head",
    ),
    "a stub with a title": (
        "UPDATE sessions SET title = 'who' WHERE n = 3",
        "was purged but its title is still there",
    ),
    "a stub with metadata": (
        "UPDATE sessions SET metadata = '{\"a\":1}' WHERE n = 3",
        "was purged but its metadata is still there",
    ),
    "a stub with usage": (
        "INSERT INTO usage VALUES (3, 1, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
        "belongs to a session that was purged",
    ),
    "a stub that nobody needs": (
        """DELETE FROM heads WHERE session = 4; DELETE FROM sessions WHERE n = 4;
           DELETE FROM branches WHERE n = 5; DELETE FROM messages WHERE place >> 32 = 5""",
        "not exactly as long as its forks need",
    ),
    "a stub without branches": (
        "UPDATE branches SET session = 2, number = 2 WHERE n = 4",
        "no fork shares any of its messages",
    ),
    "a stub that is too long": (
        """UPDATE branches SET fork_seq = 2 WHERE n = 5; DELETE FROM messages WHERE place >> 32 = 5;
           UPDATE heads SET seq = 2 WHERE session = 4""",
        "not exactly as long as its forks need",
    ),
    "a stub that is none": (
        "UPDATE sessions SET purged_at = NULL WHERE n = 3",
        "head is missing",
    ),
    "a session that is no stub": (
        "UPDATE sessions SET purged_at = 1 WHERE n = 2",
        "was purged but has a head",
    ),
    "no head": ("DELETE FROM heads WHERE session = 2", "head is missing"),
    "no session": ("DELETE FROM sessions WHERE n = 1", "session number 1, which is missing"),
    "no stub": ("DELETE FROM sessions WHERE n = 3", "session number 3, which is missing"),
    "no parent": (
        "DELETE FROM branches WHERE n = 1",
        "starts at a message that its parent does not have",
    ),
    "no parent of a fork": (
        "DELETE FROM branches WHERE n = 4",
        "starts at a message that its parent does not have",
    ),
    "a parent that is not older": (
        "UPDATE branches SET parent = 7 WHERE n = 3",
        "starts at a message that its parent does not have",
    ),
    "a parent that is not older and holds it": (
        "UPDATE branches SET parent = 5, fork_seq = 4 WHERE n = 3",
        "starts at a message that its parent does not have",
    ),
    "a parent that does not hold it": (
        "UPDATE branches SET parent = 2, fork_seq = 3 WHERE n = 3",
        "starts at a message that its parent does not have",
    ),
    "a start without a parent": (
        "UPDATE branches SET parent = NULL WHERE n = 3",
        "names no parent",
    ),
    "a start behind the parent's end": (
        "UPDATE branches SET last_seq = 4 WHERE n = 1",
        "starts at a message that its parent does not have",
    ),
    "a parent of another tenant": (
        """UPDATE sessions SET tenant = 2, key = NULL WHERE n = 2;
           UPDATE heads SET tenant = 2, activity = 77 WHERE session = 2""",
        "another tenant",
    ),
    "a gap in the numbers": (
        """UPDATE branches SET number = 3 WHERE n = 2;
           UPDATE heads SET branch_no = 3 WHERE session = 1""",
        "has 2 branches, numbered up to 3",
    ),
    "a number that is none": (
        """UPDATE branches SET number = 70000 WHERE n = 2;
           UPDATE heads SET branch_no = 70000 WHERE session = 1""",
        "has 2 branches, numbered up to 70000",
    ),
    "an active branch that is not the newest": (
        """UPDATE heads SET branch = 1, branch_no = 1, seq = 6 WHERE session = 1;
           UPDATE branches SET last_seq = iif(n = 2, 5, NULL) WHERE session = 1""",
        "head is on branch 1, not on branch 2",
    ),
    "a head with another's number": (
        "UPDATE heads SET branch_no = 1 WHERE session = 1",
        "active branch is missing, or another session's",
    ),
    "a branch without an end": (
        "UPDATE branches SET last_seq = NULL WHERE n = 1",
        "its end is not recorded",
    ),
    "a stub's branch without an end": (
        "UPDATE branches SET last_seq = NULL WHERE n = 4",
        "its end is not recorded",
    ),
    "an active branch with an end": (
        "UPDATE branches SET last_seq = 5 WHERE n = 2",
        "is active, but its end is recorded",
    ),
    "a blob of an erased message": (
        "INSERT INTO blob_uses VALUES ((6 << 32) + 2, 1)",
        "a blob is recorded for the message, which does not reference it",
    ),
    "a blob of no message": (
        "INSERT INTO blob_uses VALUES ((99 << 32) + 2, 1)",
        "referenced by a missing message",
    ),
    "a floor that is no number": (
        "UPDATE meta SET value = 'x' WHERE name LIKE 'activity of %'",
        "in meta is not a valid number",
    ),
}


@pytest.mark.parametrize("fitting", [False, True], ids=["damaged", "written so"])
@pytest.mark.parametrize("what", ILLEGAL)
def test_what_is_illegal_is_named_and_mended(
    family: bytes, truth: Content, tmp_path: Path, what: str, fitting: bool
) -> None:
    """Also if every row matches its checksum: the rules hold by themselves."""
    statement, said = ILLEGAL[what]
    path = put(tmp_path / "c.db", family)
    tamper(path, statement, fitting=fitting)
    assert [found.what for found in verify_file(path) if said in found.what], verify_file(path)
    report = check_case(tmp_path, path.read_bytes(), truth)
    assert report is not None
    for session in told(tmp_path / "b.db", EVERYBODY).values():
        assert session[0].messages == len(session[5][session[1][-1].number])
    with holdfast.open(tmp_path / "b.db", durability="process") as store:
        for info in store.sessions(limit=50):
            store.get(info.id).append(Message.user("and on"))
            store.get(info.id).fork().append(Message.user("and on"))
        assert store.verify() == []


def test_a_family_is_legal_and_a_parent_is_only_a_name(family: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", family)
    assert verify_file(path) == []
    with holdfast.open(path) as store:
        assert [link.state for link in store.session("child").lineage()] == ["purged", "live"]
        assert [m.status for m in store.session("keeper").messages()] == [
            "erased",
            "erased",
            "complete",
        ]
    tamper(path, "UPDATE sessions SET parent = 'nobody' WHERE n = 2", fitting=True)
    assert verify_file(path) == []


def test_an_erased_message_of_which_something_is_left_is_named(
    family: bytes, tmp_path: Path
) -> None:
    path = put(tmp_path / "a.db", family)
    connection = apsw.Connection(str(path))
    name, body = connection.execute("SELECT id, body FROM messages WHERE place = (6 << 32) + 1").get
    left = body.replace("}", ',"parts":[{"type":"text","text":"left"}]}')
    crc = codec.checksum(name, None, left.encode())
    query = "UPDATE messages SET body = ?, crc = ? WHERE place = (6 << 32) + 1"
    connection.execute(query, (left, crc))
    seal(connection)
    connection.close()
    assert left != body
    assert [(found.what, found.seq) for found in verify_file(path)] == [
        ("the message was erased, but has content left", 1)
    ]


# -------------------------------------------------------------------------- forks of what is lost


def _texts(path: Path, key: str, tenant: str = "default") -> list[str]:
    with holdfast.open(path, tenant=tenant) as store:
        return [message.text for message in store.session(key, create=False).messages()]


FORK = ["root 0", "root 1", "root 2", "root 3", "root 4", "fork 6", "fork 7"]
HEIR = ["gone 0", "gone 1", "gone 2", "heir 4"]


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM sessions WHERE n = 1",
        "DELETE FROM sessions WHERE n IN (1, 3)",
        "DELETE FROM sessions WHERE n = 1; DELETE FROM heads WHERE session = 1",
        "DELETE FROM heads",
        "DELETE FROM branches WHERE n IN (1, 4)",
        "UPDATE sessions SET tenant = 99 WHERE n IN (1, 3)",
        "DELETE FROM tenants WHERE n = 2",
    ],
)
def test_forks_of_a_lost_session_are_read_as_they_were(
    family: bytes, tmp_path: Path, lost: str
) -> None:
    path, target = put(tmp_path / "a.db", family), tmp_path / "b.db"
    tamper(path, lost)
    salvage(path, target)
    assert verify_file(target) == []
    assert _texts(target, "fork") == FORK
    assert _texts(target, "heir") == HEIR


def test_what_a_purge_left_is_not_listed_because_its_row_is_lost(
    family: bytes, tmp_path: Path
) -> None:
    """Neither as a stub's row, nor as its branch: what was purged does not come back."""
    lost = ("DELETE FROM sessions WHERE n = 3", "DELETE FROM branches WHERE n = 4")
    for number, statement in enumerate(lost):
        path, target = put(tmp_path / f"a{number}.db", family), tmp_path / f"b{number}.db"
        tamper(path, statement)
        salvage(path, target)
        with holdfast.open(target) as store:
            listed = store.sessions(limit=50)
            assert {info.key for info in listed} == LISTED
        assert _texts(target, "heir") == HEIR


def test_a_lost_name_of_a_tenant_mixes_nobody(family: bytes, tmp_path: Path) -> None:
    path, target = put(tmp_path / "a.db", family), tmp_path / "b.db"
    tamper(path, "DELETE FROM tenants")
    report = salvage(path, target)
    assert any("'salvaged 2' now" in found.what for found in report.damage)
    assert verify_file(target) == []
    assert _texts(target, "far", "salvaged 2") == ["far away"]
    with holdfast.open(target) as store:
        listed = {info.key for info in store.sessions(limit=50)}
    assert listed == LISTED


def test_large_messages_of_a_lost_branch_keep_their_blobs(family: bytes, tmp_path: Path) -> None:
    """Blobs show the tenant, when several tenants share the file and nothing else shows it."""
    path, target = put(tmp_path / "a.db", family), tmp_path / "b.db"
    with holdfast.open(path, tenant="other") as store:
        store.session("far").append(Message.user("large " * 20_000))
    tamper(path, "DELETE FROM branches WHERE n = 10; DELETE FROM heads WHERE session = 9")
    salvage(path, target)
    assert verify_file(target) == []
    with holdfast.open(target, tenant="other") as store:
        read = [store.get(info.id).messages() for info in store.sessions(limit=9)]
    assert [[message.text for message in some] for some in read if some] == [
        ["far away", "large " * 20_000]
    ]


def test_a_lost_branch_leaves_its_number_to_an_empty_one(family: bytes, tmp_path: Path) -> None:
    path, target = put(tmp_path / "a.db", family), tmp_path / "b.db"
    with holdfast.open(path) as store:
        root = store.session("root")
        root.rewind(4)
        root.append(Message.user("a third way"))
    tamper(path, "DELETE FROM branches WHERE session = 1 AND number = 1")
    tamper(path, "DELETE FROM messages WHERE place >> 32 = 1 AND place & 4294967295 > 5")
    report = salvage(path, target)
    assert any("branch 1 is lost" in found.what for found in report.damage)
    with holdfast.open(target) as store:
        root = store.session("root")
        assert [branch.number for branch in root.branches()] == [1, 2, 3]
        assert [message.text for message in root.messages()][-1] == "a third way"
        assert [message.text for message in root.messages(branch=1)] == FORK[:5]


def test_a_floor_of_activity_is_copied(family: bytes, tmp_path: Path) -> None:
    """A follower of the store that saw a purged session's number misses nothing afterwards."""
    path, target = put(tmp_path / "a.db", family), tmp_path / "b.db"
    salvage(path, target)
    floors = _floors(_of(path))
    assert floors
    assert _floors(_of(target)) == floors
