"""A text that arrives in pieces, made safe to look at.

`visible` must see what stands around a character to know whether it joins two others or hides. So
what could still join the next piece is held back until that piece is there.
"""

from __future__ import annotations

from typing import Final

from holdfast.cli.visible import visible

_BEFORE: Final = 3  # characters that a joiner's meaning depends on
_HELD: Final = "\ufe0f\u200c\u200d"


class Flow:
    """Gives, piece by piece, what `visible` would give for the whole."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._before = ""
        self._held = ""

    def write(self, text: str) -> str:
        """Take the next piece; give what can be shown now."""
        text = self._held + text
        shown = text.rstrip(_HELD)
        self._held = text[len(shown) :]
        return self._shown(shown)

    def end(self) -> str:
        """Return the rest."""
        rest, self._held = self._held, ""
        return self._shown(rest)

    def _shown(self, text: str) -> str:
        known = visible(self._before, body=True)
        shown = visible(self._before + text, body=True)[len(known) :]
        self._before = (self._before + text)[-_BEFORE:]
        return shown
