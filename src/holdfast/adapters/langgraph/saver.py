"""LangGraph: a checkpointer that keeps threads as sessions of a store.

A thread is the session whose key is its `thread_id`. Its chat messages are messages, each stored
once; all else of a checkpoint is a record behind them. Going on from an older checkpoint opens a
branch. Every checkpoint can be read by its id, whatever happened since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from random import SystemRandom
from typing import Any, Final, TypeAlias, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast import Record, Session, Store
from holdfast.adapters.langgraph import checkpoint_records as records
from holdfast.adapters.langgraph import upkeep
from holdfast.adapters.langgraph.serialization import Foreign, Serializer
from holdfast.adapters.langgraph.thread import MARK, Thread
from holdfast.adapters.langgraph.views import Memory, NewCheckpoint, StoredCheckpoint
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import BadQuery

T = TypeVar("T")
_RANDOM: Final = SystemRandom()


Candidates: TypeAlias = list[tuple[str, Thread, Record]]


class HoldfastSaver(BaseCheckpointSaver[str]):
    """Checkpoints in a store, for graphs that run with or without asyncio.

    With a `serde` of another kind than LangGraph's own, such as one that encrypts, messages are
    stored as it returns them, and are no messages of the session.
    """

    def __init__(
        self, store: Store, *, serde: SerializerProtocol | None = None, scope: str | None = None
    ) -> None:
        super().__init__(serde=serde)
        self._store = store
        self._scope = scope
        self._memory = Memory()

    # ------------------------------------------------------------------------------- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint: the newest of the thread, or the one with the given id."""
        thread_id, ns = _names(config)
        thread = self._find(thread_id)
        self._memory.missing.put(thread_id, thread is None)
        if thread is None:
            return None
        id = get_checkpoint_id(config)
        found = thread.find(ns, id) if id else thread.newest(ns)
        if found is None:
            return None
        return _to_tuple(thread_id, found, config if id else None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return checkpoints, the newest first: of a thread, or of all."""
        wanted = None if config is None else get_checkpoint_id(config)
        upper = None if before is None else get_checkpoint_id(before)
        left = limit
        for thread_id, thread, record in self._candidates(config):
            _, id = records.split_key(record.key or "")
            if (wanted and id != wanted) or (upper and id >= upper):
                continue
            if filter and not _matches(thread.metadata(record), filter):
                continue
            if left is not None and left <= 0:
                return
            left = None if left is None else left - 1
            yield _to_tuple(thread_id, thread.read(record))

    def _candidates(self, config: RunnableConfig | None) -> Candidates:
        """Return the records of checkpoints that a list may have, the highest id first."""
        if config is not None:
            thread_id = str(config["configurable"]["thread_id"])
            thread = self._find(thread_id)
            ns = config["configurable"].get("checkpoint_ns")
            found = [] if thread is None else records.all_checkpoints(thread.session, ns)
            return [] if thread is None else [(thread_id, thread, record) for record in found]
        every = [
            (session.key or "", self._thread(session), record)
            for session in self._sessions()
            for record in records.all_checkpoints(session)
        ]
        return sorted(every, key=lambda one: records.split_key(one[2].key or "")[1], reverse=True)

    def _sessions(self) -> Iterator[Session]:
        cursor: str | None = None
        while True:
            page = self._store.sessions(metadata={MARK: True}, limit=500, cursor=cursor)
            for info in page:
                yield self._store.get(info.id)
            cursor = page.cursor
            if cursor is None:
                return

    # ------------------------------------------------------------------------------- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, Any],
    ) -> RunnableConfig:
        """Store a checkpoint that follows the one of the config; return its own config."""
        thread_id, ns = _names(config)
        body: dict[str, Any] = {**checkpoint}
        values = body.pop("channel_values")
        new = NewCheckpoint(
            ns=ns,
            id=checkpoint["id"],
            parent=get_checkpoint_id(config) or None,
            body=body,
            values=values,
            metadata=dict(get_checkpoint_metadata(config, metadata)),
            changed=new_versions,
        )
        self._open(thread_id).put(new)
        return _config(config["configurable"]["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote while the checkpoint of the config was the newest."""
        thread_id, ns = _names(config)
        id = config["configurable"]["checkpoint_id"]
        if writes:
            self._open(thread_id).put_writes(ns, id, writes, (task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Move a thread to the trash; its id is free again."""
        thread = self._find(str(thread_id))
        if thread is not None:
            upkeep.trash_thread(self._store, thread.session)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Erase the checkpoints of runs; their messages are left on a branch."""
        upkeep.delete_runs(self._store, self._thread, [str(run_id) for run_id in run_ids])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints; `KeyTaken` if there is one of the target id."""
        thread = self._find(str(source_thread_id))
        if thread is not None:
            upkeep.copy_thread(thread, Serializer(self.serde), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Erase all checkpoints but the newest of each namespace; with `delete`, the threads."""
        if strategy not in {"keep_latest", "delete"}:
            raise BadQuery("strategy: expected keep_latest or delete")
        for thread_id in thread_ids:
            thread = self._find(str(thread_id))
            if thread is not None and strategy == "delete":
                upkeep.trash_thread(self._store, thread.session)
            elif thread is not None:
                upkeep.prune_thread(thread)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - its name
        """Return a version after `current`, which no other branch has."""
        before = 0 if current is None else int(str(current).partition(".")[0])
        return f"{before + 1:032}.{_RANDOM.random():016}"

    # ------------------------------------------------------------------------------- asyncio

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, as `get_tuple` does."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Return checkpoints, as `list` does."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, Any],
    ) -> RunnableConfig:
        """Store a checkpoint, as `put` does."""
        return await _whole(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, as `put_writes` does."""
        await _whole(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Move a thread to the trash, as `delete_thread` does."""
        await _whole(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Erase the checkpoints of runs, as `delete_for_runs` does."""
        await _whole(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, as `copy_thread` does."""
        await _whole(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Erase older checkpoints, as `prune` does."""
        await _whole(lambda: self.prune(thread_ids, strategy=strategy))

    # ------------------------------------------------------------------------------- threads

    def _find(self, thread_id: str) -> Thread | None:
        session = find_session(self._store, thread_id)
        return None if session is None else self._thread(session)

    def _open(self, thread_id: str) -> Thread:
        return self._thread(recovered(self._store.session(thread_id, scope=self._scope)))

    def _thread(self, session: Session) -> Thread:
        return Thread(self._store, session, Serializer(self.serde), self._memory)


async def _whole(write: Callable[..., T], *arguments: Foreign) -> T:
    """Await a write to its end, even if the task is cancelled meanwhile."""
    task = asyncio.ensure_future(asyncio.to_thread(write, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _names(config: RunnableConfig) -> tuple[str, str]:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""


def _config(thread_id: Foreign, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def _to_tuple(
    thread_id: str, found: StoredCheckpoint, config: RunnableConfig | None = None
) -> CheckpointTuple:
    return CheckpointTuple(
        config=config or _config(thread_id, found.ns, found.id),
        checkpoint=found.checkpoint,
        metadata=found.metadata,
        parent_config=_config(thread_id, found.ns, found.parent) if found.parent else None,
        pending_writes=found.writes,
    )


def _matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(name) == value for name, value in wanted.items())
