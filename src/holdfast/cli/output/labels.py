"""Session names as commands print them, in a form that can be typed back.

A key with characters that are special to a shell is quoted. A key that has invisible characters,
starts like an option or is a special reference (`@latest`) is replaced by the session's id.
"""

from __future__ import annotations

import shlex
from typing import TypeAlias

import holdfast
from holdfast.cli.output.sanitize import visible
from holdfast.operations.refs import is_given
from holdfast.values import SessionInfo

Who: TypeAlias = holdfast.Session | SessionInfo


def known(session: Who) -> str:
    """Return a session's key and id, or its id alone."""
    return session.id if session.key is None else f"{session.key} ({session.id})"


def called(session: Who) -> str:
    """Return the shortest name of a session that can be typed: its quoted key, or its id."""
    return (
        session.id if session.key is None or not typeable(session.key) else shlex.quote(session.key)
    )


def typeable(name: str) -> bool:
    """True if a name can be typed as an argument and is not a special reference."""
    return not name.startswith("-") and visible(name) == name and not is_given(name)


def line_for(command: str, session: Who, *arguments: str, store: str | None) -> str:
    """Return the shell line that runs a command on this session of this store."""
    words = ["holdfast", command, called(session), *map(shlex.quote, arguments)]
    if store is not None:
        words += ["--store", shlex.quote(store)]
    return " ".join(words)
