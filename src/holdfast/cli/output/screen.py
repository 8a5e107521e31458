"""Human-readable output: lines, bodies and tables, on a terminal or in a pipe.

All text is sanitized here, so that no command can forget it, and is never interpreted as rich
markup. A terminal gets colours, wrapping, truncated columns and rendered Markdown, by rich; a pipe
gets the same words as plain text, in full width, without loading rich at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, TypeAlias

from holdfast.cli.output.sanitize import sanitize, split_escapes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Span: TypeAlias = str | tuple[str, str]  # text, or text and its style
_ESCAPE_STYLE: Final = "magenta"
COLUMN_GAP: Final = 2
_MIN_TEXT_CELLS: Final = 16  # cells: a text truncated to fewer says little
_MAX_WRAPPED_CHARS: Final = 200_000  # a longer text is not wrapped by rich, which takes long
_MAX_COLOURED_CHARS: Final = 10_000  # nor are escapes in a longer one coloured
_MAX_MARKDOWN_CHARS: Final = (
    32_000  # a longer Markdown text is not parsed: that may take quadratic time
)
_MAX_MARKDOWN_LINES: Final = 2_000  # nor is one of more lines: each takes a millisecond to draw


class TableColumn(NamedTuple):
    """A column of a table: `extra` ones may be omitted, `whole` ones are never truncated.

    If the terminal is too narrow, the column with the highest `extra` is omitted first.
    """

    title: str
    extra: int = 0
    right: bool = False
    whole: bool = False


class Screen(ABC):
    """The output of a command, for a terminal or a pipe."""

    terminal: bool
    width: int

    @abstractmethod
    def line(self, *spans: Span) -> None:
        """Print one line; newlines in it are escaped."""

    @abstractmethod
    def fact(self, label: str, value: str) -> None:
        """Print a value beside its label."""

    @abstractmethod
    def body(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print a text of many lines, indented."""

    @abstractmethod
    def truncated_line(self, *spans: Span) -> None:
        """Print one line, truncated to the width of the screen."""

    @abstractmethod
    def markdown(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print a Markdown text, indented."""

    @abstractmethod
    def table(self, columns: Sequence[TableColumn], rows: Iterable[Sequence[Span]]) -> None:
        """Print a table."""

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()


def screen() -> Screen:
    """Return the screen for standard output: a terminal, or plain text."""
    if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
        return TerminalScreen(sys.stdout)
    return PlainScreen(sys.stdout)


def sanitized_text(span: Span) -> str:
    """Return a span's text, sanitized, in one line."""
    return sanitize(span if isinstance(span, str) else span[0])


class PlainScreen(Screen):
    """Plain text, for files and other programs."""

    terminal = False
    width = 80

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def line(self, *spans: Span) -> None:
        """Print one line."""
        self._file.write("".join(sanitized_text(span) for span in spans).rstrip() + "\n")

    def fact(self, label: str, value: str) -> None:
        """Print a value beside its label, without wrapping it."""
        self.line(label, value)

    def body(self, text: str, *, indent: int = 2, style: str = "") -> None:  # noqa: ARG002
        """Print a text of many lines, indented."""
        margin = " " * indent
        lines = sanitize(text, body=True).split("\n")
        self._file.write("".join(f"{margin}{line}\n" if line else "\n" for line in lines))

    def truncated_line(self, *spans: Span) -> None:
        """Print one line, without truncating it."""
        self.line(*spans)

    def markdown(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print the Markdown source."""
        self.body(text, indent=indent, style=style)

    def table(self, columns: Sequence[TableColumn], rows: Iterable[Sequence[Span]]) -> None:
        """Print a table with every column at its natural width."""
        texts = [
            [column.title for column in columns],
            *([sanitized_text(s) for s in row] for row in rows),
        ]
        widths = [max(map(cells, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            padded = (
                _pad(text, width, right=column.right)
                for text, width, column in zip(row, widths, columns, strict=True)
            )
            self._file.write("  ".join(padded).rstrip() + "\n")


class TerminalScreen(Screen):
    """Colours, and lines that fit the terminal."""

    terminal = True

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._console = _console(file)
        self.width = self._console.width

    def line(self, *spans: Span) -> None:
        """Print one line, wrapped between words if it is too long."""
        if _length(spans) > _MAX_WRAPPED_CHARS:
            PlainScreen(self._file).line(*spans)
            return
        self._console.print(to_rich_text(spans))

    def fact(self, label: str, value: str) -> None:
        """Print a value beside its label; wrapped lines are aligned with the value."""
        if len(value) > _MAX_WRAPPED_CHARS:
            PlainScreen(self._file).fact(label, value)
            return
        space = max(self.width - cells(label), _MIN_TEXT_CELLS)
        for n, line in enumerate(to_rich_text([value]).wrap(self._console, space)):
            line.rstrip()
            before = to_styled_text(" " * cells(label) if n else label, "dim")
            self._console.print(before.append_text(line), no_wrap=True, overflow="fold")

    def body(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print a text of many lines, indented and wrapped between words."""
        if len(text) > _MAX_WRAPPED_CHARS:
            PlainScreen(self._file).body(text, indent=indent)
            return
        from rich.padding import Padding

        drawn = to_styled_text(text, style, body=True)
        self._console.print(Padding(drawn, (0, 0, 0, indent), expand=False))

    def truncated_line(self, *spans: Span) -> None:
        """Print one line, truncated at the edge of the terminal."""
        text = to_rich_text(_beginning(span) for span in spans)
        text.truncate(self._console.width, overflow="ellipsis")
        self._console.print(text)

    def markdown(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Render headings, lists, quotes, tables and code; colours replace the markup."""
        if len(text) > _MAX_MARKDOWN_CHARS or text.count("\n") > _MAX_MARKDOWN_LINES:
            self.body(text, indent=indent, style=style)
            return
        from holdfast.cli.output.markdown import blocks
        from holdfast.cli.output.markdown_view import draw_blocks

        # Without colours, the markup itself shows best what is bold or code.
        marks = self._console.color_system is None
        draw_blocks(self._console, blocks(sanitize(text, body=True), marks=marks), indent, style)

    def table(self, columns: Sequence[TableColumn], rows: Iterable[Sequence[Span]]) -> None:
        """Print a table that fits, omitting columns and truncating texts if necessary."""
        from rich.table import Table

        contents = list(rows)
        natural = [
            max(
                cells(text)
                for text in (column.title, *(sanitized_text(row[n]) for row in contents))
            )
            for n, column in enumerate(columns)
        ]
        widths = fit_columns(columns, natural, self._console.width)
        table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="dim")
        for n, width in widths.items():
            table.add_column(
                to_rich_text([columns[n].title]),
                justify="right" if columns[n].right else "left",
                no_wrap=True,
                overflow="ellipsis",
                width=width,
            )
        for row in contents:
            table.add_row(*(to_rich_text([row[n]]) for n in widths))
        self._console.print(table)


def fit_columns(
    columns: Sequence[TableColumn], natural: Sequence[int], space: int
) -> dict[int, int]:
    """Return the columns that fit, with their widths: {column: width}.

    `whole` columns get their natural width; the others share the remaining space, none wider than
    it needs. While that is too little, the column with the highest `extra` is omitted, the last one
    among equals.
    """
    kept = list(range(len(columns)))
    while True:
        whole = [n for n in kept if columns[n].whole]
        shared = [n for n in kept if not columns[n].whole]
        left = space - sum(natural[n] for n in whole) - COLUMN_GAP * (len(kept) - 1)
        extra = [n for n in kept if columns[n].extra]
        if not extra or left >= sum(min(natural[n], _MIN_TEXT_CELLS) for n in shared):
            break
        kept.remove(max(extra, key=lambda n: (columns[n].extra, n)))
    widths = {n: natural[n] for n in whole}
    widths |= dict(zip(shared, distribute_width([natural[n] for n in shared], left), strict=True))
    return {n: widths[n] for n in kept}


def distribute_width(natural: Sequence[int], space: int) -> list[int]:
    """Return column widths that share the space; none is wider than its natural width."""
    widths = [0] * len(natural)
    for done, n in enumerate(sorted(range(len(natural)), key=natural.__getitem__)):
        widths[n] = max(1, min(natural[n], space // (len(natural) - done)))
        space -= widths[n]
    return widths


def _console(file: TextIO) -> Console:
    from rich.console import Console

    # Without a colour system rich writes no escape sequence of any kind.
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") in {"dumb", "unknown"}
    width = shutil.get_terminal_size((80, 24)).columns
    return Console(
        file=file,
        color_system=None if quiet else "auto",
        force_terminal=None if quiet else True,
        width=max(width, 20),
        markup=False,
        emoji=False,
        highlight=False,
    )


def _length(spans: Iterable[Span]) -> int:
    return sum(len(span if isinstance(span, str) else span[0]) for span in spans)


def _beginning(span: Span) -> Span:
    """Return as much of a span as a line could show."""
    if isinstance(span, str):
        return span[:_MAX_COLOURED_CHARS]
    return span[0][:_MAX_COLOURED_CHARS], span[1]


def to_rich_text(spans: Iterable[Span]) -> Text:
    """Return spans as one line of rich text, sanitized."""
    from rich.text import Text

    text = Text()
    for span in spans:
        text.append_text(to_styled_text(*((span, "") if isinstance(span, str) else span)))
    return text


def to_styled_text(source: str, style: str, *, body: bool = False) -> Text:
    """Return a source as rich text, sanitized; escapes get a colour of their own."""
    from rich.text import Text

    if len(source) > _MAX_COLOURED_CHARS:
        return Text(sanitize(source, body=body), style=style)
    text = Text()
    for piece, escaped in split_escapes(source, body=body):
        text.append(piece, style=_ESCAPE_STYLE if escaped else style)
    return text


def cells(text: str) -> int:
    """Return how many terminal cells a text takes: wide characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Me", "Mn"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"F", "W"} else 1


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - cells(text))
    return space + text if right else text + space
