"""Claude Agent SDK: a `SessionStore` that mirrors transcripts into a store.

A transcript is the session with the key `PROJECT/SESSION`; within both, `%` is written `%25` and
`/` is `%2F`. A sub-agent's is `PROJECT/SESSION/SUBPATH`, a delegate of it. An entry of a user, a
tool or the model is a message, its `uuid` the message's id; any other is a record of the kind
`claude_agent_sdk`, with its type as the key, behind the message before it. `load` returns every
entry as it was, in order, and entries made of the messages that other programs appended.

The SDK runs on asyncio and on trio, so the store is called in threads. A batch is stored whole or
not at all, also if the call is cancelled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from holdfast import Message, Record, Session, Store
from holdfast.adapters.claude_agent_sdk_messages import (
    NAME,
    Entry,
    by_id,
    is_name,
    titles_in,
    to_entries,
    to_stored,
)
from holdfast.adapters.shared_session import find_session
from holdfast.errors import (
    IdConflict,
    KeyTaken,
    PreconditionFailed,
    install_command,
)

try:
    from anyio import to_thread
    from claude_agent_sdk import SessionStore, fold_session_summary
except ImportError as error:
    raise ImportError(
        f"this adapter needs claude-agent-sdk: {install_command('claude-agent-sdk')}",
        name=error.name,
    ) from error

Key: TypeAlias = Mapping[str, Any]

_PAGE: Final = 1000
_BATCH: Final = 5000
# Lists read all summaries: a session whose summary is longer is listed by its entries instead.
_MAX_SUMMARY_CHARS: Final = 64 * 1024


class HoldfastSessionStore(SessionStore):
    """The transcripts of Claude Code's sessions and sub-agents, as sessions of a store."""

    def __init__(self, store: Store, *, scope: str | None = None) -> None:
        self._store = store
        self._scope = scope

    async def append(self, key: Key, entries: list[Entry]) -> None:
        """Store entries: up to 5,000 are stored together; one whose `uuid` is stored is not."""
        for start in range(0, len(entries), _BATCH):
            await to_thread.run_sync(self._append, key, entries[start : start + _BATCH])

    async def load(self, key: Key) -> list[Entry] | None:
        """Return the entries of a transcript in order; `None` if it was never written."""
        return await to_thread.run_sync(self._load, key)

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """Return the ids of a project's sessions and when each was written to, newest first."""
        found = await to_thread.run_sync(self._summaries, project_key)
        return [{"session_id": one["session_id"], "mtime": one["mtime"]} for one in found]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """Return the SDK's summaries of a project's sessions, newest first."""
        found = await to_thread.run_sync(self._summaries, project_key)
        return [one for one in found if one["data"] is not None]

    async def delete(self, key: Key) -> None:
        """Move a transcript to the trash; with a session's go those of its sub-agents."""
        await to_thread.run_sync(self._delete, key)

    async def list_subkeys(self, key: Key) -> list[str]:
        """Return the subpaths of a session's sub-agents."""
        return await to_thread.run_sync(self._subkeys, key)

    # --------------------------------------------------------------------------------- writing

    def _append(self, key: Key, entries: list[Entry]) -> None:
        session = self._opened(key, entries)
        pending = by_id(entries)
        while pending:
            info = session.info()
            before: Any = info.metadata.get(NAME)
            # A summary that starts here would lack what another program has said before.
            state = before or {"summary": {} if info.messages == 0 else None}
            batch, after = _encoded(key, pending, state)
            changes: Any = {
                "metadata": {NAME: after},
                "expect_metadata": {NAME: before},
                **titles_in(pending.values()),
            }
            try:
                session.append(*batch, update=changes)
            except PreconditionFailed:
                continue  # Another writer was first, and its summary has to be continued.
            except IdConflict as conflict:
                if conflict.message_id not in pending:
                    raise
                stored = {conflict.message_id, *(item.id for item in _history(session))}
                pending = {id: entry for id, entry in pending.items() if id not in stored}
            else:
                return

    def _opened(self, key: Key, entries: Iterable[object]) -> Session:
        """Return a transcript's session, creating it, and for a sub-agent's its parent."""
        name = _name_of(key)
        found = find_session(self._store, name)
        if found is not None:
            return found
        given = (entry.get("cwd") for entry in entries if isinstance(entry, dict))
        fields: Any = {"scope": self._scope, "cwd": next(filter(is_name, given), None)}
        if _is_main(key):
            return self._store.session(name, **fields)
        parent = self._opened(_main_key(key), entries)
        try:
            return self._store.create(key=name, parent=parent, relation="delegate", **fields)
        except KeyTaken:
            return self._store.session(name, create=False)

    def _delete(self, key: Key) -> None:
        name = _name_of(key)
        main = find_session(self._store, name)
        ids = [info.id for info in self._infos(f"{name}/")] if _is_main(key) else []
        for id in [*ids, *([main.id] if main is not None else [])]:
            self._store.trash(id)

    # --------------------------------------------------------------------------------- reading

    def _load(self, key: Key) -> list[Entry] | None:
        session = find_session(self._store, _name_of(key))
        if session is None:
            return None
        info = session.info()
        items = _history(session)
        if not items and not _is_written(info.messages, info.metadata):
            return None
        files = [file for item in items if isinstance(item, Message) for file in item.files]
        blobs = self._store.blobs(*{file.sha256 for file in files if file.sha256 is not None})
        about = {
            "sessionId": key["session_id"],
            "cwd": info.cwd,
            "isSidechain": not _is_main(key),
        }
        return [*to_entries(items, blobs, about)]

    def _infos(self, prefix: str, *, delegates: bool = True) -> Iterator[Any]:
        """Iterate over the transcripts whose keys begin with a prefix, newest first."""
        cursor = None
        while True:
            page = self._store.sessions(
                key_prefix=prefix, delegates=delegates, limit=_PAGE, cursor=cursor
            )
            yield from page.items
            cursor = page.cursor
            if cursor is None:
                return

    def _summaries(self, project_key: str) -> list[dict[str, Any]]:
        prefix = _escaped(project_key) + "/"
        found = []
        for info in self._infos(prefix, delegates=False):
            name = info.key[len(prefix) :]
            if "/" not in name and _is_written(info.messages, info.metadata):
                state = info.metadata.get(NAME) or {}
                mtime = int(info.updated_at.timestamp() * 1000)
                summary = {"session_id": _unescaped(name), "mtime": mtime}
                found.append({**summary, "data": state.get("summary")})
        return found

    def _subkeys(self, key: Key) -> list[str]:
        prefix = _name_of(_main_key(key)) + "/"
        return [
            info.key[len(prefix) :]
            for info in self._infos(prefix)
            if _is_written(info.messages, info.metadata)
        ]


