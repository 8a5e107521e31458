"""Stores that releases have written, kept as files: what a release stores, later ones must read.

`stores/VERSION.store.xz` is the file of a store in which everything occurs. Beside it is what it
holds: `VERSION.jsonl.xz` is its export, the tenants one after the other, and `VERSION.json` has the
heads of its sessions and the checksums of all its rows.

The test needs only the files. Those of a new release are made once, by that release:

    python -m tests.storage.kept_store VERSION
"""

import json
import lzma
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import apsw

import holdfast
from holdfast import File, Goal, Message, Raw, Store, Text, Thinking, ToolCall, ToolResult, Usage
from holdfast.codec import BLOB_THRESHOLD
from holdfast.storage.registry import open_backend
from holdfast.storage.sqlite.repair.row_scan import open_damaged
from holdfast.testing.conformance.fixtures import SetClock
from holdfast.url import parse_url
from holdfast.values import Provenance
from tests.storage.damage_cases import seal
from tests.transfer.views import lines_of, listed

STORES: Final = Path(__file__).parent / "stores"
TENANTS: Final = ("default", "other")
_HOLDER: Final = '{"host":"h","pid":1,"boot":"b","namespace":"n","started":"s"}'
KEYS: Final = {
    "sessions": "n",
    "heads": "session",
    "branches": "n",
    "messages": "place",
    "turns": "session, number",
    "tools": "session, turn, call_id",
    "drafts": "session, turn, number",
    "queue": "session, number",
    "usage": "session, day, model",
    "quarantine": "n",
}


def unpack(version: str, path: Path) -> Path:
    """Write the store of a release to `path`."""
    path.write_bytes(lzma.decompress((STORES / f"{version}.store.xz").read_bytes()))
    path.chmod(0o600)
    return path


def expected(version: str) -> tuple[list[bytes], dict[str, list[Any]], dict[str, list[int]]]:
    """Return what the store of a release holds: its export, its heads, its checksums."""
    lines = lzma.decompress((STORES / f"{version}.jsonl.xz").read_bytes())
    told = json.loads((STORES / f"{version}.json").read_text())
    return lines.splitlines(keepends=True), told["heads"], told["checksums"]


def exported(path: Path, folder: Path) -> list[bytes]:
    """Return what the store at `path` holds, as lines of an export, of all tenants."""
    return [line for tenant in TENANTS for line in _lines(path, tenant, folder / "out.jsonl")]


def _lines(path: Path, tenant: str, out: Path) -> Iterator[bytes]:
    with holdfast.open(path, tenant=tenant, readonly=True) as store:
        store.export(out, redact=None, overwrite=True)
    yield from lines_of(out)


def heads(path: Path) -> dict[str, list[Any]]:
    """Return where each session stands: branch, seq, turns, and how its last turn ended."""
    found: dict[str, list[Any]] = {}
    for tenant in TENANTS:
        with holdfast.open(path, tenant=tenant, readonly=True) as store:
            for info in (*listed(store), *listed(store, trashed=True)):
                head = store.get(info.id).head()
                found[info.id] = [head.branch, head.seq, info.turns, info.state]
    return found


def checksums(path: Path) -> dict[str, list[int]]:
    """Return the checksums as they are stored."""
    connection = open_damaged(path)
    try:
        return {
            table: [crc for (crc,) in connection.execute(f"SELECT crc FROM {table} ORDER BY {key}")]  # noqa: S608
            for table, key in KEYS.items()
        }
    finally:
        connection.close()


# ------------------------------------------------------------------------------------ making one


def _opened(path: Path, tenant: str, clock: SetClock) -> Store:
    where = parse_url(f"sqlite:///{path}", {})
    return Store(
        open_backend(where, tenant=tenant, durability="process", readonly=False, clock=clock), clock
    )


