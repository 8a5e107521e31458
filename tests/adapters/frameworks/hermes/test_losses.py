"""What Hermes' own store loses, and this one keeps; each test is named after a loss."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Head, Message, Record, Session, Store
from holdfast.adapters.hermes import SessionDB, SessionManager
from holdfast.errors import BadMessage, OutcomeUnknown, SessionBusy, StoreUnavailable
from tests.adapters.crashed_turn import ASKED, HALF, crash_in_a_reply

ROOT = Path(__file__).parents[4]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def texts(store: Store, session_id: str) -> list[str]:
    return [message.text for message in store.session(session_id, create=False).messages()]


def started(manager: SessionManager, *texts: str) -> str:
    state = manager.create_session("/work")
    state.history = [user(text) for text in texts]
    manager.save_session(state.session_id)
    return str(state.session_id)


def test_two_writers(store: Store, manager: SessionManager, other: SessionManager) -> None:
    id = started(manager, "one")
    mine, theirs = manager.get_session(id), other.get_session(id)
    theirs.history.append(reply("theirs"))
    other.save_session(id)
    mine.history.append(reply("mine"))
    manager.save_session(id)
    assert texts(store, id) == ["one", "theirs", "mine"]
    assert "theirs" in str(mine.history)
    assert "mine" not in str(theirs.history)
    other.save_session(id)
    assert "mine" in str(theirs.history)
    assert texts(store, id) == ["one", "theirs", "mine"]


def test_a_message_that_came_while_another_writer_compacted(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    id = started(manager, "one", "two", "three")
    theirs = other.get_session(id)
    theirs.history.append(reply("meanwhile"))
    other.save_session(id)
    manager.get_session(id).history = [user("summary of all")]
    manager.save_session(id)
    assert texts(store, id) == ["summary of all", "meanwhile"]
    assert [item["content"] for item in manager.get_session(id).history] == texts(store, id)


def test_what_was_compacted(store: Store, manager: SessionManager) -> None:
    id = started(manager, "one", "two", "three")
    state = manager.get_session(id)
    state.history = [state.history[0], user("summary")]
    manager.save_session(id)
    session = store.session(id, create=False)
    assert texts(store, id) == ["one", "summary"]
    assert [message.text for message in session.messages(branch=1)] == ["one", "two", "three"]
    assert session.messages()[0].id == session.messages(branch=1)[0].id
    assert SessionDB(store).has_archived_messages(id)


def test_a_reset_of_an_agent_that_stores_its_messages_itself(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    state = manager.create_session("/work")
    db = manager._get_db()  # noqa: SLF001 - the agent gets it so
    state.agent._session_db, state.agent._session_db_created = db, True  # noqa: SLF001 - an AIAgent's
    db.append_message(state.session_id, "user", "one")
    db.append_message(state.session_id, "assistant", "two", finish_reason="stop")
    state.history = [user("one"), reply("two")]
    manager.save_session(state.session_id)
    assert texts(store, state.session_id) == ["one", "two"]
    state.history.clear()
    manager.save_session(state.session_id)
    assert other.get_session(state.session_id).history == []
    session = store.session(state.session_id, create=False)
    assert [message.text for message in session.messages(branch=1)] == ["one", "two"]


def test_a_crash_in_mid_turn(store: Store, tmp_path: Path) -> None:
    program = f"""
