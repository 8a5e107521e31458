"""Resolving references to sessions that may be in the trash.

A trashed session is still found by its former key and title, but a live session may have taken
them since. `restore` prefers the trashed one; commands that erase refuse an ambiguous name.
"""

from __future__ import annotations

import holdfast
from holdfast.operations import resolve


def find_any(opened: holdfast.Store, ref: str) -> holdfast.Session:
    """Return a session, trashed or not; raise `AmbiguousRef` if the name matches both kinds."""
    return opened.get(opened.backend.read(resolve.find_anywhere(ref)).id)


def find_trashed(opened: holdfast.Store, ref: str) -> holdfast.Session:
    """Return the trashed session with this name; if there is none, the live one."""
    return opened.get(opened.backend.read(resolve.find_in_trash(ref)).id)
