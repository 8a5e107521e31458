"""A line on the terminal while something takes long.

Nothing is shown for what is done within a second, nor where nobody looks. The line goes to standard
error and is gone afterwards, so what a command prints stays the same.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from holdfast.cli.screen import cells
from holdfast.cli.visible import visible

Progress: TypeAlias = Callable[[int, int], None]
_PATIENCE: Final = 1.0  # seconds
_PACE: Final = 0.2


@contextmanager
def waiting(doing: str) -> Iterator[Progress | None]:
    """Return what goes on while the block runs; give what it tells how far it is: of how much."""
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
    """One line, written over and over."""

    def __init__(self, doing: str) -> None:
        self.done = threading.Event()
        self._doing = doing
        self._far = ""
        self._began = time.monotonic()

    def note(self, done: int, total: int) -> None:
        """Take down how far it is."""
        self._far = f"{100 * done // total} %, " if total else ""

    def show(self) -> None:
        """Write the line until it is done, then wipe it off."""
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
        behind = f" … {self._far}{time.monotonic() - self._began:.0f} s"
        doing = self._doing
        while doing and cells(doing) + cells(behind) > most:
            doing = doing[:-1]
        return doing + behind

    def _write(self, text: str, width: int) -> None:
        sys.stderr.write(f"\r{text}{' ' * (width - cells(text))}")
        sys.stderr.flush()
