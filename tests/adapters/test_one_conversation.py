"""One conversation in four frameworks, two of which are killed inside a tool, is one history."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast
from holdfast import Message, Thinking
from holdfast.testing.legality import PROVIDERS, problems
from holdfast.values import Window
from tests.adapters.environment import interpreter_of, surroundings
from tests.agent.provider import Provider, environment
from tools.frameworks import FRAMEWORKS

KEY: Final = "parcels/7"
BEGUN: Final = [
    ("user", "Where is parcel 7?"),
    ("assistant", "thinks: I have to look."),
    ("assistant", 'find {"parcel": 7}'),
    ("tool", "Parcel 7 is in Bern."),
    ("assistant", "It is in Bern."),
    ("user", "Ship it."),
    ("assistant", 'find {"parcel": 7}'),
    ("tool", "Parcel 7 is in Bern."),
]
ASKED: Final = [
    ("user", "Was it shipped?"),
    ("assistant", 'weigh {"parcel": 7}'),
    ("tool", "Parcel 7 weighs 2 kg."),
    ("assistant", "Not yet. Parcel 7 weighs 2 kg."),
]
KILLED: Final = [("user", "Then ship it now."), ("assistant", 'At once. ship {"parcel": 7}')]
SHIPPED: Final = [("tool", "Parcel 7 is shipped."), ("assistant", "Done. Parcel 7 is shipped.")]
TALKED: Final = [
    ("user", "Is all well?"),
    ("assistant", "You said: Is all well?"),
    ("user", "say Goodbye."),
    ("assistant", "Goodbye."),
]


class Conversation:
    """The session in a store file, and the programs that it is continued by."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.provider = provider
        self.path = folder / "agent.db"
        self._folder = folder
        self._frameworks = {framework.name: framework for framework in FRAMEWORKS}

    def _start(self, framework: str, *arguments: str) -> subprocess.Popen[str]:
        module = f"tests.adapters.programs.conversation.{framework}"
        python = interpreter_of(self._frameworks[framework])
        return subprocess.Popen(
            [str(python), "-m", module, str(self.path), KEY, *arguments],
            cwd=self._folder,
            env=surroundings(self._folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill_inside_the_tool(self, framework: str, *arguments: str) -> None:
        """Run a part until it says that it is inside its tool, and kill it there."""
        with self._start(framework, *arguments) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "shipping parcel 7\n"
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL

    def run(self, framework: str, *arguments: str) -> Any:  # noqa: ANN401 - any JSON
        """Run a part to its end; return what it printed."""
        with self._start(framework, *arguments) as process:
            printed, _ = process.communicate()
        assert process.returncode == 0
        return json.loads(printed)

    def command(self, *arguments: str, said: str = "") -> str:
        """Run `holdfast`, with the provider; return what it printed."""
        variables = {
            **surroundings(self._folder),
            **environment(self.provider.url),
            "HOLDFAST_URL": str(self.path),
        }
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments],
            cwd=self._folder,
            env=variables,
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def said(self) -> list[tuple[str, str]]:
        """Return roles and texts of the history, checking all that must hold of it at any time."""
        with holdfast.open(self.path) as store:
            session = store.session(KEY, create=False)
            messages = session.messages()
            assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
            ids = [message.id for message in messages]
            assert len(set(ids)) == len(ids)
            assert [branch.number for branch in session.branches()] == [1]
            for provider in PROVIDERS:
                window = session.window(provider=provider)
                assert problems(provider, window.messages, window.system) == []
                assert _sources(window) == [
                    message.id for message in messages if _is_shown(message, provider)
                ]
            assert not store.verify()
            assert not store.damage
        return [(message.role, _in_words(message)) for message in messages]

    def texts(self) -> list[str]:
        """Return the texts of the history."""
        with holdfast.open(self.path) as store:
            return [message.text for message in store.session(KEY, create=False).messages()]


def _sources(window: Window) -> list[str]:
    """Return the messages that a window was made of, in order; none must be there twice.

    A message of text and calls is several items of the Responses API, which follow one another.
    """
    sources = [id for ids in window.sources for id in dict.fromkeys(ids)]
    found = [id for at, id in enumerate(sources) if at == 0 or sources[at - 1] != id]
    assert max(Counter(found).values()) == 1
    return found


def _is_shown(message: Message, provider: str) -> bool:
    """Only the API that thought it gets the thinking of another program's model back."""
    is_thinking = not message.text and not message.tool_calls and not message.tool_results
    return not is_thinking or provider == "openai-responses"


def _in_words(message: Message) -> str:
    calls = (f"{call.name} {_arguments(call.arguments)}" for call in message.tool_calls)
    thoughts = (f"thinks: {part.text}" for part in message.parts if isinstance(part, Thinking))
    return " ".join(filter(None, chain(thoughts, [message.text], calls)))


def _arguments(given: object) -> str:
    return given if isinstance(given, str) else json.dumps(given)


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    with Provider() as provider:
        yield Conversation(tmp_path, provider)


def test_a_conversation_goes_through_four_frameworks_and_two_kills(
    conversation: Conversation,
) -> None:
    # OpenAI Agents stores a step when its tools have ended, so the call of the tool in which it was
    # killed is not there: what is, can be sent to a model.
    conversation.kill_inside_the_tool("openai_agents")
    assert conversation.said() == BEGUN

    loaded = conversation.run("pydantic_ai")
    assert loaded == [
        "user-prompt",
        "thinking",
        *("tool-call", "tool-return", "text"),
        *("user-prompt", "tool-call", "tool-return"),
    ]
    assert conversation.said() == BEGUN + ASKED

    conversation.kill_inside_the_tool("langgraph", "ship")
    assert conversation.said() == BEGUN + ASKED + KILLED

    resumed = conversation.run("langgraph", "resume")
    assert resumed["next"] == ["tools"]
    assert resumed["before"] == resumed["after"][:-2]
    assert resumed["calls"] == [["find", {"parcel": 7}]] * 2 + [
        ["weigh", {"parcel": 7}],
        ["ship", {"parcel": 7}],
    ]
    assert conversation.said() == BEGUN + ASKED + KILLED + SHIPPED
    assert resumed["after"] == conversation.texts()

    conversation.command("chat", "--resume", KEY, said="Is all well?\n")
    conversation.command("run", "--session", KEY, "say Goodbye.")
    assert conversation.said() == BEGUN + ASKED + KILLED + SHIPPED + TALKED

    for request in conversation.provider.replies():
        assert problems("openai", request["messages"]) == []
    shown = json.loads(conversation.command("show", KEY, "--json"))
    assert len(shown["messages"]) == 20
