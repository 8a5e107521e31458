"""The published rules, and the source of each.

A source is a page of the provider's documentation (by its title), the request types of the
provider's own Python package, or the text of the API's error, as users report it.
Where the sources differ in strictness, the stricter one counts: a window has to suit every model
of its provider. Rules marked "ours" go beyond what is published, and state why.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Rule(msgspec.Struct, frozen=True):
    """A rule of one provider: its name in sentences, what it requires, and its source."""

    provider: str
    name: str
    says: str
    source: str


def _rules_of(provider: str, *rows: tuple[str, str, str]) -> tuple[Rule, ...]:
    return tuple(Rule(provider, *row) for row in rows)


_OPENAI: Final = _rules_of(
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

_RESPONSES: Final = _rules_of(
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

_ANTHROPIC: Final = _rules_of(
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

_GEMINI: Final = _rules_of(
    "gemini",
    ("not-empty", "There is at least one content.", 'Error: "contents is not specified".'),
    (
        "system-place",
        "Instructions are a content with text parts, in a field of their own.",
        "API reference, GenerateContentRequest, `system_instruction`: currently, text only.",
    ),
    (
        "role",
        "Roles are user and model.",
        'Request types, Content; error: "Please use a valid role: user, model".',
    ),
    (
        "fields",
        "A content has a role and parts and nothing else.",
        'Error: "Invalid JSON payload received. Unknown name … Cannot find field".',
    ),
    (
        "first-user",
        "The first content is the user's.",
        (
            'Error: "Please ensure that function call turn comes immediately after a user turn or '
            'after a function response turn". Ours where the model only talks.'
        ),
    ),
    (
        "alternate",
        "User and model take turns.",
        (
            'Error: "Please ensure that multiturn requests alternate between user and model". '
            "Ours by "
            "now for plain text; function calls still have to follow a user's content."
        ),
    ),
    (
        "parts",
        "Every content has parts.",
        'Error: "contents.parts must not be empty", "must include at least one parts field".',
    ),
    (
        "part-data",
        "A part holds exactly one thing.",
        (
            "Request types, Part; error: \"required oneof field 'data' must have one initialized "
            'field".'
        ),
    ),
    (
        "part-shape",
        "Inline data has a type and bytes, a file an address, text is text.",
        "Request types.",
    ),
    (
        "text-empty",
        "No empty text, except one that carries a thought's signature.",
        (
            'Error: "Unable to submit request because it has an empty text parameter"; guide, '
            "Thought "
            "signatures, for the exception."
        ),
    ),
    ("call-place", "Models call, users answer.", "Guide, Function calling."),
    (
        "call-name",
        "A name begins with a letter or `_`, and has up to 64 letters, digits, `_.:-`.",
        (
            'Error: "Invalid function name. Must start with a letter or an underscore … with '
            "a maximum "
            'length of 64" (128 in the newest request types).'
        ),
    ),
    ("call-args", "Arguments are an object.", "Request types, FunctionCall."),
    ("response-object", "A response is an object.", "Request types, FunctionResponse."),
    (
        "same-number",
        "As many responses directly after as there are calls.",
        (
            'Error: "Please ensure that the number of function response parts is equal to the '
            "number "
            'of function call parts of the function call turn".'
        ),
    ),
    (
        "result-has-call",
        "Responses come directly after a content with calls.",
        (
            'Error: "Please ensure that function response turn comes immediately after a function '
            'call turn".'
        ),
    ),
    (
        "same-names",
        "The responses name the functions that were called.",
        "Request types, FunctionResponse: the name matches FunctionCall.name.",
    ),
    (
        "same-ids",
        "Where calls have ids, the responses give them.",
        "Request types, FunctionResponse: the id matches the corresponding function call's id.",
    ),
    ("call-id-unique", "The calls of one content have different ids.", "Request types."),
)

RULES: Final = (*_OPENAI, *_RESPONSES, *_ANTHROPIC, *_GEMINI)
