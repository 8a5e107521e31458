"""Markdown, parsed into a flat list of blocks.

A text is parsed as CommonMark into paragraphs, code, rules and tables, each with the prefix of its
lines: the bullet of its list, the bar of its quote. A soft line break stays a line break.

No text is hidden. HTML, entities and link definitions are shown as text, links and images show
their targets, and nothing is fetched. The parser may still drop text (an extra table cell, a quote
nested too deeply); the blocks are compared with the source, and if text is missing the whole source
is shown instead.

With `marks`, the markup of emphasis and code is kept, for a screen without colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from holdfast.cli.output.screen import Span

_DISABLED_RULES: Final = ("html_block", "html_inline", "entity", "reference", "image")
_BAR: Final = "▌ "
_MARGIN: Final = "  "
_CODE_STYLE: Final = "cyan"
_STYLES: Final = {"strong": "bold", "em": "italic", "s": "strike", "link": "underline"}


class Block(NamedTuple):
    """Lines that belong together: `first` is the prefix of the first line, `rest` of the others."""

    first: str
    rest: str
    spans: tuple[Span, ...] = ()
    kind: Literal["text", "code", "rule", "table"] = "text"
    rows: tuple[tuple[tuple[Span, ...], ...], ...] = ()


def blocks(text: str, *, marks: bool = False) -> list[Block]:
    """Parse a text into blocks; one block with the source if parsing would lose text."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable(_DISABLED_RULES)
    # Link targets are shown as they were written.
    parser.normalizeLink = _as_written  # type: ignore[method-assign]
    parser.normalizeLinkText = _as_written  # type: ignore[assignment,method-assign]
    reader = _BlockBuilder(marks=marks)
    for token in parser.parse(text):
        reader.add_token(token)
    return reader.blocks if _is_lossless(reader.blocks, text) else [Block("", "", (text,))]


def _as_written(url: str) -> str:
    return url


def _is_lossless(found: Sequence[Block], text: str) -> bool:
    """True if the blocks contain all of the text's characters in order, ASCII symbols aside."""
    if not found:
        return not text.strip()
    shown = iter("".join(_block_text(block) for block in found))
    return all(sign in shown for sign in text if _is_content(sign))


def _is_content(sign: str) -> bool:
    return sign.isalnum() or not (sign.isascii() or sign.isspace())


def _block_text(block: Block) -> str:
    cells = (cell for row in block.rows for cell in row)
    spans = (span for part in (block.spans, *cells) for span in part)
    return block.first + "".join(span if isinstance(span, str) else span[0] for span in spans)


class _Container:
    """A quote, a list or a list item, with the prefixes of the lines inside it."""

    def __init__(self, first: str = "", rest: str = "") -> None:
        self.first = first
        self.rest = rest
        self.blocks = 0


