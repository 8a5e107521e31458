"""The chat's controller: turns lines of input into commands and turns of the agent.

A line is a message or a command. A message starts a turn; while a turn runs, further messages are
queued in the store and sent next. After a turn that fails or is stopped, everything is kept and the
user can enter the next line. The view (a terminal, or lines of text) does input and output.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

from holdfast.agent.agent import AsyncAgent
from holdfast.agent.events import Event, TextDelta, ThinkingDelta, UserSaid
from holdfast.agent.tools.protocol import Ask
from holdfast.aio.session import AsyncSession
from holdfast.cli.chat import approvals, resume_banner, slash_commands
from holdfast.cli.chat.approvals import Approvals
from holdfast.cli.chat.chat_context import Desk
from holdfast.cli.chat.turn_view import Drawing
from holdfast.cli.errors import what_happened
from holdfast.cli.output.humanize import words
from holdfast.cli.output.screen import Screen
from holdfast.cli.signals import Signals
from holdfast.errors import HoldfastError, ModelFailed, ModelMissing, SessionBusy
from holdfast.values import Content, Message, Recovered, to_parts

_SOON: Final = 0.02  # seconds
_GO_ON: Final = "Go on where you were interrupted."
_NO_MODEL: Final = "Until then you can read, search and switch sessions; /model chooses a model."


class Front(Protocol):
    """The input and output of a chat."""

    interactive: bool  # A user is present to answer questions.

    @property
    def out(self) -> Screen:
        """The screen for permanent output."""

    def show(self) -> None:
        """Flush permanent output and redraw the live area."""

    def drawing(self) -> Drawing:
        """Return the object that draws turns."""

    async def ask(self, label: str) -> str | None:
        """Ask the user for a line; `None` if no user is present."""

    async def pick(self, chat: Talk, text: str) -> str | None:
        """Let the user choose a session; return its id, or `None`."""

    def leave(self) -> None:
        """End the chat."""

    async def run(self, start_options: Wanted, signals: Signals) -> int:
        """Run until the user quits, the input ends or a signal arrives; return the exit code."""


class Wanted(NamedTuple):
    """Which session to open; by default the latest one."""

    new: bool = False
    resume: str | None = None
    fork: str | None = None
    at: str | None = None
    chain: bool = False

    @property
    def names_none(self) -> bool:
        """True if no session was named."""
        return self.resume is None and self.fork is None


class Talk:
    """The controller of a chat."""

    def __init__(self, context: Desk, view: Front) -> None:
        self.desk = context
        self.front = view
        self.running = False
        self.stopping = False
        self._stopper: asyncio.Future[None] | None = None
        self.waiting: list[str] = []  # input queued for the next turn
        self.trouble: HoldfastError | None = None  # why the last message was not answered
        self.drawing = view.drawing()
        self._approvals = Approvals(self._show_ask, self._ask)
        context.approved_by(self._approvals)

    @property
    def out(self) -> Screen:
        """The screen for permanent output."""
        return self.front.out

    # -------------------------------------------------------------------------------- opening

    async def open(self, start_options: Wanted) -> None:
        """Choose the model, open the session, and print its state."""
        await self._choose_model()
        self.front.show()
        session = await self._find(start_options)
        if session is None:
            self.out.line("a new conversation", (" · /help lists the commands", "dim"))
        elif start_options.fork is None and start_options.chain:
            await self.show_place(session)
            await self.desk.continue_in_new(session)
            self.waiting.clear()
        else:
            forked = f"forked from {start_options.fork}:"
            await self.open_session(session, how=forked if start_options.fork else "continuing")
        notice = await self.desk.tidy()
        if notice is not None:
            self.note(notice)
        self.front.show()

    async def _choose_model(self) -> None:
        try:
            await self.desk.choose_model(None)
        except ModelMissing as error:
            self.tell(error)
            self.out.line((_NO_MODEL, "dim"))
            return
        self.draw_model()

    async def _find(self, start_options: Wanted) -> AsyncSession | None:
        if start_options.fork is not None:
            parent = await self.desk.store.get(start_options.fork)
            return await slash_commands.fork_at(parent, start_options.at)
        if start_options.resume is not None:
            return await self.desk.store.get(start_options.resume)
        return None if start_options.new else await self.desk.latest()

    async def open_session(self, session: AsyncSession, *, how: str = "continuing") -> None:
        """Continue a session and print its state; after a crash, ask the user what to do."""
        note = await self.desk.open(session)
        recovered = await self.show_place(session, how=how)
        if note is not None:
            self.note(note)
        if recovered is not None and self.front.interactive:
            self.front.show()
            await self._after_crash(await self.front.ask(resume_banner.CHOICES))

    async def show_place(
        self, session: AsyncSession, *, how: str = "continuing"
    ) -> Recovered | None:
        """Recover a turn that a crash left open, and print the session's state."""
        try:
            recovered = await session.recover()
        except SessionBusy as error:
            self.tell(error)
            recovered = None
        state = await resume_banner.look(session, recovered)
        self.waiting = [item.message.text for item in state.queued]
        resume_banner.draw(self.out, state, how=how)
        return recovered

    async def _after_crash(self, answer: str | None) -> None:
        match (answer or "").strip().lower():
            case "":
                return
            case "c" | "continue":
                await self.say(Message.user(_GO_ON, metadata={"injected": "continue"}))
            case "r" | "retry":
                await self.command("retry", "")
            case "d" | "drop":
                await self.command("undo", "")
            case _:
                await self.enter(answer or "")

    # -------------------------------------------------------------------------------- entering

    async def enter(self, text: str) -> None:
        """Handle a line of input: a command or a message."""
        command = slash_commands.parse(text)
        if command is not None:
            self.drawing.show_said(text)
            await self.command(*command)
            return
        message = slash_commands.spoken(text)
        self.drawing.show_said(message)
        self.front.show()
        try:
            await self.say(message)
        except HoldfastError as error:
            self.trouble = error
            self.tell(error)
            self.front.show()

    async def command(self, name: str, rest: str) -> None:
        """Run a command, and print its error if it fails."""
        try:
            await slash_commands.run(self, name, rest)
        except HoldfastError as error:
            self.tell(error)
        finally:
            self.front.show()

    async def queue(self, text: str) -> None:
        """Store a message for the next turn."""
        await (await self.desk.in_session()).enqueue(text)
        self.waiting.append(text)

    async def say_waiting(self) -> None:
        """Send the queued messages, if there are any."""
        if self.waiting:
            await self.say(None)

    async def say(self, content: Content | Message | None) -> None:
        """Send a message to the agent, then the messages that were queued meanwhile."""
        if self.desk.agent is None:
            await self._without_model(content)
            return
        session = await self.desk.in_session()
        go_on = await self._turn(session, content)
        while go_on and await session.queued():
            go_on = await self._turn(session, None)

    async def _without_model(self, content: Content | Message | None) -> None:
        """Queue a message that cannot be answered, so that it need not be typed again."""
        try:
            self.agent()
        except ModelMissing as error:
            self.trouble = error
            self.tell(error)
        if isinstance(content, str):
            await self.queue(content)
            self.note("your message is kept, and will be sent with the next one")

    async def _turn(self, session: AsyncSession, content: Content | Message | None) -> bool:
        """Run a turn; true if queued input may follow."""
        agent = self.agent()
        self._approvals.session_id = session.id
        self.running, self.stopping, self.trouble = True, False, None
        self.drawing.begin(_text(content))
        try:
            stream = agent.stream(session, content, run_id=self.desk.run_id)
            async with aclosing(stream) as events:
                async for event in events:
                    self._taken(event)
                    self.drawing.take(event)
                    if not isinstance(event, TextDelta | ThinkingDelta):
                        self.front.show()  # The view polls for growing text by itself.
        except ModelFailed as error:
            self.trouble = error  # `TurnEnded` has printed it.
            return False
        except HoldfastError as error:
            self.trouble = error
            await self._not_said(content, error)
            return False
        finally:
            self.running = False
            if self._stopper is not None:
                self._stopper.cancel()
            self.drawing.end(stopped=self.stopping)
            self.front.show()
        if self.stopping and self.waiting:
            self.note(f"queued, and sent with your next message: {words(self.waiting[0])}")
        return not self.stopping

    def _taken(self, event: Event) -> None:
        """Remove a message from the queue that was sent now."""
        if isinstance(event, UserSaid) and event.message.text in self.waiting:
            self.waiting.remove(event.message.text)

    async def _not_said(self, content: Content | Message | None, error: HoldfastError) -> None:
        """Print why a turn could not start; queue the message if the session is busy."""
        self.tell(error)
        if isinstance(error, SessionBusy) and isinstance(content, str):
            await self.queue(content)
            self.note("your message is kept, and will be sent with the next turn")

    def stop(self, reason: str = "stopped by the user") -> bool:
        """Stop the running turn; false if there is none."""
        if not self.running or self.desk.agent is None:
            return False
        if not self.stopping:
            self.stopping = True
            self._stopper = asyncio.ensure_future(self._insist(reason))
        return True

    async def _insist(self, reason: str) -> None:
        """Cancel until it takes effect: a turn cannot be cancelled before it has started."""
        agent = self.agent()
        while self.running and not agent.cancel(reason):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(_SOON)

    # --------------------------------------------------------------------------------- printing

    def agent(self) -> AsyncAgent:
        """Return the agent; raise `ModelMissing` with what the model needs if there is none."""
        if self.desk.agent is None:
            raise self.desk.missing or ModelMissing("no model is chosen; /model NAME chooses one")
        return self.desk.agent

    def draw_model(self) -> None:
        """Print which model answers, and why it was chosen."""
        name, choice = self.agent().model.name, self.desk.choice
        why = "" if choice is None else f" ({choice.why})"
        self.out.line(("holdfast", "bold cyan"), f" with {name}", (why, "dim"))

    def tell(self, error: HoldfastError) -> None:
        """Print an error."""
        self.out.body(what_happened(error), style="red")

    def note(self, text: str, style: str = "dim") -> None:
        """Print a note about what was done."""
        self.out.body(text, style=style)

    def _show_ask(self, ask: Ask) -> None:
        self.drawing.settle()
        approvals.show(self.out, ask)
        self.front.show()

    async def _ask(self, label: str) -> str | None:
        return await self.front.ask(label)


def _text(content: Content | Message | None) -> str | None:
    """Return the text of a message, which is on the screen already."""
    if content is None:
        return None
    return (content if isinstance(content, Message) else Message.user(to_parts(content))).text
