"""Search for literal text in files, line by line."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.agent.tools.function_tools import ToolError
from holdfast.agent.tools.text_file import cut_line, is_binary
from holdfast.agent.tools.workspace import Workspace, WorkspacePath

_MAX_HIT_CHARS: Final = 300
_MAX_HITS: Final = 200


class TextQuery(msgspec.Struct, frozen=True):
    """A text to search for."""

    text: str
    ignore_case: bool

    def matches(self, data: bytes) -> list[tuple[int, str]]:
        """Return the matching lines with their numbers; the first line of a multi-line match."""
        if is_binary(data):
            return []
        text = data.decode("utf-8", "replace")
        needle = self.text.lower() if self.ignore_case else self.text
        haystack = text.lower() if self.ignore_case else text
        if needle not in haystack:
            return []
        # Lower case may have more characters, but never other line ends.
        lines = text.split("\n")
        found: list[tuple[int, str]] = []
        number, at = 0, 0
        while (hit := haystack.find(needle, at)) >= 0:
            number += haystack.count("\n", at, hit)
            found.append((number + 1, lines[number]))
            end = haystack.find("\n", hit)
            if end < 0:
                break
            number, at = number + 1, end + 1
        return found


class FileSearchResults:
    """The matches of a search, of which at most `room` characters are shown."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._lines: list[str] = []
        self._count = 0
        self._unsearched = 0

    def search_file(self, space: Workspace, path: WorkspacePath, query: TextQuery) -> None:
        """Add the matches in a file."""
        try:
            hits = query.matches(space.read(path))
        except ToolError:
            self._unsearched += 1
            return
        for number, line in hits:
            self._count += 1
            shown = f"{path.display}:{number}: {cut_line(line.strip(), _MAX_HIT_CHARS)}"
            self._room -= len(shown) + 1
            if self._room >= 0 and len(self._lines) < _MAX_HITS:
                self._lines.append(shown)

    def lines(self) -> list[str]:
        """Return the lines to show."""
        lines = list(self._lines) or ["(not found)"]
        if self._count > len(self._lines):
            lines.append(f"[{self._count - len(self._lines):,} more lines are not shown]")
        if self._unsearched:
            lines.append(f"[not searched: {self._unsearched:,} files, too large or unreadable]")
        return lines
