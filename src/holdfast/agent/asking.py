"""A question to a model that belongs to no history: for titles and summaries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from holdfast.agent.models.base import Delta, Model, Request, Said, Stopped
from holdfast.errors import ModelFailed
from holdfast.verbs.windowing import window_of


async def ask(model: Model, text: str, *, max_output: int, seconds: float) -> str:
    """Return the model's answer; `ModelFailed` if there is none in time, or it is cut off."""
    request = Request(window=window_of(model.provider, text), max_output=max_output)
    said: list[str] = []
    whole = False
    try:
        async with asyncio.timeout(seconds), aclosing(stream_of(model, request)) as stream:
            async for delta in stream:
                if isinstance(delta, Said):
                    said.append(delta.text)
                whole = whole or (isinstance(delta, Stopped) and delta.reason != "length")
    except TimeoutError:
        raise ModelFailed(f"no answer within {seconds:g} s", retryable=True) from None
    answer = "".join(said).strip()
    if not whole or not answer:
        raise ModelFailed("the answer was empty or cut off", retryable=True)
    return answer


def stream_of(model: Model, request: Request) -> AsyncGenerator[Delta, None]:
    """Call a model; what comes back can be closed, as every generator can."""
    return cast("AsyncGenerator[Delta, None]", model.stream(request))