class _BlockBuilder:
    """Builds blocks from tokens, keeping track of the enclosing quotes and lists."""

    def __init__(self, *, marks: bool) -> None:
        self.blocks: list[Block] = []
        self._marks = marks
        self._containers: list[_Container] = []
        self._heading = ""
        self._tight = False
        self._gap = False
        self._rows: list[list[tuple[Span, ...]]] | None = None

    def add_token(self, token: Token) -> None:
        """Process the next token."""
        if token.level == 0 and token.nesting >= 0 and token.type != "inline":
            self._gap = bool(self.blocks)
        if token.type in {"fence", "code_block"}:
            self._take_code(token)
        elif token.type == "hr":
            self._add_block("rule")
        elif token.type == "inline":
            self._take_text(inline(token.children or (), marks=self._marks))
        elif token.type.startswith(("table_", "thead_", "tbody_", "tr_", "th_", "td_")):
            self._take_table(token)
        elif token.nesting > 0:
            self._enter(token)
        elif token.nesting < 0:
            self._leave(token)

    def _enter(self, token: Token) -> None:
        if token.type == "blockquote_open":
            self._containers.append(_Container(_BAR, _BAR))
        elif token.type in {"bullet_list_open", "ordered_list_open"}:
            self._containers.append(_Container())
        elif token.type == "list_item_open":
            mark = f"{token.info}{token.markup} " if token.info else "• "
            self._containers.append(_Container(mark, " " * len(mark)))
        elif token.type == "heading_open":
            self._heading = f"{'#' * int(token.tag[1:])} "
        elif token.type == "paragraph_open":
            self._tight = token.hidden

    def _leave(self, token: Token) -> None:
        if token.type in {"heading_close", "paragraph_close"}:
            self._heading, self._tight = "", False
            return
        closed = self._containers.pop()
        if token.type == "list_item_close" and not closed.blocks:
            self._containers.append(closed)  # The bullet of an empty item is shown too.
            self._add_block("text")
            self._containers.pop()

    def _take_text(self, spans: tuple[Span, ...]) -> None:
        if self._rows is not None:
            self._rows[-1].append(spans)
        elif self._heading:
            marked = [(self._heading, "dim"), *spans]
            self._add_block("text", tuple(restyled(span, "bold") for span in marked))
        else:
            self._add_block("text", spans)

    def _take_code(self, token: Token) -> None:
        language = token.info.strip()
        if language:
            self._add_block("text", ((language, "dim"),))
        code = token.content.removesuffix("\n")
        self._add_block("code", ((code, _CODE_STYLE),), margin=_MARGIN, follows=bool(language))

    def _take_table(self, token: Token) -> None:
        if token.type == "table_open":
            self._rows = []
        elif token.type == "tr_open" and self._rows is not None:
            self._rows.append([])
        elif token.type == "table_close" and self._rows is not None:
            rows, self._rows = tuple(tuple(row) for row in self._rows), None
            self._add_block("table", rows=rows)

    def _add_block(
        self,
        kind: Literal["text", "code", "rule", "table"],
        spans: tuple[Span, ...] = (),
        *,
        rows: tuple[tuple[tuple[Span, ...], ...], ...] = (),
        margin: str = "",
        follows: bool = False,
    ) -> None:
        if self._gap or (self._needs_blank_line() and not follows):
            around = "".join(one.rest for one in self._containers if one.blocks)
            self.blocks.append(Block(around, around))
        self._gap = False
        first = "".join(one.rest if one.blocks else one.first for one in self._containers)
        rest = "".join(one.rest for one in self._containers)
        self.blocks.append(Block(first + margin, rest + margin, spans, kind, rows))
        for one in self._containers:
            one.blocks += 1

    def _needs_blank_line(self) -> bool:
        """True if a blank line belongs before a block inside a quote or list."""
        if self._tight or not self._containers:
            return False
        # The first block of an item is separated from the previous item.
        nearest = next((one for one in reversed(self._containers) if not _is_new_item(one)), None)
        return nearest is not None and nearest.blocks > 0


def _is_new_item(one: _Container) -> bool:
    return not one.blocks and one.first != one.rest


def inline(tokens: Sequence[Token], *, marks: bool) -> tuple[Span, ...]:
    """Return inline tokens as styled spans."""
    spans: list[Span] = []
    styles: list[str] = []
    links: list[tuple[str, int]] = []  # target, index of the first span
    for token in tokens:
        name = token.type.rpartition("_")[0]
        if token.type in {"softbreak", "hardbreak"}:
            spans.append("\n")
        elif token.type == "code_inline":
            mark = token.markup if marks else ""
            spans.append((f"{mark}{token.content}{mark}", " ".join([_CODE_STYLE, *styles])))
        elif token.nesting > 0:
            styles.append(_STYLES[name])
            if name == "link":
                links.append((_link_target(token), len(spans)))
        elif token.nesting < 0:
            styles.pop()
            if name == "link":
                target, start = links.pop()
                spans += _link_suffix(target, spans[start:])
        else:
            spans.append((token.content, " ".join(styles)))
        if marks and token.nesting and name != "link":
            spans.append(token.markup)
    return tuple(spans)


def _link_target(link: Token) -> str:
    title = link.attrs.get("title")
    return f"{link.attrs.get('href', '')} {title or ''}".rstrip()


def _link_suffix(target: str, shown: Sequence[Span]) -> list[Span]:
    """Return a link's target as a suffix, unless it is the same as the link's text."""
    text = "".join(span if isinstance(span, str) else span[0] for span in shown)
    return [] if target in {text, f"mailto:{text}"} else [(f" ({target})", "dim")]


def restyled(span: Span, style: str) -> Span:
    """Return the span with a style added."""
    text, old = (span, "") if isinstance(span, str) else span
    return text, f"{old} {style}".strip()
