"""Steps within a turn, and what a crash leaves of one."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.errors import (
    SessionBusy,
    TurnLost,
)
from holdfast.store import Store
from holdfast.turn import Turn
from holdfast.values import Head, Message, Usage
from tests.model import strategies as some
from tests.model.driver import (
    LEASE,
    Driver,
    Open,
    which,
)
from tests.model.reference import Model, Said, bare


def settle(tools: dict[str, str]) -> dict[str, str]:
    closed = {"running": "unknown", "called": "not_run"}
    return {name: closed.get(outcome, outcome) for name, outcome in tools.items()}


def is_working(driver: Driver) -> bool:
    """True if any turn is open, which most of these steps need."""
    return bool(driver.open)


class Turning(Driver):
    """Turns, drafts, crashes and reopening."""

    @rule(which=which)
    def open_turn(self, which: int) -> None:
        model = self.model(which)
        if model.id in self.open:
            with pytest.raises(SessionBusy):
                self.session(model).turn().__enter__()
            with pytest.raises(SessionBusy):
                self.session(model).recover()
            return
        turn = self.session(model).turn().__enter__()
        assert turn.recovered is None
        self._opened(model, turn)

    def _opened(self, model: Model, turn: Turn) -> None:
        model.turns.append("open")
        model.spent.append(0)
        model.ledgers.append({})
        self.open[model.id] = Open(len(model.turns), turn, model.ledgers[-1])
        self.world.touch(model)

    def _held(self, which: int) -> tuple[Model, Open, Turn] | None:
        """Return one of the held turns."""
        held = [name for name, now in self.open.items() if now.turn is not None]
        if not held:
            return None
        model = self.world.models[held[which % len(held)]]
        now = self.open[model.id]
        assert now.turn is not None
        return model, now, now.turn

    def _add(self, model: Model, now: Open, *messages: Message) -> list[Said]:
        """Add messages of a turn to the model."""
        added = model.append(*messages, turn=now.number)
        waiting = {name for name, outcome in now.tools.items() if outcome in {"called", "running"}}
        model.awaited = waiting
        self.world.touch(model)
        return added

    @rule(which=which, data=st.data(), how=st.sampled_from(["sealed", "cancelled", "failed"]))
    def work(self, which: int, data: st.DataObject, how: str) -> None:
        """Run a whole turn: a question, a reply that calls tools, some results, another reply."""
        model = self.model(which)
        if model.id in self.open:
            return
        self._opened(model, self.session(model).turn().__enter__())
        at = [name for name, now in self.open.items() if now.turn].index(model.id)
        self.ask(at, data.draw(some.texts))
        self.say(at, data, data.draw(some.texts))
        for _ in range(data.draw(st.integers(0, 2))):
            self.answer(at, data, error=False)
        self.say(at, data, "done")
        self.end_turn(at, how)

    @precondition(is_working)
    @rule(which=which, data=st.data(), text=some.texts)
    def say(self, which: int, data: st.DataObject, text: str) -> None:
        if (held := self._held(which)) is None:
            return
        model, now, turn = held
        wanted = self.new_calls(data)
        given = turn.assistant(text, tool_calls=wanted, usage=Usage(2))
        now.tools.update({call.id: "called" for call in wanted})
        self._add(model, now, given)
        assert (given.seq, given.turn_id) == (len(model.said), turn.id)
        assert turn.add(given) == given

    @precondition(is_working)
    @rule(which=which, text=some.texts)
    def ask(self, which: int, text: str) -> None:
        if (held := self._held(which)) is None:
            return
        model, now, turn = held
        self._add(model, now, turn.user(text))

    def _call(self, now: Open, data: st.DataObject) -> str:
        """Return the id of a call of a turn, or one that does not exist."""
        return data.draw(st.sampled_from([*now.tools, *now.tools, f"stray{now.number}"]))

    @precondition(is_working)
    @rule(which=which, data=st.data())
    def start_tool(self, which: int, data: st.DataObject) -> None:
        if (held := self._held(which)) is None:
            return
        model, now, turn = held
        call = self._call(now, data)
        turn.tool_started(call)
        if now.tools.get(call, "called") == "called":
            now.tools[call] = "running"
        model.awaited |= {call} if now.tools[call] == "running" else set()

    @precondition(is_working)
    @rule(which=which, data=st.data(), error=st.booleans())
    def answer(self, which: int, data: st.DataObject, error: bool) -> None:
        if (held := self._held(which)) is None:
            return
        model, now, turn = held
        call = self._call(now, data)
        given = turn.tool(call, "result", error=error)
        now.tools[call] = "error" if error else "done"
        self._add(model, now, given)

    @precondition(is_working)
    @rule(which=which)
    def take_queued(self, which: int) -> None:
        if (held := self._held(which)) is None:
            return
        model, now, turn = held
        taken = turn.take_queued()
        if model.queue:
            added = self._add(model, now, *model.queue)
            assert [bare(message) for message in taken] == [one.message for one in added]
        else:
            assert taken == []
        model.queue.clear()

    @precondition(is_working)
    @rule(which=which, text=some.texts.filter(bool), flush=st.booleans())
    def stream(self, which: int, text: str, flush: bool) -> None:
        if (held := self._held(which)) is None:
            return
        _, now, turn = held
        if now.draft is None:
            now.draft, now.drafting, now.written, now.flushed = turn.stream(), True, "", ""
        now.draft.write(text)
        now.written += text
        if flush:
            now.draft.flush()
            now.flushed = now.written

    @precondition(is_working)
    @rule(which=which)
    def close_draft(self, which: int) -> None:
        if (held := self._held(which)) is None or held[1].draft is None:
            return
        model, now, _ = held
        assert now.draft is not None
        message = now.draft.close()
        assert message is not None
        assert message.text == now.written
        self._add(model, now, message)
        now.draft, now.drafting = None, False

    @precondition(is_working)
    @rule(which=which, how=st.sampled_from(["sealed", "cancelled", "failed"]))
    def end_turn(self, which: int, how: str) -> None:
        if (held := self._held(which)) is None:
            return
        model, now, turn = held
        if how == "sealed":
            turn.__exit__(None, None, None)
        elif how == "cancelled":
            turn.cancel("enough")
        else:
            turn.fail("oh")
        if now.draft is not None:
            (partial,) = self.session(model).messages(limit=1)
            assert (partial.text, partial.status) == (now.written, "partial")
            assert partial.id == now.draft.id
            self._add(model, now, partial)
        self._ended(model, now, how)

    def _ended(self, model: Model, now: Open, how: str) -> None:
        model.turns[-1] = how
        model.ledgers[-1] = settle(now.tools)
        model.awaited = set()
        if now.turn is not None:
            self.over.setdefault(model.id, []).append(now.turn)
        del self.open[model.id]
        self.world.touch(model)

    @rule(which=which)
    def write_after_the_end(self, which: int) -> None:
        for turn in self.over.get(self.model(which).id, [])[-2:]:
            with pytest.raises(TurnLost):
                turn.user("late")
            with pytest.raises(TurnLost):
                turn.take_queued()

    # ----------------------------------------------------------------------- crash and reopen

    @precondition(is_working)
    @rule(which=which, by=st.sampled_from(["turn", "recover", "clear", "undo", "rewind"]))
    def crash(self, which: int, by: str) -> None:
        """Expire the lease of every open turn; take over this session."""
        model = self.model(which)
        if model.id not in self.open:
            assert self.session(model).recover() is None
            return
        self.clock.advance(LEASE + 1)
        assert self.session(model).interrupted
        if by == "turn":
            turn = self.session(model).turn().__enter__()
            assert turn.recovered is not None
            self._recovered(model, turn.recovered.partial)
            self._opened(model, turn)
        elif by == "recover":
            self._recover(model)
        else:
            self._move_over(model, by)
        # The other leases expired, too; taking over everything keeps the model simple.
        for other in [self.world.models[id] for id in self.open if id != model.id]:
            self._recover(other)

    def _recover(self, model: Model) -> None:
        now = self.open[model.id]
        found = self.session(model).recover()
        assert found is not None
        assert set(found.unknown_tools) == {n for n, o in now.tools.items() if o == "running"}
        assert set(found.not_run_tools) == {n for n, o in now.tools.items() if o == "called"}
        self._recovered(model, found.partial)

    def _move_over(self, model: Model, by: str) -> None:
        """Move a head whose turn a crash left open: it is recovered first."""
        session, number, length = self.session(model), model.line.number, len(model.said)
        moves: dict[str, Callable[[], Head]] = {
            "clear": session.clear,
            "undo": session.undo,
            "rewind": lambda: session.rewind(0),
        }
        if by == "undo" and not model.said:
            by = "rewind"  # Whether there is something to undo depends on what was flushed.
        head = moves[by]()
        kept = session.messages(branch=number)
        self._recovered(model, kept[-1] if len(kept) > length else None)
        as_model: dict[str, Callable[[], None]] = {
            "clear": model.clear,
            "undo": lambda: model.undo(1),
            "rewind": lambda: model.rewind(0),
        }
        as_model[by]()
        assert head == model.head

    def _recovered(self, model: Model, partial: Message | None) -> None:
        now = self.open[model.id]
        if partial is not None:
            assert partial.status == "partial"
            assert now.drafting
            assert now.written.startswith(partial.text)
            assert partial.text.startswith(now.flushed)
            self._add(model, now, partial)
        else:
            assert not now.flushed or not now.drafting
        self._ended(model, now, "interrupted")

    @rule()
    def reopen(self) -> None:
        """Reopen the store, as after the end of a process; turns stay open without a holder."""
        if not self.reopens:
            return
        self.store.close()
        self.store = Store(self.open_backend(), self.clock)
        self.over.clear()
        for now in self.open.values():
            now.turn = now.draft = None
        for name, watchers in self.watchers.items():
            for watcher in watchers:
                watcher.follower = self.store.get(name).follow(watcher.follower.head)

    reopens = True
