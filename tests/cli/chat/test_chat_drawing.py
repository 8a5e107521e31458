"""What happens in a turn, drawn as it happens: what stays, and what is live."""

import io
from decimal import Decimal

import pytest

from holdfast import Goal, Message, ToolCall, Usage
from holdfast.agent import events
from holdfast.agent.events import Event
from holdfast.cli.chat.turn_view import TurnView, arguments_line, without_error_class, wrap
from holdfast.cli.output.screen import PlainScreen
from holdfast.values import JSON, TurnState


class _Seen:
    """A drawing, what it printed, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self._written = io.StringIO()
        out = PlainScreen(self._written)
        self.drawing = TurnView(lambda: out, lambda: self.now)

    def take(self, *happened: Event) -> str:
        for event in happened:
            self.drawing.take(event)
        return self.text()

    def text(self) -> str:
        self.drawing.print_finished()
        text = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return text

    def live(self) -> str:
        out = io.StringIO()
        self.drawing.draw_live(PlainScreen(out))
        return out.getvalue()


def _ended(state: TurnState, error: str | None = None) -> events.TurnEnded:
    return events.TurnEnded(
        turn_id="s.1", state=state, rounds=1, usage=Usage(), cost=Decimal(0), latency_ms=1,
        error=error,
    )  # fmt: skip


def test_a_reply_is_live_until_its_blocks_are_done() -> None:
    seen = _Seen()
    seen.drawing.begin("hello")
    assert seen.take(events.UserSaid(Message.user("hello"))) == ""
    assert seen.take(events.TextDelta("one\n\ntw")) == ""
    assert seen.live() == "\n  one\n\n  tw\n"
    assert seen.take(events.TextDelta("o\n")) == "\n  one\n"
    assert seen.live() == "\n  two\n"
    stored = events.ReplyStored(Message.assistant("one\n\ntwo\n"))
    assert seen.take(stored, _ended("sealed")) == "\n  two\n"
    assert seen.live() == ""


def test_what_was_queued_is_shown_when_it_is_said() -> None:
    """Input that the agent injects is shown as a short note."""
    seen = _Seen()
    seen.drawing.begin("now")
    queued, now = Message.user("before\nthat"), Message.user("now")
    assert seen.take(events.UserSaid(queued), events.UserSaid(now)) == "\n\u203a before\n  that\n"
    own = Message.user("Go on", metadata={"injected": "goal"})
    assert seen.take(events.UserSaid(own)) == "\n  continues\n"


def test_tools_are_live_while_they_run_and_then_a_line() -> None:
    seen = _Seen()
    one, two = (
        ToolCall("1", "read_file", {"path": "a.txt"}),
        ToolCall("2", "run_command", {"command": "ls"}),
    )
    seen.take(events.ToolStarted(one), events.ToolStarted(two))
    seen.now = 3.0
    assert seen.live() == "\n  … read_file  a.txt  3.0 s\n  … run_command  ls  3.0 s\n"
    done = events.ToolEnded(call=one, message=Message.tool("1", "x\ny"), error=False, ms=20)
    assert seen.take(done) == "\n  ✓ read_file  a.txt\n    x y\n"
    failed = events.ToolEnded(
        call=two, message=Message.tool("2", "exit 1", error=True), error=True, ms=2500
    )
    assert seen.take(failed) == "  ✗ run_command  ls  2.5 s\n    exit 1\n"
    assert seen.live() == ""


def test_thinking_is_told_when_it_took_time() -> None:
    seen = _Seen()
    seen.take(events.ThinkingDelta("hm"))
    assert "thinking" in seen.drawing.status
    seen.now = 0.5
    assert "thought" not in seen.take(events.TextDelta("a\n\nb\n"))
    seen.take(events.ThinkingDelta("hm"))
    seen.now = 9.0
    assert "  thought for 8 s\n" in seen.take(events.TextDelta("c"))


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            events.Retrying(attempt=1, attempts=5, wait=2.0, error="429: slow down"),
            "429: slow down; trying again in 2.0 s (1 of 5 tries failed)",
        ),
        (events.ContextShrunk(128_000, 90_000), "128.0k tokens, now 90.0k"),
        (events.GoalChanged(Goal("tidy up")), "goal: tidy up"),
        (events.GoalChanged(Goal("a", state="completed", recap="all tidy")), "reached: all tidy"),
        (events.GoalPaused(Goal("a"), "after 20 turns"), "on the goal: after 20 turns."),
        (events.Summarized(upto=8, by="model"), "stands for messages 1 to 8"),
        (events.ReplyStored(Message.assistant("x"), superseded=True), "starts over"),
        (_ended("cancelled"), "stopped; what came so far is kept"),
        (_ended("failed", "ModelFailed: no luck"), "failed: no luck"),
    ],
)
def test_everything_else_is_a_note(event: Event, told: str) -> None:
    assert told in _Seen().take(event)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (None, ""),
        ({}, ""),
        ("not json", "not json"),
        ({"command": "ls  -l"}, "ls -l"),
        ({"limit": 3}, "3"),
        ({"path": "a.txt", "content": "x" * 1000}, "a.txt"),
        ({"a": 1, "b": "two"}, '{"a": 1, "b": "two"}'),
    ],
)
def test_arguments_are_said_in_a_line(arguments: JSON, told: str) -> None:
    assert arguments_line(ToolCall("1", "f", arguments)) == told


def test_an_error_is_said_without_its_kind() -> None:
    assert without_error_class("ModelFailed: it is 429: wait") == "it is 429: wait"
    assert without_error_class("no kind: here") == "no kind: here"


def test_nothing_hostile_is_drawn_whatever_the_event() -> None:
    bad = "\x1b[2J\u202e"
    seen = _Seen()
    call = ToolCall("1", bad, {"command": bad})
    seen.take(events.ToolStarted(call))
    drawn = seen.live()
    drawn += seen.take(
        events.UserSaid(Message.user(bad)),
        events.TextDelta(bad),
        events.ToolEnded(call=call, message=Message.tool("1", bad), error=True, ms=1),
        events.Retrying(attempt=1, attempts=2, wait=0, error=bad),
        events.GoalChanged(Goal(bad)),
        _ended("failed", bad),
    )
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn
    assert drawn.count(r"\x1b[2J") >= 6


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("  kept  spaces", 20, ["  kept  spaces"]),
        ("a verylongword b", 4, ["a", "verylongword", "b"]),
        ("日本 語", 5, ["日本", "語"]),
        ("", 5, [""]),
    ],
)
def test_lines_are_broken_between_words(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


def test_a_goal_that_only_goes_on_is_not_told_again() -> None:
    seen = _Seen()
    assert "goal: tidy up" in seen.take(events.GoalChanged(Goal("tidy up")))
    assert seen.take(events.GoalChanged(Goal("tidy up", rounds=1))) == ""
    own = Message.user("Go on", metadata={"injected": "goal"})
    assert "continues, turn 1 by itself" in seen.take(events.UserSaid(own))
    seen.drawing.begin(None)
    seen.drawing.end(stopped=True)
    assert "stopped; the goal stays" in seen.text()


def test_a_tool_that_was_stopped_on_the_way_is_told() -> None:
    seen = _Seen()
    seen.take(events.ToolStarted(ToolCall("1", "run_command", {"command": "sleep 60"})))
    assert seen.drawing.status == "running tools, 0 s"
    assert "✗ run_command  sleep 60  stopped\n" in seen.take(_ended("cancelled"))
    assert seen.live() == ""
