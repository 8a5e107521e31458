"""What fits into a window, and what the window reports of the rest.

Every message of a history here has a tag of its own, which shows in any format whether it is in a
window. The costs are the estimates of `holdfast.tokens`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, TypeAlias, TypedDict, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Message, Session, ToolCall, tokens
from holdfast.errors import BadQuery, Invalid
from holdfast.testing.legality import problems
from holdfast.values import JSON, File, Provider, Text, ToolResult, Window
from holdfast.windows.pairing import UNKNOWN

_PNG: Final = File(name="a.png", mime="image/png", data=b"\x89PNG\r\n\x1a\n")
_History: TypeAlias = list[Message]

each_provider = pytest.mark.parametrize("provider", get_args(Provider))


class _Ask(TypedDict, total=False):
    max_tokens: int
    max_messages: int


@pytest.fixture
def session() -> Iterator[Session]:
    with holdfast.open("memory:") as store:
        yield store.create()


def _turns(number: int, words: int = 1) -> _History:
    return [
        message
        for at in range(number)
        for message in (
            Message.user(f"<u{at}> " + "word " * words),
            Message.assistant(f"<a{at}> " + "word " * words),
        )
    ]


def _exchange(at: int, said: str = "word") -> _History:
    call = ToolCall(f"c{at}", "look_up", {"tag": f"<c{at}>"})
    return [Message.assistant(tool_calls=[call]), Message.tool(call.id, f"<r{at}> {said}")]


def _tags(window: Window) -> list[str]:
    """Name the messages that are in a window, in the order they are sent."""
    return re.findall(r"<(\w+)>", json.dumps(window.messages))


def _out(window: Window) -> int:
    return sum(left.count for left in window.left_out)


def _whys(window: Window) -> dict[str, int]:
    return {left.why: left.count for left in window.left_out}


# ------------------------------------------------------------------------------------- the limits


@each_provider
@pytest.mark.parametrize("most", [60, 200, 1_000, 5_000])
def test_a_window_stays_within_its_tokens(session: Session, provider: Provider, most: int) -> None:
    session.append(*_turns(200, 10))
    window = session.window(provider=provider, max_tokens=most)
    assert most * 0.5 < window.tokens <= most
    assert window.notes == ()
    assert len(_tags(window)) + _out(window) == 400


def test_what_is_kept_for_the_reply_is_not_spent(session: Session) -> None:
    session.append(*_turns(200, 10))
    reserved = session.window(max_tokens=3_000, reserve=2_000)
    assert reserved.messages == session.window(max_tokens=1_000).messages
    assert reserved.tokens <= 1_000


def test_the_instructions_are_paid_from_the_budget(session: Session) -> None:
    session.append(*_turns(200, 10))
    system = "be brief " * 100
    window = session.window(max_tokens=1_000, system=system)
    assert tokens.of_text(system) < window.tokens <= 1_000
    assert len(_tags(window)) < len(_tags(session.window(max_tokens=1_000)))


@pytest.mark.parametrize("most", [2, 3, 4, 7, 16, 50, 100])
def test_a_window_has_no_more_messages_than_asked_for(session: Session, most: int) -> None:
    """And not much fewer: a quarter is what moving in steps may cost."""
    session.append(*_turns(200))
    window = session.window(max_messages=most)
    assert most * 3 / 4 - 1 <= len(window) <= most
    assert _whys(window) == {"over the budget": 400 - len(window)}


@pytest.mark.parametrize("ask", [{"max_tokens": 10**6}, {"max_messages": 400}, {}])
def test_what_fits_is_all_there(session: Session, ask: _Ask) -> None:
    session.append(*_turns(200))
    window = session.window(**ask)
    assert len(_tags(window)) == 400
    assert window.left_out == ()
    assert window.notes == ()


def test_a_budget_of_just_what_it_costs_is_enough(session: Session) -> None:
    session.append(*_turns(5, 10), *_exchange(1), Message.user("<u9>"))
    whole = session.window()
    assert session.window(max_tokens=whole.tokens).messages == whole.messages
    assert session.window(max_messages=len(whole)).messages == whole.messages
    assert len(session.window(max_tokens=whole.tokens - 1)) < len(whole)
    assert len(session.window(max_messages=len(whole) - 1)) < len(whole)


@pytest.mark.parametrize("field", ["max_tokens", "max_messages"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_of_nothing_is_refused(session: Session, field: str, value: int) -> None:
    session.append(*_turns(1))
    with pytest.raises((BadQuery, Invalid), match=field):
        session.window(**{field: value})  # type: ignore[arg-type]


def test_a_provider_that_nobody_knows_is_refused(session: Session) -> None:
    with pytest.raises(BadQuery, match="provider"):
        session.window(provider="nobody")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- whole exchanges


@each_provider
@pytest.mark.parametrize("most", range(3, 14))
def test_a_call_is_never_cut_from_its_result(
    session: Session, provider: Provider, most: int
) -> None:
    for at in range(30):
        session.append(Message.user(f"<u{at}>"), *_exchange(at), Message.assistant(f"<a{at}>"))
    window = session.window(provider=provider, max_messages=most)
    assert problems(provider, window.messages, window.system) == []
    tags = _tags(window)
    assert [tag[1:] for tag in tags if tag[0] == "c"] == [tag[1:] for tag in tags if tag[0] == "r"]
    assert UNKNOWN not in json.dumps(window.messages)
    assert len(tags) + _out(window) == 120


def test_messages_are_counted_and_not_results(session: Session) -> None:
    """Two results in one message are one message; a result that was made up is none."""
    calls = [ToolCall("x", "look_up", {"tag": "<c>"}), ToolCall("y", "look_up")]
    for _ in range(10):
        both = Message(role="tool", parts=(ToolResult("x", "<r>"), ToolResult("y", "found")))
        session.append(Message.user("<u>"), Message.assistant(tool_calls=calls), both)
        session.append(Message.user("<v>"), Message.assistant("<b>", tool_calls=calls[1:]))
    for most in (1, 5, 10, 20):
        window = session.window(max_messages=most)
        assert len(_tags(window)) + _out(window) == 50, most


# -------------------------------------------------------------------------- the newest is always in


@each_provider
@pytest.mark.parametrize("ask", [{"max_tokens": 1}, {"max_messages": 1}, {"max_tokens": 40}])
def test_the_newest_user_message_is_always_in(
    session: Session, provider: Provider, ask: _Ask
) -> None:
    session.append(*_turns(100), Message.user("<newest> " + "word " * 100))
    window = session.window(provider=provider, **ask)
    assert _tags(window) == ["newest"]
    assert bool(window.notes) is ("max_tokens" in ask)
    assert _out(window) == 200


def test_it_is_in_however_much_was_not_for_models_since(session: Session) -> None:
    for at in range(20):
        session.append(Message.user(f"<u{at}>"), Message.assistant(f"<a{at}>"))
    hidden = [
        Message.user(f"<h{at}> " + "word " * 50, metadata={"hidden": True}) for at in range(200)
    ]
    session.append(*hidden)
    window = session.window(max_tokens=150)
    assert "u19" in _tags(window)
    assert len(_tags(window)) >= 10
    assert not any(tag.startswith("h") for tag in _tags(window))
    assert len(_tags(window)) + _out(window) == 240
    assert _whys(window)["not for models"] == 200


def test_a_message_of_results_alone_is_not_the_newest_user_message(session: Session) -> None:
    """Where results are the user's, what the user said stands before them."""
    session.append(Message.user("<asked>"))
    for at in range(80):
        call, result = _exchange(at)
        session.append(call, Message(role="user", parts=result.parts))
    window = session.window(provider="anthropic", max_messages=9)
    assert _tags(window)[0] == "asked"
    assert _tags(window)[-2:] == ["c79", "r79"]


