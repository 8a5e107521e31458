"""Printing above a prompt that stays: what is drawn is gathered, then put above it at once."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable

from holdfast.cli.screen import Screen, Terminal


class Paper:
    """Gathers what is drawn on its screen; the screen is always as wide as the terminal."""

    def __init__(self) -> None:
        """Begin empty."""
        self._text = io.StringIO()
        self._screen: Terminal | None = None
        self._columns = 0

    @property
    def screen(self) -> Screen:
        """Draw here."""
        columns = shutil.get_terminal_size().columns
        if self._screen is None or columns != self._columns:
            self._screen, self._columns = Terminal(self._text), columns
        return self._screen

    def take(self) -> str:
        """Return what was drawn since the last time."""
        text = self._text.getvalue()
        self._text.seek(0)
        self._text.truncate()
        return text


def drawn(draw: Callable[[Screen], None]) -> str:
    """Draw something, and give it as text for a terminal."""
    text = io.StringIO()
    draw(Terminal(text))
    return text.getvalue()
