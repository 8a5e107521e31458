"""What people read: lines, bodies and tables, on a terminal or in a pipe.

Everything goes through `visible` here, so that no command can forget it; nothing is ever taken for
rich's own markup. A terminal gets colours, wrapping, cut columns and drawn Markdown, from rich; a
pipe gets the same words as plain text, in full width, without loading rich at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, TypeAlias

from holdfast.cli.visible import pieces, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Span: TypeAlias = str | tuple[str, str]  # text, or text and its style
_ESCAPE_STYLE: Final = "magenta"
GAP: Final = 2
_READABLE: Final = 16  # cells: a text cut to fewer says little
_WRAPPED: Final = 200_000  # a longer body is left to the terminal: drawing takes time
_DRAWN: Final = 32_000  # a longer Markdown text is shown as it is: parsing may take its square


class Column(NamedTuple):
    """A column of a table: `extra` ones may be left out, `whole` ones are never cut.

    Where there is too little room, the column with the highest `extra` goes first.
    """

    title: str
    extra: int = 0
    right: bool = False
    whole: bool = False


class Screen(ABC):
    """Where a command prints for people."""

    terminal: bool
    width: int

    @abstractmethod
    def line(self, *spans: Span) -> None:
        """Print one line; newlines in it are shown as escapes."""

    @abstractmethod
    def fact(self, label: str, value: str) -> None:
        """Print a value beside its label."""

    @abstractmethod
    def body(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print a text of many lines, indented."""

    @abstractmethod
    def brief(self, *spans: Span) -> None:
        """Print one line; what does not fit is cut off."""

    @abstractmethod
    def markdown(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print a text that is written in Markdown, indented."""

    @abstractmethod
    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Span]]) -> None:
        """Print a table."""

    def flush(self) -> None:
        """Let a reader see it now."""
        sys.stdout.flush()


def screen() -> Screen:
    """Find out who is looking at the output."""
    if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
        return Terminal(sys.stdout)
    return Pipe(sys.stdout)


def plain(span: Span) -> str:
    """Return a span's text in one line, safe to look at."""
    return visible(span if isinstance(span, str) else span[0])


class Pipe(Screen):
    """Plain text, for files and other programs."""

    terminal = False
    width = 80

    def __init__(self, file: TextIO) -> None:
        """Write to this file."""
        self._file = file

    def line(self, *spans: Span) -> None:
        """Print one line."""
        self._file.write("".join(plain(span) for span in spans).rstrip() + "\n")

    def fact(self, label: str, value: str) -> None:
        """Print a value beside its label, whole."""
        self.line(label, value)

    def body(self, text: str, *, indent: int = 2, style: str = "") -> None:  # noqa: ARG002
        """Print a text of many lines, indented."""
        margin = " " * indent
        for line in visible(text, body=True).split("\n"):
            self._file.write(f"{margin}{line}\n" if line else "\n")

    def brief(self, *spans: Span) -> None:
        """Print one line, whole: a pipe has room."""
        self.line(*spans)

    def markdown(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print the text as it was written."""
        self.body(text, indent=indent, style=style)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Span]]) -> None:
        """Print a table, every column as wide as it needs."""
        texts = [[column.title for column in columns], *([plain(s) for s in row] for row in rows)]
        widths = [max(map(cells, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            padded = (
                _pad(text, width, right=column.right)
                for text, width, column in zip(row, widths, columns, strict=True)
            )
            self._file.write("  ".join(padded).rstrip() + "\n")


class Terminal(Screen):
    """Colours, and lines that fit."""

    terminal = True

    def __init__(self, file: TextIO) -> None:
        """Draw on this file."""
        self._file = file
        self._console = _console(file)
        self.width = self._console.width

    def line(self, *spans: Span) -> None:
        """Print one line, wrapped between words where it must be."""
        self._console.print(text_of(spans))

    def fact(self, label: str, value: str) -> None:
        """Print a value beside its label; what must be wrapped stays beside it."""
        space = max(self.width - cells(label), _READABLE)
        for n, line in enumerate(text_of([value]).wrap(self._console, space)):
            line.rstrip()
            before = styled(" " * cells(label) if n else label, "dim")
            self._console.print(before.append_text(line), no_wrap=True, overflow="fold")

    def body(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Print a text of many lines, indented and wrapped between words."""
        if len(text) > _WRAPPED:
            Pipe(self._file).body(text, indent=indent)
            return
        from rich.padding import Padding

        drawn = styled(text, style, body=True)
        self._console.print(Padding(drawn, (0, 0, 0, indent), expand=False))

    def brief(self, *spans: Span) -> None:
        """Print one line, cut at the edge of the terminal."""
        text = text_of(spans)
        text.truncate(self._console.width, overflow="ellipsis")
        self._console.print(text)

    def markdown(self, text: str, *, indent: int = 2, style: str = "") -> None:
        """Draw headings, lists, quotes, tables and code; colours stand for the marks."""
        if len(text) > _DRAWN:
            self.body(text, indent=indent, style=style)
            return
        from holdfast.cli.drawing import draw
        from holdfast.cli.markdown import blocks

        # Without colours the marks themselves are the best way to see what is bold or code.
        marks = self._console.color_system is None
        draw(self._console, blocks(visible(text, body=True), marks=marks), indent, style)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Span]]) -> None:
        """Print a table that fits, leaving columns out and cutting texts where it must."""
        from rich.table import Table

        cut = list(rows)
        natural = [
            max(cells(text) for text in (column.title, *(plain(row[n]) for row in cut)))
            for n, column in enumerate(columns)
        ]
        widths = fit(columns, natural, self._console.width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for n, width in widths.items():
            table.add_column(
                text_of([columns[n].title]),
                justify="right" if columns[n].right else "left",
                no_wrap=True,
                overflow="ellipsis",
                width=width,
            )
        for row in cut:
            table.add_row(*(text_of([row[n]]) for n in widths))
        self._console.print(table)


def fit(columns: Sequence[Column], natural: Sequence[int], space: int) -> dict[int, int]:
    """Choose which columns a terminal shows, and how wide: {column: width}.

    Short columns are whole; the others share what is left, none wider than it needs. As long as
    that is too little for them, the column with the highest `extra` goes, of equals the last.
    """
    kept = list(range(len(columns)))
    while True:
        whole = [n for n in kept if columns[n].whole]
        shared = [n for n in kept if not columns[n].whole]
        left = space - sum(natural[n] for n in whole) - GAP * (len(kept) - 1)
        extra = [n for n in kept if columns[n].extra]
        if not extra or left >= sum(min(natural[n], _READABLE) for n in shared):
            break
        kept.remove(max(extra, key=lambda n: (columns[n].extra, n)))
    widths = {n: natural[n] for n in whole}
    widths |= dict(zip(shared, share([natural[n] for n in shared], left), strict=True))
    return {n: widths[n] for n in kept}


def share(natural: Sequence[int], space: int) -> list[int]:
    """Share room among columns: none gets more than it needs, what is left goes to the others."""
    widths = [0] * len(natural)
    for place, n in enumerate(sorted(range(len(natural)), key=natural.__getitem__)):
        widths[n] = max(1, min(natural[n], space // (len(natural) - place)))
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


def text_of(spans: Iterable[Span]) -> Text:
    """Make one line of rich's text, safe to look at."""
    from rich.text import Text

    text = Text()
    for span in spans:
        text.append_text(styled(*((span, "") if isinstance(span, str) else span)))
    return text


def styled(source: str, style: str, *, body: bool = False) -> Text:
    """Make rich's text of a source, safe to look at; escapes have a colour of their own."""
    from rich.text import Text

    text = Text()
    for piece, escaped in pieces(source, body=body):
        text.append(piece, style=_ESCAPE_STYLE if escaped else style)
    return text


def cells(text: str) -> int:
    """Count the columns a text takes: wide characters take two, marks none."""
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
