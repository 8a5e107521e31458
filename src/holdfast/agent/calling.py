"""Running the tools a reply asks for.

The order is that of durability: the user is asked, the ledger says that the tool starts, it runs,
its answer is stored. Calls of one reply run together, and each answer is stored when it is there.
Whatever a tool does, the model gets an answer: one that raises, is too slow, is unknown or is
refused gives an error result. Only the end of the turn stops a tool without one; the ledger then
says that its outcome is unknown, and nothing runs it again.
"""

from __future__ import annotations

import asyncio
import time

from holdfast.agent.approving import refuse_everything
from holdfast.agent.events import ToolEnded, ToolStarted
from holdfast.agent.replying import Emit, release
from holdfast.agent.setup import Setup
from holdfast.agent.tools.base import Ask, Output, Tool, ToolContext
from holdfast.agent.tools.functions import ToolError, failure, given_arguments
from holdfast.agent.tools.outputs import shorten
from holdfast.aio.session import AsyncSession
from holdfast.aio.turn import AsyncTurn
from holdfast.errors import Invalid
from holdfast.records import JSON, Message, ToolCall


class Caller:
    """Runs the tools of one turn."""

    def __init__(
        self, setup: Setup, session: AsyncSession, turn: AsyncTurn, emit: Emit, cwd: str
    ) -> None:
        """Prepare; tools work in `cwd`."""
        self._setup = setup
        self._session = session
        self._turn = turn
        self._emit = emit
        self._cwd = cwd
        self._room = asyncio.Semaphore(setup.limits.parallel)
        self._asking = asyncio.Lock()  # One question at a time.

    async def run(self, calls: tuple[ToolCall, ...]) -> list[Message]:
        """Run all of them; give their answers in the order of the calls."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._in_turn(call)) for call in calls]
        except BaseExceptionGroup as several:
            # The store failed, which has to be told as such; or the approver did.
            raise several.exceptions[0] from None
        return [task.result() for task in running]

    async def _in_turn(self, call: ToolCall) -> Message:
        async with self._room:
            return await self._one(call)

    async def _one(self, call: ToolCall) -> Message:
        tool = self._setup.tool(call.name)
        context = ToolContext(self._session, self._cwd, call)
        if tool is None:
            return await self._refuse(call, self._unknown(call.name))
        try:
            arguments = given_arguments(call.arguments)
        except ToolError as error:
            return await self._store(call, failure(error), time.monotonic())
        refused = await self._ask(tool, context, arguments)
        if refused is not None:
            return await self._refuse(call, refused)
        await self._turn.tool_started(call.id)
        await self._emit(ToolStarted(call))
        began = time.monotonic()
        output = await _run(tool, context, arguments)
        return await self._store(call, output, began)

    async def _ask(
        self, tool: Tool, context: ToolContext, arguments: dict[str, JSON]
    ) -> str | None:
        """Ask the user if the tool has to; give why it may not run."""
        if tool.asks is None:
            return None
        try:
            what = tool.asks(context, arguments)
        except Exception as error:  # noqa: BLE001 - it is the tool's: the model is told
            return str(failure(error).content)
        if what is None:
            return None
        approve = self._setup.approve or refuse_everything
        async with self._asking:
            said = await approve(Ask(context.call, what))
        if said is True:
            return None
        return f"not run: {said or 'the user said no'}"

    async def _refuse(self, call: ToolCall, why: str) -> Message:
        return await self._store(call, Output(why, error=True), time.monotonic())

    async def _store(self, call: ToolCall, output: Output, began: float) -> Message:
        """Store an answer, then show it."""
        ms = round((time.monotonic() - began) * 1000)
        try:
            output = self._shortened(call, output)
            message = await self._turn.tool(call.id, output.content, error=output.error)
        except (Invalid, TypeError) as error:
            output = Output(f"the tool's answer cannot be stored: {error}", error=True)
            message = await self._turn.tool(call.id, output.content, error=True)
        await self._emit(ToolEnded(call=call, message=message, error=output.error, ms=ms))
        return message

    def _shortened(self, call: ToolCall, output: Output) -> Output:
        readable = self._setup.tool("read_output") is not None
        limit = self._setup.limits.tool_output
        return shorten(output, limit, name=call.name, readable=readable)

    def _unknown(self, name: str) -> str:
        names = ", ".join(tool.name for tool in self._setup.tools) or "none"
        return f"there is no tool {name!r}; there are: {names}"


async def _run(tool: Tool, context: ToolContext, arguments: dict[str, JSON]) -> Output:
    """Run a tool; what goes wrong is its answer."""
    task = asyncio.ensure_future(_guarded(tool, context, arguments))
    try:
        await asyncio.wait([task], timeout=tool.timeout)
    except asyncio.CancelledError:
        await release(task)
        raise
    if not task.done():
        await release(task)
        return Output(f"given up after {tool.timeout:g} s; its outcome is unknown", error=True)
    return task.result()


async def _guarded(tool: Tool, context: ToolContext, arguments: dict[str, JSON]) -> Output:
    """Call a tool, from which nothing comes but an output."""
    try:
        output = await tool.run(context, arguments)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Output("the tool was cancelled", error=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the model is told
        return failure(error)
    if not isinstance(output, Output):
        return failure(TypeError(f"the tool gave {type(output).__name__}, not an Output"))
    return output
