"""Finding sessions when one of them may be in the trash.

A session in the trash is still found by the key and the title it had, but a living one may have
got the same since. Whoever restores means the one in the trash; whoever erases must say which.
"""

from __future__ import annotations

import holdfast
from holdfast.verbs import finding


def find_any(opened: holdfast.Store, ref: str) -> holdfast.Session:
    """Find a session, in the trash or not; `AmbiguousRef` if the name fits here and there."""
    return opened.get(opened.backend.read(finding.find_anywhere(ref)).id)


def find_thrown_away(opened: holdfast.Store, ref: str) -> holdfast.Session:
    """Find a session that is in the trash; if there is none, one that is not."""
    return opened.get(opened.backend.read(finding.find_in_trash(ref)).id)
