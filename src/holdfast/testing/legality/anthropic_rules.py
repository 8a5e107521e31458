"""The rules of Anthropic's Messages API for a list of messages.

User and assistant alternate; the instructions are a separate field. A message is text or a list of
blocks. Each `tool_use` of an assistant message is answered by one `tool_result` at the beginning of
the next message, which is the user's. Thinking is sent back unchanged, with its signature.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
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

_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_USER_BLOCKS: Final = frozenset(
    {"text", "image", "document", "search_result", "tool_result", "container_upload"}
)
# The result of a server tool is in the assistant's message: `web_search_tool_result` and others.
_SERVER_RESULT: Final = re.compile(r"[a-z_]+_tool_result")
_ASSISTANT_BLOCKS: Final = frozenset({"text", "tool_use", "server_tool_use", "container_upload"})
_RESULT_BLOCKS: Final = frozenset({"text", "image", "document", "search_result", "tool_reference"})
_MAX_BREAKPOINTS: Final = 4

RULES: Final = rules_of(
    "anthropic",
    ("not-empty", "There is at least one message.", 'Error: "at least one message is required".'),
    (
        "system-place",
        "Instructions are text or text blocks, in a field of their own.",
        "API reference, Messages, `system`.",
    ),
    (
        "role",
        "Roles are user and assistant.",
        (
            'Error: "Unexpected role "system". The Messages API accepts a top-level `system` '
            'parameter". The newest models accept `system` after a user message; the rest do not.'
        ),
    ),
    (
        "fields",
        "A message has a role and content and nothing else.",
        'Error: "messages.0.id: Extra inputs are not permitted".',
    ),
    (
        "first-user",
        "The first message is the user's.",
        'Error: "messages: first message must use the "user" role".',
    ),
    (
        "alternate",
        "User and assistant take turns.",
        (
            'Error: "roles must alternate between "user" and "assistant"". Ours by now: the '
            "API joins "
            "neighbours, other servers of the protocol do not."
        ),
    ),
    ("content", "Content is text or a list of blocks, each complete.", "Request types."),
    (
        "content-empty",
        "No message without a block.",
        (
            'Error: "all messages must have non-empty content except for the optional final '
            'assistant message".'
        ),
    ),
    (
        "text-empty",
        "No text that is empty or white space.",
        (
            'Errors: "text content blocks must be non-empty", "text content blocks must contain '
            'non-whitespace text", "cache_control cannot be set for empty text blocks".'
        ),
    ),
    (
        "block-type",
        "Users send text, images, documents and results; assistants text, calls, thinking.",
        (
            'Request types; errors: "`tool_use` blocks can only be in `assistant` messages", '
            '"`tool_result` blocks can only be in `user` messages".'
        ),
    ),
    (
        "source",
        "An image is base64 JPEG, PNG, GIF or WebP, an address or a file; documents have a source.",
        "Guide, Vision; request types.",
    ),
    (
        "call-id",
        "The id of a call is letters, digits, `_` and `-`.",
        (
            'Error: "messages.1.content.0.tool_use.id: String should match pattern '
            "'^[a-zA-Z0-9_-]+$'\"."
        ),
    ),
    (
        "call-id-unique",
        "No two calls of the conversation have one id.",
        'Error: "messages.3.content.1: `tool_use` ids must be unique".',
    ),
    (
        "call-name",
        "The name of a tool has 1 to 128 letters, digits, `_` and `-`.",
        "Error: \"String should match pattern '^[a-zA-Z0-9_-]{1,128}$'\".",
    ),
    (
        "call-input",
        "The input of a call is an object.",
        'Error: "tool_use.input: Input should be a valid dictionary".',
    ),
    (
        "call-answered",
        "Every call has its result in the next message.",
        (
            'Error: "`tool_use` ids were found without `tool_result` blocks immediately '
            "after: … Each "
            '`tool_use` block must have a corresponding `tool_result` block in the next message".'
        ),
    ),
    (
        "result-has-call",
        "Every result has its call in the message directly before.",
        (
            'Error: "unexpected `tool_use_id` found in `tool_result` blocks: … Each `tool_result` '
            'block must have a corresponding `tool_use` block in the previous message".'
        ),
    ),
    (
        "one-result",
        "No call has two results.",
        'Error: "each tool_use must have a single result. Found multiple `tool_result` blocks".',
    ),
    (
        "results-first",
        "In its message nothing comes before a result but results.",
        'Guide, Handle tool calls: "tool_result blocks must come first in the content array".',
    ),
    (
        "error-result",
        "A result that is an error has text, and only text.",
        (
            'Errors: "content cannot be empty if `is_error` is true", "all content must be type '
            '"text" if "is_error" is true".'
        ),
    ),
    (
        "server-result",
        "The result of a server tool has its call before it in the same message.",
        (
            'Error: "Each `web_search_tool_result` block must have a corresponding '
            "`server_tool_use` "
            'block before it".'
        ),
    ),
    (
        "signature",
        "Thinking goes back with its signature, redacted thinking with its data.",
        'Request types; error: "thinking.signature: Field required".',
    ),
    (
        "thinking-first",
        "A message that holds thinking begins with it.",
        (
            'Error: "Expected `thinking` or `redacted_thinking`, but found `text`. When '
            "`thinking` is "
            'enabled, a final `assistant` message must start with a thinking block".'
        ),
    ),
    (
        "thinking-last",
        "No message ends with thinking.",
        'Error: "The final block in an assistant message cannot be `thinking`".',
    ),
    (
        "prefill",
        "An assistant's message at the end holds no thinking and ends without white space.",
        (
            'Errors: "final assistant content cannot end with trailing whitespace", "When '
            "thinking is "
            "disabled, an `assistant` message in the final position cannot contain "
            '`thinking`". The '
            "newest models take no such message at all."
        ),
    ),
    (
        "breakpoints",
        "At most four blocks have cache_control, and no thinking.",
        (
            'Error: "A maximum of 4 blocks with cache_control may be provided. Found 5"; guide, '
            "Prompt caching."
        ),
    ),
)


def check(found: RuleViolations, messages: Sequence[JSONObject], system: JSON) -> None:
    """Check a list of messages, and the instructions beside it."""
    if not messages:
        found.add("not-empty", "messages", "there is no message")
    _check_system(found, system)
    for at, message in enumerate(messages):
        _check_message(found, f"messages[{at}]", message)
    _check_turns(found, messages)
    _check_exchanges(found, messages)
    _check_end(found, messages)
    _check_breakpoints(found, messages, system)


def _blocks(message: JSONObject) -> list[tuple[int, JSONObject]]:
    """Return the blocks of a message; plain text counts as one."""
    content = message.get("content")
    if isinstance(content, str):
        return [(0, {"type": "text", "text": content})]
    return objects_in(content)


def _of_type(message: JSONObject, kind: str) -> list[tuple[int, JSONObject]]:
    return [(at, block) for at, block in _blocks(message) if text_field(block, "type") == kind]


# --------------------------------------------------------------------------- messages and turns


def _check_system(found: RuleViolations, system: JSON) -> None:
    if system is None:
        return
    blocks = items_of([{"type": "text", "text": system}] if isinstance(system, str) else system)
    if not blocks:
        found.add("system-place", "system", "instructions are text or a list of text blocks")
    for at, block in enumerate(blocks):
        text = as_object(block).get("text")
        if text_field(as_object(block), "type") != "text" or not isinstance(text, str):
            found.add("system-place", f"system[{at}]", "instructions hold text blocks only")
        elif not text.strip():
            found.add("text-empty", f"system[{at}]", "the text block is empty or white space")


def _check_turns(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    roles = [text_field(message, "role") for message in messages]
    if roles and roles[0] == "assistant":
        found.add("first-user", "messages[0]", "the first message is not the user's")
    for at in range(1, len(roles)):
        if roles[at] == roles[at - 1] and roles[at] in {"user", "assistant"}:
            found.add("alternate", f"messages[{at}]", f"a second {roles[at]} message in a row")


def _check_message(found: RuleViolations, where: str, message: JSONObject) -> None:
    role = text_field(message, "role")
    if role not in {"user", "assistant"}:
        found.add("role", where, f"no message has the role {format_value(role)}")
    for field in message:
        if field not in {"role", "content"}:
            found.add("fields", where, f"a message has no field {format_value(field)}")
    content = message.get("content")
    if not isinstance(content, str) and not is_list(content):
        found.add("content", where, "content is neither text nor a list of blocks")
    elif is_list(content) and not content:
        found.add("content-empty", where, "the list of blocks is empty")
    for at, block in _blocks(message):
        _check_block(found, f"{where}.content[{at}]", role, block)
    if role == "assistant":
        _check_thinking(found, where, message)
        _check_server_results(found, where, message)


def _check_end(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    """Check an assistant's message at the end, which the model continues."""
    if not messages or text_field(messages[-1], "role") != "assistant":
        return
    where = f"messages[{len(messages) - 1}]"
    blocks = [block for _, block in _blocks(messages[-1])]
    if any(text_field(block, "type") in _THINKING for block in blocks):
        found.add("prefill", where, "the last message is the assistant's and holds thinking")
    text = blocks[-1].get("text") if blocks else None
    if isinstance(text, str) and text != text.rstrip():
        found.add("prefill", where, "the last message is the assistant's and ends in white space")


