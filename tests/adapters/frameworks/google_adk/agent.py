"""An agent with a model that follows a script, and a process of it that stops inside a tool.

Run as a program, `agent.py STORE` says that it is inside the tool, and waits there to be killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Final

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService
from google.adk.tools import ToolContext
from google.genai import types

import holdfast
from holdfast.adapters.google_adk import HoldfastSessionService

WHO: Final = {"user_id": "ada", "session_id": "one"}
INSIDE: Final = "inside the tool"


class ScriptedModel(BaseLlm):
    """A model that has its answer from `say`, which is given the request."""

    model: str = "scripted"
    say: Callable[[LlmRequest], types.Part]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one whole reply."""
        part = self.say(llm_request)
        yield LlmResponse(
            content=types.Content(role="model", parts=[part]),
            model_version="scripted-1",
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=10, candidates_token_count=3
            ),
        )


def texts_of(request: LlmRequest) -> list[str]:
    """Return the texts and results that a request shows to the model."""
    parts = [part for content in request.contents for part in content.parts]
    results = [part.function_response for part in parts if part.function_response]
    return [part.text for part in parts if part.text] + [str(one.response) for one in results]


def weigh_then_tell(request: LlmRequest) -> types.Part:
    """Call the tool once for each question, then tell its result."""
    last = request.contents[-1].parts[-1]
    if last.function_response:
        return types.Part(text=f"It weighs {last.function_response.response['result']}.")
    return types.Part.from_function_call(name="weigh", args={"what": last.text})


def runner_of(
    service: BaseSessionService,
    say: Callable[[LlmRequest], types.Part] = weigh_then_tell,
    *,
    on_call: Callable[[], None] = lambda: None,
    agents: tuple[LlmAgent, ...] = (),
) -> Runner:
    """Return a runner of an agent whose tool changes the state of the session and of the user."""

    def weigh(what: str, tool_context: ToolContext) -> str:
        """Weigh a thing."""
        on_call()
        tool_context.state["weighed"] = tool_context.state.get("weighed", 0) + 1
        tool_context.state["user:last"] = what
        tool_context.state["temp:scales"] = "on"
        return "2 kg"

    root = LlmAgent(
        name="root",
        model=ScriptedModel(say=say),
        tools=[weigh],
        output_key="answer",
        sub_agents=[*agents],
    )
    config = ResumabilityConfig(is_resumable=True)
    app = App(name="desk", root_agent=root, resumability_config=config)
    return Runner(app=app, session_service=service, auto_create_session=True)


async def ask(runner: Runner, text: str | None, **how: object) -> list[Event]:
    """Return the events of one run."""
    message = types.Content(role="user", parts=[types.Part(text=text)]) if text else None
    return [event async for event in runner.run_async(**WHO, new_message=message, **how)]


def _wait_to_be_killed() -> None:
    sys.stdout.write(INSIDE + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as _store:
        asyncio.run(
            ask(runner_of(HoldfastSessionService(_store), on_call=_wait_to_be_killed), "the cat")
        )
