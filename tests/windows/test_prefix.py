"""Prompt caches: a window begins with the previous one for as long as possible.

A provider reads a request from its cache up to the first byte that differs. So the same history
gives the same bytes, a longer one only adds at the end, and when the budget forces a cut, the
beginning moves a large step at once and then stays for many turns.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias, TypedDict, Unpack, get_args

import pytest

import holdfast
from holdfast import Message, Session, ToolCall, tokens
from holdfast.values import Provider, Window

_TURNS: Final = 150
_FIT: Final = 50  # turns within the budget

_Turn: TypeAlias = tuple[Message, list[Message]]
_Make: TypeAlias = Callable[[int], _Turn]


class _Ask(TypedDict, total=False):
    provider: Provider
    max_tokens: int
    max_messages: int
    keep_first_user: bool
    timestamps: bool


each_provider = pytest.mark.parametrize("provider", get_args(Provider))


@pytest.fixture
def session() -> Iterator[Session]:
    with holdfast.open("memory:") as store:
        yield store.create()


def _plain(at: int) -> _Turn:
    return Message.user(f"u{at} " + "word " * 20), [Message.assistant(f"a{at} " + "word " * 20)]


def _with_tools(at: int) -> _Turn:
    calls = [ToolCall(f"c{at}", "look_up", {"at": at}), ToolCall(f"d{at}", "look_up", {"at": at})]
    return Message.user(f"u{at} " + "word " * 20), [
        Message.assistant("let me see", tool_calls=calls),
        Message.tool(f"c{at}", "found " * 20),
        Message.tool(f"d{at}", "found " * 20),
        Message.assistant(f"a{at} " + "word " * 20),
    ]


def _uneven(at: int) -> _Turn:
    chance = random.Random(at)
    return Message.user(f"u{at} " + "word " * chance.randint(1, 100)), [
        Message.assistant(f"a{at} " + "word " * chance.randint(1, 200))
    ]


_KINDS: Final[dict[str, _Make]] = {"plain": _plain, "tools": _with_tools, "uneven": _uneven}
each_kind = pytest.mark.parametrize("kind", _KINDS)


def _cost(make: _Make, turns: int) -> int:
    made = [make(at) for at in range(turns)]
    return sum(tokens.of_message(m) for user, rest in made for m in (user, *rest))


def _lines(window: Window) -> list[str]:
    return [json.dumps(message) for message in window.messages]


def _sent(
    session: Session, make: _Make, turns: int = _TURNS, **ask: Unpack[_Ask]
) -> list[list[str]]:
    """Hold a conversation; give what is sent for each reply."""
    sent = []
    for at in range(turns):
        user, rest = make(at)
        session.append(user)
        sent.append(_lines(session.window(**ask)))
        session.append(*rest)
    return sent


def _moves(sent: Sequence[Sequence[str]]) -> list[int]:
    """Say before which requests the beginning moved."""
    return [at for at, (old, new) in enumerate(pairwise(sent), 1) if old[0] != new[0]]


# ------------------------------------------------------------------------------- while all fits


@each_provider
@each_kind
def test_asked_again_it_gives_the_same_bytes(
    session: Session, provider: Provider, kind: str
) -> None:
    for at in range(30):
        user, rest = _KINDS[kind](at)
        session.append(user, *rest)
    asked: list[_Ask] = [{}, {"max_tokens": 900}, {"max_messages": 9}]
    for ask in asked:
        ask["provider"] = provider
        windows = [session.window(**ask) for _ in range(2)]
        first, again = (json.dumps([list(window), window.system]) for window in windows)
        assert first == again


def test_another_process_of_the_store_gives_the_same_bytes(tmp_path: Path) -> None:
    """From memory or from the file."""
    with holdfast.open(tmp_path / "a.db") as store:
        session = store.session("talk")
        for at in range(30):
            user, rest = _with_tools(at)
            session.append(user, *rest)
        before = session.window(max_tokens=900)
    with holdfast.open(tmp_path / "a.db") as store:
        assert _lines(store.session("talk").window(max_tokens=900)) == _lines(before)


@each_provider
@each_kind
def test_while_all_fits_each_request_begins_with_the_one_before(
    session: Session, provider: Provider, kind: str
) -> None:
    sent = _sent(session, _KINDS[kind], 40, provider=provider, max_tokens=10**6)
    for old, new in pairwise(sent):
        assert new[: len(old)] == old


@each_provider
def test_each_step_of_a_turn_begins_with_the_step_before(
    session: Session, provider: Provider
) -> None:
    """Call, result, call, result: asked whenever a result is there."""
    sent = []
    session.append(Message.user("go"))
    for at in range(20):
        sent.append(_lines(session.window(provider=provider)))
        call = ToolCall(f"c{at}", "look_up", {"at": at})
        session.append(Message.assistant(tool_calls=[call]), Message.tool(call.id, "found"))
    for old, new in pairwise(sent):
        assert new[: len(old)] == old


def test_a_mark_of_the_time_does_not_change(session: Session) -> None:
    sent = _sent(session, _plain, 20, timestamps=True)
    assert sent[-1][: len(sent[0])] == sent[0]


# --------------------------------------------------------------------------- when it must be cut


@pytest.mark.parametrize(
    ("kind", "provider"),
    [*(("plain", provider) for provider in get_args(Provider)), ("tools", "anthropic")],
)
def test_when_it_is_cut_the_beginning_moves_in_steps(
    session: Session, provider: Provider, kind: str
) -> None:
    """150 turns of which 50 fit: about every eighth moves it; else only the end changes."""
    make = _KINDS[kind]
    sent = _sent(session, make, provider=provider, max_tokens=_cost(make, _FIT))
    moves = _moves(sent)
    assert moves, "100 turns have to go"
    assert moves[0] >= _FIT - 1, "nothing moves while all fits"
    assert len(moves) <= (_TURNS - _FIT) / 7
    for at, (old, new) in enumerate(pairwise(sent), 1):
        if at not in moves:
            assert new[: len(old)] == old


@pytest.mark.parametrize("most", [16, 50, 100])
def test_with_a_number_of_messages_it_moves_in_steps_too(session: Session, most: int) -> None:
    """By an eighth of the window at least, taken all in all."""
    sent = _sent(session, _plain, max_messages=most)
    moves = _moves(sent)
    assert moves
    assert len(moves) <= (2 * _TURNS - most) / (most / 8)
    for at, (old, new) in enumerate(pairwise(sent), 1):
        if at not in moves:
            assert new[: len(old)] == old


@pytest.mark.parametrize("fit", [15, 45, 100])
def test_uneven_messages_move_it_seldom_and_never_back(session: Session, fit: int) -> None:
    """However many happen to fit just now."""
    sent = _sent(session, _uneven, max_tokens=_cost(_uneven, fit))
    moves = _moves(sent)
    assert moves
    assert len(moves) <= (_TURNS - fit) * 16 / fit
    for at, (old, new) in enumerate(pairwise(sent), 1):
        if at in moves:
            assert new[0] in old, "what was cut stays cut"
        else:
            assert new[: len(old)] == old


def test_within_one_long_turn_it_moves_in_steps(session: Session) -> None:
    """The user's message stays first; of the exchanges behind it the oldest go, many at once."""
    session.append(Message.user("go"))
    sent = []
    for at in range(_TURNS):
        call = ToolCall(f"c{at}", "look_up", {"at": at})
        session.append(Message.assistant(tool_calls=[call]), Message.tool(call.id, "word " * 20))
        sent.append(_lines(session.window(max_tokens=2_000)))
    assert all("go" in lines[0] for lines in sent)
    moves = [at for at, (old, new) in enumerate(pairwise(sent), 1) if old[:2] != new[:2]]
    assert moves
    assert len(moves) <= _TURNS / 4
    for at, (old, new) in enumerate(pairwise(sent), 1):
        if at not in moves:
            assert new[: len(old)] == old


def test_the_first_users_message_stays_in_front_of_a_moving_window(session: Session) -> None:
    sent = _sent(session, _plain, max_messages=60, keep_first_user=True)
    assert {lines[0] for lines in sent} == {sent[0][0]}
    moves = [at for at, (old, new) in enumerate(pairwise(sent), 1) if old[:2] != new[:2]]
    assert len(moves) <= 2 + _TURNS / 3
    for at, (old, new) in enumerate(pairwise(sent), 1):
        if at not in moves:
            assert new[: len(old)] == old


def test_behind_a_summary_it_only_grows(session: Session) -> None:
    for at in range(30):
        user, rest = _plain(at)
        session.append(user, *rest)
    session.summarize("all about words")
    sent = _sent(session, _plain, 20, max_tokens=2_000)
    assert "all about words" in sent[0][0]
    for old, new in pairwise(sent):
        assert new[: len(old)] == old


def test_a_fork_sends_what_its_parent_sent(session: Session) -> None:
    """Its first request is read from the parent's cache."""
    for at in range(100):
        user, rest = _with_tools(at)
        session.append(user, *rest)
    fork = session.fork()
    assert _lines(fork.window(max_tokens=3_000)) == _lines(session.window(max_tokens=3_000))
