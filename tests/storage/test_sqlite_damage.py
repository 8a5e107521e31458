"""Damaged stores: found by `verify`, never read as an empty history, copied by `salvage`.

One sound store, in which every table has rows, is built once; every case damages a copy of its
file.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from _pytest.mark import ParameterSet

import holdfast
from holdfast import File, Goal, Message, Record, ToolCall, Usage
from holdfast.errors import Damaged, Invalid, StoreUnavailable
from holdfast.storage.sqlite.migrations import build_store
from holdfast.storage.sqlite.repair import verify as verifying
from holdfast.storage.sqlite.repair.column_rules import (
    BRANCHES,
    HEADS,
    MESSAGES,
    QUARANTINE,
    RECORDS,
    SESSION_TABLES,
    SESSIONS,
    STORE_RECORDS,
    USAGE,
)
from holdfast.storage.sqlite.repair.row_scan import (
    KeyedTable,
    MisfiledRow,
    Row,
    SessionKeyedTable,
    UnreadableRange,
    open_damaged,
    scan_rows,
)
from holdfast.storage.sqlite.repair.salvage import salvage
from holdfast.storage.sqlite.repair.verify import verify, verify_file
from holdfast.storage.sqlite.tables import TABLES as CHECKSUMMED_TABLES
from tests.storage.damage_cases import (
    TABLES,
    Content,
    carried,
    check_all,
    check_case,
    content_of,
    copy_store,
    flipped,
    put,
    seal,
    session_ids,
    tamper,
)

PAGE = 4096


# ------------------------------------------------------------------------------------ the store


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small store in which everything occurs."""
    path = tmp_path_factory.mktemp("sound") / "a.db"
    with holdfast.open(path) as store:
        _talk(store)
        with store.session("open").turn() as turn:
            turn.user("still running")
            with turn.stream() as draft:
                draft.write("partial text")
                _wait_for_draft(path)
                store.session("open").enqueue("and then?")
                store.session("open").enqueue([File(name="q", mime="text/plain", data=b"wait")])
                long = store.session("long")
                long.rewind(10)
                long.append(Record("state", data="there is no message on this branch"))
                long.rewind(10)
                long.append(*(Message.user(f"another way {n}") for n in range(4)))
                _leave_behind(path)
                return path.read_bytes()


def _talk(store: holdfast.Store) -> None:
    long = store.session("long", title="Parcel", scope="bot", metadata={"a": {"b": 1}})
    for n in range(40):
        long.append(Message.user(f"message {n} " + "lorem ipsum " * (n % 30)))
    long.append(Message.assistant("x" * 20_000, usage=Usage(input=5, output=7), model="m"))
    long.append(Message.user([File(name="f.txt", mime="text/plain", data=b"file data" * 100)]))
    long.append(Message.assistant("big " * 20_000))
    long.update(goal=Goal("ship it"))
    with store.session("tools").turn(model="m", run_id="run-1") as turn:
        turn.user("weather?")
        turn.assistant("", tool_calls=[ToolCall("c1", "weather", {"city": "Oslo"})])
        turn.tool_started("c1")
        turn.tool("c1", "rain")
    store.session("nul\0 and \ud800").append(Message.user("lone \udc80 surrogate"))
    _keep_state(store, long)
    for n in range(12):
        store.create(title=f"short {n}").append(Message.user("hello"), Message.assistant("hi"))


def _keep_state(store: holdfast.Store, session: holdfast.Session) -> None:
    """Store records of a session and of the store, with large data and with files."""
    for n in range(12):
        session.append(Record("state", key=f"key {n % 3}", data={"n": n, "text": "state " * n}))
    session.append(Record("large", data="data " * 20_000))
    file = File(name="s", mime="text/plain", data=b"file of a record" * 100)
    session.append(Record("nul\0", key="lone \ud800", files={"a": file}))
    shared = File(name="s", mime="text/plain", data=b"file of the store" * 100)
    for n in range(3):
        session.append(Record("profile", key="u1", data=n, scope="bot", files={"a": shared}))
    store.session("tools").append(Record("open", scope=None, files={"a": file}))


def _wait_for_draft(path: Path) -> None:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    until = time.monotonic() + 60
    while connection.execute("SELECT count(*) FROM drafts").get < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    connection.close()


def _leave_behind(path: Path) -> None:
    """Make it look as after a crash: the process that holds the open turn is gone."""
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute("""
            UPDATE turns SET lease_until = 0, holder =
              '{"host":"h","pid":1,"boot":"b","namespace":"n","started":"s"}'
            WHERE state = 'open'""")
        connection.execute("INSERT INTO quarantine VALUES (1, 'messages', 'was torn', x'00ff', 0)")
        seal(connection)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.fixture(scope="module")
