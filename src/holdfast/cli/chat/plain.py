"""The plain view of a chat: prompts line by line from standard input, plain text out.

Each line is a message or a command. There is no user to ask, so calls that need consent are
refused. The chat ends with its input. On a terminal that does not support drawing, the user gets a
prompt mark and is asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, TypeAlias

from holdfast.agent import events
from holdfast.cli.chat import resume_banner
from holdfast.cli.chat.chat_context import ChatContext
from holdfast.cli.chat.controller import ChatController, StartOptions
from holdfast.cli.chat.turn_view import MARK, TurnView
from holdfast.cli.errors import exit_code
from holdfast.cli.output.sanitize_stream import StreamSanitizer
from holdfast.cli.output.screen import PlainScreen, Screen
from holdfast.cli.signals import SignalHandler, describe
from holdfast.codec import MAX_MESSAGE_BYTES
from holdfast.errors import TooLarge

_MAX_SESSIONS: Final = 20
_MAX_QUEUED_LINES: Final = 16  # lines read ahead
_TOO_LONG: Final = (
    f"a line on standard input is over the limit of {MAX_MESSAGE_BYTES:,} bytes; it was not sent, "
    "and what came before it is stored."
)

_Line: TypeAlias = str | TooLarge | None  # the error of a line that was not read, or the end


class PlainTurnView(TurnView):
    """Writes the reply as it arrives; there is no live area."""

    def __init__(self, out: PlainScreen) -> None:
        super().__init__(lambda: out)
        self._flow = StreamSanitizer()
        self._reply_started = self._ends_with_newline = False

    def take(self, event: events.Event) -> None:
        """Draw an event; write the text of a reply at once."""
        if not isinstance(event, events.TextDelta) or not event.text:
            super().take(event)
            return
        self._end_thinking()
        if not self._reply_started:
            self._separate("text", alone=True)
            self._reply_started = True
        self._write(self._flow.write(event.text))

    def show_said(self, text: str) -> None:
        """Print nothing: the input is known to the program that wrote it."""

    def _end_reply(self) -> None:
        super()._end_reply()
        if self._reply_started:
            self._write(self._flow.end())
            self._write("" if self._ends_with_newline else "\n")
            self._reply_started = self._ends_with_newline = False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._ends_with_newline = text.endswith("\n") if text else self._ends_with_newline


class PlainView:
    """The view of a chat on standard input and output."""

    def __init__(self, context: ChatContext) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._lines: asyncio.Queue[_Line] = asyncio.Queue(_MAX_QUEUED_LINES)
        self._out = PlainScreen(sys.stdout)
        self._drawing = PlainTurnView(self._out)
        self._leaving = asyncio.Event()
        self.chat = ChatController(context, self)

    @property
    def out(self) -> Screen:
        """The screen for output."""
        return self._out

    def drawing(self) -> TurnView:
        """Return the object that draws turns."""
        return self._drawing

    def show(self) -> None:
        """Flush the output."""
        self._out.flush()

    async def ask(self, label: str) -> str | None:
        """Ask the user for a line; `None` if no user is present."""
        if not self.interactive:
            return None
        self._out.line(f"  {label}")
        return await self._next()

    async def pick(self, chat: ChatController, text: str) -> str | None:
        """Print the sessions; the user opens one with /resume."""
        page = await chat.context.store.sessions(text=text or None, limit=_MAX_SESSIONS)
        resume_banner.draw_sessions(self._out, page.items)
        return None

    def leave(self) -> None:
        """Stop reading lines."""
        self._leaving.set()
        self.chat.stop("the chat was closed")

    async def run(self, start_options: StartOptions, signals: SignalHandler) -> int:
        """Answer lines until the input ends or a signal arrives; return the exit code."""
        loop = asyncio.get_running_loop()

        def end(received: signal.Signals) -> None:
            self._leaving.set()
            self.chat.stop(describe(received))

        def on_signal(received: signal.Signals) -> bool:
            if received == signal.SIGINT and self.interactive and self.chat.running:
                loop.call_soon_threadsafe(self.chat.stop)
                return True
            loop.call_soon_threadsafe(end, received)
            return False

        with signals.notifying(on_signal):
            _start_reader(self._lines, loop)
            await self.chat.open(start_options)
            while (line := await self._next()) is not None:
                if line.strip():
                    await self.chat.handle_line(line.strip())
                    self.show()
        return 0 if self.chat.last_error is None else exit_code(self.chat.last_error)

    async def _next(self) -> str | None:
        """Return the next line; `None` at the end of the input, or when the chat is closed.

        Raise `TooLarge` for a line over the limit.
        """
        if self.interactive:
            sys.stdout.write(MARK)
        self.show()
        getting = asyncio.ensure_future(self._lines.get())
        leaving = asyncio.ensure_future(self._leaving.wait())
        done, rest = await asyncio.wait({getting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        line = getting.result() if getting in done else None
        if isinstance(line, TooLarge):
            raise line
        return line


def _start_reader(lines: asyncio.Queue[_Line], loop: asyncio.AbstractEventLoop) -> None:
    """Read standard input in a thread, as a blocking read cannot be cancelled."""

    def put(line: _Line) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    def read() -> None:
        line = bytearray()
        # Not through `sys.stdin`: its lock would be held when the program ends.
        while data := _read(65536):
            end_of_line, *others = data.split(b"\n")
            line += end_of_line
            if len(line) > MAX_MESSAGE_BYTES:
                put(TooLarge(_TOO_LONG))
                return
            for other in others:
                put(line.decode("utf-8", "replace"))
                line = bytearray(other)
        if line:
            put(line.decode("utf-8", "replace"))
        put(None)

    def run() -> None:
        # The chat may end before its input does.
        with suppress(CancelledError, RuntimeError):
            read()

    threading.Thread(target=run, name="holdfast-input", daemon=True).start()


def _read(size: int) -> bytes:
    try:
        return os.read(0, size)
    except OSError:
        return b""
