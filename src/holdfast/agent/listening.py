"""Listening to a model: its stream is read in a task of its own, a little ahead of who wants it.

So silence can be told from speech, and whoever has heard enough can go: the provider gets a moment
to hang up, and is then let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from holdfast.agent.asking import stream_of
from holdfast.agent.letting_go import release
from holdfast.agent.models.base import Delta, Model, Request
from holdfast.errors import ModelFailed

_AHEAD: Final = 16


async def listen(model: Model, request: Request, idle: float | None) -> AsyncGenerator[Delta, None]:
    """Call a model and give what it says; silence of `idle` seconds is a `ModelFailed`."""
    heard: asyncio.Queue[Delta | BaseException | None] = asyncio.Queue(_AHEAD)
    reading = asyncio.create_task(_read(stream_of(model, request), heard))
    try:
        while True:
            try:
                async with asyncio.timeout(idle):
                    said = await heard.get()
            except TimeoutError:
                raise ModelFailed(
                    f"the model said nothing for {idle:g} s", retryable=True
                ) from None
            if said is None:
                return
            if isinstance(said, BaseException):
                raise said
            yield said
    finally:
        await release(reading)


async def _read(
    stream: AsyncGenerator[Delta, None], heard: asyncio.Queue[Delta | BaseException | None]
) -> None:
    try:
        async for delta in stream:
            await heard.put(delta)
        await heard.put(None)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        await heard.put(ModelFailed("the call was cancelled on its way", retryable=True))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the listener's, whatever it is
        await heard.put(error)
    finally:
        await stream.aclose()
