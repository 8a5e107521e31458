"""Steps that move a head, derive sessions from others, and delete them."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from holdfast.errors import (
    Conflict,
    HeadMoved,
    HoldfastError,
    KeyTaken,
    MessageNotFound,
    SessionBusy,
    SessionNotFound,
)
from holdfast.session import Session
from holdfast.values import (
    Forks,
    Head,
    Message,
    MessageRef,
    PurgeReport,
    Relation,
    SessionChanges,
    Text,
    Usage,
)
from tests.model import strategies as some
from tests.model.driver import (
    KEYS,
    MOST_SESSIONS,
    Driver,
    expected,
    places,
    which,
)
from tests.model.reference import Identity, Model, Said, bare

keys = st.none() | st.sampled_from(KEYS)
relations = st.sampled_from(["fork", "continue", "reset", "delegate", "import"])


class Moving(Driver):
    """Moves, lineage and deletion."""

    proves = True  # whether erasures are proved

    def _move(
        self,
        model: Model,
        expect: Head | None,
        really: Callable[[Head | None], Head],
        as_model: Callable[[], None],
        update: SessionChanges | None = None,
    ) -> None:
        """Move a head in the store and in the model: the same head, or the same refusal.

        The store makes an update with the move.
        """
        if expect not in {None, model.head}:
            with pytest.raises(HeadMoved):
                really(expect)
            return
        if self.conflicts(model, update):
            with pytest.raises(Conflict):
                really(expect)
            return
        if model.id in self.open:
            with pytest.raises(SessionBusy):
                really(expect)
            return
        before = (model.head, len(model.lines))
        try:
            as_model()
        except HoldfastError as refusal:
            with pytest.raises(type(refusal)):
                really(expect)
            return
        assert really(expect) == model.head
        self.apply_update(model, update)
        if before != (model.head, len(model.lines)):
            self.world.touch(model)

    @rule(which=which, data=st.data(), exact=st.booleans())
    def rewind(self, which: int, data: st.DataObject, exact: bool) -> None:
        model = self.model(which)
        to = data.draw(places(model))
        session, expect = self.session(model), data.draw(expected(model))
        update = self.draw_update(model, data)
        self._move(
            model,
            expect,
            lambda head: session.rewind(to, exact=exact, expect=head, update=update),
            lambda: model.rewind(to, exact=exact),
            update,
        )

    @rule(which=which, data=st.data())
    def pop(self, which: int, data: st.DataObject) -> None:
        """The newest message as it was, and the history without it."""
        model = self.model(which)
        session, expect = self.session(model), data.draw(expected(model))
        newest = model.said[-1].message if model.said else None

        def really(head: Head | None) -> Head:
            popped = session.pop(expect=head)
            assert (popped and bare(popped)) == newest
            return session.head()

        self._move(model, expect, really, model.pop)

    @rule(which=which, data=st.data(), text=st.sampled_from(["amended", "amended again"]))
    def amend(self, which: int, data: st.DataObject, text: str) -> None:
        model = self.model(which)
        place, parts = data.draw(places(model)), (Text(text),)
        session, expect = self.session(model), data.draw(expected(model))
        self._move(
            model,
            expect,
            lambda head: session.amend(place, parts, expect=head),
            lambda: model.amend(place, parts),
        )

    @rule(which=which, data=st.data(), turns=st.integers(1, 3))
    def undo(self, which: int, data: st.DataObject, turns: int) -> None:
        model = self.model(which)
        session, expect = self.session(model), data.draw(expected(model))
        update = self.draw_update(model, data)
        self._move(
            model,
            expect,
            lambda head: session.undo(turns, expect=head, update=update),
            lambda: model.undo(turns),
            update,
        )

    @rule(which=which, data=st.data())
    def redo(self, which: int, data: st.DataObject) -> None:
        model = self.model(which)
        session, expect = self.session(model), data.draw(expected(model))
        self._move(model, expect, lambda head: session.redo(expect=head), model.redo)

    @rule(which=which, data=st.data(), times=st.integers(1, 4))
    def undo_and_redo(self, which: int, data: st.DataObject, times: int) -> None:
        """Undo several times, and redo as often as possible."""
        for _ in range(times):
            self.undo(which, data, 1)
        for _ in range(times + 1):
            self.redo(which, data)

    @rule(which=which, data=st.data())
    def clear(self, which: int, data: st.DataObject) -> None:
        model = self.model(which)
        session, expect = self.session(model), data.draw(expected(model))
        update = self.draw_update(model, data)
        self._move(
            model,
            expect,
            lambda head: session.clear(expect=head, update=update),
            model.clear,
            update,
        )

    @rule(which=which, data=st.data())
    def replace(self, which: int, data: st.DataObject) -> None:
        """Keep a prefix; edit, drop and reorder what follows; add new or abandoned messages."""
        model = self.model(which)
        session = self.session(model)
        line = data.draw(st.sampled_from([model.line, model.line, *model.lines]))
        read = session.messages(branch=line.number)
        kept = data.draw(st.integers(0, len(read)))
        shuffled = data.draw(st.permutations(read[kept:]))
        rest = list(shuffled)[: data.draw(st.integers(0, 3))]
        edits: bool = data.draw(st.booleans())
        if rest and edits:
            rest[0] = Message.user("edited", id=rest[0].id, usage=Usage(1))
        new = [Message.user("new", usage=Usage(1))] if data.draw(st.booleans()) else []
        keep: MessageRef | None = Head(line.number, kept) if data.draw(st.booleans()) else None
        wanted = [*([] if keep else read[:kept]), *rest, *new]
        expect, update = data.draw(expected(model)), self.draw_update(model, data)

        def really(head: Head | None) -> Head:
            return session.replace(wanted, keep=keep, expect=head, update=update)

        if model.has_grown_to(wanted, expect, keep):
            # It counts as a retry of a replace that was done already.
            assert really(expect) == Head(model.line.number, model.length_with(wanted, keep))
            return
        self._move(model, expect, really, lambda: model.replace(wanted, keep), update)

    @rule(which=which, data=st.data(), text=st.sampled_from(["in short", "so far"]))
    def summarize(self, which: int, data: st.DataObject, text: str) -> None:
        model = self.model(which)
        session = self.session(model)
        upto = data.draw(st.none() | places(model))
        expect = data.draw(expected(model))
        if expect not in {None, model.head}:
            with pytest.raises(HeadMoved):
                session.summarize(text, upto=upto, expect=expect)
            return
        try:
            covers = model.covered(upto)
        except HoldfastError as refusal:
            with pytest.raises(type(refusal)):
                session.summarize(text, upto=upto, expect=expect)
            return
        head = session.summarize(text, upto=upto, expect=expect)
        model.summarize(text, session.messages(limit=1)[0].id, covers)
        self.world.touch(model)
        assert head == model.head

    # ------------------------------------------------------------------- sessions from others

    @precondition(lambda self: len(self.world.models) < MOST_SESSIONS)
    @rule(
        which=which,
        data=st.data(),
        key=keys,
        title=st.none() | some.names,
        exact=st.booleans(),
        entries=st.sampled_from([(), (), ("first",), ("first", "second")]),
    )
    def fork(
        self,
        which: int,
        data: st.DataObject,
        *,
        key: str | None,
        title: str | None,
        exact: bool,
        entries: Sequence[str],
    ) -> None:
        model = self.model(which)
        session = self.session(model)
        at = data.draw(st.none() | places(model))
        expect = data.draw(expected(model))
        first = [Message.user(text, usage=Usage(1)) for text in entries]

        def really() -> Session:
            return session.fork(
                at,
                key=key,
                title=title,
                expect=expect,
                exact=exact,
                entries=first,
                update={"pinned": exact, "metadata": {"entries": len(first)}},
            )

        if key is not None and self.world.key_holder(key) is not None:
            with pytest.raises(KeyTaken):
                really()
            return
        if expect not in {None, model.head}:
            with pytest.raises(HeadMoved):
                really()
            return
        try:
            line, seq = model.locate(at)
        except HoldfastError as refusal:
            with pytest.raises(type(refusal)):
                really()
            return
        who = Identity(key=key, title=title, pinned=exact, metadata={"entries": len(first)})
        child = self._child(model, really(), "fork", who)
        child.lines = [model.start(line, seq, "fork", 1, seq if exact else 0)]
        child.append(*first)

    def _child(self, model: Model, made: Session, relation: Relation, who: Identity) -> Model:
        """Add a derived session to the model, with what it inherits."""
        who.parent, who.relation, who.by_user = model.id, relation, who.title is not None
        if relation in {"fork", "continue", "reset"}:
            for name in ("scope", "agent", "model", "cwd"):
                setattr(who, name, getattr(who, name) or getattr(model.who, name))
        return self.made(made, who)

    @precondition(lambda self: len(self.world.models) < MOST_SESSIONS)
    @rule(which=which, relation=relations, key=keys, by_name=st.booleans(), agent=st.booleans())
    def descend(
        self, which: int, relation: Relation, key: str | None, by_name: bool, agent: bool
    ) -> None:
        model = self.model(which)
        parent = model.id if by_name else self.session(model)
        named = "helper" if agent else None
        if key is not None and self.world.key_holder(key) is not None:
            with pytest.raises(KeyTaken):
                self.store.create(key=key, parent=parent, relation=relation)
            return
        made = self.store.create(key=key, parent=parent, relation=relation, agent=named)
        child = self._child(model, made, relation, Identity(key=key, agent=named))
        if relation in {"fork", "continue"}:
            child.lines = [model.start(model.line, len(model.said), relation, 1)]

    @precondition(lambda self: len(self.world.models) < MOST_SESSIONS)
    @rule(key=st.sampled_from(KEYS))
    def open_by_key(self, key: str) -> None:
        """A key finds its session; a free one creates a session."""
        holder = self.world.key_holder(key)
        found = self.store.session(key)
        if holder is None:
            self.made(found, Identity(key=key))
        else:
            assert found.id == holder.id

    # ------------------------------------------------------------------------------ deletion

    @rule(which=which)
    def trash(self, which: int) -> None:
        model = self.model(which)
        assert self.store.trash(model.id).trashed
        model.who.trashed = True

    @rule(which=which, keyless=st.booleans())
    def restore(self, which: int, keyless: bool) -> None:
        model = self.model(which)
        who = model.who
        taken = who.key is not None and self.world.key_holder(who.key) is not None
        if who.trashed and taken and not keyless:
            with pytest.raises(KeyTaken):
                self.store.restore(model.id)
            return
        info = self.store.restore(model.id, keyless=keyless)
        if who.trashed and keyless:
            who.key = None
        who.trashed = False
        assert (info.trashed, info.key) == (False, who.key)

    @precondition(lambda self: len(self.world.models) > 1)
    @rule(which=which, forks=st.sampled_from(["keep", "erase"]), shared=st.booleans())
    def purge(self, which: int, forks: Forks, shared: bool) -> None:
        """Purge a session, if possible one that others share messages with."""
        model = self.model(which)
        if shared:
            parents = [m for m in self.world.models.values() if self.world.dependants(m.id)]
            model = parents[which % len(parents)] if parents else model
        handle = self.session(model)
        if model.id in self.open:
            with pytest.raises(SessionBusy):
                self.store.purge(model.id, forks=forks)
            return
        report = self.store.purge(model.id, forks=forks)
        self._purged(model, report, forks)
        for read in (handle.info, handle.messages, handle.branches, handle.lineage):
            with pytest.raises(SessionNotFound):
                read()
        with pytest.raises(SessionNotFound):
            self.store.get(model.id)
        with pytest.raises(SessionNotFound):
            handle.append(Message.user("late"))

    def _purged(self, model: Model, report: PurgeReport, forks: Forks) -> None:
        copies = self.world.copies(model)
        records = len(self.world.records())
        erased, kept = self.world.purge(model)
        for table in (self.over, self.batches, self.watchers):
            table.pop(model.id, None)
        dependants = self.world.sharing(model.id)
        if forks == "keep":
            assert (report.messages, report.kept) == (erased, len(kept))
            assert (set(report.kept_for), report.erased_in) == (dependants, ())
        else:
            assert (report.messages, report.kept) == (erased + len(kept), 0)
            assert set(report.erased_in) == dependants | self.world.holders(copies)
            assert report.kept_for == ()
            self._erased([*kept, *copies], report.erased_in)
            for other in self.world.models.values():
                other.forget([one for one in other.all_records() if one.home[0] == model.id])
        assert report.records == records - len(self.world.records())
        assert (report.turns, report.queued) == (len(model.turns), len(model.queue))
        assert (report.drafts, report.pending) == (0, ())

    @rule(which=which, data=st.data())
    def erase(self, which: int, data: st.DataObject) -> None:
        """Erase one message everywhere, also during open turns."""
        model = self.model(which)
        place, session = data.draw(places(model)), self.session(model)
        try:
            line, seq = model.locate(place)
            if not seq:
                raise MessageNotFound("none has the number 0")  # noqa: TRY301
        except MessageNotFound:
            with pytest.raises(MessageNotFound):
                session.erase(place)
            return
        named = line.said[seq - 1]
        gone = self.world.versions(model, named)
        report = session.erase(place)
        assert (report.session_id, report.message_id, report.seq) == (model.id, named.id, seq)
        assert (report.places, report.pending) == (len(gone), ())
        assert set(report.erased_in) == self.world.holders(gone)
        assert report.scan is not None
        assert report.scan.clean == self.proves
        self._erased(gone, report.erased_in)
        for name in report.erased_in:
            # A retry of it would be refused, like any other body for its id.
            kept = [b for b in self.batches.get(name, []) if all(m.id != named.id for m in b)]
            self.batches[name] = kept

    def _erased(self, said: list[Said], dependants: Sequence[str]) -> None:
        """Make messages tombstones in the model, which counts as activity of their sessions."""
        for one in said:
            one.erase()
        for name in dependants:
            self.world.touch(self.world.models[name])
