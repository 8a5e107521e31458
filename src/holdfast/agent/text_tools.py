"""The text tool protocol, for models without native tool calling.

`describe_tools` describes the tools and the syntax of a call, which `text_tool_parser` parses.
`to_text_messages` rewrites a conversation without tool fields: calls become part of the assistant's
text, as the model would have written them, and results part of the next user message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from holdfast.agent.models.protocol import ToolSpec
from holdfast.agent.text_tool_parser import parse_reply
from holdfast.values import JSON

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
_INSTRUCTIONS: Final = f"""\
You can use tools. To use one, write a call in exactly this form and then stop:
{OPENING}{{"name": "TOOL", "arguments": {{"PARAMETER": "VALUE"}}}}{CLOSING}
The answer comes in the next message. Use a tool only if it is needed; otherwise just answer.
The tools:"""
_TYPE_NAMES: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
}


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Return a description of the tools for the system text; empty if there are none."""
    if not tools:
        return ""
    return "\n".join([_INSTRUCTIONS, *map(_described, tools)])


def _described(spec: ToolSpec) -> str:
    properties, required = spec.parameters.get("properties"), spec.parameters.get("required")
    needed = required if isinstance(required, list) else []
    lines = [f"- {spec.name}: {' '.join(spec.description.split())}"]
    if isinstance(properties, dict):
        for name, schema in properties.items():
            lines.append(
                f"  - {name} ({_type_name(schema)}{'' if name in needed else ', optional'})"
            )
            if about := _about(schema):
                lines[-1] += f": {about}"
    return "\n".join(lines)


def _type_name(schema: JSON) -> str:
    if not isinstance(schema, dict):
        return "anything"
    choices = schema.get("enum")
    if isinstance(choices, list):
        return " or ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    several = schema.get("anyOf")
    if isinstance(several, list):
        kinds = [_type_name(one) for one in several if one != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds)) or "anything"
    return _TYPE_NAMES.get(str(schema.get("type")), "anything")


def _about(schema: JSON) -> str:
    about = schema.get("description") if isinstance(schema, dict) else None
    return " ".join(about.split()) if isinstance(about, str) else ""


# --------------------------------------------------------------------------------------- messages


def to_text_messages(messages: Sequence[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """Return messages in OpenAI's format with tool calls and results rewritten as text.

    Consecutive results are joined into one user message, together with a user message that follows.
    """
    written: list[dict[str, JSON]] = []
    after_result = False
    for message in messages:
        role = message.get("role")
        if role in {"tool", "function"}:
            plain: dict[str, JSON] = {"role": "user", "content": _response(message)}
        elif role == "assistant" and message.get("tool_calls"):
            plain = _with_calls(message)
        else:
            plain = message
        joins = after_result and plain.get("role") == "user"
        if joins and isinstance(plain.get("content"), str):
            written[-1] = {
                **written[-1],
                "content": f"{written[-1]['content']}\n{plain['content']}",
            }
        else:
            written.append(plain)
            joins = False
        after_result = role in {"tool", "function"} or (joins and after_result)
    return written


def _response(message: dict[str, JSON]) -> str:
    return f"<tool_response>\n{_words(message.get('content'))}\n</tool_response>"


def _with_calls(message: dict[str, JSON]) -> dict[str, JSON]:
    given = message.get("tool_calls")
    calls = [_call(call) for call in given] if isinstance(given, list) else []
    words = _words(message.get("content"))
    # Calls that the model itself wrote as text are part of the content already.
    wrote = [call.name for call in parse_reply(words, [name for name, _ in calls]).calls]
    appended = [] if wrote == [name for name, _ in calls] else [written for _, written in calls]
    content = "\n".join(text for text in (words, *appended) if text)
    return {
        key: content if key == "content" else value
        for key, value in {"content": None, **message}.items()
        if key != "tool_calls"
    }


def _call(call: JSON) -> tuple[str, str]:
    """Return the name of the tool, and the call in the text protocol."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return "", ""
    name, arguments = str(function.get("name")), function.get("arguments")
    given = arguments if isinstance(arguments, str) and arguments.startswith("{") else None
    written = json.dumps(arguments, ensure_ascii=False) if given is None else given
    shown = json.dumps(name, ensure_ascii=False)
    return name, f'{OPENING}{{"name": {shown}, "arguments": {written}}}{CLOSING}'


def _words(content: JSON) -> str:
    if isinstance(content, str):
        return content
    pieces = content if isinstance(content, list) else []
    texts = (piece.get("text") for piece in pieces if isinstance(piece, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
