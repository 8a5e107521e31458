"""Steps that store messages: append, retry, queue; and updates of a session's identity."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from holdfast.errors import Conflict, HeadMoved, IdConflict
from holdfast.ids import message_id
from holdfast.values import JSON, Goal, Head, Message, SessionChanges, Usage
from tests.model import strategies as some
from tests.model.driver import Driver, Watcher, expected, which
from tests.model.reference import Model, bare


class Talking(Driver):
    """Steps that need neither a turn nor another branch."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Start with some messages, which most steps need."""
        for _ in range(data.draw(st.integers(1, 4))):
            self.append(0, data, hidden=False)

    @rule(which=which, data=st.data(), hidden=st.booleans())
    def append(self, which: int, data: st.DataObject, hidden: bool) -> None:
        model = self.model(which)
        texts = data.draw(st.lists(some.texts, min_size=1, max_size=3))
        batch = [self._message(model, data, text, hidden) for text in texts]
        self._append(model, batch, data.draw(expected(model)), self.draw_update(model, data))

    def _message(self, model: Model, data: st.DataObject, text: str, hidden: bool) -> Message:
        """Return a new message: a question, a reply that calls tools, or a tool result."""
        metadata: dict[str, JSON] = {"hidden": True} if hidden else {}
        kind = data.draw(st.sampled_from(["user", "user", "assistant", "tool", "system"]))
        if kind == "user":
            return Message.user(text, usage=Usage(1), metadata=metadata)
        if kind == "assistant":
            return Message.assistant(text, tool_calls=self.new_calls(data), metadata=metadata)
        made = sorted({call for one in model.said for call in one.calls})
        if kind == "tool" and made:
            return Message.tool(data.draw(st.sampled_from(made)), text)
        return Message.system(text)

    def _append(
        self,
        model: Model,
        batch: list[Message],
        expect: Head | None,
        update: SessionChanges | None,
    ) -> None:
        if expect not in {None, model.head}:
            with pytest.raises(HeadMoved) as refused:
                self.session(model).append(*batch, expect=expect, update=update)
            assert refused.value.actual == model.head
            return
        if self.conflicts(model, update):
            with pytest.raises(Conflict):
                self.session(model).append(*batch, expect=expect, update=update)
            return
        head = self.session(model).append(*batch, expect=expect, update=update)
        self.apply_update(model, update)
        model.append(*batch)
        self.batches.setdefault(model.id, []).append(batch)
        self.world.touch(model)
        assert head == model.head

    @rule(which=which, data=st.data(), extra=st.booleans())
    def retry(self, which: int, data: st.DataObject, extra: bool) -> None:
        """Messages in the history are not stored again; those undone since are."""
        model = self.model(which)
        if not self.batches.get(model.id):
            return
        batch = data.draw(st.sampled_from(self.batches[model.id]))
        new = [Message.assistant("new")] if extra else []
        there = {one.id: one.message for one in model.said}
        waiting = {message.id: bare(message) for message in model.queue}
        if any(known.get(m.id, bare(m)) != bare(m) for m in batch for known in (there, waiting)):
            with pytest.raises(IdConflict):
                self.session(model).append(*batch, *new)
            return
        # A retry updates nothing, so it expects nothing either.
        update: SessionChanges | None = None if new else {"expect_metadata": {"never": 1}}
        if any(message.id not in there for message in batch):
            update = None
        head = self.session(model).append(*batch, *new, update=update)
        if model.append(*batch, *new):
            self.world.touch(model)
            assert head == model.head
        else:
            seqs = model.seqs()
            assert head == Head(model.head.branch, max(seqs[m.id] for m in batch))

    @rule(which=which, data=st.data())
    def conflict(self, which: int, data: st.DataObject) -> None:
        model = self.model(which)
        if not model.said:
            return
        said = data.draw(st.sampled_from(model.said))
        changed = Message.system(said.message.text + "?", id=said.id)
        with pytest.raises(IdConflict):
            self.session(model).append(Message.user("first"), changed)

    # --------------------------------------------------------------------- queue, update, follow

    @rule(which=which, data=st.data(), text=some.texts, twice=st.booleans())
    def enqueue(self, which: int, data: st.DataObject, text: str, twice: bool) -> None:
        """Also an earlier message: it is queued again if it is no longer in the history."""
        model = self.model(which)
        said = {one.id: one.message for line in model.lines for one in line.said}
        old = [m for m in said.values() if m.role == "user" and m.status == "complete"]
        new = Message.user(text, id=message_id())
        message = data.draw(st.sampled_from([new, new, *old[-3:]]))
        here = {one.id: one.message for one in model.said}
        waiting = {queued.id: queued for queued in model.queue}
        if any(known.get(message.id, message) != message for known in (here, waiting)):
            with pytest.raises(IdConflict):
                self.session(model).enqueue(message)
            return
        for _ in range(1 + twice):
            self.session(model).enqueue(message)
        if message.id not in here and message.id not in waiting:
            model.queue.append(message)
            self.world.touch(model)

    @rule(which=which, data=st.data(), what=st.sampled_from(["title", "metadata", "rest"]))
    def update(self, which: int, data: st.DataObject, what: str) -> None:
        """Change a session's identity."""
        model = self.model(which)
        if what == "title":
            self._retitle(model, data.draw(st.none() | some.names), data.draw(st.booleans()))
        elif what == "metadata":
            keys = st.sampled_from("xyz\0")
            self._annotate(model, data.draw(st.dictionaries(keys, some.json_values)))
        else:
            self._settle_down(model, data.draw(st.none() | some.names), data.draw(st.booleans()))

    def _retitle(self, model: Model, title: str | None, automatic: bool) -> None:
        if automatic:
            self.session(model).update(auto_title=title)
            if model.who.by_user:
                return
        else:
            self.session(model).update(title=title)
            model.who.by_user = title is not None
        model.who.title = title

    def _annotate(self, model: Model, changes: dict[str, JSON]) -> None:
        self.session(model).update(metadata=changes)
        merged = {**model.who.metadata, **changes}
        model.who.metadata = {k: v for k, v in merged.items() if v is not None}

    def _settle_down(self, model: Model, name: str | None, flag: bool) -> None:
        goal = None if name is None else Goal(name)
        self.session(model).update(
            scope=name, model=name, cwd=name, pinned=flag, archived=not flag, goal=goal
        )
        who = model.who
        who.scope = who.model = who.cwd = name
        who.pinned, who.archived, who.goal = flag, not flag, goal

    @rule(which=which, data=st.data())
    def follow(self, which: int, data: st.DataObject) -> None:
        """Start a follower, from the start or from any head that ever existed."""
        model = self.model(which)
        line = data.draw(st.sampled_from(model.lines))
        seen = data.draw(st.integers(0, len(line.said)))
        after = data.draw(st.none() | st.just(Head(line.number, seen)))
        view = [] if after is None else [one.id for one in line.said[:seen]]
        watchers = self.watchers.setdefault(model.id, [])
        watchers[:] = [*watchers[-1:], Watcher(self.session(model).follow(after), view)]
