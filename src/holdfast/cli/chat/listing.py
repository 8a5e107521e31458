"""How sessions look in a list, for the picker and for a chat without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.cli.screen import Column, Screen, Span
from holdfast.cli.wording import ago, short, words
from holdfast.records import SessionInfo

_COLUMNS: Final = (
    Column("ID", whole=True),
    Column("ACTIVE", right=True, whole=True),
    Column("TURNS", right=True, whole=True, extra=1),
    Column("TITLE"),
)


def draw(out: Screen, infos: Sequence[SessionInfo]) -> None:
    """Print sessions, one in a line."""
    if not infos:
        out.line("  no session is there")
        return
    out.table(_COLUMNS, [row(info) for info in infos])


def row(info: SessionInfo) -> tuple[Span, ...]:
    """Say a session in the columns of a list."""
    known = info.title or info.key or info.preview or ""
    style = "yellow" if info.interrupted else ""
    state = " (interrupted)" if info.interrupted else ""
    return (
        (short(info.id), "cyan"),
        ago(info.updated_at),
        str(info.turns),
        (f"{words(known)}{state}", style),
    )