import sys, holdfast
from holdfast.adapters.hermes import SessionManager
store = holdfast.open({os.fspath(tmp_path / "agent.db")!r})
manager = SessionManager(store, object)
state = manager.create_session("/work")
db = manager._get_db()
db.append_message(state.session_id, "user", "Delete the branch")
call = {{"id": "c1", "type": "function", "function": {{"name": "git", "arguments": "{{}}"}}}}
db.append_message(state.session_id, "assistant", "", tool_calls=[call])
print(state.session_id, flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        id = child.stdout.readline().strip()
        child.kill()
    restored = SessionManager(store, object).get_session(id)
    assert [item["role"] for item in restored.history] == ["user", "assistant"]
    assert restored.history[1]["tool_calls"][0]["function"]["name"] == "git"


def test_a_save_whose_outcome_was_unknown_is_not_stored_twice(
    store: Store, manager: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = started(manager, "one")
    append = Session.append

    def stored_but_not_known(
        session: Session, *entries: Message | Record, **options: object
    ) -> Head:
        append(session, *entries, **options)  # type: ignore[arg-type]
        raise OutcomeUnknown("the connection was lost")

    manager.get_session(id).history += [reply("two"), user("two")]
    with monkeypatch.context() as patch:
        patch.setattr(Session, "append", stored_but_not_known)
        with pytest.raises(OutcomeUnknown):
            manager.save_session(id)
    manager.save_session(id)
    assert texts(store, id) == ["one", "two", "two"]
    with monkeypatch.context() as patch:
        manager.get_session(id).history.append(reply("three"))
        patch.setattr(Session, "append", stored_but_not_known)
        with pytest.raises(OutcomeUnknown):
            manager.save_session(id)
    manager.get_session(id).history = [user("summary of all")]
    manager.save_session(id)
    assert texts(store, id) == ["summary of all"]


def test_equal_messages_of_two_writers(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    id = started(manager, "one")
    for one in (manager.get_session(id), other.get_session(id)):
        one.history.append(reply("yes"))
    manager.save_session(id)
    other.save_session(id)
    assert texts(store, id) == ["one", "yes", "yes"]


def test_a_history_that_could_not_be_read(store: Store, manager: SessionManager) -> None:
    """Hermes' own manager takes it for an empty one, and then saves that."""
    id = started(manager, "one")
    again = SessionManager(store, object)
    store.close()
    with pytest.raises(StoreUnavailable):
        again.get_session(id)
    with pytest.raises(StoreUnavailable):
        manager.save_session(id)
    with pytest.raises(StoreUnavailable):
        manager.list_sessions()
    with pytest.raises(StoreUnavailable):
        manager.remove_session(id)


def test_a_session_whose_agent_could_not_be_made(store: Store, manager: SessionManager) -> None:
    """Hermes' own manager says that there is no such session, and its server makes a new one."""

    def refuse() -> object:
        raise ValueError("no model")

    id = started(manager, "one")
    with pytest.raises(ValueError, match="no model"):
        SessionManager(store, refuse).get_session(id)
    assert texts(store, id) == ["one"]


@pytest.mark.parametrize(
    ("one", "another"),
    [("a/b", "a_b"), ("A", "a"), ("x" * 4096, "x" * 4095), (os.fsdecode(b"\xff"), "\ufffd")],
    ids=["path", "case", "long", "byte"],
)
def test_colliding_keys(store: Store, one: str, another: str) -> None:
    db = SessionDB(store)
    for id in (one, another):
        db.create_session(id, "acp")
        db.append_message(id, "user", f"of {id}")
    assert texts(store, one) == [f"of {one}"]
    assert texts(store, another) == [f"of {another}"]


def test_bytes_that_are_not_utf_8(store: Store, manager: SessionManager) -> None:
    cwd = os.fsdecode(b"/work/caf\xe9")
    state = manager.create_session(cwd)
    state.history = [user("half a \ud83d and a \0")]
    manager.save_session(state.session_id)
    restored = SessionManager(store, object).get_session(state.session_id)
    assert restored.cwd == cwd
    assert restored.history[0]["content"] == "half a \ud83d and a \0"
    assert [item["cwd"] for item in manager.list_sessions(cwd)] == [cwd]


def test_what_came_while_two_threads_restored_a_session(
    store: Store, manager: SessionManager
) -> None:
    """Both get one state, and what was stored between their reads is in the history for good."""
    id = started(manager, "one")
    second: list[Any] = []

    class Agent:
        def __init__(self) -> None:
            if not second:
                second.append(None)
                second[0] = again.get_session(id)
                SessionDB(store).append_message(id, "user", "meanwhile")

    again = SessionManager(store, Agent)
    first = again.get_session(id)
    assert first is second[0]
    first.history.append(reply("two"))
    again.save_session(id)
    assert texts(store, id) == ["one", "meanwhile", "two"]


def test_two_sessions_of_one_second(manager: SessionManager) -> None:
    ids = {manager.create_session("/work").session_id for _ in range(20)}
    assert len(ids) == 20


def test_fields_that_hermes_has_no_column_for(store: Store, manager: SessionManager) -> None:
    id = started(manager)
    item = {"role": "assistant", "content": " spaces ", "cache_control": {"type": "ephemeral"}}
    manager.get_session(id).history = [item]
    manager.save_session(id)
    restored = SessionManager(store, object).get_session(id).history[0]
    assert {**restored, "timestamp": None} == {**item, "timestamp": None}


def test_a_removed_session(store: Store, manager: SessionManager) -> None:
    id = started(manager, "one")
    db = SessionDB(store)
    db.create_session("worker", "acp", parent_session_id=id, model_config={"_delegate_from": id})
    assert store.session("worker", create=False).info().relation == "delegate"
    assert "worker" not in [row["id"] for row in db.list_sessions_rich("acp")]
    assert manager.remove_session(id)
    assert manager.get_session(id) is None
    assert db.get_session("worker") is None
    store.restore(id)
    assert [item["content"] for item in manager.get_session(id).history] == ["one"]


def test_a_session_that_another_process_removed_is_saved_whole(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    id = started(manager, "one")
    other.remove_session(id)
    manager.get_session(id).history.append(reply("two"))
    manager.save_session(id)
    assert texts(store, id) == ["one", "two"]


def test_counts_of_two_agents(store: Store) -> None:
    one, another = SessionDB(store), SessionDB(store)
    one.create_session("s", "acp")
    one.update_token_counts("s", input_tokens=3, billing_provider="local")
    another.update_token_counts("s", input_tokens=4, output_tokens=2)
    row = one.get_session("s")
    assert row is not None
    assert (row["input_tokens"], row["output_tokens"], row["billing_provider"]) == (7, 2, "local")


def test_columns_that_are_set_one_by_one(store: Store) -> None:
    one, another = SessionDB(store), SessionDB(store)
    one.create_session("s", "acp", model="m", model_config={"cwd": "/a"}, user_id="u")
    another.create_session("s", "cli", model="other", system_prompt="Be kind.", cwd="/b")
    one.update_session_meta("s", '{"cwd": "/c"}')
    one.end_session("s", "compression")
    another.end_session("s", "agent_close")
    row = one.get_session("s")
    assert row is not None
    assert [row[name] for name in ("source", "model", "user_id", "cwd")] == ["acp", "m", "u", "/c"]
    assert (row["system_prompt"], row["end_reason"]) == ("Be kind.", "compression")
    one.reopen_session("s")
    again = another.get_session("s")
    assert again is not None
    assert (again["ended_at"], again["end_reason"], again["user_id"]) == (None, None, "u")


# ------------------------------------------------------------------------ what the store promises


def test_a_text_is_stored_once(store: Store, manager: SessionManager) -> None:
    text = "a long answer " * 700
    id = started(manager)
    manager.get_session(id).history = [{**reply(text), "reasoning": "because", "api_content": text}]
    manager.save_session(id)
    message = store.session(id, create=False).messages()[0]
    assert msgspec.json.encode(message).count(text.encode()) == 1


def test_a_fork_shares_its_history(store: Store, manager: SessionManager) -> None:
    id = started(manager, "one", "two")
    manager.get_session(id).history.append(reply("not saved yet"))
    fork = manager.fork_session(id, "/elsewhere")
    assert fork is not None
    session = store.session(fork.session_id, create=False)
    assert session.info().relation == "fork"
    assert [link.key for link in session.lineage()] == [id, fork.session_id]
    fork.history.append(user("only here"))
    manager.save_session(fork.session_id)
    assert texts(store, id) == ["one", "two", "not saved yet"]
    assert texts(store, fork.session_id) == ["one", "two", "not saved yet", "only here"]
    assert SessionManager(store, object).get_session(fork.session_id).cwd == "/elsewhere"


def test_a_rewrite_is_refused_while_another_turn_is_open_and_an_append_is_not(
    store: Store, manager: SessionManager
) -> None:
    id = started(manager, "one")
    state = manager.get_session(id)
    with store.session(id).turn() as turn:
        turn.user("from elsewhere")
        state.history.append(reply("two"))
        manager.save_session(id)
        state.history = [user("rewritten")]
        with pytest.raises(SessionBusy, match="has an open turn"):
            manager.save_session(id)
    assert texts(store, id) == ["one", "from elsewhere", "two"]
    manager.save_session(id)
    assert texts(store, id) == ["rewritten"]


def test_what_is_no_message_is_refused_and_nothing_is_stored(
    store: Store, manager: SessionManager
) -> None:
    id = started(manager, "one")
    manager.get_session(id).history += [user("two"), {"role": "narrator", "content": "Meanwhile"}]
    with pytest.raises(BadMessage, match="narrator"):
        manager.save_session(id)
    assert texts(store, id) == ["one"]


def test_scopes_and_tenants_are_apart(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with holdfast.open(path, tenant="a") as one, holdfast.open(path, tenant="b") as another:
        work, play = (
            SessionManager(one, object, scope="work"),
            SessionManager(one, object, scope="play"),
        )
        id = started(work, "one")
        assert [item["session_id"] for item in work.list_sessions()] == [id]
        assert play.list_sessions() == []
        play.cleanup()
        assert texts(one, id) == ["one"]
        assert SessionManager(another, object).get_session(id) is None


def test_what_was_said_after_another_writer_rewrote_the_history(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    id = started(manager, "one")
    theirs = other.get_session(id)
    theirs.history = [user("all")]
    other.save_session(id)
    theirs.history.append(reply("after it"))
    other.save_session(id)
    mine = manager.get_session(id)
    mine.history = [user("changed"), reply("two")]
    manager.save_session(id)
    assert texts(store, id) == ["changed", "two", "all", "after it"]
    assert [item["content"] for item in mine.history] == texts(store, id)


def test_what_another_writer_said_before_an_agent_that_stores_its_messages_is_reset(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    state = manager.create_session("/work")
    db = manager._get_db()  # noqa: SLF001 - the agent gets it so
    state.agent._session_db, state.agent._session_db_created = db, True  # noqa: SLF001 - an AIAgent's
    db.append_message(state.session_id, "user", "one")
    state.history = [user("one")]
    manager.save_session(state.session_id)
    other.get_session(state.session_id).history.append(reply("theirs"))
    other.save_session(state.session_id)
    db.append_message(state.session_id, "assistant", "two")
    state.history.append(reply("two"))
    manager.save_session(state.session_id)
    state.history = [user("summary")]
    manager.save_session(state.session_id)
    assert texts(store, state.session_id) == ["summary", "theirs"]


def test_two_writers_that_change_one_history_store_no_message_twice(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    id = started(manager, "one", "two", "two")
    store.session(id).replace([Message.user("a"), Message.assistant("b"), Message.user("c")])
    managers = SessionManager(store, object), SessionManager(store, object)
    states = [each.get_session(id) for each in managers]
    for name, each, state in zip(("one", "two"), managers, states, strict=True):
        state.history = [reply(f"{name}'s a"), *state.history[1:]]
        each.save_session(id)
    assert texts(store, id) == ["two's a", "b", "c", "one's a"]


def test_a_message_that_is_said_again_in_another_place(
    store: Store, manager: SessionManager
) -> None:
    id = started(manager, "a")
    state = manager.get_session(id)
    for items in ([user("a"), reply("b")], [reply("b")], [reply("b"), reply("b")]):
        state.history = items
        manager.save_session(id)
        assert texts(store, id) == [item["content"] for item in items]


def test_the_history_of_a_session_that_another_writer_made_again(
    store: Store, manager: SessionManager, other: SessionManager
) -> None:
    id = started(manager, "one")
    other.remove_session(id)
    store.session(id, metadata={"hermes.source": "acp"}).append(Message.assistant("new"))
    state = manager.get_session(id)
    state.history.append(reply("two"))
    manager.save_session(id)
    assert texts(store, id) == ["new", "one", "two"]


def test_a_history_that_was_rewritten_is_not_behind_a_summary_of_another_program(
    store: Store, manager: SessionManager
) -> None:
    id = started(manager, "one")
    store.session(id).summarize("one was said")
    manager.get_session(id).history = [user("instead")]
    manager.save_session(id)
    assert texts(store, id) == ["instead"]
    assert [each["content"] for each in store.session(id).window().messages] == ["instead"]


@pytest.mark.parametrize("time", [1e18, -1e18])
def test_a_message_with_a_time_that_is_not_one(
    store: Store, manager: SessionManager, other: SessionManager, time: float
) -> None:
    state = manager.create_session("/work")
    state.history.append({**user("hello"), "timestamp": time})
    manager.save_session(state.session_id)
    assert other.get_session(state.session_id).history == state.history


def test_the_half_reply_of_a_crashed_turn_of_another_program(tmp_path: Path) -> None:
    crash_in_a_reply(tmp_path / "other.db", "chat")
    with holdfast.open(tmp_path / "other.db", durability="process") as store:
        SessionDB(store).append_message("chat", "user", "And now?")
        assert texts(store, "chat") == [ASKED, HALF, "And now?"]
