"""The reference agent: a model, its tools, and a loop that loses nothing.

`Agent(model, tools=…)` answers prompts in a session: `run` returns the result, `stream` yields
events on the way. `AsyncAgent` is its asyncio twin. Both write through the session's turns: input
is stored before the model is called, and the reply while it streams.
"""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.agent.agent import AsyncAgent
from holdfast.agent.loop import Result
from holdfast.agent.models.protocol import Model
from holdfast.agent.settings import Context, Limits, Retry
from holdfast.agent.sync import Agent
from holdfast.agent.tools.protocol import Ask, Output, Tool, ToolContext
from holdfast.errors import install_command

__all__ = [
    "Agent",
    "Ask",
    "AsyncAgent",
    "Context",
    "Limits",
    "Model",
    "Output",
    "Result",
    "Retry",
    "Tool",
    "ToolContext",
]

# It is loaded at the first call of a model, which is too late to find that it is not there.
if find_spec("stamina") is None:
    raise ModuleNotFoundError(
        f"holdfast.agent needs the package stamina: run {install_command('agent')}", name="stamina"
    )
