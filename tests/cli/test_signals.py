"""Orderly shutdown: the listener is notified, the turn ends, the exit code names the signal."""

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from holdfast.cli.signals import DUPLICATE_WINDOW_S

_CODE = """
import os, signal, sys, time, tty
from holdfast.cli import signals

def say(what):
    sys.stdout.write(what + "\\n")
    sys.stdout.flush()

def work(told):
{body}

try:
    with signals.handle_signals(grace={grace}) as told:
        try:
            work(told)
        finally:
            say("left")
    say("went on")
except signals.SignalReceived as asked:
    say("told")
    sys.exit(asked.exit_code)
"""
_WAITS = """
    say("ready")
    time.sleep(60)
"""
_LISTENS = """
    over = []
    def listener(came):
        say(signals.describe(came))
        over.append(came)
        return False
    with told.notifying(listener):
        say("ready")
        while not over:
            time.sleep(0.01)
    say("sealed")
"""
_GOES_ON = """
    heard = []
    def listener(came):
        say(came.name)
        heard.append(came)
        return came == signal.SIGINT
    with told.notifying(listener):
        say("ready")
        while signal.SIGTERM not in heard:
            time.sleep(0.01)
"""
_IS_STUCK = """
    with told.notifying(lambda came: bool(say("heard"))):
        say("ready")
        while True:
            time.sleep(60)
"""
_TOO_LATE = """
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except signals.SignalReceived:
        pass
    with told.notifying(lambda came: False):
        say("never here")
"""
_LATER = DUPLICATE_WINDOW_S + 0.1
_RAW = "\n    tty.setraw(0)" + _IS_STUCK


@contextmanager
def _program(
    body: str, *, grace: float = 60.0, stdin: int = subprocess.DEVNULL, **options: object
) -> Iterator[subprocess.Popen[str]]:
    code = _CODE.format(body=body, grace=grace)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, text=True,
        **options,  # type: ignore[call-overload]
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def _said(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=60)
    return out.split("\n")[:-1]


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


_CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), _CODES)
def test_while_nobody_listens_blocks_are_left(number: signal.Signals, code: int) -> None:
    with _program(_WAITS) as process:
        assert _line(process) == "ready"
        process.send_signal(number)
        assert _said(process) == ["left", "told"]
    assert process.returncode == code


@pytest.mark.parametrize(("number", "code"), _CODES)
def test_who_listens_is_told_and_comes_to_the_end(number: signal.Signals, code: int) -> None:
    with _program(_LISTENS) as process:
        assert _line(process) == "ready"
        process.send_signal(number)
        [why, *rest] = _said(process)
    assert why
    assert rest == ["sealed", "left", "told"]
    assert process.returncode == code


def test_a_listener_can_say_that_the_program_goes_on() -> None:
    """Ctrl-C ends a reply, not the program; and often."""
    with _program(_GOES_ON) as process:
        assert _line(process) == "ready"
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            assert _line(process) == "SIGINT"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert _said(process) == ["SIGTERM", "left", "told"]
    assert process.returncode == 143


def test_a_second_signal_forces() -> None:
    """Nothing more is done, and the code is that of the second."""
    with _program(_IS_STUCK) as process:
        assert _line(process) == "ready"
        process.send_signal(signal.SIGINT)
        assert _line(process) == "heard"
        time.sleep(_LATER)
        process.send_signal(signal.SIGTERM)
        assert _said(process) == []
    assert process.returncode == 143


@pytest.mark.parametrize("body", [_LISTENS, _WAITS], ids=["listens", "waits"])
def test_a_signal_that_comes_twice_at_once_is_one(body: str) -> None:
    """`timeout` tells a program and then its group: that must not force it."""
    with _program(body) as process:
        assert _line(process) == "ready"
        process.send_signal(signal.SIGSTOP)  # However slow we are, they come at once.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert _said(process)[-2:] == ["left", "told"]
    assert process.returncode in {143, 129}  # the system may hand them over in any order


def test_a_program_that_does_not_end_is_ended() -> None:
    with _program(_IS_STUCK, grace=0.1) as process:
        assert _line(process) == "ready"
        process.send_signal(signal.SIGHUP)
        assert _said(process) == ["heard"]
    assert process.returncode == 129


def test_what_came_before_somebody_listened_is_not_lost() -> None:
    with _program(_TOO_LATE) as process:
        assert _said(process) == ["left", "told"]
    assert process.returncode == 143


def test_what_was_ignored_stays_ignored() -> None:
    """As `nohup` wants it."""
    ignore: Callable[[], object] = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with _program(_WAITS, preexec_fn=ignore) as process:
        assert _line(process) == "ready"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert _said(process) == ["left", "told"]
    assert process.returncode == 143


def test_a_forced_end_leaves_the_terminal_as_it_was() -> None:
    outer, inner = pty.openpty()
    try:
        before = termios.tcgetattr(inner)
        assert before[3] & termios.ECHO
        with _program(_RAW, stdin=inner) as process:
            assert _line(process) == "ready"
            assert not termios.tcgetattr(inner)[3] & termios.ECHO
            process.send_signal(signal.SIGTERM)
            assert _line(process) == "heard"
            time.sleep(_LATER)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        assert termios.tcgetattr(inner) == before
    finally:
        os.close(outer)
        os.close(inner)


def test_afterwards_signals_are_what_they_were() -> None:
    code = """
import signal
from holdfast.cli import signals
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
with signals.handle_signals():
    assert signal.getsignal(signal.SIGTERM) not in before
assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
