"""A store, and an agent that says what it is told to, with the history it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store


class ScriptedAgent:
    """An agent as PraisonAI's are seen from outside; `reply` makes its answer, piece by piece."""

    name = "scripted"

    def __init__(self, reply: Callable[[str], Iterator[str]] | None = None) -> None:
        self.chat_history: list[dict[str, Any]] = []
        self.tools: list[str] = ["look", "delete"]
        self.asked_with: list[list[dict[str, Any]]] = []
        self.tools_seen: list[list[str]] = []
        self._reply = reply or self._echo
        self._total_tokens_in = self._total_tokens_out = 0

    def _echo(self, prompt: str) -> Iterator[str]:
        yield from (f"{len(self.chat_history)}: ", prompt, "!")

    def chat(self, prompt: str, *, stream: bool = False) -> str | Iterator[str]:
        """Return the reply, or an iterator of its pieces."""
        return self._pieces(prompt) if stream else "".join(self._pieces(prompt))

    def _pieces(self, prompt: str) -> Iterator[str]:
        self.asked_with.append([*self.chat_history])
        self.tools_seen.append([*self.tools])
        pieces = []
        for piece in self._reply(prompt):
            pieces.append(piece)
            yield piece
        self.chat_history.append({"role": "user", "content": prompt})
        self.chat_history.append({"role": "assistant", "content": "".join(pieces)})
        self._total_tokens_in += 3
        self._total_tokens_out += 2


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRAISONAI_HOME", str(tmp_path / "praisonai"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # PraisonAI's agents write to the current directory.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with holdfast.open(path, durability="process") as store:
        yield store


@pytest.fixture
def scripted() -> type[ScriptedAgent]:
    return ScriptedAgent
