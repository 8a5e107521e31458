"""A pager for output that is longer than the screen.

It is used only on a terminal. Output is buffered until it exceeds the screen; then the pager starts
and receives it as it is produced, so the first page of a long history appears at once. Output that
fits is simply printed. `$PAGER` names the program, `less` by default; if it is empty or not
installed, there is no pager.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from holdfast.cli.output.screen import Screen, TerminalScreen, screen

if TYPE_CHECKING:
    import subprocess

_STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")


class _PagerClosed(Exception):
    """The user closed the pager before all output was written."""


@contextmanager
def paged(*, wanted: bool = True) -> Iterator[Screen]:
    """Yield the screen to print on; its output goes to a pager if one is wanted and needed."""
    command = pager_command(os.environ) if wanted and sys.stdout.isatty() else None
    if command is None:
        yield screen()
        return
    held = _PagedOutput(command, shutil.get_terminal_size())
    try:
        yield TerminalScreen(held)
    except _PagerClosed:
        return
    finally:
        held.finish()


def pager_command(environ: Mapping[str, str]) -> list[str] | None:
    """Return the pager's command line, or None if there is no pager."""
    if environ.get("TERM") in {"dumb", "unknown"}:
        return None
    try:
        words = shlex.split(environ.get("PAGER", "less -R"))
    except ValueError:  # A quotation mark is missing.
        return None
    return words if words and shutil.which(words[0]) else None


class _PagedOutput(io.StringIO):
    """Buffers output until it is longer than the screen, then pipes it to the pager."""

    def __init__(self, command: list[str], terminal: os.terminal_size) -> None:
        super().__init__()
        self._command = command
        self._columns = terminal.columns or 80
        self._rows_left = terminal.lines - 1  # The shell's prompt needs one line.
        self._pager: subprocess.Popen[bytes] | None = None
        self._previous_handler: Any = None

    def write(self, text: str) -> int:
        """Buffer the text, or send it to the pager if that has started."""
        if self._pager is None:
            self._rows_left -= _rows(text, self._columns)
            super().write(text)
            if self._rows_left < 0:
                self._start()
        else:
            self._send(text)
        return len(text)

    def _start(self) -> None:
        import subprocess

        # With `R`, less shows colours, and it keeps no file of what was searched for in a
        # conversation; a user's own settings take precedence.
        environment = {"LESS": "R", "LESSHISTFILE": "-", **os.environ}
        self._pager = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
        # Ctrl-C is for the pager from now on: it ends a search there, not this program.
        self._previous_handler = signal.signal(signal.SIGINT, _ignore)
        self._send(self.getvalue())

    def _send(self, text: str) -> None:
        try:
            self._stdin().write(text.encode("utf-8", "backslashreplace"))
        except BrokenPipeError:
            raise _PagerClosed from None

    def _stdin(self) -> IO[bytes]:
        assert self._pager is not None  # noqa: S101 - it was started
        assert self._pager.stdin is not None  # noqa: S101 - as a pipe
        return self._pager.stdin

    def finish(self) -> None:
        """Print the buffer, or wait for the pager to exit."""
        if self._pager is None:
            sys.stdout.write(self.getvalue())
            return
        with suppress(BrokenPipeError):  # The user closed it early.
            self._stdin().close()
        self._pager.wait()
        signal.signal(signal.SIGINT, self._previous_handler)


def _rows(text: str, columns: int) -> int:
    """Return how many rows a text takes; a line longer than the terminal takes several."""
    lines = _STYLES.sub("", text).split("\n")
    return len(lines) - 1 + sum(max(0, len(line) - 1) // columns for line in lines)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing."""
