"""The stores that the damage fuzz damages: everything that a store can hold, in several states.

Each world is made by a child process in two lives. The first fills a store and closes it; the
second goes on writing in many small commits and then closes it, or is killed with a live log. The
files as they were in between are kept: an earlier moment of the same store.

Before it ends, the child writes down what it was told is stored: the ids and texts of all messages.
Ids and sizes do not depend on chance, so that a damage at an offset hits the same thing again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from itertools import count
from pathlib import Path

import apsw
import msgspec

import holdfast
from holdfast import (
    File,
    Goal,
    Message,
    Raw,
    Record,
    Session,
    Store,
    Text,
    Thinking,
    ToolCall,
    Usage,
    ids,
)
from holdfast.url import Durability

DATABASE = "store.db"
TENANTS = ("default", "other")
FACTS = "facts.json"
_LARGE = 70_000  # A part of this size is a blob of its own.


@dataclass(frozen=True)
class World:
    """How a store was filled, and how its last process ended."""

    name: str
    talks: int = 2
    rounds: int = 4
    killed: bool = False
    durability: Durability = "power"
    restarted: bool = False  # The log was started again: it has older frames behind the newer.


WORLDS = (
    World("closed"),
    World("large", talks=8),
    World("power", killed=True),
    World("process", killed=True, durability="process"),
    World("restarted", rounds=6, killed=True, restarted=True),
)


def data(name: str, size: int) -> bytes:
    """Return bytes that do not compress and differ by name."""
    return b"".join(sha256(f"{name} {n}".encode()).digest() for n in range(size // 32 + 1))[:size]


def text(name: str, size: int) -> str:
    """Return words that differ by name."""
    words = f"{name} of the parcel to Oslo and back "
    return (words * (size // len(words) + 1))[:size]


def brief(value: object) -> str:
    """Return a hash of a value."""
    return sha256(msgspec.json.encode(value)).hexdigest()[:16]


def large_part() -> str:
    """Return a text that is stored as a blob, by several messages."""
    return text("parts-5", _LARGE)


def large_file() -> bytes:
    """Return the data of a file that several messages have."""
    return data("map", 90_000)


# ------------------------------------------------------------------------------------ first life


def fill(store: Store, talks: int) -> None:
    """Fill a store with everything there is."""
    _parts(store)
    _branches(store)
    _turns(store)
    _summary(store)
    _deleted(store)
    for number in range(talks):
        _talk(store, f"talk-{number}", 6 + number % 5)


def _parts(store: Store) -> None:
    session = store.session(
        "parts", title="Every part", scope="bot", agent="a", cwd="/w", metadata={"a": [1, "ü"]}
    )
    file = File(name="map.bin", mime="application/octet-stream", data=large_file())
    note = File(name="note.txt", mime="text/plain", data=b"a note")
    session.append(
        Message.system("be brief", id="parts-1"),
        Message.user(["a canary", file, note, Raw("elsewhere", {"x": [1]})], id="parts-2"),
        Message.assistant(
            [Thinking("hm"), Text("well"), ToolCall("c1", "look", {"at": "Köln"})],
            id="parts-3",
            model="m",
            usage=Usage(11, 7),
            cost=Decimal("0.25"),
        ),
        Message.tool("c1", [Text("found"), note], id="parts-4"),
        Message.user(large_part(), id="parts-5"),
        Message.assistant("half", status="partial", id="parts-6"),
    )
    session.update(pinned=True, goal=Goal("get there", rounds=3))


def _branches(store: Store) -> None:
    session = store.session("branches", title="Many branches", scope="bot")
    for number in range(1, 7):
        session.append(
            Message.user(text(f"branches-{number}", 60), id=f"branches-{number}"),
            Record("state", key=f"key {number % 2}", data=number, id=f"state-{number}"),
        )
    first = session.fork(3, key="fork", title="A fork")
    first.append(Message.user("fork-1 parcel", id="fork-1"))
    first.append(Record("state", key="key 1", data=text("state", 9_000), id="state-fork"))
    first.fork(key="fork of fork").append(Message.user("grandchild-1", id="grandchild-1"))
    store.create(key="run 2", parent=session).append(Message.user("run-1", id="run-1"))
    store.create(key="helper", parent=session, relation="delegate").append(
        Message.user("helper-1", id="helper-1")
    )
    session.rewind(5)
    session.append(Message.user("branches-7", id="branches-7"))
    session.rewind(2)
    session.append(*(Message.user(f"branches-{n}", id=f"branches-{n}") for n in (8, 9)))
    session.replace([Message.user("branches-10", id="branches-10"), *session.messages()])
    session.clear()
    session.redo()


def _turns(store: Store) -> None:
    session = store.session("turns", model="m")
    session.enqueue(Message.user(["queued-1", File(name="q", data=b"q" * 99)], id="queued-1"))
    for number in range(3):
        with session.turn(model="m", run_id=f"run-{number}") as turn:
            turn.take_queued()
            turn.user(f"turns-user-{number}", id=f"turns-user-{number}")
            calls = [ToolCall(f"t{number}", "track", {"id": number})]
            turn.assistant(
                "looking",
                tool_calls=calls,
                usage=Usage(30, 6),
                cost=Decimal("0.01"),
                id=f"turns-call-{number}",
            )
            turn.tool_started(f"t{number}")
            turn.tool(f"t{number}", text(f"turns-result-{number}", 300), id=f"turns-r-{number}")
            if number == 1:
                turn.fail("it broke")
            else:
                turn.assistant("done", usage=Usage(40, 2), id=f"turns-done-{number}")
    session.enqueue(Message.user("queued-2", id="queued-2"))


def _summary(store: Store) -> None:
    session = store.session("summary", scope="bot")
    session.append(*(Message.user(text(f"sum-{n}", 400), id=f"sum-{n}") for n in range(8)))
    session.summarize("it was about a parcel", upto="sum-5")
    session.append(Message.assistant("sum-8", id="sum-8"))


def _deleted(store: Store) -> None:
    trashed = store.session("trashed", title="In the trash")
    trashed.append(Message.user("trashed-1", id="trashed-1"))
    store.trash("trashed")
    parent = store.session("purged")
    parent.append(*(Message.user(f"purged-{n}", id=f"purged-{n}") for n in range(4)))
    parent.fork(2, key="of a purged one").append(Message.user("orphan-1", id="orphan-1"))
    store.purge("purged")
    erased = store.session("erased")
    erased.append(*(Message.user(f"erased-{n}", id=f"erased-{n}") for n in range(3)))
    erased.erase("erased-1")


def _talk(store: Store, key: str, messages: int) -> None:
    session = store.session(key, scope="talk")
    for number in range(messages):
        name = f"{key}-{number}"
        session.append(
            Message.user(text(name, 50 + 170 * number), id=name),
            Message.assistant(f"reply to {name}", id=f"{name}-r", usage=Usage(5, 5)),
        )


# ----------------------------------------------------------------------------------- second life


def go_on(store: Store, life: str, rounds: int) -> None:
    """Write to all sessions in turn, in many small commits."""
    living = [store.get(info.id) for info in listed(store)]
    living.sort(key=lambda session: session.key or "")
    for number in range(rounds):
        for session in living:
            name = f"{session.key}-{life}-{number}"
            session.append(Message.user(text(name, 40 + 90 * (number % 4)), id=name))
    parts = store.session("parts")
    parts.append(Message.user(large_part(), id=f"parts-equal-{life}"))
    parts.append(Message.user([File(name="new", data=data(life, 66_000))], id=f"parts-new-{life}"))
    store.session("branches").rewind(4)
    store.session("branches").append(Message.user(f"branches-{life}", id=f"branches-{life}"))
    store.session("talk-0").update(title=f"Renamed {life}", metadata={"life": life})
    store.session("turns").enqueue(Message.user(f"queued-{life}", id=f"queued-{life}"))


def open_turn(store: Store) -> None:
    """Open a turn, with a tool that runs and a reply half streamed."""
    turn = store.session("open", title="Left open").turn(run_id="run-open").__enter__()
    turn.user("open-1", id="open-1")
    turn.assistant("I will.", tool_calls=[ToolCall("o1", "send", {})], id="open-2")
    turn.tool_started("o1")
    reply = turn.stream()
    for _ in range(3):
        reply.write(text("a streamed reply", 700))
        reply.flush()


def listed(store: Store) -> Iterator[holdfast.values.SessionInfo]:
    """List the sessions, and those in the trash."""
    for trashed in (False, True):
        cursor = None
        while True:
            page = store.sessions(trashed=trashed, limit=50, cursor=cursor)
            yield from page
            cursor = page.cursor
            if cursor is None:
                break


# ---------------------------------------------------------------------------------- the process


def _facts(path: Path) -> dict[str, object]:
    """Write down all that is stored, as the process that stored it reads it."""
    sessions = []
    blobs = set()
    for tenant in TENANTS:
        with holdfast.open(path, tenant=tenant) as store:
            for info in listed(store):
                session = store.get(info.id)
                sessions.append(
                    {
                        "id": session.id,
                        "key": session.key,
                        "tenant": tenant,
                        "title": info.title,
                        "parent": info.parent,
                        "branches": len(session.branches()),
                        "messages": [[m.id, brief(m)] for m in session.messages()],
                        "trashed": info.trashed,
                    }
                )
                blobs |= {(tenant, name) for name in _files(session)}
    return {"sessions": sessions, "blobs": sorted(blobs)}


def _files(session: Session) -> Iterator[str]:
    for message in session.messages():
        for part in message.parts:
            if isinstance(part, File) and part.sha256:
                yield part.sha256


def _without_chance(world: str) -> None:
    """Make ids that do not depend on chance."""
    numbers = count(1)

    def session_id() -> str:
        number = f"{world} {next(numbers)}".encode()
        return b32encode(sha256(number).digest()[:10]).decode("ascii").lower()

    ids.session_id = session_id


def main() -> None:
    """Make a world in a folder: `files` is the store, `earlier` what it was before."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    world = next(world for world in WORLDS if world.name == name)
    _without_chance(name)
    files = folder / "files"
    files.mkdir(parents=True)
    path = files / DATABASE
    with holdfast.open(path) as store, holdfast.open(path, tenant="other") as other:
        fill(store, world.talks)
        _talk(other, "foreign", 4)
        store.catch_up_index()
        other.catch_up_index()
    if not world.killed:
        shutil.copytree(files, folder / "earlier")
    store = holdfast.open(path, durability=world.durability)
    other = holdfast.open(path, tenant="other", durability=world.durability)
    if world.killed:
        open_turn(store)
        go_on(store, "second", world.rounds)
        store.flush()
        shutil.copytree(files, folder / "earlier")
    if world.restarted:
        beside = apsw.Connection(str(path))
        beside.execute("PRAGMA wal_checkpoint(RESTART)")
        beside.close()
    go_on(store, "last", 3)
    other.session("foreign").append(Message.user("foreign-last", id="foreign-last"))
    store.catch_up_index()
    _talk(store, "not indexed", 2)
    store.flush()
    (folder / FACTS).write_text(json.dumps(_facts(path)))
    if world.killed:
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()
    other.close()


if __name__ == "__main__":
    main()
