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
from holdfast.cli import agent_factory
from holdfast.cli.chat import approval_prompt, resume_banner, slash_commands
from holdfast.cli.chat.approval_prompt import Approvals
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.turn_view import TurnView
from holdfast.cli.errors import what_happened
from holdfast.cli.output.humanize import shorten
from holdfast.cli.output.screen import Screen
from holdfast.cli.signals import SignalHandler
from holdfast.errors import HoldfastError, ModelFailed, ModelMissing, SessionBusy
from holdfast.values import Content, Message, Recovered, to_parts

_POLL_S: Final = 0.02  # seconds
_CONTINUE_TEXT: Final = "Go on where you were interrupted."
_DIRECTORY_CHOICES: Final = "it was started in {}: work there? y yes · n no, here"
_NOT_KNOWN: Final = (
    "{} may be another person's store: if you continue a session of it, its goal, queued input and "
    "system messages act as yours."
)
_TRUST_CHOICES: Final = "continue it, now and from now on? y yes · n no, start a new conversation"
_NO_MODEL: Final = "Until then you can read, search and switch sessions; /model chooses a model."


class View(Protocol):
    """The input and output of a chat."""

    interactive: bool  # A user is present to answer questions.

    @property
    def out(self) -> Screen:
        """The screen for permanent output."""

    def show(self) -> None:
        """Flush permanent output and redraw the live area."""

    def drawing(self) -> TurnView:
        """Return the object that draws turns."""

    async def ask(self, label: str) -> str | None:
        """Ask the user for a line; `None` if no user is present."""

    async def pick(self, chat: ChatController, text: str) -> str | None:
        """Let the user choose a session; return its id, or `None`."""

    def leave(self) -> None:
        """End the chat."""

    async def run(self, start_options: StartOptions, signals: SignalHandler) -> int:
        """Run until the user quits, the input ends or a signal arrives; return the exit code."""


class StartOptions(NamedTuple):
    """Which session to open; by default the latest one."""

    new: bool = False
    resume: str | None = None
    fork: str | None = None
    at: str | None = None
    chain: bool = False

    @property
    def is_unspecified(self) -> bool:
        """True if no session was named."""
        return self.resume is None and self.fork is None


