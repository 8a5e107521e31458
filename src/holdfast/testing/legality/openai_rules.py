"""The rules of OpenAI's chat completions for a list of messages; instructions are messages, too.

An assistant message with calls opens an exchange. The `tool` messages directly after it answer its
calls, each once, in any order. The first message of another role closes the exchange: by then every
call must be answered. Exchanges are identified by position, so ids must be unique only within one
message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.testing.legality.payload import (
    JSONObject,
    RuleViolations,
    as_object,
    format_value,
    is_list,
    is_text,
    items_of,
    matches,
    objects_in,
    rules_of,
    text_field,
)
from holdfast.values import JSON

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_IMAGE_URL: Final = re.compile(r"https?://.+|data:image/[a-z.+-]+;base64,.+", re.DOTALL)
_LONGEST_CALL_ID: Final = 40
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "developer": frozenset({"text"}),
    "system": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "tool": frozenset({"text"}),
}
# What stands for an assistant's content when it has none.
_INSTEAD: Final = ("tool_calls", "refusal", "audio", "function_call")

RULES: Final = rules_of(
    "openai",
    (
        "not-empty",
        "There is at least one message.",
        "Error: \"Invalid 'messages': empty array. Expected an array with minimum length 1\".",
    ),
    (
        "system-place",
        "Instructions are a message; there is no field for them.",
        "API reference, Create chat completion: no such parameter.",
    ),
    (
        "role",
        "Roles are developer, system, user, assistant and tool (`function` is deprecated).",
        (
            "Request types; error: \"Invalid value: … Supported values are: 'system', 'assistant', "
            "'user', 'function', 'tool', and 'developer'\"."
        ),
    ),
    (
        "name",
        "A name has 1 to 64 letters, digits, `_` and `-`.",
        (
            "Error: \"Invalid 'messages[1].name': string does not match pattern\"; newer "
            "models take "
            "more, the older pattern suits all."
        ),
    ),
    (
        "content",
        "Content is text or a list; only an assistant with calls, a refusal or audio has none.",
        (
            'Request types ("required unless tool_calls or function_call is specified"); error: '
            "\"Invalid value for 'content': expected a string, got null\"."
        ),
    ),
    (
        "content-empty",
        "No empty message, list of parts or text, except a tool's answer and beside calls.",
        (
            "Error: \"[] is too short - 'messages.0.content'\". Ours for empty text, which servers "
            "that speak this protocol refuse."
        ),
    ),
    (
        "part-type",
        "Users send text, images, audio and files; assistants text and refusals; others text.",
        "Request types; error: \"Image URLs are only allowed for messages with role 'user'\".",
    ),
    (
        "part-shape",
        "A part holds what its type says; an image is a web address or a base64 data URL.",
        (
            'Request types; error: "Invalid image_url. Expected a base64-encoded data URL with an '
            'image MIME type".'
        ),
    ),
    ("call-place", "Only an assistant calls tools.", "Request types."),
    (
        "call-shape",
        "tool_calls has at least one call; a call is a function or a custom one.",
        "Request types; error: \"Invalid 'messages[1].tool_calls': empty array\".",
    ),
    (
        "call-id",
        "The id of a call has 1 to 40 characters.",
        (
            "Error: \"Invalid 'messages[2].tool_calls[0].id': string too long. Expected a "
            "string with "
            'maximum length 40".'
        ),
    ),
    (
        "call-id-unique",
        "The calls of one message have different ids.",
        "Follows from call-answered: each id is responded to.",
    ),
    (
        "call-name",
        "The name of a function has 1 to 64 letters, digits, `_` and `-`.",
        'Request types, FunctionDefinition ("with a maximum length of 64").',
    ),
    (
        "call-arguments",
        "Arguments are text, valid JSON or not.",
        'Request types ("the model does not always generate valid JSON").',
    ),
    (
        "call-answered",
        "Every call is answered by a tool message directly after its message.",
        (
            "Error: \"An assistant message with 'tool_calls' must be followed by tool messages "
            "responding to each 'tool_call_id'. The following tool_call_ids did not have response "
            'messages".'
        ),
    ),
    (
        "result-has-call",
        "Every tool message answers a call of the message directly before the tool messages.",
        (
            "Error: \"messages with role 'tool' must be a response to a preceeding message with "
            "'tool_calls'\"."
        ),
    ),
    ("one-result", "No call is answered twice.", "Guide, Function calling: one output a call."),
)


def check(found: RuleViolations, messages: Sequence[JSONObject], system: JSON) -> None:
    """Check a list of chat messages."""
    if system is not None:
        found.add("system-place", "system", "instructions are the first message, not a field")
    if not messages:
        found.add("not-empty", "messages", "there is no message")
    for at, message in enumerate(messages):
        _check_message(found, f"messages[{at}]", message)
    _check_exchanges(found, messages)


def _check_message(found: RuleViolations, where: str, message: JSONObject) -> None:
    role = text_field(message, "role")
    if role not in _PARTS:
        found.add("role", where, f"no message has the role {format_value(role)}")
        return
    if "name" in message and not matches(_NAME, message["name"]):
        found.add("name", where, f"{format_value(message['name'])} cannot be a name")
    _check_content(found, where, role, message)
    if "tool_calls" in message:
        _check_calls(found, where, role, message["tool_calls"])


# ------------------------------------------------------------------------------------- content


def _check_content(found: RuleViolations, where: str, role: str, message: JSONObject) -> None:
    content = message.get("content")
    if content is None:
        if role != "assistant" or not any(message.get(field) for field in _INSTEAD):
            found.add("content", where, f"the {role} message has no content")
    elif isinstance(content, str):
        # A tool may well answer with nothing; an assistant's calls may stand beside nothing.
        if not content and role != "tool" and not any(message.get(field) for field in _INSTEAD):
            found.add("content-empty", where, f"the {role} message is empty")
    elif is_list(content):
        _check_parts(found, where, role, items_of(content))
    else:
        found.add("content", where, "content is neither text nor a list of parts")


def _check_parts(found: RuleViolations, where: str, role: str, parts: Sequence[object]) -> None:
    if not parts:
        found.add("content-empty", where, f"the {role} message has an empty list of parts")
    for at, part in enumerate(parts):
        here = f"{where}.content[{at}]"
        kind = text_field(as_object(part), "type")
        if kind not in _PARTS[role]:
            found.add("part-type", here, f"a {role} message cannot hold {format_value(kind)}")
        else:
            _check_part(found, here, as_object(part))


def _check_part(found: RuleViolations, where: str, part: JSONObject) -> None:
    kind = text_field(part, "type")
    if kind in {"text", "refusal"}:
        if not isinstance(part.get(kind), str):
            found.add("part-shape", where, f"the {kind} part has no {kind}")
        elif not part[kind]:
            found.add("content-empty", where, f"the {kind} part is empty")
    elif kind == "image_url":
        if not matches(_IMAGE_URL, as_object(part.get("image_url")).get("url")):
            found.add("part-shape", where, "an image needs a web address or a base64 data URL")
    elif kind == "file":
        file = as_object(part.get("file"))
        if not is_text(file.get("file_data")) and not is_text(file.get("file_id")):
            found.add("part-shape", where, "a file needs its data or its id")
    else:
        audio = as_object(part.get("input_audio"))
        if not is_text(audio.get("data")) or text_field(audio, "format") not in {"wav", "mp3"}:
            found.add("part-shape", where, "audio needs data and a format, wav or mp3")


# --------------------------------------------------------------------------------------- calls


def _check_calls(found: RuleViolations, where: str, role: str, calls: JSON) -> None:
    if role != "assistant":
        found.add("call-place", where, f"a {role} message cannot call tools")
    if not is_list(calls) or not calls:
        found.add("call-shape", where, "tool_calls is not a list with at least one call")
    for at, call in enumerate(items_of(calls)):
        _check_call(found, f"{where}.tool_calls[{at}]", as_object(call))
    ids = Counter(call["id"] for _, call in objects_in(calls) if isinstance(call.get("id"), str))
    for call_id, times in ids.items():
        if times > 1:
            found.add("call-id-unique", where, f"{times} calls have the id {format_value(call_id)}")


def _check_call(found: RuleViolations, where: str, call: JSONObject) -> None:
    call_id = call.get("id")
    if not isinstance(call_id, str) or not 1 <= len(call_id) <= _LONGEST_CALL_ID:
        found.add("call-id", where, f"{format_value(call_id)} cannot be the id of a call")
    kind = text_field(call, "type")
    if kind not in {"function", "custom"}:
        found.add("call-shape", where, f"no call has the type {format_value(kind)}")
        return
    body = as_object(call.get(kind))
    if not matches(_NAME, body.get("name")):
        found.add("call-name", where, f"{format_value(body.get('name'))} cannot name a function")
    text = "arguments" if kind == "function" else "input"
    if not isinstance(body.get(text), str):
        found.add("call-arguments", where, f"{text} is not text")


def _check_exchanges(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    """Follow the exchanges: `open_calls` are still to be answered, `answered` have been."""
    open_calls: dict[str, int] = {}
    answered: set[str] = set()
    for at, message in enumerate(messages):
        if text_field(message, "role") == "tool":
            _take_result(
                found, f"messages[{at}]", message.get("tool_call_id"), open_calls, answered
            )
            continue
        _report_open(found, open_calls)
        calls = [call.get("id") for _, call in objects_in(message.get("tool_calls"))]
        open_calls = {call_id: at for call_id in calls if isinstance(call_id, str)}
        answered = set()
    _report_open(found, open_calls)


def _take_result(
    found: RuleViolations, where: str, call_id: JSON, open_calls: dict[str, int], answered: set[str]
) -> None:
    if not isinstance(call_id, str):
        found.add("result-has-call", where, "a tool message without the id of its call")
    elif call_id in answered:
        found.add("one-result", where, f"call {format_value(call_id)} is answered a second time")
    elif call_id in open_calls:
        del open_calls[call_id]
        answered.add(call_id)
    else:
        found.add(
            "result-has-call",
            where,
            f"no call {format_value(call_id)} is open in the assistant message directly before",
        )


def _report_open(found: RuleViolations, open_calls: Mapping[str, int]) -> None:
    for call_id, at in open_calls.items():
        found.add(
            "call-answered",
            f"messages[{at}]",
            f"call {format_value(call_id)} has no tool message directly after it",
        )
