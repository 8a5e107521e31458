"""A reply in Markdown that is printed block by block looks as if it had come whole."""

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.cli.chat.markdown_stream import MarkdownBlock, MarkdownStream
from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.output.screen import TerminalScreen
from tests.agent.provider import MARKDOWN

_LINES = (
    "words", "- item", "  more of it", "1. one", "```", "```py", "> quoted", "# heading", "",
    "---", "===", "| a | b |", "|---|---|", "    code", "* * *", "~~~", "**bold", "over lines**",
)  # fmt: skip
_TEXTS = st.lists(st.sampled_from(_LINES), max_size=14).map("\n".join)


def _grown(text: str, size: int) -> list[str]:
    """Return the blocks of a text that comes in pieces of this size."""
    growing, blocks = MarkdownStream(), []
    for start in range(0, len(text), size):
        growing.write(text[start : start + size])
        blocks += growing.take_finished()
    return [block.text for block in (*blocks, growing.take_rest())]


@given(_TEXTS, st.integers(1, 40))
@example("- one\n---\nwords", 1)
@example("- one\n--- x", 3)
@example("words\n| a | b |\n|---|---|\n| 1 | 2 |", 1)
def test_no_letter_is_lost_whatever_the_pieces(text: str, size: int) -> None:
    assert "".join(_grown(text, size)) == text


@given(_TEXTS, st.integers(1, 40))
@example("- one\n---\nwords", 1)
@example("words\n---\n- one", 2)
@example("a\n\n\nb", 1)
def test_it_is_drawn_as_the_whole_is(text: str, size: int) -> None:
    """An empty line between blocks is all that has to be added."""
    blocks = [block for block in _grown(text, size) if block.strip()]
    assert _drawn(*blocks) == _drawn(text)


def _drawn(*blocks: str) -> list[str]:
    out = io.StringIO()
    for n, block in enumerate(blocks):
        out.write("\n" if n else "")
        TerminalScreen(out).markdown(block.rstrip("\n"))
    return [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]


def test_a_block_is_done_when_another_begins() -> None:
    growing = MarkdownStream()
    growing.write("one\ntwo\n\nthr")
    assert growing.take_finished() == []
    growing.write("ee\n")
    assert growing.take_finished() == [MarkdownBlock("one\ntwo\n\n", joins=False)]
    assert growing.tail.text == "three"
    assert growing.take_finished() == []
    assert growing.take_rest().text == "three\n"


def test_the_sample_is_printed_in_its_blocks() -> None:
    assert [block.split("\n")[0] for block in _grown(MARKDOWN, 7)] == [
        "# Where it is",
        "Your parcel is in **Oslo**, see `track`.",
        "- one",
        "```python",
        "| place | day |",
        "That is all.",
    ]


def _long(first: str, lines: str) -> list[str]:
    """Return the pieces of a long text that is all one block: each joins the one before."""
    growing, blocks = MarkdownStream(), []
    growing.write(first)
    for _ in range(60):
        growing.write(lines * 20)
        blocks += growing.take_finished()
        assert len(growing.tail.text) < 3_000
    assert len(blocks) > 1
    pieces = [*blocks, growing.take_rest()]
    assert [piece.joins for piece in pieces] == [False] + [True] * len(blocks)
    return [piece.text for piece in pieces]


def test_a_file_in_one_fence_is_cut_and_the_fence_goes_on() -> None:
    blocks = _long("```py\n", "value = 1\n")
    assert blocks[0].startswith("```py\n")
    assert all(block.startswith("```\n") for block in blocks[1:])
    assert all(block.endswith("\n```") for block in blocks[:-1])
    assert "".join(blocks).count("value = 1\n") == 1_200


def test_a_long_list_is_cut_between_its_items() -> None:
    blocks = _long("", "- item\n  more of it\n")
    assert all(block.startswith("- item") for block in blocks)
    assert "".join(blocks) == "- item\n  more of it\n" * 1_200


def test_a_long_line_is_cut_between_words() -> None:
    assert "".join(_long("", "word " * 3)) == "word " * 3_600


def test_what_could_fool_is_shown_across_pieces() -> None:
    """Escapes are made before anything is cut into blocks; joiners keep what they join."""
    text = "a\x1b[2J\r\n\nb\u202ec 👩\u200d💻"
    assert "".join(_grown(text, 1)) == sanitize(text, body=True)


@pytest.mark.parametrize("first", ["", "```py\n"])
def test_only_the_end_of_a_long_block_is_drawn_while_it_grows(first: str) -> None:
    growing = MarkdownStream()
    growing.write(first + "one two three\n" * 250 + "the last")
    assert len(growing.tail.text) < 3_000
    assert growing.tail.joins
    assert growing.tail.text.endswith("three\nthe last")
    assert growing.tail.text.startswith("```\n" if first else ("one", "two", "three"))
