"""Session names as commands print them, in a form that can be typed back.

A key with characters that are special to a shell is quoted. A key that has invisible characters,
starts like an option or is a special reference (`@latest`) is replaced by the session's id.
"""

from __future__ import annotations

import shlex
from typing import TypeAlias

import holdfast
from holdfast.cli.output.sanitize import sanitize
from holdfast.operations.refs import is_builtin
from holdfast.values import SessionInfo

SessionLike: TypeAlias = holdfast.Session | SessionInfo


def full_name(session: SessionLike) -> str:
    """Return a session's key and id, or its id alone."""
    return session.id if session.key is None else f"{session.key} ({session.id})"


def short_name(session: SessionLike) -> str:
    """Return the shortest name of a session that can be typed: its quoted key, or its id."""
    return (
        session.id
        if session.key is None or not is_typeable(session.key)
        else shlex.quote(session.key)
    )


def is_typeable(name: str) -> bool:
    """True if a name can be typed as an argument and is not a special reference."""
    return not name.startswith("-") and sanitize(name) == name and not is_builtin(name)


def command_line(command: str, session: SessionLike, *arguments: str, store: str | None) -> str:
    """Return the shell line that runs a command on this session of this store."""
    words = ["holdfast", command, short_name(session), *map(shlex.quote, arguments)]
    if store is not None:
        words += ["--store", shlex.quote(store)]
    return " ".join(words)
