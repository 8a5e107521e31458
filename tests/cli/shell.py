"""Running the command as a person would: a program, with a store, in a shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Message, Raw, Text, Thinking, ToolCall, Usage
from tests.cli.nursery import Nursery

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\r\x9b31m\x7f\x00 \u202egnp\u2066x\u200e\u061c"
    " pay\u200bpal\u00ad\ufeff \ud800 [bold red]markup[/] \U000e0041"
)
RAW = frozenset("\x1b\x07\r\x9b\x7f\x00\u202e\u2066\u200e\u061c\u200b\u00ad\ufeff\U000e0041")
_LOOKS = frozenset({"COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TERM"})

_CRASHES = """
import sys, time, holdfast
from holdfast import ToolCall
store = holdfast.open(sys.argv[1])
with store.session(sys.argv[2]).turn(model="gpt-9") as turn:
    turn.user("Send it again, please.")
    calls = [ToolCall("call_a", "send", {"to": "Oslo"}), ToolCall("call_b", "notify")]
    turn.assistant("I will.", tool_calls=calls)
    turn.tool_started("call_a")
    reply = turn.stream()
    reply.write("It is alrea")
    reply.flush()
    print("ready", flush=True)
    time.sleep(600)
"""


class Shell:
    """Runs `holdfast` on one store; from a nursery, if there is one and it can."""

    def __init__(self, store: Path, nursery: Nursery | None = None) -> None:
        self.store = store
        self.nursery = nursery
        self.command = [sys.executable, "-m", "holdfast"]
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in _LOOKS},
            "HOLDFAST_URL": str(store),
            "PYTHONIOENCODING": "utf-8",
            "TZ": "UTC",
        }

    def start(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.command, *arguments],
            env=self.environment,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, stdin: bytes = b"") -> Ran:
        if self.nursery is None:
            return self.run_anew(*arguments, stdin=stdin)
        with self.nursery.free(self.environment, stdin) as free:
            if free:
                return Ran(*self.nursery.run(arguments, self.environment, stdin))
        return self.run_anew(*arguments, stdin=stdin)

    def run_anew(self, *arguments: str, stdin: bytes = b"") -> Ran:
        """Run it in an interpreter of its own."""
        process = self.start(*arguments, stdin=subprocess.PIPE)
        out, err = process.communicate(stdin, timeout=60)
        return Ran(process.returncode, out, err)

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        ran = self.run(*arguments, stdin=stdin)
        assert (ran.code, ran.err) == (0, ""), ran.err
        return ran.out

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - it is whatever was printed
        return json.loads(self.ok(*arguments, "--json"))


class Ran:
    """What a command left behind."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.bytes = out
        self.out = out.decode()
        self.err = err.decode()


def talk(store: Path | str) -> None:
    """A conversation with a tool that answered, one that failed, and a turn that failed."""
    with holdfast.open(store) as opened:
        session = opened.session("support-42", title="A parcel", scope="telegram", agent="desk")
        session.update(metadata={"channel": 7})
        with session.turn(model="gpt-9", run_id="run-1") as turn:
            turn.user("Where is my parcel?")
            calls = (ToolCall("call_1", "track", {"id": 17}), ToolCall("call_2", "guess"))
            turn.assistant([Thinking("Look it up."), Text("Let me see.")], tool_calls=calls)
            for call in calls:
                turn.tool_started(call.id)
            turn.tool("call_1", "in Oslo")
            turn.tool("call_2", "no idea", error=True)
            turn.assistant(
                "It is in Oslo.", usage=Usage(input=1200, output=34), cost=Decimal("0.01")
            )
        try:
            with session.turn() as turn:
                turn.user("When will it come?")
                raise TimeoutError("the model did not answer")  # noqa: TRY301 - the turn records it
        except TimeoutError:
            pass
        session.append(Message.user([Raw("telegram", {"sticker": 5})]))


def crash(store: Path, key: str = "support-42") -> None:
    """A process that dies in the middle of a turn: two tool calls, one of them started."""
    command = [sys.executable, "-c", _CRASHES, str(store), key]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()


def hostile_session(store: Path) -> str:
    """A session with hostile text in every field that has text; gives its id."""
    bad = HOSTILE
    with holdfast.open(store) as opened:
        session = opened.session(
            f"key {bad}", title=bad, scope=bad, agent=bad, model=bad, cwd=bad, metadata={bad: bad}
        )
        session.update(goal=holdfast.Goal(bad))
        try:
            with session.turn(model=bad, run_id=bad) as turn:
                turn.user(f"one\n\ttwo {bad}", name=bad, metadata={bad: [bad]})
                call = ToolCall(f"call {bad}", bad, {bad: bad})
                turn.assistant(
                    [Thinking(bad), Text(bad)], tool_calls=[call, ToolCall("c2", bad, bad)]
                )
                turn.tool_started(f"call {bad}")
                turn.tool(f"call {bad}", [Text(bad), holdfast.File(bad, bad, b"x"), Raw(bad, bad)])
                raise RuntimeError(bad)  # noqa: TRY301 - the turn records it
        except RuntimeError:
            pass
        session.append(Message.user([holdfast.File(bad, bad, b"y"), Raw(bad, {bad: bad})]))
        session.enqueue(bad)
        return session.id
