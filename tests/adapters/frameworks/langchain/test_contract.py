"""What LangChain asks of every chat message history."""

from __future__ import annotations

import subprocess
import sys

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from holdfast import Store
from holdfast.adapters.langchain import HoldfastChatMessageHistory
from holdfast.errors import Invalid

ASKED = {"configurable": {"session_id": "support-42"}}


def chat(store: Store) -> RunnableWithMessageHistory:
    """Return a chain that remembers, with a model that counts its replies."""
    model = FakeListChatModel(responses=["one", "two", "three"])
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{question}")]
    )
    return RunnableWithMessageHistory(
        prompt | model,
        lambda session_id: HoldfastChatMessageHistory(session_id, store),
        input_messages_key="question",
        history_messages_key="history",
    )


def texts(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, str(message.content)) for message in messages]


def test_a_chain_remembers_what_was_said(store: Store) -> None:
    chain = chat(store)
    assert chain.invoke({"question": "first"}, ASKED).content == "one"
    assert chain.invoke({"question": "second"}, ASKED).content == "two"

    expected = [("human", "first"), ("ai", "one"), ("human", "second"), ("ai", "two")]
    history = HoldfastChatMessageHistory("support-42", store)
    assert texts(history.messages) == expected
    session = store.session("support-42")
    assert [message.text for message in session.messages()] == [text for _, text in expected]
    chain.invoke({"question": "elsewhere"}, {"configurable": {"session_id": "another"}})
    assert len(history.messages) == 4


async def test_an_async_chain_remembers_what_was_said(store: Store) -> None:
    chain = chat(store)
    await chain.ainvoke({"question": "first"}, ASKED)
    async for _ in chain.astream({"question": "second"}, ASKED):
        pass

    history = HoldfastChatMessageHistory("support-42", store)
    assert [text for _, text in texts(await history.aget_messages())] == [
        "first",
        "one",
        "second",
        "two",
    ]


def test_the_model_is_sent_the_history(store: Store) -> None:
    prompts: list[list[BaseMessage]] = []

    def answer(messages: list[BaseMessage]) -> AIMessage:
        prompts.append(messages)
        return AIMessage(f"answer {len(prompts)}")

    chain = RunnableWithMessageHistory(
        RunnableLambda(answer), lambda session_id: HoldfastChatMessageHistory(session_id, store)
    )
    chain.invoke([HumanMessage("first")], ASKED)
    chain.invoke([HumanMessage("second")], ASKED)
    assert texts(prompts[1]) == [("human", "first"), ("ai", "answer 1"), ("human", "second")]


async def test_it_does_what_the_history_in_memory_does(history: HoldfastChatMessageHistory) -> None:
    other = InMemoryChatMessageHistory()
    for one in (history, other):
        assert one.messages == []
        one.add_user_message("one")
        one.add_ai_message("two")
        one.add_user_message(HumanMessage("three", id="3"))
        one.add_message(SystemMessage("four"))
        one.add_messages([AIMessage("five"), HumanMessage("six")])
        await one.aadd_messages([AIMessage("seven")])
        one.add_messages([])
    assert history.messages == other.messages == await history.aget_messages()
    assert str(history) == str(other)

    for one in (history, other):
        one.clear()
        assert one.messages == []
        one.add_user_message("again")
        assert await one.aget_messages() == [HumanMessage("again")]
        await one.aclear()
        assert await one.aget_messages() == []


async def test_reading_and_clearing_create_no_session(store: Store) -> None:
    history = HoldfastChatMessageHistory("none", store)
    history.clear()
    await history.aclear()
    history.add_messages([])
    assert history.messages == await history.aget_messages() == []
    assert store.stats().sessions == 0


async def test_scope_is_that_of_a_new_session(store: Store) -> None:
    HoldfastChatMessageHistory("one", store, scope="bot").add_user_message("x")
    await HoldfastChatMessageHistory("two", store, scope="bot").aadd_messages([HumanMessage("x")])
    assert {info.key for info in store.sessions(scope="bot")} == {"one", "two"}


def test_cleared_messages_stay_readable(store: Store, history: HoldfastChatMessageHistory) -> None:
    history.add_user_message("one")
    history.clear()
    session = store.session("support-42")
    assert [message.text for message in session.messages(branch=1)] == ["one"]
    session.redo()
    assert history.messages == [HumanMessage("one")]


@pytest.mark.parametrize("session_id", ["", "x" * 4097, 7])
def test_an_id_that_cannot_be_a_key_is_refused(store: Store, session_id: str) -> None:
    with pytest.raises(Invalid):
        HoldfastChatMessageHistory(session_id, store).add_user_message("x")


def test_without_langchain_the_import_names_the_extra() -> None:
    code = "import sys; sys.modules['langchain_core'] = None; import holdfast.adapters.langchain"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError" in run.stderr
    assert "pip install 'holdfast[langchain]'" in run.stderr
