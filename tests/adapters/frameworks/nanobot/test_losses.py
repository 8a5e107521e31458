"""What nanobot's files lose, and its sessions in a store keep; each test is named after a loss."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.adapters.nanobot import SessionManager
from holdfast.errors import Damaged
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply
from tests.adapters.frameworks.nanobot.conftest import Manager, NewManager

KEY = "cli:direct"


def _contents(manager: Manager, key: str = KEY) -> list[Any]:
    return [item["content"] for item in manager.read_session_file(key)["messages"]]


def _two_writers(new_manager: NewManager) -> list[Any]:
    """Return what is left when two processes with the session in memory save in turn."""
    one, two = new_manager(), new_manager()
    sessions = [manager.get_or_create(KEY) for manager in (one, two)]
    for number in range(2):
        for name, manager, session in zip("ab", (one, two), sessions, strict=True):
            session.add_message("user", f"{name}{number}")
            manager.save(session)
    return _contents(new_manager())


def test_the_messages_of_another_writer(ours: NewManager, theirs: NewManager) -> None:
    assert _two_writers(ours) == ["a0", "b0", "a1", "b1"]
    assert _two_writers(theirs) == ["b0", "b1"]


def test_messages_that_an_edit_did_not_know(ours: NewManager) -> None:
    one, two = ours(), ours()
    mine = one.get_or_create(KEY)
    for text in ("a", "b", "c"):
        mine.add_message("user", text)
    one.save(mine)
    other = two.get_or_create(KEY)
    other.add_message("user", "unknown")
    two.save(other)
    mine.messages = mine.messages[2:]
    mine.messages.insert(0, {"role": "user", "content": "summary"})
    mine.add_message("user", "d")
    one.save(mine)
    assert _contents(ours()) == ["summary", "c", "unknown", "d"]
    mine.clear()
    one.save(mine)
    assert _contents(ours()) == ["unknown"]


def test_a_message_that_is_neither_summarised_nor_replayed(ours: NewManager) -> None:
    """The boundary of what is archived does not pass a message that the archiver did not see."""
    one, two = ours(), ours()
    mine, other = one.get_or_create(KEY), two.get_or_create(KEY)
    for manager, session, text in ((one, mine, "a"), (two, other, "unknown"), (one, mine, "b")):
        session.add_message("user", text)
        manager.save(session)
    mine.last_archived = 2
    one.save(mine)
    found = ours().get_or_create(KEY)
    assert [item["content"] for item in found.get_history()] == ["unknown", "b"]


def test_the_words_of_another_worker_are_in_the_next_turn(ours: NewManager) -> None:
    one, two = ours(), ours()
    mine, other = one.get_or_create(KEY), two.get_or_create(KEY)
    items = mine.messages
    for text in ("a", "b"):
        other.add_message("user", text)
        other.metadata["last_channel"] = text
        two.save(other)
    assert one.get_or_create(KEY) is mine
    assert [item["content"] for item in mine.messages] == ["a", "b"]
    assert mine.messages is items
    assert mine.metadata == {"last_channel": "b"}
    mine.add_message("user", "unsaved")
    other.add_message("user", "c")
    two.save(other)
    assert one.get_or_create(KEY).messages[-1]["content"] == "unsaved"
    one.save(mine)
    assert _contents(two) == ["a", "b", "c", "unsaved"]


def test_the_words_of_another_worker_that_came_first(ours: NewManager) -> None:
    one, two = ours(), ours()
    mine, other = one.get_or_create(KEY), two.get_or_create(KEY)
    for manager, session, text in ((one, mine, "a"), (two, other, "b"), (one, mine, "c")):
        session.add_message("user", text)
        manager.save(session)
    assert [item["content"] for item in one.get_or_create(KEY).messages] == ["a", "b", "c"]


def test_a_message_that_came_during_an_edit(ours: NewManager) -> None:
    """Two writers edit, two append, all at once: what nobody took out is there, once."""

    managers = {name: ours() for name in "abcd"}
    sessions = {name: manager.get_or_create(KEY) for name, manager in managers.items()}

    def write(name: str) -> None:
        items = sessions[name].messages
        for number in range(8):
            items.append({"role": "user", "content": f"{name}{number}"})
            if name in "cd":
                del items[:-1]
            managers[name].save(sessions[name])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, name) for name in managers]:
            done.result()
    said = _contents(ours())
    assert sorted(said) == sorted([f"{n}{k}" for n in "ab" for k in range(8)] + ["c7", "d7"])
    for name in "ab":
        assert [text for text in said if text[0] == name] == [f"{name}{k}" for k in range(8)]


def test_a_later_value_of_a_name_of_metadata(ours: NewManager) -> None:
    """A value that was changed on its own is not written again by the next save."""
    one, two = ours(), ours()
    session = one.get_or_create(KEY)
    one.save(session)
    one.update_session_metadata(KEY, {"a": 1})
    two.update_session_metadata(KEY, {"a": 2})
    session.add_message("user", "hello")
    one.save(session)
    assert two.read_session_metadata(KEY)["metadata"] == {"a": 2}


def test_metadata_by_name_of_another_writer(ours: NewManager, theirs: NewManager) -> None:
    def left(new_manager: NewManager) -> list[str]:
        one, two = new_manager(), new_manager()
        sessions = [manager.get_or_create(KEY) for manager in (one, two)]
        one.save(sessions[0])
        sessions[0].metadata["goal_state"] = {"status": "active", "objective": "Find it."}
        sessions[1].metadata["title"] = "A parcel"
        one.save(sessions[0])
        two.save(sessions[1])
        one.update_session_metadata(KEY, {"a": 1})
        two.update_session_metadata(KEY, {"b": 1})
        one.save(sessions[0])
        return sorted(new_manager().read_session_metadata(KEY)["metadata"])

    assert left(ours) == ["a", "b", "goal_state", "title"]
    assert left(theirs) == ["a", "goal_state"]


def test_one_of_two_processes_that_create_a_session(ours: NewManager, theirs: NewManager) -> None:
    def left(new_manager: NewManager) -> int:
        managers = [new_manager() for _ in range(4)]
        sessions = [manager.get_or_create(KEY) for manager in managers]
        for number, session in enumerate(sessions):
            session.add_message("user", str(number))
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(m.save, s) for m, s in zip(managers, sessions, strict=True)]:
                done.result()
        return len(_contents(new_manager()))

    assert (left(ours), left(theirs)) == (4, 1)


_WRITER = """
import sys
from pathlib import Path
import holdfast
from holdfast.adapters.nanobot import SessionManager
database, workspace, root, name = sys.argv[1:]
with holdfast.open(database, durability="process") as store:
    manager = SessionManager(Path(workspace), store, sessions_root=Path(root))
    for turn in range(int(1e9)):
        session = manager.get_or_create("cli:direct")
        function = {"name": "f", "arguments": "{}"}
        calls = [{"id": f"{name}{turn}", "type": "function", "function": function}]
        session.add_message("user", f"{name} {turn}")
        manager.save(session)
        session.add_message("assistant", "", tool_calls=calls)
        session.add_message("tool", "done", tool_call_id=f"{name}{turn}", name="f")
        session.metadata["turn"] = turn
        manager.save(session)
        print(turn, flush=True)
