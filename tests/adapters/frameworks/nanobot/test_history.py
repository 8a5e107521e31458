"""What a nanobot session is in Holdfast: one history, each message once, nothing rewritten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import holdfast
from holdfast import File, Goal, Message, Session, Store, Text, Thinking, ToolCall, ToolResult
from holdfast.adapters.nanobot import SessionManager
from holdfast.adapters.nanobot_messages import View
from holdfast.clock import SystemClock
from holdfast.errors import KeyTaken, OutcomeUnknown, SessionBusy, StoreFull
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.testing.faults import FailingDisk, failing_disk
from holdfast.url import parse_url
from tests.adapters.frameworks.nanobot.conftest import Conversation, Manager, NewManager

KEY = "cli:direct"


def _texts(store: Store, key: str = KEY) -> list[str]:
    return [message.text for message in store.session(key, create=False).messages()]


def _say(manager: Manager, *texts: str, key: str = KEY) -> Conversation:
    session = manager.get_or_create(key)
    for text in texts:
        session.add_message("user", text)
    manager.save(session)
    return session


def test_messages_are_real_messages(manager: Manager, store: Store) -> None:
    session = manager.get_or_create(KEY)
    session.add_message("user", "Where is it?", timestamp="2026-05-03T12:00:00")
    function = {"name": "look", "arguments": '{"at":1}'}
    session.messages.append(
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            "reasoning_content": "Hmm.",
            "thinking_blocks": [{"type": "thinking", "thinking": "Hmm.", "signature": "s"}],
        }
    )
    session.add_message("tool", "In Oslo.", tool_call_id="c1", name="look")
    manager.save(session)
    user, assistant, tool = store.session(KEY, create=False).messages()
    assert user.parts[0] == Text("Where is it?")
    assert user.created_at is not None
    assert user.created_at.astimezone().isoformat().startswith("2026-05-03T12:00:00")
    thinking = Thinking("Hmm.", "s")
    assert assistant.parts[:3] == (thinking, Text("I look."), ToolCall("c1", "look", {"at": 1}))
    assert tool.tool_results == (ToolResult("c1", "In Oslo.", name="look"),)


def test_a_window_of_it_is_legal(manager: Manager, store: Store) -> None:
    session = manager.get_or_create(KEY)
    session.add_message("user", "/help", _command=True)
    session.add_message("user", "Hello", _runtime_context={"version": 1}, media=["/a.png"])
    manager.save(session)
    window = store.session(KEY, create=False).window()
    assert [(item["role"], item["content"]) for item in window] == [("user", "Hello")]
    assert set(window.messages[0]) == {"role", "content"}


def test_a_text_is_stored_once(manager: Manager, store: Store) -> None:
    session = manager.get_or_create(KEY)
    text, thought = "Kestrel. " * 1_000, "Otter. " * 1_000
    session.add_message("user", text)
    session.add_message("assistant", "ok", reasoning_content=thought)
    session.messages.append({"role": "?", "content": text, "x": 1})
    manager.save(session)
    stored = [msgspec.json.encode(message) for message in store.session(KEY).messages()]
    assert [body.count(b"Kestrel.") for body in stored] == [1_000, 0, 1_000]
    assert stored[1].count(b"Otter.") == 1_000
    assert manager.read_session_file(KEY)["messages"] == session.messages


def test_a_save_stores_only_what_is_new(manager: Manager, store: Store) -> None:
    session = _say(manager, "one", "two")
    ids = [message.id for message in store.session(KEY, create=False).messages()]
    _say(manager, "three")
    stored = store.session(KEY, create=False)
    assert [message.id for message in stored.messages()][:2] == ids
    head = stored.head()
    manager.save(session)
    manager.flush_all()
    assert stored.head() == head
    assert len(stored.branches()) == 1
    assert store.stats().messages == 3


def test_an_edit_is_a_branch_and_nothing_is_rewritten(manager: Manager, store: Store) -> None:
    session = _say(manager, "one", "two", "three", "four")
    before = store.session(KEY, create=False).messages()
    del session.messages[1]
    session.messages[1]["content"] = "drei"
    manager.save(session)
    stored = store.session(KEY, create=False)
    assert _texts(store) == ["one", "drei", "four"]
    assert stored.messages(branch=1) == before
    after = stored.messages()
    assert (after[0].id, after[2].id) == (before[0].id, before[3].id)
    assert after[1].id not in {message.id for message in before}


def test_a_cleared_history_stays_on_its_branch(manager: Manager, store: Store) -> None:
    session = _say(manager, "one", "two")
    session.clear()
    manager.save(session)
    stored = store.session(KEY, create=False)
    assert stored.messages() == []
    assert [message.text for message in stored.messages(branch=1)] == ["one", "two"]
    assert stored.branches()[-1].reason == "clear"


def test_the_file_cap_drops_nothing(manager: Manager, store: Store) -> None:
    session = _say(manager, *[f"message {n}" for n in range(10)])
    session.last_consolidated = 3
    archived: list[Any] = []
    session.enforce_file_cap(archived.extend, limit=4)
    manager.save(session)
    assert [item["content"] for item in archived] == [f"message {n}" for n in range(3, 6)]
    assert _texts(store) == [f"message {n}" for n in range(6, 10)]
    branch = store.session(KEY, create=False).messages(branch=1)
    assert [message.text for message in branch] == [f"message {n}" for n in range(10)]
    session.enforce_file_cap(archived.extend, limit=4)
    assert len(archived) == 3


ROLES = ("user", "assistant", "tool", "assistant", "user", "assistant", "tool", "tool")


@pytest.mark.parametrize(
    ("limit", "extend", "kept", "archived"),
    [
        (0, False, [], 5),
        (8, False, [*range(8)], 0),
        (5, False, [4, 5, 6, 7], 4),
        (3, False, [4, 5, 6], 4),
        (3, True, [4, 5, 6, 7], 4),
        (7, True, [*range(8)], 0),
        (4, True, [4, 5, 6, 7], 4),
    ],
)
def test_a_retention_keeps_a_legal_suffix(
    manager: Manager,
    limit: int,
    extend: bool,
    kept: list[int],
    archived: int,
) -> None:
    session = manager.get_or_create(KEY)
    for n, role in enumerate(ROLES):
        fields: dict[str, Any] = {"tool_call_id": f"c{n - 1}"} if role == "tool" else {}
        if role == "assistant":
            function = {"name": "f", "arguments": "{}"}
            calls = [{"id": f"c{n + k}", "type": "function", "function": function} for k in (0, 1)]
            fields = {"tool_calls": calls}
        session.add_message(role, str(n), **fields)
    session.last_consolidated = 5
    dropped, already = session.retain_recent_legal_suffix(limit, extend_to_user=extend)
    assert [int(item["content"]) for item in session.messages] == kept
    assert sorted(int(item["content"]) for item in dropped) == sorted({*range(8)} - {*kept})
    assert already == archived
    assert session.last_consolidated == 5 - archived


def test_the_goal_and_the_title_are_the_sessions(manager: Manager, store: Store) -> None:
    session = _say(manager, "one")
    session.metadata["title"] = "A parcel"
    goal = {"status": "active", "objective": "Find it.", "ui_summary": "Find"}
    session.metadata["goal_state"] = {**goal, "started_at": "2026-05-03T12:00:00+00:00"}
    manager.save(session)
    info = store.get("A parcel").info()
    assert info.goal is not None
    assert (info.goal.objective, info.goal.summary, info.goal.state) == (
        "Find it.",
        "Find",
        "active",
    )
    assert info.title_by == "auto"
    manager.update_session_metadata(KEY, {"goal_state": {**goal, "status": "completed"}})
    assert store.get(info.id).info().goal == Goal("Find it.", summary="Find", state="completed")
    manager.update_session_metadata(KEY, {"goal_state": None})
    session.metadata.update({"title": "Mine", "title_user_edited": True})
    manager.save(session)
    info = store.get(info.id).info()
    assert (info.goal, info.title, info.title_by) == (None, "Mine", "user")


def test_what_another_program_wrote_comes_out_as_nanobots(manager: Manager, store: Store) -> None:
    _say(manager, "one")
    store.session(KEY).append(
        Message.assistant([Thinking("Hm."), "Both."], tool_calls=[_call("a"), _call("b")]),
        Message(role="tool", parts=(ToolResult("a", "A"), ToolResult("b", (Text("B"),)))),
        Message.user([Text("See"), File(name="a.png", mime="image/png", data=b"\x89PNG")]),
        Message.assistant("Done."),
    )
    session = manager.get_or_create(KEY)
    roles = ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert [item["role"] for item in session.messages] == roles
    assert session.messages[1]["reasoning_content"] == "Hm."
    assert [call["id"] for call in session.messages[1]["tool_calls"]] == ["a", "b"]
    assert [item["tool_call_id"] for item in session.messages[2:4]] == ["a", "b"]
    texts = [piece["text"] for piece in session.messages[4]["content"]]
    assert texts == ["See", "[image: a.png]"]
    assert all(item["timestamp"] for item in session.messages)
    assert session.get_history()[-1] == {"role": "assistant", "content": "Done."}
    count = store.stats().messages
    session.add_message("user", "two")
    manager.save(session)
    assert store.stats().messages == count + 1
    assert len(store.session(KEY).branches()) == 1


def _call(id: str) -> ToolCall:
    return ToolCall(id, "look", {"at": id})


def test_a_message_of_which_one_result_goes_becomes_several(manager: Manager, store: Store) -> None:
    _say(manager, "one")
    results = (ToolResult("a", "A"), ToolResult("b", "B"), ToolResult("c", "C"))
    store.session(KEY).append(
        Message.assistant("", tool_calls=[_call("a"), _call("b"), _call("c")]),
        Message(id="results", role="tool", parts=results),
        Message.user("two", id="two"),
    )
    session = manager.get_or_create(KEY)
    del session.messages[3]
    manager.save(session)
    messages = store.session(KEY).messages()
    assert [message.id for message in messages[2:]] == ["results.0", "results.2", "two"]
    assert [message.text for message in messages[2:]] == ["A", "C", "two"]
    assert manager.get_or_create(KEY).messages == session.messages


def test_a_summary_and_an_erased_message_stay_through_an_edit(
    manager: Manager, store: Store
) -> None:
    _say(manager, "one", "secret", "three", "four")
    stored = store.session(KEY)
    stored.summarize("So far.")
    stored.erase(2)
    session = manager.get_or_create(KEY)
    assert "secret" not in str(session.messages)
    del session.messages[0]
    manager.save(session)
    assert [m.text for m in stored.messages() if m.role == "user"] == ["three", "four"]
    assert stored.summary() is not None


def test_a_fork_of_nanobots_does_not_change_its_source(manager: Manager, store: Store) -> None:
    _say(manager, "one", "two")
    manager.fork_session_before_user_index(KEY, "fork", 1)
    _say(manager, "zwei", key="fork")
    assert (_texts(store), _texts(store, "fork")) == (["one", "two"], ["one", "zwei"])


def test_a_deleted_session_can_be_restored(manager: Manager, store: Store) -> None:
    _say(manager, "one")
    id = store.session(KEY).id
    assert manager.delete_session(KEY)
    assert [info.id for info in store.sessions(trashed=True)] == [id]
    store.restore(id)
    assert manager.get_or_create(KEY).messages[0]["content"] == "one"


def test_an_edit_waits_for_the_turn_of_another_holder(manager: Manager, store: Store) -> None:
    session = _say(manager, "one", "two")
    with store.session(KEY).turn():
        session.add_message("user", "three")
        manager.save(session)
        session.messages.pop(0)
        with pytest.raises(SessionBusy):
            manager.save(session)
        assert _texts(store) == ["one", "two", "three"]
    manager.save(session)
    assert _texts(store) == ["two", "three"]


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[FailingDisk, Store]]:
    with failing_disk() as disk:
        clock = SystemClock()
        backend = SQLiteBackend(
            parse_url(str(tmp_path / "failing.db"), {}), vfs=disk.name, clock=clock
        )
        with Store(backend, clock) as store:
            yield disk, store


@pytest.mark.parametrize("edited", [False, True])
def test_a_retried_save_stores_each_message_once(
    failing: tuple[FailingDisk, Store],
    workspace: Path,
    tmp_path: Path,
    edited: bool,
) -> None:
    disk, store = failing
    manager = SessionManager(workspace, store, sessions_root=tmp_path / "root")
    session = _say(manager, "one", "two")
    session.add_message("user", "three")
    if edited:
        session.messages[0]["content"] = "eins"
    for full in (False, True):
        if full:
            disk.fail("write", lasting=True, error=apsw.FullError, log_only=True)
        else:
            disk.fail("sync", lasting=True)
        with pytest.raises((OutcomeUnknown, StoreFull)):
            manager.save(session)
        assert disk.met
        disk.heal()
    session.add_message("user", "four")
    manager.save(session)
    manager.save(session)
    assert _texts(store) == ["eins" if edited else "one", "two", "three", "four"]
    ids = [message.id for message in store.session(KEY).messages()]
    assert len(ids) == len(set(ids))
    assert manager.read_session_file(KEY)["messages"] == session.messages


def test_a_retry_has_the_ids_of_the_first_attempt() -> None:
    """So that a save of which it is unknown whether it was stored can be repeated."""
    view = View("session")
    items = [{"role": "user", "content": text} for text in ("one", "one", "two")]
    first = [each.id for each in view.align(items)]
    again = [each.id for each in view.align([*items, {"role": "user", "content": "three"}])]
    assert again[:3] == first
    assert len(set(again)) == 4


def test_an_append_only_history_is_read_back_from_any_store(ours: NewManager, store: Store) -> None:
    with holdfast.open("memory:") as memory:
        _say(ours(), "one", "two")
        store.copy(memory)
        copied: Session = memory.session(KEY, create=False)
        assert [message.text for message in copied.messages()] == ["one", "two"]


def test_two_scopes_do_not_share_a_key(workspace: Path, store: Store, tmp_path: Path) -> None:
    one, two = (
        SessionManager(workspace, store, scope=scope, agent="bot", sessions_root=tmp_path / "root")
        for scope in ("here", "there")
    )
    _say(one, "one")
    _say(two, "two", key="other")
    with pytest.raises(KeyTaken, match="'here'"):
        two.get_or_create(KEY)
    assert [row["key"] for row in two.list_sessions()] == ["other"]
    latest = store.latest(scope="here", agent="bot", cwd=str(workspace))
    assert latest is not None
    assert latest.key == KEY
