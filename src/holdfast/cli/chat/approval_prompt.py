"""Approval of tool calls by the user: yes, always, or no with a reason.

"Always" holds for this session while the chat runs, and covers what the question says: commands
that start with these words, or exactly this command if it contains shell syntax; changes to files;
any call of another tool. It never covers a sensitive call, such as a change of `holdfast.toml`:
the user is asked each time. Any other answer refuses the call and is passed to the model as a
reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from holdfast.agent.approval import NO_USER_PRESENT, WRITES, is_plain
from holdfast.agent.tools.function_tools import ToolError, parse_arguments
from holdfast.agent.tools.protocol import Ask
from holdfast.cli.output.humanize import count
from holdfast.cli.output.screen import Screen
from holdfast.values import ToolCall

# Asks the user for a line, with a label; `None` if no user is present.
PromptFunction: TypeAlias = Callable[[str], Awaitable[str | None]]
_COMMAND: Final = "run_command"
_MANY_LINES: Final = 15  # From here on the first may have scrolled away,
_MANY_CHARS: Final = 600  # as many in one line that is wrapped.
_MAX_GRANT_CHARS: Final = 100  # What "always" allows is read in one line.
_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


class Grant(NamedTuple):
    """What "always" allows: a kind of call; for commands, their first words or exact text."""

    kind: str
    words: tuple[str, ...] = ()
    exact: str | None = None

    def __str__(self) -> str:
        """Return the grant in the user's words."""
        if self.kind == "files":
            return "changes to files"
        if self.kind != _COMMAND:
            return self.kind
        return "this very command" if self.exact is not None else f"`{' '.join(self.words)} …`"


class Approvals:
    """An `Approver` that asks the user, and remembers what is always allowed, by session."""

    def __init__(self, show: Callable[[Ask], None], ask: PromptFunction) -> None:
        """`show` prints what a call would do; `ask` returns the user's answer."""
        self._show = show
        self._ask = ask
        self._granted: dict[str, list[Grant]] = {}
        self.session_id = ""

    async def __call__(self, ask: Ask) -> bool | str:
        """Return true to approve a call, or false or a reason to refuse it."""
        if self._is_granted(ask):
            return True
        self._show(ask)
        grant = None if ask.sensitive else grant_of(ask.call)
        always = "" if grant is None else f"a always: {grant} · "
        answer = await self._ask(f"allow it? y yes · {always}n no")
        return NO_USER_PRESENT if answer is None else self._decide(answer.strip(), grant)

    def _decide(self, answer: str, grant: Grant | None) -> bool | str:
        match answer.lower():
            case "y" | "yes":
                return True
            case "a" | "always" if grant is not None:
                self._granted.setdefault(self.session_id, []).append(grant)
                return True
            case "" | "n" | "no":
                return False
        return answer.removeprefix("no ").removeprefix("n ").strip()

    def _is_granted(self, ask: Ask) -> bool:
        granted = () if ask.sensitive else self._granted.get(self.session_id, ())
        return any(_covers(grant, ask.call) for grant in granted)


def grant_of(call: ToolCall) -> Grant:
    """Return what "always" allows for a call."""
    if call.name in WRITES:
        return Grant("files")
    if call.name != _COMMAND:
        return Grant(call.name)
    command = _command(call)
    if is_plain(command) and len(command) <= _MAX_GRANT_CHARS:
        return Grant(_COMMAND, tuple(command.split()))
    return Grant(_COMMAND, exact=command)


def _covers(grant: Grant, call: ToolCall) -> bool:
    if grant.kind != _COMMAND or call.name != _COMMAND or grant.exact is not None:
        return grant == grant_of(call)
    command = _command(call)
    return is_plain(command) and tuple(command.split())[: len(grant.words)] == grant.words


def _command(call: ToolCall) -> str:
    """Return the command of a call; empty if it has none."""
    try:
        command = parse_arguments(call.arguments).get("command")
    except ToolError:
        return ""
    return command if isinstance(command, str) else ""


def print_request(out: Screen, ask: Ask) -> None:
    """Print what a call would do."""
    first, _, rest = ask.what.partition("\n")
    out.line()
    out.line(("  ? ", "bold yellow"), (ask.call.name, "bold"), f"  {first}")
    lines = rest.split("\n") if rest else []
    for line in lines:
        style = _DIFF_STYLES.get(line[:1], "") if ask.call.name in WRITES else ""
        out.body(line, indent=4, style=style)
    if len(lines) > _MANY_LINES or len(ask.what) > _MANY_CHARS:
        length = f"{count(len(lines), 'line')}, {count(len(ask.what), 'character')}"
        out.line((f"    read all of it: {length}", "yellow"))
