"""Text that comes in pieces, cut without regard for characters.

Servers that count in UTF-16 may cut a character in two: each piece then ends, or begins, with half
of one, which no file and no screen takes. A half at the end waits for the other one.
"""

from __future__ import annotations


class Halves:
    """Joins halves of characters across pieces of one text."""

    def __init__(self) -> None:
        """Begin with nothing left over."""
        self._left = ""

    def joined(self, piece: str) -> str:
        """Return a piece with the half that was left over before it, without one at its end."""
        text = self._left + piece
        self._left = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        return whole(text[: -1 if self._left else None])

    def rest(self) -> str:
        """Return what stands for a half whose other half never came."""
        left, self._left = self._left, ""
        return whole(left)


def whole(text: str) -> str:
    """Join the halves of characters in a text; a lone one becomes a replacement character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
