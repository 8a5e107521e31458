"""Waiting for something that may not want to end, without being held up by it.

A tool or a provider that is told to stop gets a moment to do so. What takes longer is let go: it
ends when it likes, and what becomes of it is nobody's business any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
MOMENT: Final = 0.5
_let_go: set[asyncio.Task[Any]] = set()  # So that nobody collects them while they run.


async def hold(doing: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Wait for something, so many seconds at most (then `TimeoutError`); cancelled, let it go."""
    task = asyncio.ensure_future(doing)
    try:
        await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        await release(task)
        raise
    if not task.done():
        await release(task)
        raise TimeoutError
    return task.result()


async def release(task: asyncio.Task[Any]) -> None:
    """Tell it to stop, give it a moment, and go on without it."""
    task.cancel()
    _let_go.add(task)
    task.add_done_callback(_forget)
    await asyncio.wait([task], timeout=MOMENT)


def _forget(task: asyncio.Task[Any]) -> None:
    _let_go.discard(task)
    if not task.cancelled():
        task.exception()  # Looked at, so that nobody is told.
