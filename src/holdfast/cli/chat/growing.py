"""A Markdown text as it arrives: the blocks that are done, and the one that still grows.

Markdown is read line by line, and a block that another one follows never changes again. So of the
lines that are whole, all blocks but the last are done: each is given once, to be printed for good.
Only what is left has to be drawn anew as it grows. That may become long all the same (a file in one
block of code), so beyond a limit it is cut between lines, and the rest joins on below.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.cli.flowing import Flow

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_LONGEST: Final = 4_000  # characters of a block that grows
_LOOKED_AT: Final = 2_500  # of them are drawn each time: a screen has no room for more
_LINE: Final = re.compile(r"\n(?=\S)")  # not in the middle of a list's item
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})[^\n]*\n")


@cache
def _parser() -> MarkdownIt:
    """Make what reads Markdown, when the first reply comes."""
    from markdown_it import MarkdownIt

    # What a line means is settled by these rules alone; what is in it does not matter here.
    return MarkdownIt("commonmark").enable("table").disable(("html_block", "reference", "inline"))


class Block(NamedTuple):
    """A block that is done; one that `joins` goes on with what was cut off before it."""

    text: str
    joins: bool


class Growing:
    """Takes a text in pieces, and makes every character in it safe to look at."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._flow = Flow()
        self._open = ""
        self._joins = False
        self._new_lines = False

    @property
    def is_open(self) -> bool:
        """Whether there is something that is not done yet."""
        return bool(self._open.strip())

    @property
    def end(self) -> Block:
        """The end of what is not done yet: as much as anybody can look at."""
        if len(self._open) <= _LOOKED_AT:
            return Block(self._open.rstrip("\n"), self._joins)
        fence = _FENCE.match(self._open)
        at = self._open.find("\n" if fence else " ", len(self._open) - _LOOKED_AT) + 1
        before = f"{fence[1]}\n" if fence and at > fence.end() else ""
        return Block(f"{before}{self._open[at:]}".rstrip("\n"), joins=True)

    def write(self, text: str) -> None:
        """Take the next piece."""
        self._open += self._flow.write(text)
        self._new_lines = self._new_lines or "\n" in text

    def take_done(self) -> list[Block]:
        """Return the blocks that cannot change any more, each once."""
        if not self._new_lines and len(self._open) <= _LONGEST:
            return []
        self._new_lines = False
        done = self._take_whole()
        if len(self._open) > _LONGEST:
            done.append(self._cut())
        return done

    def take_rest(self) -> Block:
        """Return what is left, at the end of the text."""
        rest = Block(self._open + self._flow.end(), self._joins)
        self._open, self._joins = "", False
        return rest

    def _take_whole(self) -> list[Block]:
        """Take the blocks that another one follows."""
        lines = self._open[: self._open.rfind("\n") + 1].splitlines(keepends=True)
        starts = [0, *self._starts("".join(lines))[1:]]
        done = []
        for start, end in pairwise(starts):
            done.append(Block("".join(lines[start:end]), self._joins))
            self._joins = False
            self._open = self._open[len(done[-1].text) :]
        return done

    def _starts(self, text: str) -> list[int]:
        """Say in which lines blocks begin."""
        return [
            token.map[0]
            for token in _parser().parse(text)
            if token.level == 0 and token.nesting >= 0 and token.map and token.type != "inline"
        ]

    def _cut(self) -> Block:
        """Take most of a block that is too long."""
        fence = _FENCE.match(self._open)
        at = self._place_to_cut(inside_code=fence is not None)
        done, rest = self._open[:at], self._open[at:]
        self._open = f"{fence[1]}\n{rest}" if fence else rest
        joined, self._joins = self._joins, True
        return Block(f"{done}{fence[1]}" if fence else done, joined)

    def _place_to_cut(self, *, inside_code: bool) -> int:
        """Find the last line that can begin a text of its own, or a line, or a word."""
        text = self._open
        found = None if inside_code else list(_LINE.finditer(text))
        line = found[-1].end() if found else text.rfind("\n") + 1
        return line or text.rfind(" ") + 1 or len(text)
