"""Scenes of moves, forks and deletions, and a comparable view of a whole store.

A scene is a prepared store and a list of steps. Each step is one write that a program may retry
when its outcome is unknown: by its expected head, by its key, or by the ids of its messages. A
retry after it was done is refused by the error the step names, or changes nothing.

`look` returns everything of a store that a user can see, except what is random (generated ids,
times): two stores with equal views hold the same facts. A scene is *rehearsed* on a disk that does
not fail, which gives the expected view before and after each step. Whatever happens to another
run, its view must be one of these: no state in between.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

import holdfast
from holdfast import File, Head, Message, Record, Session, Store
from holdfast.errors import HeadMoved, HoldfastError, KeyTaken, SessionNotFound, StorageError
from holdfast.values import Link, SessionInfo
from tests.crash._facts import DATABASE, open_store
from tests.crash._messages import looks, message

_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Step:
    """One write, and the error that refuses a retry after it was done."""

    do: Callable[[Store], object]
    again: type[HoldfastError] | None = None

    def repeat(self, store: Store) -> None:
        """Retry a step that is done already."""
        try:
            self.do(store)
        except HoldfastError as error:
            if self.again is None or not isinstance(error, self.again):
                raise
        else:
            assert self.again is None, "what was done already was not refused"


@dataclass(frozen=True)
class Scene:
    """A prepared store, and the steps to run on it."""

    name: str
    prepare: Callable[[Store], object]
    steps: Sequence[Step]
    gone: Sequence[str] = ()
    """Words that must be in no file of the store when all is done and it is closed."""

    def __str__(self) -> str:
        return self.name

    def finish(self, store: Store, done: int) -> None:
        """Retry the last completed step, then run the remaining ones."""
        if done:
            self.steps[done - 1].repeat(store)
        for step in self.steps[done:]:
            step.do(store)

    def left_nothing(self, directory: Path) -> bool:
        """True if the words that must be gone are in no file."""
        files = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
        return not any(word.encode() in data for word in self.gone for data in files)


# ----------------------------------------------------------------------------------- the view


def look(store: Store) -> str:
    """Return the view of a store."""
    listed = store.sessions(limit=100).items
    trashed = store.sessions(limit=100, trashed=True).items
    names = {info.id: _name(info) for info in (*listed, *trashed)}
    stats = store.stats()
    counts = (stats.sessions, stats.trashed, stats.branches, stats.messages, stats.turns)
    spent = [(day.model, day.usage, day.cost) for day in stats.days]
    seen = {
        "sessions": [_see(store, info, names) for info in (*listed, *trashed)],
        "stats": (*counts, stats.open_turns, stats.blobs, stats.blob_bytes, spent),
        "profile": _state(store, store.record("profile", "a", scope="here")),
    }
    return msgspec.json.encode(seen, enc_hook=str).decode()


def _name(info: SessionInfo) -> str:
    return f"{info.key}/{info.title}{' in the trash' if info.trashed else ''}"


def _see(store: Store, info: SessionInfo, names: dict[str, str]) -> dict[str, object]:
    session = store.get(info.id) if not info.trashed else None
    facts = (info.preview, info.messages, info.turns, info.usage, info.cost, info.interrupted)
    told: dict[str, object] = {"name": names[info.id], "facts": facts, "relation": info.relation}
    told["parent"] = _known(info.parent, names)
    return told if session is None else told | _see_inside(store, session, names)


def _see_inside(store: Store, session: Session, names: dict[str, str]) -> dict[str, object]:
    branches = session.branches()
    turns = session.turns()
    current = _history(store, session.messages())
    histories = [_history(store, session.messages(branch=b.number)) for b in branches]
    assert current == histories[-1]
    return {
        "branches": [
            (b.number, b.parent, _known(b.parent_id, names), b.fork_seq, b.asked_seq, b.seq,
             b.reason, b.abandoned_by) for b in branches
        ],
        "histories": histories,
        "records": [_state(store, found) for found in session.records(all_branches=True)],
        "newest": _state(store, session.record("state", "a")),
        "lineage": [_link(link, names) for link in session.lineage()],
        "children": [_link(link, names) for link in session.children()],
        "turns": [(t.state, [(c.call_id, c.outcome) for c in t.tools]) for t in turns],
        "queue": [waiting.id for waiting in session.queued()],
    }  # fmt: skip


def _link(link: Link, names: dict[str, str]) -> tuple[object, ...]:
    return _known(link.session_id, names), link.relation, link.seq, link.state


def _known(session_id: str | None, names: dict[str, str]) -> str | None:
    return None if session_id is None else names.get(session_id, "somebody who is gone")


def _history(store: Store, messages: Sequence[Message]) -> list[tuple[object, ...]]:
    assert [found.seq for found in messages] == list(range(1, len(messages) + 1))
    for found in messages:
        for part in found.parts:
            if isinstance(part, File):
                assert sha256(store.blob(str(part.sha256))).hexdigest() == part.sha256
    places = {found.id: found.seq for found in messages}
    return [
        (_named(m.id), (m.turn_id or "").rpartition(".")[2], looks(m), _covered(m.covers, places))
        for m in messages
    ]


def _state(store: Store, record: Record | None) -> object:
    """Return what a record holds; the data of its files must be there."""
    if record is None:
        return None
    for file in record.files.values():
        assert sha256(store.blob(str(file.sha256))).hexdigest() == file.sha256
    files = [(name, file.sha256) for name, file in record.files.items()]
    return record.kind, record.key, record.id, record.seq, record.data, files


def _named(id: str) -> str:
    return _MADE_UP.sub("made up", id)


def _covered(id: str | None, places: dict[str, int | None]) -> object:
    """Return what a summary covers by position: it may be a summary, whose id is generated."""
    return None if id is None else places.get(id) or _named(id)


# ------------------------------------------------------------------------------ the rehearsal


def prepare(scene: Scene, directory: Path) -> None:
    """Create the store with which a scene begins."""
    with open_store(directory / DATABASE) as store:
        scene.prepare(store)


def copy(base: Path, directory: Path) -> None:
    """Copy a prepared store, and the files beside it, to another directory."""
    for name in (DATABASE, "family.jsonl"):
        if (base / name).exists():
            shutil.copy(base / name, directory / name)


def rehearse(scene: Scene, base: Path, directory: Path) -> list[str]:
    """Run a scene; return the views at first and after each step."""
    copy(base, directory)
    with open_store(directory / DATABASE, hours=1) as store:
        views = [look(store)]
        for step in scene.steps:
            step.do(store)
            views.append(look(store))
            assert store.verify() == []
            step.repeat(store)
            assert look(store) == views[-1], "asking again changed something"
    assert all(old != new for old, new in pairwise(views)), "a step that changes nothing"
    assert scene.left_nothing(directory)
    return views


class Rehearsals:
    """The initial store of each scene and its views step by step; created on first access."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder
        self._known: dict[str, tuple[Path, list[str]]] = {}

    def of(self, scene: Scene) -> tuple[Path, list[str]]:
        """Return the directory with the store, and the views."""
        if scene.name not in self._known:
            base = self._new_folder("base")
            prepare(scene, base)
            self._known[scene.name] = base, rehearse(scene, base, self._new_folder("rehearsal"))
        return self._known[scene.name]