# -------------------------------------------------------------------------------------- blocks


def _check_block(found: RuleViolations, where: str, role: str, block: JSONObject) -> None:
    kind = text_field(block, "type")
    if role in {"user", "assistant"} and not _may_hold(role, kind):
        found.add(
            "block-type", where, f"{format_value(kind)} cannot stand in a message of the {role}"
        )
    elif kind == "text":
        _check_text(found, where, block)
    elif kind == "image":
        _check_image(found, where, block)
    elif kind == "document":
        if not text_field(as_object(block.get("source")), "type"):
            found.add("source", where, "a document needs a source")
    elif kind in {"tool_use", "server_tool_use"}:
        _check_call(found, where, block)
    elif kind == "tool_result":
        _check_result(found, where, block)


def _may_hold(role: str, kind: str) -> bool:
    if role == "user":
        return kind in _USER_BLOCKS
    return kind in _ASSISTANT_BLOCKS or kind in _THINKING or matches(_SERVER_RESULT, kind)


def _check_text(found: RuleViolations, where: str, block: JSONObject) -> None:
    text = block.get("text")
    if not isinstance(text, str):
        found.add("content", where, "the text block has no text")
    elif not text.strip():
        found.add("text-empty", where, "the text block is empty or white space")


def _check_image(found: RuleViolations, where: str, block: JSONObject) -> None:
    source = as_object(block.get("source"))
    kind = text_field(source, "type")
    if kind == "base64":
        if text_field(source, "media_type") not in _IMAGE_TYPES or not is_text(source.get("data")):
            found.add("source", where, "an image is JPEG, PNG, GIF or WebP, with its data")
    elif kind not in {"url", "file"}:
        found.add("source", where, f"no image has a source of the type {format_value(kind)}")


