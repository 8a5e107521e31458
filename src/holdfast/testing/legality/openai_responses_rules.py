"""The rules of OpenAI's Responses API for its input: a flat list of items that refer to each other.

A call and its output are two items with the same `call_id`, the output after the call. They are
paired by that id and not by position, so it is unique in the whole input. A reasoning item comes
directly before the item it led to.
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
    rules_of,
    text_field,
)
from holdfast.values import JSON

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ITEM_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_CALL_ID: Final = 64
_INPUT_PARTS: Final = frozenset({"input_text", "input_image", "input_file"})
_OUTPUT_PARTS: Final = frozenset({"output_text", "refusal"})
_TEXT_OF: Final[Mapping[str, str]] = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
# Every kind of call, and the kind of item that answers it.
_ANSWERS: Final[Mapping[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}
_OUTPUTS: Final = frozenset(_ANSWERS.values())
# Items that the model itself produces beside messages and calls to our tools.
_BY_THE_MODEL: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "local_shell_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "tool_search_call",
        "tool_search_output",
        "compaction",
        "program",
        "program_output",
    }
)
_FROM_US: Final = frozenset(
    {
        "local_shell_call_output",
        "mcp_approval_response",
        "item_reference",
        "additional_tools",
        "compaction_trigger",
        "configuration_update",
    }
)
_TYPES: Final = _BY_THE_MODEL | _FROM_US | _OUTPUTS | {*_ANSWERS, "message", "reasoning"}
_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
    "file_search_call": "fs",
}

RULES: Final = rules_of(
    "openai-responses",
    ("not-empty", "There is at least one item.", "API reference, Create a response."),
    (
        "system-place",
        "Instructions beside the input are text.",
        "API reference, `instructions`: a system or developer message as text.",
    ),
    (
        "item-type",
        "Every item is of a known type; one with a role and no type is a message.",
        'Request types, ResponseInputItemParam; error: "Invalid value: … Supported values are".',
    ),
    ("role", "Roles are user, assistant, system and developer.", "Request types."),
    ("content", "The content of a message is text or a list of parts.", "Request types."),
    (
        "content-empty",
        "No empty message, list of parts or text.",
        "As for openai. Ours for empty text.",
    ),
    (
        "part-type",
        "Assistants hold output_text and refusal, everybody else input_*.",
        "Error: \"Invalid value: 'input_text'. Supported values are: 'output_text', 'refusal'\".",
    ),
    ("part-shape", "A part holds what its type says.", "Request types."),
    (
        "item-id",
        "An id has at most 64 letters, digits, `_`, `-`, and begins with its type's prefix.",
        (
            "Errors: \"Invalid 'input[3].id': 'call_…'. Expected an ID that begins with "
            "'fc'\" (rs, "
            'msg, …), "… contains letters, numbers, underscores, or dashes", "maximum length 64".'
        ),
    ),
    (
        "item-id-unique",
        "No item comes twice.",
        'Error: "Duplicate item found with id rs_… Remove duplicate items from your input".',
    ),
    (
        "reasoning-shape",
        "A reasoning item has its id and a summary, which may be empty.",
        'Request types, ResponseReasoningItemParam; error: "missing required field `summary`".',
    ),
    (
        "reasoning-followed",
        "The item a reasoning item led to is directly after it.",
        (
            "Error: \"Item 'rs_…' of type 'reasoning' was provided without its required following "
            "item\". (The reverse, \"'fc_…' was provided without its required 'reasoning' item\", "
            "cannot be seen in a payload: what loses its reasoning has to lose its item id.)"
        ),
    ),
    (
        "call-id",
        "A call_id has 1 to 64 characters.",
        'Error: "Invalid input[].call_id: string too long. Expected max length 64".',
    ),
    (
        "call-id-unique",
        "No two calls have one call_id.",
        "Follows from call-answered: outputs are found by call_id alone.",
    ),
    (
        "call-name",
        "The name of a function is letters, digits, `_` and `-`.",
        "Error: \"Invalid 'input[1].name': string does not match pattern '^[a-zA-Z0-9_-]+$'\".",
    ),
    ("call-arguments", "Arguments are text, valid JSON or not.", "Request types."),
    ("output-shape", "An output is text or a list of input parts.", "Request types."),
    (
        "call-answered",
        "Every call has an output after it.",
        'Error: "No tool output found for function call call_…".',
    ),
    (
        "result-has-call",
        "Every output has its call before it, of the same kind.",
        'Error: "No tool call found for function call output with call_id call_…".',
    ),
    ("one-result", "No call has two outputs.", "Guide, Function calling: one output a call."),
)


def check(found: RuleViolations, messages: Sequence[JSONObject], system: JSON) -> None:
    """Check a list of input items; `system` is what is sent as `instructions`."""
    if system is not None and not is_text(system):
        found.add("system-place", "system", "instructions are text that is not empty")
    if not messages:
        found.add("not-empty", "messages", "there is no item")
    for at, item in enumerate(messages):
        _check_item(found, f"messages[{at}]", item)
    _check_ids(found, messages)
    _check_reasoning(found, messages)
    _check_pairs(found, messages)


def _kind(item: JSONObject) -> str:
    """Return the type of an item; one with a role and no type is a message."""
    return text_field(item, "type") or ("message" if "role" in item else "")


def _check_item(found: RuleViolations, where: str, item: JSONObject) -> None:
    kind = _kind(item)
    if kind not in _TYPES:
        found.add("item-type", where, f"no item has the type {format_value(kind)}")
    elif kind == "message":
        _check_message(found, where, item)
    elif kind == "reasoning":
        if not is_text(item.get("id")) or not is_list(item.get("summary")):
            found.add("reasoning-shape", where, "a reasoning item needs its id and a summary list")
    elif kind in {"function_call", "custom_tool_call"}:
        _check_call(found, where, item, "arguments" if kind == "function_call" else "input")
    elif kind in {"function_call_output", "custom_tool_call_output"}:
        _check_output(found, where, item.get("output"))


# ------------------------------------------------------------------------------------- content


def _check_message(found: RuleViolations, where: str, item: JSONObject) -> None:
    role = text_field(item, "role")
    if role not in _ROLES:
        found.add("role", where, f"no message has the role {format_value(role)}")
        return
    content = item.get("content")
    if isinstance(content, str):
        if not content:
            found.add("content-empty", where, f"the {role} message is empty")
    elif is_list(content):
        allowed = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
        _check_parts(found, f"{where}.content", items_of(content), allowed)
    else:
        found.add("content", where, "content is neither text nor a list of parts")


def _check_parts(
    found: RuleViolations, where: str, parts: Sequence[object], allowed: frozenset[str]
) -> None:
    if not parts:
        found.add("content-empty", where, "the list of parts is empty")
    for at, part in enumerate(parts):
        here = f"{where}[{at}]"
        kind = text_field(as_object(part), "type")
        if kind not in allowed:
            found.add("part-type", here, f"{format_value(kind)} cannot stand here")
        else:
            _check_part(found, here, as_object(part))


def _check_part(found: RuleViolations, where: str, part: JSONObject) -> None:
    kind = text_field(part, "type")
    if kind in _TEXT_OF:
        text = part.get(_TEXT_OF[kind])
        if not isinstance(text, str):
            found.add("part-shape", where, f"the {kind} part has no {_TEXT_OF[kind]}")
        elif not text:
            found.add("content-empty", where, f"the {kind} part is empty")
    elif kind == "input_image":
        if not is_text(part.get("image_url")) and not is_text(part.get("file_id")):
            found.add("part-shape", where, "an image needs an address or the id of a file")
    elif not any(is_text(part.get(field)) for field in ("file_data", "file_id", "file_url")):
        found.add("part-shape", where, "a file needs its data, its id or its address")


# --------------------------------------------------------------------------------------- calls


def _check_call(found: RuleViolations, where: str, item: JSONObject, text: str) -> None:
    if not matches(_NAME, item.get("name")):
        found.add("call-name", where, f"{format_value(item.get('name'))} cannot name a function")
    if not isinstance(item.get(text), str):
        found.add("call-arguments", where, f"{text} is not text")


def _check_output(found: RuleViolations, where: str, output: JSON) -> None:
    if isinstance(output, str):
        return  # A tool may well answer with nothing.
    if is_list(output):
        _check_parts(found, f"{where}.output", items_of(output), _INPUT_PARTS)
    else:
        found.add("output-shape", where, "output is neither text nor a list of parts")


def _check_pairs(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    """Pair outputs with calls: `calls` holds where each is, `answered` those with an output."""
    calls: dict[str, tuple[int, str]] = {}
    answered: set[str] = set()
    for at, item in enumerate(messages):
        kind, call_id = _kind(item), item.get("call_id")
        if kind not in _ANSWERS and kind not in _OUTPUTS:
            continue
        where = f"messages[{at}]"
        if not isinstance(call_id, str) or not 1 <= len(call_id) <= _LONGEST_CALL_ID:
            found.add("call-id", where, f"{format_value(call_id)} cannot be the id of a call")
        elif kind in _OUTPUTS:
            _take_output(found, where, (kind, call_id), calls, answered)
        elif call_id in calls:
            found.add("call-id-unique", where, f"two calls have the id {format_value(call_id)}")
        else:
            calls[call_id] = (at, kind)
    for call_id, (at, _) in calls.items():
        if call_id not in answered:
            found.add(
                "call-answered", f"messages[{at}]", f"call {format_value(call_id)} has no output"
            )


def _take_output(
    found: RuleViolations,
    where: str,
    output: tuple[str, str],
    calls: Mapping[str, tuple[int, str]],
    answered: set[str],
) -> None:
    kind, call_id = output
    if call_id not in calls or _ANSWERS[calls[call_id][1]] != kind:
        found.add(
            "result-has-call", where, f"no call {format_value(call_id)} stands before its {kind}"
        )
    elif call_id in answered:
        found.add("one-result", where, f"call {format_value(call_id)} is answered a second time")
    else:
        answered.add(call_id)


# ------------------------------------------------------------------------- ids, and reasoning


def _check_ids(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    for at, item in enumerate(messages):
        item_id = item.get("id")
        if item_id is None:
            continue
        prefix = _PREFIXES.get(_kind(item), "")
        if not isinstance(item_id, str) or not matches(_ITEM_ID, item_id):
            found.add(
                "item-id", f"messages[{at}]", f"{format_value(item_id)} cannot be the id of an item"
            )
        elif not item_id.startswith(prefix):
            found.add(
                "item-id",
                f"messages[{at}]",
                f"{format_value(item_id)} does not begin with {prefix}",
            )
    ids = Counter(item["id"] for item in messages if isinstance(item.get("id"), str))
    for item_id, times in ids.items():
        if times > 1:
            found.add(
                "item-id-unique", "messages", f"{times} items have the id {format_value(item_id)}"
            )


def _check_reasoning(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    for at, item in enumerate(messages):
        if _kind(item) != "reasoning":
            continue
        following = messages[at + 1] if at + 1 < len(messages) else {}
        if not _by_the_model(following):
            found.add(
                "reasoning-followed",
                f"messages[{at}]",
                "what the reasoning led to does not follow it",
            )


def _by_the_model(item: JSONObject) -> bool:
    """True if an item was produced by the model, as far as its type tells."""
    kind = _kind(item)
    if kind == "message":
        return text_field(item, "role") == "assistant"
    return kind in _ANSWERS or kind in _BY_THE_MODEL or kind == "reasoning"
