"""Ending in good order when a signal asks for it: Ctrl-C, a hang-up, or a request to end.

While nothing runs that must be told, a signal raises `Told` in the main thread, as Ctrl-C does
anywhere: blocks are left, the store is closed. While a turn runs, somebody listens (`telling`): the
listener cancels the turn, the turn is sealed, and the program comes to its end; leaving `heard`
raises `Told` then. `program.run` makes it the exit code.

A second signal forces: the process is gone at once, and what it left open is closed by the next
one. So does time: a program that was told to end and is still there after `GRACE` seconds is stuck.
What comes within `ECHO` seconds is no second one: `timeout` tells a program and then its group, a
terminal that is closed hangs up and so does its shell.

A signal that was ignored when the program began (`nohup`, a job in the background) stays so.
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
    signal.SIGTERM: "the program was told to end (SIGTERM)",
    signal.SIGHUP: "the terminal hung up (SIGHUP)",
}
# What goes through the pipe beside the numbers of signals, which Python itself writes.
_TAKEN: Final = 255
_OVER: Final = 254

# Told of a signal, in a thread of its own: a handler interrupts the main thread anywhere, also
# while it holds a lock. True: that was all, the program goes on. Else it is about to end.
Listener: TypeAlias = Callable[[signal.Signals], bool]
_State: TypeAlias = list[int | list[bytes | int]]
_Terminal: TypeAlias = tuple[int, _State]


class Told(KeyboardInterrupt):
    """A signal asked the program to end."""

    def __init__(self, came: signal.Signals) -> None:
        """Remember which."""
        super().__init__(why(came))
        self.exit_code = exit_code(came)


def why(came: signal.Signals) -> str:
    """Return what a signal means."""
    return _WHY.get(came, came.name)


def exit_code(came: signal.Signals) -> int:
    """Return the exit code of a program that a signal ended: 130, 143, 129."""
    return 128 + came


class Signals:
    """What came, and who is told of it. `heard` makes one."""

    def __init__(self, grace: float) -> None:
        """Begin to wait for signals, in a thread."""
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
        """Within this block a signal is told to the listener; what came before it is raised."""
        self.check()
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def check(self) -> None:
        """Raise `Told` if a signal asked to end."""
        if self.came is not None:
            raise Told(self.came)

    def take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - Python's own
        """Handle a signal."""
        now = time.monotonic()
        before, self._taken = self._taken, now
        if now - before < _MOMENT:
            return  # It may have been sent again by `_send_again`.
        came = signal.Signals(number)
        if self.came is not None:
            if now - self._since >= ECHO:
                self._force(came)
            return
        self.came, self._since = came, now
        self._write(_TAKEN)
        if self._listener is None:
            raise Told(came)

    def close(self) -> None:
        """Wait for no signal any more."""
        self._over.set()
        self._write(_OVER)

    def _write(self, byte: int) -> None:
        with suppress(BlockingIOError):  # So many wait to be read that one more says nothing.
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
        """Send a signal again that nobody took.

        One that arrives just before the main thread goes to sleep does not wake it up.
        """
        if number in _HEARD and self._taken < at - _MOMENT:
            signal.pthread_kill(self._main, number)

    def _tell(self) -> None:
        came, listener = self.came, self._listener
        if came is None:
            return
        if listener is not None and listener(came):
            self.came = None
        elif not self._over.wait(self._grace):
            self._force(came)

    def _force(self, came: signal.Signals) -> None:
        if self._terminal is not None:
            _restore(*self._terminal)
        os._exit(exit_code(came))


@contextmanager
def heard(*, grace: float = GRACE) -> Iterator[Signals]:
    """Within this block signals end the program in good order. In the main thread only."""
    signals = Signals(grace)
    waked = signal.set_wakeup_fd(signals.writing, warn_on_full_buffer=False)
    before = {}
    for number in _HEARD:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, signals.take)
    try:
        yield signals
        signals.check()
    except OSError:
        signals.check()  # A terminal that hung up cannot be written to.
        raise
    finally:
        told = signals.came is not None
        for number, handler in before.items():
            # All is closed: one that comes in the last moment must not change the exit code.
            signal.signal(number, signal.SIG_IGN if told else handler)
        signal.set_wakeup_fd(waked)
        # A program that was told to end is still watched: threads may hold up its last steps.
        if not told:
            signals.close()


def _terminal_state() -> _Terminal | None:
    """Note how the terminal is, so that a forced end leaves it like that."""
    import termios

    with suppress(OSError, ValueError, AttributeError, termios.error):
        number = sys.stdin.fileno()
        return number, termios.tcgetattr(number)
    return None


def _restore(number: int, state: _State) -> None:
    import termios

    with suppress(OSError, termios.error):
        termios.tcsetattr(number, termios.TCSANOW, state)
