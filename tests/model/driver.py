"""The base of the machine's parts: the store, its model, and what is open."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from holdfast.draft import Draft
from holdfast.follow import Follower
from holdfast.session import Session
from holdfast.storage.protocol import Backend
from holdfast.store import Store
from holdfast.testing.conformance import SetClock
from holdfast.turn import Turn
from holdfast.values import BranchChanged, Head, Message, MessageRef, SessionChanges, ToolCall
from tests.model.reference import Identity, Model, World

LEASE = 600.0
MOST_SESSIONS = 6
KEYS = ("one", "two\0\ud800", "three")
which = st.integers(0, MOST_SESSIONS - 1)


@dataclass
class Open:
    """An open turn; it has no holder after a reopening."""

    number: int
    turn: Turn | None
    tools: dict[str, str] = field(default_factory=dict)
    draft: Draft | None = None
    drafting: bool = False
    written: str = ""
    flushed: str = ""


@dataclass
class Watcher:
    """A follower, and the history built from its items."""

    follower: Follower[Message | BranchChanged]
    view: list[str]


def places(model: Model) -> st.SearchStrategy[MessageRef]:
    """Generate positions of a session in every form, and some that do not exist."""
    ends = [line.head for line in model.lines]
    heads = st.sampled_from(ends).flatmap(
        lambda end: st.integers(0, end.seq).map(lambda seq: Head(end.branch, seq))
    )
    seqs = st.integers(0, len(model.said))
    ids = st.sampled_from(sorted(model.ids()) or ["nobody's"])
    wrong = st.sampled_from(
        [len(model.said) + 1, "nobody's", Head(1, 99_999), Head(len(model.lines) + 1, 0)]
    )
    return st.one_of(seqs, ids, heads, st.sampled_from(ends), heads, ids, wrong)


def expected(model: Model) -> st.SearchStrategy[Head | None]:
    """Generate an expected head: none, the current one, or an earlier one."""
    old = [Head(line.number, seq) for line in model.lines for seq in range(len(line.said) + 1)]
    fine: list[Head | None] = [None, None, model.head]
    return st.one_of(*map(st.just, fine), st.sampled_from([*old, Head(99, 0)]))


class Driver(RuleBasedStateMachine):
    """A store and its model; subclasses add the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock()
        self.store = Store(self.open_backend(), self.clock)
        self.world = World()
        self.open: dict[str, Open] = {}
        self.over: dict[str, list[Turn]] = {}
        self.batches: dict[str, list[list[Message]]] = {}
        self.watchers: dict[str, list[Watcher]] = {}
        self.calls = 0
        self.ever: list[str] = []  # every session there was, the oldest first
        self.made(self.store.session(KEYS[0]), Identity(key=KEYS[0]))

    def open_backend(self) -> Backend:
        """Open the store of this run."""
        raise NotImplementedError

    def made(self, session: Session, who: Identity) -> Model:
        """Add a created session to the model."""
        model = Model(session.id, who)
        self.world.add(model)
        self.ever.append(model.id)
        return model

    def model(self, which: int) -> Model:
        """Return the model of a session; create one if there is none."""
        models = list(self.world.models.values())
        return models[which % len(models)] if models else self.made(self.store.create(), Identity())

    def session(self, model: Model) -> Session:
        """Open a session by its id."""
        return self.store.get(model.id)

    def draw_update(self, model: Model, data: st.DataObject) -> SessionChanges | None:
        """Draw the changes that come with another write; some compare, and may conflict."""
        what = data.draw(st.sampled_from(["none", "none", "title", "metadata"]))
        if what == "none":
            return None
        if what == "title":
            return {"title": data.draw(st.sampled_from(["one title", "another", None]))}
        counted = model.who.metadata.get("count")
        count = data.draw(st.sampled_from([counted, counted, "never"]))
        return {
            "metadata": {"count": data.draw(st.integers(1, 3))},
            "expect_metadata": {"count": count},
        }

    def conflicts(self, model: Model, update: SessionChanges | None) -> bool:
        """True if an update expects what is not so."""
        expected = {} if update is None else update.get("expect_metadata", {})
        return any(model.who.metadata.get(name) != value for name, value in expected.items())

    def apply_update(self, model: Model, update: SessionChanges | None) -> None:
        """Make the changes of an update in the model."""
        if update is None:
            return
        if "title" in update:
            model.who.title, model.who.by_user = update["title"], update["title"] is not None
        merged = {**model.who.metadata, **update.get("metadata", {})}
        model.who.metadata = {k: v for k, v in merged.items() if v is not None}

    def new_calls(self, data: st.DataObject) -> list[ToolCall]:
        """Return tool calls with unused ids."""
        count = data.draw(st.integers(0, 2))
        self.calls += count
        return [ToolCall(f"c{self.calls - n}", "tool") for n in range(count)]

    def teardown(self) -> None:
        try:
            assert self.store.verify() == []
            assert self.store.damage == []
        finally:
            self.store.close()
