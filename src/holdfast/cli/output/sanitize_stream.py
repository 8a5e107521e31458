"""A text that arrives in chunks, made safe to print.

Whether `sanitize` escapes a joiner depends on the characters around it. So joiners at the end of a
chunk are held back until the next chunk arrives.
"""

from __future__ import annotations

from typing import Final

from holdfast.cli.output.sanitize import sanitize

_CONTEXT_CHARS: Final = 3  # preceding characters that decide about a joiner
_JOINERS: Final = "\ufe0f\u200c\u200d"


class StreamSanitizer:
    """Sanitizes a stream chunk by chunk, with the same result as `sanitize` on the whole text."""

    def __init__(self) -> None:
        self._context = ""
        self._held = ""

    def write(self, text: str) -> str:
        """Add the next chunk; return what can be printed now."""
        text = self._held + text
        shown = text.rstrip(_JOINERS)
        self._held = text[len(shown) :]
        return self._sanitized(shown)

    def end(self) -> str:
        """Return what was held back, at the end of the stream."""
        rest, self._held = self._held, ""
        return self._sanitized(rest)

    def _sanitized(self, text: str) -> str:
        known = sanitize(self._context, body=True)
        shown = sanitize(self._context + text, body=True)[len(known) :]
        self._context = (self._context + text)[-_CONTEXT_CHARS:]
        return shown
