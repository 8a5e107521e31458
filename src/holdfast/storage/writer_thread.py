"""Starting the thread that writes for a backend."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import StoreUnavailable


def start_writer(serve: Callable[[], None]) -> threading.Thread:
    """Start a writer thread; raise `StoreUnavailable` if the system allows no more threads."""
    thread = threading.Thread(target=serve, name="holdfast-writer", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(
            f"no thread can be started for writing ({error}); nothing was stored. End some "
            "threads, or raise the limit of the process."
        ) from error
    return thread
