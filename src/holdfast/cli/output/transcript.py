"""A conversation as text: turns, messages, tool calls and their outcomes.

A tool call is shown in the message that made it, with its outcome from the ledger of its turn, so
it shows the recorded state rather than what the texts suggest. Calls, results and thinking are
folded to a line each; `DisplayOptions` unfold them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

from holdfast.cli.output.humanize import count, duration, local_time, short_id, shorten, size
from holdfast.cli.output.json_output import to_ascii_json
from holdfast.cli.output.screen import Screen, Span
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolRecord,
    ToolResult,
    TurnInfo,
    Usage,
)

MAX_SHOWN_PARTS: Final = 500  # of a message: drawing a line for a terminal takes a millisecond
Ledger: TypeAlias = Mapping[tuple[str | None, str], ToolRecord]

_OUTCOMES: Final[Mapping[str, Span]] = {
    "called": ("not started", "dim"),
    "running": ("started, no result", "cyan"),
    "done": ("done", "green"),
    "error": ("failed", "red"),
    "unknown": ("outcome unknown", "bold yellow"),
    "not_run": ("not run", "yellow"),
}
_STATES: Final[Mapping[str, str]] = {
    "open": "cyan",
    "sealed": "green",
    "cancelled": "yellow",
    "failed": "red",
    "interrupted": "bold yellow",
}
_ROLES: Final[Mapping[str, str]] = {
    "user": "bold blue",
    "assistant": "bold green",
    "summary": "bold magenta",
}


class DisplayOptions(NamedTuple):
    """What to unfold, and the seq of the message to mark."""

    tools: bool = False
    thinking: bool = False
    at: int | None = None


def ledger(turns: Iterable[TurnInfo]) -> Ledger:
    """Return the tool records of turns, keyed by turn id and call id."""
    return {(turn.id, tool.call_id): tool for turn in turns for tool in turn.tools}


class Transcript:
    """Prints messages under the headings of their turns; a turn without messages has one too.

    `marks` are lines to print after a message, by its seq: where the history came from another
    branch or session. `abandoned` says that no process holds the open turn any more.
    """

    def __init__(
        self,
        out: Screen,
        turns: Sequence[TurnInfo],
        *,
        session: str,
        abandoned: bool,
        options: DisplayOptions = DisplayOptions(),  # noqa: B008 - it cannot be changed
        marks: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._out = out
        self._turns = list(turns)
        self._session = session
        self._abandoned = abandoned
        self._marks = dict(marks or {})
        self._messages = MessagePrinter(out, ledger(turns), options)

    def draw(
        self, messages: Sequence[Message], *, empty_turns: bool = True, ended: bool = True
    ) -> None:
        """Print messages under the headings of their turns.

        With `empty_turns`, turns without messages get a heading too. With `ended`, these are the
        newest messages and the open turn is always shown.
        """
        pending = deque(self._turns_from(messages) if empty_turns else self._turns)
        current: str | None = None
        self._draw_marks(0 if messages and messages[0].seq == 1 else None)
        for message in messages:
            if message.turn_id != current:
                current = message.turn_id
                self._messages.end_fold()
                self._draw_turn_headings(current, pending, empty_turns=empty_turns)
            self._messages.draw(message)
            self._draw_marks(message.seq)
        self._messages.end_fold()
        for turn in pending if ended else ():
            if empty_turns or turn.state == "open":
                self._draw_turn(turn)

    def _turns_from(self, messages: Sequence[Message]) -> list[TurnInfo]:
        """Return the turns from that of the first message on."""
        if not messages or messages[0].seq == 1:
            return self._turns
        shown = {message.turn_id for message in messages}
        indexes = (n for n, turn in enumerate(self._turns) if turn.id in shown)
        return self._turns[next(indexes, len(self._turns)) :]

    def _draw_marks(self, seq: int | None) -> None:
        for mark in () if seq is None else self._marks.get(seq, ()):
            self._messages.end_fold()
            self._out.line((f"══ {mark} ══", "magenta"))
            self._out.line()

    def _draw_turn_headings(
        self, turn_id: str | None, pending: deque[TurnInfo], *, empty_turns: bool
    ) -> None:
        """Print the heading of the turn that starts here, and of empty turns before it."""
        if any(turn.id == turn_id for turn in pending):
            while (turn := pending.popleft()).id != turn_id:
                if empty_turns:
                    self._draw_turn(turn)
            self._draw_turn(turn)
            return
        self._out.line((f"── {self._foreign_turn(turn_id)} ──", "dim"))
        self._out.line()

    def _foreign_turn(self, turn_id: str | None) -> str:
        if turn_id is None:
            return "outside of a turn"
        owner, _, number = turn_id.rpartition(".")
        if owner == self._session:
            return f"turn {number}, continued"
        return f"turn {number} of {short_id(owner)}"

    def _draw_turn(self, turn: TurnInfo) -> None:
        facts = [local_time(turn.started_at)]
        if turn.latency_ms is not None:
            facts.append(duration(turn.latency_ms))
        facts += [fact for fact in (turn.model, turn.run_id and f"run {turn.run_id}") if fact]
        facts += usage_facts(turn.usage, turn.cost)
        self._out.line(
            (f"── turn {turn.id.rpartition('.')[2]} ", "dim"),
            self._state(turn),
            (f" · {' · '.join(facts)} ──", "dim"),
        )
        if turn.error is not None:
            self._out.line("   ", (turn.error, "red"))
        self._out.line()

    def _state(self, turn: TurnInfo) -> Span:
        if turn.state == "open" and self._abandoned:
            return "left open by a crash", _STATES["interrupted"]
        return turn.state, _STATES[turn.state]


def usage_facts(usage: Usage, cost: Decimal) -> list[str]:
    """Return token usage and cost as texts, without those that are zero."""
    tokens = [f"{usage.total:,} tokens"] if usage.total else []
    return [*tokens, f"cost {cost}"] if cost else tokens


# ------------------------------------------------------------------------------------- messages


class MessagePrinter:
    """Prints messages one by one, with no blank line between folded tool results."""

    def __init__(
        self,
        out: Screen,
        outcomes: Ledger,
        options: DisplayOptions = DisplayOptions(),  # noqa: B008 - as above
    ) -> None:
        self._out = out
        self._outcomes = outcomes
        self._options = options
        self._names: dict[str, str] = {}
        self._seqs: dict[str, int | None] = {}
        self._folded = False

    def draw(self, message: Message) -> None:
        """Print one message."""
        self._seqs[message.id] = message.seq
        self._names |= {call.id: call.name for call in message.tool_calls}
        if self._can_fold(message):
            self._draw_folded(message)
            return
        self.end_fold()
        self._out.line(*self._heading(message))
        if message.status == "damaged":
            self._out.line(("  This message cannot be read. Its bytes are kept:", "red"))
        elif message.status == "erased":
            self._out.line(("  This message was erased for good.", "dim"))
        for part in message.parts[:MAX_SHOWN_PARTS]:
            self._draw_part(part, message)
        draw_rest(self._out, len(message.parts))
        if message.metadata:
            self._out.line((f"  metadata {_json(message.metadata)}", "dim"))
        self._out.line()

    def end_fold(self) -> None:
        """Print a blank line if folded results came last."""
        if self._folded:
            self._folded = False
            self._out.line()

    def _heading(self, message: Message) -> list[Span]:
        spans: list[Span] = [self._marker(message), (f"#{message.seq} ", "dim")]
        if message.status == "damaged":
            return [*spans, ("DAMAGED", "bold red")]
        spans.append((message.role, _ROLES.get(message.role, "bold")))
        facts = [message.name, message.model, message.created_at and local_time(message.created_at)]
        if message.role == "summary":
            facts.insert(0, self._coverage(message))
        if message.provenance is not None:
            was = f", was {message.provenance.role}" if message.provenance.role else ""
            facts.append(f"from {message.provenance.source}{was}")
        spans += [(f" · {fact}", "dim") for fact in facts if fact]
        if message.status == "partial":
            spans.append((" · PARTIAL: it was cut short", "bold yellow"))
        if message.status == "erased":
            spans.append((" · ERASED", "bold red"))
        return spans

    def _marker(self, message: Message) -> Span:
        return ("▶ " if self._options.at == message.seq else ""), "bold yellow"

    def _coverage(self, summary: Message) -> str:
        if summary.covers is None:
            return "stands for what is before it"
        seq = self._seqs.get(summary.covers)
        return f"stands for {f'1 to {seq}' if seq else f'all up to {summary.covers}'}"

    def _draw_part(self, part: Part, message: Message) -> None:
        out = self._out
        if isinstance(part, Text):
            out.markdown(part.text)
        elif isinstance(part, Thinking):
            self._draw_thinking(part)
        elif isinstance(part, ToolCall):
            self._draw_call(part, self._outcomes.get((message.turn_id, part.id)))
        elif isinstance(part, ToolResult):
            _draw_result(out, part)
        elif isinstance(part, File):
            out.line("  ", *_file(part))
        elif message.status == "damaged" and isinstance(part.data, str):
            out.body(part.data, style="red")
        else:
            out.line("  ", *_raw(part))

    def _draw_thinking(self, part: Thinking) -> None:
        if not self._options.thinking:
            self._out.truncated_line(("  thinking  ", "dim italic"), (shorten(part.text), "dim"))
            return
        self._out.line(("  thinking:", "dim italic"))
        self._out.body(part.text, indent=4, style="dim")

    def _draw_call(self, call: ToolCall, record: ToolRecord | None) -> None:
        arguments = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
        shown = "" if call.arguments is None else arguments
        spans: list[Span] = [("  → ", "dim"), (call.name, "bold")]
        outcome: list[Span] = [] if record is None else ["  ", _OUTCOMES[record.outcome]]
        if self._options.tools:
            self._out.line(*spans, f"({shown})", *outcome, (f"  {call.id}", "dim"))
        else:
            self._out.truncated_line(*spans, *outcome, (f"  {shorten(shown)}", "dim"))

    # ------------------------------------------------------------------------------ folding

    def _can_fold(self, message: Message) -> bool:
        return (
            not self._options.tools
            and message.role == "tool"
            and message.status == "complete"
            and not message.metadata
            and bool(message.parts)
            and all(isinstance(part, ToolResult) for part in message.parts)
        )

    def _draw_folded(self, message: Message) -> None:
        self._folded = True
        for result in message.tool_results[:MAX_SHOWN_PARTS]:
            name = result.name or self._names.get(result.call_id) or result.call_id
            failed: list[Span] = [("failed  ", "red")] if result.error else []
            self._out.truncated_line(
                self._marker(message),
                (f"#{message.seq} ← ", "dim"),
                f"{name}  ",
                *failed,
                (_result_size(result), "dim"),
                (shorten(result.text), "dim"),
            )
        draw_rest(self._out, len(message.tool_results))


def _result_size(result: ToolResult) -> str:
    """Return the lines and attachments of a result, if it is more than one line."""
    parts = () if isinstance(result.content, str) else result.content
    files = sum(not isinstance(part, Text) for part in parts)
    lines = result.text.count("\n") + 1
    facts = [count(lines, "line")] if lines > 1 else []
    facts += [count(files, "attachment")] if files else []
    return f"({', '.join(facts)})  " if facts else ""


def _draw_result(out: Screen, result: ToolResult) -> None:
    name = f"{result.name}  " if result.name else ""
    failed: list[Span] = [("  failed", "red")] if result.error else []
    out.line(("  ← ", "dim"), name, (result.call_id, "dim"), *failed)
    content = (Text(result.content),) if isinstance(result.content, str) else result.content
    for part in content[:MAX_SHOWN_PARTS]:
        if isinstance(part, Text):
            out.body(part.text, indent=4)
        else:
            out.line("    ", *(_file(part) if isinstance(part, File) else _raw(part)))
    draw_rest(out, len(content))


def draw_rest(out: Screen, parts: int) -> None:
    """Print how many parts are not shown, if there are more than are shown."""
    if parts > MAX_SHOWN_PARTS:
        out.line((f"  … {count(parts - MAX_SHOWN_PARTS, 'more part')}; --json has them", "dim"))


def _file(file: File) -> list[Span]:
    facts = [file.mime, None if file.size is None else size(file.size), file.sha256]
    known = " · ".join(fact for fact in facts if fact)
    return [("file ", "dim"), (file.name or "unnamed", "bold"), (f"  {known}", "dim")]


def _raw(raw: Raw) -> list[Span]:
    return [("raw ", "dim"), (raw.source, "bold"), f"  {_json(raw.data)}"]


def _json(value: JSON) -> str:
    return to_ascii_json(value)


def message_preview(message: Message) -> str:
    """Return a one-line preview of a message."""
    if message.status == "erased":
        return "erased"
    text = shorten(message.text)
    if text:
        return text
    if message.tool_calls:
        return shorten(f"calls {', '.join(call.name for call in message.tool_calls)}")
    return count(len(message.parts), "part")
