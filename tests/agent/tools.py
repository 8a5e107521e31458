"""Calling tools in tests as the loop does: arguments, question, run, all in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import holdfast
from holdfast import ToolCall
from holdfast.agent.tools.function_tools import ToolError, error_output, parse_arguments
from holdfast.agent.tools.protocol import Ask, Output, Tool, ToolContext
from holdfast.aio import AsyncSession, AsyncStore
from holdfast.values import JSON

T = TypeVar("T")


class Desk:
    """A session in a store of its own, and the tools it may use; `cwd` is where they work."""

    def __init__(
        self, tools: Iterable[Tool], cwd: Path | str = ".", tenant: str = "default"
    ) -> None:
        self._store = holdfast.open("memory:", tenant=tenant)
        self.store = AsyncStore(self._store)
        self.session = AsyncSession(self._store.create())
        self.sync = self._store
        self.cwd = str(cwd)
        self.tools = {tool.name: tool for tool in tools}

    def add(self, tools: Iterable[Tool]) -> Desk:
        self.tools |= {tool.name: tool for tool in tools}
        return self

    def context(self, name: str, arguments: JSON) -> ToolContext:
        return ToolContext(self.session, ToolCall("call_1", name, arguments))

    def asks(self, name: str, /, **arguments: JSON) -> str | None:
        asks = self.tools[name].asks
        asked = None if asks is None else asks(self.context(name, arguments), arguments)
        return asked.what if isinstance(asked, Ask) else asked

    async def output(self, name: str, /, **arguments: JSON) -> Output:
        """Run a tool; what it raises becomes an error."""
        context = self.context(name, arguments)
        try:
            return await self.tools[name].run(context, parse_arguments(arguments))
        except ToolError as error:
            return error_output(error)

    def run(self, name: str, /, **arguments: JSON) -> str:
        """Run a tool that must go well, and give its text."""
        output = asyncio.run(self.output(name, **arguments))
        assert not output.error, output
        assert isinstance(output.content, str)
        return output.content

    def fail(self, name: str, /, **arguments: JSON) -> str:
        """Run a tool that must not go well, and give what it says."""
        output = asyncio.run(self.output(name, **arguments))
        assert output.error, output
        assert isinstance(output.content, str)
        return output.content

    def close(self) -> None:
        self._store.close()


def refusal(work: Callable[[], object]) -> str:
    """Return what a `ToolError` says that this must raise."""
    try:
        work()
    except ToolError as error:
        return str(error)
    raise AssertionError("nothing was refused")
