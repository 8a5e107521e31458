"""The rules of the Gemini API for a list of contents.

User and model alternate. A content is a role and a list of parts, each of exactly one kind. The
function calls of a model's content are answered in the next content, one response for each call, by
name, and by id if the call has one. The API accepts two spellings of each field, `functionCall` and
`function_call`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from holdfast.testing.legality.payload import (
    JSONObject,
    RuleViolations,
    as_object,
    format_value,
    is_list,
    is_text,
    matches,
    objects_in,
    rules_of,
    text_field,
)
from holdfast.values import JSON

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_DATA_FIELDS: Final = (
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
_CAPITAL: Final = re.compile(r"([A-Z])")

RULES: Final = rules_of(
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


def check(found: RuleViolations, messages: Sequence[JSONObject], system: JSON) -> None:
    """Check a list of contents, and the instructions beside it."""
    if not messages:
        found.add("not-empty", "messages", "there is no content")
    _check_system(found, system)
    for at, content in enumerate(messages):
        _check_content(found, f"messages[{at}]", content)
    _check_turns(found, messages)
    _check_exchanges(found, messages)


def _get(thing: JSONObject, field: str) -> JSON:
    """Return a field, written in either way."""
    if field in thing:
        return thing[field]
    return thing.get(_CAPITAL.sub(r"_\1", field).lower())


def _of_kind(content: JSONObject, field: str) -> list[JSONObject]:
    """Return what the parts of a content hold in one field."""
    held = [_get(part, field) for _, part in objects_in(content.get("parts"))]
    return [as_object(thing) for thing in held if thing is not None]


# --------------------------------------------------------------------------- contents and turns


def _check_system(found: RuleViolations, system: JSON) -> None:
    if system is None:
        return
    parts = objects_in(as_object(system).get("parts"))
    texts = [system] if isinstance(system, str) else [part.get("text") for _, part in parts]
    if not texts or not all(is_text(text) for text in texts):
        found.add("system-place", "system", "instructions are a content with text parts only")


def _check_turns(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    roles = [text_field(content, "role") for content in messages]
    if roles and roles[0] == "model":
        found.add("first-user", "messages[0]", "the first content is not the user's")
    for at in range(1, len(roles)):
        if roles[at] == roles[at - 1] and roles[at] in {"user", "model"}:
            found.add("alternate", f"messages[{at}]", f"a second {roles[at]} content in a row")


def _check_content(found: RuleViolations, where: str, content: JSONObject) -> None:
    role = text_field(content, "role")
    if role not in {"user", "model"}:
        found.add("role", where, f"no content has the role {format_value(role)}")
    for field in content:
        if field not in {"role", "parts"}:
            found.add("fields", where, f"a content has no field {format_value(field)}")
    parts = content.get("parts")
    if not is_list(parts) or not parts:
        found.add("parts", where, "the content has no parts")
    for at, part in objects_in(parts):
        _check_part(found, f"{where}.parts[{at}]", role, part)


# --------------------------------------------------------------------------------------- parts


def _check_part(found: RuleViolations, where: str, role: str, part: JSONObject) -> None:
    held = [field for field in _DATA_FIELDS if _get(part, field) is not None]
    if len(held) != 1:
        what = " and ".join(held) if held else "nothing"
        found.add("part-data", where, f"a part holds exactly one thing, and this one {what}")
        return
    thing = _get(part, held[0])
    if held[0] == "text":
        _check_text(found, where, part)
    elif held[0] == "functionCall":
        _check_call(found, where, role, as_object(thing))
    elif held[0] == "functionResponse":
        _check_response(found, where, role, as_object(thing))
    elif held[0] == "inlineData":
        blob = as_object(thing)
        if not is_text(_get(blob, "mimeType")) or not _get(blob, "data"):
            found.add("part-shape", where, "inline data needs a MIME type and data")
    elif held[0] == "fileData" and not is_text(_get(as_object(thing), "fileUri")):
        found.add("part-shape", where, "a file needs its address")


def _check_text(found: RuleViolations, where: str, part: JSONObject) -> None:
    if not isinstance(part["text"], str):
        found.add("part-shape", where, "text is not text")
    elif not part["text"] and not _get(part, "thoughtSignature"):
        # A signature may come alone, in a part whose text is empty, and is sent back like that.
        found.add("text-empty", where, "the text is empty")


def _check_call(found: RuleViolations, where: str, role: str, call: JSONObject) -> None:
    if role == "user":
        found.add("call-place", where, "a user calls no function")
    if not matches(_NAME, call.get("name")):
        found.add("call-name", where, f"{format_value(call.get('name'))} cannot name a function")
    if not isinstance(call.get("args"), dict | None):
        found.add("call-args", where, "args is not an object")


def _check_response(found: RuleViolations, where: str, role: str, response: JSONObject) -> None:
    if role == "model":
        found.add("call-place", where, "a model answers no function call")
    if not isinstance(response.get("response"), dict):
        found.add("response-object", where, "response is not an object")


# --------------------------------------------------------------------------- calls and responses


def _check_exchanges(found: RuleViolations, messages: Sequence[JSONObject]) -> None:
    for at in range(len(messages) + 1):
        before = messages[at - 1] if at else {}
        here = messages[at] if at < len(messages) else {}
        calls = _of_kind(before, "functionCall") if text_field(before, "role") == "model" else []
        answers = _of_kind(here, "functionResponse") if text_field(here, "role") == "user" else []
        _check_exchange(found, at, calls, answers)


def _check_exchange(
    found: RuleViolations, at: int, calls: Sequence[JSONObject], answers: Sequence[JSONObject]
) -> None:
    """Check the responses of content `at` against the calls of the content before it."""
    if answers and not calls:
        what = "it holds a function response, and the content before calls none"
        found.add("result-has-call", f"messages[{at}]", what)
        return
    if len(answers) != len(calls):
        what = f"{len(calls)} calls, and {len(answers)} responses directly after"
        found.add("same-number", f"messages[{at - 1}]", what)
        return
    if Counter(_name(call) for call in calls) != Counter(_name(answer) for answer in answers):
        found.add("same-names", f"messages[{at}]", "the responses name other functions")
    given = [call["id"] for call in calls if is_text(call.get("id"))]
    if len(set(map(str, given))) != len(given):
        found.add("call-id-unique", f"messages[{at - 1}]", "two calls have one id")
    elif given and Counter(map(str, given)) != Counter(
        str(answer["id"]) for answer in answers if is_text(answer.get("id"))
    ):
        found.add("same-ids", f"messages[{at}]", "the responses give other ids than the calls")


def _name(thing: JSONObject) -> str:
    return str(thing.get("name"))