# ----------------------------------------------------------------------------------------- keys


def _name_of(key: Key) -> str:
    """Return the key of a transcript's session; no two transcripts have the same."""
    names = [_escaped(key["project_key"]), _escaped(key["session_id"])]
    if key.get("subpath") == "":
        raise ValueError("subpath must not be empty; leave it out for the main transcript")
    return "/".join(names if _is_main(key) else [*names, key["subpath"]])


def _is_main(key: Key) -> bool:
    return key.get("subpath") is None


def _main_key(key: Key) -> Key:
    return {name: value for name, value in key.items() if name != "subpath"}


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


def _unescaped(name: str) -> str:
    return name.replace("%2F", "/").replace("%25", "%")


def _is_written(messages: int, metadata: Mapping[str, object]) -> bool:
    """True if a transcript has entries: that of a session whose sub-agent came first has none."""
    return messages > 0 or NAME in metadata


# ----------------------------------------------------------------------------- what is appended


def _encoded(
    key: Key, pending: Mapping[str, Entry], state: Mapping[str, Any]
) -> tuple[list[Message | Record], Entry]:
    """Return entries as they are stored, and what the session's metadata says after them.

    That is the SDK's summary, and the id of the model's newest reply: it comes as an entry for each
    of its blocks, all with the same usage, which is counted once.
    """
    reply, summary = state.get("reply"), state.get("summary")
    batch: list[Message | Record] = []
    for id, entry in pending.items():
        item = to_stored(id, entry, delegate=not _is_main(key))
        if isinstance(item, Message) and item.role == "assistant":
            if reply is not None and reply == entry["message"].get("id"):
                item = msgspec.structs.replace(item, usage=None)
            reply = entry["message"].get("id")
        batch.append(item)
    if _is_main(key) and summary is not None:
        summary = _folded(key, summary, [*pending.values()])
    return batch, {"reply": reply, "summary": summary}


def _folded(key: Key, data: Entry, entries: list[Entry]) -> Entry | None:
    """Return the data of a summary with more entries; None if it becomes too long."""
    objects = [entry for entry in entries if isinstance(entry, dict)]
    before = {"session_id": key["session_id"], "mtime": 0, "data": data}
    after: Entry = fold_session_summary(before, key, objects)["data"]
    return after if len(json.dumps(after)) <= _MAX_SUMMARY_CHARS else None


def _history(session: Session) -> list[Message | Record]:
    """Return the messages and the SDK's records of a session, in order."""
    while True:
        branch = session.head().branch
        messages, records = session.messages(), session.records(NAME)
        if session.head().branch == branch:  # Both were read on the same branch.
            break
    last = messages[-1].seq if messages else 0
    behind = [record for record in records if (record.seq or 0) <= (last or 0)]
    return sorted([*messages, *behind], key=lambda one: (one.seq or 0, isinstance(one, Record)))
