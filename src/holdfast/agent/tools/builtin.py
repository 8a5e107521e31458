"""The built-in tools, in sets that are used together."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.agent.tools.file_tools import MAX_OUTPUT_CHARS, file_tools
from holdfast.agent.tools.function_tools import DEFAULT_TIMEOUT_S
from holdfast.agent.tools.goal_tools import goal_tools
from holdfast.agent.tools.protocol import Tool
from holdfast.agent.tools.session_tools import session_tools
from holdfast.agent.tools.shell import command_tools
from holdfast.aio.store import AsyncStore


def workspace_tools(
    root: str | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    output: int = MAX_OUTPUT_CHARS,
    keep: Collection[str] = (),
) -> tuple[Tool, ...]:
    """Return the tools for files and commands in this folder, or in a session's working directory.

    Commands time out after `timeout` seconds; `keep` names environment variables they see beside
    the usual ones. Files are shown `output` characters at a time.
    """
    return (*file_tools(root, output=output), *command_tools(root, timeout=timeout, keep=keep))


def all_tools(
    root: str | None,
    store: AsyncStore,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    output: int = MAX_OUTPUT_CHARS,
    keep: Collection[str] = (),
) -> tuple[Tool, ...]:
    """Return all tools: for the workspace, for the sessions of a store, and for goals."""
    return (
        *workspace_tools(root, timeout=timeout, output=output, keep=keep),
        *session_tools(store, output=output),
        *goal_tools(),
    )