@each_provider
def test_of_a_long_turn_the_newest_exchanges_are_kept(session: Session, provider: Provider) -> None:
    """A model that works for hours stays within its budget, and still knows what it was asked."""
    session.append(*_turns(5), Message.user("<asked>"))
    for at in range(300):
        session.append(*_exchange(at, "word " * 30))
    window = session.window(provider=provider, max_tokens=2_000)
    assert problems(provider, window.messages, window.system) == []
    assert 1_000 < window.tokens <= 2_000
    asked, *rest = _tags(window)
    assert asked == "asked"
    assert rest[-2:] == ["c299", "r299"]
    first = int(rest[0][1:])
    assert rest == [f"{kind}{at}" for at in range(first, 300) for kind in "cr"]
    assert len(window.notes) == 1
    assert len(_tags(window)) + _out(window) == 611


def _check_every_budget(session: Session, *, keep_first_user: bool = False) -> None:
    """From the least that can be sent on, a window is within its tokens and need not say more."""
    least = session.window(max_tokens=1, keep_first_user=keep_first_user)
    for most in range(least.tokens, session.window().tokens, 7):
        window = session.window(max_tokens=most, keep_first_user=keep_first_user)
        assert window.tokens <= most
        assert not any("over the budget" in note for note in window.notes)


