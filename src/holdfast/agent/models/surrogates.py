"""Joins UTF-16 surrogates across pieces of streamed text.

Servers that count in UTF-16 may split a character between two pieces: one ends with the high
surrogate, the next begins with the low one. Neither can be encoded alone, so a high surrogate at
the end of a piece is held back until the next piece.
"""

from __future__ import annotations


class SurrogateJoiner:
    """Joins surrogates across the pieces of one text."""

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, piece: str) -> str:
        """Return a piece, preceded by the surrogate held back, without one at its end."""
        text = self._pending + piece
        self._pending = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        return join_surrogates(text[: -1 if self._pending else None])

    def flush(self) -> str:
        """Return a replacement character for a surrogate still held back; else an empty text."""
        pending, self._pending = self._pending, ""
        return join_surrogates(pending)


def join_surrogates(text: str) -> str:
    """Join surrogate pairs in a text; a lone surrogate becomes a replacement character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
