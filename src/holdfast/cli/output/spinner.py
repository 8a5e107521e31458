"""A progress line on the terminal during a long operation.

It appears after a second, and only if standard error is a terminal. It is written to standard error
and wiped afterwards, so a command's output stays the same.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from holdfast.cli.output.sanitize import visible
from holdfast.cli.output.screen import cells

Progress: TypeAlias = Callable[[int, int], None]
_PATIENCE: Final = 1.0  # seconds
_PACE: Final = 0.2


@contextmanager
def waiting(doing: str) -> Iterator[Progress | None]:
    """Show a progress line while the block runs; yield a function to report (done, total)."""
    if not sys.stderr.isatty():
        yield None
        return
    line = _Line(visible(doing))
    thread = threading.Thread(target=line.show)
    thread.start()
    try:
        yield line.note
    finally:
        line.done.set()
        thread.join()


class _Line:
    """One line, rewritten in place."""

    def __init__(self, doing: str) -> None:
        self.done = threading.Event()
        self._doing = doing
        self._far = ""
        self._began = time.monotonic()

    def note(self, done: int, total: int) -> None:
        """Record the progress."""
        self._far = f"{100 * done // total} %, " if total else ""

    def show(self) -> None:
        """Rewrite the line until `done` is set, then wipe it."""
        if self.done.wait(_PATIENCE):
            return
        width = 0
        while not self.done.wait(_PACE):
            text = self._text(shutil.get_terminal_size((80, 24)).columns - 1)
            self._write(text, width)
            width = cells(text)
        self._write("", width)
        self._write("", 0)

    def _text(self, most: int) -> str:
        suffix = f" … {self._far}{time.monotonic() - self._began:.0f} s"
        doing = self._doing
        while doing and cells(doing) + cells(suffix) > most:
            doing = doing[:-1]
        return doing + suffix

    def _write(self, text: str, width: int) -> None:
        sys.stderr.write(f"\r{text}{' ' * (width - cells(text))}")
        sys.stderr.flush()
