"""Rules, as tables: leases, tools, titles, previews, drafts, heads, retries."""

from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import codec, titles
from holdfast.draft_parts import Delta, delta_bytes, merge_deltas
from holdfast.errors import HeadMoved, IdConflict, SessionBusy
from holdfast.operations import turns
from holdfast.operations.append import check_expected_head, new_messages
from holdfast.operations.leases import final_outcome, lease_end, may_take_over
from holdfast.processes import this_process
from holdfast.session import number_of
from holdfast.storage.memory import MemoryBackend
from holdfast.store import Store
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.url import Location
from holdfast.values import JSON, Head, Message, Text, Thinking, TitleBy, ToolCall, ToolOutcome
from tests.model import strategies as some

_NOW = datetime(2024, 1, 1, tzinfo=UTC)


# ----------------------------------------------------------------------------------------- leases


@pytest.mark.parametrize(
    ("alive", "left", "may"),
    [
        (True, 1, False),
        (True, 0, True),
        (True, -1, True),
        (None, 1, False),
        (None, 0, True),
        (False, 1, True),
        (False, 10**12, True),
    ],
)
def test_who_may_take_over(alive: bool | None, left: int, may: bool) -> None:
    """At once if the holder is dead, else when its lease has expired."""
    assert may_take_over(alive=alive, lease_until=100 + left, now=100) is may


_LEASE = 30
_SECONDS = st.integers(-(10**6), 10**6)
_EVENTS = st.lists(
    st.tuples(st.just("pass"), st.integers(0, 2 * _LEASE))
    | st.tuples(st.just("set"), _SECONDS)
    | st.tuples(st.just("renew"), st.just(0)),
    max_size=12,
)


@given(_EVENTS)
def test_whatever_the_clock_is_set_to_a_turn_is_held_as_long_as_it_is_renewed(
    events: list[tuple[str, int]],
) -> None:
    """Where the monotonic clock is the holder's: neither taken from it nor kept for it."""
    clock, left = SetClock(), _LEASE
    location = Location("memory", "", lease=_LEASE)
    with Store(MemoryBackend(location, tenant="t", readonly=False, clock=clock), clock) as store:
        session = store.session("s")
        turn = session.turn().__enter__()
        for event, seconds in events:
            if event == "renew":
                store.backend.write(turns.renew(number_of(session), 1, _LEASE))
                left = _LEASE
            elif event == "set":
                clock.step(seconds)
            else:
                clock.advance(seconds)
                left -= seconds
            assert store.session("s").interrupted == (left <= 0)
        turn.user("an expired lease alone loses nothing")


@given(_EVENTS)
def test_whatever_the_clock_is_set_to_a_lease_ends(events: list[tuple[str, int]]) -> None:
    """Also where only that clock is known: whoever is refused now is not when it has passed."""
    clock = SetClock()
    location = Location("memory", "", lease=_LEASE)
    with Store(MemoryBackend(location, tenant="t", readonly=False, clock=clock), clock) as store:
        session = store.session("s")
        elsewhere = msgspec.structs.replace(this_process(), boot="another")
        claim = turns.TurnClaim(
            session=number_of(session),
            token="elsewhere",  # noqa: S106 - of a turn
            holder=elsewhere,
            lease=_LEASE,
            run_id=None,
            model=None,
        )
        store.backend.write(turns.open_turn(claim))
        for event, seconds in events:
            if event == "renew":
                store.backend.write(turns.renew(number_of(session), 1, _LEASE))
            elif event == "set":
                clock.step(seconds)
            else:
                clock.advance(seconds)
        with suppress(SessionBusy), session.turn():
            return
        clock.advance(_LEASE + 1)
        with session.turn() as turn:
            assert turn.recovered is not None


