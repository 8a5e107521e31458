"""Reading a store in every way there is, then writing to it: what a damaged store says of itself.

It runs in a child process, since a damaged file may end or hang it. The child reads the store
read-only, has `doctor` check it, opens it for writing, reads again, verifies, appends to every
session, opens it once more, and salvages it, before anything was written and after.

Each read is one entry of a *view*: a value that can be compared, or the error that it raised.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import File, HoldfastError, Message, Record, Session, Store
from holdfast import cli as command
from holdfast.values import BranchChanged, Provider
from tests.crash._damage_worlds import DATABASE, TENANTS, brief, large_file, large_part

View = dict[str, Any]
PROVIDERS: tuple[Provider, ...] = ("openai", "anthropic")
QUERIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("canary", {}),
    ("parcel", {"limit": 200}),
    ("later OR last", {}),
    ("oslo", {"all_branches": True, "limit": 200}),
    ("renamed", {}),
    ("queued", {"around": 1}),
    ("reply", {"session": "talk-0", "limit": 100}),
)


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return a value as JSON has it."""
    return json.loads(msgspec.json.encode(value))


def attempt(read: Callable[[], object]) -> dict[str, Any]:
    """Return what a read returns, or the error that it raises."""
    try:
        return {"value": read()}
    except HoldfastError as error:
        return {"error": type(error).__name__, "text": str(error)}
    except Exception:  # noqa: BLE001 - that there is no other error is what is tested
        return {"crash": traceback.format_exc()}


# ------------------------------------------------------------------------------------ the reads


def said(messages: list[Message]) -> list[dict[str, Any]]:
    """Return messages, by what they say."""
    return [
        {"id": m.id, "seq": m.seq, "status": m.status, "said": brief(m), "turn": m.turn_id}
        for m in messages
    ]


def kept(records: Iterable[Record]) -> list[object]:
    """Return records, by what they hold."""
    return [(record.id, record.kind, record.key, record.seq, record.data) for record in records]


def followed(session: Session) -> list[dict[str, Any]]:
    """Return what a follower receives from the start."""
    follower = session.follow()
    found: list[Message] = []
    while (item := follower.poll()) is not None:
        assert not isinstance(item, BranchChanged)
        found.append(item)
    return said(found)


