"""Whatever happened to a session, its windows keep every promise.

The sessions are made by the operations, with messages of every kind (see `worlds`). What a window
must contain is computed here independently, from the messages alone: which of them may be sent,
which result belongs to which call, which is the newest user message.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypedDict, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from holdfast import Message, Session, ToolCall
from holdfast.errors import Damaged
from holdfast.testing import legality
from holdfast.values import File, Provider, Raw, Text, Window
from holdfast.windows import build
from tests.store_urls import Kind, place
from tests.windows import worlds
from tests.windows.worlds import marks, number_of

_FIRST_PAGE: Final = 64
_OVER: Final = "over the budget"
_BEFORE: Final = "before the first user message"
_CUT_WITHIN: Final = "older exchanges of the newest turn are left out"
_ECHO: Final = re.compile(r"(?m)^[ \t]*\[(image|file|tool call|\d{4}-)[^\]\n]*\][ \t]*")
_slowly = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


class _Ask(TypedDict, total=False):
    provider: Provider
    max_tokens: int | None
    reserve: int
    max_messages: int | None
    keep_first_user: bool
    system: str | None
    timestamps: bool


_asks: st.SearchStrategy[_Ask] = st.builds(
    _Ask,
    provider=st.sampled_from(get_args(Provider)),
    max_tokens=st.none() | st.none() | st.integers(1, 3_000),
    reserve=st.sampled_from([0, 0, 0, 10, 5_000]),
    max_messages=st.none() | st.none() | st.integers(1, 20),
    keep_first_user=st.booleans(),
    system=st.sampled_from([None, None, "be brief", "", " ", "\ud800", "word " * 300]),
    timestamps=st.booleans(),
)
_some_asks = st.lists(_asks, min_size=3, max_size=3)


# ------------------------------------------------------------------------ what must be in a window


class _Said(msgspec.Struct):
    """A message, as far as windows go.

    `must`: something of it can be sent to whatever provider. `may`: something of it can be sent
    that has no mark. `words`: there are words in it, and not only files.
    """

    seq: int
    role: str
    number: int | None
    eligible: bool
    must: bool
    may: bool
    words: bool
    injected: bool

    @property
    def opens(self) -> bool:
        """True if this is surely found as the first thing that a user said.

        Files without words are looked for only among the first messages.
        """
        return self.must and (self.words or self.seq <= _FIRST_PAGE)


def _visible(message: Message, text: str) -> bool:
    """Return whether a text is sent, and with its mark."""
    said = _ECHO.sub("", text) if message.role == "assistant" else text
    return bool(marks(said))


def _must(message: Message) -> bool:
    if message.role not in {"user", "assistant", "system"}:
        return False
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    files = any(isinstance(part, File) for part in message.parts)
    calls = [call for call in message.tool_calls if call.name.strip()]
    called = message.role == "assistant" and bool(marks(repr(_first_of_each(calls))))
    return called or files or any(_visible(message, text) for text in texts)


def _may(message: Message) -> bool:
    """Return whether there is more to it than blank text."""
    if message.status == "partial" and message.role == "assistant":
        return True  # It says that it was cut off.
    return any(not isinstance(part, Text) or part.text.strip() for part in message.parts)


def _first_of_each(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Leave out calls with an id that a call before them has."""
    found: dict[str, ToolCall] = {}
    for call in calls:
        found.setdefault(call.id, call)
    return list(found.values())


def _is_eligible(message: Message, covered: int) -> bool:
    flagged = any(message.metadata.get(flag) for flag in ("hidden", "command"))
    readable = message.status in {"complete", "partial"}
    return readable and not flagged and message.role != "summary" and (message.seq or 0) > covered


def _summary(history: Sequence[Message]) -> tuple[Message | None, int]:
    """Return the summary that counts, and up to which seq it stands for the history."""
    for message in reversed(history):
        if message.role == "summary" and message.status == "complete":
            covered = next((m.seq for m in history if m.id == message.covers), None)
            return message, covered or (message.seq or 1) - 1
    return None, 0


class _History:
    """A session's messages, and what can be said of them before any window is made."""

    def __init__(self, session: Session) -> None:
        self.messages = session.messages()
        self.summary, self.covered = _summary(self.messages)
        self.said = [self._said(message) for message in self.messages]
        self.answers = set(self._answers())

    def _said(self, message: Message) -> _Said:
        return _Said(
            seq=message.seq or 0,
            role=message.role,
            number=number_of(message),
            eligible=_is_eligible(message, self.covered),
            must=_is_eligible(message, 0) and _must(message),
            may=_is_eligible(message, 0) and _may(message),
            words=any(isinstance(part, Text) and marks(part.text) for part in message.parts),
            injected=bool(message.metadata.get("injected")),
        )

    def _answers(self) -> Iterator[tuple[int, int]]:
        """Return each message with a result that must be sent, and the one with its call."""
        waiting: dict[str, int] = {}
        for message, said in zip(self.messages, self.said, strict=True):
            if not said.eligible:
                continue
            if message.role == "assistant":
                waiting |= {call.id: said.seq for call in message.tool_calls if call.name.strip()}
            for result in message.tool_results:
                asked = waiting.pop(result.call_id, None)
                shown = any(kind == "r" for kind, _ in marks(repr(result)))
                if asked is not None and shown:
                    yield said.seq, asked


