"""Work that may block, done beside the event loop and given up when nobody waits for it any more.

`asyncio.to_thread` has a pool that a program waits for when it ends, so that one tool that hangs
would keep it from ending. These threads are daemons: one that is given up is forgotten.
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
    """Do work in a thread of its own; a cancelled caller does not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done = context.run(work)
        except StopIteration as error:
            # A future cannot hold it: it would end whoever awaits it as if nothing were wrong.
            _hand_over(loop, future, error=RuntimeError(f"StopIteration: {error}"))
        except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
            _hand_over(loop, future, error=error)
        except BaseException as error:  # noqa: BLE001 - as above
            # What ends a thread (`sys.exit`, say) would end the event loop.
            _hand_over(loop, future, error=RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            _hand_over(loop, future, result=done)

    threading.Thread(target=run, name="holdfast-tool", daemon=True).start()
    return await future


async def stoppable(work: Callable[[threading.Event], T]) -> T:
    """Do work in a thread that is told, by an event, when nobody waits for it any more."""
    stop = threading.Event()
    try:
        return await in_thread(partial(work, stop))
    except asyncio.CancelledError:
        stop.set()
        raise


def _hand_over(
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

    # Nobody waits any more in a loop that is closed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
