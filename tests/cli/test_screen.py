"""Tables and Markdown fit the terminal they are drawn on, and hide nothing."""

import io
import re
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.output.humanize import compact_number, money, shorten
from holdfast.cli.output.markdown import blocks
from holdfast.cli.output.pager import pager_command
from holdfast.cli.output.screen import PlainScreen, TableColumn, TerminalScreen, cells, fit_columns
from tests.cli.shell import HOSTILE, RAW

_COLUMNS = (
    TableColumn("ID", whole=True),
    TableColumn("KEY"),
    TableColumn("STATE", whole=True),
    TableColumn("ACTIVE", extra=True, whole=True),
    TableColumn("TITLE"),
)
_NATURAL = (8, 120, 11, 9, 200)


@pytest.mark.parametrize("space", [200, 120, 80, 60, 40])
def test_a_table_fits_its_terminal(space: int) -> None:
    """However long the texts are, and the ids and states are never cut."""
    widths = fit_columns(_COLUMNS, _NATURAL, space)
    assert sum(widths.values()) + 2 * (len(widths) - 1) <= space
    assert (widths[0], widths[2]) == (8, 11)


def test_a_narrow_terminal_has_fewer_columns() -> None:
    """The texts get the room that an extra column would take."""
    assert 3 in fit_columns(_COLUMNS, _NATURAL, 80)
    assert 3 not in fit_columns(_COLUMNS, _NATURAL, 60)


def test_the_least_important_column_goes_first() -> None:
    """Wherever it stands."""
    columns = (TableColumn("A", extra=2), TableColumn("B"), TableColumn("C", extra=1))
    assert set(fit_columns(columns, (30, 30, 30), 60)) == {0, 1, 2}
    assert set(fit_columns(columns, (30, 30, 30), 40)) == {1, 2}
    assert set(fit_columns(columns, (30, 30, 30), 30)) == {1}


def test_columns_are_no_wider_than_they_need() -> None:
    """What a short text leaves over, a long one gets."""
    assert fit_columns(_COLUMNS, (8, 10, 11, 9, 200), 100) == {0: 8, 1: 10, 2: 11, 3: 9, 4: 54}


def test_columns_of_wide_characters_are_aligned_in_a_pipe() -> None:
    """A wide character takes two cells, a combining mark none."""
    file = io.StringIO()
    PlainScreen(file).table(
        [TableColumn("A"), TableColumn("B")], [("日本", "1"), ("e\u0301", "2"), ("abcd", "3")]
    )
    assert file.getvalue() == "A     B\n日本  1\ne\u0301     2\nabcd  3\n"


# -------------------------------------------------------------------------------------- Markdown


def _lines(text: str, **how: bool) -> list[str]:
    """The blocks of a text as lines, each with what stands before it."""
    return [
        (block.first + "".join(s if isinstance(s, str) else s[0] for s in block.spans)).rstrip()
        for block in blocks(text, **how)
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb", ["a\nb"]),
        ("a\n\nb", ["a", "", "b"]),
        ("## b **c**", ["## b c"]),
        ("Title\n=====\ntext", ["# Title", "", "text"]),
        ("- a\n- b\n  - c", ["• a", "• b", "  • c"]),
        ("- a\n\n- b", ["• a", "", "• b"]),
        ("7. a\n7. b", ["7. a", "7. b"]),
        ("-\n- b", ["•", "• b"]),
        ("> a\n>\n> b\n\nc", ["▌ a", "▌", "▌ b", "", "c"]),
        ("> - a\n>   - b", ["▌ • a", "▌   • b"]),
        ("```py\nx = 1\n\ny\n```", ["py", "  x = 1\n\ny"]),
        ("    indented", ["  indented"]),
        ("- a\n\n  ```\n  x\n  ```", ["• a", "", "    x"]),
        ("a `b` ~~c~~ *d*", ["a b c d"]),
        ("[a](http://b)", ["a (http://b)"]),
        ("<http://b>", ["http://b"]),
        ("![a](http://b)", ["!a (http://b)"]),
        ("[a]: http://b 'hidden'", ["[a]: http://b 'hidden'"]),
        ("<!-- hidden --> <b>c</b> &lt;", ["<!-- hidden --> <b>c</b> &lt;"]),
        ("<div>\nhidden\n</div>", ["<div>\nhidden\n</div>"]),
        ("", []),
    ],
)
def test_markdown_becomes_blocks_and_nothing_is_hidden(text: str, lines: list[str]) -> None:
    """Marks that a style stands for are dropped; all that somebody wrote to be read stays."""
    assert _lines(text) == lines


def test_marks_stay_where_they_are_wanted() -> None:
    """For a screen without colours."""
    assert _lines("a `b` ~~c~~ **d _e_**", marks=True) == ["a `b` ~~c~~ **d _e_**"]


