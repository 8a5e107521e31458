"""What nanobot's interface says of a session manager holds for ours, and for its own."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from nanobot.agent.loop import AgentLoop
from nanobot.providers.base import ProviderConversationState
from nanobot.session import SessionManager as FileSessionManager
from nanobot.session.manager import JsonlSessionStore, SessionStore
from nanobot.session.model_selection import SESSION_MODEL_PRESET_METADATA_KEY

from holdfast.adapters.nanobot import HoldfastSessionStore, Session, SessionManager
from tests.adapters.frameworks.nanobot.conftest import Conversation, Manager, NewManager

KEY = "telegram:42"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def _talk(manager: Manager, key: str = KEY) -> Conversation:
    session = manager.get_or_create(key)
    session.add_message("user", "Where is it?", media=["/a.png"])
    session.add_message("assistant", "", tool_calls=[CALL], reasoning_content="I should look.")
    session.add_message("tool", "In Oslo.", tool_call_id="c1", name="look")
    session.add_message("assistant", "It is in Oslo.", latency_ms=7)
    manager.save(session)
    return session


def test_a_session_is_one_object_until_it_is_invalidated(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    assert manager.get_or_create(KEY) is session is manager.get_cached(KEY)
    manager.invalidate(KEY)
    assert manager.get_cached(KEY) is None
    again = manager.get_or_create(KEY)
    assert again is not session
    assert again == session


def test_a_session_is_as_it_was_in_another_process(new_manager: NewManager) -> None:
    session = _talk(new_manager())
    found = new_manager().get_or_create(KEY)
    assert found == session
    assert found.get_history() == session.get_history()
    assert [item["role"] for item in found.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_session_that_was_not_saved_is_not_stored(new_manager: NewManager) -> None:
    new_manager().get_or_create(KEY).add_message("user", "Hello")
    assert new_manager().get_or_create(KEY).messages == []
    assert new_manager().read_session_file(KEY) is None
    assert new_manager().read_session_metadata(KEY) is None
    assert new_manager().read_session_snapshot(KEY) is None
    assert not new_manager().update_session_metadata(KEY, {"a": 1})
    assert not new_manager().delete_session(KEY)


def test_a_read_session_has_these_fields(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    read = manager.read_session_file(KEY)
    assert read == {
        "key": KEY,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": {},
        "messages": session.messages,
    }
    del read["messages"]
    assert manager.read_session_metadata(KEY) == read


def test_a_list_has_the_last_changed_session_first(new_manager: NewManager) -> None:
    manager = new_manager()
    for key in ("cli:a", "cli:b"):
        session = manager.get_or_create(key)
        session.add_message("assistant", "Welcome.")
        session.add_message("user", f"Hello   from\n{key}")
        session.metadata["title"] = key.upper()
        manager.save(session)
    session = manager.get_or_create("cli:empty")
    manager.save(session)
    rows = manager.list_sessions()
    assert [row["key"] for row in rows] == ["cli:empty", "cli:b", "cli:a"]
    assert [row["title"] for row in rows] == ["", "CLI:B", "CLI:A"]
    assert [row["preview"] for row in rows] == ["", "Hello from cli:b", "Hello from cli:a"]
    assert rows[0]["updated_at"] == session.updated_at.isoformat()
    assert all(set(row) == _ROW and isinstance(row["path"], str) for row in rows)


_ROW = {"key", "created_at", "updated_at", "title", "preview", "path"}


def test_without_a_users_message_a_reply_is_the_preview(new_manager: NewManager) -> None:
    manager = new_manager()
    session = manager.get_or_create(KEY)
    session.add_message("assistant", "Good morning.")
    manager.save(session)
    assert manager.list_sessions()[0]["preview"] == "Good morning."


def test_metadata_and_the_goal_are_kept(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    goal = {"status": "active", "objective": "Find it.", "ui_summary": "Find", "extra": None}
    session.metadata.update({"goal_state": goal, "none": None, "nested": {"a": [1, None]}})
    manager.save(session)
    assert new_manager().get_or_create(KEY).metadata == session.metadata
    del session.metadata["nested"]
    session.metadata["none"] = 1
    session.metadata["goal_state"] = None
    manager.save(session)
    assert new_manager().get_or_create(KEY).metadata == {"goal_state": None, "none": 1}


def test_metadata_is_changed_by_name(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.metadata.update({"a": 1, "b": None})
    manager.save(session)
    assert manager.update_session_metadata(KEY, {"b": 2, "c": {"d": 3}, "a": None})
    assert session.metadata == {"a": None, "b": 2, "c": {"d": 3}}
    assert new_manager().get_or_create(KEY).metadata == session.metadata
    manager.save(session)
    assert new_manager().get_or_create(KEY).metadata == {"a": None, "b": 2, "c": {"d": 3}}


def test_a_cleared_session_is_empty(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.metadata["_last_summary"] = {"text": "old"}
    session.clear()
    manager.save(session)
    found = new_manager().get_or_create(KEY)
    assert (found.messages, found.last_consolidated, found.metadata) == ([], 0, {})


def test_the_archived_part_is_kept(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.last_consolidated = 4
    session.add_message("user", "And now?")
    manager.save(session)
    found = new_manager().get_or_create(KEY)
    assert found.last_consolidated == found.last_archived == 4
    assert [item["content"] for item in found.get_history()] == ["And now?"]


def test_a_summary_is_put_before_the_last_message(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.add_message("user", "And now?")
    manager.save(session)
    session.commit_summary_checkpoint("It is in Oslo.", insert_at=4)
    manager.save(session)
    found = new_manager().get_or_create(KEY)
    assert found == session
    assert [item["content"] for item in found.get_history()][1:] == ["And now?"]


def test_a_message_that_is_changed_is_changed(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.messages[3]["latency_ms"] = 9
    session.messages[0]["content"] = "Where?"
    manager.save(session)
    assert new_manager().get_or_create(KEY).messages == session.messages


def test_the_providers_state_is_kept_and_dropped(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    state = ProviderConversationState("responses", "openai", "gpt", 1, {"id": "r1"}, [{"a": 1}])
    session.provider_state = state
    manager.save(session)
    assert new_manager().get_or_create(KEY).provider_state == state
    assert "provider_state" not in str(new_manager().read_session_file(KEY))
    session.provider_state = None
    manager.save(session)
    assert new_manager().get_or_create(KEY).provider_state is None


def test_a_checkpoint_of_a_turn_survives(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.metadata["runtime_checkpoint"] = {"phase": "tools", "pending_tool_calls": []}
    manager.save_runtime_checkpoint(session)
    found = new_manager().get_or_create(KEY)
    assert found.metadata["runtime_checkpoint"]["phase"] == "tools"
    del session.metadata["runtime_checkpoint"]
    manager.save_runtime_checkpoint(session)
    assert "runtime_checkpoint" not in new_manager().get_or_create(KEY).metadata


def test_a_transient_session_is_never_stored(new_manager: NewManager) -> None:
    manager = new_manager()
    session = manager.get_or_create_transient("tmp:1")
    session.add_message("user", "secret")
    manager.save(session)
    assert manager.flush_all() == 1
    assert new_manager().list_sessions() == []


def test_flush_all_saves_what_is_cached(new_manager: NewManager) -> None:
    manager = new_manager()
    for key in ("a:1", "a:2"):
        manager.get_or_create(key).add_message("user", key)
    assert manager.flush_all() == 2
    assert {row["key"] for row in new_manager().list_sessions()} == {"a:1", "a:2"}


def test_a_deleted_session_is_gone_and_reported(new_manager: NewManager) -> None:
    manager = new_manager()
    _talk(manager)
    deleted: list[str] = []
    manager.set_delete_observer(deleted.append)
    assert manager.delete_session(KEY)
    assert deleted == [KEY]
    assert manager.get_or_create(KEY).messages == []
    assert manager.list_sessions() == []


def test_a_session_that_was_deleted_under_it_is_stored_anew(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    new_manager().delete_session(KEY)
    session.add_message("user", "Still here?")
    manager.save(session)
    assert new_manager().get_or_create(KEY).messages == session.messages


def test_a_fork_has_what_came_before(new_manager: NewManager) -> None:
    manager = new_manager()
    session = _talk(manager)
    session.add_message("user", "And now?")
    session.metadata.update({"title": "Parcel", "color": "red"})
    manager.save(session)
    fork = manager.fork_session_before_user_index(KEY, "webui:fork", 1)
    assert fork is not None
    found = new_manager().get_or_create("webui:fork")
    assert found.messages == session.messages[:4]
    assert found.metadata == {"color": "red"}
    assert manager.fork_session_before_user_index(KEY, "webui:none", 5) is None


def test_a_preset_is_renamed_everywhere(new_manager: NewManager) -> None:
    manager = new_manager()
    for key in ("a:1", "a:2"):
        session = manager.get_or_create(key)
        session.metadata[SESSION_MODEL_PRESET_METADATA_KEY] = "fast"
        manager.save(session)
    assert new_manager().rename_model_preset("fast", "quick") == 2
    found = new_manager().read_session_metadata("a:1")["metadata"]
    assert found == {SESSION_MODEL_PRESET_METADATA_KEY: "quick"}


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x", "y": 1}]},
        {"role": "user", "content": None},
        {"role": "assistant", "content": "no", "thinking_blocks": [{"thinking": "b", "z": 1}, 3]},
        {"role": "tool", "content": "a result of no call"},
        {"role": "developer", "content": "?", "timestamp": "yesterday"},
        {"role": "nobody", "content": "?"},
        {"content": 5},
        {},
        {"role": "user", "content": "caf\x00", "_command": True, "deep": {"a": [[{}]]}},
        {"role": "user", "content": "x", 7: ("a", 1)},
    ],
    ids=str,
)
def test_any_message_comes_back(new_manager: NewManager, item: dict[Any, Any]) -> None:
    manager = new_manager()
    session = manager.get_or_create(KEY)
    session.messages.append(item)
    manager.save(session)
    session.add_message("user", "and on")
    manager.save(session)
    found = new_manager().get_or_create(KEY).messages
    assert len(found) == 2
    assert found[0] == {str(k): list(v) if k == 7 else v for k, v in item.items()}


def test_what_is_not_json_is_refused(new_manager: NewManager) -> None:
    manager = new_manager()
    session = manager.get_or_create(KEY)
    session.add_message("user", "x", data=b"x")
    with pytest.raises(TypeError):
        manager.save(session)


def test_a_safe_key_is_the_same_text(new_manager: NewManager) -> None:
    assert type(new_manager()).safe_key("a:b/c") == FileSessionManager.safe_key("a:b/c") == "a_b_c"


def test_nothing_of_the_interface_is_missing() -> None:
    for name in _public(FileSessionManager):
        assert callable(getattr(SessionManager, name))
    for name in _public(SessionStore):
        own, theirs = getattr(HoldfastSessionStore, name), getattr(JsonlSessionStore, name)
        assert list(inspect.signature(own).parameters) == list(inspect.signature(theirs).parameters)
    for name in ("retain_recent_legal_suffix", "enforce_file_cap", "get_history", "clear"):
        assert callable(getattr(Session, name))


def _public(cls: type) -> list[str]:
    return [name for name, value in vars(cls).items() if callable(value) and name[0] != "_"]


def test_the_agents_loop_takes_it_as_its_manager(manager: Manager, workspace: Path) -> None:
    accepted = inspect.signature(AgentLoop.__init__).parameters["session_manager"]
    assert "SessionManager" in str(accepted.annotation)
    assert isinstance(manager, FileSessionManager)
    assert manager.workspace == workspace
