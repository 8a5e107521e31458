"""A reply that PraisonAI streams: it passes the whole text so far, again and again.

Only what is new of it is written, to a draft in a turn of its own. After a crash the draft is a
partial message of the history.
"""

from __future__ import annotations

from typing import Literal

from holdfast import Session
from holdfast.errors import HoldfastError


class PartialReply:
    """An open reply of a session: the id of its message, and the text so far.

    If a write fails, how much of it the draft has is not known: then the reply is to be ended, and
    another one begun with the whole text.
    """

    def __init__(self, session: Session) -> None:
        self.text = ""
        self.has_failed = False
        self._turn = session.turn()
        self._turn.__enter__()
        self._draft = self._turn.stream()
        self.id = self._draft.id

    def grow(self, text: str) -> None:
        """Write what this text has more than the text so far, with which it begins."""
        try:
            self._draft.write(text[len(self.text) :])
        except HoldfastError:
            self.has_failed = True
            raise
        self.text = text

    def continues(self, text: str) -> bool:
        """True if a text is this one, or more of it."""
        return not self.has_failed and bool(text) and text.startswith(self.text)

    def close(self, status: Literal["complete", "partial"]) -> None:
        """Store the reply as a message, and end its turn."""
        try:
            self._draft.close(status=status)
        finally:
            self._turn.__exit__(None, None, None)