"""


def _start(tmp_path: Path, workspace: Path, name: str) -> subprocess.Popen[str]:
    arguments = [tmp_path / "agent.db", workspace, tmp_path / "root", name]
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def _kill_after(process: subprocess.Popen[str], turns: int) -> int:
    """Kill a writer when it has reported so many turns; return the last one it reported."""
    assert process.stdout is not None
    last = [int(process.stdout.readline()) for _ in range(turns)][-1]
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split("\n")
    process.wait()
    process.stdout.close()
    return max([last, *[int(line) for line in rest[:-1]]])


def test_a_crash_in_mid_turn(tmp_path: Path, workspace: Path, store: Store) -> None:
    """Two processes write to one session until both are killed: all that was saved is there."""
    writers = {name: _start(tmp_path, workspace, name) for name in "ab"}
    reported = {name: _kill_after(process, 15) for name, process in writers.items()}
    manager = SessionManager(workspace, store, sessions_root=tmp_path / "root")
    items = manager.get_or_create(KEY).messages
    said = [item["content"] for item in items if item["role"] == "user"]
    for name, last in reported.items():
        assert [text for text in said if text[0] == name][: last + 1] == [
            f"{name} {turn}" for turn in range(last + 1)
        ]
        results = [i["tool_call_id"] for i in items if i["role"] == "tool"]
        assert {f"{name}{turn}" for turn in range(last + 1)} <= set(results)
    assert len(said) == len(set(said))
    assert manager.get_or_create(KEY).metadata["turn"] >= min(reported.values())
    assert store.verify() == []


BYTE = os.fsdecode(b"caf\xe9")


def test_a_non_utf8_byte(ours: NewManager, theirs: NewManager) -> None:
    def said(new_manager: NewManager) -> list[Any]:
        manager = new_manager()
        session = manager.get_or_create(KEY)
        session.add_message("user", BYTE)
        session.metadata["file"] = BYTE + "\x00"
        manager.save(session)
        return _contents(new_manager())

    assert said(ours) == [BYTE]
    assert ours().get_or_create(KEY).metadata == {"file": BYTE + "\x00"}
    with pytest.raises(UnicodeEncodeError):
        said(theirs)


def test_a_history_with_a_damaged_byte(
    ours: NewManager, theirs: NewManager, store: Store, tmp_path: Path
) -> None:
    """A file that cannot be read is an empty session, which the next save writes over it."""
    for manager in (ours(), theirs()):
        session = manager.get_or_create(KEY)
        session.add_message("user", "first")
        session.add_message("user", "Kestrel")
        manager.save(session)
    (path,) = (tmp_path / "root").glob("*/*.jsonl")
    path.write_bytes(path.read_bytes().replace(b"Kestrel", b"Kestr\xe9l"))
    assert theirs().get_or_create(KEY).messages == []

    store.close()
    with sqlite3.connect(tmp_path / "agent.db") as database:
        _damage(database)
    with holdfast.open(tmp_path / "agent.db") as damaged:
        manager = SessionManager(tmp_path / "workspace", damaged, sessions_root=tmp_path / "root")
        session = manager.get_or_create(KEY)
        assert [item["content"] for item in session.messages] == ["first"]
        session.add_message("user", "more")
        with pytest.raises(Damaged):
            manager.save(session)
        assert len(damaged.session(KEY).messages()) == 2
        assert damaged.damage


def _damage(database: sqlite3.Connection) -> None:
    """Change a byte of the body of a message."""
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if "body" in columns:
            database.execute(
                f"UPDATE {table} SET body = CAST(replace(CAST(body AS TEXT), 'Kestrel', 'Kestrul')"  # noqa: S608
                " AS BLOB) WHERE CAST(body AS TEXT) LIKE '%Kestrel%'"
            )


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a:b", "a_b"),
        ("a/b", "a_b"),
        ("A", "a"),
        ("../../a", "a"),
        ("a ", "a"),
        ("k" * 4095 + "1", "k" * 4095 + "2"),
        (BYTE, BYTE + "\x00"),
        ("CON", "con"),
    ],
    ids=lambda key: repr(key)[:12],
)
def test_one_of_two_colliding_keys(ours: NewManager, one: str, two: str) -> None:
    manager = ours()
    for key in (one, two):
        session = manager.get_or_create(key)
        session.add_message("user", key)
        manager.save(session)
    assert (_contents(ours(), one), _contents(ours(), two)) == ([one], [two])
    assert manager.delete_session(one)
    assert _contents(ours(), two) == [two]


def test_a_session_with_a_long_key(theirs: NewManager) -> None:
    """Why the long keys above are tried: nanobot's own files cannot have them."""
    manager = theirs()
    with pytest.raises(OSError, match="name too long"):
        manager.save(manager.get_or_create("k" * 4096))


