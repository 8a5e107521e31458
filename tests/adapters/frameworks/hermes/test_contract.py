"""What Hermes' session manager does on its own database, ours does on a store."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acp_adapter.session import SessionManager as Theirs
from acp_adapter.session import SessionState
from hermes_state import SessionDB as TheirDB

from holdfast import Store
from holdfast.adapters.hermes import SessionDB, SessionManager

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
DIALOGUE: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 1 + 1?"},
    {
        "role": "assistant",
        "content": "Let me add.",
        "tool_calls": [CALL],
        "reasoning": "It is a sum.",
        "finish_reason": "tool_calls",
    },
    {"role": "tool", "tool_call_id": "c1", "tool_name": "add", "content": "2"},
    {
        "role": "assistant",
        "content": "It is 2.",
        "finish_reason": "stop",
        "reasoning_details": [{"type": "text", "text": "so it is"}],
    },
    {"role": "user", "content": [{"type": "text", "text": "And in words?"}]},
]


class Agent:
    model = "small-1"
    provider = "local"


@pytest.fixture
def managers(store: Store, tmp_path: Path) -> tuple[Any, Any]:
    return SessionManager(store, Agent), Theirs(Agent, TheirDB(tmp_path / "state.db"))


@pytest.fixture
def fresh(store: Store, tmp_path: Path, managers: object) -> Callable[[], tuple[Any, Any]]:
    """Return managers of the same databases without anything in memory."""
    return lambda: (SessionManager(store, Agent), Theirs(Agent, TheirDB(tmp_path / "state.db")))


def timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k != "timestamp"} for item in history]


def test_every_method_has_the_signature_of_theirs() -> None:
    for name, theirs in inspect.getmembers(Theirs, inspect.isfunction):
        if not name.startswith("__"):
            ours = inspect.signature(getattr(SessionManager, name)).parameters
            assert [*ours] == [*inspect.signature(theirs).parameters], name


def test_every_method_of_the_database_takes_what_theirs_takes_first() -> None:
    for name, ours in inspect.getmembers(SessionDB, inspect.isfunction):
        if not name.startswith("_") and name not in {"find", "open", "conversation"}:
            theirs = inspect.signature(getattr(TheirDB, name)).parameters
            given = inspect.signature(ours).parameters.values()
            names = {p.name for p in given if p.kind is not p.VAR_KEYWORD}
            assert "kwargs" in theirs or names <= {*theirs}, name


def test_a_conversation_is_restored_as_theirs_is(
    managers: tuple[Any, Any], fresh: Callable[[], tuple[Any, Any]]
) -> None:
    restored = []
    for manager, again in zip(managers, fresh(), strict=True):
        state = manager.create_session("/work")
        state.history = [dict(item) for item in DIALOGUE]
        manager.save_session(state.session_id)
        found = again.get_session(state.session_id)
        assert {type(item["timestamp"]) for item in found.history} == {float}
        restored.append((timeless(found.history), found.cwd, found.model, found.is_running))
    assert restored[0] == restored[1]
    assert restored[0][0] == DIALOGUE


def test_a_row_has_the_values_of_theirs(managers: tuple[Any, Any]) -> None:
    names = ("source", "model", "title", "ended_at", "end_reason", "parent_session_id")
    rows = []
    for manager in managers:
        state = manager.create_session("/work")
        state.history = [dict(item) for item in DIALOGUE]
        manager.save_session(state.session_id)
        row = manager._get_db().get_session(state.session_id)  # noqa: SLF001 - the server's way
        assert isinstance(row["started_at"], float)
        rows.append([row[name] for name in (*names, "message_count", "model_config")])
    assert rows[0] == rows[1]


def test_what_is_not_there_is_none_or_false(managers: tuple[Any, Any]) -> None:
    for manager in managers:
        assert manager.get_session("nothing") is None
        assert manager.get_session("") is None
        assert manager.fork_session("nothing") is None
        assert manager.update_cwd("nothing", "/") is None
        assert manager.remove_session("nothing") is False
        assert manager.save_session("nothing") is None
        assert manager.list_sessions() == []
        assert manager.cleanup() is None


def test_two_hundred_random_calls_have_the_results_of_theirs(
    managers: tuple[Any, Any], fresh: Callable[[], tuple[Any, Any]]
) -> None:
    chance = random.Random(21)
    names: list[list[str]] = [[], []]
    for number in range(200):
        action = chance.choice(
            ["create", "say", "say", "say", "fork", "cwd", "remove", "restart", "rewrite", "list"]
        )
        if action == "restart":
            managers = fresh()
            continue
        chosen = chance.randrange(len(names[0])) if names[0] else None
        results = [
            run(manager, action, known, chosen, number)
            for manager, known in zip(managers, names, strict=True)
        ]
        assert results[0] == results[1], (number, action)


def run(
    manager: SessionManager, action: str, known: list[str], chosen: int | None, number: int
) -> object:
    """Do one thing and return what it gave, with ids as the number of their session."""
    if action == "create":
        state = manager.create_session(f"/work/{number % 3}")
        known.append(state.session_id)
        return (state.cwd, state.model, state.history)
    if action == "list":
        wanted = f"/work/{number % 3}/" if number % 2 else None
        found = manager.list_sessions(wanted)
        return sorted((known.index(i["session_id"]), i["cwd"], i["history_len"]) for i in found)
    if chosen is None:
        return None
    if action == "fork":
        state = manager.fork_session(known[chosen], f"/fork/{number}")
        if state is not None:
            known.append(state.session_id)
    elif action == "cwd":
        state = manager.update_cwd(known[chosen], f"/work/{number % 3}")
    elif action == "remove":
        return manager.remove_session(known[chosen])
    else:
        state = manager.get_session(known[chosen])
        if state is not None:
            say(state, action, number)
            manager.save_session(known[chosen])
    return state and (state.cwd, state.model, timeless(state.history))


def say(state: SessionState, action: str, number: int) -> None:
    if action == "rewrite":
        state.history = state.history[: number % 4]
    elif len(state.history) % 2:
        state.history.append({"role": "assistant", "content": f"a {number}"})
    else:
        state.history.append({"role": "user", "content": f"q {number}"})


def test_lists_have_the_items_of_theirs(
    managers: tuple[Any, Any], fresh: Callable[[], tuple[Any, Any]]
) -> None:
    listed = []
    for manager, again in zip(managers, fresh(), strict=True):
        for text in ("first", "second"):
            state = manager.create_session("/work")
            state.history = [{"role": "user", "content": text}]
            manager.save_session(state.session_id)
        manager.create_session("/empty")
        for found in (manager.list_sessions("/work/."), again.list_sessions()):
            assert {type(item.pop("session_id")) for item in found} == {str}
            assert {type(item.pop("updated_at")) for item in found} == {str}
            listed.append(sorted(found, key=lambda item: str(item["title"])))
    assert listed[0] == listed[2]
    assert listed[1] == listed[3]
    assert [item["title"] for item in listed[0]] == ["first", "second"]


def test_cleanup_removes_the_acp_sessions_and_no_others(managers: tuple[Any, Any]) -> None:
    for manager in managers:
        state = manager.create_session("/work")
        db = manager._get_db()  # noqa: SLF001 - the server's way
        db.create_session("of-the-cli", "cli")
        db.append_message("of-the-cli", "user", "Stay")
        manager.cleanup()
        assert manager.get_session(state.session_id) is None
        assert [item["content"] for item in db.get_messages_as_conversation("of-the-cli")] == [
            "Stay"
        ]
