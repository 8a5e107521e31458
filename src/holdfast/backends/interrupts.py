"""Keeping interrupts out of the middle of a write.

Python runs signal handlers in the main thread, between any two instructions. One that raises, as
that of Ctrl-C does, could leave a lock taken or a transaction open where no `finally` can see it.
So while the main thread holds such things its handlers are put off; what came meanwhile is handled
right after, when the write is whole.

`_signal` is the module behind `signal`, without its enums, which take twenty times as long.
"""

from __future__ import annotations

import signal
import threading
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]

_PUT_OFF: Final = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


def undisturbed(call: Callable[[], T]) -> T:
    """Run something short that must not be torn."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    came: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Handler] = {}
    try:
        _put_off(handlers, came)
        return call()
    finally:
        for number, handler in handlers.items():
            set_handler(number, handler)
        for number, frame in came:
            handlers[number](number, frame)


def _put_off(handlers: dict[int, Handler], came: list[tuple[int, FrameType | None]]) -> None:
    def later(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))

    for number in _PUT_OFF:
        handler = get_handler(number)
        if callable(handler):
            # Noted before it is replaced: whatever happens now, it is put back.
            handlers[number] = handler
            set_handler(number, later)
