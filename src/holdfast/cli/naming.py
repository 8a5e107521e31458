"""How a session is named to people, and how they can type its name.

What is typed back must work: a key that a shell or an option parser would take for something else
is quoted, one that cannot be seen, begins like an option or means another session (`@latest`) gives
way to the id.
"""

from __future__ import annotations

import shlex
from typing import TypeAlias

import holdfast
from holdfast.cli.visible import visible
from holdfast.core.refs import is_given
from holdfast.records import SessionInfo

Who: TypeAlias = holdfast.Session | SessionInfo


def known(who: Who) -> str:
    """Name a session by all it goes by."""
    return who.id if who.key is None else f"{who.key} ({who.id})"


def called(who: Who) -> str:
    """Name a session briefly, as it can be typed."""
    return who.id if who.key is None or not typeable(who.key) else shlex.quote(who.key)


def typeable(name: str) -> bool:
    """Return whether a name can be seen and typed, and means what it says."""
    return not name.startswith("-") and visible(name) == name and not is_given(name)


def line_for(command: str, who: Who, *arguments: str, store: str | None) -> str:
    """Write the shell line that runs a command on this session of this store."""
    words = ["holdfast", command, called(who), *map(shlex.quote, arguments)]
    if store is not None:
        words += ["--store", shlex.quote(store)]
    return " ".join(words)