class ChatController:
    """The controller of a chat."""

    def __init__(self, context: ChatContext, view: View) -> None:
        self.context = context
        self.view = view
        self.running = False
        self.stopping = False
        self._stop_task: asyncio.Future[None] | None = None
        self.queued: list[str] = []  # input queued for the next turn
        self.last_error: HoldfastError | None = None  # why the last message was not answered
        self.turn_view = view.drawing()
        self._roots: dict[str, str] = {}  # by session id: the directory the user chose
        self._approvals = Approvals(self._show_request, self._ask)
        context.set_approver(self._approvals)

    @property
    def out(self) -> Screen:
        """The screen for permanent output."""
        return self.view.out

    # -------------------------------------------------------------------------------- opening

    async def open(self, start_options: StartOptions) -> None:
        """Choose the model, open the session, and print its state."""
        await self._choose_model()
        self.view.show()
        session = await self._find_session(start_options)
        if session is None:
            self.out.line("a new conversation", (" · /help lists the commands", "dim"))
        elif start_options.fork is None and start_options.chain:
            await self.show_banner(session)
            await self.context.continue_in_new(session)
            self.queued.clear()
        else:
            forked = f"forked from {start_options.fork}:"
            await self.open_session(session, how=forked if start_options.fork else "continuing")
        notice = await self.context.apply_retention()
        if notice is not None:
            self.print_note(notice)
        self.view.show()

    async def _choose_model(self) -> None:
        try:
            await self.context.choose_model(None)
        except ModelMissing as error:
            self.print_error(error)
            self.out.line((_NO_MODEL, "dim"))
            return
        self.print_model()

    async def _find_session(self, start_options: StartOptions) -> AsyncSession | None:
        if start_options.new:
            return None
        named = start_options.fork or start_options.resume
        found = await (self.context.latest() if named is None else self.context.store.get(named))
        if found is None or not await self.trusts_store():
            return None
        if start_options.fork is None:
            return found
        return await slash_commands.fork_at(found, start_options.at)

    async def trusts_store(self) -> bool:
        """True if sessions of this store may be continued; a store that is not known is asked for.

        Raise `UntrustedStore` if no user is present to be asked.
        """
        trust = self.context.trust
        if trust.is_known():
            return True
        if not self.view.interactive:
            trust.require()
        self.print_note(_NOT_KNOWN.format(trust.file), "yellow")
        self.view.show()
        if not is_yes(await self.view.ask(_TRUST_CHOICES)):
            self.print_note("none of its sessions is continued; `holdfast show` reads them")
            return False
        trust.accept()
        return True

    async def open_session(self, session: AsyncSession, *, how: str = "continuing") -> None:
        """Continue a session and print its state; after a crash, ask the user what to do."""
        recovered = await self.show_banner(session, how=how)
        await self.context.open(session, await self._tool_root(session))
        if recovered is not None and self.view.interactive:
            self.view.show()
            await self._after_crash(await self.view.ask(resume_banner.CHOICES))

    async def _tool_root(self, session: AsyncSession) -> str:
        """Return the directory for a session's tools: this one, or its own if the user agrees."""
        here, cwd = self.context.cwd, (await session.info()).cwd
        if agent_factory.is_missing(cwd):
            await session.update(cwd=here)
            self.print_note(f"{cwd}, where it was started, does not exist; tools work in {here}")
            return here
        there = agent_factory.other_directory(cwd)
        if there is None:
            return here
        if session.id not in self._roots:
            self.view.show()
            answer = await self.view.ask(_DIRECTORY_CHOICES.format(there))
            self._roots[session.id] = there if is_yes(answer) else here
        root = self._roots[session.id]
        self.print_note(
            f"tools work in {there}"
            if root == there
            else agent_factory.tools_work_here(here, there)
        )
        return root

    async def show_banner(
        self, session: AsyncSession, *, how: str = "continuing"
    ) -> Recovered | None:
        """Recover a turn that a crash left open, and print the session's state."""
        try:
            recovered = await session.recover()
        except SessionBusy as error:
            self.print_error(error)
            recovered = None
        state = await resume_banner.load_state(session, recovered)
        self.queued = [item.message.text for item in state.queued]
        resume_banner.draw(self.out, state, how=how)
        return recovered

    async def _after_crash(self, answer: str | None) -> None:
        match (answer or "").strip().lower():
            case "":
                return
            case "c" | "continue":
                await self.send(Message.user(_CONTINUE_TEXT, metadata={"injected": "continue"}))
            case "r" | "retry":
                await self.run_command("retry", "")
            case "d" | "drop":
                await self.run_command("undo", "")
            case _:
                await self.handle_line(answer or "")

    # -------------------------------------------------------------------------------- entering

    async def handle_line(self, text: str) -> None:
        """Handle a line of input: a command or a message."""
        command = slash_commands.parse(text)
        if command is not None:
            self.turn_view.show_said(text)
            await self.run_command(*command)
            return
        message = slash_commands.unescape(text)
        self.turn_view.show_said(message)
        self.view.show()
        try:
            await self.send(message)
        except HoldfastError as error:
            self.last_error = error
            self.print_error(error)
            self.view.show()

    async def run_command(self, name: str, rest: str) -> None:
        """Run a command, and print its error if it fails."""
        try:
            await slash_commands.run(self, name, rest)
        except HoldfastError as error:
            self.print_error(error)
        finally:
            self.view.show()

    async def queue(self, text: str) -> None:
        """Store a message for the next turn."""
        await (await self.context.ensure_session()).enqueue(text)
        self.queued.append(text)

    async def send_queued(self) -> None:
        """Send the queued messages, if there are any."""
        if self.queued:
            await self.send(None)

    async def send(self, content: Content | Message | None) -> None:
        """Send a message to the agent, then the messages that were queued meanwhile."""
        if self.context.agent is None:
            await self._keep_for_later(content)
            return
        session = await self.context.ensure_session()
        go_on = await self._run_turn(session, content)
        while go_on and await session.queued():
            go_on = await self._run_turn(session, None)

    async def _keep_for_later(self, content: Content | Message | None) -> None:
        """Queue a message that cannot be answered, so that it need not be typed again."""
        try:
            self.agent()
        except ModelMissing as error:
            self.last_error = error
            self.print_error(error)
        if isinstance(content, str):
            await self.queue(content)
            self.print_note("your message is kept, and will be sent with the next one")

    async def _run_turn(self, session: AsyncSession, content: Content | Message | None) -> bool:
        """Run a turn; true if queued input may follow."""
        agent = self.agent()
        self._approvals.session_id = session.id
        self.running, self.stopping, self.last_error = True, False, None
        self.turn_view.begin(_displayed_text(content))
        started = False
        try:
            stream = agent.stream(session, content, run_id=self.context.run_id)
            async with aclosing(stream) as events:
                async for event in events:
                    started = True
                    self._remove_queued(event)
                    self.turn_view.take(event)
                    if not isinstance(event, TextDelta | ThinkingDelta):
                        self.view.show()  # The view polls for growing text by itself.
        except ModelFailed as error:
            self.last_error = error  # `TurnEnded` has printed it.
            return False
        except HoldfastError as error:
            self.last_error = error
            await self._turn_refused(content, error)
            return False
        finally:
            self.running = False
            if self._stop_task is not None:
                self._stop_task.cancel()
            self.turn_view.end(stopped=self.stopping)
            self.view.show()
        if self.stopping and not started and isinstance(content, str):
            await self.queue(content)
        if self.stopping and self.queued:
            self.print_note(f"queued, and sent with your next message: {shorten(self.queued[0])}")
        return not self.stopping

    def _remove_queued(self, event: Event) -> None:
        """Remove a message from the queue that was sent now."""
        if isinstance(event, UserSaid) and event.message.text in self.queued:
            self.queued.remove(event.message.text)

    async def _turn_refused(self, content: Content | Message | None, error: HoldfastError) -> None:
        """Print why a turn could not start; queue the message if the session is busy."""
        self.print_error(error)
        if isinstance(error, SessionBusy) and isinstance(content, str):
            await self.queue(content)
            self.print_note("your message is kept, and will be sent with the next turn")

    def stop(self, reason: str = "stopped by the user") -> bool:
        """Stop the running turn; false if there is none."""
        if not self.running or self.context.agent is None:
            return False
        if not self.stopping:
            self.stopping = True
            self._stop_task = asyncio.ensure_future(self._cancel_until_stopped(reason))
        return True

    async def _cancel_until_stopped(self, reason: str) -> None:
        """Cancel until it takes effect: a turn cannot be cancelled before it has started."""
        agent = self.agent()
        while self.running and not agent.cancel(reason):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(_POLL_S)

    # --------------------------------------------------------------------------------- printing

    def agent(self) -> AsyncAgent:
        """Return the agent; raise `ModelMissing` with what the model needs if there is none."""
        if self.context.agent is None:
            raise self.context.missing_model or ModelMissing(
                "no model is chosen; /model NAME chooses one"
            )
        return self.context.agent

    def print_model(self) -> None:
        """Print which model answers, and why it was chosen."""
        name, choice = self.agent().model.name, self.context.choice
        why = "" if choice is None else f" ({choice.why})"
        self.out.line(("holdfast", "bold cyan"), f" with {name}", (why, "dim"))

    def print_error(self, error: HoldfastError) -> None:
        """Print an error."""
        self.out.body(what_happened(error), style="red")

    def print_note(self, text: str, style: str = "dim") -> None:
        """Print a note about what was done."""
        self.out.body(text, style=style)

    def _show_request(self, ask: Ask) -> None:
        self.turn_view.print_finished()
        approval_prompt.print_request(self.out, ask)
        self.view.show()

    async def _ask(self, label: str) -> str | None:
        return await self.view.ask(label)


def is_yes(answer: str | None) -> bool:
    """True if the user answered a question with yes."""
    return (answer or "").strip().lower() in {"y", "yes"}


def _displayed_text(content: Content | Message | None) -> str | None:
    """Return the text of a message, which is on the screen already."""
    if content is None:
        return None
    return (content if isinstance(content, Message) else Message.user(to_parts(content))).text
