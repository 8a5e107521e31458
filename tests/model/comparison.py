"""What must hold after every step: everything that can be read equals the model."""

from hypothesis.stateful import invariant, precondition, rule

from holdfast.session import Session
from holdfast.values import BranchChanged, Link
from tests.model.driver import Driver, Watcher
from tests.model.reference import Model, bare, preview


class Comparing(Driver):
    """The invariants."""

    @invariant()
    def every_history_is_as_it_must_be(self) -> None:
        for model in self.world.models.values():
            session = self.session(model)
            for line in model.lines:
                found = session.messages(branch=line.number)
                assert [m.seq for m in found] == list(range(1, len(line.said) + 1))
                assert [(bare(m), m.turn_id) for m in found] == [
                    (one.message, one.turn) for one in line.said
                ]
            assert session.messages() == found
            assert session.messages(limit=2) == found[-2:]
            assert session.head() == model.head

    @invariant()
    def every_session_is_who_it_must_be(self) -> None:
        for model in self.world.models.values():
            self._compare_info(self.session(model), model)
            self._compare_turns(self.session(model), model)
            self._compare_branches(self.session(model), model)

    def _compare_info(self, session: Session, model: Model) -> None:
        info, who = session.info(), model.who
        for name in ("key", "scope", "title", "agent", "model", "cwd", "pinned", "archived"):
            assert getattr(info, name) == getattr(who, name), name
        for name in ("trashed", "goal", "metadata", "parent", "relation"):
            assert getattr(info, name) == getattr(who, name), name
        assert (info.messages, info.preview) == (len(model.said), preview(model.said))
        assert (info.turns, info.usage.input) == (len(model.turns), model.tokens)
        assert session.usage().usage.input == model.tokens
        assert info.state == ("open" if model.id in self.open else "done")

    def _compare_turns(self, session: Session, model: Model) -> None:
        turns = session.turns()
        assert [t.state for t in turns] == model.turns
        assert [t.usage.input for t in turns] == model.spent
        assert [{r.call_id: r.outcome for r in t.tools} for t in turns] == model.ledgers
        assert [(q.id, bare(q.message)) for q in session.queued()] == [
            (m.id, bare(m)) for m in model.queue
        ]

    def _compare_branches(self, session: Session, model: Model) -> None:
        found = session.branches()
        assert [
            (b.number, b.fork_seq, b.asked_seq, b.head, b.reason, (b.parent_id, b.parent))
            for b in found
        ] == [
            (n.number, n.fork_seq, n.asked_seq, n.head, n.reason, n.parent or (None, None))
            for n in model.lines
        ]
        left_by = [line.reason for line in model.lines[1:]]
        assert [b.abandoned_by for b in found] == [*left_by, None]
        assert [b.active for b in found] == [False] * len(left_by) + [True]
        times = [b.created_at for b in found]
        assert [b.abandoned_at for b in found] == [*times[1:], None]
        assert times == sorted(times)

    @invariant()
    def lists_are_as_they_must_be(self) -> None:
        for trashed in (False, True):
            listed = list(self.store.sessions(trashed=trashed))
            assert [info.id for info in listed] == self.world.listed(trashed=trashed)
            assert listed == [self.store.get(info.id).info() for info in listed]
        latest = self.store.latest()
        assert (latest and latest.id) == self.world.latest()
        stats = self.store.stats()
        assert (stats.messages, stats.branches) == (len(self.world.stored()), self.world.branches())
        assert stats.sessions == len(self.world.models)
        assert stats.trashed == len(self.world.listed(trashed=True))

    @invariant()
    def relatives_are_as_they_must_be(self) -> None:
        for model in self.world.models.values():
            session = self.session(model)
            assert [_told(link) for link in session.lineage()] == self._lineage(model.id)
            assert [_told(link) for link in session.children()] == self._children(model.id)

    def _lineage(self, id: str | None) -> list[tuple[object, ...]]:
        """Return the ancestors of a session, up to one that was purged completely."""
        if id is None:
            return []
        link = self._link(id)
        return [*self._lineage(link[1]), link]

    def _link(self, id: str) -> tuple[str, str | None, str | None, int, str | None, str, bool]:
        if id in self.world.models:
            model = self.world.models[id]
            who = model.who
            state = "trashed" if who.trashed else "live"
            return (id, who.parent, who.relation, model.lines[0].fork_seq, who.title, state, True)
        left = self.world.purged[id]
        if self.world.is_husk(id):
            seq = left.seq if self.world.has_branch(id, 1) else 0
            return (id, left.parent, left.relation, seq, None, "purged", True)
        return (id, None, None, 0, None, "purged", False)

    def _children(self, id: str) -> list[tuple[object, ...]]:
        parents = {name: model.who.parent for name, model in self.world.models.items()}
        for name, left in self.world.purged.items():
            if self.world.is_husk(name):
                parents[name] = left.parent
        return [self._link(name) for name in self.ever if parents.get(name, "") == id]

    @invariant()
    def followers_see_what_there_is(self) -> None:
        for name, watchers in self.watchers.items():
            model = self.world.models[name]
            for watcher in watchers:
                self._catch_up(watcher, model)
                assert watcher.view == [one.id for one in model.said]
                assert watcher.follower.head == model.head

    def _catch_up(self, watcher: Watcher, model: Model) -> None:
        """Apply new items: cut to what was kept, then add."""
        while (item := watcher.follower.poll()) is not None:
            if isinstance(item, BranchChanged):
                old, new = model.lines[item.head.branch - 2], model.lines[item.head.branch - 1]
                pairs = zip(old.said, new.said[: new.fork_seq], strict=False)
                shared = [one is two for one, two in pairs]
                assert item.kept == [*shared, False].index(False)
                assert (item.head.seq, item.reason) == (item.kept, new.reason)
                watcher.view = watcher.view[: item.kept]
            else:
                assert item.seq == len(watcher.view) + 1
                watcher.view.append(item.id)

    @precondition(lambda self: len(self.world.stored()) > 3)
    @rule()
    def verify(self) -> None:
        assert self.store.verify() == []
        assert self.store.damage == []


def _told(link: Link) -> tuple[object, ...]:
    when = link.created_at is not None
    return (link.session_id, link.parent, link.relation, link.seq, link.title, link.state, when)
