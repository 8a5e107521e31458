"""Earlier input comes from the store: of this directory or scope, bounded, and gone when erased."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import holdfast
from holdfast import Message
from holdfast.aio.store import AsyncStore
from holdfast.cli.chat import input_history, slash_commands
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.input_history import InputHistory
from holdfast.session import Session


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(tmp_path / "agent.db") as opened:
        yield opened


def _history(
    store: holdfast.Store, scope: str | None = None, *, known: bool = True
) -> InputHistory:
    context = ChatContext(
        AsyncStore(store),
        cast("Any", None),
        trust=cast("Any", SimpleNamespace(is_known=lambda: known)),
        cwd="/here",
        scope=scope,
        run_id="run",
    )
    return InputHistory(context)


def _load(history: InputHistory) -> list[str]:
    async def load() -> list[str]:
        return [text async for text in history.load()]

    return asyncio.run(load())


def test_it_has_what_the_user_said_in_this_directory_newest_first(store: holdfast.Store) -> None:
    for name, cwd in (("old", "/here"), ("elsewhere", "/there"), ("new", "/here")):
        session = store.session(name, cwd=cwd)
        session.append(Message.user(f"{name} 1"), Message.assistant("reply"))
        session.append(Message.user(f"{name} 2"), Message.user(f"{name} 1"))
    history = _history(store)
    history.append_string("/status")
    assert _load(history) == ["/status", "new 1", "new 2", "old 1", "old 2"]
    history.append_string("typed now")
    assert _load(history)[:2] == ["typed now", "/status"]  # without reading again


def test_a_scope_has_its_own(store: holdfast.Store) -> None:
    store.session("a", cwd="/here").append(Message.user("of the directory"))
    store.session("b", cwd="/here", scope="telegram").append(Message.user("of the scope"))
    assert _load(_history(store, scope="telegram")) == ["of the scope"]


def test_a_strangers_words_were_offered_as_ones_own(store: holdfast.Store, tmp_path: Path) -> None:
    """Those of an import that was continued here, and those of a store of unknown origin."""
    with holdfast.open("memory:") as there:
        there.create().append(Message.user("of a stranger"), Message.system("orders"))
        there.export(tmp_path / "gift.jsonl")
    store.import_(tmp_path / "gift.jsonl")
    session = store.get(store.sessions().items[0].id)
    session.update(cwd="/here")
    session.append(Message.user("mine"))
    assert _load(_history(store)) == ["mine"]
    assert _load(_history(store, known=False)) == []


def test_what_was_erased_or_purged_is_gone(store: holdfast.Store) -> None:
    for name in ("erased", "purged", "kept"):
        store.session(name, cwd="/here").append(Message.user(f"the {name} one"))
    store.session("erased").erase(1)
    store.trash("purged")
    assert _load(_history(store)) == ["the kept one"]
    store.purge("purged")
    assert _load(_history(store)) == ["the kept one"]


def test_what_nobody_typed_is_left_out(store: holdfast.Store) -> None:
    store.session("s", cwd="/here").append(
        Message.user("typed\nin two lines"),
        Message.user("go on", metadata={"injected": "goal"}),
        Message.user("x" * 10_001),
        Message.user("\x1b]0;owned\x07"),
        Message.user("pay\u202epal"),
        Message.user("   "),
    )
    assert _load(_history(store)) == ["typed\nin two lines"]


@pytest.mark.parametrize("said", ["/exit", "//x", "/etc/hosts says", "a / b"])
def test_a_message_that_looks_like_a_command_is_one_no_more(
    store: holdfast.Store, said: str
) -> None:
    store.session("s", cwd="/here").append(Message.user(said))
    (typed,) = _load(_history(store))
    assert slash_commands.parse(typed) is None
    assert slash_commands.unescape(typed) == said


def test_however_much_is_stored_a_bounded_part_is_read(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_history, "MAX_SESSIONS", 3)
    monkeypatch.setattr(input_history, "MAX_MESSAGES", 4)
    for n in range(6):
        store.session(f"s{n}", cwd="/here").append(*(Message.user(f"{n}.{m}") for m in range(9)))
    read: list[int] = []
    real = Session.messages

    def messages(self: Session, **options: Any) -> list[Message]:  # noqa: ANN401 - any of them
        found = real(self, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(Session, "messages", messages)
    assert _load(_history(store)) == [f"{n}.{m}" for n in (5, 4, 3) for m in (8, 7, 6, 5)]
    assert read == [4, 4, 4]


def test_a_store_that_cannot_be_read_has_no_history(store: holdfast.Store) -> None:
    history = _history(store)
    store.close()
    assert _load(history) == []
