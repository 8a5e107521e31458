"""Approval policies for tool calls that need consent: allow all, refuse all, or rules.

A rule allows commands by their first words: `git status` allows `git status --short`, but neither
`git push` nor `git statusx`. A command with characters that are special to a shell (quotes, `;`,
`$`, `*`, a second line) is never allowed by a rule: the user is asked. Words after those of a rule
are not checked, so the rule `find` also allows `find . -delete`.

A rule for writes does not cover what a tool calls sensitive, such as `holdfast.toml`: a model could
grant itself any permission there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.agent.tools.function_tools import ToolError, parse_arguments
from holdfast.agent.tools.protocol import Approver, Ask
from holdfast.errors import BadConfig

NO_USER_PRESENT: Final = (
    "no user is present to approve this call; continue without it, or ask the user to run it."
)
_COMMAND: Final = "run_command"
WRITES: Final = frozenset({"edit_file", "write_file"})
_PLAIN_COMMAND: Final = re.compile(r"[\w\-./,:@+=% ]+")


async def allow_everything(_ask: Ask) -> bool | str:
    """Approve every call."""
    return True


async def refuse_everything(_ask: Ask) -> bool | str:
    """Refuse every call: no user is present to approve it."""
    return NO_USER_PRESENT


def rules(
    *,
    commands: Iterable[str] = (),
    writes: bool = False,
    otherwise: Approver | None = None,
) -> Approver:
    """Return an approver that allows matching commands and, with `writes`, changes to files.

    It passes all other calls to `otherwise`. Raise `BadConfig` for a rule that can never match.
    """
    allowed = [_words(rule) for rule in commands]
    ask_others = refuse_everything if otherwise is None else otherwise

    async def decide(ask: Ask) -> bool | str:
        if writes and ask.call.name in WRITES and not ask.sensitive:
            return True
        if ask.call.name == _COMMAND and _is_allowed(ask, allowed):
            return True
        return await ask_others(ask)

    return decide


def is_plain(command: str) -> bool:
    """True if a command consists of plain words in every shell."""
    return _PLAIN_COMMAND.fullmatch(command) is not None and bool(command.strip())


def _words(rule: str) -> tuple[str, ...]:
    if not is_plain(rule):
        raise BadConfig(
            f"{rule!r} is not a valid command rule: use plain words such as 'ls' or 'wc -l', "
            "without quotes, wildcards or other shell syntax."
        )
    return tuple(rule.split())


def _is_allowed(ask: Ask, allowed: Sequence[tuple[str, ...]]) -> bool:
    try:
        command = parse_arguments(ask.call.arguments).get("command")
    except ToolError:
        return False
    if not isinstance(command, str) or not is_plain(command):
        return False
    words = tuple(command.split())
    return any(words[: len(rule)] == rule for rule in allowed)
