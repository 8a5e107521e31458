"""Workspace sessions in a store: as the manager of JSON files has them, without what it loses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import File, Message, Text, ToolCall, ToolResult
from holdfast.adapters.workspace_sessions import (
    ConversationHistory,
    SessionConfig,
    SessionData,
    SessionManager,
)
from holdfast.errors import BadMessage, OutcomeUnknown, SessionBusy
from holdfast.testing import legality
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply

ROOT = Path(__file__).parents[2]
LONG = "a long text, " * 800
CALL = {"id": "c-1", "type": "function", "function": {"name": "run", "arguments": '{"n": 1}'}}
TURN: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Run it", "timestamp": 1.0},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm"},
    {"role": "tool", "tool_call_id": "c-1", "content": "done", "name": "run"},
    {"role": "assistant", "content": "It ran.", "extra": {"a": [1, 1.0, True, None]}},
]
OTHERS: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Anthropic's"},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"},
            },
        ],
    },
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]},
    {"role": "narrator", "content": "of no format"},
    {"role": "user", "content": {"parts": ["of no format"]}},
    {"note": "no message at all"},
    {"role": "user", "content": "\ud800 \x00 \udcff"},
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as opened:
        yield opened


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


def manager_of(
    store: holdfast.Store, workspace: str | Path, config: SessionConfig | None = None
) -> SessionManager:
    return SessionManager(config, workspace, store=store)


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def texts(data: SessionData | None) -> list[str]:
    return [] if data is None else [message["content"] for message in data.messages]


# ------------------------------------------------------------------------------- the interface


def test_a_conversation_comes_back_as_it_was_saved(store: holdfast.Store, workspace: Path) -> None:
    items = [*TURN, *OTHERS]
    usage = {"input": 10, "output": 4}
    saved = manager_of(store, workspace).save(items, model="small-1", token_usage=usage)
    loaded = manager_of(store, workspace).load_latest()
    assert loaded == saved
    assert as_json(loaded.messages) == as_json(items)
    assert (loaded.version, loaded.model, loaded.token_usage) == (1, "small-1", usage)
    assert loaded.workspace_root == str(workspace)
    assert loaded.created_at <= loaded.updated_at


def test_messages_are_messages_of_ours(store: holdfast.Store, workspace: Path) -> None:
    session_id = manager_of(store, workspace).save([*TURN, *OTHERS[:3]]).session_id
    session = store.session(session_id, create=False)
    messages = session.messages()
    assert [m.role for m in messages[:5]] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2].tool_calls == (ToolCall("c-1", "run", '{"n": 1}'),)
    assert messages[6].tool_calls == (ToolCall("t", "n", {}),)
    assert store.blob(str(messages[5].files[0].sha256)) == b"\x89PN"
    assert session.info().cwd == str(workspace)
    for provider in legality.PROVIDERS:
        window = session.window(provider=provider)
        assert legality.problems(provider, window.messages, window.system) == []


def test_a_text_is_stored_once(store: holdfast.Store, workspace: Path) -> None:
    for item in (
        said(LONG),
        {"role": "x", "content": LONG},
        {"role": "user", "content": [{"type": "text", "text": LONG}]},
    ):
        session_id = manager_of(store, workspace).save([item]).session_id
        (message,) = store.session(session_id).messages()
        assert msgspec.json.encode(message).count(LONG.encode()) == 1


def test_a_save_stores_only_what_is_new(store: holdfast.Store, workspace: Path) -> None:
    manager = manager_of(store, workspace)
    for end in range(1, len(TURN) + 1):
        manager.save(TURN[:end])
    manager.save(TURN)
    session = store.session(manager.session_id)
    assert len(session.messages()) == len(TURN)
    assert len(session.branches()) == 1
    manager.save(TURN, model="small-2")
    assert session.info().model == "small-2"
    assert len(session.messages()) == len(TURN)


def test_nothing_is_stored_of_an_empty_conversation(store: holdfast.Store, workspace: Path) -> None:
    manager = manager_of(store, workspace)
    assert manager.save([]).messages == []
    assert manager.load_latest() is None
    assert manager.restore() is None
    assert len(store.sessions()) == 0


def test_a_run_is_restored_and_continued(store: holdfast.Store, workspace: Path) -> None:
    first = manager_of(store, workspace)
    first.save([said("one"), said("two", "assistant")])
    second = manager_of(store, workspace)
    assert second.session_id != first.session_id
    history = ConversationHistory(second)
    restored = second.restore(history=history)
    assert restored is not None
    assert second.session_id == restored.session_id == first.session_id
    history.add(said("three"))
    assert texts(second.save(history)) == texts(second.load_latest()) == ["one", "two", "three"]
    assert len(store.sessions()) == 1


def test_any_history_with_its_two_methods_is_taken(store: holdfast.Store, workspace: Path) -> None:
    class Own:
        def __init__(self) -> None:
            self.lines: list[str] = []

        def to_serializable(self) -> list[dict[str, Any]]:
            return [said(line) for line in self.lines]

        def restore_from(self, messages: list[dict[str, Any]]) -> None:
            self.lines = [message["content"] for message in messages]

    own, again = Own(), Own()
    own.lines = ["one", "two"]
    manager_of(store, workspace).save(own)
    manager_of(store, workspace).restore(history=again)
    assert again.lines == ["one", "two"]


def test_session_data_is_saved_again(store: holdfast.Store, workspace: Path) -> None:
    manager_of(store, workspace).save([said("one")], model="m", token_usage={"input": 1})
    manager = manager_of(store, workspace)
    data = manager.load_latest()
    assert data is not None
    for text in ("two", "three"):
        data.messages.append(said(text))
        manager.save(data)
    loaded = manager.load_latest()
    assert texts(loaded) == ["one", "two", "three"]
    assert loaded is not None
    assert (loaded.model, loaded.token_usage) == ("m", {"input": 1})
    assert len(store.session(data.session_id).branches()) == 1


def test_a_json_file_is_taken_over(store: holdfast.Store, workspace: Path) -> None:
    old = SessionData(session_id="old_20260101_000000", workspace_root=str(workspace))
    old.messages = [said("one"), said("two", "assistant")]
    text = old.model_dump_json(indent=2)
    assert json.loads(text)["version"] == 1
    assert "seen" not in json.loads(text)
    for _ in range(2):
        manager = manager_of(store, workspace)
        data = manager.restore(SessionData.model_validate_json(text))
        assert data is not None
        data.messages.append(said("more"))
        manager.save(data)
    assert texts(manager_of(store, workspace).load_latest()) == ["one", "two", "more", "more"]
    assert [info.key for info in store.sessions()] == ["old_20260101_000000"]


def test_a_compaction_leaves_what_it_took_out_on_a_branch(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    manager.save([said("one"), said("two"), said("three")])
    manager.save([said("summary"), said("three")], token_usage={"input": 1})
    manager.save([said("summary"), said("three"), said("four")])
    assert texts(manager.load_latest()) == ["summary", "three", "four"]
    session = store.session(manager.session_id)
    assert [m.text for m in session.messages(branch=1)] == ["one", "two", "three"]
    manager.save([said("summary")])
    manager.save([said("summary"), said("three")])
    assert texts(manager.load_latest()) == ["summary", "three"]


def test_what_another_framework_wrote_is_in_the_conversation(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    manager.save([said("Look twice")])
    session = store.session(manager.session_id)
    calls = [ToolCall(f"c-{n}", "look", {"n": n}) for n in (1, 2)]
    results = tuple(holdfast.ToolResult(f"c-{n}", f"seen {n}") for n in (1, 2))
    session.append(Message.assistant((), tool_calls=calls), Message(role="tool", parts=results))
    session.append(Message.assistant("Twice."))
    session.summarize("They looked.")
    data = manager.restore()
    assert data is not None
    assert [item["role"] for item in data.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    data.messages[3:] = [said("other")]
    manager.save(data)
    loaded = manager.load_latest()
    assert loaded is not None
    assert loaded.messages == data.messages


def test_old_sessions_go_to_the_trash(store: holdfast.Store, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        for text in ("old", "pinned"):
            manager_of(store, place).save([said(text)])
            if text == "pinned":
                store.session(str(store.sessions(limit=1).items[0].key)).update(pinned=True)
    config = SessionConfig(max_session_age_hours=0)
    manager = manager_of(store, places[0], config)
    manager.save([said("this run")])
    assert manager_of(store, places[0]).cleanup_old() == 0
    assert manager.cleanup_old() == 1
    assert manager.cleanup_old() == 0
    (trashed,) = store.sessions(trashed=True)
    assert trashed.preview == "old"
    store.restore(trashed.id)
    assert len(store.sessions(cwd=str(places[1].resolve()))) == 2


def test_session_directories_are_apart(store: holdfast.Store, workspace: Path) -> None:
    configs = [SessionConfig(session_dir=name) for name in (".one", ".two")]
    for config in configs:
        manager_of(store, workspace, config).save([said(config.session_dir)])
    for config in configs:
        assert texts(manager_of(store, workspace, config).load_latest()) == [config.session_dir]


def test_what_is_no_message_is_refused_whole(store: holdfast.Store, workspace: Path) -> None:
    manager = manager_of(store, workspace)
    for wrong in ("text", {"role": "user", "content": {1, 2}}, said(float("nan"))):  # type: ignore[arg-type]
        with pytest.raises(BadMessage):
            manager.save([said("one"), wrong])  # type: ignore[list-item]
        with pytest.raises(BadMessage):
            manager.append(said("one"), wrong)  # type: ignore[arg-type]
    assert manager.load_latest() is None
    manager.save([said("one")])
    assert texts(manager.load_latest()) == ["one"]


# ----------------------------------------------------------------------------------- the losses


def test_two_runs_of_the_same_second_are_two(store: holdfast.Store, workspace: Path) -> None:
    managers = [manager_of(store, workspace) for _ in range(20)]
    for number, manager in enumerate(managers):
        manager.save([said(f"run {number}")])
    assert len({manager.session_id for manager in managers}) == 20
    assert sorted(str(info.preview) for info in store.sessions()) == sorted(
        f"run {number}" for number in range(20)
    )
    assert texts(managers[0].load_latest()) == ["run 19"]


def test_two_writers_of_a_session_keep_both_ones_messages(
    store: holdfast.Store, workspace: Path
) -> None:
    manager_of(store, workspace).save([said("first")])
    one, two = manager_of(store, workspace), manager_of(store, workspace)
    lists = [restored.messages for manager in (one, two) if (restored := manager.restore())]
    for number in range(3):
        for name, manager, items in zip(("one", "two"), (one, two), lists, strict=True):
            items.append(said(f"{name} {number}"))
            manager.save(items)
    expected = [f"{name} {number}" for number in range(3) for name in ("one", "two")]
    assert texts(one.load_latest()) == ["first", *expected]


def test_a_compaction_keeps_what_another_writer_stored_meanwhile(
    store: holdfast.Store, workspace: Path
) -> None:
    one, two = manager_of(store, workspace), manager_of(store, workspace)
    one.save([said("one"), said("two")])
    other = two.restore()
    assert other is not None
    two.save([*other.messages, said("from two")])
    one.save([said("one"), said("two"), said("three")])
    one.save([said("summary")])
    assert texts(one.load_latest()) == ["summary", "from two"]
    two.save([*other.messages, said("from two"), said("more from two")])
    assert texts(one.load_latest()) == ["summary", "from two", "more from two"]
    two.save([*other.messages, said("changed")])
    assert texts(one.load_latest()) == ["summary", "from two", "more from two", "changed"]


def test_a_stale_copy_of_a_conversation_takes_nothing_out(
    store: holdfast.Store, workspace: Path
) -> None:
    manager_of(store, workspace).save([said("one")])
    stale = manager_of(store, workspace).load_latest()
    assert stale is not None
    stale = SessionData.model_validate(stale.model_dump())
    manager = manager_of(store, workspace)
    manager.restore()
    manager.append(said("two"))
    stale.messages.append(said("three"))
    manager_of(store, workspace).save(stale)
    assert texts(manager.load_latest()) == ["one", "two", "three"]


def test_a_crash_in_the_middle_of_a_turn_loses_no_message(tmp_path: Path) -> None:
    program = """
