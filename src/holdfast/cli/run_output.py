"""The output of `holdfast run`: text, or lines of JSON.

As text, standard output has the model's reply and nothing else. Standard error has notices (a call
that was refused, a retry) and, if it is a terminal, also progress. As JSON everything is a line of
standard output, each with a `type`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from typing import Final

import msgspec

from holdfast.agent import Result, events
from holdfast.agent.events import Event
from holdfast.cli.output.humanize import compact_number, count, money, shorten
from holdfast.cli.output.json_output import print_line, to_ascii_json
from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.output.sanitize_stream import StreamSanitizer
from holdfast.values import Recovered

_MAX_ARGUMENT_CHARS: Final = 120  # of a call's arguments or result


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="started"):
    """The first line: the session, the model and why it was chosen, and the id of the run."""

    session: str
    key: str | None
    new: bool
    model: str
    why: str
    run_id: str


class RunNotice(msgspec.Struct, frozen=True, tag_field="type", tag="notice"):
    """Information for the user."""

    text: str


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="result"):
    """The last line: the result."""

    session: str
    turn_id: str
    state: str
    text: str
    rounds: int
    usage: dict[str, int]
    cost: str | None
    error: str | None
    exit_code: int


class RunOutput(ABC):
    """Prints the events of a run.

    `notice` may be called from any thread and never blocks on the reader of standard output: a slow
    reader must not block the agent's thread, which handles cancellation.
    """

    @abstractmethod
    def begin(self, started: RunStarted) -> None:
        """Print the start of the run."""

    @abstractmethod
    def notice(self, text: str) -> None:
        """Print a notice."""

    @abstractmethod
    def take(self, event: Event) -> None:
        """Print an event."""

    @abstractmethod
    def end(self, result: Result, exit_code: int) -> None:
        """Print the result."""

    @abstractmethod
    def aside(self, text: str) -> None:
        """Print progress, which is shown only on a terminal."""


class JsonLinesOutput(RunOutput):
    """Lines of JSON."""

    def __init__(self) -> None:
        self._session = ""
        self._notices: deque[RunNotice] = deque()

    def begin(self, started: RunStarted) -> None:
        """Print the first line."""
        self._session = started.session
        self._print(started)

    def notice(self, text: str) -> None:
        """Queue a notice; it is printed before the next line."""
        self._notices.append(RunNotice(text))

    def take(self, event: Event) -> None:
        """Print the event as JSON."""
        self._print(event)

    def aside(self, text: str) -> None:
        """Print nothing."""

    def end(self, result: Result, exit_code: int) -> None:
        """Print the last line."""
        self._print(
            RunEnded(
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


class TextOutput(RunOutput):
    """The reply as text, while it streams."""

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._same_terminal = self._on_terminal and sys.stdout.isatty()
        self._flow = StreamSanitizer()
        self._line_open = False  # The last line of the reply has no newline yet.

    def begin(self, started: RunStarted) -> None:
        """Print the session and the model, on a terminal."""
        kind = "new session" if started.new else "session"
        self.aside(f"{kind} {started.key or started.session}, {started.model}: {started.why}")

    def notice(self, text: str) -> None:
        """Print a notice to standard error, on a line of its own."""
        break_line = "\n" if self._line_open and self._same_terminal else ""
        sys.stderr.write(f"{break_line}holdfast: {sanitize(text)}\n")
        sys.stderr.flush()

    def aside(self, text: str) -> None:
        """Print to standard error if it is a terminal."""
        if self._on_terminal:
            self.notice(text)

    def take(self, event: Event) -> None:
        """Print the model's text, and notices for other events."""
        match event:
            case events.TextDelta(text):
                self._write(self._flow.write(text))
            case events.ReplyStored(message, superseded):
                # A partial reply is continued on the same line, unless the model starts over.
                if superseded or message.status == "complete":
                    self._end_text()
            case events.TurnEnded():
                self._end_text()
            case events.ToolStarted(call):
                self.aside(
                    f"{call.name} {shorten(to_ascii_json(call.arguments), _MAX_ARGUMENT_CHARS)}"
                )
            case events.ToolEnded() if event.error:
                self.aside(
                    f"{event.call.name} failed: {shorten(event.message.text, _MAX_ARGUMENT_CHARS)}"
                )
        notice = _notice_for(event)
        if notice is not None:
            self.notice(notice)

    def end(self, result: Result, exit_code: int) -> None:
        """Print why the answer is incomplete, or on a terminal the tokens used."""
        self._end_text()
        if result.state == "sealed" and result.error is not None:
            self.notice(result.error)
        if exit_code == 0:
            self.aside(_usage_line(result))

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._line_open = not text.endswith("\n")

    def _end_text(self) -> None:
        self._write(self._flow.end())
        if self._line_open:
            self._write("\n")


def _notice_for(event: Event) -> str | None:
    """Return the notice for an event; `None` if it has none."""
    match event:
        case events.TurnStarted() if event.recovered is not None:
            return _recovery_notice(event.recovered)
        case events.ReplyStored(_, superseded=True):
            return "the reply broke off; the model starts over"
        case events.Retrying():
            failed = f"attempt {event.attempt} of {event.attempts} failed ({event.error})"
            return f"{failed}; retrying in {event.wait:.1f} s"
        case events.ContextShrunk(before, after):
            return f"the window was too long; its limit is now {after:,} tokens, was {before:,}"
        case events.GoalPaused(_, why):
            return f"the goal is not reached and stays active: stopped {why}"
    return None


def _recovery_notice(recovered: Recovered) -> str:
    kept = " Its partial reply was kept." if recovered.partial is not None else ""
    unknown = len(recovered.unknown_tools)
    tools = f" {count(unknown, 'call')} may or may not have been made." if unknown else ""
    return f"an earlier turn was interrupted by a crash and has been closed.{kept}{tools}"


def _usage_line(result: Result) -> str:
    used = (
        f"{compact_number(result.usage.input)} tokens in, {compact_number(result.usage.output)} out"
    )
    cost = "" if result.cost is None else f", {money(result.cost)} $"
    return f"{count(result.rounds, 'round')}, {used}{cost}"
