"""Safe cut points, compared with a list of all call-result pairs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.operations.positions import earlier_calls_answered, safe_cut_length
from holdfast.values import Message, ToolCall, ToolResult


def _message(word: str) -> Message:
    """Build a message: `a` is a call, `A` its result, `-` a text; letters may be combined."""
    parts = [
        ToolCall(letter, "tool") if letter.islower() else ToolResult(letter.lower(), "result")
        for letter in word
        if letter != "-"
    ]
    return Message(role="assistant", parts=tuple(parts))


def _history(words: str) -> list[Message]:
    return [_message(word) for word in words.split()]


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("", "", 0),
        ("", "A", 0),
        ("- -", "-", 2),
        ("- a", "A", 1),  # between call and result
        ("- a", "-", 2),  # it has no result and will get none
        ("- a", "", 2),
        ("- a A", "-", 3),  # whole
        ("- a -", "A", 1),  # with a text in between
        ("- ab A", "B", 1),  # one of two is answered
        ("- ab A B", "-", 4),
        ("- a b B", "A", 1),  # a whole pair inside a split one goes along
        ("a b", "B A", 0),
        ("a b A", "B", 0),  # before b is inside a
        ("- a A b", "B", 3),
        ("- a Ab", "B", 1),  # one message answers and calls: it belongs to both exchanges
        ("- a A", "A", 3),  # an answer that comes again splits nothing
        ("- A", "A", 2),  # answers without a call
        ("- a", "a A", 2),  # it is the later call that is answered
        ("a A a", "A", 2),  # a name that is used again is another call
        ("a A a A", "-", 4),
    ],
)
def test_a_cut_moves_to_before_the_exchange(before: str, after: str, kept: int) -> None:
    """It moves to the nearest safe cut point before it, and no further."""
    assert safe_cut_length(_history(before), _history(after)) == kept


@pytest.mark.parametrize(
    ("before", "awaited", "kept"),
    [
        ("- a", "a", 1),
        ("- a A", "a", 3),
        ("- ab A", "b", 1),
        ("- a", "x", 2),
        ("a b", "b", 1),
        ("a b B", "a", 0),
    ],
)
def test_an_answer_that_is_still_to_come_counts(before: str, awaited: str, kept: int) -> None:
    """Results of an open turn's calls: a fork would never get them."""
    assert safe_cut_length(_history(before), [], set(awaited)) == kept


def test_answers_without_a_call_are_to_earlier_ones() -> None:
    """Calls that are answered in or after these messages, and made before them."""
    assert earlier_calls_answered(_history("B a A C")) == {"b", "c"}
    assert earlier_calls_answered(_history("B a - c"), {"a", "d"}) == {"b", "d"}
    assert earlier_calls_answered([]) == set()


# ------------------------------------------------------------------------- all pairs, listed


def _pairs(history: list[Message]) -> list[tuple[int, int]]:
    """Return (call, result) indexes of all pairs; only the first result of a call counts."""
    made: dict[str, int] = {}
    pairs = []
    for at, message in enumerate(history):
        pairs += [(made.pop(r.call_id), at) for r in message.tool_results if r.call_id in made]
        made.update({call.id: at for call in message.tool_calls})
    return pairs


def _legal(history: list[Message], asked: int) -> list[int]:
    """Return the cuts up to `asked` that split no pair."""
    pairs = _pairs(history)
    cuts = range(asked + 1)
    return [cut for cut in cuts if not any(call < cut <= result for call, result in pairs)]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Calls with unique ids, some answered once or twice, at any later point."""
    history: list[str] = []
    calls = ""
    for _ in range(draw(st.integers(0, 12))):
        word = draw(st.sampled_from(["-", "call", "answer", "both"]))
        called = chr(ord("a") + len(calls)) if word in {"call", "both"} else ""
        answered = draw(st.sampled_from(calls or "z")).upper() if word in {"answer", "both"} else ""
        calls += called
        history.append(answered + called or "-")
    return [_message(word) for word in history]


@given(conversations(), st.integers(0, 12))
def test_the_nearest_cut_through_no_pair_is_found(history: list[Message], asked: int) -> None:
    """The last cut, at the given index or before it, that splits no pair."""
    asked = min(asked, len(history))
    assert safe_cut_length(history[:asked], history[asked:]) == _legal(history, asked)[-1]


@given(st.lists(st.text("abAB-", min_size=1, max_size=2).map(_message), max_size=10), st.data())
def test_names_used_again_never_leave_a_call_without_its_result(
    history: list[Message], data: st.DataObject
) -> None:
    """A result belongs to the newest call with its id, and both are cut off together."""
    asked = data.draw(st.integers(0, len(history)))
    kept = safe_cut_length(history[:asked], history[asked:])
    assert kept == _legal(history, asked)[-1]