import sys, threading
import holdfast
from holdfast.adapters.workspace_sessions import ConversationHistory, SessionManager

store = holdfast.open(sys.argv[1], durability="process")
history = ConversationHistory(SessionManager(None, sys.argv[2], store=store))
history.add({"role": "user", "content": "Run it"})
call = {"id": "c-1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
history.add({"role": "assistant", "content": None, "tool_calls": [call]})
print("running", flush=True)
threading.Event().wait()
"""
    path = tmp_path / "agent.db"
    killed = subprocess.Popen(
        [sys.executable, "-c", program, path, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    with killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "running\n"
        killed.kill()
    with holdfast.open(path) as store:
        manager = manager_of(store, tmp_path)
        history = ConversationHistory(manager)
        manager.restore(history=history)
        assert [item["role"] for item in history.to_serializable()] == ["user", "assistant"]
        history.add({"role": "tool", "tool_call_id": "c-1", "content": "not known"})
        window = store.session(manager.session_id).window()
        assert [item["role"] for item in window] == ["user", "assistant", "tool"]


def test_a_byte_that_is_not_utf_8_loses_no_session(store: holdfast.Store, tmp_path: Path) -> None:
    workspace = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    output = b"caf\xe9".decode("utf-8", "surrogateescape")
    manager = manager_of(store, workspace)
    manager.save([said(output)])
    loaded = manager_of(store, workspace).load_latest()
    assert texts(loaded) == [output]
    assert loaded is not None
    assert loaded.workspace_root == str(workspace.resolve())
    file = loaded.model_dump_json().replace("\\udce9", "\xe9").encode("latin-1")
    assert texts(SessionData.model_validate_json(file)) == [output]


def test_workspaces_whose_names_collide_are_apart(store: holdfast.Store, tmp_path: Path) -> None:
    names = ("a/b", "a_b", "A/b", "a", "a%2Fb")
    for name in names:
        manager_of(store, tmp_path / name).save([said(name)])
    for name in names:
        assert texts(manager_of(store, tmp_path / name).load_latest()) == [name]


@pytest.mark.parametrize("saved_before", [[], [said("one")]], ids=["first", "later"])
def test_a_retry_of_a_save_stores_a_message_once(
    store: holdfast.Store,
    workspace: Path,
    saved_before: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = manager_of(store, workspace)
    manager.save(saved_before)
    owner, name = (holdfast.Session, "append") if saved_before else (holdfast.Store, "create")
    write = getattr(owner, name)

    def write_without_answer(*arguments: object, **options: object) -> None:
        write(*arguments, **options)
        raise OutcomeUnknown("the connection broke")

    items = [said("one"), said("two"), said("two")]
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, write_without_answer)
        with pytest.raises(OutcomeUnknown):
            manager.save(items)
    manager.save([*items, said("three")])
    assert texts(manager.load_latest()) == ["one", "two", "two", "three"]
    assert len(store.sessions()) == 1


def test_many_writers_of_a_session_keep_all_messages(
    store: holdfast.Store, workspace: Path
) -> None:
    manager_of(store, workspace).save([said("first")])

    names = ("one", "two", "three", "compacting")
    managers = {name: manager_of(store, workspace) for name in names}
    for manager in managers.values():
        manager.restore()

    def write(name: str) -> None:
        manager, items = managers[name], [said("first")]
        for number in range(10):
            items.append(said(f"{name} {number}"))
            manager.save(items)
            if name == "compacting":
                items = items[-2:]
                manager.save(items)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(write, names))
    found = texts(manager_of(store, workspace).load_latest())
    for name in names[:3]:
        mine = [text for text in found if text.split()[0] == name]
        assert mine == [f"{name} {number}" for number in range(10)]
    assert found.count("compacting 9") == 1


def test_while_another_holds_a_turn_messages_are_added_but_not_taken_out(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    manager.save([said("one")])
    with store.session(manager.session_id).turn():
        manager.save([said("one"), said("two")])
        with pytest.raises(SessionBusy, match="open turn"):
            manager.save([said("summary")])
    manager.save([said("summary")])
    assert texts(manager.load_latest()) == ["summary"]


def test_two_writers_that_change_the_same_list_store_no_message_twice(
    store: holdfast.Store, workspace: Path
) -> None:
    one, two = manager_of(store, workspace), manager_of(store, workspace)
    one.save([said("a"), said("b"), said("c")])
    two.restore()
    one.save([said("b"), said("c"), said("one's d")])
    two.save([said("two's a"), said("b"), said("c"), said("two's d")])
    assert texts(one.load_latest()) == ["two's a", "b", "c", "two's d", "one's d"]


def test_a_message_that_was_moved_is_not_taken_for_one_that_is_added(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    for items in (["a", "b"], ["b"], ["b", "b"], ["b", "a", "b"], ["a", "b", "b", "b"]):
        manager.save([said(text) for text in items])
        assert texts(manager.load_latest()) == items


def test_what_is_said_in_place_of_a_summarized_message_is_in_the_window(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    manager.save([said("a"), said("b")])
    session = store.session(manager.session_id)
    session.summarize("a and b")
    manager.append(said("c"))
    manager.save([said("a"), said("b"), said("changed")])
    assert [message.text for message in session.messages()] == ["a", "b", "a and b", "changed"]
    manager.save([said("again")])
    assert [message.text for message in session.messages()] == ["again"]
    assert [message["content"] for message in session.window().messages] == ["again"]


def test_a_session_that_was_trashed_in_a_run_is_continued(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    history: list[dict[str, Any]] = []
    for number in range(3):
        history.append(said(f"message {number}"))
        manager.save(history)
        store.trash(manager.session_id)
    store.purge(manager.session_id)
    assert manager.load_latest() is None
    manager.save(history)
    assert texts(manager.load_latest()) == ["message 0", "message 1", "message 2"]
    store.trash(manager.session_id)
    manager.append(said("more"))
    assert texts(manager.load_latest()) == ["message 0", "message 1", "message 2", "more"]
    store.purge(manager.session_id)
    manager.append(said("after"))
    assert texts(manager.load_latest()) == ["after"]


def test_images_beside_results_of_another_program_come_back(
    store: holdfast.Store, workspace: Path
) -> None:
    manager = manager_of(store, workspace)
    manager.save([said("Look")])
    parts = (ToolResult("c-1", "done"), Text("See"), File(mime="image/png", data=b"\x89PNG"))
    store.session(manager.session_id).append(Message(role="user", parts=parts))
    assert "data:image/png;base64,iVBORw==" in as_json(manager.load_latest().messages)  # type: ignore[union-attr]


def test_the_half_reply_of_a_crashed_turn_of_another_program(tmp_path: Path) -> None:
    crash_in_a_reply(tmp_path / "agent.db", "run-1")
    with holdfast.open(tmp_path / "agent.db", durability="process") as store:
        manager = SessionManager(SessionConfig(), tmp_path, store=store)
        history = ConversationHistory(manager)
        manager.restore(
            SessionData(session_id="run-1", workspace_root=str(tmp_path), messages=[]),
            history=history,
        )
        history.add({"role": "user", "content": "And now?"})
        found = [message.text for message in store.session("run-1").messages()]
    assert found == [ASKED, HALF, "And now?"]
