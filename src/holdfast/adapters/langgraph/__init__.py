"""LangGraph: a checkpointer in a store. See `saver`."""

from __future__ import annotations

from holdfast.errors import install_command

try:
    from holdfast.adapters.langgraph.saver import HoldfastSaver
except ImportError as error:
    raise ImportError(
        f"langgraph is not installed: {install_command('langgraph')}", name=error.name
    ) from error

__all__ = ["HoldfastSaver"]
