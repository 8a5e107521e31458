"""What a recorded run promised, and what a store must therefore hold after a crash.

A scenario records each step as a *fact* before it runs it (`begin`) and again when the call
returned (`ack`). Facts are self-contained, so a crash state can be checked with nothing but the
facts that came before it.

The check. Every step is one commit, and commits are in order. So a crashed store, once recovered,
must equal the model after some number of facts: not fewer than were acknowledged, not more than
were begun. This implies that nothing acknowledged is lost, that nothing is duplicated, reordered or
invented, and that no step is stored in part. With the weaker durability a power cut may lose
acknowledged facts, but only the newest.

`BASE` is what every store held before its run; a run that began on a crashed store has the facts of
its first life in a file beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import msgspec

from holdfast import File, Message, Session, Store
from holdfast.proof.checker import digest
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.storage.sqlite.migrations import Steps
from holdfast.testing.faults import CrashState, Recording
from holdfast.url import Durability, Location
from tests.crash._messages import looks, message

DATABASE = "store.db"
FIRST_LIFE = "first-life.json"
HOUR = 3_600_000_000


# ------------------------------------------------------------------------------------ the facts


class Fact(msgspec.Struct, frozen=True, tag_field="fact", tag=str.lower):
    """One step of a run, in one session."""

    session: str


class Made(Fact, frozen=True):
    """A session was made."""


class Said(Fact, frozen=True):
    """Messages were stored, as one batch."""

    ids: tuple[str, ...]
    turn: int | None = None


class Opened(Fact, frozen=True):
    """A turn was opened, after what was open had been recovered."""

    turn: int


class Started(Fact, frozen=True):
    """A tool was started."""

    turn: int
    call: str


class Flushed(Fact, frozen=True):
    """A prefix of a streamed reply was flushed."""

    turn: int
    id: str
    text: str


class Closed(Fact, frozen=True):
    """A streamed reply became a message."""

    turn: int
    id: str
    text: str
    status: str = "complete"


class Ended(Fact, frozen=True):
    """A turn ended."""

    turn: int
    state: str


class Waits(Fact, frozen=True):
    """Input was put in the queue."""

    id: str


class Took(Fact, frozen=True):
    """A turn took all input that waited."""

    turn: int


class Named(Fact, frozen=True):
    """A title and a piece of metadata were changed together."""

    title: str


class Recovered(Fact, frozen=True):
    """What a crash had left open was closed."""


class Migrated(Fact, frozen=True):
    """The store was brought up to date, which changes nothing that is said in it."""


AnyFact = (
    Made
    | Said
    | Opened
    | Started
    | Flushed
    | Closed
    | Ended
    | Waits
    | Took
    | Named
    | Recovered
    | Migrated
)
BASE: tuple[AnyFact, ...] = (Made("talk"), Said("talk", ("user-a", "user-b")))
_decoder: msgspec.json.Decoder[AnyFact] = msgspec.json.Decoder(AnyFact)


def written(fact: Fact) -> str:
    """Encode a fact as text for a trace."""
    return msgspec.json.encode(fact).decode()


def read(facts: Sequence[str]) -> list[AnyFact]:
    """Decode facts from a trace."""
    return [_decoder.decode(fact) for fact in facts]


@contextmanager
def promise(recording: Recording, *facts: Fact) -> Iterator[None]:
    """Record facts before and after the block that makes them true, one commit each."""
    for fact in facts:
        recording.begin(written(fact))
    yield
    for fact in facts:
        recording.ack(written(fact))


# ------------------------------------------------------------------------------------ the model


@dataclass
class Talk:
    """What one session must look like."""

    messages: list[tuple[str, int | None, str]] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    tools: list[dict[str, str]] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    title: str | None = None
    topic: str | None = None


class Model:
    """What a store must look like after some facts."""

    def __init__(self) -> None:
        self.talks: dict[str, Talk] = {}
        self._drafts: dict[str, tuple[str, str]] = {}

    @classmethod
    def after(cls, facts: Sequence[AnyFact]) -> dict[str, Talk]:
        """Return what a recovered store shows after these facts."""
        model = cls()
        for fact in (*BASE, *facts):
            model.apply(fact)
        for session in model.talks:
            model.recover(session)
        return model.talks

    def apply(self, fact: AnyFact) -> None:  # noqa: C901 - one case per fact
        """Apply one fact."""
        name = fact.session
        talk = self.talks.setdefault(name, Talk())
        match fact:
            case Said(_, ids, turn):
                self._say(talk, ids, turn)
            case Opened():
                self.recover(name)
                talk.turns.append("open")
                talk.tools.append({})
            case Started(_, _, call):
                talk.tools[-1][call] = "running"
            case Flushed(_, _, id, text):
                self._drafts[name] = (id, text)
            case Closed(_, turn, id, text, status):
                self._drafts.pop(name, None)
                talk.messages.append((id, turn, _reply(text, status)))
            case Ended(_, _, state):
                self._settle(name, state)
            case Waits(_, id):
                talk.queue.append(id)
            case Took(_, turn):
                self._say(talk, talk.queue, turn)
                talk.queue = []
            case Named(_, title):
                talk.title, talk.topic = title, f"topic of {title}"
            case Recovered():
                self.recover(name)
            case Made() | Migrated():
                pass

    def recover(self, session: str) -> None:
        """Close what is open."""
        turns = self.talks[session].turns
        if turns and turns[-1] == "open":
            self._settle(session, "interrupted")

    def _say(self, talk: Talk, ids: Sequence[str], turn: int | None) -> None:
        for id in ids:
            talk.messages.append((id, turn, looks(message(id))))
            kind, _, call = id.partition("-")
            if turn and kind == "call":
                talk.tools[-1].setdefault(call, "called")
            if turn and kind == "result":
                talk.tools[-1][call] = "done"

    def _settle(self, session: str, state: str) -> None:
        talk = self.talks[session]
        draft = self._drafts.pop(session, None)
        if draft is not None:
            talk.messages.append((draft[0], len(talk.turns), _reply(draft[1], "partial")))
        talk.turns[-1] = state
        settled = {"running": "unknown", "called": "not_run"}
        talk.tools[-1] = {c: settled.get(o, o) for c, o in talk.tools[-1].items()}


def _reply(text: str, status: str) -> str:
    return f"assistant {status}: text {digest(text)}"


# ------------------------------------------------------------------------------------ the store


class LaterClock:
    """A clock some hours ahead: leases that a crash left behind have run out by then."""

    def __init__(self, hours: int) -> None:
        self._ahead = hours * HOUR

    def micros(self) -> int:
        """Return the time of then."""
        return time.time_ns() // 1_000 + self._ahead

    def monotonic(self) -> int:
        """Return the time since boot, of then."""
        return time.monotonic_ns() // 1_000 + self._ahead


def open_store(
    path: Path,
    *,
    vfs: str | None = None,
    hours: int = 0,
    durability: Durability = "power",
    steps: Steps | None = None,
) -> Store:
    """Open the store at a path, through a VFS and at a later time if asked."""
    clock = LaterClock(hours)
    location = Location("sqlite", str(path))
    backend = SQLiteBackend(location, vfs=vfs, clock=clock, durability=durability, steps=steps)
    return Store(backend, clock)


@contextmanager
def checkpoints_every(pages: int) -> Iterator[None]:
    """Let every connection checkpoint by itself after so many pages."""

    def hook(connection: apsw.Connection) -> None:
        connection.wal_autocheckpoint(pages)

    apsw.connection_hooks.append(hook)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hook)


def view(store: Store) -> dict[str, Talk]:
    """Return a store's contents in the model's form."""
    return {str(info.key): _talk(store, store.get(info.id)) for info in store.sessions(limit=100)}


def _talk(store: Store, session: Session) -> Talk:
    info, turns = session.info(), session.turns()
    topic = info.metadata.get("topic")
    return Talk(
        messages=[_seen(store, m, seq) for seq, m in enumerate(session.messages(), 1)],
        turns=[turn.state for turn in turns],
        tools=[{tool.call_id: tool.outcome for tool in turn.tools} for turn in turns],
        queue=[waiting.id for waiting in session.queued()],
        title=info.title,
        topic=topic if isinstance(topic, str) else None,
    )


def _seen(store: Store, found: Message, seq: int) -> tuple[str, int | None, str]:
    assert found.seq == seq, "a gap in the numbers of a history"
    for part in found.parts:
        if isinstance(part, File):
            assert part.sha256
            assert digest(store.blob(part.sha256)) == part.sha256[:24]
    turn = None if found.turn_id is None else int(found.turn_id.rpartition(".")[2])
    return found.id, turn, looks(found)


# ------------------------------------------------------------------------------------ the check


class FirstLife(msgspec.Struct, frozen=True):
    """What a store that had crashed before held when its second life began."""

    kept: tuple[str, ...] = ()
    """The facts that were seen after the first crash."""
    unseen: tuple[str, ...] = ()
    """Facts that were begun, never acknowledged, and not seen."""


def candidates(state: CrashState, durability: Durability = "power") -> list[dict[str, Talk]]:
    """Return all contents that a store may have after this crash, the fewest facts first."""
    first = msgspec.json.decode(state.files.get(FIRST_LIFE, b"{}"), type=FirstLife)
    kept, unseen = read(first.kept), read(first.unseen)
    begun, acked = read(state.begun), read(state.acked)
    assert acked == begun[: len(acked)], "the scenario acknowledged what it had not begun"
    least = 0 if durability == "process" and state.model == "power" else len(acked)
    found = [Model.after([*kept, *begun[:count]]) for count in range(least, len(begun) + 1)]
    if not acked:
        # A write of the first life that was torn can be made whole by a torn write of the second,
        # where both wrote the same bytes. Once a write of the second is acknowledged it cannot.
        found += [Model.after([*kept, *unseen[:count]]) for count in range(1, len(unseen) + 1)]
    return found


def judge(directory: Path, state: CrashState, durability: Durability = "power") -> None:
    """Open a crashed store as a user would; it must be intact, keep its promises and work."""
    with open_store(directory / DATABASE, hours=10, durability=durability) as store:
        assert store.verify() == []
        recovered = [store.get(info.id).recover() for info in store.sessions(limit=100)]
        seen = view(store)
        assert seen in candidates(state, durability), f"none of what it may be: {seen}"
        if any(recovered):
            assert [store.get(info.id).recover() for info in store.sessions()] == [None] * len(seen)
            assert view(store) == seen, "recovering twice changed something"
        _must_go_on(store, seen, read(state.begun))
        assert store.verify() == []


def _must_go_on(store: Store, seen: dict[str, Talk], begun: Sequence[AnyFact]) -> None:
    """Retry every write with its ids, then run another turn: each message is stored once."""
    batches = [fact for fact in begun if isinstance(fact, Said)]
    for said in batches:
        store.session(said.session).append(*map(message, said.ids))
    session = store.session("talk")
    waiting = [fact.id for fact in begun if isinstance(fact, Waits)]
    for id in waiting:
        session.enqueue(message(id))
    assert sorted(_everywhere(session, waiting)) == sorted(waiting)
    with session.turn() as turn:
        assert turn.recovered is None
        turn.user("and on it goes", id="on")
    session.append(Message.user("without a turn", id="on-and-on"))
    ids = [found.id for found in session.messages()]
    before = [id for id, _, _ in seen["talk"].messages]
    asked = [id for said in batches if said.session == "talk" for id in said.ids]
    retried = [id for id in asked if id not in before]
    assert ids == [*before, *retried, "on", "on-and-on"]


def _everywhere(session: Session, wanted: Sequence[str]) -> list[str]:
    """Return each occurrence of the ids in the history and in the queue."""
    found = [item.id for item in session.messages()] + [item.id for item in session.queued()]
    return [id for id in found if id in wanted]
