"""Helpers for the tests of both OpenAI formats: validation by the provider's types, and messages.

The package's types are `TypedDict`s whose lists are `Iterable`s, which pydantic checks only when
they are walked through: so everything that was validated is walked through here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionMessageParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.responses import (
    EasyInputMessageParam,
    ResponseCustomToolCallOutputParam,
    ResponseCustomToolCallParam,
    ResponseFunctionToolCallParam,
    ResponseOutputMessageParam,
    ResponseReasoningItemParam,
)
from openai.types.responses.response_input_item_param import FunctionCallOutput, ItemReference
from pydantic import TypeAdapter

from holdfast.formats.registry import PROVIDERS
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Raw,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)

CHAT_TYPES: dict[str, Any] = {
    "assistant": ChatCompletionAssistantMessageParam,
    "developer": ChatCompletionDeveloperMessageParam,
    "function": ChatCompletionFunctionMessageParam,
    "system": ChatCompletionSystemMessageParam,
    "tool": ChatCompletionToolMessageParam,
    "user": ChatCompletionUserMessageParam,
}
ITEM_TYPES: dict[str, Any] = {
    "custom_tool_call": ResponseCustomToolCallParam,
    "custom_tool_call_output": ResponseCustomToolCallOutputParam,
    "function_call": ResponseFunctionToolCallParam,
    "function_call_output": FunctionCallOutput,
    "item_reference": ItemReference,
    "reasoning": ResponseReasoningItemParam,
}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 (a TypedDict is no class)
    return TypeAdapter(kind)


def validate(kind: Any, value: object) -> None:  # noqa: ANN401
    """Let the package's type judge a value, all the way down."""
    _walk(_adapter(kind).validate_python(value, strict=True))


def _walk(value: object) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _walk(inner)
    elif isinstance(value, list | tuple | Iterator):
        for inner in value:
            _walk(inner)


def validate_chat(message: dict[str, JSON]) -> None:
    json.dumps(message, allow_nan=False)
    validate(CHAT_TYPES[str(message["role"])], message)


def validate_item(item: dict[str, JSON]) -> None:
    json.dumps(item, allow_nan=False)
    kind = item.get("type", "message")
    if kind != "message":
        validate(ITEM_TYPES[str(kind)], item)
    elif item["role"] == "assistant" and isinstance(item["content"], list):
        # The service takes such a message without an id, the package's type does not.
        made = {"id": "msg_1", "status": "completed", "type": "message"}
        validate(ResponseOutputMessageParam, {**made, **item})
    else:
        validate(EasyInputMessageParam, item)


# -------------------------------------------------------------------------------------- messages

json_values: st.SearchStrategy[JSON] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # What JSON cannot tell apart is no part of the question.
    .filter(lambda number: number != 0)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_KEYS = ["part", "fields", "content", "item", "call", "of", "shape", "without", "bare"]
_WORDS = (
    "text function custom file image_url input_image input_file input_text output_text user "
    "assistant tool list null absent empty function_call function_tool custom_tool_call "
    "custom_tool_call_output developer"
)
_words = st.sampled_from(_WORDS.split())
_note_like = st.dictionaries(st.sampled_from(_KEYS), _words | json_values, max_size=4)
raws = st.builds(
    Raw,
    st.sampled_from(PROVIDERS),
    json_values | _note_like,
)
texts = st.builds(Text, st.text())
calls = st.builds(ToolCall, st.text(), st.text(), json_values)
results = st.builds(
    ToolResult,
    st.text(),
    st.text() | st.lists(texts | raws, max_size=3).map(tuple),
    error=st.booleans(),
    name=st.none() | st.text(),
)
thoughts = st.builds(Thinking, st.text(), st.none() | st.text())
_mimes = st.sampled_from(
    ["image/png", "image/jpg", "audio/wav", "application/pdf", "text/plain", "video/mp4", "x"]
)
files = st.builds(
    File, name=st.none() | st.text(), mime=st.none() | _mimes, data=st.binary(max_size=9)
) | st.builds(File, name=st.none() | st.text(), mime=st.none() | _mimes, sha256=st.just("0" * 64))
results_with_files = st.builds(
    ToolResult, st.text(), st.lists(texts | files, max_size=3).map(tuple)
)
roles: st.SearchStrategy[Role] = st.sampled_from(["system", "user", "assistant", "tool", "summary"])


def messages(*kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    """Make messages of any role with parts of these kinds, in any order."""
    parts = st.lists(st.one_of(*kinds), max_size=6).map(tuple)
    return st.builds(Message, role=roles, parts=parts, name=st.none() | st.text())


def texts_of(parts: tuple[Part, ...]) -> list[str]:
    """Return all texts that are said, in order, without empty ones."""
    return [part.text for part in parts if isinstance(part, Text) and part.text]


def results_of(parts: tuple[Part, ...]) -> list[tuple[str, list[str]]]:
    """Return the results: whom they answer, and their texts."""
    return [
        (part.call_id, [part.content] if isinstance(part.content, str) else _inner(part.content))
        for part in parts
        if isinstance(part, ToolResult)
    ]


def _inner(content: tuple[Text | File | Raw, ...]) -> list[str]:
    # A result without any piece is written as the empty text.
    return [part.text for part in content if isinstance(part, Text)] or [""]
