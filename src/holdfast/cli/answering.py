"""How `holdfast run` shows what happens: as text for people and pipes, or as lines of JSON.

As text, standard output has the model's words and nothing else. Standard error has what must be
known (a call that was refused, one that is tried again), and if somebody looks at it also what goes
on meanwhile. As JSON everything is a line of standard output, each with a `type`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from typing import Final

import msgspec

from holdfast.agent import Result, events
from holdfast.agent.events import Event
from holdfast.cli.flowing import Flow
from holdfast.cli.machine import print_line, to_ascii
from holdfast.cli.visible import visible
from holdfast.cli.wording import amount, count, money, words
from holdfast.records import Recovered

_GIVEN: Final = 120  # characters of a call's arguments


class Started(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="started"):
    """The first line: which session, which model and why, and what this run goes by."""

    session: str
    key: str | None
    new: bool
    model: str
    why: str
    run_id: str


class Notice(msgspec.Struct, frozen=True, tag_field="type", tag="notice"):
    """Something that is good to know."""

    text: str


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="result"):
    """The last line: what came of it."""

    session: str
    turn_id: str
    state: str
    text: str
    rounds: int
    usage: dict[str, int]
    cost: str | None
    error: str | None
    exit_code: int


class Answering(ABC):
    """Shows what happens.

    `notice` may be called from any thread, and never waits for who reads the answer: somebody who
    reads slowly must not hold up the agent's own thread, which has to hear of a signal.
    """

    @abstractmethod
    def begin(self, started: Started) -> None:
        """Show that it begins."""

    @abstractmethod
    def notice(self, text: str) -> None:
        """Show something that must be known."""

    @abstractmethod
    def take(self, event: Event) -> None:
        """Show what an event tells."""

    @abstractmethod
    def end(self, result: Result, exit_code: int) -> None:
        """Show what came of it."""

    @abstractmethod
    def aside(self, text: str) -> None:
        """Say something to somebody who looks."""


class Lines(Answering):
    """Lines of JSON."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._session = ""
        self._notices: deque[Notice] = deque()

    def begin(self, started: Started) -> None:
        """Print the first line."""
        self._session = started.session
        self._print(started)

    def notice(self, text: str) -> None:
        """Let a line be printed before the next one."""
        self._notices.append(Notice(text))

    def take(self, event: Event) -> None:
        """Print the event as it is."""
        self._print(event)

    def aside(self, text: str) -> None:
        """Say nothing: nobody looks."""

    def end(self, result: Result, exit_code: int) -> None:
        """Print the last line."""
        self._print(
            Ended(
                session=self._session,
                turn_id=result.turn_id,
                state=result.state,
                text=result.text,
                rounds=result.rounds,
                usage=msgspec.to_builtins(result.usage),
                cost=None if result.cost is None else str(result.cost),
                error=result.error,
                exit_code=exit_code,
            )
        )

    def _print(self, value: object) -> None:
        while self._notices:
            print_line(self._notices.popleft())
        print_line(value)
        sys.stdout.flush()


class Words(Answering):
    """The reply as it comes."""

    def __init__(self) -> None:
        """See who looks."""
        self._looking = sys.stderr.isatty()
        self._shared = self._looking and sys.stdout.isatty()
        self._flow = Flow()
        self._open = False  # a line of the reply is not ended yet

    def begin(self, started: Started) -> None:
        """Say to somebody who looks what answers, and where."""
        kind = "new session" if started.new else "session"
        self.aside(f"{kind} {started.key or started.session}, {started.model}: {started.why}")

    def notice(self, text: str) -> None:
        """Say it on standard error, below what is there; the reply itself stays as it is."""
        break_line = "\n" if self._open and self._shared else ""
        sys.stderr.write(f"{break_line}holdfast: {visible(text)}\n")
        sys.stderr.flush()

    def aside(self, text: str) -> None:
        """Say it on standard error if that is a terminal."""
        if self._looking:
            self.notice(text)

    def take(self, event: Event) -> None:
        """Write what the model says, and beside it what else must be known."""
        match event:
            case events.TextDelta(text):
                self._write(self._flow.write(text))
            case events.ReplyStored(message, superseded):
                # One that broke off goes on where it stopped, unless it begins anew.
                if superseded or message.status == "complete":
                    self._end_text()
            case events.TurnEnded():
                self._end_text()
            case events.ToolStarted(call):
                self.aside(f"{call.name} {words(to_ascii(call.arguments), _GIVEN)}")
            case events.ToolEnded() if event.error:
                self.aside(f"{event.call.name} failed: {words(event.message.text, _GIVEN)}")
        known = _worth_knowing(event)
        if known is not None:
            self.notice(known)

    def end(self, result: Result, exit_code: int) -> None:
        """Return why it is no whole answer, or to somebody who looks what it took."""
        self._end_text()
        if result.state == "sealed" and result.error is not None:
            self.notice(result.error)
        if exit_code == 0:
            self.aside(_summed(result))

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = not text.endswith("\n")

    def _end_text(self) -> None:
        self._write(self._flow.end())
        if self._open:
            self._write("\n")


def _worth_knowing(event: Event) -> str | None:
    """Return what must be known also by somebody who looks only at the answer."""
    match event:
        case events.TurnStarted() if event.recovered is not None:
            return _told(event.recovered)
        case events.ReplyStored(_, superseded=True):
            return "the reply broke off; it begins anew"
        case events.Retrying():
            failed = f"attempt {event.attempt} of {event.attempts} failed ({event.error})"
            return f"{failed}; the next one is in {event.wait:.1f} s"
        case events.ContextShrunk(before, after):
            return f"the window was too long: {after:,} instead of {before:,} tokens now"
        case events.GoalPaused(_, why):
            return f"the goal is not reached, and stays: stopped {why}"
    return None


def _told(recovered: Recovered) -> str:
    kept = " Its partial reply was kept." if recovered.partial is not None else ""
    unknown = len(recovered.unknown_tools)
    tools = f" {count(unknown, 'call')} may or may not have been made." if unknown else ""
    return f"a turn that a crash left open was closed.{kept}{tools}"


def _summed(result: Result) -> str:
    used = f"{amount(result.usage.input)} tokens in, {amount(result.usage.output)} out"
    cost = "" if result.cost is None else f", {money(result.cost)} $"
    return f"{count(result.rounds, 'round')}, {used}{cost}"