# -------------------------------------------------------------------------------- the scenes


def _talk(store: Store) -> Session:
    """Two turns, one with a tool, one that cost something: five messages."""
    session = store.session("talk", title="the talk", scope="here")
    for ids in (("user-1", "call-x", "result-x"), ("user-2", "reply-2")):
        with session.turn() as turn:
            for id in ids:
                turn.add(message(id))
    return session


def _interrupted(store: Store) -> Session:
    """A talk whose holder died during a reply, with a running tool and queued input."""
    session = _talk(store)
    session.enqueue(message("file-queued"))
    turn = session.turn().__enter__()
    turn.add(message("user-3"))
    turn.add(message("call-y"))
    turn.tool_started("y")
    reply = turn.stream()
    reply.write("a draft of so far")
    reply.flush()
    return session


def _family(store: Store) -> Session:
    """A talk with files, a fork of its beginning, and a fork of that."""
    session = _talk(store)
    session.append(message("file-shared"), message("file-likewise"))
    child = session.fork(key="child", title="the child")
    session.append(message("file-own"), message("user-own"))
    session.undo()
    session.append(message("file-ours"))
    child.append(message("user-child"))
    child.fork(at=6, key="grandchild").append(message("user-grandchild"))
    return session


def _exported(store: Store) -> Session:
    """A store with a session, and beside it an export file with a family of another store."""
    with holdfast.open("memory:") as elsewhere:
        _family(elsewhere)
        elsewhere.export(_beside(store), redact=None)
    session = store.session("own")
    session.append(message("user-own"))
    return session


def _beside(store: Store) -> Path:
    return Path(store.url).with_name("family.jsonl")


def _on(key: str, do: Callable[[Session], object]) -> Callable[[Store], object]:
    return lambda store: do(store.session(key, create=False))


def _say(key: str, *ids: str) -> Step:
    return Step(_on(key, lambda session: session.append(*map(message, ids))))


def _moves(do: Callable[[Session], object]) -> Step:
    """A move of the talk's head, with an expected head."""
    return Step(_on("talk", do), HeadMoved)


def _new(do: Callable[[Store], object]) -> Step:
    """A new session; its key is taken afterwards."""
    return Step(do, KeyTaken)


