"""A process that runs random operations on a store, and reports them, until it is killed.

Each operation depends on what the store contains, and is printed as one line of JSON before it
runs; then a line reports how it ended. So a reader of the output can repeat the operations on
another store, step by step, and knows at any time what must be stored and what may be.

    python -c "…; main()" STORE NAME
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec

from holdfast import Head, Session, Store
from holdfast.errors import HoldfastError, SessionNotFound
from holdfast.values import Relation
from tests.crash._facts import open_store
from tests.crash._messages import message

MOST_SESSIONS = 8


class Deed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation on a session, by its key."""

    do: str
    key: str
    ids: tuple[str, ...] = ()
    to: int = 0
    head: tuple[int, int] | None = None
    """A place on any of its branches."""
    new: str = ""
    """The key of a session that is made."""
    erase: bool = False


def perform(store: Store, deed: Deed) -> None:
    """Do it."""
    match deed.do:
        case "make":
            store.create(key=deed.key, title=deed.key)
        case "restore":
            store.restore(deed.key)
        case "trash":
            store.trash(deed.key)
        case "purge":
            store.purge(deed.key, forks="erase" if deed.erase else "keep")
        case _:
            _inside(store, store.session(deed.key, create=False), deed)


def _inside(store: Store, session: Session, deed: Deed) -> None:
    place = deed.to if deed.head is None else Head(*deed.head)
    deeds: dict[str, Callable[[], object]] = {
        "append": lambda: session.append(*map(message, deed.ids)),
        "fork": lambda: session.fork(place, key=deed.new, title=deed.new),
        "rewind": lambda: session.rewind(place),
        "undo": lambda: session.undo(deed.to),
        "redo": session.redo,
        "clear": session.clear,
        "replace": lambda: session.replace([*map(message, deed.ids)]),
        "summarize": lambda: session.summarize(f"all up to {deed.to}", upto=deed.to),
        "continue": lambda: _create(store, deed, "continue"),
        "delegate": lambda: _create(store, deed, "delegate"),
    }
    deeds[deed.do]()


def _create(store: Store, deed: Deed, relation: Relation) -> None:
    store.create(key=deed.new, title=deed.new, parent=deed.key, relation=relation)


def outcome(store: Store, deed: Deed) -> str:
    """Run an operation and return its outcome: "done", or the error that refused it."""
    try:
        perform(store, deed)
    except HoldfastError as error:
        return type(error).__name__
    return "done"


# ------------------------------------------------------------------------------------ choosing

_WEIGHTS = {
    "append": 10, "fork": 3, "rewind": 4, "undo": 4, "redo": 4, "clear": 1, "replace": 2,
    "summarize": 2, "continue": 2, "delegate": 1, "trash": 1, "restore": 2, "purge": 2,
}  # fmt: skip


class Wanderer:
    """Chooses the next operation."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._chance = random.Random(name)
        self._numbers = count(1)

    def choose(self) -> Deed:
        """Return a random operation that fits the store's contents."""
        listed = self._store.sessions(limit=100).items
        keys = [str(info.key) for info in listed]
        if not keys:
            return Deed("make", self._fresh("talk"))
        do = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if len(keys) > MOST_SESSIONS:
            do = "purge"
        key = self._chance.choice(keys)
        if do == "restore":
            return self._restore()
        return self._deed(do, self._store.session(key, create=False))

    def _restore(self) -> Deed:
        trashed = self._store.sessions(limit=100, trashed=True).items
        if not trashed:
            return Deed("make", self._fresh("talk"))
        return Deed("restore", str(self._chance.choice(trashed).key))

    def _deed(self, do: str, session: Session) -> Deed:
        key, head = str(session.key), session.head()
        match do:
            case "append":
                return Deed(do, key, self._new_ids())
            case "fork" | "rewind":
                branch = self._chance.choice(session.branches())
                place = (branch.number, self._chance.randint(0, branch.seq))
                return Deed(do, key, head=place, new=self._fresh("fork") if do == "fork" else "")
            case "replace":
                kept = [found.id for found in session.messages()][: self._chance.randint(0, 6)]
                known = [id for id in kept if id.partition("-")[0] in {"user", "file", "big"}]
                return Deed(do, key, (*known, *self._new_ids()))
            case "continue" | "delegate":
                return Deed(do, key, new=self._fresh(do))
            case "purge":
                return Deed(do, key, erase=self._chance.random() < 0.5)
            case _:
                return Deed(do, key, to=self._chance.randint(1, max(1, head.seq)))

    def _new_ids(self) -> tuple[str, ...]:
        kinds = self._chance.choices(["user", "file", "big"], [8, 2, 1], k=3)
        return tuple(self._fresh(kind) for kind in kinds[: self._chance.randint(1, 3)])

    def _fresh(self, kind: str) -> str:
        return f"{kind}-{self._name}.{next(self._numbers)}"


def main() -> None:
    """Run operations until killed."""
    path, name = sys.argv[1:]
    with open_store(Path(path)) as store:
        wanderer = Wanderer(store, name)
        while True:
            try:
                deed = wanderer.choose()
            except SessionNotFound:
                continue  # Another process has just purged or trashed the chosen session.
            print(msgspec.json.encode(deed).decode(), flush=True)  # noqa: T201
            print(outcome(store, deed), flush=True)  # noqa: T201