def truth(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> Content:
    content = content_of(put(tmp_path_factory.mktemp("truth") / "truth.db", sound))
    assert content is not None
    return content


# --------------------------------------------------------------------------------- every damage


def _some_of(count: int, *, always: int) -> list[ParameterSet]:
    """Return so many seeds, of which all but the first few run only in long runs."""
    late = pytest.mark.long
    return [pytest.param(seed, marks=late if seed >= always else ()) for seed in range(count)]


def test_a_sound_store_has_no_damage_and_is_salvaged_whole(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    report = check_case(tmp_path, sound, truth)
    assert report is not None
    assert report.damage == ()
    assert report.quarantined == 0
    assert (report.sessions, report.messages) == (16, len(truth["messages"]))
    assert (report.turns, report.blobs) == (2, 5)
    salvaged = content_of(tmp_path / "b.db")
    assert salvaged is not None
    assert carried(salvaged) == carried(truth)
    assert salvaged["quarantine"] == truth["quarantine"]


@pytest.mark.parametrize("seed", _some_of(4, always=2))
def test_a_flipped_byte_is_noticed_or_changes_nothing(
    sound: bytes, truth: Content, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    pages = range(seed, len(sound) // PAGE, 4)
    places = [(page * PAGE + chance.randrange(PAGE), 1 << chance.randrange(8)) for page in pages]
    cases = ((f"{at} ^ {bit}", flipped(sound, at, bit)) for at, bit in places)
    check_all(tmp_path, cases, truth)


@pytest.mark.parametrize("seed", _some_of(2, always=1))
def test_a_flipped_byte_in_the_head_of_a_page_is_noticed_or_changes_nothing(
    sound: bytes, truth: Content, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    pages = range(1 + seed, len(sound) // PAGE, 4)
    places = [(page * PAGE + chance.randrange(24), 1 << chance.randrange(8)) for page in pages]
    cases = ((f"{at} ^ {bit}", flipped(sound, at, bit)) for at, bit in places)
    check_all(tmp_path, cases, truth)


def test_a_flipped_byte_in_the_file_header_is_noticed_or_changes_nothing(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    chance = random.Random(7)
    cases = ((f"{at}", flipped(sound, at, 1 << chance.randrange(8))) for at in range(0, 116, 5))
    check_all(tmp_path, cases, truth)


@pytest.mark.parametrize("seed", _some_of(2, always=1))
def test_a_truncated_file_keeps_what_is_left(
    sound: bytes, truth: Content, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    pages = range(seed, len(sound) // PAGE, 4)
    ends = [page * PAGE + chance.choice([0, 0, 1, 100, 2048]) for page in pages]
    check_all(tmp_path, ((f"cut at {end}", sound[:end]) for end in ends if end), truth)


def test_a_destroyed_page_costs_only_itself(sound: bytes, truth: Content, tmp_path: Path) -> None:
    pages = range(1, len(sound) // PAGE, 3)
    cases = (
        (f"page {page}", sound[: page * PAGE] + bytes(PAGE) + sound[(page + 1) * PAGE :])
        for page in pages
    )
    check_all(tmp_path, cases, truth)


def _row_bytes(data: bytes, path: Path) -> dict[str, list[int]]:
    """Where in the file the rows of each table are, except those of large tables."""
    connection = apsw.Connection(str(put(path, data)))
    pages: list[Any] = connection.execute("""
        SELECT s.name, d.pageno FROM dbstat d JOIN sqlite_schema s ON s.name = d.name
        WHERE s.type = 'table' AND d.pagetype = 'leaf' AND s.name NOT LIKE 'sqlite%'
          AND s.name NOT IN ('messages', 'blobs')""").fetchall()
    connection.close()
    found: dict[str, list[int]] = {}
    for table, page in pages:
        start = (page - 1) * PAGE
        content = int.from_bytes(data[start + 5 : start + 7], "big")
        found.setdefault(table, []).extend(range(start + content, start + PAGE))
    return found


def _assert_noticed(path: Path, data: bytes, truth: Content, case: str) -> None:
    assert verify_file(put(path, data)) or content_of(path) == truth, case


def test_a_flipped_byte_of_any_row_of_any_table_is_noticed_or_changes_nothing(
    sound: bytes, truth: Content, tmp_path: Path
) -> None:
    chance = random.Random(1)
    tables = _row_bytes(sound, tmp_path / "pages.db")
    assert set(tables) == set(truth) - {"messages", "blobs"}
    for table, places in tables.items():
        # A checksum detects any bit it covers equally well; the long test flips every bit.
        count = 12 if table in CHECKSUMMED_TABLES else 60
        for at in chance.sample(places, k=min(count, len(places))):
            bit = 1 << chance.randrange(8)
            case = f"{table}: {at} ^ {bit}"
            _assert_noticed(tmp_path / "a.db", flipped(sound, at, bit), truth, case)


@pytest.mark.long
@pytest.mark.parametrize("bit", [1 << n for n in range(8)])
def test_every_flipped_bit_of_every_row_is_noticed_or_changes_nothing(
    sound: bytes, truth: Content, tmp_path: Path, bit: int
) -> None:
    for table, places in _row_bytes(sound, tmp_path / "pages.db").items():
        for at in places:
            case = f"{table}: {at} ^ {bit}"
            _assert_noticed(tmp_path / "a.db", flipped(sound, at, bit), truth, case)


def _histories(data: bytes, path: Path) -> dict[str, list[Message]]:
    with holdfast.open(put(path, data)) as store:
        listed = [info.id for info in store.sessions()]
        return {name: store.get(name).messages() for name in listed}


def _write_everywhere(path: Path, histories: dict[str, list[Message]]) -> tuple[int, int]:
    """Verify, then append to every session; return how many were refused, and how many not."""
    accepted = []
    try:
        store = holdfast.open(path)
    except (Damaged, Invalid):
        return len(histories), 0
    with store:
        blocking = [damage for damage in store.verify() if damage.blocking]
        refused = {damage.session_id for damage in blocking}
        for name in histories:
            try:
                store.get(name).append(Message.user("more"))
            except Damaged:
                continue
            accepted.append(name)
        assert not refused & {None, *accepted} or not accepted, "a damaged session was written to"
        with suppress(Damaged):
            store.create().append(Message.user("new"))
            assert None not in refused, "a damaged file was written to"
    with holdfast.open(path) as store:
        for name in accepted:
            *old, new = store.get(name).messages()
            lost = [one for one in old if one.status == "damaged"]  # by a blob
            assert not lost or store.damage
            assert [one for one in histories[name] if one.id not in {m.id for m in lost}] == [
                one for one in old if one not in lost
            ]
            assert new.text == "more"
    return len(histories) - len(accepted), len(accepted)


def test_after_damage_was_found_every_append_is_refused_or_exact(
    sound: bytes, tmp_path: Path
) -> None:
    """What holds damage is not written to, and all else is, with every message as it was."""
    chance = random.Random(6)
    histories = _histories(sound, tmp_path / "sound.db")
    tables = _row_bytes(sound, tmp_path / "pages.db")
    places = [at for rows in tables.values() for at in chance.sample(rows, k=2)]
    places += [page * PAGE + chance.randrange(PAGE) for page in range(1, len(sound) // PAGE, 4)]
    refused = accepted = 0
    for number, at in enumerate(places):
        case = put(tmp_path / f"{number}.db", flipped(sound, at, 1 << chance.randrange(8)))
        try:
            counts = _write_everywhere(case, histories)
        except BaseException as error:
            error.add_note(f"case {number}: byte {at}")
            raise
        refused, accepted = refused + counts[0], accepted + counts[1]
    assert min(refused, accepted) > len(places)


@pytest.mark.parametrize("table", ["sessions", "heads", "branches", "turns", "queue"])
def test_a_row_with_a_flipped_byte_is_salvaged(
    sound: bytes, truth: Content, tmp_path: Path, table: str
) -> None:
    chance = random.Random(table)
    places = chance.sample(_row_bytes(sound, tmp_path / "pages.db")[table], k=8)
    cases = ((f"{at}", flipped(sound, at, 1 << chance.randrange(8))) for at in places)
    check_all(tmp_path, cases, truth)


@pytest.mark.long
def test_very_many_flipped_bytes(sound: bytes, truth: Content, tmp_path: Path) -> None:
    chance = random.Random()
    places = [(chance.randrange(len(sound)), 1 << chance.randrange(8)) for _ in range(300)]
    cases = ((f"{at} ^ {bit}", flipped(sound, at, bit)) for at, bit in places)
    check_all(tmp_path, cases, truth)


# ------------------------------------------------------------------------- what exactly is reported


Spoil = str
SPOILED: dict[str, tuple[Spoil, str, bool]] = {
    "a session": ("DELETE FROM sessions WHERE n = 2", "session number 2", False),
    "a head": ("DELETE FROM heads WHERE session = 2", "head is missing", True),
    "a branch": ("DELETE FROM branches WHERE session = 2", "active branch is missing", True),
    "a parent branch": (
        "DELETE FROM branches WHERE n = 1",
        "starts at a message that its parent does not have",
        True,
    ),
    "a message inside": (
        "DELETE FROM messages WHERE place = (2 << 32) + 2",
        "messages 2 to 2 are missing",
        True,
    ),
    "all messages": (
        "DELETE FROM messages WHERE place >> 32 = 2",
        "messages 1 to 3 are missing",
        True,
    ),
    "a head that counts too few": (
        "UPDATE heads SET seq = 0 WHERE session = 2",
        "continues to message 3",
        True,
    ),
    "a head that counts too many": (
        "UPDATE heads SET seq = 70000 WHERE session = 2",
        "messages 4 to 70000 are missing",
        True,
    ),
    "a head of another's branch": (
        "UPDATE heads SET branch = 3 WHERE session = 2",
        "active branch is missing, or another",
        True,
    ),
    "a branch of another session": (
        "UPDATE branches SET session = 3, number = 9 WHERE n = 2",
        "active branch is missing, or another",
        True,
    ),
    "a fork that starts too late": (
        "UPDATE branches SET fork_seq = 13 WHERE parent IS NOT NULL",
        "at a position outside its branch",
        True,
    ),
    "a changed body": (
        "UPDATE messages SET body = replace(body, 'weather', 'whether') WHERE place >> 32 = 2",
        "does not match its checksum",
        True,
    ),
    "a body that is no text": (
        "UPDATE messages SET body = CAST(x'7bff' AS TEXT) WHERE place = (2 << 32) + 1",
        "does not match its checksum",
        True,
    ),
    "a body that became a blob": (
        "UPDATE messages SET body = CAST(body AS BLOB) WHERE place = (2 << 32) + 1",
        "is not stored as it was written",
        True,
    ),
    "a turn that is none": (
        "UPDATE messages SET turn = 0 WHERE place = (3 << 32) + 1",
        "is not stored as it was written",
        True,
    ),
    "an id that is no text": (
        "UPDATE messages SET id = CAST(x'7bff' AS TEXT) WHERE place = (2 << 32) + 1",
        "has an invalid id, turn or body",
        True,
    ),
    "a blob": ("DELETE FROM blobs WHERE n = 2", "a part stored as a blob is missing", True),
    "a blob's bytes": (
        "UPDATE blobs SET data = x'00' WHERE n = 2",
        "does not match its hash",
        False,
    ),
    "the use of a blob": (
        "DELETE FROM blob_uses",
        "references a blob that is not recorded for it",
        True,
    ),
    "the goal": (
        "UPDATE sessions SET goal = '{]' WHERE n = 1",
        "goal of the row of sessions",
        True,
    ),
    "the metadata": ("UPDATE sessions SET metadata = '[]' WHERE n = 1", "metadata", True),
    "a time": ("UPDATE sessions SET created_at = 1 << 62 WHERE n = 1", "created_at", True),
    "the holder": ("UPDATE turns SET holder = 'x' WHERE state = 'open'", "holder", True),
    "the open turn": ("DELETE FROM turns WHERE state = 'open'", "open turn 1 is missing", True),
    "the name of the open turn": (
        "UPDATE heads SET open_turn = NULL WHERE open_turn IS NOT NULL",
        "turn 1 is open",
        True,
    ),
    "the state of a turn": ("UPDATE turns SET state = 'opem'", "state of a row of turns", True),
    "the beginning of a draft": (
        "UPDATE drafts SET record = '{' WHERE number = 0",
        "a chunk of a draft",
        True,
    ),
    "the count of queued input": (
        "UPDATE heads SET queued = 7 WHERE session = 2",
        "counts 7 queued inputs and has",
        True,
    ),
    "queued input": ("UPDATE queue SET body = '{'", "queued input", True),
    "an unknown branch": (
        "UPDATE messages SET place = place + (7000 << 32) WHERE place >> 32 = 2",
        "messages belong to branch 7002, which is missing",
        False,
    ),
}


@pytest.mark.parametrize("fitting", [False, True], ids=["damaged", "written so"])
@pytest.mark.parametrize("what", SPOILED)
def test_what_is_broken_is_named_and_mended(
    sound: bytes, truth: Content, tmp_path: Path, what: str, fitting: bool
) -> None:
    """Also if every row matches its checksum: the rules hold by themselves."""
    statement, said, named = SPOILED[what]
    path = put(tmp_path / "c.db", sound)
    tamper(path, statement, fitting=fitting)
    damage = [found for found in verify_file(path) if said in found.what]
    assert damage, verify_file(path)
    assert not named or damage[0].session_id in session_ids(truth)
    report = check_case(tmp_path, path.read_bytes(), truth)
    assert report is not None
    _read_everything(tmp_path / "b.db")


def _read_everything(path: Path) -> None:
    """A salvaged store is a store: it can be listed, read, recovered and written to."""
    with holdfast.open(path, durability="process") as store:
        for info in store.sessions(limit=100):
            session = store.get(info.id)
            assert len(session.messages()) == session.head().seq
            session.turns()
            session.queued()
            session.recover()
            session.append(Message.user("and on"))
        assert store.damage == []
        assert store.verify() == []


def test_a_lost_message_leaves_a_marked_place(sound: bytes, truth: Content, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "UPDATE messages SET body = '{}' WHERE place = (2 << 32) + 2")
    tamper(path, "DELETE FROM messages WHERE place = (2 << 32) + 3")
    report = salvage(path, tmp_path / "b.db", copy_store)
    assert (report.quarantined, report.messages) == (1, len(truth["messages"]) - 2)
    assert {(found.session_id is not None, found.seq) for found in report.damage} == {
        (True, 2),
        (True, 3),
    }
    with holdfast.open(tmp_path / "b.db") as store:
        first, second, third = store.session("tools").messages()
    assert (first.text, first.status) == ("weather?", "complete")
    assert (second.status, second.seq, third.status, third.seq) == ("damaged", 2, "damaged", 3)
    assert second.id == _one(path, "SELECT id FROM messages WHERE place = (2 << 32) + 2")
    assert _one(tmp_path / "b.db", "SELECT content FROM quarantine WHERE n = 2") == "{}"


_LOST_FILES = {
    "damaged": "UPDATE messages SET crc = crc + 1 WHERE place = (1 << 32) + 2",
    "lost": "DELETE FROM messages WHERE place = (1 << 32) + 2",
    "lost, and beyond the head": "DELETE FROM messages WHERE place = (1 << 32) + 2; "
    "UPDATE heads SET seq = 1 WHERE session = 1",
}


@pytest.mark.parametrize("lost", _LOST_FILES.values(), ids=_LOST_FILES)
def test_the_file_of_a_lost_message_is_purged_with_its_placeholder(
    tmp_path: Path, lost: str
) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        session = store.session("s")
        session.append(Message.user("look"), Message.user(File("x.bin", data=b"x" * 100)))
        fork = session.fork()
    tamper(path, lost, fitting=True)
    salvage(path, tmp_path / "b.db", copy_store)
    with holdfast.open(tmp_path / "b.db") as store:
        assert [m.status for m in store.get(fork.id).messages()] == ["complete", "damaged"]
        assert store.verify() == []
        assert [store.purge(id).blobs for id in (fork.id, session.id)] == [0, 1]


def test_messages_are_salvaged_in_several_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that holds all of a large store would not fit beside it on the disk."""
    path = tmp_path / "a.db"
    commits: list[int] = []
    with holdfast.open(path) as store:
        store.session("s").append(*(Message.user(f"message {n}") for n in range(50)))

    def count() -> bool:
        commits.append(1)
        return False

    def counting(target: Path, **_: object) -> apsw.Connection:
        connection = apsw.Connection(str(target))
        connection.set_commit_hook(count)
        return connection

    monkeypatch.setattr("holdfast.storage.sqlite.repair.salvage.connect", counting)
    monkeypatch.setattr("holdfast.storage.sqlite.repair.copy_rows._BATCH", 10)
    report = salvage(path, tmp_path / "b.db", copy_store)
    assert (report.messages, report.damage) == (50, ())
    assert len(commits) > 5


def test_messages_without_a_session_become_a_salvaged_session(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "DELETE FROM sessions WHERE n = 2")
    tamper(path, "DELETE FROM heads WHERE session = 2")
    tamper(path, "DELETE FROM branches WHERE session = 2")
    salvage(path, tmp_path / "b.db")
    with holdfast.open(tmp_path / "b.db") as store:
        found = [info for info in store.sessions(limit=50) if (info.title or "").startswith("salv")]
        assert [(info.messages, info.title_by) for info in found] == [(3, "auto")]
        assert store.get(found[0].id).messages()[0].text == "weather?"


def test_an_open_turn_stays_open_and_its_draft_is_recovered(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "DELETE FROM turns; DELETE FROM drafts WHERE number = 0")
    salvage(path, tmp_path / "b.db")
    with holdfast.open(tmp_path / "b.db") as store:
        session = store.session("open")
        recovered = session.recover()
        assert recovered is not None
        assert recovered.partial is not None
        assert recovered.partial.text == "partial text"
        assert [queued.message.text for queued in session.queued()] == ["and then?", ""]


def test_only_the_tenant_asked_for_is_told_of(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "UPDATE messages SET crc = 0 WHERE place = (2 << 32) + 2")
    connection = open_damaged(path)
    assert verify(connection, {2}) == []
    assert len(verify(connection, {1})) == 1
    connection.close()


def _sessions_in_steps(store: holdfast.Store) -> Generator[None]:
    """Make sessions with a turn each, for ever, one write after the other."""
    while True:
        session = store.create()
        yield
        with session.turn() as turn:
            yield
            turn.user("one")
            yield
            turn.assistant("two")
            yield


def test_a_store_that_is_written_to_meanwhile_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is written before the statements of a verification, and between two of them."""
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store:
        steps = _sessions_in_steps(store)

        def open_between(file: Path) -> apsw.Connection:
            connection, writes = open_damaged(file), iter(range(25))

            def write_first(*_: object) -> bool:
                if next(writes, None) is not None:
                    next(steps)
                return True

            connection.exec_trace = write_first
            return connection

        monkeypatch.setattr(verifying, "open_damaged", open_between)
        for _ in range(6):
            next(steps)
            assert verify_file(path) == []
        steps.close()
        monkeypatch.undo()
        assert store.stats().messages > 60  # 26 writes each time, and two in four are messages.
        assert store.verify() == []


def _one(path: Path, query: str) -> object:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute(query).get
    finally:
        connection.close()


# -------------------------------------------------------------------------------- checksums


def _schema(path: Path) -> dict[str, list[str]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables: list[Any] = connection.execute(
            "SELECT t.name, c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' ORDER BY t.name, c.cid"
        ).fetchall()
    finally:
        connection.close()
    found: dict[str, list[str]] = {}
    for table, column in tables:
        found.setdefault(table, []).append(column)
    return found


def test_every_table_is_checked_by_the_columns_it_has(sound: bytes, tmp_path: Path) -> None:
    """What verify and salvage read is what the schema has, in its order; each row has a `crc`."""
    schema = _schema(put(tmp_path / "a.db", sound))
    assert set(schema) == set(TABLES)
    checked = {table for table, columns in schema.items() if "crc" in columns}
    others = {table.name: table for table in (RECORDS, STORE_RECORDS)}
    assert checked - {"messages", *others} == set(CHECKSUMMED_TABLES)
    assert all(list(table.columns) == schema[name] for name, table in others.items())
    read: tuple[KeyedTable | SessionKeyedTable, ...] = (
        SESSIONS,
        HEADS,
        BRANCHES,
        USAGE,
        QUARANTINE,
        *SESSION_TABLES,
    )
    assert {table.name: list(table.columns) for table in read} == {
        table: schema[table] for table in CHECKSUMMED_TABLES
    }


def test_what_no_checksum_covers_is_in_an_index_too(sound: bytes, tmp_path: Path) -> None:
    """Every index has the row's number."""
    connection = apsw.Connection(str(put(tmp_path / "a.db", sound)))
    indexed = {
        table: [str(sql) for (sql,) in connection.execute(
            "SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql NOT LIKE "
            "'%WHERE%'", (table,))]
        for table, known in CHECKSUMMED_TABLES.items()
        if known.assigned
    }  # fmt: skip
    connection.close()
    assert indexed.keys() == {"sessions", "branches"}
    assert all(indexed.values())


ONE_ROW = {
    "sessions": "n = 1",
    "heads": "session = 1",
    "branches": "n = 1",
    "usage": "session = 1",
    "turns": "session = 2",
    "tools": "session = 2",
    "drafts": "session = 16 AND number = 1",
    "queue": "session = 16 AND number = 1",
}
OF_ONE_ROW = [
    (table.name, column)
    for table in (SESSIONS, HEADS, BRANCHES, USAGE, *SESSION_TABLES)
    for column in table.columns
    if column != CHECKSUMMED_TABLES[table.name].assigned
]


def _change(path: Path, table: str, column: str) -> object:
    """Change one value of one row to another of its type; return the old one."""
    found = f"FROM {table} WHERE {ONE_ROW[table]}"
    old = _one(path, f"SELECT {column} {found}")
    declared = f"SELECT type FROM pragma_table_info('{table}') WHERE name = '{column}'"  # noqa: S608
    new: object = 7 if _one(path, declared) == "INTEGER" else "x"
    if isinstance(old, int):
        new = old ^ 64
    elif isinstance(old, str):
        new = old[:-1] + "~"
    connection = apsw.Connection(str(path))
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {ONE_ROW[table]}", (new,))  # noqa: S608
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return old


@pytest.mark.parametrize(("table", "column"), OF_ONE_ROW)
def test_a_changed_value_is_reported_with_its_session_and_a_number_is_restored(
    sound: bytes, truth: Content, tmp_path: Path, table: str, column: str
) -> None:
    """A row's checksum reveals damage, and the right number if one bit of it was flipped."""
    path = put(tmp_path / "a.db", sound)
    number = "n" if table == "sessions" else "session"
    owner = f"SELECT {number} FROM {table} WHERE {ONE_ROW[table]}"  # noqa: S608
    name = _one(path, f"SELECT id FROM sessions WHERE n = ({owner})")  # noqa: S608
    old = _change(path, table, column)
    if (table, column) == ("sessions", "id"):
        name = _one(path, "SELECT id FROM sessions WHERE n = 1")
    assert name in {found.session_id for found in verify_file(path)}
    report = salvage(path, tmp_path / "b.db", copy_store)
    assert report.quarantined > 0
    assert name in {found.session_id for found in report.damage}
    assert verify_file(tmp_path / "b.db") == []
    salvaged = content_of(tmp_path / "b.db")
    assert salvaged is not None
    if isinstance(old, int):
        assert carried(salvaged) == carried(truth)


# ------------------------------------------------------------- a damaged row while a store is used


DECISIVE = {
    "fewer messages": "UPDATE heads SET seq = 2 WHERE session = 2",
    "no messages": "UPDATE heads SET seq = 0 WHERE session = 2",
    "another branch": "UPDATE heads SET branch = 3 WHERE session = 2",
    "an open turn": "UPDATE heads SET open_turn = 1 WHERE session = 2",
    "a preview that is no text": (
        "UPDATE heads SET preview = CAST(x'ff' AS TEXT) WHERE session = 2"
    ),
}


@pytest.mark.parametrize("what", DECISIVE)
def test_a_damaged_head_is_an_error_that_names_the_session_and_costs_only_itself(
    sound: bytes, tmp_path: Path, what: str
) -> None:
    path = put(tmp_path / "a.db", sound)
    with holdfast.open(path) as store:
        session = store.session("tools")
        tamper(path, DECISIVE[what])
        said = rf"{session.id}.*nothing was changed.*store\.verify\(\)"
        for use in (session.messages, session.head, session.info, session.recover):
            with pytest.raises(Damaged, match=said):
                use()
        with pytest.raises(Damaged, match=said), session.turn():
            pass
        with pytest.raises(Damaged, match=said):
            session.append(Message.user("into nothing"))
        with pytest.raises(Damaged, match=said):
            store.session("tools")
        states = {info.id: info.state for info in store.sessions(limit=100)}
        assert (len(states), states[session.id]) == (16, "damaged")
        assert list(states.values()).count("damaged") == 1
        assert [found.session_id for found in store.damage] == [session.id]
        assert store.session("long").append(Message.user("others go on")).seq == 15
    assert _one(path, "SELECT count(*) FROM messages WHERE place >> 32 = 2") == 3


def test_a_damaged_session_is_an_error_by_whatever_name_it_is_called(
    sound: bytes, tmp_path: Path
) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "UPDATE sessions SET metadata = '{}' WHERE n = 1")
    name = str(_one(path, "SELECT id FROM sessions WHERE n = 1"))
    with holdfast.open(path) as store:
        for ref in ("long", name, name[:8], "Parcel"):
            with pytest.raises(Damaged, match=name):
                store.get(ref)
        with pytest.raises(Damaged, match=name):
            store.session("long")
        (damaged,) = store.sessions(limit=100, state="damaged")
        assert (damaged.id, damaged.key, damaged.title) == (name, "long", "Parcel")
        assert len(store.sessions(limit=100)) == 16
        assert [found.session_id for found in store.damage] == [name]
        assert store.latest(scope="bot") is None


def test_a_damaged_turn_is_an_error_and_not_taken_for_free(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    with holdfast.open(path) as store:
        session = store.session("open")
        tamper(path, "UPDATE turns SET lease_until = 1 WHERE state = 'open'")
        for use in (session.turns, session.recover):
            with pytest.raises(Damaged, match=session.id):
                use()
        with pytest.raises(Damaged, match=session.id), session.turn():
            pass


def test_a_damaged_branch_is_an_error_and_not_another_history(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "UPDATE branches SET fork_seq = 12 WHERE parent = 1")
    with holdfast.open(path) as store:
        session = store.session("long")
        with pytest.raises(Damaged, match=session.id):
            session.messages()
    path = put(tmp_path / "b.db", sound)
    tamper(path, "UPDATE branches SET last_seq = 12 WHERE n = 1")
    with holdfast.open(path) as store:
        session = store.session("long")
        with pytest.raises(Damaged, match=session.id):
            session.messages(branch=1)


def test_damage_in_a_draft_or_the_queue_stops_no_recovery(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    tamper(path, "UPDATE drafts SET record = replace(record, 'partial', 'partjal')")
    tamper(path, "UPDATE queue SET body = replace(body, 'then', 'than')")
    said = sorted(found.what for found in verify_file(path))
    assert said == [
        f"a row of {table} does not match its checksum" for table in ("drafts", "queue")
    ]
    with holdfast.open(path) as store:
        session = store.session("open")
        with session.turn() as turn:
            assert turn.recovered is not None
            assert turn.recovered.partial is not None
            assert turn.recovered.partial.text == "partjal text"
            assert [message.text for message in turn.take_queued()] == ["and than?", ""]
        assert store.verify() == []


@pytest.mark.parametrize(
    ("spoil", "table"),
    [
        ("UPDATE usage SET output = 70", "usage"),
        ("UPDATE tools SET name = 'whether'", "tools"),
    ],
)
def test_what_is_written_to_a_damaged_row_does_not_make_it_pass_for_sound(
    tmp_path: Path, spoil: str, table: str
) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        session = store.session("s")
        with session.turn() as turn:
            turn.assistant("", tool_calls=[ToolCall("c1", "weather", {})], usage=Usage(output=7))
            assert store.verify() == []
            tamper(path, spoil)
            turn.tool_started("c1")
            turn.tool("c1", "rain")
            turn.assistant("it rains", usage=Usage(output=5))
        assert [found.what for found in store.verify()] == [
            f"a row of {table} does not match its checksum"
        ]
        assert [found.session_id for found in store.verify()] == [session.id]
        assert session.usage().usage.output == (75 if table == "usage" else 12)
        assert [call.outcome for call in session.turns()[0].tools] == ["done"]


# ------------------------------------------------------------------------ what must be left alone


def test_a_destroyed_header_is_one_damage(sound: bytes, tmp_path: Path) -> None:
    damage = verify_file(put(tmp_path / "a.db", bytes(PAGE) + sound[PAGE:]))
    assert len(damage) == 1
    assert "cannot be read as a database" in damage[0].what


def test_an_existing_target_is_never_overwritten(sound: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.db", sound)
    target = put(tmp_path / "b.db", b"mine")
    with pytest.raises(Invalid, match="exists already"):
        salvage(path, target)
    assert target.read_bytes() == b"mine"


def test_a_source_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        salvage(tmp_path / "a.db", tmp_path / "b.db")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_salvage_leaves_nothing_behind(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "a.db", sound)

    def no_space(target: Path) -> None:
        build_store(target)
        connection = apsw.Connection(str(target))
        pages = connection.execute("PRAGMA page_count").get
        connection.close()
        real = apsw.Connection.execute
        limit = f"PRAGMA max_page_count={pages + 3}"
        monkeypatch.setattr("holdfast.storage.sqlite.repair.salvage.connect", _limited(limit, real))

    with pytest.raises(holdfast.errors.StoreFull, match="not changed"):
        salvage(path, tmp_path / "b.db", no_space)
    assert [p.name for p in tmp_path.iterdir() if "b.db" in p.name] == []
    assert path.read_bytes() == sound


def _limited(limit: str, execute: Callable[..., object]) -> Callable[..., apsw.Connection]:
    def connect(path: Path, **_: object) -> apsw.Connection:
        connection = apsw.Connection(str(path))
        execute(connection, limit)
        return connection

    return connect


def test_a_store_in_use_is_salvaged_with_its_log_and_both_stay_as_they_are(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    log = tmp_path / "a.db-wal"
    with holdfast.open(path) as store:
        session = store.session("s")
        session.append(*(Message.user(f"message {n}") for n in range(20)))
        before = path.read_bytes(), log.read_bytes()
        assert before[1]
        report = salvage(path, tmp_path / "b.db")
        assert (path.read_bytes(), log.read_bytes()) == before
        session.append(Message.user("still works"))
    assert (report.sessions, report.messages, report.damage) == (1, 20, ())


def test_a_log_that_is_left_alone_is_read_and_not_written(tmp_path: Path) -> None:
    """After a crash the newest messages are in the log only."""
    with holdfast.open(tmp_path / "a.db") as store:
        store.session("s").append(*(Message.user(f"message {n}") for n in range(20)))
        files = {name: (tmp_path / name).read_bytes() for name in ("a.db", "a.db-wal")}
    (tmp_path / "crashed").mkdir()
    for name, data in files.items():
        put(tmp_path / "crashed" / name, data)
    report = salvage(tmp_path / "crashed" / "a.db", tmp_path / "b.db")
    assert (report.messages, report.damage) == (20, ())
    for name, data in files.items():
        assert (tmp_path / "crashed" / name).read_bytes() == data


_NOBODY = 65534
_SALVAGE = """
import os, sys
from pathlib import Path
from holdfast.storage.sqlite.migrations import build_store
from holdfast.storage.sqlite.repair import verify as verifying
from holdfast.storage.sqlite.repair.salvage import salvage
if os.geteuid() == 0:
    os.setgid({nobody})
    os.setuid({nobody})
report = salvage(Path(sys.argv[1]), Path(sys.argv[2]))
print(report.messages, report.damage)
"""


def test_a_read_only_place_can_be_salvaged_from(sound: bytes) -> None:
    """No file can be created beside the source; none is, and everything is copied."""
    with tempfile.TemporaryDirectory() as made:
        fixed, target = Path(made) / "fixed", Path(made) / "target"
        for folder in (fixed, target):
            folder.mkdir()
        path = put(fixed / "a.db", sound)
        fixed.chmod(0o500)
        if os.geteuid() == 0:  # Nothing is read-only for root, so the child changes its user.
            for owned in (Path(made), fixed, target, path):
                os.chown(owned, _NOBODY, _NOBODY)
        ended = subprocess.run(
            [sys.executable, "-c", _SALVAGE.format(nobody=_NOBODY), str(path), target / "b.db"],
            capture_output=True,
            text=True,
            check=False,
        )
        left = [file.name for file in fixed.iterdir()]
        fixed.chmod(0o700)
        messages, _, damage = ended.stdout.strip().partition(" ")
        assert (damage, left) == ("()", ["a.db"]), ended.stderr
        ours = put(Path(made) / "ours.db", sound)
        expected = salvage(ours, Path(made) / "carried.db").messages
        assert int(messages) == expected > 0


# --------------------------------------------------------------------------------------- the scan


def _numbered(path: Path, count: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT)")
    with connection:
        for n in range(1, count + 1):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, f"row {n} " + "x" * 200))
    connection.close()


def _leaves(path: Path) -> list[int]:
    """The pages that hold rows, as offsets."""
    data = path.read_bytes()
    return [at for at in range(PAGE, len(data), PAGE) if data[at] == 0x0D]


@pytest.mark.parametrize("seed", range(10))
def test_the_scan_skips_no_row_that_can_be_read(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "t.db"
    _numbered(path, 2000)
    leaves = _leaves(path)
    data = bytearray(path.read_bytes())
    for at in random.Random(seed).sample(leaves, k=len(leaves) // 3):
        data[at : at + PAGE] = b"\xff" * PAGE
    path.write_bytes(data)
    connection = open_damaged(path)
    readable = {n for n in range(1, 2001) if _has(connection, n)}
    items = list(scan_rows(connection, KeyedTable("t", "n", ("text",))))
    connection.close()
    assert {item.key for item in items if isinstance(item, Row)} == readable
    holes = [item for item in items if isinstance(item, UnreadableRange)]
    lost = {n for n in range(1, 2001) if any(hole.first <= n <= hole.last for hole in holes)}
    assert lost & readable == set()
    assert lost | readable == set(range(1, 2001))
    assert 0 < len(readable) < 2000


def _has(connection: apsw.Connection, n: int) -> bool:
    try:
        return connection.execute("SELECT text FROM t WHERE n = ?", (n,)).get is not None
    except apsw.Error:
        return False


@pytest.mark.parametrize("other", [1, 5000])
def test_a_row_under_a_wrong_number_is_put_where_it_belongs(tmp_path: Path, other: int) -> None:
    path = tmp_path / "t.db"
    _numbered(path, 4)
    # Rows 1 to 4 lie in one page; give the third another number, in as many bytes.
    width = 2 if other > 127 else 1
    connection = apsw.Connection(str(path))
    if width == 2:
        connection.execute("UPDATE t SET n = n + 1000")
    connection.close()
    data = bytearray(path.read_bytes())
    base = 1000 if width == 2 else 0
    cell = data.index(_varint(base + 3) + b"\x04\x00", PAGE)
    data[cell : cell + width] = _varint(other)
    path.write_bytes(data)
    connection = open_damaged(path)
    dense = list(scan_rows(connection, KeyedTable("t", "n", ("text",), dense=True)))
    plain = list(scan_rows(connection, KeyedTable("t", "n", ("text",))))
    connection.close()
    assert [(item.key, item.stored_key) for item in dense if isinstance(item, Row)] == [
        (base + 1, None),
        (base + 2, None),
        (base + 3, other),
        (base + 4, None),
    ]
    assert [item.key for item in plain if isinstance(item, MisfiledRow)] == [other]


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes([number])
    return bytes([number >> 7 | 128, number & 127])


def test_a_table_that_is_not_there_is_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    _numbered(path, 3)
    connection = open_damaged(path)
    (hole,) = scan_rows(connection, MESSAGES)
    connection.close()
    assert isinstance(hole, UnreadableRange)
    assert "no such table" in hole.why
