"""Titles and previews: how a list shows a session.

The preview is the first user text that is not hidden, a command or injected, else the first
assistant text; white space is folded, and it has at most 120 characters. A user text stays once it
is found; it replaces an assistant text. A title the user chose is never replaced by an automatic
one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.values import Message, SessionInfo, TitleBy

PREVIEW_LENGTH: Final = 120
_HIDDEN_FLAGS: Final = ("hidden", "command", "injected")

RANK_NONE: Final = 0
RANK_ASSISTANT: Final = 1
RANK_USER: Final = 2


class Preview(msgspec.Struct, frozen=True):
    """A preview, its rank (a higher one replaces it), and the seq of its message."""

    text: str | None = None
    rank: int = RANK_NONE
    seq: int = 0


def update_preview(messages: Iterable[Message], first: int, so_far: Preview) -> Preview:
    """Return the preview after these messages, the first of which has the seq `first`."""
    for seq, message in enumerate(messages, first):
        if so_far.rank == RANK_USER:
            break
        rank = _rank(message)
        if rank > so_far.rank and (text := shorten(message.text)):
            so_far = Preview(text, rank, seq)
    return so_far


def _rank(message: Message) -> int:
    if message.demoted or any(message.metadata.get(flag) for flag in _HIDDEN_FLAGS):
        return RANK_NONE
    return {"user": RANK_USER, "assistant": RANK_ASSISTANT}.get(message.role, RANK_NONE)


def shorten(text: str) -> str:
    """Return text with white space folded, cut to the length of a preview."""
    # Only the start can matter: a 50 MB message must not be split into words.
    return " ".join(text.lstrip()[: PREVIEW_LENGTH * 20].split())[:PREVIEW_LENGTH]


def normalize_title(title: str) -> str:
    """Return a title for comparison: titles that differ in case or composition are equal."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", title).casefold())


def needs_title(info: SessionInfo) -> bool:
    """Return whether a session needs an automatic title: it has messages and no title."""
    return info.title is None and info.messages > 0 and info.state != "damaged"


def may_retitle(current_by: TitleBy | None, by: TitleBy) -> bool:
    """Return whether a title set by `by` may replace the current one."""
    return by == "user" or current_by != "user"