class _Sent:
    """What a window holds, by the seqs of the messages it came from."""

    def __init__(self, window: Window, history: _History) -> None:
        seqs = {said.number: said.seq for said in history.said if said.number is not None}
        inside = marks(json.dumps(window.messages))
        apart = marks(json.dumps(window.system))
        self.inside = [(kind, seqs[n]) for kind, n in inside]
        self.spoken = [seqs[n] for kind, n in inside if kind in "mt"]
        self.apart = [seqs[n] for kind, n in apart if kind in "mt"]
        self.said = {seqs[n] for kind, n in [*inside, *apart] if kind == "m"}
        self.answers = {seqs[n] for kind, n in inside if kind == "r"}
        self.notes = [seqs[n] for kind, n in [*inside, *apart] if kind == "s"]
        self.all = {*self.said, *self.answers, *self.spoken, *self.apart, *self.notes}


# --------------------------------------------------------------------------------------- the checks


def _out(window: Window) -> dict[str, int]:
    return {left.why: left.count for left in window.left_out}


def _check(history: _History, window: Window, least: Window, ask: _Ask) -> None:
    sent = _Sent(window, history)
    assert legality.problems(window.provider, window.messages, window.system) == [] or (
        not window.messages
    )
    _check_order(history, sent, ask)
    _check_pairs(history, sent)
    _check_nothing_else(history, sent, ask)
    _check_counts(history, sent, window)
    _check_sources(history, window)
    _check_presence(history, sent, window, ask)
    if not _is_limited(ask):
        _check_whole(history, sent, window)
    _check_limits(history, sent, window, least, ask)
    _check_least(history, _Sent(least, history), ask)


def _check_order(history: _History, sent: _Sent, ask: _Ask) -> None:
    """What was said is in order; the first user's message may stand before all others."""
    spoken = sent.spoken
    if ask.get("keep_first_user") and spoken and spoken[0] in _firsts(history):
        spoken = [seq for seq in spoken if seq != spoken[0]]
    assert spoken == sorted(spoken)
    assert sent.apart == sorted(sent.apart)
    assert len(set(sent.notes)) <= 1
    if sent.notes:
        assert history.summary is not None
        assert set(sent.notes) == {history.summary.seq}


def _check_pairs(history: _History, sent: _Sent) -> None:
    """A result stands directly behind its own call, also when others have calls of this id."""
    said_last = 0
    for kind, seq in sent.inside:
        if kind == "r":
            calls = {call for answer, call in history.answers if answer == seq}
            assert said_last in calls or not calls <= sent.said, (seq, said_last, calls)
        else:
            said_last = seq


def _check_counts(history: _History, sent: _Sent, window: Window) -> None:
    """Every message is sent or counted as left out; only one that has no mark cannot be told."""
    out, total = sum(_out(window).values()), len(history.messages)
    assert len(sent.all) + out <= total, (sorted(sent.all), _out(window), total)
    told = sent.all | {s.seq for s in history.said if not s.eligible} - _firsts(history)
    unseen = sum(1 for s in history.said if s.may and s.seq not in told)
    assert len(sent.all) + out + unseen >= total, (sorted(sent.all), _out(window), total)


def _check_sources(history: _History, window: Window) -> None:
    """Each item names the messages whose text it has; every message is named or counted."""
    assert len(window.sources) == len(window.messages)
    ids = {said.number: m.id for said, m in zip(history.said, history.messages, strict=True)}
    items_of = Counter(source for made_of in window.sources for source in made_of)
    for item, made_of in zip(window.messages, window.sources, strict=True):
        assert {ids[number] for _, number in marks(json.dumps(item))} <= set(made_of)
        assert len(set(made_of)) == len(made_of)
    for message in history.messages:
        # A part is in one item, and so is the mark of a reply that was cut off.
        assert items_of[message.id] <= max(1, len(message.parts) + (message.status == "partial"))
    apart = {ids[number] for kind, number in marks(json.dumps(window.system)) if kind == "m"}
    assert items_of.keys() <= {message.id for message in history.messages}
    told = len(items_of.keys() | apart) + sum(_out(window).values())
    unmarked = sum(1 for said in history.said if said.role == "system" and said.number is None)
    assert len(history.messages) - (unmarked if window.system else 0) <= told
    assert told <= len(history.messages)


