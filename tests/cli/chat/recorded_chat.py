"""A chat in this process: the real controller, store and agent, and a view that records output.

async with sitting(store, say("hello")) as sat:
    await sat.enter("hi")
    sat.text()                 # the output since the last call
    sat.answers += ["y"]       # the answer to the next question
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import holdfast
from holdfast.agent import AsyncAgent, Context, Retry
from holdfast.agent.models.model_choice import ModelChoice
from holdfast.agent.tools.function_tools import tool
from holdfast.agent.tools.protocol import Approver
from holdfast.aio.store import AsyncStore
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.controller import ChatController, StartOptions
from holdfast.cli.chat.turn_view import TurnView
from holdfast.cli.known_stores import StoreTrust
from holdfast.cli.output.screen import PlainScreen, Screen
from holdfast.cli.signals import SignalHandler
from holdfast.errors import Invalid, ModelMissing
from holdfast.testing.scripted_model import ScriptedModel, Step


@tool(asks=lambda _context, given: f"send to {given['to']}")
def send(to: str) -> str:
    """Send something."""
    return f"sent to {to}"


class Making:
    """An agent factory with one scripted model."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self.tidied: str | None = None

    def choose(self, spec: str | None) -> ModelChoice:
        if spec == "nonsense":
            raise Invalid("whose model is that?")
        return ModelChoice(spec or "scripted", "a test wants it")

    def agent(self, choice: ModelChoice, root: str, approve: Approver) -> AsyncAgent:
        if choice.spec == "missing":
            raise ModelMissing("it cannot be used here: set A_KEY")
        if choice.spec != "scripted":
            self.model.name = choice.spec
        return AsyncAgent(
            self.model,
            tools=[send],
            approve=approve,
            titles=False,
            retry=Retry(attempts=2, base=0.0, jitter=0.0),
            context=Context(keep_recent=2),
        )

    def tidy(self, keep: str) -> str | None:
        return self.tidied


class Sitting:
    """A view that records output and answers questions from a list."""

    def __init__(self, desk: ChatContext, *, interactive: bool = True) -> None:
        self.interactive = interactive
        self.answers: list[str | None] = []
        self.asked: list[str] = []
        self.picks: list[str | None] = []
        self.left = False
        self._written = io.StringIO()
        self._out = PlainScreen(self._written)
        self._drawing = TurnView(lambda: self._out)
        self.talk = ChatController(desk, self)

    @property
    def out(self) -> Screen:
        return self._out

    def drawing(self) -> TurnView:
        return self._drawing

    def show(self) -> None:
        self._drawing.print_finished()

    async def ask(self, label: str) -> str | None:
        self.asked.append(label)
        return self.answers.pop(0)

    async def pick(self, talk: ChatController, text: str) -> str | None:
        return self.picks.pop(0)

    def leave(self) -> None:
        self.left = True

    async def run(self, wanted: StartOptions, signals: SignalHandler) -> int:
        await self.talk.open(wanted)
        return 0

    async def open(self, wanted: StartOptions | None = None) -> str:
        """Open the chat; return its output."""
        await self.talk.open(wanted or StartOptions())
        return self.text()

    async def enter(self, text: str) -> str:
        """Enter a line; return the output."""
        await self.talk.handle_line(text)
        return self.text()

    def text(self) -> str:
        """Return the output since the last call."""
        text = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return text


@asynccontextmanager
async def sitting(
    opened: holdfast.Store,
    *scripts: list[Step],
    interactive: bool = True,
    scope: str | None = None,
) -> AsyncIterator[Sitting]:
    """Open a chat on this store."""
    made = Making(ScriptedModel(*scripts))
    trust = StoreTrust(opened, opened.url)
    trust.accept()
    desk = ChatContext(
        AsyncStore(opened), made, trust, cwd=str(Path.cwd()), scope=scope, run_id="run-1"
    )
    try:
        yield Sitting(desk, interactive=interactive)
    finally:
        await desk.close(settle=0.0)
