"""Deleting, pruning and copying threads.

A thread that is deleted goes to the trash. Checkpoints that are pruned, or those of runs, are
erased; the messages stay. What a fork inherited cannot be erased there: it is marked as deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast import Head, Record, Session, Store
from holdfast.adapters.langgraph import checkpoint_records as records
from holdfast.adapters.langgraph.checkpoint_records import CHECKPOINT, RUN, VALUE, WRITES, Values
from holdfast.adapters.langgraph.message_lists import spans_of
from holdfast.adapters.langgraph.serialization import Serializer
from holdfast.adapters.langgraph.thread import MARK, Thread
from holdfast.errors import SessionNotFound

_COPIES: Final = frozenset({"fork", "continue"})


def trash_thread(store: Store, session: Session) -> None:
    """Move a thread to the trash: its delegated sessions first, so that a retry finds them.

    These stay if there is a copy of the thread, which has the same lists.
    """
    links = session.children()
    if all(link.relation not in _COPIES for link in links):
        for link in links:
            if link.relation == "delegate" and MARK in link.metadata and link.state == "live":
                store.trash(link.session_id)
    store.trash(session.id)


def prune_thread(thread: Thread) -> None:
    """Erase all checkpoints but the newest of each namespace, and those it is rebuilt from."""
    session = thread.session
    stored = records.all_checkpoints(session)
    by_key = {record.key or "": record for record in stored}
    kept: dict[str, Record] = {}
    for ns in dict.fromkeys(records.split_key(key)[0] for key in by_key):
        latest = records.newest(session, ns)
        if latest is None:
            latest = next(one for one in stored if _ns_of(one) == ns)
        kept |= _chain(thread, latest, by_key)
    _erase(session, [key for key in by_key if key not in kept], kept.values())


def _chain(thread: Thread, latest: Record, by_key: Mapping[str, Record]) -> dict[str, Record]:
    """Return a checkpoint and the ancestors that its delta channels are rebuilt from."""
    found: dict[str, Record] = {}
    counters: Any = thread.metadata(latest).get("counters_since_delta_snapshot") or {}
    needed = 1 + max((int(steps) + 1 for _, steps in counters.values()), default=0)
    record: Record | None = latest
    while record is not None and len(found) < needed:
        found[record.key or ""] = record
        data: Any = record.data
        ns, _ = records.split_key(record.key or "")
        record = by_key.get(records.key_of(ns, data["parent"])) if data["parent"] else None
    return found


def delete_runs(
    store: Store, thread_of: Callable[[Session], Thread], run_ids: Sequence[str]
) -> None:
    """Erase the checkpoints of runs in all threads, and go back to before their messages."""
    for run_id in run_ids:
        index = store.record(RUN, run_id, scope=MARK)
        for session in _with_forks(store, _sessions(index)):
            _delete_run(thread_of(session), run_id)
        if index is not None:
            store.put_record(Record(RUN, key=run_id, data=[], after=index.id, scope=MARK))


def _sessions(index: Record | None) -> list[str]:
    data: Any = None if index is None else index.data
    return list(data or [])


def _with_forks(store: Store, ids: Iterable[str]) -> list[Session]:
    """Return sessions and those that continue them, which inherited their checkpoints."""
    found: dict[str, Session] = {}
    rest = list(ids)
    while rest:
        id = rest.pop()
        if id in found:
            continue
        try:
            session = store.get(id)
        except SessionNotFound:
            continue
        found[id] = session
        rest += [link.session_id for link in session.children() if link.relation in _COPIES]
    return list(found.values())


def _delete_run(thread: Thread, run_id: str) -> None:
    stored = records.all_checkpoints(thread.session)
    own = [record for record in stored if _run_of(record) == run_id]
    if not own:
        return
    rest = [record for record in stored if _run_of(record) != run_id]
    keys = [record.key or "" for record in own]
    _leave(thread.session, keys)
    _erase(thread.session, keys, rest)


def _leave(session: Session, deleted: Collection[str]) -> None:
    """Go back to before the messages that only these checkpoints have, given by their keys.

    What others wrote stays in the history.
    """
    stored = session.records(CHECKPOINT)
    rest = [record for record in stored if record.key not in deleted and record.data]
    newest = next((one for one in reversed(rest) if not _ns_of(one)), None)
    gone = {seq for one in stored if one.key in deleted and one.data for seq in _seqs(one)}
    hidden = gone - (set() if newest is None else _seqs(newest))
    if not hidden:
        return
    head = session.head()
    start = min(hidden) - 1
    later = session.messages(branch=head.branch, after=start, before=head.seq + 1)
    kept = [message for message in later if message.seq not in hidden]
    keep = Head(head.branch, start) if start else None
    session.replace(kept, keep=keep, expect=head)
    found = records.newest(session, "")
    if newest is not None and (found is None or found.key != newest.key):
        session.append(records.again(newest))


def _ns_of(record: Record) -> str:
    return records.split_key(record.key or "")[0]


def _seqs(record: Record) -> set[int]:
    """Return the seqs of the conversation of a checkpoint in the current history."""
    data: Any = record.data
    entry = data["channels"].get(data["conversation"], {})
    spans = spans_of(entry.get("list", []), inherited=False)
    return {seq for span in spans for seq in range(span.first, span.last + 1)}


def _run_of(record: Record) -> str | None:
    data: Any = record.data
    return data["run_id"]


def _erase(session: Session, keys: Sequence[str], rest: Iterable[Record]) -> None:
    """Erase checkpoints with their writes, and values that no other has."""
    if not keys:
        return
    session.drop(kind=CHECKPOINT, keys=keys)
    session.drop(kind=WRITES, keys=keys)
    used = {name for record in rest for name in _values_of(record)}
    values = {record.key for record in session.records(VALUE, all_branches=True)} - used
    if values:
        session.drop(kind=VALUE, keys=values)
    left = [key for key in keys if records.find(session, CHECKPOINT, key) is not None]
    if left:
        session.append(*(Record(CHECKPOINT, key=key) for key in left))


def _values_of(record: Record) -> Iterable[str]:
    data: Any = record.data
    return (entry["value"] for entry in data["channels"].values() if "value" in entry)


def copy_thread(source: Thread, serializer: Serializer, target: str) -> None:
    """Copy a thread: a fork, with the checkpoints of the branches that were left."""
    session = source.session
    kept = {record.id for record in session.records(CHECKPOINT)}
    left = [one for one in reversed(records.all_checkpoints(session)) if one.id not in kept]
    entries = [copied for record in left for copied in _as_copy(source, serializer, record)]
    for ns in dict.fromkeys(_ns_of(one) for one in left):
        newest = records.newest(session, ns)
        if newest is not None and newest.id in kept:  # It has to stay the newest.
            entries.append(records.again(newest))
    session.fork(key=target, exact=True, entries=entries, metadata={MARK: True})


def _as_copy(source: Thread, serializer: Serializer, record: Record) -> list[Record]:
    """Return the records of a checkpoint for another session, which has not its messages."""
    data: Any = record.data
    values = Values(serializer)
    lists = source.lists(record)
    channels = {
        name: values.encode(lists[name].messages) if name in lists else entry
        for name, entry in data["channels"].items()
    }
    named = [entry for entry in data["channels"].values() if "value" in entry]
    large = [records.value_record(source.session, entry) for entry in named]
    writes = source.session.records(WRITES, key=record.key, all_branches=True)
    whole = msgspec.structs.replace(record, data={**data, "channels": channels})
    others = [records.bare(one) for one in (*large, *writes)]
    return [*values.records, *others, records.again(whole)]
