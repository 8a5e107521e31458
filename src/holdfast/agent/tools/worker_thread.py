"""Blocking work in daemon threads, abandoned when its caller is cancelled.

A program waits at exit for the thread pool of `asyncio.to_thread`, so that one tool that hangs
would keep it from exiting. These threads are daemons: an abandoned one does not delay the exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run work in a thread of its own and return its result; a cancelled caller does not wait."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done = context.run(work)
        except StopIteration as error:
            # A future cannot hold it: it would end the awaiting coroutine as if it had returned.
            _set_outcome(loop, future, error=RuntimeError(f"StopIteration: {error}"))
        except Exception as error:  # noqa: BLE001 - raised in the caller
            _set_outcome(loop, future, error=error)
        except BaseException as error:  # noqa: BLE001 - as above
            # `SystemExit` and the like would end the event loop.
            _set_outcome(loop, future, error=RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            _set_outcome(loop, future, result=done)

    threading.Thread(target=run, name="holdfast-tool", daemon=True).start()
    return await future


async def stoppable(work: Callable[[threading.Event], T]) -> T:
    """Run work in a thread; the event it receives is set when the caller is cancelled."""
    stop = threading.Event()
    try:
        return await in_thread(partial(work, stop))
    except asyncio.CancelledError:
        stop.set()
        raise


def _set_outcome(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[T],
    *,
    result: T | None = None,
    error: BaseException | None = None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    # In a closed loop there is no caller to notify.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