def test_a_lease_ends_when_its_seconds_have_passed() -> None:
    """Also if it is shorter than a second."""
    assert lease_end(5, 30.0) == 30_000_005
    assert lease_end(5, 0.5) == 500_005


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        ("called", "not_run"),
        ("running", "unknown"),
        ("done", "done"),
        ("error", "error"),
        ("unknown", "unknown"),
        ("not_run", "not_run"),
    ],
)
def test_no_call_stays_open(outcome: ToolOutcome, after: ToolOutcome) -> None:
    """Settling is idempotent."""
    assert final_outcome(outcome) == after
    assert final_outcome(after) == after


# ----------------------------------------------------------------------------------------- titles


@pytest.mark.parametrize(
    ("current", "by", "may"),
    [
        (None, "auto", True),
        ("auto", "auto", True),
        ("user", "auto", False),
        (None, "user", True),
        ("auto", "user", True),
        ("user", "user", True),
    ],
)
def test_who_may_give_a_title(current: TitleBy | None, by: TitleBy, may: bool) -> None:
    """A program never replaces what the user chose."""
    assert titles.may_retitle(current, by) is may


@pytest.mark.parametrize(
    ("messages", "wanted"),
    [
        ([], None),
        ([Message.system("rules")], None),
        ([Message.tool("c", "result")], None),
        ([Message.user("  a\n\tb  ")], "a b"),
        ([Message.assistant("hello"), Message.user("question")], "question"),
        ([Message.user("first"), Message.user("second")], "first"),
        ([Message.assistant("first"), Message.assistant("second")], "first"),
        ([Message.user("x", metadata={"hidden": True}), Message.user("y")], "y"),
        ([Message.user("x", metadata={"command": 1})], None),
        ([Message.user("x", metadata={"injected": "by us"}), Message.assistant("z")], "z"),
        ([Message.user("x", metadata={"hidden": False})], "x"),
        ([Message.user(" \n ")], None),
        ([Message.user("x" * 500)], "x" * 120),
        ([Message.user(" " * 5000 + "late")], "late"),
        ([Message.user(["a", "b"])], "a b"),
    ],
)
def test_the_preview(messages: list[Message], wanted: str | None) -> None:
    """The same whether the messages are appended at once or one by one."""
    at_once = titles.update_preview(messages, 1, titles.Preview())
    one_by_one = titles.Preview()
    for seq, message in enumerate(messages, 1):
        one_by_one = titles.update_preview([message], seq, one_by_one)
    assert at_once.text == wanted
    assert at_once == one_by_one
    if at_once.seq:
        assert titles.shorten(messages[at_once.seq - 1].text) == wanted


@given(some.texts | st.text(st.sampled_from(" \n\tab"), max_size=400))
def test_folding(text: str) -> None:
    """White space becomes single spaces; 120 characters are kept; folding twice is folding once."""
    folded = titles.shorten(text)
    assert folded == " ".join(text.split())[:120]
    assert titles.shorten(folded) == folded.rstrip()


# ----------------------------------------------------------------------------------------- drafts

deltas = st.lists(
    st.builds(Text, some.texts)
    | st.builds(Thinking, some.texts, st.none() | some.texts)
    | st.builds(ToolCall, some.texts, some.texts, some.json_values),
    max_size=12,
)


@given(deltas)
def test_putting_deltas_together_loses_nothing(said: list[Delta]) -> None:
    """All text, all reasoning, all calls, in order; neighbours are left only behind a signature."""
    parts = merge_deltas(said)
    for kind in (Text, Thinking):
        assert "".join(p.text for p in parts if isinstance(p, kind)) == "".join(
            d.text for d in said if isinstance(d, kind)
        )
    assert [p for p in parts if isinstance(p, ToolCall)] == [
        d for d in said if isinstance(d, ToolCall)
    ]
    for first, second in pairwise(parts):
        assert (
            type(first) is not type(second)
            or isinstance(first, ToolCall)
            or (isinstance(first, Thinking) and first.signature is not None)
        )
    order = [kind for n, kind in enumerate(map(type, said)) if not n or _begins(said[n - 1], kind)]
    kinds = [type(part) for part in parts]
    assert [k for k in kinds if k is not ToolCall] == [k for k in order if k is not ToolCall]