@pytest.mark.parametrize("words", [1, 60, 400])
def test_a_long_turn_of_small_exchanges_stays_within_its_tokens(
    session: Session, words: int
) -> None:
    """Whatever the question costs: exchanges are left out while there is more than one."""
    session.append(Message.user("<asked> " + "word " * words))
    for at in range(30):
        session.append(*_exchange(at))
    assert _tags(session.window(max_tokens=1)) == ["asked", "c29", "r29"]
    _check_every_budget(session)


@pytest.mark.parametrize("words", [1, 60, 400])
def test_the_first_user_message_is_paid_from_the_budget(session: Session, words: int) -> None:
    session.append(Message.user("<first> " + "word " * words), *_turns(20), Message.user("<last>"))
    assert _tags(session.window(max_tokens=1, keep_first_user=True)) == ["first", "last"]
    _check_every_budget(session, keep_first_user=True)


@pytest.mark.parametrize("words", [1, 60, 400])
def test_a_summary_is_paid_from_the_budget(session: Session, words: int) -> None:
    session.append(*_turns(3))
    session.summarize("<summary> " + "word " * words)
    session.append(*_turns(20), Message.user("<last>"))
    assert _tags(session.window(max_tokens=1)) == ["summary", "last"]
    _check_every_budget(session)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_long_turn_of_small_exchanges_has_no_more_messages_than_asked_for(
    session: Session, calls: int
) -> None:
    """The question counts, too; so does each result."""
    session.append(Message.user("<asked>"))
    for at in range(20):
        made = [ToolCall(f"c{at}.{n}", "look_up") for n in range(calls)]
        session.append(Message.assistant(f"<a{at}>", tool_calls=made))
        session.append(*[Message.tool(call.id, "found") for call in made])
    least = session.window(max_messages=1)
    assert _tags(least) == ["asked", "a19"]
    assert len(least) == 2 + calls
    for most in range(len(least), 20 * (1 + calls)):
        window = session.window(max_messages=most)
        assert most * 3 / 4 - (1 + calls) <= len(window) <= most
        assert _tags(window)[0] == "asked"
        assert not any("more messages" in note for note in window.notes)


# ------------------------------------------------------------------------------ oversized results


_LONG: Final = {
    "english": "the courier has the parcel " * 8_000,
    "chinese": "快递员拿到了包裹" * 10_000,
    "digits": "31415926535 " * 10_000,
    "json": json.dumps([{"id": at, "tags": ["a", "b"]} for at in range(8_000)]),
    "lines": "x\n" * 50_000,
    "white": " \t" * 100_000,
}


@each_provider
@pytest.mark.parametrize("kind", _LONG)
def test_a_result_too_large_is_shortened_in_the_middle(
    session: Session, provider: Provider, kind: str
) -> None:
    """Beginning and end stay, a marker says how much is missing, and the window says so, too."""
    session.append(Message.user("<asked>"), *_exchange(1, _LONG[kind] + " <end>"))
    window = session.window(provider=provider, max_tokens=2_000)
    assert problems(provider, window.messages, window.system) == []
    assert window.tokens <= 2_000
    assert _tags(window) == ["asked", "c1", "r1", "end"]
    assert len(json.dumps(window.messages, ensure_ascii=False)) < 40_000
    assert "characters left out" in json.dumps(window.messages)
    (note,) = window.notes
    assert "shortened" in note
    assert window.left_out == ()


@pytest.mark.parametrize("kind", ["english", "chinese", "json"])
def test_shortening_leaves_a_good_part(session: Session, kind: str) -> None:
    """Whatever the alphabet: the newest result may have what the rest leaves of the budget."""
    session.append(Message.user("<asked>"), *_exchange(1, _LONG[kind]))
    assert 3_000 <= session.window(max_tokens=4_000).tokens <= 4_000


