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

GRACE_S: Final = 5.0  # seconds
DUPLICATE_WINDOW_S: Final = 0.5
_RESEND_AFTER_S: Final = 0.05
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DESCRIPTIONS: Final = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "terminated by SIGTERM",
    signal.SIGHUP: "the terminal hung up (SIGHUP)",
}
# Bytes in the wakeup pipe other than signal numbers, which Python itself writes.
_RECEIVED_BYTE: Final = 255
_CLOSE_BYTE: Final = 254

# Called with a signal in a separate thread, as a handler may interrupt the main thread while it
# holds a lock. True if the signal is handled and the program goes on, false if it is to end.
Listener: TypeAlias = Callable[[signal.Signals], bool]
_State: TypeAlias = list[int | list[bytes | int]]
_Terminal: TypeAlias = tuple[int, _State]


class SignalReceived(KeyboardInterrupt):
    """A signal requested the end of the program."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(describe(received))
        self.exit_code = exit_code(received)


def describe(received: signal.Signals) -> str:
    """Return a description of a signal."""
    return _DESCRIPTIONS.get(received, received.name)


def exit_code(received: signal.Signals) -> int:
    """Return the exit code of a program that a signal ended: 130, 143, 129."""
    return 128 + received


class SignalHandler:
    """Receives signals and notifies a listener; created by `handle_signals`."""

    def __init__(self, grace: float) -> None:
        """Start the thread that watches for signals."""
        self.received: signal.Signals | None = None
        self._received_at = self._last_signal_at = 0.0
        self._grace = grace
        self._listener: Listener | None = None
        self._terminal = _terminal_state()
        self._closed = threading.Event()
        self._main = threading.get_ident()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, False)
        threading.Thread(target=self._watch, name="holdfast-signals", daemon=True).start()

    @contextmanager
    def notifying(self, listener: Listener) -> Iterator[None]:
        """Notify the listener of signals within this block; raise one received earlier."""
        self.check()
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def check(self) -> None:
        """Raise `SignalReceived` if a signal was received."""
        if self.received is not None:
            raise SignalReceived(self.received)

    def on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's own
        """Handle a signal."""
        now = time.monotonic()
        before, self._last_signal_at = self._last_signal_at, now
        if now - before < _RESEND_AFTER_S:
            return  # Possibly a copy sent by `_resend`.
        received = signal.Signals(number)
        if self.received is not None:
            if now - self._received_at >= DUPLICATE_WINDOW_S:
                self._exit_now(received)
            return
        self.received, self._received_at = received, now
        self._write(_RECEIVED_BYTE)
        if self._listener is None:
            raise SignalReceived(received)

    def close(self) -> None:
        """Stop watching for signals."""
        self._closed.set()
        self._write(_CLOSE_BYTE)

    def _write(self, byte: int) -> None:
        with suppress(BlockingIOError):  # The pipe is full: the watcher will wake up anyway.
            os.write(self.write_fd, bytes([byte]))

    # ------------------------------------------------------------------------------- in the thread

    def _watch(self) -> None:
        arrived: tuple[int, float] | None = None
        while not self._closed.is_set():
            if not select.select([self._read_fd], [], [], _RESEND_AFTER_S if arrived else None)[0]:
                self._resend(*arrived)  # type: ignore[misc]
                arrived = None
                continue
            for byte in os.read(self._read_fd, 64):
                if byte == _RECEIVED_BYTE:
                    self._notify()
                elif byte != _CLOSE_BYTE:
                    arrived = (byte, time.monotonic())
        os.close(self._read_fd)
        os.close(self.write_fd)

    def _resend(self, number: int, at: float) -> None:
        """Resend a signal whose handler did not run.

        A signal that arrives just before the main thread blocks does not wake it up.
        """
        if number in _HANDLED and self._last_signal_at < at - _RESEND_AFTER_S:
            signal.pthread_kill(self._main, number)

    def _notify(self) -> None:
        received, listener = self.received, self._listener
        if received is None:
            return
        if listener is not None and listener(received):
            self.received = None
        elif not self._closed.wait(self._grace):
            self._exit_now(received)

    def _exit_now(self, received: signal.Signals) -> None:
        if self._terminal is not None:
            _restore(*self._terminal)
        os._exit(exit_code(received))


@contextmanager
def handle_signals(*, grace: float = GRACE_S) -> Iterator[SignalHandler]:
    """Handle signals within this block. Only in the main thread."""
    signals = SignalHandler(grace)
    previous_fd = signal.set_wakeup_fd(signals.write_fd, warn_on_full_buffer=False)
    before = {}
    for number in _HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, signals.on_signal)
    try:
        yield signals
        signals.check()
    except OSError:
        signals.check()  # Writing to a terminal that hung up fails; report the signal instead.
        raise
    finally:
        ending = signals.received is not None
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
