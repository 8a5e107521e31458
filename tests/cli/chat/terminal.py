"""A real terminal for the chat: a process on a pty, and a screen that shows what it wrote.

    with Terminal(shell.environment) as terminal:      # runs `holdfast chat`
        terminal.wait_for("say something")
        terminal.enter("hello")
        terminal.wait_for("You said: hello")

`wait_for` looks at the whole output as a person would see it, what has scrolled away included, and
fails with that picture. `raw` is every byte that was written.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pexpect
import pyte

PATIENCE: Final = 60.0
CTRL_C: Final = "\x03"
CTRL_D: Final = "\x04"
CTRL_J: Final = "\n"
ESCAPE: Final = "\x1b"
UP: Final = "\x1b[A"
DOWN: Final = "\x1b[B"
TAB: Final = "\t"
READY: Final = "say something"


class Terminal:
    """`holdfast chat` on a terminal of this size; use it in a `with` block."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *arguments: str,
        cwd: Path,
        columns: int = 100,
        rows: int = 40,
        kind: str = "xterm-256color",
        program: Sequence[str] = (sys.executable, "-m", "holdfast"),
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._seen: str | None = None
        self.raw = b""
        self.process: pexpect.spawn[bytes] = pexpect.spawn(
            program[0],
            [*program[1:], "chat", *arguments],
            env={**environment, "TERM": kind},
            cwd=str(cwd),
            dimensions=(rows, columns),
            timeout=PATIENCE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.close(force=True)

    # ------------------------------------------------------------------------------------- typing

    def type(self, text: str) -> None:
        """Press keys."""
        self.process.send(text)

    def enter(self, text: str) -> None:
        """Type a line, and send it."""
        self.type(text)
        self.wait_until(lambda: text.splitlines()[-1][-40:] in self.bottom(20), text)
        self.type("\r")

    def paste(self, text: str) -> None:
        """Paste, as terminals do it."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, columns: int, rows: int) -> None:
        """Change the window's size."""
        self.read()
        self._seen = None
        self._screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    # ------------------------------------------------------------------------------------ looking

    def read(self) -> None:
        """Take what was written by now."""
        while not self.process.closed:
            try:
                data = self.process.read_nonblocking(65536, timeout=0)
            except (pexpect.TIMEOUT, pexpect.EOF):
                return
            self.raw += data
            self._seen = None
            self._stream.feed(data)

    def bottom(self, rows: int) -> str:
        """What stands in the last rows that have something."""
        return "\n".join(self.text().splitlines()[-rows:])

    def text(self) -> str:
        """All that was written, as it looks: what has scrolled away, then the screen."""
        self.read()
        if self._seen is None:
            self._seen = self._as_it_looks()
        return self._seen

    def _as_it_looks(self) -> str:
        above = [
            "".join(line[x].data for x in range(self._screen.columns))
            for line in self._screen.history.top
        ]
        lines = [line.rstrip() for line in (*above, *self._screen.display)]
        return "\n".join(lines).rstrip()

    def wait_for(self, *texts: str) -> str:
        """Wait until all of these can be seen."""
        self.wait_until(lambda: all(text in self.text() for text in texts), *texts)
        return self.text()

    def wait_until(self, holds: Callable[[], bool], *what: str) -> None:
        """Wait until something holds; show the screen if it never does."""
        until = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > until or not self.process.isalive():
                if holds():
                    return
                raise AssertionError(f"never came: {what}\n{self.text()}")
            self._wait_for_more()

    def _wait_for_more(self) -> None:
        """Wait until something is written, for a moment: what is awaited may be elsewhere."""
        select.select([self.process.child_fd], [], [], 0.05)

    def wait_ready(self) -> None:
        """Wait for the empty prompt."""
        self.wait_until(lambda: READY in self.bottom(3), READY)

    # ------------------------------------------------------------------------------------- ending

    def leave(self) -> int:
        """Press Ctrl-D; give the exit code."""
        self.wait_ready()
        self.type(CTRL_D)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; give the exit code as a shell tells it."""
        until = time.monotonic() + PATIENCE
        while self.process.isalive():
            self.read()
            assert time.monotonic() < until, self.text()
            time.sleep(0.01)
        self.read()
        if self.process.exitstatus is not None:
            return int(self.process.exitstatus)
        assert self.process.signalstatus is not None
        return 128 + self.process.signalstatus

    def kill(self) -> None:
        """Kill it, without a chance to do anything."""
        self.process.kill(signal.SIGKILL)
        self.ended()

    def hang_up(self) -> None:
        """Close the terminal under it; only then is it told."""
        # Its number stays in use: pexpect closes it later.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self.process.child_fd)
        os.close(nothing)
