"""How a conversation looks: turns, messages, and the tools with what became of them.

A tool call is shown where it was asked for, with its outcome from the ledger of its turn: what the
store knows, not what the texts suggest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from holdfast.cli.machine import to_ascii
from holdfast.cli.screen import Screen, Span
from holdfast.cli.wording import count, duration, moment, size
from holdfast.records import (
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
_ROLES: Final[Mapping[str, str]] = {"user": "bold blue", "assistant": "bold green"}


def ledger(turns: Iterable[TurnInfo]) -> Ledger:
    """Look outcomes up by turn and call."""
    return {(turn.id, tool.call_id): tool for turn in turns for tool in turn.tools}


class Conversation:
    """Prints messages under the turns they belong to; a turn without any has its heading too."""

    def __init__(self, out: Screen, turns: Sequence[TurnInfo], *, abandoned: bool) -> None:
        """Print to `out`; `abandoned` says that nobody holds the open turn any more."""
        self._out = out
        self._turns = list(turns)
        self._abandoned = abandoned
        self._outcomes = ledger(turns)

    def draw(self, messages: Sequence[Message]) -> None:
        """Print these messages, the newest of the session."""
        waiting = deque(self._from_the_first_of(messages))
        current: str | None = None
        for message in messages:
            if message.turn_id != current:
                current = message.turn_id
                self._draw_change(current, waiting)
            draw_message(self._out, message, self._outcomes)
        for turn in waiting:
            self._draw_turn(turn)

    def _from_the_first_of(self, messages: Sequence[Message]) -> list[TurnInfo]:
        """Leave out the turns that ended before the first message that is shown."""
        if not messages or messages[0].seq == 1:
            return self._turns
        shown = {message.turn_id for message in messages}
        places = (n for n, turn in enumerate(self._turns) if turn.id in shown)
        return self._turns[next(places, len(self._turns)) :]

    def _draw_change(self, turn_id: str | None, waiting: deque[TurnInfo]) -> None:
        """Print the heading of the turn that begins here, and of empty ones before it."""
        if any(turn.id == turn_id for turn in waiting):
            while (turn := waiting.popleft()).id != turn_id:
                self._draw_turn(turn)
            self._draw_turn(turn)
            return
        name = "outside of a turn" if turn_id is None else f"turn {_number(turn_id)}, continued"
        self._out.line((f"── {name} ──", "dim"))
        self._out.line()

    def _draw_turn(self, turn: TurnInfo) -> None:
        facts = [moment(turn.started_at)]
        if turn.latency_ms is not None:
            facts.append(duration(turn.latency_ms))
        facts += [fact for fact in (turn.model, turn.run_id and f"run {turn.run_id}") if fact]
        facts += spent(turn.usage, turn.cost)
        self._out.line(
            (f"── turn {_number(turn.id)} ", "dim"),
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


def _number(turn_id: str) -> str:
    return turn_id.rpartition(".")[2]


def spent(usage: Usage, cost: Decimal) -> list[str]:
    """Say what was used and what it cost, if anything."""
    tokens = [f"{usage.total:,} tokens"] if usage.total else []
    return [*tokens, f"cost {cost}"] if cost else tokens


# ------------------------------------------------------------------------------------- messages


def draw_message(out: Screen, message: Message, outcomes: Ledger) -> None:
    """Print one message."""
    out.line(*_heading(message))
    if message.status == "damaged":
        out.line(("  This message cannot be read. Its bytes are kept:", "red"))
    for part in message.parts:
        _draw_part(out, part, message, outcomes)
    if message.metadata:
        out.line((f"  metadata {_json(message.metadata)}", "dim"))
    out.line()


def _heading(message: Message) -> list[Span]:
    spans: list[Span] = [(f"#{message.seq} ", "dim")]
    if message.status == "damaged":
        return [*spans, ("DAMAGED", "bold red")]
    spans.append((message.role, _ROLES.get(message.role, "bold")))
    facts = [message.name, message.model, message.created_at and moment(message.created_at)]
    if message.provenance is not None:
        facts.append(f"from {message.provenance.source}")
    spans += [(f" · {fact}", "dim") for fact in facts if fact]
    if message.status == "partial":
        spans.append((" · PARTIAL: it broke off", "bold yellow"))
    return spans


def _draw_part(out: Screen, part: Part, message: Message, outcomes: Ledger) -> None:
    if isinstance(part, Text):
        out.body(part.text)
    elif isinstance(part, Thinking):
        out.line(("  thinking:", "dim italic"))
        out.body(part.text, indent=4, style="dim")
    elif isinstance(part, ToolCall):
        out.line(*_call(part, outcomes.get((message.turn_id, part.id))))
    elif isinstance(part, ToolResult):
        _draw_result(out, part)
    elif isinstance(part, File):
        out.line("  ", *_file(part))
    elif message.status == "damaged" and isinstance(part.data, str):
        out.body(part.data, style="red")
    else:
        out.line("  ", *_raw(part))


def _call(call: ToolCall, record: ToolRecord | None) -> list[Span]:
    arguments = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
    given = "" if call.arguments is None else arguments
    spans: list[Span] = [("  → ", "dim"), (call.name, "bold"), f"({given})"]
    if record is not None:
        spans += [("  ", ""), _OUTCOMES[record.outcome]]
    return [*spans, (f"  {call.id}", "dim")]


def _draw_result(out: Screen, result: ToolResult) -> None:
    name = f"{result.name}  " if result.name else ""
    failed: list[Span] = [("  failed", "red")] if result.error else []
    out.line(("  ← ", "dim"), name, (result.call_id, "dim"), *failed)
    content = (Text(result.content),) if isinstance(result.content, str) else result.content
    for part in content:
        if isinstance(part, Text):
            out.body(part.text, indent=4)
        else:
            out.line("    ", *(_file(part) if isinstance(part, File) else _raw(part)))


def _file(file: File) -> list[Span]:
    facts = [file.mime, None if file.size is None else size(file.size), file.sha256]
    known = " · ".join(fact for fact in facts if fact)
    return [("file ", "dim"), (file.name or "without a name", "bold"), (f"  {known}", "dim")]


def _raw(raw: Raw) -> list[Span]:
    return [("raw ", "dim"), (raw.source, "bold"), f"  {_json(raw.data)}"]


def _json(value: JSON) -> str:
    return to_ascii(value)


def one_line(message: Message) -> str:
    """Say what a message is about in a few words."""
    words = " ".join(message.text.split())
    if words:
        return words
    if message.tool_calls:
        return f"calls {', '.join(call.name for call in message.tool_calls)}"
    return count(len(message.parts), "part")
