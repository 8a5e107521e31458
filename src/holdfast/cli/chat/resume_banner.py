"""The resume banner: what a chat prints when it opens a session; also lists of sessions.

One line names the session. After a crash it is followed by what was interrupted and what was kept,
otherwise by the last exchange in a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.aio.session import AsyncSession
from holdfast.cli.chat.turn_view import MARK, without_error_class
from holdfast.cli.output.humanize import ago, count, short_id, shorten
from holdfast.cli.output.screen import Screen, Span, TableColumn
from holdfast.cli.output.transcript import message_preview
from holdfast.values import Message, QueuedInput, Recovered, SessionInfo, TurnInfo

_MAX_MESSAGES: Final = 60  # messages, to find the last exchange
_MAX_ANSWER_CHARS: Final = 400  # of the last reply
_MAX_ANSWER_LINES: Final = 4
_GOAL_HINT: Final = "(continues with your next message; /goal cancel ends it)"
_COLUMNS: Final = (
    TableColumn("ID", whole=True),
    TableColumn("ACTIVE", right=True, whole=True),
    TableColumn("TURNS", right=True, whole=True, extra=1),
    TableColumn("TITLE"),
)
_OUTCOMES: Final = {
    "cancelled": "was stopped",
    "failed": "failed",
    "interrupted": "was interrupted",
}


class ResumeState(NamedTuple):
    """The state of a session when it is opened."""

    info: SessionInfo
    newest: Sequence[Message]
    turns: Sequence[TurnInfo]
    queued: Sequence[QueuedInput]
    recovered: Recovered | None = None

    @property
    def last_input(self) -> Message | None:
        """The last message of the user."""
        return next((m for m in reversed(self.newest) if is_user_input(m)), None)


def is_user_input(message: Message) -> bool:
    """True if the user wrote this message, rather than a program on their behalf."""
    hidden = any(message.metadata.get(flag) for flag in ("hidden", "injected"))
    return message.role == "user" and not hidden and not message.demoted


async def load_state(session: AsyncSession, recovered: Recovered | None = None) -> ResumeState:
    """Read the state of a session."""
    return ResumeState(
        await session.info(),
        await session.messages(limit=_MAX_MESSAGES),
        await session.turns(limit=1),
        await session.queued(),
        recovered,
    )


def display_name(info: SessionInfo) -> str:
    """Return a session's title, key or preview in quotes, else its short id."""
    label = info.title or info.key or info.preview
    return f"'{shorten(label, 60)}'" if label else short_id(info.id)


def draw(out: Screen, state: ResumeState, *, how: str = "continuing") -> None:
    """Print the banner of a session."""
    info = state.info
    facts = [display_name(info), ago(info.updated_at), count(info.turns, "turn")]
    out.line((f"{how} ", ""), (", ".join(facts), "bold"), ("; /new for a fresh one", "dim"))
    if state.recovered is not None:
        draw_interrupted(out, state, state.recovered)
    else:
        _draw_exchange(out, state)
    if info.goal is not None and info.goal.state == "active":
        out.line(("  goal: ", "cyan"), f"{shorten(info.goal.objective)} ", (_GOAL_HINT, "dim"))
    for item in state.queued:
        out.truncated_line(
            ("  queued for your next message: ", "yellow"), shorten(item.message.text)
        )


def _draw_exchange(out: Screen, state: ResumeState) -> None:
    """Print the last message of the user, and the answer."""
    last_input = state.last_input
    if last_input is None:
        return
    out.line()
    out.truncated_line((MARK, "cyan"), (shorten(last_input.text), ""))
    later = [m for m in state.newest if (m.seq or 0) > (last_input.seq or 0)]
    answer = next((m for m in reversed(later) if m.role == "assistant" and m.text.strip()), None)
    if answer is not None:
        out.body(_cut(answer.text), style="dim")
    elif later:
        out.truncated_line(("  ", ""), (message_preview(later[-1]), "dim"))
    last = state.turns[-1] if state.turns else None
    if last is not None and last.state in _OUTCOMES:
        why = f": {without_error_class(last.error)}" if last.error else ""
        out.truncated_line((f"  the last turn {_OUTCOMES[last.state]}{why}", "yellow"))


def _cut(text: str) -> str:
    lines = text.strip()[:_MAX_ANSWER_CHARS].splitlines()
    shown = "\n".join(lines[:_MAX_ANSWER_LINES]).rstrip()
    return shown if len(shown) == len(text.strip()) else f"{shown} …"


# ------------------------------------------------------------------------------- after a crash


def draw_interrupted(out: Screen, state: ResumeState, found: Recovered) -> None:
    """Print what a crash interrupted, and what was kept."""
    out.line()
    out.line(("The last turn was interrupted", "bold yellow"), f", started {ago(found.since)}.")
    if state.last_input is not None:
        out.truncated_line((MARK, "cyan"), shorten(state.last_input.text))
    kept = list(_kept_facts(state, found))
    for label, what in kept or [("kept", "what you said")]:
        out.fact(f"  {label:<9}", what)


def _kept_facts(state: ResumeState, found: Recovered) -> Sequence[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    partial = found.partial
    if partial is not None and partial.text.strip():
        size = count(len(partial.text), "character")
        lines.append(("kept", f"{size} of the reply: “…{_end(partial.text)}”"))
    whole = found.messages - (partial is not None)
    if whole > 1:
        lines.append(("kept", f"{count(whole, 'message')} before that"))
    names = {call.id: call.name for message in state.newest for call in message.tool_calls}
    if found.unknown_tools:
        tools = ", ".join(names.get(id, id) for id in found.unknown_tools)
        lines.append(("unknown", f"{tools}: started, but its outcome is not known"))
    if found.not_run_tools:
        tools = ", ".join(names.get(id, id) for id in found.not_run_tools)
        lines.append(("not run", tools))
    return lines


def _end(text: str) -> str:
    return shorten(text[-200:], 1000)[-80:].lstrip()


CHOICES: Final = "c continue · r retry · d drop · Enter leave it"


def resume_hint(info: SessionInfo, command: str) -> list[Span]:
    """Return the line with the command that continues a session."""
    return [("To go on with ", "dim"), (display_name(info), "dim"), (":  ", "dim"), (command, "")]


# ---------------------------------------------------------------------------- lists of sessions


def draw_sessions(out: Screen, infos: Sequence[SessionInfo]) -> None:
    """Print sessions, one per line."""
    if not infos:
        out.line("  no sessions")
        return
    out.table(_COLUMNS, [session_row(info) for info in infos])


def session_row(info: SessionInfo) -> tuple[Span, ...]:
    """Return the columns of a session in a list."""
    label = info.title or info.key or info.preview or ""
    style = "yellow" if info.interrupted else ""
    state = " (interrupted)" if info.interrupted else ""
    return (
        (short_id(info.id), "cyan"),
        ago(info.updated_at),
        str(info.turns),
        (f"{shorten(label)}{state}", style),
    )
