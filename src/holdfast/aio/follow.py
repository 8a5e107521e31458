"""Followers that do not occupy a thread while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from holdfast.errors import StoreUnavailable
from holdfast.follow import BaseFollower, Follower, StoreFollower
from holdfast.storage.protocol import Backend
from holdfast.values import Activity, Head

T = TypeVar("T")
_MIN_POLL_S = 0.02
_MAX_POLL_S = 0.25


class AsyncBaseFollower(Generic[T]):
    """The async twin of `BaseFollower`: it polls, so it occupies no thread while it waits."""

    def __init__(self, backend: Backend, following: BaseFollower[T]) -> None:
        self._backend = backend
        self._source = following
        self._seen = -1

    def __aiter__(self) -> AsyncIterator[T]:
        """Return itself."""
        return self

    async def __anext__(self) -> T:
        """Await the next item."""
        pause = _MIN_POLL_S
        while not self._backend.closed:
            seen = self._backend.wait(-1, 0)
            if seen != self._seen:
                item = await self._poll()
                if item is not None:
                    return item
                self._seen, pause = seen, _MIN_POLL_S
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _MAX_POLL_S)
        raise StopAsyncIteration

    async def _poll(self) -> T | None:
        try:
            return await asyncio.to_thread(self._source.poll)
        except StoreUnavailable:
            if self._backend.closed:
                raise StopAsyncIteration from None
            raise


class AsyncFollower(AsyncBaseFollower[T]):
    """The async twin of `Follower`."""

    def __init__(self, backend: Backend, follower: Follower[T]) -> None:
        super().__init__(backend, follower)
        self._follower = follower

    @property
    def head(self) -> Head:
        """The message up to which it has delivered."""
        return self._follower.head

    @property
    def cursor(self) -> str:
        """The position up to which it has delivered, records included, as text for `after`."""
        return self._follower.cursor


class AsyncStoreFollower(AsyncBaseFollower[Activity]):
    """The async twin of `StoreFollower`."""

    def __init__(self, backend: Backend, follower: StoreFollower) -> None:
        super().__init__(backend, follower)
        self._follower = follower

    @property
    def number(self) -> int:
        """The last activity it delivered."""
        return self._follower.number
