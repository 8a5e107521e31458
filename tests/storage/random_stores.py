"""Random legal stores: any mixture of the verbs, by a seed; and all that a store tells."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import holdfast
from holdfast import File, Message, Record, ToolCall, Usage
from holdfast.errors import BadQuery
from holdfast.session import number_of
from holdfast.values import (
    BranchInfo,
    Forks,
    Head,
    Link,
    Relation,
    SessionInfo,
    Text,
    ToolResult,
    TurnInfo,
)
from tests.storage.damage_cases import put

TENANTS = ("default", "other")


class Story:
    """Does random things in one store, and keeps the sessions that are there."""

    def __init__(self, store: holdfast.Store, chance: Random) -> None:
        self._store = store
        self._chance = chance
        self._sessions: list[holdfast.Session] = []
        self._trashed: set[str] = set()
        self._count = 0
        self._verbs: dict[Callable[[holdfast.Session], object], int] = {
            self._append: 16,
            self._keep_state: 12,
            self._share_state: 2,
            self._drop: 2,
            self._turn: 4,
            self._fork: 6,
            self._continue: 2,
            self._rewind: 4,
            self._undo: 4,
            self._redo: 3,
            self._replace: 3,
            self._clear: 1,
            self._summarize: 2,
            self._enqueue: 1,
            self._update: 2,
            self._trash: 2,
            self._purge: 5,
        }

    def step(self) -> None:
        """Do one thing."""
        if len(self._sessions) < 2 or self._chance.random() < 0.03:
            self._sessions.append(self._store.create(title=self._words(), scope="bot"))
            return
        verbs, weights = list(self._verbs), list(self._verbs.values())
        (verb,) = self._chance.choices(verbs, weights)
        try:
            verb(self._chance.choice(self._sessions))
        except BadQuery:
            return  # There was nothing to undo, to redo, to summarise.

    def _words(self) -> str:
        self._count += 1
        size = self._chance.choice([0, 0, 5, 40, 300])
        return f"words {self._count} " + "lorem ipsum " * size

    def _said(self) -> list[Message]:
        """An exchange: plain, with a tool, with a file, or with a part so large it is a blob."""
        kind = self._chance.randrange(6)
        asked = Message.user(self._words())
        if kind == 0:
            call = f"c{self._count}"
            return [
                asked,
                Message(role="assistant", parts=(ToolCall(call, "weather", {}),)),
                Message(role="tool", parts=(ToolResult(call, (Text("rain"),)),)),
                Message.assistant("it rains", usage=Usage(input=3, output=5), model="m"),
            ]
        if kind == 1:
            data = b"shared" if self._chance.random() < 0.5 else self._words().encode()
            return [asked, Message.user([File(name="f", mime="text/plain", data=data)])]
        if kind == 2 and self._chance.random() < 0.3:
            return [asked, Message.assistant("big " * 20_000 + self._words())]
        return [asked, Message.assistant(self._words())][: self._chance.randint(1, 2)]

    def _place(self, session: holdfast.Session) -> int | Head | str:
        branch = self._chance.choice(session.branches())
        seq = self._chance.randint(0, branch.seq)
        if self._chance.random() < 0.5:
            return Head(branch.number, seq)
        return self._chance.randint(0, session.head().seq)

    # ------------------------------------------------------------------------------------- verbs

    def _append(self, session: holdfast.Session) -> None:
        session.append(*self._said())

    def _keep_state(self, session: holdfast.Session) -> None:
        """Store records with data, large data or a file, alone or with messages."""
        if session.id in self._trashed:
            return
        said = self._said() if self._chance.random() < 0.3 else []
        session.append(*said, *(self._state() for _ in range(self._chance.randint(1, 3))))

    def _state(self) -> Record:
        kind, key = self._chance.choice(["state", "step"]), self._chance.choice([None, "a", "b"])
        file = File(name="f", data=self._chance.choice([b"shared " * 300, self._words().encode()]))
        large = self._chance.random() < 0.05
        return Record(
            kind, key=key, data="big " * 20_000 if large else self._words(), files={"f": file}
        )

    def _share_state(self, _: holdfast.Session) -> None:
        self._store.put_record(self._state(), scope=self._chance.choice([None, "bot"]))

    def _drop(self, session: holdfast.Session) -> None:
        if session.id not in self._trashed:
            session.drop(kind="state", keep=self._chance.choice([None, 1]))

    def _turn(self, session: holdfast.Session) -> None:
        with session.turn(model="m", run_id=f"run {self._count}") as turn:
            turn.user(self._words())
            turn.assistant("", tool_calls=[ToolCall("c", "weather", {})], usage=Usage(output=2))
            turn.tool("c", "sun")

    def _fork(self, session: holdfast.Session) -> None:
        at = self._place(session) if self._chance.random() < 0.7 else None
        self._sessions.append(session.fork(at, title=self._words()))

    def _continue(self, session: holdfast.Session) -> None:
        kinds: list[Relation] = ["continue", "continue", "reset", "delegate"]
        relation = self._chance.choice(kinds)
        self._sessions.append(self._store.create(parent=session, relation=relation))

    def _rewind(self, session: holdfast.Session) -> None:
        session.rewind(self._place(session))

    def _undo(self, session: holdfast.Session) -> None:
        session.undo(self._chance.randint(1, 2))

    def _redo(self, session: holdfast.Session) -> None:
        session.redo()

    def _replace(self, session: holdfast.Session) -> None:
        kept = session.messages()[: self._chance.randint(0, session.head().seq)]
        kept = [message for message in kept if message.status != "erased"]
        session.replace([*kept, *self._said()])

    def _clear(self, session: holdfast.Session) -> None:
        session.clear()

    def _summarize(self, session: holdfast.Session) -> None:
        session.summarize(self._words())

    def _enqueue(self, session: holdfast.Session) -> None:
        session.enqueue([File(name="q", mime="text/plain", data=self._words().encode())])

    def _update(self, session: holdfast.Session) -> None:
        session.update(title=self._words(), metadata={"a": self._count}, pinned=True)

    def _trash(self, session: holdfast.Session) -> None:
        if session.id in self._trashed:
            self._store.restore(session.id)
            self._trashed.discard(session.id)
        else:
            self._store.trash(session.id)
            self._trashed.add(session.id)

    def _purge(self, _: holdfast.Session) -> None:
        """Purge one that others come from, if there is any."""
        some = self._chance.sample(self._sessions, k=min(4, len(self._sessions)))
        session = max(some, key=lambda one: len(one.children()))
        ways: list[Forks] = ["keep", "keep", "erase"]
        self._store.purge(session.id, forks=self._chance.choice(ways))
        self._sessions.remove(session)


def write_story(path: Path, seed: int, steps: int) -> None:
    """Make a store with sessions of two tenants."""
    put(path, _story(seed, steps))


@lru_cache(maxsize=10)
def _story(seed: int, steps: int) -> bytes:
    """Return the file of such a store; several tests tell the same stories."""
    chance = Random(seed)
    with TemporaryDirectory() as folder:
        path = Path(folder, "story.db")
        stores = [holdfast.open(path, tenant=name, durability="process") for name in TENANTS]
        try:
            stories = [Story(store, chance) for store in stores]
            for _ in range(steps):
                chance.choices(stories, (3, 1))[0].step()
        finally:
            for store in stores:
                store.close()
        return path.read_bytes()


Facts = tuple[
    SessionInfo,
    list[BranchInfo],
    list[Link],
    list[Link],
    list[TurnInfo],
    dict[int, list[Message]],
    list[Message],
    list[Record],
]


def facts(session: holdfast.Session) -> Facts:
    """All that a session tells."""
    branches = session.branches()
    return (
        session.info(),
        branches,
        session.lineage(),
        session.children(),
        session.turns(),
        {branch.number: session.messages(branch=branch.number) for branch in branches},
        [queued.message for queued in session.queued()],
        session.records(all_branches=True),
    )


def told(path: Path, tenants: tuple[str, ...] = TENANTS) -> dict[tuple[str, int], Facts]:
    """All that a store tells, by tenant and the session's number in the file."""
    found = {}
    for tenant in tenants:
        with holdfast.open(path, tenant=tenant) as store:
            for trashed in (False, True):
                for info in store.sessions(limit=500, trashed=trashed):
                    session = store.get(info.id)
                    found[tenant, number_of(session)] = facts(session)
    return found