def _parts(store: Store) -> None:
    """Say everything that can be said in a message."""
    session = store.session(
        "parts",
        title="Every part",
        scope="bot",
        agent="a",
        cwd="/w",
        model="m",
        metadata={"a": {"b": [1, 2.5, None, True, "ü"]}},
    )
    file = File(name="f.txt", mime="text/plain", data=b"file")
    call = ToolCall("c1", "look", {"at": "Köln"})
    session.append(
        Message.system("be brief"),
        Message.user(["text", file, Raw("elsewhere", {"x": [1]})], name="Ann"),
        Message.assistant(
            [Thinking("hm", "c2ln"), Text("well"), call, ToolCall("c2", "look", "{broken")],
            model="m",
            usage=Usage(11, 7, 5, 3, 2),
            cost=Decimal("0.000000000001"),
        ),
        Message.tool("c1", [Text("found"), file, Raw("elsewhere", 1)]),
        Message.tool("c2", "no", error=True),
        Message.assistant("half", status="partial"),
        Message.user("unseen", metadata={"hidden": True}, provenance=Provenance("mail", "7")),
        Message.user("lone \udc80 surrogate, NUL \0, 日本"),
        Message.user("long " * (BLOB_THRESHOLD // 4)),
        Message(role="user", parts=(ToolResult("c9", "of no call", name="n"),)),
    )
    session.update(pinned=True, goal=Goal("get there", rounds=3))
    store.session("nul\0 and \ud800", title="\ud800").append(Message.user("odd name"))


def _turns(store: Store, clock: SetClock) -> None:
    """Take turns that end in every way."""
    session = store.session("turns")
    with session.turn(model="m", run_id="run-1") as turn:
        turn.user("weather?")
        calls = [ToolCall("c1", "look"), ToolCall("c2", "look"), ToolCall("c3", "look")]
        turn.assistant("", tool_calls=calls, usage=Usage(3, 4))
        turn.tool_started("c1")
        turn.tool("c1", "rain")
        turn.tool("c2", "broken", error=True)
    with session.turn(model="n") as turn:
        turn.user("again")
        with turn.stream() as draft:
            draft.write("sun")
            draft.usage(Usage(5, 6), cost=Decimal("0.25"))
    session.turn().__enter__().cancel("no need")
    session.turn().__enter__().fail("no reply")
    crashed = session.turn().__enter__()
    crashed.user("and now?")
    crashed.assistant("", tool_calls=[ToolCall("c1", "look")])
    crashed.tool_started("c1")
    draft = crashed.stream()
    draft.write("it is alrea")
    draft.flush()
    clock.advance(store.backend.lease + 1)
    session.recover()


def _histories(store: Store) -> None:
    """Move heads, fork, sum up, erase, throw away."""
    tree = store.session("tree")
    tree.append(*[Message.user(f"message {n}") for n in range(6)])
    tree.undo()
    tree.redo()
    tree.rewind(4)
    tree.append(Message.user("another way"))
    tree.replace([*tree.messages()[:2], Message.user("replaced")])
    tree.summarize("so far", upto=2)
    fork = tree.fork(2, key="fork")
    fork.append(Message.user("forked"))
    tree.erase(1)
    store.create(parent=tree, relation="continue", key="run").append(Message.user("on"))
    store.create(parent=tree, relation="delegate", title="helper")
    store.session("cleared").append(Message.user("gone"))
    store.session("cleared").clear()
    parent = store.session("parent")
    parent.append(Message.user("inherited"), Message.user("own"))
    parent.fork(1, key="heir").append(Message.user("mine"))
    store.purge("parent")
    other = store.session("erased parent")
    other.append(Message.user("to be erased"))
    other.fork(key="mourner").append(Message.user("stays"))
    store.purge("erased parent", forks="erase")
    store.session("trash").append(Message.user("thrown away"))
    store.trash("trash")
    store.session("archive").append(Message.user("old"))
    store.session("archive").update(archived=True)
    store.create(title="empty")


def _open_turn(store: Store) -> None:
    """Leave a turn open, with a reply that is being streamed and input that waits."""
    session = store.session("open")
    turn = session.turn(model="m").__enter__()
    turn.user("still running")
    turn.assistant("", tool_calls=[ToolCall("c1", "look"), ToolCall("c2", "look")])
    turn.tool_started("c1")
    draft = turn.stream()
    draft.think("hm")
    draft.write("partial text")
    draft.flush()
    draft.tool_call("d1", "look", {"n": 1})
    draft.flush()
    session.enqueue("and then?")
    session.enqueue([File(name="q", mime="text/plain", data=b"wait")])


def make(version: str, folder: Path) -> None:
    """Make a store, and keep it with what it holds."""
    path, kept, clock = folder / "a.db", folder / "kept.db", SetClock()
    with _opened(path, "other", clock) as other:
        other.session("parts").append(Message.user(["theirs", File(name="f", data=b"file")]))
    with _opened(path, "default", clock) as store:
        _parts(store)
        _turns(store, clock)
        _histories(store)
        _open_turn(store)
        store.backup(kept)
    connection = apsw.Connection(str(kept))
    with connection:
        connection.execute("UPDATE turns SET holder = ?", (_HOLDER,))
        connection.execute("INSERT INTO quarantine VALUES (1, 'messages', 'was torn', x'00ff', 0)")
        seal(connection)
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    STORES.mkdir(exist_ok=True)
    (STORES / f"{version}.store.xz").write_bytes(lzma.compress(kept.read_bytes(), preset=9))
    lines = b"".join(exported(kept, folder))
    (STORES / f"{version}.jsonl.xz").write_bytes(lzma.compress(lines, preset=9))
    told = {"heads": heads(kept), "checksums": checksums(kept)}
    (STORES / f"{version}.json").write_text(json.dumps(told) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        make(sys.argv[1], Path(made))
