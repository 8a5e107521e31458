"""Who may say yes to a call that asks: everybody, a list of rules, or the user.

A rule allows commands by their first words: `git status` allows `git status --short`, and neither
`git push` nor `git statusx`. A command with anything in it that a shell could take for more than a
word (quotes, `;`, `$`, `*`, a second line) is never allowed by a rule: the user is asked. Words
behind those of a rule are not looked at, so a rule such as `find` allows `find . -delete` too.

A rule for writes does not hold for `holdfast.toml`: a model could allow itself everything there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from holdfast.agent.tools.base import Approver, Ask
from holdfast.agent.tools.functions import ToolError, given_arguments
from holdfast.agent.tools.workspace import CONFIG, folded
from holdfast.errors import BadConfig

NOBODY: Final = "nobody is there to allow this call; go on without it, or ask the user to make it."
_COMMAND: Final = "run_command"
_WRITES: Final = frozenset({"edit_file", "write_file"})
_PLAIN: Final = re.compile(r"[\w\-./,:@+=% ]+")


async def allow_everything(_ask: Ask) -> bool | str:
    """Allow every call."""
    return True


async def refuse_everything(_ask: Ask) -> bool | str:
    """Refuse every call that asks: there is nobody to ask."""
    return NOBODY


def rules(
    *,
    commands: Iterable[str] = (),
    writes: bool = False,
    otherwise: Approver | None = None,
) -> Approver:
    """Allow commands that begin with these words, and writes to files; ask `otherwise` of others.

    A rule that could never allow anything raises `BadConfig`.
    """
    allowed = [_words(rule) for rule in commands]
    ask_others = refuse_everything if otherwise is None else otherwise

    async def decide(ask: Ask) -> bool | str:
        if writes and ask.call.name in _WRITES and _is_harmless(ask):
            return True
        if ask.call.name == _COMMAND and _is_allowed(ask, allowed):
            return True
        return await ask_others(ask)

    return decide


def is_plain(command: str) -> bool:
    """Return whether a command is nothing but words, whatever shell reads it."""
    return _PLAIN.fullmatch(command) is not None and bool(command.strip())


def _is_harmless(ask: Ask) -> bool:
    """Return whether a write is one like any other; what rules are read from is not."""
    try:
        path = given_arguments(ask.call.arguments).get("path")
    except ToolError:
        return False
    return isinstance(path, str) and folded(Path(os.path.normpath(path)).name) != CONFIG


def _words(rule: str) -> tuple[str, ...]:
    if not is_plain(rule):
        raise BadConfig(
            f"{rule!r} cannot be a rule for commands: it must be plain words, as 'git status' is, "
            "without quotes, wildcards and other signs that a shell understands."
        )
    return tuple(rule.split())


def _is_allowed(ask: Ask, allowed: Sequence[tuple[str, ...]]) -> bool:
    try:
        command = given_arguments(ask.call.arguments).get("command")
    except ToolError:
        return False
    if not isinstance(command, str) or not is_plain(command):
        return False
    words = tuple(command.split())
    return any(words[: len(rule)] == rule for rule in allowed)
