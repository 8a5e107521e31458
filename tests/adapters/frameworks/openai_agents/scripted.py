"""A model that replies with what it was given, and items as the Responses API has them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence

from agents import Agent, Model, ModelResponse, Tool, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

_numbers = itertools.count(1)


def reply(text: str) -> ResponseOutputMessage:
    """Return a reply with an id of its own."""
    return ResponseOutputMessage(
        id=f"msg_{next(_numbers):032x}",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(type="output_text", text=text, annotations=[], logprobs=[])],
    )


def call(name: str, arguments: str = "{}", id: str | None = None) -> ResponseFunctionToolCall:
    """Return a call of a tool."""
    number = next(_numbers)
    return ResponseFunctionToolCall(
        id=f"fc_{number:032x}",
        type="function_call",
        call_id=id or f"call_{number}",
        name=name,
        arguments=arguments,
        status="completed",
    )


def reasoning(text: str) -> ResponseReasoningItem:
    """Return a model's reasoning."""
    return ResponseReasoningItem.model_validate(
        {
            "id": f"rs_{next(_numbers):032x}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}],
            "encrypted_content": "c2VhbGVk",
        }
    )


class ScriptedModel(Model):
    """Replies with one step after the other, and keeps what it was sent."""

    def __init__(self, *steps: Sequence[ResponseOutputItem]) -> None:
        self.steps = list(steps)
        self.inputs: list[object] = []

    async def get_response(
        self, system_instructions: str | None, input: object, *args: object, **kwargs: object
    ) -> ModelResponse:
        """Return the next step."""
        self.inputs.append(input)
        output = list(self.steps.pop(0))
        return ModelResponse(output=output, usage=Usage(), response_id=f"resp_{next(_numbers)}")

    async def stream_response(
        self, system_instructions: str | None, input: object, *args: object, **kwargs: object
    ) -> AsyncIterator[ResponseCompletedEvent]:
        """Yield the next step, whole."""
        self.inputs.append(input)
        yield ResponseCompletedEvent(
            type="response.completed",
            sequence_number=0,
            response=Response(
                id="resp",
                created_at=0,
                model="scripted",
                object="response",
                output=list(self.steps.pop(0)),
                tool_choice="none",
                tools=[],
                parallel_tool_calls=False,
            ),
        )


def agent(*steps: Sequence[ResponseOutputItem], tools: Sequence[Tool] = ()) -> Agent:
    """Return an agent whose model replies with these steps."""
    return Agent(name="parcels", model=ScriptedModel(*steps), tools=list(tools))
