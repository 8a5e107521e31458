"""A conversation with the local model, killed in the middle of a reply: everything is there.

Real weights, the real program, SIGKILL. What the model says is up to the model; a reply that ended
before it could be killed is asked for again. The same with a provider that says what it is told to
is in test_providers, and takes less.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import legality
from tests.agent.ggufs import smollm2

_STORY = "Write a very long story about a fox, with many chapters."
_WORDS = 12  # that were shown before it is killed
_FLUSHED = 1.5  # seconds later they are stored: several times the interval of drafts
_TRIES = 5
_NAMED = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_")


class Program:
    """Runs `holdfast` on a store of its own, for somebody who has no key and no configuration."""

    def __init__(self, home: Path) -> None:
        smollm2()
        self.store = home / "agent.db"
        self._home = home
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NAMED)}
        self._environment = {
            **kept,
            "HOLDFAST_URL": str(self.store),
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
        }

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments],
            env=self._environment,
            cwd=self._home,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=0,
        )

    def limit(self, tokens: int) -> None:
        """Let replies have no more tokens than this."""
        config = self._home / "config" / "holdfast" / "holdfast.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f"[model]\nmax_output = {tokens}\n")

    def ok(self, *arguments: str, said: str | None = None) -> str:
        process = self.start(*arguments, stdin=subprocess.PIPE)
        out, err = process.communicate(said, timeout=100)
        assert process.returncode == 0, err
        return out

    def killed(self, *arguments: str) -> str | None:
        """Kill it in the middle of a reply; gives what was shown long enough before."""
        with self.start(*arguments) as process:
            assert process.stdout is not None
            shown: list[tuple[float, str]] = []
            for line in process.stdout:
                event = json.loads(line)
                if event["type"] == "reply":
                    process.communicate()
                    return None
                if event["type"] == "text":
                    shown.append((time.monotonic(), event["text"]))
                if len(shown) >= _WORDS and shown[-1][0] - shown[_WORDS - 1][0] > _FLUSHED:
                    break
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
        return "".join(text for when, text in shown if when <= shown[-1][0] - _FLUSHED)


@pytest.mark.long
def test_a_reply_that_was_killed_is_there_and_goes_on(tmp_path: Path) -> None:
    """kill -9 in the middle of a reply: the partial is kept, told of, and sent to the model."""
    program = Program(tmp_path)
    assert program.ok("run", "--session", "talk-0", "Hello!").strip()
    key, shown = _killed(program)
    program.limit(40)
    said = program.ok("chat", "--resume", key, said="What was it about?\n")
    assert "interrupted" in said
    assert "kept" in said
    with holdfast.open(program.store) as store:
        session = store.session(key, create=False)
        question, partial, again, reply = session.messages()
        assert (question.text, again.text) == (_STORY, "What was it about?")
        assert (partial.role, partial.status) == ("assistant", "partial")
        assert partial.text.startswith(shown)
        assert reply.role == "assistant"
        assert reply.text in said
        assert reply.model == partial.model == "SmolLM2-135M-Instruct.Q4_1"
        states = [turn.state for turn in session.turns()]
        assert states[0] == "interrupted"
        assert len(states) == 2
        window = session.window(max_tokens=8000, provider="openai")
        assert legality.problems("openai", window.messages, window.system) == []
        assert shown in str(window.messages[1]["content"])
        assert store.verify() == []
        assert store.session("talk-0", create=False).turns()[0].state == "sealed"


def _killed(program: Program) -> tuple[str, str]:
    """Ask until a reply was long enough to be killed."""
    for n in range(1, _TRIES + 1):
        key = f"talk-{n}"
        shown = program.killed("run", "--json", "--session", key, _STORY)
        if shown is not None:
            return key, shown
    pytest.fail("the model has only short stories to tell")
