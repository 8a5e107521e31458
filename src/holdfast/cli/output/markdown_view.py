"""Rendering Markdown blocks on a terminal.

Each block is wrapped to the space beside its prefix. Every piece of text is sanitized again, since
decoding Markdown may produce unsafe characters that were not in the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from holdfast.cli.output.markdown import Block
from holdfast.cli.output.screen import (
    COLUMN_GAP,
    cells,
    distribute_width,
    to_rich_text,
    to_styled_text,
)

_MIN_TEXT_CELLS: Final = 16  # cells for text, however wide the prefix
_MAX_RULE_CELLS: Final = 40
_TAB_CELLS: Final = 4


def draw_blocks(console: Console, blocks: Iterable[Block], indent: int, style: str) -> None:
    """Print blocks, indented."""
    for block in blocks:
        space = max(console.width - indent - cells(block.rest), _MIN_TEXT_CELLS)
        for n, line in enumerate(_lines(console, block, space, style)):
            before = block.rest if n else block.first
            whole = to_styled_text(" " * indent + before, "dim").append_text(line)
            whole.rstrip()
            console.print(whole, no_wrap=True, overflow="fold", crop=False)


def _lines(console: Console, block: Block, space: int, style: str) -> Sequence[Text]:
    if block.kind == "rule":
        return [Text("─" * min(space, _MAX_RULE_CELLS), style="dim")]
    if block.kind == "table":
        return list(_table(console, [[to_rich_text(c) for c in row] for row in block.rows], space))
    text = Text(style=style)
    for span in block.spans:
        source, span_style = (span, "") if isinstance(span, str) else span
        text.append_text(to_styled_text(source, span_style, body=True))
    lines = _wrap_code(text, space) if block.kind == "code" else text.wrap(console, space)
    return list(lines) or [Text()]


def _wrap_code(text: Text, space: int) -> Iterator[Text]:
    """Yield the lines of code, hard-wrapped: spaces are significant, so words are ignored."""
    for line in text.split("\n", allow_blank=True):
        line.expand_tabs(_TAB_CELLS)
        rest = line
        while rest.cell_len > space:
            taken = _count_fitting(rest.plain, space)
            yield rest[:taken]
            rest = rest[taken:]
        yield rest


def _count_fitting(text: str, space: int) -> int:
    """Return how many characters fit, at least one."""
    used = 0
    for n, character in enumerate(text):
        used += cells(character)
        if used > space:
            return max(n, 1)
    return len(text)


def _table(console: Console, rows: Sequence[Sequence[Text]], space: int) -> Iterator[Text]:
    """Yield the lines of a table; with too many columns, each row becomes wrapped text."""
    columns = len(rows[0])
    if columns * (COLUMN_GAP + 2) > space:
        for row in rows:
            yield from Text(" | ").join(row).wrap(console, space)
        return
    natural = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    widths = distribute_width(natural, space - COLUMN_GAP * (columns - 1))
    for n, row in enumerate(rows):
        yield from _row(console, row, widths, style="" if n else "bold")
        if n == 0:
            yield Text((" " * COLUMN_GAP).join("─" * width for width in widths), style="dim")


def _row(
    console: Console, row: Sequence[Text], widths: Sequence[int], *, style: str
) -> Iterator[Text]:
    wrapped = [cell.wrap(console, width) for cell, width in zip(row, widths, strict=True)]
    for n in range(max(map(len, wrapped))):
        line = Text(style=style)
        for lines, width in zip(wrapped, widths, strict=True):
            piece = lines[n].copy() if n < len(lines) else Text()
            piece.truncate(width, pad=True)
            line.append_text(piece).append(" " * COLUMN_GAP)
        yield line