def _purge(key: str, *, erase: bool = False) -> Step:
    return Step(lambda store: store.purge(key, forks="erase" if erase else "keep"), SessionNotFound)


def _trash(name: str) -> Step:
    return Step(lambda store: store.trash(name), SessionNotFound)


def _history_of(*ids: str) -> list[Message]:
    return [message(id) for id in ids]


def _record(kind: str, id: str, scope: str | UnsetType = UNSET) -> Record:
    """A record with data and a file of its own."""
    file = File(data=f"file-{id} ".encode() * 200)
    return Record(kind, key="a", id=id, data=f"data-{id}", files={"f": file}, scope=scope)


def _keep(key: str, *entries: str) -> Step:
    """Append messages, and records of a session (`state-…`) and of the store (`profile-…`)."""

    def entry(id: str) -> Message | Record:
        kind, _, _ = id.partition("-")
        if kind == "state":
            return _record("state", id)
        return _record("profile", id, scope="here") if kind == "profile" else message(id)

    return Step(_on(key, lambda session: session.append(*map(entry, entries))))


FORK = Scene(
    "fork",
    _talk,
    [
        _new(_on("talk", lambda talk: talk.fork(key="whole", title="all of it"))),
        _new(_on("talk", lambda talk: talk.fork(2, key="part", expect=Head(1, 5)))),
        _say("whole", "user-w", "file-w"),
        _new(_on("whole", lambda whole: whole.fork("user-w", key="fork of a fork"))),
        _say("talk", "user-3"),
        _say("fork of a fork", "file-w", "user-f"),
    ],
)

MOVES = Scene(
    "rewind-undo-redo-clear",
    _talk,
    [
        _moves(lambda talk: talk.undo(expect=Head(1, 5))),
        _moves(lambda talk: talk.undo(expect=Head(2, 3))),
        _moves(lambda talk: talk.redo(expect=Head(3, 0))),
        _moves(lambda talk: talk.redo(expect=Head(4, 3))),
        _moves(lambda talk: talk.rewind(2, expect=Head(5, 5))),
        _say("talk", "user-9", "file-9"),
        _moves(lambda talk: talk.rewind("reply-2", expect=Head(6, 3))),
        _moves(lambda talk: talk.clear(expect=Head(7, 5))),
        _moves(lambda talk: talk.redo(expect=Head(8, 0))),
    ],
)

RECOVERS = Scene(
    "undo-what-a-crash-left-open",
    _interrupted,
    [
        _moves(lambda talk: talk.undo(expect=Head(1, 7))),
        _moves(lambda talk: talk.redo(expect=Head(2, 5))),
        _moves(lambda talk: talk.clear(expect=Head(3, 8))),
    ],
)

REPLACE = Scene(
    "replace",
    _talk,
    [
        _moves(
            lambda talk: talk.replace(
                _history_of("user-1", "call-x", "result-x", "big-7", "file-8"), expect=Head(1, 5)
            )
        ),
        _moves(
            lambda talk: talk.replace(
                _history_of("user-1", "file-8", "reply-2", "big-9"), expect=Head(2, 5)
            )
        ),
        _moves(lambda talk: talk.replace([], expect=Head(3, 4))),
        # From here on it only grows: stored messages are not stored again.
        Step(
            _on(
                "talk",
                lambda talk: talk.replace(
                    _history_of("user-1", "call-x", "result-x", "user-2", "reply-2"),
                    expect=Head(4, 0),
                ),
            )
        ),
        Step(
            _on(
                "talk",
                lambda talk: talk.replace(
                    _history_of("user-1", "call-x", "result-x", "user-2", "reply-2", "file-3"),
                    expect=Head(4, 5),
                ),
            )
        ),
    ],
)

WHOLE = Scene(
    "change-with-an-update",
    _talk,
    [
        Step(
            _on(
                "talk",
                lambda talk: talk.append(
                    message("user-3"), message("file-3"), update={"title": "three"}
                ),
            )
        ),
        _moves(lambda talk: talk.rewind(2, exact=True, expect=Head(1, 7), update={"title": "two"})),
        _moves(lambda talk: talk.pop(expect=Head(2, 2))),
        _moves(
            lambda talk: talk.replace(
                _history_of("big-7"), keep=Head(1, 4), expect=Head(3, 1), update={"title": "tail"}
            )
        ),
        _moves(lambda talk: talk.amend("user-1", "amended words", expect=Head(4, 5))),
        _new(
            _on(
                "talk",
                lambda talk: talk.fork(
                    2,
                    exact=True,
                    key="apart",
                    entries=_history_of("user-a", "file-a"),
                    update={"title": "a fork"},
                ),
            )
        ),
        _new(
            lambda store: store.create(
                key="new", entries=_history_of("user-n"), update={"title": "a new one"}
            )
        ),
        Step(lambda store: store.trash("new", expect=Head(1, 1)), SessionNotFound),
        Step(_on("talk", lambda talk: talk.erase("user-1"))),
    ],
    gone=("user-1 says", "amended words"),
)

