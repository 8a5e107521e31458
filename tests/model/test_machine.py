"""The whole API, driven at random, against a model made of lists and dicts.

The model says what must be in each session; after every step all that can be read is compared with
it. A crash is a turn that nobody ends and whose lease runs out; reopening closes the store with
whatever is open. What a crash may keep of a streamed reply lies between what was flushed and what
was written, because a timer flushes, too: there the model takes what it finds, if it fits.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.backends.base import Backend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.draft import Draft
from holdfast.errors import HeadMoved, IdConflict, SessionBusy, TurnLost
from holdfast.ids import message_id
from holdfast.records import JSON, Head, Message, Recovered, ToolCall, Usage
from holdfast.session import Session
from holdfast.settings import Location
from holdfast.store import Store
from holdfast.testing.conformance import SetClock
from holdfast.turn import Turn
from tests.model import strategies as some

_LEASE = 600.0
_KEYS = ("one", "two\0\ud800")
keys = st.sampled_from(_KEYS)


@dataclass
class Said:
    """One message as the model has it."""

    id: str
    text: str
    turn: int | None = None
    status: str = "complete"
    calls: tuple[str, ...] = ()


@dataclass
class Open:
    """An open turn; its holder is gone after a reopening."""

    number: int
    turn: Turn | None
    tools: dict[str, str] = field(default_factory=dict)
    draft: Draft | None = None
    drafting: bool = False
    written: str = ""
    flushed: str = ""


@dataclass
class Model:
    """One session as it must be."""

    said: list[Said] = field(default_factory=list)
    batches: list[list[Message]] = field(default_factory=list)
    queue: list[Message] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    ledgers: list[dict[str, str]] = field(default_factory=list)
    open: Open | None = None
    lost: list[Turn] = field(default_factory=list)
    tokens: int = 0
    title: str | None = None
    by_user: bool = False
    metadata: dict[str, JSON] = field(default_factory=dict)

    def add(self, *said: Said) -> None:
        self.said += said

    @property
    def head(self) -> Head:
        return Head(1, len(self.said))


def _settle(tools: dict[str, str]) -> dict[str, str]:
    closed = {"running": "unknown", "called": "not_run"}
    return {name: closed.get(outcome, outcome) for name, outcome in tools.items()}


class Machine(RuleBasedStateMachine):
    """Steps that any number of clients could take; subclasses say where the store is."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock()
        self.store = Store(self.open_backend(), self.clock)
        self.models = {key: Model() for key in _KEYS}

    def open_backend(self) -> Backend:
        """Open the store, as it was left."""
        raise NotImplementedError

    def session(self, key: str) -> Session:
        """Open a session by its key."""
        return self.store.session(key)

    def teardown(self) -> None:
        self.store.close()

    # -------------------------------------------------------------------------------- append

    @rule(key=keys, texts=st.lists(some.texts, min_size=1, max_size=3), seen=st.booleans())
    def append(self, key: str, texts: list[str], seen: bool) -> None:
        model = self.models[key]
        batch = [Message.user(text, usage=Usage(1)) for text in texts]
        head = self.session(key).append(*batch, expect=model.head if seen else None)
        model.add(*(Said(m.id, m.text) for m in batch))
        model.batches.append(batch)
        model.tokens += len(batch)
        assert head == model.head

    @rule(key=keys, behind=st.integers(1, 3))
    def append_with_an_old_head(self, key: str, behind: int) -> None:
        model = self.models[key]
        old = Head(1, max(0, len(model.said) - behind))
        if old == model.head:
            old = Head(1, 99_999)
        with pytest.raises(HeadMoved) as refused:
            self.session(key).append(Message.user("late"), expect=old)
        assert refused.value.actual == model.head

    @rule(key=keys, data=st.data(), extra=st.booleans())
    def retry(self, key: str, data: st.DataObject, extra: bool) -> None:
        model = self.models[key]
        if not model.batches:
            return
        batch = data.draw(st.sampled_from(model.batches))
        new = [Message.assistant("new")] if extra else []
        head = self.session(key).append(*batch, *new)
        if new:
            model.add(Said(new[0].id, "new"))
            model.batches.append(new)
            assert head == model.head
        else:
            places = {said.id: seq for seq, said in enumerate(model.said, 1)}
            assert head == Head(1, places[batch[-1].id])

    @rule(key=keys, data=st.data())
    def conflict(self, key: str, data: st.DataObject) -> None:
        model = self.models[key]
        if not model.said:
            return
        said = data.draw(st.sampled_from(model.said))
        with pytest.raises(IdConflict):
            self.session(key).append(
                Message.user("first"), Message.system(said.text + "?", id=said.id)
            )

    # ---------------------------------------------------------------------------------- turns

    @rule(key=keys)
    def open_turn(self, key: str) -> None:
        model = self.models[key]
        if model.open is not None:
            with pytest.raises(SessionBusy):
                self.session(key).turn().__enter__()
            with pytest.raises(SessionBusy):
                self.session(key).recover()
            return
        turn = self.session(key).turn().__enter__()
        assert turn.recovered is None
        self._opened(model, turn)

    def _opened(self, model: Model, turn: Turn) -> None:
        model.turns.append("open")
        model.ledgers.append({})
        model.open = Open(len(model.turns), turn, model.ledgers[-1])

    def _held(self, key: str) -> tuple[Model, Open, Turn] | None:
        model = self.models[key]
        if model.open is None or model.open.turn is None:
            return None
        return model, model.open, model.open.turn

    @rule(key=keys, text=some.texts, calls=st.lists(st.sampled_from("abc"), unique=True))
    def say(self, key: str, text: str, calls: list[str]) -> None:
        if (held := self._held(key)) is None:
            return
        model, now, turn = held
        wanted = [ToolCall(call, "tool") for call in calls]
        given = turn.assistant(text, tool_calls=wanted, usage=Usage(2))
        model.add(Said(given.id, text, now.number, calls=tuple(calls)))
        model.tokens += 2
        for call in calls:
            now.tools.setdefault(call, "called")
        assert (given.seq, given.turn_id) == (len(model.said), turn.id)
        assert turn.add(given) == given

    @rule(key=keys, call=st.sampled_from("abcd"))
    def start_tool(self, key: str, call: str) -> None:
        if (held := self._held(key)) is None:
            return
        _, now, turn = held
        turn.tool_started(call)
        if now.tools.get(call, "called") == "called":
            now.tools[call] = "running"

    @rule(key=keys, call=st.sampled_from("abcd"), error=st.booleans())
    def answer(self, key: str, call: str, error: bool) -> None:
        if (held := self._held(key)) is None:
            return
        model, now, turn = held
        given = turn.tool(call, "result", error=error)
        now.tools[call] = "error" if error else "done"
        model.add(Said(given.id, "result", now.number))

    @rule(key=keys, text=some.texts.filter(bool), flush=st.booleans())
    def stream(self, key: str, text: str, flush: bool) -> None:
        if (held := self._held(key)) is None:
            return
        _, now, turn = held
        if now.draft is None:
            now.draft, now.drafting, now.written, now.flushed = turn.stream(), True, "", ""
        now.draft.write(text)
        now.written += text
        if flush:
            now.draft.flush()
            now.flushed = now.written

    @rule(key=keys)
    def close_draft(self, key: str) -> None:
        if (held := self._held(key)) is None or held[1].draft is None:
            return
        model, now, _ = held
        assert now.draft is not None
        message = now.draft.close()
        assert message is not None
        model.add(Said(message.id, now.written, now.number))
        now.draft, now.drafting = None, False

    @rule(key=keys, how=st.sampled_from(["sealed", "cancelled", "failed"]))
    def end_turn(self, key: str, how: str) -> None:
        if (held := self._held(key)) is None:
            return
        model, now, turn = held
        if how == "sealed":
            turn.__exit__(None, None, None)
        elif how == "cancelled":
            turn.cancel("enough")
        else:
            turn.fail("oh")
        if now.draft is not None:
            model.add(Said(now.draft.id, now.written, now.number, "partial"))
        self._ended(model, now, how)

    def _ended(self, model: Model, now: Open, how: str) -> None:
        model.turns[-1] = how
        model.ledgers[-1] = _settle(now.tools)
        if now.turn is not None:
            model.lost.append(now.turn)
        model.open = None

    @rule(key=keys)
    def write_after_the_end(self, key: str) -> None:
        for turn in self.models[key].lost[-2:]:
            with pytest.raises(TurnLost):
                turn.user("late")
            with pytest.raises(TurnLost):
                turn.take_queued()

    # ----------------------------------------------------------------------- crash and reopen

    @rule(key=keys, by=st.sampled_from(["turn", "recover"]))
    def crash(self, key: str, by: str) -> None:
        """The lease of every open turn runs out; this session is taken over."""
        model = self.models[key]
        if model.open is None:
            assert self.session(key).recover() is None
            return
        self.clock.advance(_LEASE + 1)
        assert self.session(key).interrupted
        turn = self.session(key).turn().__enter__() if by == "turn" else None
        found = turn.recovered if turn else self.session(key).recover()
        assert found is not None
        self._recovered(key, model, model.open, found)
        if turn is not None:
            self._opened(model, turn)
        # The leases of the others ran out, too; taking over everything keeps the model simple.
        for other, its in self.models.items():
            if other != key and its.open is not None:
                again = self.session(other).recover()
                assert again is not None
                self._recovered(other, its, its.open, again)

    def _recovered(self, key: str, model: Model, now: Open, found: Recovered) -> None:
        settled = _settle(now.tools)
        assert set(found.unknown_tools) == {n for n, o in now.tools.items() if o == "running"}
        assert set(found.not_run_tools) == {n for n, o in now.tools.items() if o == "called"}
        if found.partial is not None:
            text = found.partial.text
            assert now.drafting
            assert now.written.startswith(text)
            assert text.startswith(now.flushed)
            model.add(Said(found.partial.id, text, now.number, "partial"))
        else:
            assert not now.flushed or not now.drafting
        self._ended(model, now, "interrupted")
        assert model.ledgers[-1] == settled

    @rule()
    def reopen(self) -> None:
        """End the process as far as the store can tell; turns stay open without a holder."""
        if not self.reopens:
            return
        self.store.close()
        self.store = Store(self.open_backend(), self.clock)
        for model in self.models.values():
            model.lost.clear()
            if model.open is not None:
                model.open.turn = model.open.draft = None

    reopens = True

    # ------------------------------------------------------------------------ queue and update

    @rule(key=keys, text=some.texts, twice=st.booleans())
    def enqueue(self, key: str, text: str, twice: bool) -> None:
        model = self.models[key]
        message = Message.user(text, id=message_id())
        for _ in range(1 + twice):
            self.session(key).enqueue(message)
        model.queue.append(message)

    @rule(key=keys)
    def take_queued(self, key: str) -> None:
        if (held := self._held(key)) is None:
            return
        model, now, turn = held
        taken = turn.take_queued()
        assert [(m.id, m.text) for m in taken] == [(m.id, m.text) for m in model.queue]
        model.add(*(Said(m.id, m.text, now.number) for m in model.queue))
        model.queue.clear()

    @rule(key=keys, title=st.none() | some.names, automatic=st.booleans())
    def retitle(self, key: str, title: str | None, automatic: bool) -> None:
        model = self.models[key]
        if automatic:
            self.session(key).update(auto_title=title)
            if model.by_user:
                return
        else:
            self.session(key).update(title=title)
            model.by_user = title is not None
        model.title = title

    @rule(key=keys, changes=st.dictionaries(st.sampled_from("xyz\0"), some.json_values))
    def annotate(self, key: str, changes: dict[str, JSON]) -> None:
        self.session(key).update(metadata=changes)
        merged = {**self.models[key].metadata, **changes}
        self.models[key].metadata = {k: v for k, v in merged.items() if v is not None}

    # ------------------------------------------------------------------------------ comparing

    @invariant()
    def all_is_as_it_must_be(self) -> None:
        for key, model in self.models.items():
            session = self.session(key)
            found = session.messages()
            assert [m.seq for m in found] == list(range(1, len(model.said) + 1))
            turn_ids = {n: f"{session.id}.{n}" for n in range(1, len(model.turns) + 1)}
            assert [(m.id, m.text, m.status, m.turn_id) for m in found] == [
                (s.id, s.text, s.status, None if s.turn is None else turn_ids[s.turn])
                for s in model.said
            ]
            self._compare_rest(session, model)

    def _compare_rest(self, session: Session, model: Model) -> None:
        info, turns = session.info(), session.turns()
        assert session.head() == model.head
        assert [t.state for t in turns] == model.turns
        assert [{r.call_id: r.outcome for r in t.tools} for t in turns] == model.ledgers
        assert [(q.id, q.message.text) for q in session.queued()] == [
            (m.id, m.text) for m in model.queue
        ]
        assert (info.title, info.messages, info.turns) == (
            model.title,
            len(model.said),
            len(model.turns),
        )
        assert info.metadata == model.metadata
        assert info.state == ("done" if model.open is None else "open")
        assert info.usage.input == session.usage().usage.input == model.tokens
        assert sum(t.usage.input for t in turns) <= model.tokens

    @precondition(lambda self: sum(len(m.said) for m in self.models.values()) > 3)
    @rule()
    def verify(self) -> None:
        assert self.store.verify() == []
        assert self.store.damage == []


class MemoryMachine(Machine):
    """In memory, where nothing can be reopened."""

    reopens = False

    def open_backend(self) -> Backend:
        location = Location("memory", "", lease=_LEASE)
        return MemoryBackend(location, tenant="t", readonly=False, clock=self.clock)


class SQLiteMachine(Machine):
    """In a file of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-model-"))
        super().__init__()

    def open_backend(self) -> Backend:
        location = Location("sqlite", str(self._folder / "store.db"), lease=_LEASE)
        return SQLiteBackend(location, tenant="t", durability="process", clock=self.clock)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self._folder)


_EXAMPLES = settings().max_examples
_HOW = settings(max_examples=max(20, _EXAMPLES // 4), stateful_step_count=30)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = _HOW
TestSQLite = SQLiteMachine.TestCase
TestSQLite.settings = _HOW