def test_a_deleted_neighbour(ours: NewManager, theirs: NewManager, tmp_path: Path) -> None:
    """Deleting "a:b" also deletes the old file that "a_b" may have been migrated to."""

    def is_left(new_manager: NewManager, delete: Callable[[Manager], object]) -> bool:
        manager = new_manager()
        for key in ("a:b", "a_b"):
            manager.save(manager.get_or_create(key))
        delete(manager)
        return manager.read_session_file("a_b") is not None

    assert is_left(ours, lambda manager: manager.delete_session("a:b"))
    assert is_left(theirs, lambda manager: manager.delete_session("a:b"))
    (root,) = [p for p in (tmp_path / "root").iterdir() if p.is_dir()]
    (root / "a_b.jsonl").write_text("{}\n")
    theirs().delete_session("a:b")
    assert not (root / "a_b.jsonl").exists()


def test_the_part_of_the_history_that_a_cap_cuts_off(ours: NewManager, store: Store) -> None:
    manager = ours()
    session = manager.get_or_create(KEY)
    for number in range(20):
        session.add_message("user", f"Heron {number}")
    manager.save(session)
    session.retain_recent_legal_suffix(5)
    manager.save(session)
    assert len(_contents(ours())) == 5
    cut_off = store.session(KEY).messages(branch=1, limit=15, before=16)
    assert [message.text for message in cut_off] == [f"Heron {number}" for number in range(15)]


def test_the_half_reply_of_a_crashed_turn_of_another_program(
    tmp_path: Path, workspace: Path
) -> None:
    crash_in_a_reply(tmp_path / "agent.db", KEY)
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        manager = SessionManager(workspace, store, sessions_root=tmp_path / "files")
        session = manager.get_or_create(KEY)
        session.add_message("user", "And now?")
        manager.save(session)
        assert [m.text for m in store.session(KEY).messages()] == [ASKED, HALF, "And now?"]
