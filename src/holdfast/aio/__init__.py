"""The async twins, for asyncio. Each runs the same operations and queries as its sync twin.

A write is submitted and awaited: no thread waits for it, so a thousand sessions can write at once
and share their syncs. A cancelled task withdraws a write that has not started; one that has started
runs to its end. A read runs in a worker thread.
"""

from holdfast.aio.draft import AsyncDraft
from holdfast.aio.follow import AsyncFollower, AsyncStoreFollower
from holdfast.aio.session import AsyncSession
from holdfast.aio.store import AsyncStore, open_async
from holdfast.aio.turn import AsyncTurn

__all__ = [
    "AsyncDraft",
    "AsyncFollower",
    "AsyncSession",
    "AsyncStore",
    "AsyncStoreFollower",
    "AsyncTurn",
    "open_async",
]
