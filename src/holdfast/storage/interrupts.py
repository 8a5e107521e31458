"""Deferring signals while a write is in progress.

Python runs signal handlers in the main thread, between any two instructions. A handler that raises,
as the one for Ctrl-C does, could leave a lock held or a transaction open where no `finally` sees
it. So handlers are deferred while the main thread writes; signals that arrive meanwhile are handled
as soon as the write is finished.

`_signal` is the module behind `signal`, without its enums, which take twenty times as long,
and its import as well.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import threading
from _signal import getsignal as get_handler
from _signal import signal as set_handler
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Handler = Callable[[int, FrameType | None], Any]

_DEFERRED_SIGNALS: Final = tuple(
    int(getattr(_signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(_signal, name)
)


def defer_signals(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a short call that no signal handler may interrupt, and return its result."""
    if get_ident() != threading.main_thread().ident:
        return call(*args, **kwargs)
    received: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Handler] = {}
    try:
        _install_deferring_handlers(handlers, received)
        return call(*args, **kwargs)
    finally:
        for number, handler in handlers.items():
            set_handler(number, handler)
        for number, frame in received:
            handlers[number](number, frame)


def _install_deferring_handlers(
    handlers: dict[int, Handler], received: list[tuple[int, FrameType | None]]
) -> None:
    def later(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))

    for number in _DEFERRED_SIGNALS:
        handler = get_handler(number)
        if callable(handler):
            # Recorded before it is replaced, so that it is restored whatever happens.
            handlers[number] = handler
            set_handler(number, later)