@pytest.mark.parametrize("kind", _LONG)
def test_a_result_is_shortened_until_all_fits(session: Session, kind: str) -> None:
    """To the last token, what a result costs beside its words included."""
    session.append(Message.user("<asked>"), *_exchange(1, _LONG[kind][:800]))
    least = session.window(max_tokens=1)
    for most in range(least.tokens, session.window().tokens, 3):
        window = session.window(max_tokens=most)
        assert window.tokens <= most
        assert _tags(window) == ["asked", "c1", "r1"]
        assert not any("over the budget" in note for note in window.notes)


def test_only_as_many_results_as_need_it_are_shortened(session: Session) -> None:
    """The longest first; the short one stays as it is."""
    calls = [ToolCall(name, "look_up") for name in ("small", "huge", "mid")]
    session.append(Message.user("<asked>"), Message.assistant(tool_calls=calls))
    session.append(Message.tool("small", "<s> " + "small " * 100))
    session.append(Message.tool("huge", "<h> " + "huge " * 20_000))
    session.append(Message.tool("mid", "<m> " + "mid " * 400))
    window = session.window(max_tokens=4_000)
    sent = json.dumps(window.messages)
    assert window.tokens <= 4_000
    assert (sent.count("small "), sent.count("mid ")) == (100, 400)
    assert sent.count("characters left out") == 1
    assert _tags(window) == ["asked", "s", "h", "m"]


def test_an_image_beside_a_long_text_stays(session: Session) -> None:
    call = ToolCall("c", "look_up")
    session.append(Message.user("<asked>"), Message.assistant(tool_calls=[call]))
    session.append(Message.tool("c", [Text("<r> " + "word " * 20_000), _PNG]))
    window = session.window(provider="anthropic", max_tokens=4_000)
    sent = json.dumps(window.messages)
    assert '"image"' in sent
    assert "characters left out" in sent
    assert window.tokens <= 4_000


def test_what_was_just_read_is_not_forgotten_at_the_next_step(session: Session) -> None:
    """A long result of the newest turn is shortened rather than left out for a short one."""
    session.append(Message.user("<asked>"), *_exchange(1, "word " * 20_000))
    session.append(*_exchange(2, "short"))
    window = session.window(max_tokens=4_000)
    assert _tags(window) == ["asked", "c1", "r1", "c2", "r2"]
    assert window.tokens <= 4_000


def test_what_is_stored_is_not_shortened(session: Session) -> None:
    session.append(Message.user("<asked>"), *_exchange(1, _LONG["english"]))
    before = session.messages()
    session.window(max_tokens=500)
    assert session.messages() == before


def test_what_cannot_be_shortened_is_over_the_budget_and_said_so(session: Session) -> None:
    """A user's words are never cut."""
    session.append(*_turns(3), Message.user("<newest> " + "word " * 5_000))
    window = session.window(max_tokens=100)
    assert _tags(window) == ["newest"]
    assert window.tokens > 100
    assert any("over the budget" in note for note in window.notes)


def test_every_limit_that_is_exceeded_is_told(session: Session) -> None:
    """What is always sent may be too much by both counts."""
    session.append(Message.user("<asked>"), *_exchange(1))
    assert session.window(max_tokens=1, max_messages=1).notes == (
        "the newest messages are over the budget of tokens",
        "the newest exchange has more messages than `max_messages`",
    )


# --------------------------------------------------------------------------- the first user message


@each_provider
@pytest.mark.parametrize("turns", [4, 20, 200])
@pytest.mark.parametrize("ask", [{"max_messages": 6}, {"max_tokens": 60}])
def test_the_first_user_message_can_be_kept(
    session: Session, provider: Provider, turns: int, ask: _Ask
) -> None:
    """Near or far, in front of the recent rest, within the same limits."""
    session.append(*_turns(turns), Message.user("<newest>"))
    window = session.window(provider=provider, keep_first_user=True, **ask)
    assert problems(provider, window.messages, window.system) == []
    tags = _tags(window)
    assert tags[0] == "u0"
    assert tags[-1] == "newest"
    assert len(tags) <= ask.get("max_messages", 99)
    assert window.tokens <= ask.get("max_tokens", 99)
    assert len(tags) + _out(window) == 2 * turns + 1
    assert "u0" not in _tags(session.window(provider=provider, **ask)) or turns == 4


