"""A text that comes in pieces is shown as if it had come whole."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.output.sanitize_stream import StreamSanitizer

# Characters whose look depends on their neighbours, and some that must never be seen.
_LETTERS = st.sampled_from("a1 \n\x1b\u202e\u200b\u200c\u200d\ufe0e\ufe0f\u20e3👩💻❤क\u094d\ud800")


@given(st.lists(st.text(_LETTERS, max_size=5), max_size=8))
def test_pieces_are_shown_as_the_whole_is(pieces: list[str]) -> None:
    flow = StreamSanitizer()
    shown = "".join(map(flow.write, pieces)) + flow.end()
    assert shown == sanitize("".join(pieces), body=True)


def test_what_cannot_change_is_shown_at_once() -> None:
    flow = StreamSanitizer()
    assert flow.write("one two") == "one two"
    assert flow.write("\x1b[2J") == r"\x1b[2J"
    assert flow.write("👩") == "👩"
    assert flow.write("\u200d") == ""
    assert flow.write("💻") == "\u200d💻"
