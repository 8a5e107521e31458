"""Estimates get better with what providers report: under a twentieth off, on a recorded set.

`recorded.json` has conversations with the tokens of each message by several tokenizers (`record`
makes it). Each is played as a model of its own whose replies report what they had.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Final, TypedDict

import apsw
import pytest

import holdfast
from holdfast import Message, Session, Store, Usage
from holdfast.operations.token_calibration import compare_reply_tokens, correction_factor
from holdfast.tokens import MESSAGE_TOKENS, of_message, of_text
from holdfast.values import MeasuredTokens, Text, Thinking

_RECORDED: Final = Path(__file__).parent / "recorded.json"


class _Said(TypedDict):
    role: str
    text: str
    tokens: dict[str, int]


def _conversations() -> list[list[_Said]]:
    found: list[list[_Said]] = json.loads(_RECORDED.read_text(encoding="utf-8"))
    return found


_FAMILIES: Final = list(_conversations()[0][0]["tokens"])
each_family = pytest.mark.parametrize("family", _FAMILIES)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with holdfast.open(store_url) as opened:
        yield opened


def _error(store: Store, family: str, *, reported: bool) -> float:
    """Play the set; say how far the estimates of the windows of its second half are off, by size.

    By size: of a window of one short question a third more or less is a few tokens.
    """
    played = list(_windows(store, family, reported=reported))
    later = played[len(played) // 2 :]
    return sum(abs(estimate - told) for estimate, told in later) / sum(told for _, told in later)


def _windows(store: Store, family: str, *, reported: bool) -> Iterator[tuple[int, int]]:
    """Play the set; before each reply, give the estimate for the window, and its true tokens."""
    for conversation in _conversations():
        session = store.create(model=f"model-{family}")
        truth = 0
        for said in conversation:
            truth += MESSAGE_TOKENS + said["tokens"][family]
            if said["role"] != "assistant":
                session.append(Message.user(said["text"]))
                continue
            estimate = session.window().tokens
            told = truth - said["tokens"][family] - MESSAGE_TOKENS
            yield estimate, told
            usage = Usage(input=told, output=said["tokens"][family]) if reported else None
            model = f"model-{family}"
            session.append(Message.assistant(said["text"], usage=usage, model=model))


@each_family
def test_estimates_come_within_a_twentieth_once_replies_were_reported(family: str) -> None:
    """It is all decided above the database."""
    with holdfast.open("memory:") as store:
        assert _error(store, family, reported=True) < 0.05


def test_reports_are_what_makes_estimates_better() -> None:
    """Over all tokenizers, what was not reported is further off."""

    def off(*, reported: bool) -> float:
        errors = []
        for family in _FAMILIES:
            with holdfast.open("memory:") as store:
                errors.append(_error(store, family, reported=reported))
        return mean(errors)

    assert off(reported=True) < 0.7 * off(reported=False)


def _reply(output: int, reasoning: int = 0, *, thought: bool = False) -> Message:
    parts = ((Thinking("hm"),) if thought else ()) + (Text("word " * 200),)
    usage = Usage(output=output, reasoning=reasoning)
    return Message(role="assistant", parts=parts, usage=usage, model="m")


@pytest.mark.parametrize(
    ("message", "counted"),
    [
        (_reply(300), 300),
        (_reply(300, 100), 200),
        (_reply(300, 100, thought=True), 200),
        (_reply(300, thought=True), 0),  # The thoughts are in it, nobody knows how much.
        (_reply(0), 0),
        (_reply(100, 300), 0),
        (Message.user("hello", usage=Usage(output=3)), 0),
        (Message.assistant("cut", usage=Usage(output=3), status="partial"), 0),
        (Message.assistant("words"), 0),
    ],
)
def test_only_replies_whose_words_are_known_to_be_counted_tell(
    message: Message, counted: int
) -> None:
    measured = compare_reply_tokens(message, [])
    assert measured.counted == counted
    assert bool(measured.estimated) == bool(counted)


def _asked_again(counted: int, model: str = "m") -> MeasuredTokens:
    """Return what a reply tells that was sent so many tokens more than the one before."""
    before = [
        Message.user("word " * 50),
        Message.assistant("word " * 100, model="m", usage=Usage(input=1_000, output=90)),
        Message.user("word " * 100),
    ]
    usage = Usage(input=1_000 + counted, output=13)
    return compare_reply_tokens(Message.assistant("word " * 10, usage=usage, model=model), before)


def test_a_request_tells_what_came_since_the_one_before() -> None:
    estimated = 2 * (MESSAGE_TOKENS + of_text("word " * 100))
    assert _asked_again(300) == MeasuredTokens(300, estimated)


@pytest.mark.parametrize(
    ("counted", "model"),
    [
        (-500, "m"),  # The window was cut.
        (5_000, "m"),  # More was sent than the history.
        (300, "another"),
    ],
)
def test_a_request_that_is_not_the_one_before_and_more_tells_only_its_reply(
    counted: int, model: str
) -> None:
    assert _asked_again(counted, model) == MeasuredTokens(13, of_text("word " * 10))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (MeasuredTokens(), 1.0),
        (MeasuredTokens(300, 100), 1.0),  # too little to believe
        (MeasuredTokens(1_100, 1_000), 1.1),
        (MeasuredTokens(1_111, 1_000), 1.12),
        (MeasuredTokens(10**9, 1_000), 3.0),
        (MeasuredTokens(1, 1_000), 0.5),
    ],
)
def test_the_factor_goes_in_small_steps_and_not_too_far(
    measured: MeasuredTokens, expected: float
) -> None:
    assert correction_factor(measured) == pytest.approx(expected)


def _talk(session: Session, times: int, *, output: Callable[[int], int], model: str = "m") -> None:
    text = "A reply of some length, with words in it. " * 5
    for _ in range(times):
        session.append(
            Message.user("go on"),
            Message.assistant(text, model=model, usage=Usage(output=output(of_text(text)))),
        )


def test_what_one_session_learned_all_sessions_of_the_model_know(store: Store) -> None:
    _talk(store.create(model="m"), 20, output=lambda estimate: 2 * estimate)
    fresh, other = store.create(model="m"), store.create(model="other")
    for session in (fresh, other):
        session.append(Message.user("hello " * 100))
    assert fresh.window().tokens == 2 * other.window().tokens


def test_a_budget_is_in_the_tokens_of_the_model(store: Store) -> None:
    """A model that counts twice as many is sent half as much."""

    def sent(model: str, times: int) -> int:
        session = store.create(model=model)
        _talk(session, 50, model=model, output=lambda estimate: times * estimate)
        window = session.window(max_tokens=2_000)
        assert window.tokens <= 2_000
        return len(window.messages)

    assert sent("plain", 1) > 1.5 * sent("doubled", 2)


def test_another_tenant_s_replies_tell_nothing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", tenant="one") as one:
        _talk(one.create(model="m"), 20, output=lambda estimate: 2 * estimate)
    with holdfast.open(tmp_path / "a.db", tenant="two") as two:
        session = two.create(model="m")
        session.append(Message.user("hello " * 100))
        assert session.window().tokens == of_message(session.messages()[0])


def test_without_a_model_of_its_own_a_session_counts_as_its_last_model_does(store: Store) -> None:
    session = store.create()
    _talk(session, 20, output=lambda estimate: 2 * estimate)
    estimated = sum(map(of_message, session.messages()))
    assert session.window().tokens == 2 * estimated


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM messages WHERE place & 4294967295 = 3",
        "UPDATE messages SET body = 'no message' WHERE place & 4294967295 = 3",
    ],
)
def test_a_reply_is_stored_behind_damage_it_would_be_compared_with(
    tmp_path: Path, damage: str
) -> None:
    """Estimates are beside the point: what they are learned from may be missing or unreadable."""
    with holdfast.open(tmp_path / "agent.db") as store:
        _talk(store.session("k", model="m"), 2, output=lambda estimate: estimate)
    connection = apsw.Connection(str(tmp_path / "agent.db"))
    connection.execute(damage)
    connection.close()
    with holdfast.open(tmp_path / "agent.db") as store:
        session = store.session("k")
        reply = Message.assistant("still here", model="m", usage=Usage(input=500, output=3))
        assert session.append(reply).seq == 5
        assert session.messages(limit=1)[0].text == "still here"
