"""Draws a turn from its events.

Permanent output is printed once: a finished block of the reply, a tool's result, a retry. The live
area below it shows what still changes, the growing block and running tools, and is redrawn as often
as needed. All output passes through a `Screen`, which escapes control characters that models and
tools write.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.agent import events
from holdfast.cli.chat.markdown_stream import MarkdownBlock, MarkdownStream
from holdfast.cli.output.humanize import compact_number, duration, shorten
from holdfast.cli.output.json_output import to_ascii_json
from holdfast.cli.output.screen import Screen, Span, cells
from holdfast.values import Goal, Message, ToolCall

MARK: Final = "\u203a "  # the prompt mark: a single angle quotation mark
_ERROR_CLASS: Final = re.compile(r"^[A-Z]\w+: ")
_MAX_RESULT_CHARS: Final = 200  # of a tool's result
_GOAL_LABELS: Final = {
    "active": ("goal", "cyan"),
    "paused": ("goal paused", "yellow"),
    "completed": ("goal reached", "green"),
    "cancelled": ("goal cancelled", "yellow"),
    "blocked": ("goal blocked", "yellow"),
}


class TurnView:
    """Draws turns on a screen."""

    def __init__(
        self, screen: Callable[[], Screen], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`screen` is called for each output, as a terminal may be resized."""
        self._screen = screen
        self.event_count = 0  # events
        self._shown_input: str | None = None
        self._goal: Goal | None = None
        self._stop_printed = False
        self._clock = clock
        self._reply = MarkdownStream()
        self._last_kind = "before"
        self._activity = ""
        self._started_at = clock()
        self._thinking_since: float | None = None
        self._calls: dict[str, tuple[ToolCall, float]] = {}

    @property
    def out(self) -> Screen:
        """The screen for permanent output."""
        return self._screen()

    # ---------------------------------------------------------------------------- as it happens

    def begin(self, said: str | None) -> None:
        """Prepare for a turn; `said` is on the screen already and not printed again."""
        self._shown_input, self._stop_printed = said, False
        self._started_at = self._clock()
        self._activity = "waiting for the model"

    def take(self, event: events.Event) -> None:  # noqa: C901, PLR0912 - one line for each kind
        """Draw an event."""
        self.event_count += 1
        match event:
            case events.UserSaid(message):
                self._user_input(message)
            case events.ModelCalled():
                self._activity = "waiting for the model"
            case events.ThinkingDelta():
                self._think()
            case events.TextDelta(text):
                self._add_text(text)
            case events.ReplyStored(_, superseded):
                self._reply_stored(superseded=superseded)
            case events.Retrying():
                self._retrying(event)
            case events.ContextShrunk(before, after):
                self._note(
                    f"the model's context is smaller than expected: {compact_number(before)} "
                    f"tokens, now {compact_number(after)}"
                )
            case events.ToolStarted(call):
                self._calls[call.id] = call, self._clock()
                self._activity = "running tools"
            case events.ToolEnded():
                self._tool_ended(event)
            case events.GoalChanged(goal):
                self._goal_changed(goal)
            case events.GoalPaused(_, why):
                self._note(
                    f"stopped working on the goal: {why}. Send a message to continue.", "yellow"
                )
            case events.Summarized(upto=upto):
                self._note(f"a summary now stands for messages 1 to {upto}; all stay readable")
            case events.TurnEnded():
                self._ended(event)

    @property
    def status(self) -> str:
        """The current activity, for the status line."""
        return f"{self._activity}, {int(self._clock() - self._started_at)} s"

    @property
    def is_live(self) -> bool:
        """True if the live area is not empty."""
        return bool(self._calls) or self._reply.is_open

    def draw_live(self, screen: Screen) -> None:
        """Draw the live area."""
        if self._reply.is_open:
            block = self._reply.tail
            if not block.joins:
                screen.line()
            screen.markdown(block.text)
        if self._calls:
            screen.line()
        for call, since in self._calls.values():
            passed = duration(int((self._clock() - since) * 1000))
            screen.truncated_line(("  … ", "cyan"), *_call_spans(call), (f"  {passed}", "dim"))

    def end(self, *, stopped: bool = False) -> None:
        """Print what was live, at the end of the stream or after it was stopped."""
        self._end_reply()
        if stopped and not self._stop_printed:  # between two turns of a goal
            self._note(
                "stopped; the goal stays active and continues with your next message", "yellow"
            )
        self._calls.clear()
        self._last_kind = "before"

    # ---------------------------------------------------------------------------------- the reply

    def _add_text(self, text: str) -> None:
        self._end_thinking()
        self._activity = "answering"
        self._reply.write(text)

    def print_finished(self) -> None:
        """Print the finished blocks of the reply."""
        for block in self._reply.take_finished():
            self._print(block)

    def _end_reply(self) -> None:
        self._end_thinking()
        self.print_finished()
        self._print(self._reply.take_rest())

    def _print(self, block: MarkdownBlock) -> None:
        if block.text.strip():
            if not block.joins:
                self._separate("text", alone=True)
            self.out.markdown(block.text.rstrip("\n"))

    def _reply_stored(self, *, superseded: bool) -> None:
        self._end_reply()
        if superseded:
            self._note("that reply was cut off; the model starts over", "yellow")

    def _think(self) -> None:
        if self._thinking_since is None:
            self._thinking_since = self._clock()
        self._activity = "thinking"

    def _end_thinking(self) -> None:
        if self._thinking_since is not None:
            passed = int(self._clock() - self._thinking_since)
            self._thinking_since = None
            if passed:
                self._separate("note")
                self.out.line((f"  thought for {passed} s", "dim italic"))

    # -------------------------------------------------------------------------------- all the rest

    def _user_input(self, message: Message) -> None:
        injected = message.metadata.get("injected")
        if injected:
            rounds = "" if self._goal is None else f", turn {self._goal.rounds} by itself"
            self._note(f"continues{rounds if injected == 'goal' else ''}")
            return
        if self._shown_input is not None and message.text == self._shown_input:
            self._shown_input = None
            return
        self.show_said(message.text)

    def show_said(self, text: str) -> None:
        """Print the user's input."""
        self._separate("user", alone=True)
        width = self.out.width - len(MARK) if self.out.terminal else len(text) * 2
        lines = [part for line in text.split("\n") for part in wrap(line, width)]
        for n, line in enumerate(lines):
            self.out.line((MARK if not n else "  ", "bold cyan"), (line, "bold"))
        self._last_kind = "user"

    def _retrying(self, event: events.Retrying) -> None:
        self._end_reply()
        wait = f" in {event.wait:.1f} s" if event.wait >= 0.1 else ""  # noqa: PLR2004 - no wait
        self._activity = "waiting to try again"
        tries = f"{event.attempt} of {event.attempts} tries failed"
        self._note(f"{shorten(event.error)}; trying again{wait} ({tries})", "yellow")

    def _tool_ended(self, event: events.ToolEnded) -> None:
        self._end_reply()
        self._calls.pop(event.call.id, None)
        self._separate("tool")
        mark: Span = ("  ✗ ", "red") if event.error else ("  ✓ ", "green")
        took = f"  {duration(event.ms)}" if event.ms >= 1000 else ""  # noqa: PLR2004 - a second
        self.out.truncated_line(mark, *_call_spans(event.call), (took, "dim"))
        result = shorten(event.message.text, _MAX_RESULT_CHARS)
        if result:
            self.out.truncated_line(("    ", ""), (result, "red" if event.error else "dim"))

    def _goal_changed(self, goal: Goal) -> None:
        before, self._goal = self._goal, goal
        if before is not None and before == msgspec.structs.replace(goal, rounds=before.rounds):
            return  # Only the number of rounds changed.
        name, style = _GOAL_LABELS[goal.state]
        self._separate("note")
        self.out.line((f"  {name}: ", style), shorten(goal.recap or goal.objective))

    def _ended(self, event: events.TurnEnded) -> None:
        self._end_reply()
        self._stop_calls()
        if event.state == "cancelled":
            self._stop_printed = True
            self._note(
                "stopped; what came so far is kept. /retry sends your message again", "yellow"
            )
        elif event.state == "failed":
            self._note(f"failed: {without_error_class(event.error or '')}", "red")

    def _stop_calls(self) -> None:
        """Print the running tools as stopped."""
        for call, _ in self._calls.values():
            self._separate("tool")
            self.out.truncated_line(("  ✗ ", "yellow"), *_call_spans(call), ("  stopped", "yellow"))
        self._calls.clear()

    def _note(self, text: str, style: str = "dim") -> None:
        self._separate("note")
        self.out.body(text, style=style)

    def _separate(self, kind: str, *, alone: bool = False) -> None:
        """Print an empty line before output of another kind, or if it is to stand `alone`."""
        if alone or kind != self._last_kind:
            self.out.line()
        self._last_kind = kind


def wrap(text: str, width: int) -> list[str]:
    """Wrap a line between words to `width` columns; a longer word stays whole."""
    line, *rest = text.split(" ")
    lines = []
    for word in rest:
        if line.strip() and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}"
    return [*lines, line]


def without_error_class(error: str) -> str:
    """Return an error's text without the name of its class."""
    return _ERROR_CLASS.sub("", error)


def _call_spans(call: ToolCall) -> list[Span]:
    return [(call.name, "bold"), (f"  {arguments_line(call)}", "dim")]


def arguments_line(call: ToolCall) -> str:
    """Return a call's arguments on one line; a single argument without its name."""
    match call.arguments:
        case None:
            return ""
        case str(text):
            return shorten(text)
        case dict(arguments) if len(arguments) == 1:
            [value] = arguments.values()
            return shorten(value if isinstance(value, str) else to_ascii_json(value))
        case {"path": str(path)}:
            return shorten(path)
        case other:
            return shorten(to_ascii_json(other)) if other else ""