def test_the_first_user_message_is_not_paid_twice(session: Session) -> None:
    session.append(*_turns(10))
    whole = session.window()
    kept = session.window(max_tokens=whole.tokens, keep_first_user=True)
    assert kept.messages == whole.messages
    assert session.window(max_messages=20, keep_first_user=True).messages == whole.messages


def test_the_first_user_message_stays_under_a_summary(session: Session) -> None:
    """It comes before the words that stand for what followed it."""
    session.append(*_turns(20))
    session.summarize("<summary>", upto=30)
    window = session.window(keep_first_user=True)
    assert _tags(window)[:3] == ["u0", "summary", "u15"]
    assert len(_tags(window)) + _out(window) == 41


def test_the_first_user_message_has_its_time_like_the_others(session: Session) -> None:
    session.append(*_turns(100))
    window = session.window(max_messages=6, keep_first_user=True, timestamps=True)
    users = [str(one["content"]) for one in window.messages if one["role"] == "user"]
    assert users
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d UTC\] <u", text) for text in users)


def test_a_hidden_first_message_is_not_the_first(session: Session) -> None:
    session.append(Message.user("<hidden>", metadata={"hidden": True}), *_turns(50))
    assert _tags(session.window(max_messages=6, keep_first_user=True))[0] == "u0"


# ------------------------------------------------------------------------------------- any history


_numbers = count()


def _tag() -> str:
    return f"<m{next(_numbers):06}>"


def _said(role: str, words: int, flag: str | None) -> _History:
    text = _tag() + " word" * words
    metadata: dict[str, JSON] = {flag: True} if flag else {}
    if role == "user":
        return [Message.user(text, metadata=metadata)]
    return [Message.assistant(text, metadata=metadata)]


def _tools(answered: Sequence[bool], words: int, *, together: bool, by_user: bool) -> _History:
    """An exchange; its ids are used by others, too, as many a provider's are."""
    calls = [ToolCall(f"call_{at}", "look_up", {"n": at}) for at in range(len(answered))]
    results = [
        ToolResult(call.id, _tag() + " found" * words)
        for call, is_answered in zip(calls, answered, strict=True)
        if is_answered
    ]
    role = "user" if by_user else "tool"
    parts = [tuple(results)] if together and results else [(result,) for result in results]
    if together:
        parts = [(results[0], *(_untagged(result) for result in results[1:]))] if results else []
    answers = [Message(role=role, parts=part) for part in parts]  # type: ignore[arg-type]
    return [Message.assistant(_tag(), tool_calls=calls), *answers]


def _untagged(result: ToolResult) -> ToolResult:
    return ToolResult(result.call_id, "found")


_items: st.SearchStrategy[_History] = st.one_of(
    st.builds(
        _said,
        st.sampled_from(["user", "assistant"]),
        st.integers(0, 60),
        st.sampled_from([None, None, None, "hidden", "command"]),
    ),
    st.builds(
        _tools,
        st.lists(st.booleans(), min_size=1, max_size=3),
        st.sampled_from([0, 1, 20, 60, 300, 1_000]),
        together=st.booleans(),
        by_user=st.booleans(),
    ),
    st.builds(lambda: [Message.tool("nobody", _tag())]),
    st.builds(lambda: [Message.user(" ")]),
)
_histories = st.lists(_items, min_size=1, max_size=40).map(
    lambda items: [message for item in items for message in item]
)
_asks: st.SearchStrategy[_Ask] = st.one_of(
    st.builds(lambda n: _Ask(max_tokens=n), st.integers(1, 1_500)),
    st.builds(lambda n: _Ask(max_messages=n), st.integers(1, 60)),
    st.builds(
        lambda n, m: _Ask(max_tokens=n, max_messages=m), st.integers(1, 1_500), st.integers(1, 60)
    ),
    st.just(_Ask()),
)


def _own_tag(message: Message) -> str | None:
    found = re.findall(r"<(\w+)>", message.text)
    return found[0] if found else None


