"""Which session is meant by a name that may also begin one.

A name that is somebody's exact id or key means that session; so does enough of an id that it can
be nothing else. Any other name is the key of a new session. What lies in between (a title, a run,
a few characters of an id) could be meant either way, and a message in the wrong conversation cannot
be taken back: then `AmbiguousRef` says what is there. `@latest` and its siblings begin nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import holdfast
from holdfast.core.refs import is_given
from holdfast.errors import AmbiguousRef, SessionNotFound
from holdfast.records import Candidate

_CERTAIN_PREFIX: Final = 8  # characters: 40 random bits


def find(
    opened: holdfast.Store,
    name: str,
    make: Callable[[str], holdfast.Session],
    *,
    create: bool | None = None,
    advice: str = "",
) -> tuple[holdfast.Session, bool]:
    """Find the session that is meant, or make one with this key; true if it is new.

    With `create` a name that is nobody's key begins a session, without it (`False`) none ever does.
    """
    if is_given(name):
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
    if len(name) >= _CERTAIN_PREFIX and found.id.startswith(name):
        return found, False
    raise AmbiguousRef(
        f"no session has the key {name!r}, but {found.id} may be meant; nothing was stored. "
        f"{advice}",
        (_candidate(found),),
    )


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
