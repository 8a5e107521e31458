"""Following without holding a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from holdfast.backends.base import Backend
from holdfast.errors import StoreUnavailable
from holdfast.following import Follower, Following, StoreFollower
from holdfast.records import Activity, BranchChanged, Head, Message

T = TypeVar("T")
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.25


class AsyncFollowing(Generic[T]):
    """Follows without holding a thread; the twin of `Following`."""

    def __init__(self, backend: Backend, following: Following[T]) -> None:
        """Follow what the sync sibling follows."""
        self._backend = backend
        self._following = following
        self._seen = -1

    def __aiter__(self) -> AsyncIterator[T]:
        """Follow."""
        return self

    async def __anext__(self) -> T:
        """Await the next item."""
        pause = _FIRST_PAUSE
        while not self._backend.closed:
            seen = self._backend.wait(-1, 0)
            if seen != self._seen:
                item = await self._poll()
                if item is not None:
                    return item
                self._seen, pause = seen, _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        raise StopAsyncIteration

    async def _poll(self) -> T | None:
        try:
            return await asyncio.to_thread(self._following.poll)
        except StoreUnavailable:
            if self._backend.closed:
                raise StopAsyncIteration from None
            raise


class AsyncFollower(AsyncFollowing[Message | BranchChanged]):
    """The twin of `Follower`."""

    def __init__(self, backend: Backend, follower: Follower) -> None:
        """Follow one history."""
        super().__init__(backend, follower)
        self._follower = follower

    @property
    def head(self) -> Head:
        """How far it has come."""
        return self._follower.head


class AsyncStoreFollower(AsyncFollowing[Activity]):
    """The twin of `StoreFollower`."""

    def __init__(self, backend: Backend, follower: StoreFollower) -> None:
        """Follow a store."""
        super().__init__(backend, follower)
        self._follower = follower

    @property
    def number(self) -> int:
        """How far it has come."""
        return self._follower.number
