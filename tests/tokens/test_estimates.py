"""Estimates of tokens: sensible for every alphabet, additive, and never nothing for something.

The bounds are in characters to a token, wide enough for the tokenizers in use and narrow enough to
notice a kind of text that costs nothing, or ten times too much.
"""

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import tokens
from holdfast.values import File, Message, Part, Raw, Text, Thinking, ToolCall, ToolResult
from tests.model import strategies as some

_ENGLISH: Final = "The courier has the parcel and brings it tomorrow, unless the address is wrong. "
_CODE: Final = (
    "def read(path: Path) -> list[Row]:\n    return [row for row in path if row.seq > 0]\n"
)
_JSON: Final = json.dumps([{"id": at, "name": "parcel", "ok": True} for at in range(5)])

# A text, and between how many of its characters a token lies.
_KINDS: Final[dict[str, tuple[str, float, float]]] = {
    "english": (_ENGLISH, 3.5, 5.5),
    "german": ("Die Benachrichtigung wurde gestern versehentlich verschickt. ", 2.5, 5.5),
    "russian": ("Курьер забрал посылку и привезёт её завтра. ", 1.2, 4.0),
    "chinese": ("快递员拿到了包裹明天早上送来", 0.6, 2.0),
    "japanese": ("配達員は荷物を持っていますので明日届けます", 0.6, 2.0),
    "korean": ("택배 기사가 내일 아침에 소포를 가져옵니다", 0.6, 2.5),
    "code": (_CODE, 2.0, 4.5),
    "json": (_JSON, 1.5, 4.0),
    "digits": ("3141592653589793 ", 1.0, 3.5),
    "hex": ("9f86d081884c7d659a2feaa0c55ad015", 1.0, 3.5),
    "snake_case": ("read_the_whole_thing_at_once\n", 2.0, 5.0),
    "one long word": ("a" * 100, 2.0, 9.0),
    "emoji": ("\U0001f600\U0001f389\U0001f680", 0.2, 1.2),
    "spaces": (" " * 50, 2.0, 100.0),
    "tabs": ("\t" * 50, 1.0, 100.0),
    "lines": ("\n" * 50, 1.0, 100.0),
    "rules": ("_" * 50 + "=" * 50, 1.0, 100.0),
    "surrogates": ("\ud800" * 50, 0.2, 2.0),
}
each_kind = pytest.mark.parametrize("kind", _KINDS)


@each_kind
def test_a_text_of_any_kind_costs_about_what_it_should(kind: str) -> None:
    text, fewest, most = _KINDS[kind]
    long = text * 20
    assert fewest <= len(long) / tokens.of_text(long) <= most


@each_kind
@pytest.mark.parametrize("times", [200, 5_000])
def test_a_long_text_costs_as_much_more_as_it_is_longer(kind: str, times: int) -> None:
    """To within a tenth, however long."""
    text = _KINDS[kind][0] * 20
    whole = tokens.of_text(text * times)
    assert whole == pytest.approx(tokens.of_text(text) * times, rel=0.1)


def test_a_long_text_of_several_kinds_costs_what_they_cost() -> None:
    """Also where only its end is expensive."""
    parts = [_ENGLISH * 2_000, _CODE * 500, "快递员拿到了包裹" * 2_000, "31415 " * 5_000]
    assert tokens.of_text("".join(parts)) == pytest.approx(sum(map(tokens.of_text, parts)), rel=0.2)


def test_the_same_words_cost_more_in_other_alphabets() -> None:
    """By the character: English the least, then code, then digits and ideograms."""
    costs = [
        tokens.of_text(text * 50) / len(text * 50)
        for text in (_ENGLISH, _CODE, _KINDS["digits"][0], _KINDS["chinese"][0])
    ]
    assert costs == sorted(costs)
    assert costs[-1] < 10 * costs[0]


def test_nothing_costs_nothing() -> None:
    assert tokens.of_text("") == 0
    assert tokens.of_text("a") == 1


@given(text=some.texts)
def test_every_text_has_an_estimate(text: str) -> None:
    """No more than its bytes, as of any tokenizer of bytes; and the same each time."""
    found = tokens.of_text(text)
    assert bool(found) is bool(text)
    assert found <= 1 + len(text.encode("utf-8", "surrogatepass"))
    assert tokens.of_text(text) == found


@given(left=some.texts | st.text(max_size=200), right=some.texts | st.text(max_size=200))
def test_two_texts_cost_what_both_cost(left: str, right: str) -> None:
    """Within rounding; so nothing becomes cheaper by being longer."""
    both = tokens.of_text(left + right)
    assert abs(both - tokens.of_text(left) - tokens.of_text(right)) <= 2
    assert both >= max(tokens.of_text(left), tokens.of_text(right)) - 1


@given(text=some.texts)
def test_a_message_costs_its_parts_and_a_little(text: str) -> None:
    message = Message.user([text, text])
    assert tokens.of_message(message) == tokens.MESSAGE_TOKENS + 2 * tokens.of_text(text)


_LONG: Final = "word " * 1_000
_PARTS: Final[dict[str, Part]] = {
    "text": Text(_LONG),
    "thinking": Thinking(_LONG),
    "arguments": ToolCall("c", "look_up", {"query": _LONG}),
    "arguments as text": ToolCall("c", "look_up", _LONG),
    "result": ToolResult("c", _LONG),
    "result of parts": ToolResult("c", (Text(_LONG), Text("end"))),
    "raw": Raw("elsewhere", {"text": _LONG}),
}


@pytest.mark.parametrize("kind", _PARTS)
def test_words_cost_the_same_wherever_they_stand(kind: str) -> None:
    alone = tokens.of_text(_LONG)
    assert alone <= tokens.of_part(_PARTS[kind]) <= alone + 40


def test_a_file_costs_something_whatever_its_size() -> None:
    """An image is not paid by its bytes."""
    small, large = (
        tokens.of_part(File(name="a.png", mime="image/png", data=b"x" * size))
        for size in (1, 1_000_000)
    )
    assert small == large == tokens.IMAGE_TOKENS
    assert tokens.of_part(File(name="a.pdf", mime="application/pdf", data=b"x")) > 0
    assert (
        tokens.of_part(ToolResult("c", (File(mime="image/png", data=b"x"),))) >= tokens.IMAGE_TOKENS
    )
