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
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import platformdirs
from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition, has_focus, is_searching
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples
from prompt_toolkit.history import FileHistory
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
from holdfast.cli.chat.chat_context import Desk
from holdfast.cli.chat.completer import ChatCompleter
from holdfast.cli.chat.controller import Talk, Wanted
from holdfast.cli.chat.picker import Picker, drawn
from holdfast.cli.chat.turn_view import MARK, Drawing, wrapped
from holdfast.cli.output import screen
from holdfast.cli.output.humanize import words
from holdfast.cli.output.sanitize import visible
from holdfast.cli.output.screen import Screen
from holdfast.cli.signals import Signals, why
from holdfast.errors import HoldfastError

_TICK: Final = 0.08  # seconds
_MENU: Final = 8  # rows
_QUEUE: Final = 3  # rows
_LEFT: Final = "the chat was closed"
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


class Terminal:
    """The view of a chat on a terminal."""

    interactive = True

    def __init__(self, context: Desk) -> None:
        """Create the prompt; nothing is drawn yet."""
        self._paper = Paper()
        self._drawing = Drawing(lambda: self._paper.screen)
        self._label: str | None = None
        self._answer: asyncio.Future[str] | None = None
        self._aside = ""
        self._held: list[str] = []
        self._work: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._picker: Picker | None = None
        self._leaving = False
        self.talk = Talk(context, self)
        self._buffer = Buffer(
            completer=ChatCompleter(self.talk),
            complete_while_typing=Condition(self._is_command),
            history=_history(),
            accept_handler=self._accepted,
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
        return self._paper.screen

    def drawing(self) -> Drawing:
        """Return the object that draws turns."""
        return self._drawing

    def show(self) -> None:
        """Write permanent output above the prompt, and redraw the live area."""
        if self._picker is not None:
            return  # The picker has the screen.
        text = self._paper.take()
        if text:
            self._write_above(text)
        self._app.invalidate()

    async def ask(self, label: str) -> str | None:
        """Ask the user for a line; restore their unfinished input afterwards."""
        self._answer = asyncio.get_running_loop().create_future()
        self._label, self._aside = label, self._buffer.text
        self._buffer.reset()
        self._app.invalidate()
        try:
            return await self._answer
        finally:
            self._label = self._answer = None
            self._buffer.text, self._aside = self._aside, ""
            self._buffer.cursor_position = len(self._buffer.text)
            self._app.invalidate()

    async def pick(self, chat: Talk, text: str) -> str | None:
        """Let the user choose a session, on a full screen."""
        self._picker = Picker(chat.desk, text, self._app.output)
        try:
            async with in_terminal():
                return await self._picker.run()
        finally:
            self._picker = None

    def leave(self) -> None:
        """End the chat; a running turn is stopped and stored."""
        if not self._leaving:
            self._leaving = True
            self.talk.stop(_LEFT)
            self._later(self._leave())

    # ------------------------------------------------------------------------------------- running

    async def run(self, start_options: Wanted, signals: Signals) -> int:
        """Run until the user quits or a signal arrives; return the exit code."""
        loop = asyncio.get_running_loop()

        def on_signal(received: signal.Signals) -> bool:
            if received == signal.SIGINT:
                loop.call_soon_threadsafe(self._interrupt)
                return True
            loop.call_soon_threadsafe(self._end, received)
            return False

        def begin() -> None:
            self._start(self.talk.open(start_options))
            self._later(self._watch())
            self._later(self._warm())

        reason = _HUNG_UP
        with signals.telling(on_signal):
            try:
                await self._app.run_async(pre_run=begin, handle_sigint=False)
                reason = _LEFT
            except EOFError:
                pass  # The terminal is gone; SIGHUP may still arrive.
            finally:
                await self._finish(reason)
        return 0

    async def _finish(self, reason: str) -> None:
        """Stop the running turn, and wait until it is stored."""
        self.talk.stop(reason)
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()
        for task in self._beside:
            task.cancel()
        waiting = [task for task in (self._work, *self._beside) if task is not None]
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _leave(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()
        if self._picker is not None:
            self._picker.close()
        if self._work is not None:
            await asyncio.wait([self._work])
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    def _end(self, received: signal.Signals) -> None:
        self._leaving = True
        self.talk.stop(why(received))
        self._later(self._leave())

    async def _watch(self) -> None:
        """Redraw the live area periodically while a turn runs."""
        seen = (0, 0)
        while True:
            await asyncio.sleep(_TICK)
            now = (self._drawing.taken, int(time.monotonic()))  # The status line shows seconds.
            if self.talk.running and now != seen:
                seen = now
                self._drawing.settle()
                self.show()

    async def _warm(self) -> None:
        """Import the provider's package before the first message needs it."""
        if self._work is not None:
            await asyncio.wait([self._work])
        await self.talk.desk.warm()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start the task that changes the conversation; there is at most one."""
        self._work = asyncio.get_running_loop().create_task(self._whole(coroutine))

    async def _whole(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run `doing`, then handle lines entered meanwhile that could not be queued."""
        try:
            await coroutine
            while self._held and not self._leaving:
                await self.talk.enter(self._held.pop(0))
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._app.is_done:
                raise
            self._app.exit(exception=error)
        finally:
            self._work = None
            self.show()

    def _later(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    # --------------------------------------------------------------------------------------- input

    def _accepted(self, buffer: Buffer) -> bool:
        text = buffer.text.strip()
        if self._answer is not None:
            if not self._answer.done():
                self._answer.set_result(text)
            return False
        if text:
            buffer.append_to_history()
            self._entered(text)
        elif self._work is None and self.talk.waiting:
            self._start(self.talk.say_waiting())
        return False

    def _entered(self, text: str) -> None:
        if self._work is None:
            self._start(self.talk.enter(text))
        elif not self.talk.running:
            self._held.append(text)
        elif slash_commands.parse(text) is not None:
            self._later(self.talk.enter(text))
        else:
            self._later(self._queue(slash_commands.spoken(text)))

    async def _queue(self, text: str) -> None:
        try:
            await self.talk.queue(text)
        except HoldfastError as error:
            self.talk.tell(error)
            self._buffer.text = self._buffer.text or text  # The user need not type it again.
        self.show()

    def _interrupt(self) -> None:
        """Handle Ctrl-C: stop the turn, else clear the line, else print how to quit."""
        if self.talk.running:
            if not self.talk.stopping:
                self.talk.stop()
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result("")
        elif self._buffer.text:
            self._buffer.reset()
        else:
            self.talk.note("Ctrl-D or /exit quits; nothing is lost")
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
        menu = CompletionsMenu(max_height=_MENU, scroll_offset=1)
        return FloatContainer(rows, [Float(menu, xcursor=True, ycursor=True)])

    def _placeholder(self) -> ConditionalProcessor:
        def is_empty() -> bool:
            return not self._buffer.text and self._answer is None and not self.talk.running

        return ConditionalProcessor(
            AfterInput([("class:faint", _PLACEHOLDER)]), filter=Condition(is_empty)
        )

    def _prefix(self, line: int, wrapped: int) -> StyleAndTextTuples:
        if line or wrapped:
            return [("", "  ")]
        return [("class:prompt", MARK)]

    def _entry_height(self) -> Dimension:
        rows = self._app.output.get_size().rows
        menu = max(0, min(_MENU, rows - 4)) if self._buffer.complete_state is not None else 0
        return Dimension(min=1 + menu, max=max(3 + menu, rows // 2))

    def _has_status(self) -> bool:
        return self.talk.running or self._label is not None

    def _is_live(self) -> bool:
        return self.talk.running and self._drawing.is_live

    def _live(self) -> AnyFormattedText:
        lines = drawn(self._drawing.draw_live).rstrip("\n").split("\n")
        rows = max(3, self._app.output.get_size().rows - 6 - len(self.talk.waiting[:_QUEUE]))
        return ANSI("\n".join(lines[-rows:]))

    def _status(self) -> StyleAndTextTuples:
        width = self._app.output.get_size().columns - 1
        lines: StyleAndTextTuples = [("", "\n")]
        if self._label is not None:
            question = "\n".join(f"  {line}" for line in wrapped(visible(self._label), width - 2))
            return [*lines, ("class:asking", question)]
        activity = "stopping" if self.talk.stopping else f"{self._drawing.status} · Ctrl-C stops"
        lines.append(("class:faint", f"  {activity}"[:width]))
        for text in self.talk.waiting[:_QUEUE]:
            shown = f"  queued: {visible(words(text))}"[:width]
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


class Paper:
    """Buffers permanent output, which is then written above the prompt at once.

    Its screen is always as wide as the terminal.
    """

    def __init__(self) -> None:
        self._text = io.StringIO()
        self._screen: screen.Terminal | None = None
        self._columns = 0

    @property
    def screen(self) -> Screen:
        """The screen that writes to the buffer."""
        columns = shutil.get_terminal_size().columns
        if self._screen is None or columns != self._columns:
            self._screen, self._columns = screen.Terminal(self._text), columns
        return self._screen

    def take(self) -> str:
        """Return the output since the last call."""
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text


class KeptHistory(FileHistory):
    """The input history of earlier chats, in a file only the user can read.

    Errors of the file are ignored.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Read the history, newest first."""
        try:
            return super().load_history_strings()
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        """Append a line of input."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Created with this mode, so that it is never readable by others.
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            super().store_string(string)
        except OSError:
            return


def _history() -> KeptHistory:
    """Return the user's input history."""
    state = platformdirs.user_state_path("holdfast", appauthor=False)
    return KeptHistory(state / "chat_history")
