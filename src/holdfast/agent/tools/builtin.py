"""The tools that come with the agent, in the sets that are mostly wanted together."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.agent.tools.base import Tool
from holdfast.agent.tools.commands import command_tools
from holdfast.agent.tools.files import OUTPUT, file_tools
from holdfast.agent.tools.functions import TIMEOUT
from holdfast.agent.tools.goals import goal_tools
from holdfast.agent.tools.sessions import session_tools
from holdfast.aio.store import AsyncStore


def workspace_tools(
    root: str | None = None,
    *,
    timeout: float = TIMEOUT,
    output: int = OUTPUT,
    keep: Collection[str] = (),
) -> tuple[Tool, ...]:
    """Return the tools for files and commands in this folder, or in the one a session works in.

    Commands have `timeout` seconds and see the variables that `keep` names beside the usual ones;
    files are shown `output` characters at a time.
    """
    return (*file_tools(root, output=output), *command_tools(root, timeout=timeout, keep=keep))


def everything(
    root: str | None,
    store: AsyncStore,
    *,
    timeout: float = TIMEOUT,
    output: int = OUTPUT,
    keep: Collection[str] = (),
) -> tuple[Tool, ...]:
    """Return all tools: for the workspace, for the sessions of a store, and for goals."""
    return (
        *workspace_tools(root, timeout=timeout, output=output, keep=keep),
        *session_tools(store, output=output),
        *goal_tools(),
    )