def _firsts(history: _History) -> set[int]:
    """Name what may be the first user's message: up to the first one that surely is."""
    users = [s for s in history.said if s.role == "user" and not s.injected and s.may]
    first = next((at for at, said in enumerate(users) if said.opens), len(users))
    return {said.seq for said in users[: first + 1]}


def _check_nothing_else(history: _History, sent: _Sent, ask: _Ask) -> None:
    """What was not meant for models, cannot be read or is summed up stays out."""
    allowed = {said.seq for said in history.said if said.eligible}
    if ask.get("keep_first_user"):
        allowed |= _firsts(history)
    assert sent.all - set(sent.notes) <= allowed


def _first_user(history: _History) -> _Said | None:
    users = (s for s in history.said if s.role == "user" and not s.injected)
    return next((said for said in users if said.opens), None)


def _check_presence(history: _History, sent: _Sent, window: Window, ask: _Ask) -> None:
    """From the first message that is kept on, all that can be sent is there."""
    eligible = [said for said in history.said if said.eligible]
    asked = [s for s in eligible if s.role == "user" and s.must]
    newest = asked[-1] if asked else None
    if newest is not None and not any(
        s.role == "user" and s.seq > newest.seq and s.may for s in eligible
    ):
        assert newest.seq in sent.said, "the newest user message is always in"
    if ask.get("keep_first_user") and (first := _first_user(history)):
        earlier = [s for s in history.said if s.role == "user" and s.seq < first.seq]
        assert first.seq in sent.said or any(s.may for s in earlier)
    missing = [s for s in eligible if s.must and s.seq not in sent.said]
    kept = [s.seq for s in eligible if s.seq in sent.said and s.role != "system"]
    if _CUT_WITHIN in window.notes and newest is not None:
        kept = [seq for seq in kept if seq > newest.seq]
    elif ask.get("keep_first_user") and _out(window).get(_OVER):
        kept = kept[1:]  # What comes behind the first user message is cut.
    if kept:
        assert not [s.seq for s in missing if s.seq > kept[0]], "a hole in the window"
    for seq, call in history.answers:
        if call in sent.said:
            assert seq in sent.answers, (seq, call)


def _is_limited(ask: _Ask) -> bool:
    return ask.get("max_tokens") is not None or ask.get("max_messages") is not None


def _check_whole(history: _History, sent: _Sent, window: Window) -> None:
    """Without limits all is there; why something is not can be said of each message alone."""
    out = _out(window)
    assert _OVER not in out
    missing = [s.seq for s in history.said if s.eligible and s.must and s.seq not in sent.said]
    assert len(missing) <= out.get(_BEFORE, 0), (missing, out)
    behind = [m for m in history.messages if (m.seq or 0) > history.covered]
    flagged = [m for m in behind if m.metadata.get("hidden") or m.metadata.get("command")]
    assert out.get("not for models", 0) == len(flagged)
    for status in ("damaged", "erased"):
        assert out.get(status, 0) == sum(1 for m in behind if m.status == status)


def _check_limits(history: _History, sent: _Sent, window: Window, least: Window, ask: _Ask) -> None:
    """Within the limits; over them is only the least that can be sent, and it is told."""
    most, many = ask.get("max_tokens"), ask.get("max_messages")
    if most is not None and window.tokens > max(0, most - ask.get("reserve", 0)):
        assert window.tokens == least.tokens
        assert any("over the budget of tokens" in note for note in window.notes)
        assert sent.all == _Sent(least, history).all
    if many is not None and len(sent.all) > many:
        assert any("more messages than `max_messages`" in note for note in window.notes)
        assert sent.all == _Sent(least, history).all


def _check_least(history: _History, least: _Sent, ask: _Ask) -> None:
    """What is always sent: the newest thing a user said, one exchange behind it, and notes."""
    always = {*least.notes, *(_firsts(history) if ask.get("keep_first_user") else ())}
    rest = least.all - always
    asked = {s.seq for s in history.said if s.eligible and s.role == "user" and s.may}
    newest = max(asked.intersection(least.spoken), default=0)
    assert all(seq >= newest for seq in rest)
    said = rest.intersection(least.spoken) - {newest}
    # A call may have no mark of its own: it is known by its result.
    called = {max(c for r, c in history.answers if r == seq) for seq in rest - said - {newest}}
    assert _is_one_exchange(history, said | called)


def _is_one_exchange(history: _History, seqs: set[int]) -> bool:
    """Return whether these are one message at most, or one with calls and more of those it made."""
    said = [message for message in history.messages if message.seq in seqs]
    return len(said) <= 1 or (
        bool(said[0].tool_calls)
        and len({message.turn_id for message in said}) == 1
        and all(isinstance(part, ToolCall | Raw) for m in said[1:] for part in m.parts)
    )


