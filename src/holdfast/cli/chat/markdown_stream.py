"""Incremental Markdown: splits a streamed text into finished blocks and one that still grows.

Markdown is parsed line by line, and a block that another one follows never changes again. So all
blocks of complete lines but the last are finished: each is returned once, to be printed. Only the
last block has to be redrawn as it grows. Beyond a limit (a long file in one code block) it is cut
between lines, and the rest is marked as joined to it.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.cli.output.sanitize_stream import StreamSanitizer

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_MAX_BLOCK_CHARS: Final = 4_000  # characters
_MAX_LIVE_CHARS: Final = 2_500  # characters: more do not fit on a screen
_LINE: Final = re.compile(r"\n(?=\S)")  # not in the middle of a list's item
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})[^\n]*\n")


@cache
def _parser() -> MarkdownIt:
    """Return the Markdown parser; it is imported with the first reply."""
    from markdown_it import MarkdownIt

    # Only the rules that determine blocks; inline markup is not parsed.
    return MarkdownIt("commonmark").enable("table").disable(("html_block", "reference", "inline"))


class MarkdownBlock(NamedTuple):
    """A block; one that `joins` continues the block before it, which was cut."""

    text: str
    joins: bool


class MarkdownStream:
    """Splits a streamed text into blocks, and escapes control characters in it."""

    def __init__(self) -> None:
        self._flow = StreamSanitizer()
        self._open = ""
        self._joins = False
        self._new_lines = False

    @property
    def is_open(self) -> bool:
        """True if there is an unfinished block."""
        return bool(self._open.strip())

    @property
    def tail(self) -> MarkdownBlock:
        """The end of the unfinished block: as much as fits on a screen."""
        if len(self._open) <= _MAX_LIVE_CHARS:
            return MarkdownBlock(self._open.rstrip("\n"), self._joins)
        fence = _FENCE.match(self._open)
        at = self._open.find("\n" if fence else " ", len(self._open) - _MAX_LIVE_CHARS) + 1
        before = f"{fence[1]}\n" if fence and at > fence.end() else ""
        return MarkdownBlock(f"{before}{self._open[at:]}".rstrip("\n"), joins=True)

    def write(self, text: str) -> None:
        """Append the next chunk of the text."""
        self._open += self._flow.write(text)
        self._new_lines = self._new_lines or "\n" in text

    def take_finished(self) -> list[MarkdownBlock]:
        """Return the newly finished blocks."""
        if not self._new_lines and len(self._open) <= _MAX_BLOCK_CHARS:
            return []
        self._new_lines = False
        done = self._take_followed()
        if len(self._open) > _MAX_BLOCK_CHARS:
            done.append(self._cut())
        return done

    def take_rest(self) -> MarkdownBlock:
        """Return the unfinished block, at the end of the text."""
        rest = MarkdownBlock(self._open + self._flow.end(), self._joins)
        self._open, self._joins = "", False
        return rest

    def _take_followed(self) -> list[MarkdownBlock]:
        """Remove and return the blocks that another one follows."""
        lines = self._open[: self._open.rfind("\n") + 1].splitlines(keepends=True)
        starts = [0, *self._starts("".join(lines))[1:]]
        done = []
        for start, end in pairwise(starts):
            done.append(MarkdownBlock("".join(lines[start:end]), self._joins))
            self._joins = False
            self._open = self._open[len(done[-1].text) :]
        return done

    def _starts(self, text: str) -> list[int]:
        """Return the line numbers in which blocks start."""
        return [
            token.map[0]
            for token in _parser().parse(text)
            if token.level == 0 and token.nesting >= 0 and token.map and token.type != "inline"
        ]

    def _cut(self) -> MarkdownBlock:
        """Cut a block that is too long; return its first part."""
        fence = _FENCE.match(self._open)
        at = self._cut_position(inside_code=fence is not None)
        done, rest = self._open[:at], self._open[at:]
        self._open = f"{fence[1]}\n{rest}" if fence else rest
        joined, self._joins = self._joins, True
        return MarkdownBlock(f"{done}{fence[1]}" if fence else done, joined)

    def _cut_position(self, *, inside_code: bool) -> int:
        """Return the last position to cut at: a line outside of a list item, a line, or a word."""
        text = self._open
        found = None if inside_code else list(_LINE.finditer(text))
        line = found[-1].end() if found else text.rfind("\n") + 1
        return line or text.rfind(" ") + 1 or len(text)