def _check_thinking(found: RuleViolations, where: str, message: JSONObject) -> None:
    blocks = _blocks(message)
    for at, block in blocks:
        if text_field(block, "type") == "thinking" and not is_text(block.get("signature")):
            found.add("signature", f"{where}.content[{at}]", "the thinking has no signature")
        if text_field(block, "type") == "redacted_thinking" and not is_text(block.get("data")):
            found.add("signature", f"{where}.content[{at}]", "the redacted thinking has no data")
    kinds = [text_field(block, "type") for _, block in blocks]
    if not any(kind in _THINKING for kind in kinds):
        return
    if kinds[0] not in _THINKING:
        found.add("thinking-first", where, "thinking comes after other blocks")
    if kinds[-1] in _THINKING:
        found.add("thinking-last", where, "the last block is thinking")


def _check_breakpoints(found: RuleViolations, messages: Sequence[JSONObject], system: JSON) -> None:
    marked = sum(1 for _, block in objects_in(system) if block.get("cache_control"))
    for at, message in enumerate(messages):
        for number, block in _blocks(message):
            if not block.get("cache_control"):
                continue
            marked += 1
            if text_field(block, "type") in _THINKING:
                where = f"messages[{at}].content[{number}]"
                found.add("breakpoints", where, "thinking cannot end a cached prefix")
    if marked > _MAX_BREAKPOINTS:
        found.add("breakpoints", "messages", f"{marked} blocks have cache_control, of at most 4")