_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def _drawn(text: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = io.StringIO()
    TerminalScreen(file).markdown(text)
    return _STYLES.sub("", file.getvalue())


def test_code_keeps_its_spaces_and_is_broken_where_it_must_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the edge, not between words; wide characters are not cut in two."""
    drawn = _drawn("```\n  if a  == b:\n\tc = '日本語日本語日本語'\n```", 24, monkeypatch)
    assert drawn == "      if a  == b:\n        c = '日本語日本\n    語日本語'\n"


def test_a_table_is_aligned_and_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell in its column, the long one on several lines."""
    table = "| A | B |\n|---|---|\n| 日本 | one two three four |\n| x | y |"
    assert _drawn(table, 20, monkeypatch).splitlines() == [
        "  A     B",
        "  ────  ────────────",
        "  日本  one two",
        "        three four",
        "  x     y",
    ]


def test_a_table_of_too_many_columns_is_read_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of one character say nothing."""
    table = "|a" * 30 + "|\n" + "|-" * 30 + "|\n" + "|b" * 30 + "|"
    drawn = _drawn(table, 40, monkeypatch)
    assert "a | a | a" in drawn
    assert drawn.count("b") == 30


@pytest.mark.parametrize(
    "text",
    [
        HOSTILE,
        f"# {HOSTILE}\n\n- {HOSTILE}\n\n```{HOSTILE}\n{HOSTILE}\n```",
        f"| {HOSTILE} | b |\n|---|---|\n| c | {HOSTILE} |",
        f"[{HOSTILE}](http://x/{HOSTILE})",
        "<http://x/%E2%80%AE%1b%07%C2%9B>",
        "[a](http://x/%E2%80%AE '&#8238;&#x9b;')",
        "&#8238; &lrm; &ZeroWidthSpace; &shy; &#27;[2J &#155;",
    ],
)
def test_markdown_lets_nothing_hostile_through(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as it is written, and not by what Markdown decodes."""
    drawn = _drawn(text, 200, monkeypatch)
    assert not RAW & set(drawn)
    assert "\x1b" not in drawn


_FILLERS = {"\u115f", "\u1160", "\u3164", "\uffa0"}  # letters that cannot be seen
_SYNTAX = st.sampled_from(
    ["# ", "- ", "1. ", "> ", "```", "`", "**", "_", "[", "](", ")", "|", "|-|\n", "\n", "\n\n",
     "    ", "\t", "&#8238;", "<", ">", "!", "\\", "~~", "---\n", "a", "日本", " "]
)  # fmt: skip


@given(st.lists(_SYNTAX | st.text(st.characters(), max_size=5), max_size=40))
def test_any_markdown_can_be_drawn(pieces: list[str]) -> None:
    """Whatever was written, what comes out acts on no terminal, and has every letter of it."""
    with pytest.MonkeyPatch.context() as patch:
        drawn = _drawn("".join(pieces), 1000, patch)
    kept = drawn.replace("\n", "")
    assert not any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in kept)
    letters = iter(kept)
    assert all(c in letters for c in "".join(pieces) if c.isalpha() and c not in _FILLERS)


@given(st.lists(_SYNTAX, max_size=60), st.integers(20, 90))
def test_drawn_markdown_fits(pieces: list[str], columns: int) -> None:
    """However it is nested: text has sixteen cells at least, behind what stands before it."""
    with pytest.MonkeyPatch.context() as patch:
        drawn = _drawn("".join(pieces), columns, patch)
    for line in drawn.splitlines():
        before = re.match(r"[ ▌•.)\d]*", line)
        assert before is not None
        assert cells(line) <= max(columns, cells(before[0]) + 16)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("> " * 30 + "in many quotes", 80),
        ("| a |\n|---|\n| b | a cell too many |", 80),
    ],
)
def test_what_markdown_would_hide_is_shown_as_it_was_written(
    text: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser drops it, so its answer is not used."""
    drawn = " ".join(_drawn(text, columns, monkeypatch).split())
    assert drawn == " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "*a " * 16_000, "> " * 25_000, "`" * 50_000, "- " * 25_000, "|a" * 25_000,
     "![" * 25_000, "_a*b" * 12_000, "<" * 50_000, "(" * 50_000],
    ids=lambda text: text[:4],
)  # fmt: skip
def test_no_text_makes_drawing_take_for_ever(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest that is drawn; the time limit of the tests is the judge."""
    assert _drawn(text[:32_000], 80, monkeypatch)


# ---------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (999_949, "999.9k"), (999_950, "1.0M"), (4e9, "4.0G")],
)
def test_large_numbers_are_short(number: int, said: str) -> None:
    """Never a thousand of a unit that has a next one."""
    assert compact_number(int(number)) == said


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ("0", "0"),
        ("1234.5", "1,234.50"),
        ("0.01", "0.01"),
        ("0.0042", "0.0042"),
        ("1E-9", "<0.0001"),
    ],
)
def test_small_amounts_of_money_are_not_nothing(cost: str, said: str) -> None:
    """A turn that cost a tenth of a cent cost something."""
    assert money(Decimal(cost)) == said


def test_words_are_one_line_of_bounded_length() -> None:
    """However long the text, and it is not read to its end."""
    assert shorten("a\n b\t c") == "a b c"
    assert shorten("x" * 200) == "x" * 160 + "…"
    assert shorten(" " * 10_000 + "end") == "…"


# ---------------------------------------------------------------------------------------- pager


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"PAGER": "cat -A"}, ["cat", "-A"]),
        ({"PAGER": ""}, None),
        ({"PAGER": "no-such-pager"}, None),
        ({"PAGER": "cat 'x"}, None),
        ({"PAGER": "cat", "TERM": "dumb"}, None),
    ],
)
def test_the_pager_is_the_users(environ: dict[str, str], found: list[str] | None) -> None:
    """One that is not there, or a terminal that cannot page, means none."""
    assert pager_command(environ) == found