SUMMARIZE = Scene(
    "summarize",
    _talk,
    [
        _moves(lambda talk: talk.summarize("in short", upto=3, expect=Head(1, 5))),
        _say("talk", "user-3"),
        _moves(lambda talk: talk.summarize("even shorter", expect=Head(1, 7))),
        _moves(lambda talk: talk.undo(expect=Head(1, 8))),
    ],
)

CONTINUE = Scene(
    "create-with-a-parent",
    _talk,
    [
        _new(lambda store: store.create(key="run-2", parent="talk")),
        _say("run-2", "user-3"),
        _new(lambda store: store.create(key="run-3", parent="run-2", relation="continue")),
        _new(lambda store: store.create(key="new", parent="talk", relation="reset")),
        _new(lambda store: store.create(key="helper", parent="talk", relation="delegate")),
        _say("helper", "file-help"),
        _say("run-3", "file-help"),
    ],
)

RECORDS = Scene(
    "records",
    _talk,
    [
        _keep("talk", "user-3", "state-1", "file-4", "state-2", "profile-1"),
        _new(_on("talk", lambda talk: talk.fork(key="child"))),
        _keep("child", "state-3"),
        _new(_on("child", lambda child: child.fork(key="grandchild"))),
        _keep("talk", "state-4"),
        Step(lambda store: store.put_record(_record("profile", "profile-2"), scope="here")),
        _moves(lambda talk: talk.undo(expect=Head(1, 7))),
        _keep("talk", "user-5", "state-5", "state-6"),
        Step(_on("talk", lambda talk: talk.drop(kind="state", keep=1))),
        _purge("grandchild"),
        _purge("child"),
        Step(_on("talk", lambda talk: talk.drop(kind="state", keys=["a"]))),
        _keep("talk", "user-6", "state-7"),
        _purge("talk"),
    ],
    gone=tuple(f"data-state-{n}" for n in range(1, 8))
    + tuple(f"file-state-{n}" for n in range(1, 8)),
)

TRASH = Scene(
    "trash-restore",
    _talk,
    [
        _trash("the talk"),
        Step(lambda store: store.session("talk", title="another")),
        _say("talk", "user-1"),
        Step(lambda store: store.restore("the talk", keyless=True)),
        _trash("another"),
        Step(lambda store: store.restore("another")),
    ],
)

PURGE = Scene(
    "purge-what-a-fork-shares",
    _family,
    [
        _purge("talk"),
        _say("child", "user-on"),
        _new(_on("child", lambda child: child.fork("reply-2", key="late"))),
        _purge("child"),
        _purge("grandchild"),
        _say("late", "user-late"),
        _purge("late"),
    ],
    gone=("user-1", "user-2", "user-own", "user-child", "file-shared", "file-ours", "user-late"),
)

ERASE = Scene(
    "purge-in-the-forks-too",
    _family,
    [
        _purge("talk", erase=True),
        _say("child", "user-on"),
        Step(_on("child", lambda child: child.undo(expect=Head(1, 9))), HeadMoved),
        _purge("grandchild", erase=True),
    ],
    # A tombstone keeps the id, so it is the content that must be gone.
    gone=("user-2 says", "reply-2 it is", "file-sharedfile", "file-likewisefile", "user-own"),
)

LEFTOVERS = Scene(
    "purge-what-a-crash-left-open",
    _interrupted,
    [
        _trash("talk"),
        _purge("talk"),
        Step(lambda store: store.session("talk")),
        _say("talk", "user-new"),
    ],
    gone=("user-1", "user-3", "a draft of", "file-queued", "the talk"),
)

IMPORT = Scene(
    "import",
    _exported,
    [
        Step(lambda store: store.import_(_beside(store), trust=True)),
        _say("child", "file-on"),
        Step(lambda store: store.purge("talk"), SessionNotFound),
    ],
)

SCENES = [
    FORK, MOVES, RECOVERS, REPLACE, WHOLE, SUMMARIZE, CONTINUE, RECORDS, TRASH, PURGE, ERASE,
    LEFTOVERS,
    IMPORT,
]  # fmt: skip


def main() -> None:
    """Run a scene in a process of its own: `main()` SCENE STORE; print each completed step."""
    name, path = sys.argv[1:]
    scene = next(scene for scene in SCENES if scene.name == name)
    try:
        with open_store(Path(path), hours=1) as store:
            for step in scene.steps:
                step.do(store)
                print("done", flush=True)  # noqa: T201
    except StorageError as error:
        print(type(error).__name__, flush=True)  # noqa: T201
