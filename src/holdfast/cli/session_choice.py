"""Resolves a name to an existing session, or creates one with that key.

An exact id or key names that session; so does a prefix of an id that is long enough to be
unmistakable. A name that matches nothing is the key of a new session. A weaker match (a title, a
run, a short prefix, any prefix of an id that came with an import: another person may have chosen
it) is ambiguous, and a message in the wrong conversation cannot be taken back: `AmbiguousRef` then
names the candidate. `@latest` and similar references never create a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import holdfast
from holdfast.errors import AmbiguousRef, SessionNotFound
from holdfast.operations.refs import is_builtin
from holdfast.values import Candidate

_MIN_UNIQUE_PREFIX: Final = 8  # characters: 40 random bits


def find_or_create(
    opened: holdfast.Store,
    name: str,
    make: Callable[[str], holdfast.Session],
    *,
    create: bool | None = None,
    advice: str = "",
) -> tuple[holdfast.Session, bool]:
    """Return the session that a name means or that `make` creates, and true if it is new.

    With `create=True` a name that is not an id or key always creates a session, with `False` never.
    """
    if is_builtin(name):
        return opened.get(name), False
    try:
        found = opened.get(name)
    except SessionNotFound:
        if create is False:
            raise
        return make(name), True
    except AmbiguousRef:
        if create is not True:
            raise
        return make(name), True
    if create is False or name in (found.id, found.key):
        return found, False
    if create is True:
        return make(name), True
    if (
        len(name) >= _MIN_UNIQUE_PREFIX
        and found.id.startswith(name)
        and not _is_only_imported(found)
    ):
        return found, False
    raise AmbiguousRef(
        f"no session has the key {name!r}, but it may mean {found.id}; nothing was stored. "
        f"{advice}",
        (_candidate(found),),
    )


def _is_only_imported(found: holdfast.Session) -> bool:
    provenance = found.info().provenance
    return provenance is not None and provenance.head == found.head()


def _candidate(found: holdfast.Session) -> Candidate:
    info = found.info()
    return Candidate(
        id=info.id,
        key=info.key,
        title=info.title,
        preview=info.preview,
        updated_at=info.updated_at,
        trashed=info.trashed,
    )
