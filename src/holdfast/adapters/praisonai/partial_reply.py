"""A reply that PraisonAI streams: it passes the whole text so far, again and again.

Only what is new of it is written, to a draft in a turn of its own. After a crash the draft is a
partial message of the history.
"""

from __future__ import annotations

from typing import Literal

from holdfast import Session


class PartialReply:
    """An open reply of a session: the id of its message, and the text so far."""

    def __init__(self, session: Session) -> None:
        self.text = ""
        self._turn = session.turn()
        self._turn.__enter__()
        self._draft = self._turn.stream()
        self.id = self._draft.id

    def grow(self, text: str) -> None:
        """Write what this text has more than the text so far, with which it begins."""
        self._draft.write(text[len(self.text) :])
        self.text = text

    def close(self, status: Literal["complete", "partial"]) -> None:
        """Store the reply as a message, and end its turn."""
        try:
            self._draft.close(status=status)
        finally:
            self._turn.__exit__(None, None, None)