def _limited(ask: _Ask, max_tokens: int | None, max_messages: int | None) -> _Ask:
    return {**ask, "max_tokens": max_tokens, "max_messages": max_messages}


def _bytes(window: Window) -> bytes:
    return msgspec.json.encode(window)


# ----------------------------------------------------------------------------------- the properties


@settings(_slowly, max_examples=_slowly.max_examples * 3)
@given(steps=worlds.steps, asks=_some_asks)
def test_whatever_happened_a_window_keeps_what_is_promised(
    steps: list[worlds.Step], asks: list[_Ask]
) -> None:
    """Legal, in order, complete or counted, and within the limits; and nothing changes.

    Over the limits is only a window from which nothing more can be left out, and it says so.
    """
    with worlds.memory_world() as world:
        session = worlds.build(world, steps)
        history, head = _History(session), session.head()
        for ask in asks:
            window = session.window(**ask)
            event(f"messages: {min(len(window), 10)}")
            for why in _out(window):
                event(why)
            least = session.window(**_limited(ask, 1, 1))
            _check(history, window, least, ask)
            assert _bytes(session.window(**ask)) == _bytes(window)
        assert session.messages() == history.messages
        assert session.head() == head


@_slowly
@given(steps=worlds.steps, ask=_asks)
def test_what_all_fits_is_the_same_without_limits(steps: list[worlds.Step], ask: _Ask) -> None:
    with worlds.memory_world() as world:
        session = worlds.build(world, steps)
        whole = session.window(**_limited(ask, None, None))
        enough = max(1, whole.tokens + ask["reserve"])
        assert session.window(**_limited(ask, enough, 10_000)) == whole


@_slowly
@given(
    steps=worlds.steps,
    ask=_asks,
    more=st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=3),
)
def test_what_is_appended_is_added_at_the_end(
    steps: list[worlds.Step], ask: _Ask, more: list[str]
) -> None:
    """But for the last item, which may take the new one in; as long as nothing is cut for it."""
    with worlds.memory_world() as world:
        session = worlds.build(world, steps)
        before = session.window(**ask)
        sent = _Sent(before, _History(session))
        with suppress(Damaged):  # What is known to be damaged accepts no more.
            for role in more:
                said = Message(role=role, parts=(Text("@ more"),))  # type: ignore[arg-type]
                session.append(world.stamped(said))
        after = session.window(**ask)
        still = _Sent(after, _History(session))
        if before.notes or after.notes or not sent.all <= still.all or not before.messages:
            return
        if _out(before) != _out(after):
            return
        event("nothing was cut")
        known = len(before) - 1
        assert after.messages[:known] == before.messages[:known]
        assert after.system == before.system


@_slowly
@given(steps=worlds.steps, ask=_asks, page=st.integers(1, 9))
def test_it_does_not_matter_in_which_pages_it_is_read(
    steps: list[worlds.Step], ask: _Ask, page: int
) -> None:
    """Only why something is left out that was not read cannot be told."""
    ask = {**ask, "keep_first_user": False}  # It is looked for in the first page.
    with worlds.memory_world() as world, pytest.MonkeyPatch.context() as patch:
        session = worlds.build(world, steps)
        at_once = session.window(**ask)
        patch.setattr(build, "_FIRST_PAGE", page)
        paged = session.window(**ask)
        assert paged.messages == at_once.messages
        assert (paged.tokens, paged.notes) == (at_once.tokens, at_once.notes)
        assert sum(_out(paged).values()) == sum(_out(at_once).values())


@settings(_slowly, max_examples=_slowly.max_examples // 3)
@given(steps=worlds.steps, asks=_some_asks)
def test_a_file_gives_the_windows_that_memory_gives(
    steps: list[worlds.Step], asks: list[_Ask]
) -> None:
    _compare("sqlite", steps, asks)


@settings(_slowly, max_examples=_slowly.max_examples // 6)
@given(steps=worlds.steps, asks=_some_asks)
def test_a_postgres_server_gives_the_windows_that_memory_gives(
    steps: list[worlds.Step], asks: list[_Ask]
) -> None:
    _compare("postgres", steps, asks)


def _compare(kind: Kind, steps: list[worlds.Step], asks: list[_Ask]) -> None:
    with TemporaryDirectory() as folder, place(kind, Path(folder)) as url:
        with worlds.memory_world() as one, worlds.world_at(url) as other:
            sessions = [worlds.build(world, steps) for world in (one, other)]
            for ask in asks:
                first, second = (worlds.with_seqs(s.window(**ask), s) for s in sessions)
                assert first == second
