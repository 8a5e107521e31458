"""What was typed in earlier chats, in a file that is nobody else's to read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import platformdirs
from prompt_toolkit.history import FileHistory


class KeptHistory(FileHistory):
    """A history in a file; one that cannot be read or written holds nothing up."""

    def __init__(self, path: Path) -> None:
        """Keep it here, and make the file if it is not there."""
        super().__init__(str(path))
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Read it, the newest first."""
        try:
            return super().load_history_strings()
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        """Add what was typed."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The mode counts from the moment the file is there.
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
            super().store_string(string)
        except OSError:
            return


def history() -> KeptHistory:
    """Return the user's own history."""
    state = platformdirs.user_state_path("holdfast", appauthor=False)
    return KeptHistory(state / "chat_history")