def _begins(before: Delta, kind: type) -> bool:
    signed = isinstance(before, Thinking) and before.signature is not None
    return signed or type(before) is not kind


@given(deltas, st.integers(0, 12))
def test_it_does_not_matter_where_a_draft_was_cut(said: list[Delta], cut: int) -> None:
    """Chunks put together later are the reply put together at once."""
    chunks = [said[:cut], said[cut:]]
    assert merge_deltas(d for chunk in chunks for d in chunk) == merge_deltas(said)


def test_a_signature_ends_a_thought() -> None:
    """It is valid only for the reasoning it was made of; a provider refuses any other."""
    said = [Thinking("a"), Thinking("b", "s1"), Thinking("c", "s2"), Thinking("d")]
    assert merge_deltas(said) == (Thinking("ab", "s1"), Thinking("c", "s2"), Thinking("d"))


@pytest.mark.parametrize(
    ("delta", "least"),
    [
        (Text("abc"), 3),
        (Text("漢" * 100), 300),
        (Text("\ud800"), 3),
        (Thinking("é" * 10), 20),
        (ToolCall("id", "name", {"k": "漢" * 100}), 306),
    ],
)
def test_a_delta_is_not_smaller_than_it_is_said_to_be(delta: Delta, least: int) -> None:
    """The flush limit is one of bytes, in any language."""
    assert delta_bytes(delta) >= least


# -------------------------------------------------------------------------------------- appending


def _encoded(*messages: Message) -> list[codec.EncodedMessage]:
    return [codec.encode(message, _NOW) for message in messages]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy")), max_size=8), st.data())
def test_what_is_new_in_a_batch(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    """Against the plain rule: first of each id, none that is there, refused if a body differs."""
    there = data.draw(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy"), max_size=3))
    stored = {
        id: (seq, _encoded(Message.user(text, id=id))[0].body)
        for seq, (id, text) in enumerate(there.items(), 1)
    }
    batch = _encoded(*(Message.user(text, id=id) for id, text in pairs))
    bodies: dict[str, str] = dict(there)
    wanted: list[str] = []
    for id, text in pairs:
        if bodies.setdefault(id, text) != text:
            with pytest.raises(IdConflict) as refused:
                new_messages(batch, stored)
            assert refused.value.message_id == id
            return
        if id not in there and id not in wanted:
            wanted.append(id)
    assert [item.id for item in new_messages(batch, stored)] == wanted


@pytest.mark.parametrize("expect", [None, Head(1, 3)])
def test_a_head_that_was_seen_lets_through(expect: Head | None) -> None:
    """So does no expectation."""
    check_expected_head(expect, Head(1, 3))


@pytest.mark.parametrize("expect", [Head(1, 2), Head(1, 4), Head(2, 3), Head(0, 0)])
def test_any_other_head_does_not(expect: Head) -> None:
    """The error names both."""
    with pytest.raises(HeadMoved) as refused:
        check_expected_head(expect, Head(1, 3))
    assert (refused.value.expected, refused.value.actual) == (expect, Head(1, 3))


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ({"k": 1}, {"k": 1}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"k": 1}, {"k": 2}, False),
        ({"k": 1}, {"k": "1"}, False),
        ({"k": None}, {}, False),
        ({"k": 1}, {"k": True}, False),
        ({"k": 1}, {"k": 1.0}, False),
    ],
)
def test_what_is_the_same_body(one: dict[str, JSON], two: dict[str, JSON], same: bool) -> None:
    """Objects are unordered; numbers, strings and booleans are distinct."""
    bodies = [codec.encode(Message.user("a", metadata=m), _NOW).body for m in (one, two)]
    assert codec.is_same_body(*bodies) is same
