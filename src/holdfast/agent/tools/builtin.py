"""The built-in tools, in sets that are used together."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.agent.tools.file_tools import MAX_OUTPUT_CHARS, file_tools
from holdfast.agent.tools.function_tools import DEFAULT_TIMEOUT_S
from holdfast.agent.tools.protocol import Tool
from holdfast.agent.tools.shell import command_tools


def workspace_tools(
    root: str,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    output: int = MAX_OUTPUT_CHARS,
    keep: Collection[str] = (),
    config_file: str | None = None,
    own_files: Collection[str] = (),
    reads: bool = False,
) -> tuple[Tool, ...]:
    """Return the tools for files and commands in this folder.

    Commands time out after `timeout` seconds; `keep` names environment variables they see beside
    the usual ones. Files are shown `output` characters at a time. No rule for writes covers
    `config_file`. Neither it nor `own_files`, files and folders of this program, nor other secrets
    are read without approval, except with `reads`.
    """
    return (
        *file_tools(root, output=output, config_file=config_file, own_files=own_files, reads=reads),
        *command_tools(root, timeout=timeout, keep=keep),
    )
