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

from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.output.screen import cells

Progress: TypeAlias = Callable[[int, int], None]
_DELAY_S: Final = 1.0  # seconds
_INTERVAL_S: Final = 0.2


@contextmanager
def spinner(label: str) -> Iterator[Progress | None]:
    """Show a progress line while the block runs; yield a function to report (done, total)."""
    if not sys.stderr.isatty():
        yield None
        return
    line = _ProgressLine(sanitize(label))
    thread = threading.Thread(target=line.run)
    thread.start()
    try:
        yield line.report
    finally:
        line.done.set()
        thread.join()


class _ProgressLine:
    """One line, rewritten in place."""

    def __init__(self, label: str) -> None:
        self.done = threading.Event()
        self._doing = label
        self._percentage = ""
        self._started = time.monotonic()

    def report(self, done: int, total: int) -> None:
        """Record the progress."""
        self._percentage = f"{100 * done // total} %, " if total else ""

    def run(self) -> None:
        """Rewrite the line until `done` is set, then wipe it."""
        if self.done.wait(_DELAY_S):
            return
        width = 0
        while not self.done.wait(_INTERVAL_S):
            text = self._text(shutil.get_terminal_size((80, 24)).columns - 1)
            self._write(text, width)
            width = cells(text)
        self._write("", width)
        self._write("", 0)

    def _text(self, most: int) -> str:
        suffix = f" … {self._percentage}{time.monotonic() - self._started:.0f} s"
        label = self._doing
        while label and cells(label) + cells(suffix) > most:
            label = label[:-1]
        return label + suffix

    def _write(self, text: str, width: int) -> None:
        sys.stderr.write(f"\r{text}{' ' * (width - cells(text))}")
        sys.stderr.flush()