def _legal(history: _History) -> list[str]:
    """Name the messages that a model may be sent, as the rules of the history say."""
    open_calls: set[str] = set()
    legal = []
    for message in history:
        tag = _own_tag(message)
        if message.metadata or tag is None:
            continue
        if message.tool_results:
            answered = {result.call_id for result in message.tool_results} & open_calls
            open_calls -= answered
            if not answered:
                continue
        open_calls |= {call.id for call in message.tool_calls}
        legal.append(tag)
    return legal


def _always(history: _History, *, keep_first: bool) -> list[str]:
    """Name the messages that no budget leaves out: the newest question and exchange behind it."""
    legal = set(_legal(history))
    sent = [message for message in history if _own_tag(message) in legal]
    users = [at for at, m in enumerate(sent) if m.role == "user" and not m.tool_results]
    if not users:
        return []
    behind = sent[users[-1] + 1 :]
    said = [at for at, m in enumerate(behind) if not m.tool_results]
    kept = [sent[users[-1]], *(behind[said[-1] :] if said else [])]
    if keep_first and users[0] != users[-1]:
        kept.insert(0, sent[users[0]])
    return [tag for message in kept if (tag := _own_tag(message))]


def _check_limits(window: Window, least: Window, ask: _Ask) -> None:
    """Within the limits, or the least that can be sent, which is told."""
    most, many = ask.get("max_tokens"), ask.get("max_messages")
    if most is not None and window.tokens > most:
        assert _tags(window) == _tags(least)
        assert window.tokens == least.tokens
        assert any("over the budget of tokens" in note for note in window.notes)
    if many is not None and len(_tags(window)) > many:
        assert _tags(window) == _tags(least)
        assert any("more messages than `max_messages`" in note for note in window.notes)


@each_provider
@given(history=_histories, ask=_asks, keep_first=st.booleans())
def test_whatever_the_history_the_window_adds_up(
    provider: Provider, history: _History, ask: _Ask, *, keep_first: bool
) -> None:
    """In order, nothing twice, nothing missing that is not counted, and within the limits.

    Over them is only a window from which nothing more can be left out, and it says so.
    """
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(*history)
        window = session.window(provider=provider, keep_first_user=keep_first, **ask)
        least = session.window(
            provider=provider, keep_first_user=keep_first, max_tokens=1, max_messages=1
        )
    _check_limits(window, least, ask)
    assert _tags(least) == _always(history, keep_first=keep_first)
    tags = _tags(window)
    order = [tag for tag in _legal(history) if tag in set(tags)]
    assert len(tags) == len(set(tags))
    assert tags == order, "the order of the history, and nothing that is not legal"
    assert len(tags) + _out(window) == len(history)
    users = [m for m in history if m.role == "user" and not m.tool_results and not m.metadata]
    if newest := [tag for m in users if (tag := _own_tag(m))][-1:]:
        assert newest[0] in tags, "the newest user message is always in"


@each_provider
@given(history=_histories)
def test_without_limits_everything_legal_is_in(provider: Provider, history: _History) -> None:
    """But what an assistant said before anybody asked, which not every provider may be sent."""
    opened = [Message.user("<opened>"), *history]
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(*opened)
        window = session.window(provider=provider)
    assert _tags(window) == _legal(opened)
    assert "over the budget" not in _whys(window)


@given(history=_histories, ask=_asks)
def test_what_is_in_a_window_is_the_end_of_the_history(history: _History, ask: _Ask) -> None:
    """No hole in it, but behind the newest user message if that is where its turn was cut."""
    opened = [Message.user("<opened>"), *history]
    with holdfast.open("memory:") as store:
        session = store.create()
        session.append(*opened)
        window = session.window(**ask)
    legal, tags = _legal(opened), _tags(window)
    users = {_own_tag(m) for m in opened if m.role == "user" and not m.tool_results}
    if tags[0] in users and not any(tag in users for tag in tags[1:]):
        tags = tags[1:]  # The newest user message; what follows it may begin later.
    assert tags == legal[len(legal) - len(tags) :]


def test_an_image_alone_can_be_the_first_user_message(session: Session) -> None:
    session.append(Message.user([_PNG]), *_turns(50))
    window = session.window(provider="anthropic", max_messages=6, keep_first_user=True)
    assert '"image"' in json.dumps(window.messages[0])
