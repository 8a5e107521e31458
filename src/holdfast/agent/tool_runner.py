"""The tool runner: runs the tool calls of a reply.

For each call the user is asked for approval, the ledger records that the tool starts, the tool
runs, and its result is stored. The calls of one reply run concurrently, and each result is stored
as soon as it is there. The model always gets a result: a tool that raises, times out, is unknown or
is refused yields an error result. The one exception is a turn that ends while a tool runs: the
ledger then records its outcome as unknown, and it is never run again automatically.
"""

from __future__ import annotations

import asyncio
import time

from holdfast.agent.approval import refuse_everything
from holdfast.agent.completion import Emit, cancel_and_detach
from holdfast.agent.config import AgentConfig
from holdfast.agent.events import ToolEnded, ToolStarted
from holdfast.agent.tools.function_tools import ToolError, error_output, parse_arguments
from holdfast.agent.tools.output_limit import shorten
from holdfast.agent.tools.protocol import Ask, Output, Tool, ToolContext
from holdfast.aio.session import AsyncSession
from holdfast.aio.turn import AsyncTurn
from holdfast.errors import Invalid
from holdfast.values import JSON, Message, ToolCall


class ToolRunner:
    """Runs the tools of one turn."""

    def __init__(
        self, config: AgentConfig, session: AsyncSession, turn: AsyncTurn, emit: Emit
    ) -> None:
        self._config = config
        self._session = session
        self._turn = turn
        self._emit = emit
        self._slots = asyncio.Semaphore(config.limits.parallel)
        self._approval_lock = asyncio.Lock()  # One approval request at a time.

    async def run(self, calls: tuple[ToolCall, ...]) -> list[Message]:
        """Run all calls; return their results in the order of the calls."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._run_limited(call)) for call in calls]
        except BaseExceptionGroup as several:
            # The store or the approver failed; the caller expects that error, not a group.
            raise several.exceptions[0] from None
        return [task.result() for task in running]

    async def _run_limited(self, call: ToolCall) -> Message:
        async with self._slots:
            return await self._run_call(call)

    async def _run_call(self, call: ToolCall) -> Message:
        tool = self._config.tool(call.name)
        context = ToolContext(self._session, call)
        if tool is None:
            return await self._refuse(call, self._unknown(call.name))
        try:
            arguments = parse_arguments(call.arguments)
        except ToolError as error:
            return await self._store(call, error_output(error), time.monotonic())
        refused = await self._refusal(tool, context, arguments)
        if refused is not None:
            return await self._refuse(call, refused)
        await self._turn.tool_started(call.id)
        await self._emit(ToolStarted(call))
        began = time.monotonic()
        output = await _run_tool(tool, context, arguments)
        return await self._store(call, output, began)

    async def _refusal(
        self, tool: Tool, context: ToolContext, arguments: dict[str, JSON]
    ) -> str | None:
        """Ask for approval if the tool needs it; return why it may not run, or `None`."""
        if tool.asks is None:
            return None
        try:
            asked = tool.asks(context, arguments)
        except Exception as error:  # noqa: BLE001 - reported to the model
            return str(error_output(error).content)
        if asked is None:
            return None
        approve = self._config.approve or refuse_everything
        async with self._approval_lock:
            answer = await approve(Ask(context.call, asked) if isinstance(asked, str) else asked)
        if answer is True:
            return None
        return f"not run: {answer or 'the user said no'}"

    async def _refuse(self, call: ToolCall, why: str) -> Message:
        return await self._store(call, Output(why, error=True), time.monotonic())

    async def _store(self, call: ToolCall, output: Output, began: float) -> Message:
        """Store a result, then emit it."""
        ms = round((time.monotonic() - began) * 1000)
        try:
            output = self._shortened(call, output)
            message = await self._turn.tool(call.id, output.content, error=output.error)
        except (Invalid, TypeError) as error:
            output = Output(f"the tool's result cannot be stored: {error}", error=True)
            message = await self._turn.tool(call.id, output.content, error=True)
        await self._emit(ToolEnded(call=call, message=message, error=output.error, ms=ms))
        return message

    def _shortened(self, call: ToolCall, output: Output) -> Output:
        readable = self._config.tool("read_output") is not None
        limit = self._config.limits.tool_output
        return shorten(output, limit, name=call.name, readable=readable)

    def _unknown(self, name: str) -> str:
        names = ", ".join(tool.name for tool in self._config.tools) or "none"
        return f"there is no tool {name!r}; there are: {names}"


async def _run_tool(tool: Tool, context: ToolContext, arguments: dict[str, JSON]) -> Output:
    """Run a tool within its time limit; a timeout becomes an error result."""
    task = asyncio.ensure_future(_call_tool(tool, context, arguments))
    try:
        await asyncio.wait([task], timeout=tool.timeout)
    except asyncio.CancelledError:
        await cancel_and_detach(task)
        raise
    if not task.done():
        await cancel_and_detach(task)
        return Output(f"timed out after {tool.timeout:g} s; its outcome is unknown", error=True)
    return task.result()


async def _call_tool(tool: Tool, context: ToolContext, arguments: dict[str, JSON]) -> Output:
    """Call a tool; whatever it raises becomes an error result."""
    try:
        output = await tool.run(context, arguments)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Output("the tool was cancelled", error=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported to the model
        return error_output(error)
    if not isinstance(output, Output):
        return error_output(TypeError(f"the tool returned {type(output).__name__}, not an Output"))
    return output
