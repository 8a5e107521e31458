"""Sessions and agents of Strands in a store, and what no writer may lose."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.agent.conversation_manager import (
    NullConversationManager,
    SlidingWindowConversationManager,
)
from strands.multiagent import GraphBuilder
from strands.multiagent.graph import Graph
from strands.session.repository_session_manager import RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import holdfast
from holdfast import Message
from holdfast.adapters.strands import HoldfastSessionRepository
from tests.adapters.frameworks.strands.scripted import ScriptedModel

ODD_IDS = ("a/b", "a_b", "A", "a", '["a"]', '[["a"]]', "\ud800", "\x00", "x" * 4096, "../a", " ")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(tmp_path / "agent.db", durability="process") as opened:
        yield opened


@pytest.fixture
def repository(store: holdfast.Store) -> HoldfastSessionRepository:
    return HoldfastSessionRepository(store, scope="desk")


def agent_of(
    repository: HoldfastSessionRepository,
    *replies: str,
    session_id: str = "s",
    agent_id: str = "a",
    **options: object,
) -> Agent:
    return Agent(
        model=ScriptedModel(*([{"text": reply}] for reply in replies)),
        agent_id=agent_id,
        session_manager=RepositorySessionManager(session_id, repository),
        callback_handler=None,
        **options,
    )


def user(text: str, **fields: object) -> dict[str, Any]:
    return {"role": "user", "content": [{"text": text}], **fields}


def id_of(repository: HoldfastSessionRepository, session_id: str) -> str:
    session = repository.read_session(session_id)
    assert session is not None
    return session.session_id


def texts(repository: HoldfastSessionRepository, agent_id: str = "a") -> list[str]:
    listed = repository.list_messages("s", agent_id)
    return [message.to_message()["content"][0]["text"] for message in listed]


# -------------------------------------------------------------------------------------- agents


def test_an_agent_continues_where_it_was(repository: HoldfastSessionRepository) -> None:
    first = agent_of(repository, "Hi Ann.")
    first.state.set("name", "Ann")
    first("I am Ann")
    second = agent_of(repository, "Ann.")
    assert second.messages == first.messages
    assert second.state.get("name") == "Ann"
    second("Who am I?")
    assert texts(repository) == ["I am Ann", "Hi Ann.", "Who am I?", "Ann."]


def test_a_session_is_one_of_ours(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository, "Hi.", session_id="support-42")("Hello")
    session = store.session("support-42", create=False)
    assert session.info().scope == "desk"
    assert [(m.role, m.text) for m in session.messages()] == [
        ("user", "Hello"),
        ("assistant", "Hi."),
    ]
    assert session.usage().usage == holdfast.Usage(input=10, output=4)


def test_further_agents_are_delegates(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository, "one")("to a")
    agent_of(repository, "two", agent_id="b")("to b")
    agent_of(repository, "three")("to a again")
    assert texts(repository) == ["to a", "one", "to a again", "three"]
    assert texts(repository, "b") == ["to b", "two"]
    (link,) = store.session("s").children()
    assert link.relation == "delegate"
    assert store.get(link.session_id).info().agent == "b"
    assert [info.key for info in store.sessions(delegates=False)] == ["s"]
    agent_of(repository, "four", agent_id="b")("to b again")
    assert len(store.session("s").children()) == 1


def test_an_agent_of_a_delegate_is_unique(repository: HoldfastSessionRepository) -> None:
    repository.create_session(Session("s", SessionType.AGENT))
    for agent_id in ("a", "b"):
        repository.create_agent("s", SessionAgent(agent_id, {}, {}))
        with pytest.raises(SessionException, match="exists"):
            repository.create_agent("s", SessionAgent(agent_id, {}, {}))
    with pytest.raises(SessionException, match="already"):
        repository.create_session(Session("s", SessionType.AGENT))


def test_an_agent_that_another_one_forestalls_has_a_session_of_its_own(
    repository: HoldfastSessionRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.create_session(Session("s", SessionType.AGENT))
    append = holdfast.Session.append

    def append_second(self: holdfast.Session, state: holdfast.Record) -> holdfast.Head:
        monkeypatch.undo()
        repository.create_agent("s", SessionAgent("first", {}, {}))
        return append(self, state)

    monkeypatch.setattr(holdfast.Session, "append", append_second)
    repository.create_agent("s", SessionAgent("second", {}, {}))
    for agent_id in ("first", "second"):
        given = SessionMessage.from_message(user(f"to {agent_id}"), 0)
        repository.create_message("s", agent_id, given)
    assert texts(repository, "first") == ["to first"]
    assert texts(repository, "second") == ["to second"]


def test_keys_that_collide_as_file_names_are_different_sessions(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    for session_id in ODD_IDS:
        agent_of(repository, "ok", session_id=session_id)(f"in {session_id!r}")
    repository.create_session(Session("s", SessionType.AGENT))
    agent_ids = [name for name in ODD_IDS if len(name) < 100]
    for agent_id in agent_ids:
        repository.create_agent("s", SessionAgent(agent_id, {}, {}))
        message = SessionMessage.from_message(user(f"to {agent_id!r}"), 0)
        repository.create_message("s", agent_id, message)
    for session_id in ODD_IDS:
        listed = repository.list_messages(session_id, "a")
        assert listed[0].message["content"] == [{"text": f"in {session_id!r}"}]
        assert id_of(repository, session_id) == session_id
    for agent_id in agent_ids:
        assert texts(repository, agent_id) == [f"to {agent_id!r}"]
    assert len(store.sessions(delegates=False)) == len(ODD_IDS) + 1


def test_a_session_id_cannot_be_the_key_of_another_ones_agent(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository, "ok")("to a")
    agent_of(repository, "ok", agent_id="b")("to b")
    (link,) = store.session("s").children()
    assert link.key is not None
    assert repository.read_session(link.key) is None
    agent_of(repository, "ok", session_id=link.key)("elsewhere")
    assert texts(repository, "b") == ["to b", "ok"]


def test_a_deleted_session_is_in_the_trash(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository, "one")("to a")
    agent_of(repository, "two", agent_id="b")("to b")
    repository.delete_session("s")
    assert repository.read_session("s") is None
    assert len(store.sessions(trashed=True)) == 2
    with pytest.raises(SessionException, match="does not exist"):
        repository.delete_session("s")
    agent_of(repository, "new", agent_id="b")("to the new b")
    assert texts(repository, "b") == ["to the new b", "new"]


def test_a_rewind_takes_the_agents_state_along(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent = agent_of(repository, "one", "two")
    agent.state.set("step", 1)
    agent("first")
    agent.state.set("step", 2)
    agent("second")
    store.session("s").rewind(2)
    assert agent_of(repository).state.get("step") == 1
    assert texts(repository) == ["first", "one"]


def test_a_cleared_session_begins_anew(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent = agent_of(repository, "one", "two")
    agent("first")
    store.session("s").clear()
    with pytest.raises(SessionException, match="does not exist"):
        agent("second")
    again = agent_of(repository, "three")
    assert again.messages == []
    again("third")
    assert texts(repository) == ["third", "three"]


def test_a_conversation_manager_starts_where_it_had_cut(
    repository: HoldfastSessionRepository,
) -> None:
    def new_agent(*replies: str) -> Agent:
        manager = SlidingWindowConversationManager(window_size=4)
        return agent_of(repository, *replies, conversation_manager=manager)

    first = new_agent("1", "2", "3", "4")
    for number in range(4):
        first(f"question {number}")
    again = new_agent("5")
    assert again.messages == first.messages
    assert len(again.messages) == 4
    again("question 4")
    assert len(texts(repository)) == 10


def test_states_come_back_as_they_were(repository: HoldfastSessionRepository) -> None:
    session = Session("s", SessionType.AGENT)
    repository.create_session(session)
    assert repository.read_session("s") == session
    state = SessionAgent("a", {"pdf": b"\x00\xff", "n": [1, 1.5, None]}, {"k": "v"}, {"i": {}})
    repository.create_agent("s", state)
    assert repository.read_agent("s", "a") == state
    changed = SessionAgent("a", {"n": 2}, {})
    repository.update_agent("s", changed)
    assert changed.created_at == state.created_at
    assert repository.read_agent("s", "a") == changed


def test_a_fork_continues_with_the_same_agent(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository, "one")("first")
    store.session("s").fork(key="other")
    forked = agent_of(repository, "two", session_id="other")
    forked("second")
    assert id_of(repository, "other") == "other"
    assert len(repository.list_messages("other", "a")) == 4
    assert texts(repository) == ["first", "one"]


async def test_a_graph_is_resumed(repository: HoldfastSessionRepository) -> None:
    def new_graph(*replies: str) -> Graph:
        node = Agent(
            model=ScriptedModel(*([{"text": reply}] for reply in replies)),
            agent_id="node",
            callback_handler=None,
        )
        builder = GraphBuilder()
        builder.add_node(node, "node")
        builder.set_entry_point("node")
        builder.set_max_node_executions(3)
        builder.set_graph_id("g")
        builder.set_session_manager(RepositorySessionManager("s", repository))
        return builder.build()

    await new_graph("done").invoke_async("Do it")
    state = repository.read_multi_agent("s", "g")
    assert state is not None
    assert state["completed_nodes"] == ["node"]
    assert new_graph().serialize_state()["id"] == "g"
    assert repository.read_multi_agent("s", "other") is None
    assert repository.read_multi_agent("other", "g") is None


# ------------------------------------------------------------------------- of other frameworks


def test_a_conversation_of_another_framework_is_continued(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    session = store.session("s")
    session.append(Message.user("I am Ann"), Message.assistant("Hi Ann."))
    agent = agent_of(repository, "Ann.")
    assert [message["content"][0]["text"] for message in agent.messages] == ["I am Ann", "Hi Ann."]
    agent("Who am I?")
    assert [message.text for message in session.messages()] == [
        "I am Ann",
        "Hi Ann.",
        "Who am I?",
        "Ann.",
    ]
    session.append(Message.user("From elsewhere"))
    assert texts(repository)[-1] == "From elsewhere"
    agent_of(repository, "ok", agent_id="b")("to b")
    assert texts(repository, "b") == ["to b", "ok"]


def test_the_first_message_claims_a_conversation_of_another_framework(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    store.session("s").append(Message.user("I am Ann"))
    repository.create_message("s", "a", SessionMessage.from_message(user("Hello"), 1))
    assert repository.read_agent("s", "b") is None
    assert texts(repository) == ["I am Ann", "Hello"]


def test_another_conversation_manager_continues_too(store: holdfast.Store) -> None:
    store.session("s").append(Message.user("I am Ann"))
    null = NullConversationManager()
    repository = HoldfastSessionRepository(store, conversation_manager=null)
    agent = agent_of(repository, "Hi.", conversation_manager=null)
    agent("Hello?")
    assert texts(repository) == ["I am Ann", "Hello?", "Hi."]


def test_many_continue_a_conversation_of_another_framework_at_once(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    store.session("s").append(Message.user("I am Ann"))
    agents = [agent_of(repository, f"{number}") for number in range(4)]
    with ThreadPoolExecutor(len(agents)) as pool:
        list(pool.map(lambda agent: agent("Hello"), agents))
    assert sorted(texts(repository)) == sorted(
        ["I am Ann", *["Hello"] * 4, *(str(number) for number in range(4))]
    )
    states = [record.data for record in store.session("s").records("strands.agent")]
    assert all(isinstance(state, dict) and state["agent_id"] == "a" for state in states)


# ------------------------------------------------------------------------------------- losses


def test_two_writers_of_one_index_keep_both_messages(
    repository: HoldfastSessionRepository,
) -> None:
    agent_of(repository, "ok")("first")
    one, two = agent_of(repository, "1"), agent_of(repository, "2")
    one("from one")
    two("from two")
    assert texts(repository) == ["first", "ok", "from one", "1", "from two", "2"]
    listed = repository.list_messages("s", "a")
    assert [message.message_id for message in listed] == list(range(6))
    manager = two._session_manager  # noqa: SLF001 - the agent's own
    assert manager._latest_agent_message["a"].message_id == 5  # noqa: SLF001


def test_a_redaction_after_another_writer_redacts_its_own_message(
    repository: HoldfastSessionRepository,
) -> None:
    one, two = agent_of(repository), agent_of(repository)
    managers = [agent._session_manager for agent in (one, two)]  # noqa: SLF001 - the agents' own
    managers[0].append_message(user("from one", tracking_id="t-1"), one)
    secret = user("my secret", tracking_id="t-2")
    managers[1].append_message(secret, two)
    secret["content"] = [{"text": "[redacted]"}]
    managers[1].redact_latest_message(secret, two)
    assert texts(repository) == ["from one", "[redacted]"]


def test_a_retry_stores_a_message_once(repository: HoldfastSessionRepository) -> None:
    agent_of(repository)
    for message in (user("one", tracking_id="t-1"), user("two")):
        given = SessionMessage.from_message(message, len(texts(repository)))
        for attempt in (copy.deepcopy(given), given):
            repository.create_message("s", "a", attempt)
        assert given.message_id == len(texts(repository)) - 1
    assert texts(repository) == ["one", "two"]


def test_a_retry_after_another_writer_stores_a_message_once(
    repository: HoldfastSessionRepository,
) -> None:
    agent_of(repository)
    repository.create_message("s", "a", SessionMessage.from_message(user("other"), 0))
    given = SessionMessage.from_message(user("mine", tracking_id="t"), 0)
    lost, retried = copy.deepcopy(given), copy.deepcopy(given)
    repository.create_message("s", "a", lost)
    repository.create_message("s", "a", retried)
    assert texts(repository) == ["other", "mine"]
    assert lost.message_id == retried.message_id == 1


def test_the_same_message_twice_is_two_messages(repository: HoldfastSessionRepository) -> None:
    agent = agent_of(repository)
    manager = agent._session_manager  # noqa: SLF001 - the agent's own
    message = user("again", tracking_id="t")
    for _ in range(3):
        manager.append_message(message, agent)
    assert texts(repository) == ["again"] * 3


# --------------------------------------------------------------------------------- redactions


def test_a_redaction_amends_the_message(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent = agent_of(repository)
    agent.model = ScriptedModel([{"redact": "[redacted]"}, {"text": "I cannot."}], [{"text": "Ok"}])
    agent("My PIN is 1234")
    agent("Go on")
    session = store.session("s")
    assert [m.text for m in session.messages()] == ["[redacted]", "I cannot.", "Go on", "Ok"]
    assert "1234" not in repr(session.messages())
    assert "My PIN is 1234" in [m.text for m in session.messages(branch=1)]
    assert texts(repository) == ["[redacted]", "I cannot.", "Go on", "Ok"]
    assert agent_of(repository).messages == agent.messages
    session.erase(session.messages()[0].id)
    assert "1234" not in repr(session.messages(branch=1))


def test_nothing_of_what_was_redacted_stays_in_the_history(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository)
    given = SessionMessage.from_message(user("my secret", tracking_id="t"), 0)
    repository.create_message("s", "a", given)
    given.redact_message = user("[redacted]", tracking_id="t")
    repository.update_message("s", "a", given)
    read = repository.read_message("s", "a", 0)
    assert read is not None
    assert read.to_message() == user("[redacted]", tracking_id="t")
    assert (read.created_at, read.updated_at) == (given.created_at, given.updated_at)
    assert "my secret" not in repr(store.session("s").messages())


def test_another_message_at_an_index_is_not_redacted(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository)
    given = SessionMessage.from_message(user("old", tracking_id="t-1"), 0)
    repository.create_message("s", "a", given)
    store.session("s").pop()
    new = SessionMessage.from_message(user("new", tracking_id="t-2"), 0)
    repository.create_message("s", "a", new)
    given.redact_message = user("[redacted]", tracking_id="t-1")
    with pytest.raises(SessionException, match="another one now"):
        repository.update_message("s", "a", given)
    assert texts(repository) == ["new"]


def test_a_redaction_during_another_holders_turn_is_refused(
    repository: HoldfastSessionRepository, store: holdfast.Store
) -> None:
    agent_of(repository)
    given = SessionMessage.from_message(user("secret"), 0)
    with store.session("s").turn():
        repository.create_message("s", "a", given)
        given.redact_message = user("[redacted]")
        with pytest.raises(SessionException, match="open turn"):
            repository.update_message("s", "a", given)
    repository.update_message("s", "a", given)
    assert texts(repository) == ["[redacted]"]


# ---------------------------------------------------------------------------------- bad input


def test_what_does_not_exist_is_said(repository: HoldfastSessionRepository) -> None:
    message = SessionMessage.from_message(user("x"), 0)
    for call in (
        lambda: repository.create_agent("s", SessionAgent("a", {}, {})),
        lambda: repository.update_agent("s", SessionAgent("a", {}, {})),
        lambda: repository.create_message("s", "a", message),
        lambda: repository.update_message("s", "a", message),
        lambda: repository.list_messages("s", "a"),
    ):
        with pytest.raises(SessionException, match="does not exist"):
            call()
    assert repository.read_session("s") is None
    assert repository.read_agent("s", "a") is None
    assert repository.read_message("s", "a", 0) is None
    agent_of(repository)
    assert repository.read_message("s", "a", 0) is None
    assert repository.read_message("s", "a", -1) is None
    with pytest.raises(SessionException, match="does not exist"):
        repository.update_message("s", "a", message)
    with pytest.raises(ValueError, match="integer"):
        repository.read_message("s", "a", "../0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "robot", "content": []},
        {"role": "user", "content": "text"},
        user("x", metadata={"custom": {"k": {1, 2}}}),
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c", "content": [{"json": {1, 2}}]}}],
        },
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "c", "name": "n", "input": float("nan")}}],
        },
    ],
    ids=["role", "content", "metadata", "json", "NaN"],
)
def test_what_cannot_be_stored_is_refused_whole(
    repository: HoldfastSessionRepository, message: dict[str, Any]
) -> None:
    agent_of(repository)
    with pytest.raises(SessionException):
        repository.create_message("s", "a", SessionMessage.from_message(message, 0))
    assert repository.list_messages("s", "a") == []


def test_pages_of_messages(repository: HoldfastSessionRepository) -> None:
    agent_of(repository)
    for index in range(5):
        repository.create_message("s", "a", SessionMessage.from_message(user(str(index)), index))

    def page(**options: int) -> list[int]:
        return [m.message_id for m in repository.list_messages("s", "a", **options)]

    assert page() == [0, 1, 2, 3, 4]
    assert page(offset=3) == [3, 4]
    assert page(limit=2) == [0, 1]
    assert page(limit=2, offset=1) == [1, 2]
    assert page(limit=0) == page(offset=9) == []
    with pytest.raises(SessionException):
        page(offset=-1)


def test_tenants_are_apart(tmp_path: Path) -> None:
    for tenant in ("one", "two"):
        with holdfast.open(tmp_path / "agent.db", tenant=tenant, durability="process") as store:
            repository = HoldfastSessionRepository(store)
            assert repository.read_session("s") is None
            agent_of(repository, "ok")(f"to {tenant}")
            assert texts(repository) == [f"to {tenant}", "ok"]
