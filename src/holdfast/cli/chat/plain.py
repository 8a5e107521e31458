"""The chat without a terminal: prompts line by line from standard input, plain text out.

Each line is a message, or a command. Nobody is asked anything: what needs consent is refused. It
ends with its input. Somebody who sits there all the same, at a terminal on which nothing can be
drawn, gets a mark before each line and is asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final

from holdfast.agent import events
from holdfast.cli import signals
from holdfast.cli.chat import recap
from holdfast.cli.chat.desk import Desk
from holdfast.cli.chat.drawing import MARK, Drawing
from holdfast.cli.chat.talking import Talk, Wanted
from holdfast.cli.flowing import Flow
from holdfast.cli.problems import exit_code
from holdfast.cli.screen import Pipe, Screen

_LISTED: Final = 20
_AHEAD: Final = 16  # lines that are read before they are answered


class PlainDrawing(Drawing):
    """Writes the reply as it comes: nothing is ever drawn again."""

    def __init__(self, out: Pipe) -> None:
        """Write to `out`."""
        super().__init__(lambda: out)
        self._flow = Flow()
        self._begun = self._new_line = False

    def take(self, event: events.Event) -> None:
        """Write what an event tells; the text of a reply at once."""
        if not isinstance(event, events.TextDelta) or not event.text:
            super().take(event)
            return
        self._end_thinking()
        if not self._begun:
            self._apart("text", alone=True)
            self._begun = True
        self._write(self._flow.write(event.text))

    def show_said(self, text: str) -> None:
        """Write nothing: who writes lines into a program knows them."""

    def _end_reply(self) -> None:
        super()._end_reply()
        if self._begun:
            self._write(self._flow.end())
            self._write("" if self._new_line else "\n")
            self._begun = self._new_line = False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._new_line = text.endswith("\n") if text else self._new_line


class Plain:
    """The front of a chat without a terminal."""

    def __init__(self, desk: Desk) -> None:
        """Read from standard input, write to standard output."""
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_AHEAD)
        self._out = Pipe(sys.stdout)
        self._drawing = PlainDrawing(self._out)
        self._leaving = asyncio.Event()
        self.talk = Talk(desk, self)

    @property
    def out(self) -> Screen:
        """Where to print."""
        return self._out

    def drawing(self) -> Drawing:
        """Write turns with this."""
        return self._drawing

    def show(self) -> None:
        """Let a reader see it now."""
        self._out.flush()

    async def ask(self, label: str) -> str | None:
        """Ask for a line, if somebody is there."""
        if not self.interactive:
            return None
        self._out.line(f"  {label}")
        return await self._next()

    async def pick(self, talk: Talk, text: str) -> str | None:
        """List the sessions: /resume goes to one."""
        page = await talk.desk.store.sessions(text=text or None, limit=_LISTED)
        recap.draw_sessions(self._out, page.items)
        return None

    def leave(self) -> None:
        """Read no more lines."""
        self._leaving.set()
        self.talk.stop("the chat was left")

    async def run(self, wanted: Wanted, told: signals.Signals) -> int:
        """Answer line after line, until there are no more or a signal says so."""
        loop = asyncio.get_running_loop()

        def end(came: signal.Signals) -> None:
            self._leaving.set()
            self.talk.stop(signals.why(came))

        def hear(came: signal.Signals) -> bool:
            if came == signal.SIGINT and self.interactive and self.talk.running:
                loop.call_soon_threadsafe(self.talk.stop)
                return True
            loop.call_soon_threadsafe(end, came)
            return False

        with told.telling(hear):
            _read_into(self._lines, loop)
            await self.talk.open(wanted)
            while (line := await self._next()) is not None:
                if line.strip():
                    await self.talk.enter(line.strip())
                    self.show()
        return 0 if self.talk.trouble is None else exit_code(self.talk.trouble)

    async def _next(self) -> str | None:
        """Wait for a line, or for the end."""
        if self.interactive:
            sys.stdout.write(MARK)
        self.show()
        getting = asyncio.ensure_future(self._lines.get())
        leaving = asyncio.ensure_future(self._leaving.wait())
        done, rest = await asyncio.wait({getting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        return getting.result() if getting in done else None


def _read_into(lines: asyncio.Queue[str | None], loop: asyncio.AbstractEventLoop) -> None:
    """Read standard input in a thread of its own: a read cannot be given up."""

    def put(line: bytes | None) -> None:
        said = None if line is None else line.decode("utf-8", "replace")
        asyncio.run_coroutine_threadsafe(lines.put(said), loop).result()

    def read() -> None:
        kept = b""
        # Not through `sys.stdin`: its lock would be held when the program ends.
        while data := _read(65536):
            *whole, kept = (kept + data).split(b"\n")
            for line in whole:
                put(line)
        if kept:
            put(kept)
        put(None)

    def run() -> None:
        # The conversation may be over before the input is.
        with suppress(CancelledError, RuntimeError):
            read()

    threading.Thread(target=run, name="holdfast-input", daemon=True).start()


def _read(size: int) -> bytes:
    try:
        return os.read(0, size)
    except OSError:
        return b""
