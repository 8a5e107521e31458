"""Finding text in files, line by line. What is looked for is text, never a pattern."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.agent.tools.functions import ToolError
from holdfast.agent.tools.texts import cut_line, is_binary
from holdfast.agent.tools.workspace import Place, Workspace

_LONGEST_HIT: Final = 300
_MOST_HITS: Final = 200


class Wanted(msgspec.Struct, frozen=True):
    """A text to look for."""

    text: str
    ignore_case: bool

    def hits(self, data: bytes) -> list[tuple[int, str]]:
        """Return the lines that hold it, with their numbers; where it has several, the first."""
        if is_binary(data):
            return []
        text = data.decode("utf-8", "replace")
        wanted = self.text.lower() if self.ignore_case else self.text
        within = text.lower() if self.ignore_case else text
        if wanted not in within:
            return []
        # Lower case may be longer, never has other lines.
        lines = text.split("\n")
        found: list[tuple[int, str]] = []
        number, at = 0, 0
        while (hit := within.find(wanted, at)) >= 0:
            number += within.count("\n", at, hit)
            found.append((number + 1, lines[number]))
            end = within.find("\n", hit)
            if end < 0:
                break
            number, at = number + 1, end + 1
        return found


class Found:
    """What a search found so far, as far as there is room to show it."""

    def __init__(self, room: int) -> None:
        """Begin with nothing; `room` is how many characters may be shown."""
        self._room = room
        self._lines: list[str] = []
        self._count = 0
        self._unsearched = 0

    def look_into(self, space: Workspace, place: Place, wanted: Wanted) -> None:
        """Take what a file holds of it."""
        try:
            hits = wanted.hits(space.read(place))
        except ToolError:
            self._unsearched += 1
            return
        for number, line in hits:
            self._count += 1
            shown = f"{place.shown}:{number}: {cut_line(line.strip(), _LONGEST_HIT)}"
            self._room -= len(shown) + 1
            if self._room >= 0 and len(self._lines) < _MOST_HITS:
                self._lines.append(shown)

    def told(self) -> list[str]:
        """Return the lines that are shown."""
        lines = list(self._lines) or ["(not found)"]
        if self._count > len(self._lines):
            lines.append(f"[{self._count - len(self._lines):,} more lines are not shown]")
        if self._unsearched:
            lines.append(f"[{self._unsearched:,} files are too large or unreadable: not searched]")
        return lines
