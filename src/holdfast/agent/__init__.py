"""The reference agent: a model, its tools, and a loop that loses nothing.

`Agent(model, tools=…)` answers prompts in a session: `run` gives the result, `stream` what happens
on the way. `AsyncAgent` is its twin. Everything goes through the session's turns: what was said is
stored before the model is called, and what the model says while it says it.
"""

from __future__ import annotations

from holdfast.agent.agent import AsyncAgent
from holdfast.agent.models.base import Model
from holdfast.agent.settings import Context, Limits, Retry
from holdfast.agent.sync import Agent
from holdfast.agent.tools.base import Ask, Output, Tool, ToolContext
from holdfast.agent.working import Result

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