# --------------------------------------------------------------------------- calls and results


def _check_call(found: RuleViolations, where: str, block: JSONObject) -> None:
    if not matches(_ID, block.get("id")):
        found.add("call-id", where, f"{format_value(block.get('id'))} cannot be the id of a call")
    if not matches(_NAME, block.get("name")):
        found.add("call-name", where, f"{format_value(block.get('name'))} cannot name a tool")
    if not isinstance(block.get("input"), dict):
        found.add("call-input", where, "input is not an object")


def _check_result(found: RuleViolations, where: str, block: JSONObject) -> None:
    content = block.get("content")
    if content is not None and not isinstance(content, str) and not is_list(content):
        found.add("content", where, "a result is text or a list of blocks")
    for at, inner in objects_in(content):
        here = f"{where}.content[{at}]"
        kind = text_field(inner, "type")
        if kind not in _RESULT_BLOCKS:
            found.add("block-type", here, f"{format_value(kind)} cannot stand in a result")
        elif kind == "text":
            _check_text(found, here, inner)
        elif kind == "image":
            _check_image(found, here, inner)
        if block.get("is_error") and kind != "text":
            found.add("error-result", here, "a result that is an error holds text only")
    if block.get("is_error") and not content:
        found.add("error-result", where, "a result that is an error says nothing")


def _check_exchanges(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    for at, message in enumerate(messages):
        before = messages[at - 1] if at else {}
        following = messages[at + 1] if at + 1 < len(messages) else {}
        for call_id in _calls(message):
            if call_id not in set(_results(following)):
                what = f"call {format_value(call_id)} has no result in the next message"
                found.add("call-answered", f"messages[{at}]", what)
        _check_results(found, f"messages[{at}]", message, set(_calls(before)))
    made = Counter(call_id for message in messages for call_id in _calls(message))
    for call_id, times in made.items():
        if times > 1:
            found.add(
                "call-id-unique", "messages", f"{times} calls have the id {format_value(call_id)}"
            )


def _check_results(found: RuleViolations, where: str, message: JSONObject, calls: set[str]) -> None:
    for call_id, times in Counter(_results(message)).items():
        if call_id not in calls:
            what = f"no call {format_value(call_id)} in the message directly before"
            found.add("result-has-call", where, what)
        elif times > 1:
            found.add(
                "one-result", where, f"call {format_value(call_id)} is answered {times} times"
            )
    indexes = [at for at, _ in _of_type(message, "tool_result")]
    if indexes and indexes[-1] >= len(indexes):
        found.add("results-first", where, "a result comes after other blocks")


def _calls(message: JSONObject) -> Iterator[str]:
    if text_field(message, "role") == "assistant":
        yield from (str(block.get("id")) for _, block in _of_type(message, "tool_use"))


def _results(message: JSONObject) -> Iterator[str]:
    if text_field(message, "role") == "user":
        yield from (str(block.get("tool_use_id")) for _, block in _of_type(message, "tool_result"))


def _check_server_results(found: RuleViolations, where: str, message: JSONObject) -> None:
    made: set[str] = set()
    for at, block in _blocks(message):
        if text_field(block, "type") == "server_tool_use":
            made.add(text_field(block, "id"))
        elif (
            _SERVER_RESULT.fullmatch(text_field(block, "type"))
            and text_field(block, "tool_use_id") not in made
        ):
            what = (
                f"no server call {format_value(block.get('tool_use_id'))} before it in its message"
            )
            found.add("server-result", f"{where}.content[{at}]", what)
