"""Orderly shutdown on SIGINT, SIGTERM and SIGHUP.

By default a signal raises `SignalReceived` in the main thread, like Ctrl-C: `with` blocks are left
and the store is closed. While a turn runs, a listener is notified instead (`notifying`): it cancels
the turn, the turn is stored, and the program ends; leaving `handle_signals` then raises
`SignalReceived`, which `program.run` turns into the exit code.

A second signal ends the process at once; the next process recovers what was left open. So does
`GRACE_S`: a process that is still running that long after a signal is stuck. A signal within
`DUPLICATE_WINDOW_S` of the first is a duplicate: `timeout` signals a program and then its group,
and when a terminal is closed both it and its shell send SIGHUP.

A signal that was ignored when the program started (`nohup`, a background job) stays ignored.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TypeAlias

GRACE: Final = 5.0  # seconds
ECHO: Final = 0.5
_MOMENT: Final = 0.05
_HEARD: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WHY: Final = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "terminated by SIGTERM",
    signal.SIGHUP: "the terminal hung up (SIGHUP)",
}
# Bytes in the wakeup pipe other than signal numbers, which Python itself writes.
_TAKEN: Final = 255
_OVER: Final = 254

# Called with a signal in a separate thread, as a handler may interrupt the main thread while it
# holds a lock. True if the signal is handled and the program goes on, false if it is to end.
Listener: TypeAlias = Callable[[signal.Signals], bool]
_State: TypeAlias = list[int | list[bytes | int]]
_Terminal: TypeAlias = tuple[int, _State]


class Told(KeyboardInterrupt):
    """A signal requested the end of the program."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(why(received))
        self.exit_code = exit_code(received)


def why(received: signal.Signals) -> str:
    """Return a description of a signal."""
    return _WHY.get(received, received.name)


def exit_code(received: signal.Signals) -> int:
    """Return the exit code of a program that a signal ended: 130, 143, 129."""
    return 128 + received


class Signals:
    """Receives signals and notifies a listener; created by `handle_signals`."""

    def __init__(self, grace: float) -> None:
        """Start the thread that watches for signals."""
        self.came: signal.Signals | None = None
        self._since = self._taken = 0.0
        self._grace = grace
        self._listener: Listener | None = None
        self._terminal = _terminal_state()
        self._over = threading.Event()
        self._main = threading.get_ident()
        self._reading, self.writing = os.pipe()
        os.set_blocking(self.writing, False)
        threading.Thread(target=self._watch, name="holdfast-signals", daemon=True).start()

    @contextmanager
    def telling(self, listener: Listener) -> Iterator[None]:
        """Notify the listener of signals within this block; raise one received earlier."""
        self.check()
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def check(self) -> None:
        """Raise `SignalReceived` if a signal was received."""
        if self.came is not None:
            raise Told(self.came)

    def take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's own
        """Handle a signal."""
        now = time.monotonic()
        before, self._taken = self._taken, now
        if now - before < _MOMENT:
            return  # Possibly a copy sent by `_resend`.
        received = signal.Signals(number)
        if self.came is not None:
            if now - self._since >= ECHO:
                self._force(received)
            return
        self.came, self._since = received, now
        self._write(_TAKEN)
        if self._listener is None:
            raise Told(received)

    def close(self) -> None:
        """Stop watching for signals."""
        self._over.set()
        self._write(_OVER)

    def _write(self, byte: int) -> None:
        with suppress(BlockingIOError):  # The pipe is full: the watcher will wake up anyway.
            os.write(self.writing, bytes([byte]))

    # ------------------------------------------------------------------------------- in the thread

    def _watch(self) -> None:
        arrived: tuple[int, float] | None = None
        while not self._over.is_set():
            if not select.select([self._reading], [], [], _MOMENT if arrived else None)[0]:
                self._send_again(*arrived)  # type: ignore[misc]
                arrived = None
                continue
            for byte in os.read(self._reading, 64):
                if byte == _TAKEN:
                    self._tell()
                elif byte != _OVER:
                    arrived = (byte, time.monotonic())
        os.close(self._reading)
        os.close(self.writing)

    def _send_again(self, number: int, at: float) -> None:
        """Resend a signal whose handler did not run.

        A signal that arrives just before the main thread blocks does not wake it up.
        """
        if number in _HEARD and self._taken < at - _MOMENT:
            signal.pthread_kill(self._main, number)

    def _tell(self) -> None:
        received, listener = self.came, self._listener
        if received is None:
            return
        if listener is not None and listener(received):
            self.came = None
        elif not self._over.wait(self._grace):
            self._force(received)

    def _force(self, received: signal.Signals) -> None:
        if self._terminal is not None:
            _restore(*self._terminal)
        os._exit(exit_code(received))


@contextmanager
def heard(*, grace: float = GRACE) -> Iterator[Signals]:
    """Handle signals within this block. Only in the main thread."""
    signals = Signals(grace)
    previous_fd = signal.set_wakeup_fd(signals.writing, warn_on_full_buffer=False)
    before = {}
    for number in _HEARD:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, signals.take)
    try:
        yield signals
        signals.check()
    except OSError:
        signals.check()  # Writing to a terminal that hung up fails; report the signal instead.
        raise
    finally:
        ending = signals.came is not None
        for number, handler in before.items():
            # Everything is closed: a late signal must not change the exit code.
            signal.signal(number, signal.SIG_IGN if ending else handler)
        signal.set_wakeup_fd(previous_fd)
        # After a signal the watcher stays: threads may still block the end of the process.
        if not ending:
            signals.close()


def _terminal_state() -> _Terminal | None:
    """Return the terminal's settings, to restore them before a forced exit."""
    import termios

    with suppress(OSError, ValueError, AttributeError, termios.error):
        number = sys.stdin.fileno()
        return number, termios.tcgetattr(number)
    return None


def _restore(number: int, state: _State) -> None:
    import termios

    with suppress(OSError, termios.error):
        termios.tcsetattr(number, termios.TCSANOW, state)
