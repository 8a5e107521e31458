"""The terminal view of a chat: a permanent prompt at the bottom, the conversation above it.

Permanent output is written above the prompt once and scrolls away like any output. The area of the
prompt is redrawn as it changes: the live part of the turn (the growing block, running tools), a
status line, and the input. The user can type while the agent answers; messages sent then are
queued.

Key handlers do not wait: they start tasks. Only one task at a time may change the conversation.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, Final

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition, has_focus, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar

from holdfast.cli.chat import slash_commands
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.completer import ChatCompleter
from holdfast.cli.chat.controller import ChatController, StartOptions
from holdfast.cli.chat.input_history import InputHistory
from holdfast.cli.chat.picker import Picker, render
from holdfast.cli.chat.turn_view import MARK, TurnView, wrap
from holdfast.cli.output import screen
from holdfast.cli.output.humanize import shorten
from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.output.screen import Screen
from holdfast.cli.signals import SignalHandler, describe
from holdfast.errors import HoldfastError

_REFRESH_S: Final = 0.08  # seconds
_MENU_ROWS: Final = 8  # rows
_QUEUE_ROWS: Final = 3  # rows
_CHAT_CLOSED: Final = "the chat was closed"
_HUNG_UP: Final = "the terminal hung up"
_PLACEHOLDER: Final = "say something · /help"
_STYLE: Final = Style.from_dict(
    {
        "prompt": "bold ansicyan",
        "asking": "bold ansiyellow",
        "faint": "dim",
        "queued": "ansiyellow",
        "completion-menu": "bg:default fg:default noreverse",
        "completion-menu.completion": "bg:default fg:default noreverse",
        "completion-menu.completion.current": "bg:default fg:ansicyan bold noreverse",
        "completion-menu.meta.completion": "bg:default fg:default dim noreverse",
        "completion-menu.meta.completion.current": "bg:default fg:default noreverse",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:default",
    }
)


class TerminalView:
    """The view of a chat on a terminal."""

    interactive = True

    def __init__(self, context: ChatContext) -> None:
        """Create the prompt; nothing is drawn yet."""
        self._output_buffer = OutputBuffer()
        self._drawing = TurnView(lambda: self._output_buffer.screen)
        self._question: str | None = None
        self._answer: asyncio.Future[str] | None = None
        self._saved_input = ""
        self._pending_lines: list[str] = []
        self._foreground: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._picker: Picker | None = None
        self._leaving = False
        self.chat = ChatController(context, self)
        self._buffer = Buffer(
            completer=ChatCompleter(self.chat),
            complete_while_typing=Condition(self._is_command),
            history=InputHistory(context),
            accept_handler=self._on_enter,
            multiline=True,
        )
        self._search = SearchToolbar()
        self._app: Application[None] = Application(
            layout=Layout(self._layout(), focused_element=self._buffer),
            key_bindings=self._keys(),
            style=_STYLE,
            output=_output(),
            erase_when_done=True,
            enable_page_navigation_bindings=False,
            paste_mode=False,
        )
        self._app.ttimeoutlen = 0.05

    # ------------------------------------------------------------------------------------ the view

    @property
    def out(self) -> Screen:
        """The screen for permanent output."""
        return self._output_buffer.screen

    def drawing(self) -> TurnView:
        """Return the object that draws turns."""
        return self._drawing

    def show(self) -> None:
        """Write permanent output above the prompt, and redraw the live area."""
        if self._picker is not None:
            return  # The picker has the screen.
        text = self._output_buffer.take()
        if text:
            self._write_above(text)
        self._app.invalidate()

    async def ask(self, label: str) -> str | None:
        """Ask the user for a line; restore their unfinished input afterwards."""
        self._answer = asyncio.get_running_loop().create_future()
        self._question, self._saved_input = label, self._buffer.text
        self._buffer.reset()
        self._app.invalidate()
        try:
            return await self._answer
        finally:
            self._question = self._answer = None
            self._buffer.text, self._saved_input = self._saved_input, ""
            self._buffer.cursor_position = len(self._buffer.text)
            self._app.invalidate()

    async def pick(self, chat: ChatController, text: str) -> str | None:
        """Let the user choose a session, on a full screen."""
        self._picker = Picker(chat.context, text, self._app.output)
        try:
            async with in_terminal():
                return await self._picker.run()
        finally:
            self._picker = None

    def leave(self) -> None:
        """End the chat; a running turn is stopped and stored."""
        if not self._leaving:
            self._leaving = True
            self.chat.stop(_CHAT_CLOSED)
            self._run_in_background(self._leave())

    # ------------------------------------------------------------------------------------- running

    async def run(self, start_options: StartOptions, signals: SignalHandler) -> int:
        """Run until the user quits or a signal arrives; return the exit code."""
        loop = asyncio.get_running_loop()

        def on_signal(received: signal.Signals) -> bool:
            if received == signal.SIGINT:
                loop.call_soon_threadsafe(self._interrupt)
                return True
            loop.call_soon_threadsafe(self._on_signal, received)
            return False

        def begin() -> None:
            self._run_foreground(self.chat.open(start_options))
            self._run_in_background(self._refresh_live())
            self._run_in_background(self._warm())

        reason = _HUNG_UP
        with signals.notifying(on_signal):
            try:
                await self._app.run_async(pre_run=begin, handle_sigint=False)
                reason = _CHAT_CLOSED
            except EOFError:
                pass  # The terminal is gone; SIGHUP may still arrive.
            finally:
                await self._finish(reason)
        return 0

    async def _finish(self, reason: str) -> None:
        """Stop the running turn, and wait until it is stored."""
        self.chat.stop(reason)
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()
        for task in self._background:
            task.cancel()
        waiting = [task for task in (self._foreground, *self._background) if task is not None]
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _leave(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()
        if self._picker is not None:
            self._picker.close()
        if self._foreground is not None:
            await asyncio.wait([self._foreground])
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def _on_signal(self, received: signal.Signals) -> None:
        self._leaving = True
        self.chat.stop(describe(received))
        self._run_in_background(self._leave())

    async def _refresh_live(self) -> None:
        """Redraw the live area periodically while a turn runs."""
        seen = (0, 0)
        while True:
            await asyncio.sleep(_REFRESH_S)
            now = (
                self._drawing.event_count,
                int(time.monotonic()),
            )  # The status line shows seconds.
            if self.chat.running and now != seen:
                seen = now
                self._drawing.print_finished()
                self.show()

    async def _warm(self) -> None:
        """Import the provider's package before the first message needs it."""
        if self._foreground is not None:
            await asyncio.wait([self._foreground])
        await self.chat.context.preload_provider()

    def _run_foreground(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start the task that changes the conversation; there is at most one."""
        self._foreground = asyncio.get_running_loop().create_task(self._foreground_task(coroutine))

    async def _foreground_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine, then handle lines entered meanwhile that could not be queued."""
        try:
            await coroutine
            while self._pending_lines and not self._leaving:
                await self.chat.handle_line(self._pending_lines.pop(0))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._app.is_done:
                raise
            self._app.exit(exception=error)
        finally:
            self._foreground = None
            self.show()

    def _run_in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --------------------------------------------------------------------------------------- input

    def _on_enter(self, buffer: Buffer) -> bool:
        text = buffer.text.strip()
        if self._answer is not None:
            if not self._answer.done():
                self._answer.set_result(text)
            return False
        if text:
            buffer.append_to_history()
            self._handle_line(text)
        elif self._foreground is None and self.chat.queued:
            self._run_foreground(self.chat.send_queued())
        return False

    def _handle_line(self, text: str) -> None:
        if self._foreground is None:
            self._run_foreground(self.chat.handle_line(text))
        elif not self.chat.running:
            self._pending_lines.append(text)
        elif slash_commands.parse(text) is not None:
            self._run_in_background(self.chat.handle_line(text))
        else:
            self._run_in_background(self._queue(slash_commands.unescape(text)))

    async def _queue(self, text: str) -> None:
        try:
            await self.chat.queue(text)
        except HoldfastError as error:
            self.chat.print_error(error)
            self._buffer.text = self._buffer.text or text  # The user need not type it again.
        self.show()

    def _interrupt(self) -> None:
        """Handle Ctrl-C: stop the turn, else clear the line, else print how to quit."""
        if self.chat.running:
            if not self.chat.stopping:
                self.chat.stop()
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result("")
        elif self._buffer.text:
            self._buffer.reset()
        else:
            self.chat.print_note("Ctrl-D or /exit quits; nothing is lost")
            self.show()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(self._buffer) & ~is_searching

        @keys.add("enter", filter=typing)
        def _enter(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter", filter=typing)
        @keys.add("c-j", filter=typing)
        def _newline(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c", filter=~is_searching)
        def _interrupt(event: KeyPressEvent) -> None:  # noqa: ARG001 - prompt_toolkit's own
            self._interrupt()

        @keys.add("c-d", filter=Condition(lambda: not self._buffer.text))
        def _leave(event: KeyPressEvent) -> None:  # noqa: ARG001 - as above
            self.leave()

        @keys.add("c-z")
        def _suspend(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        return keys

    def _is_command(self) -> bool:
        return self._answer is None and self._buffer.text.startswith("/")

    # ----------------------------------------------------------------------------------- the screen

    def _write_above(self, text: str) -> None:
        """Write permanent output; the prompt is erased and redrawn below it."""
        app = self._app
        if app.is_running:
            app.renderer.erase()
        app.output.write_raw(text.replace("\n", "\r\n"))
        app.output.flush()

    def _layout(self) -> FloatContainer:
        live = Window(FormattedTextControl(self._live), dont_extend_height=True, wrap_lines=False)
        status = Window(
            FormattedTextControl(self._status), dont_extend_height=True, wrap_lines=True
        )
        entry = Window(
            BufferControl(
                self._buffer,
                search_buffer_control=self._search.control,
                menu_position=lambda: 0,
                preview_search=True,
                input_processors=[self._placeholder()],
            ),
            get_line_prefix=self._prefix,
            height=self._entry_height,
            wrap_lines=True,
            dont_extend_height=True,
        )
        rows = HSplit(
            [
                ConditionalContainer(live, Condition(self._is_live)),
                ConditionalContainer(status, Condition(self._has_status)),
                Window(height=1, dont_extend_height=True),
                entry,
                self._search,
            ],
            align=VerticalAlign.TOP,
        )
        menu = CompletionsMenu(max_height=_MENU_ROWS, scroll_offset=1)
        return FloatContainer(rows, [Float(menu, xcursor=True, ycursor=True)])

    def _placeholder(self) -> ConditionalProcessor:
        def is_empty() -> bool:
            return not self._buffer.text and self._answer is None and not self.chat.running

        return ConditionalProcessor(
            AfterInput([("class:faint", _PLACEHOLDER)]), filter=Condition(is_empty)
        )

    def _prefix(self, line: int, wrapped: int) -> StyleAndTextTuples:
        if line or wrapped:
            return [("", "  ")]
        return [("class:prompt", MARK)]

    def _entry_height(self) -> Dimension:
        rows = self._app.output.get_size().rows
        menu = max(0, min(_MENU_ROWS, rows - 4)) if self._buffer.complete_state is not None else 0
        return Dimension(min=1 + menu, max=max(3 + menu, rows // 2))

    def _has_status(self) -> bool:
        return self.chat.running or self._question is not None

    def _is_live(self) -> bool:
        return self.chat.running and self._drawing.is_live

    def _live(self) -> AnyFormattedText:
        lines = render(self._drawing.draw_live).rstrip("\n").split("\n")
        rows = max(3, self._app.output.get_size().rows - 6 - len(self.chat.queued[:_QUEUE_ROWS]))
        return ANSI("\n".join(lines[-rows:]))

    def _status(self) -> StyleAndTextTuples:
        width = self._app.output.get_size().columns - 1
        lines: StyleAndTextTuples = [("", "\n")]
        if self._question is not None:
            question = "\n".join(f"  {line}" for line in wrap(sanitize(self._question), width - 2))
            return [*lines, ("class:asking", question)]
        activity = "stopping" if self.chat.stopping else f"{self._drawing.status} · Ctrl-C stops"
        lines.append(("class:faint", f"  {activity}"[:width]))
        for text in self.chat.queued[:_QUEUE_ROWS]:
            shown = f"  queued: {sanitize(shorten(text))}"[:width]
            lines += [("", "\n"), ("class:queued", shown)]
        return lines


def _output() -> Vt100_Output:
    """Return the terminal's output, without cursor position requests: some do not answer."""

    def size() -> Size:
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:  # The terminal is gone.
            return Size(rows=24, columns=80)
        return Size(rows=found.lines or 24, columns=found.columns or 80)

    return Vt100_Output(sys.stdout, size, term=os.environ.get("TERM"), enable_cpr=False)


class OutputBuffer:
    """Buffers permanent output, which is then written above the prompt at once.

    Its screen is always as wide as the terminal.
    """

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._screen: screen.TerminalScreen | None = None
        self._columns = 0

    @property
    def screen(self) -> Screen:
        """The screen that writes to the buffer."""
        columns = shutil.get_terminal_size().columns
        if self._screen is None or columns != self._columns:
            self._screen, self._columns = screen.TerminalScreen(self._text), columns
        return self._screen

    def take(self) -> str:
        """Return the output since the last call."""
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text