def of_session(session: Session, branches: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each way to read a session."""
    yield "info", lambda: plain(session.info())
    yield "head", lambda: plain(session.head())
    yield "messages", lambda: said(session.messages())
    yield "newest", lambda: said(session.messages(limit=3))
    yield "users", lambda: said(session.messages(role="user"))
    yield "newest replies", lambda: said(session.messages(role="assistant", limit=2))
    for number in range(1, branches + 1):
        yield f"branch {number}", partial(_branch, session, number)
    for provider in PROVIDERS:
        yield f"window {provider}", partial(_window, session, provider)
    yield "small window", lambda: brief(session.window(max_tokens=200))
    yield "summary", lambda: plain(session.summary())
    yield "covered", session.covered
    yield "branches", lambda: plain(session.branches())
    yield "lineage", lambda: plain(session.lineage())
    yield "children", lambda: plain(session.children())
    yield "turns", lambda: plain(session.turns())
    yield "queued", lambda: brief(session.queued())
    yield "usage", lambda: plain(session.usage())
    yield "follow", lambda: followed(session)
    yield "records", lambda: kept(session.records())
    yield "state", lambda: kept(filter(None, [session.record("state", "key 1")]))


def _branch(session: Session, number: int) -> object:
    return said(session.messages(branch=number))


def _window(session: Session, provider: Provider) -> object:
    return brief(session.window(provider=provider))


def listed(store: Store, **options: Any) -> list[Any]:  # noqa: ANN401
    """Return all pages of a list."""
    found: list[Any] = []
    cursor = None
    while True:
        page = store.sessions(limit=7, cursor=cursor, **options)
        found += plain(page.items)
        cursor = page.cursor
        if cursor is None:
            return found


def hits(store: Store, text: str, options: dict[str, Any]) -> list[Any]:
    """Return what a search finds, without its score."""
    found = store.search(text, **options)
    return [
        [hit.session_id, hit.message_id, hit.seq, hit.snippet, hit.more, brief(hit.before)]
        for hit in found
    ]


def stats(store: Store) -> dict[str, Any]:
    """Return the counts of what is stored."""
    counts: dict[str, Any] = plain(store.stats())
    return {name: count for name, count in counts.items() if name != "file_bytes"}


def activity(store: Store) -> list[Any]:
    """Return which sessions were written to."""
    follower = store.follow()
    found = []
    while (item := follower.poll()) is not None:
        found.append(plain(item))
    return found


def exported(store: Store, to: Path) -> list[str]:
    """Return the lines of an export, each as a hash; the first has its time."""
    store.export(to, redact=None, overwrite=True)
    lines = to.read_bytes().splitlines()[1:]
    to.unlink()
    return [sha256(line).hexdigest()[:16] for line in lines]


def of_store(store: Store, facts: dict[str, Any], out: Path) -> Iterator[Any]:
    """Yield each way to read a store: its name, and the read."""
    yield "list", lambda: listed(store)
    yield "list trash", lambda: listed(store, trashed=True)
    yield "list pinned", lambda: listed(store, order="pinned")
    yield "list scope", lambda: listed(store, scope="bot")
    yield "list text", lambda: listed(store, text="parcel")
    yield "metadata", lambda: listed(store, metadata={"a": [1, "ü"]})
    yield "list open", lambda: listed(store, state="interrupted")
    yield "latest", lambda: getattr(store.latest(), "id", None)
    yield "stats", lambda: stats(store)
    yield "activity", lambda: activity(store)
    yield "export", lambda: exported(store, out)
    for text, options in QUERIES:
        yield f"search {text}", lambda text=text, options=options: hits(store, text, options)
    for tenant, name in facts["blobs"]:
        if tenant == store.tenant:
            yield f"blob {name[:8]}", lambda name=name: sha256(store.blob(name)).hexdigest()
    for fact in facts["sessions"]:
        if fact["tenant"] == store.tenant:
            if fact["key"] and not fact["trashed"]:
                yield f"key {fact['key']}", lambda fact=fact: store.get(fact["key"]).id
            if fact["title"]:
                yield f"title {fact['title']}", lambda fact=fact: _found(store, fact["title"])


def _found(store: Store, ref: str) -> str:
    try:
        return store.get(ref).id
    except holdfast.errors.AmbiguousRef as several:
        return " ".join(sorted(one.id for one in several.candidates))


def view(store: Store, facts: dict[str, Any], out: Path) -> View:
    """Read everything; return it with the damage that was found meanwhile."""
    found: View = {}
    for name, read in of_store(store, facts, out):
        found[name] = attempt(read)
    for fact in facts["sessions"]:
        if fact["tenant"] != store.tenant:
            continue
        opened = attempt(partial(store.get, fact["id"]))
        session = opened.pop("value", None)
        if session is None:
            found[f"{fact['id']} get"] = opened
            continue
        for name, read in of_session(session, fact["branches"]):
            found[f"{fact['id']} {name}"] = attempt(read)
    return found


def opened(path: Path, *, readonly: bool, tenant: str, then: Callable[[Store], Any]) -> Any:  # noqa: ANN401
    """Open a store, use it, close it; return the error that was raised, if one was."""

    def use() -> object:
        with holdfast.open(path, readonly=readonly, tenant=tenant) as store:
            return then(store)

    return attempt(use)


def reading(path: Path, facts: dict[str, Any], *, readonly: bool, out: Path) -> dict[str, Any]:
    """Read everything of all tenants, then verify."""
    found: dict[str, Any] = {}
    for tenant in TENANTS:

        def read(store: Store, tenant: str = tenant) -> dict[str, Any]:
            seen: dict[str, Any] = {"view": view(store, facts, out)}
            seen["damage"] = plain(store.damage)
            seen["index"] = attempt(store.check_index)
            if tenant != TENANTS[0]:
                return seen
            # Whether damage is known before it is written to, or found afterwards.
            if not readonly and not facts.get("verify first", True):
                seen["appends"] = appended(store, facts)
            seen["verify"] = attempt(lambda: plain(store.verify()))
            if not readonly and "appends" not in seen:
                seen["appends"] = appended(store, facts)
            return seen

        found[tenant] = opened(path, readonly=readonly, tenant=tenant, then=read)
    return found


# ----------------------------------------------------------------------------------- the writes


def appended(store: Store, facts: dict[str, Any]) -> dict[str, Any]:
    """Append to every session, and read what was acknowledged."""
    found = {}
    for fact in facts["sessions"]:
        if fact["tenant"] != store.tenant or fact["trashed"]:
            continue

        def append(fact: dict[str, Any] = fact) -> object:
            session = store.get(fact["id"])
            head = session.append(after(fact))
            return {"head": plain(head), "seen": attempt(lambda: newest(store, session))}

        found[fact["id"]] = attempt(append)
    return found


def after(fact: dict[str, Any]) -> Message:
    """Return what is appended to a session; one of them repeats a large part and a file."""
    parts: list[str | File] = [f"after in {fact['key']}"]
    if fact["key"] == "parts":
        parts += [large_part(), File(name="again", data=large_file())]
    return Message.user(parts, id=f"after-{fact['id']}")


def acknowledged(fact: dict[str, Any]) -> list[str]:
    """Return how that message is read, as in `newest`."""
    message = after(fact)
    files = [part.data or b"" for part in message.parts if isinstance(part, File)]
    return _read(message, files)


def newest(store: Store, session: Session) -> list[str]:
    """Return the newest message: its id, text and files."""
    (message,) = session.messages(limit=1)
    return _read(message, [store.blob(part.sha256 or "") for part in _files(message)])


def _newest(store: Store, session: str) -> object:
    return newest(store, store.get(session))


def _files(message: Message) -> Iterator[File]:
    return (part for part in message.parts if isinstance(part, File))


def _read(message: Message, files: list[bytes]) -> list[str]:
    return [message.id, message.status, brief(message.text), *(brief(data) for data in files)]


def reopened(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Read what was appended before, in a store that is opened again, and verify it."""

    def read(store: Store) -> dict[str, Any]:
        seen = {
            fact["id"]: attempt(partial(_newest, store, fact["id"]))
            for fact in facts["sessions"]
            if fact["tenant"] == store.tenant
        }
        return {"newest": seen, "verify": attempt(lambda: plain(store.verify()))}

    found: dict[str, Any] = opened(path, readonly=False, tenant=TENANTS[0], then=read)
    return found


def doctored(path: Path, *options: str) -> dict[str, Any]:
    """Run `holdfast doctor --json`; return its code and what it prints."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    argv, sys.argv = sys.argv, ["holdfast", "doctor", "--json", "--store", str(path), *options]
    code: object = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as in `attempt`
        return {"crash": traceback.format_exc()}
    finally:
        sys.argv = argv
    printed, errors = (_printed(stream) for stream in (out, err))
    try:
        return {"value": {"code": code, "report": json.loads(printed)}}
    except ValueError:
        return {"crash": f"code {code}: {printed[-2000:]} {errors[-2000:]}"}


def _printed(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def salvaged(path: Path, facts: dict[str, Any], out: Path) -> dict[str, Any]:
    """Salvage a store into a new one and read that; `doctor --fix` does it where `open` refuses."""
    to = path.with_name("salvaged.db")

    def salvage(store: Store) -> Any:  # noqa: ANN401
        return plain(store.salvage(to))

    report = opened(path, readonly=True, tenant=TENANTS[0], then=salvage)
    if "error" in report:
        report["doctor"] = doctored(path, "--fix")
        made = [
            one for one in path.parent.glob("*.db") if one.name != path.name and one.stat().st_size
        ]
        if not made:
            return {"report": report}
        to = made[0]
    if not to.exists():
        return {"report": report}
    return {"report": report, "read": reading(to, facts, readonly=True, out=out)}


def examine(folder: Path) -> dict[str, Any]:
    """Examine the store in `store` and its equal copy in `again`."""
    facts = json.loads((folder / "facts.json").read_text())
    out = folder / "out.jsonl"
    path, again = folder / "store" / DATABASE, folder / "again" / DATABASE
    return {
        "salvaged": salvaged(again, facts, out),
        "readonly": reading(path, facts, readonly=True, out=out),
        "doctor": doctored(path),
        "writable": reading(path, facts, readonly=False, out=out),
        "reopened": reopened(path, facts),
    }


def main() -> None:
    """Examine a folder; write what was found into it."""
    faulthandler.enable()
    logging.disable()
    folder = Path(sys.argv[1])
    (folder / "found.json").write_text(json.dumps(examine(folder)))


if __name__ == "__main__":
    main()
