"""Holdfast: the session layer for AI agents.

A conversation, once acknowledged, is never lost, never duplicated, never reordered, and always
resumable. Start with `holdfast.open`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import errors
from holdfast.draft import Draft
from holdfast.errors import HoldfastError
from holdfast.session import Session
from holdfast.store import Store, open  # noqa: A004 - holdfast.open is its name
from holdfast.turn import Turn
from holdfast.values import (
    BranchChanged,
    File,
    Goal,
    Head,
    Message,
    Raw,
    Record,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

if TYPE_CHECKING:
    from holdfast.aio import AsyncDraft, AsyncSession, AsyncStore, AsyncTurn, open_async

__version__ = "0.1.0"

__all__ = [
    "AsyncDraft",
    "AsyncSession",
    "AsyncStore",
    "AsyncTurn",
    "BranchChanged",
    "Draft",
    "File",
    "Goal",
    "Head",
    "HoldfastError",
    "Message",
    "Raw",
    "Record",
    "Session",
    "Store",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "Turn",
    "Usage",
    "errors",
    "open",
    "open_async",
]

_ASYNC = frozenset({"AsyncDraft", "AsyncSession", "AsyncStore", "AsyncTurn", "open_async"})


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the async API on first use: asyncio takes longer than everything else."""
        if name in _ASYNC:
            from holdfast import aio  # noqa: PLC0415

            return getattr(aio, name)
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
