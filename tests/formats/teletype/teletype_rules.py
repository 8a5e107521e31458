"""The rules of a made-up provider, for the test of the recipe: see `teletype.py` beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from holdfast.testing.legality.payload import (
    JSONObject,
    RuleViolations,
    is_text,
    matches,
    rules_of,
    text_field,
)
from holdfast.values import JSON

_ID: Final = re.compile(r"[a-z0-9_]{1,32}")

RULES: Final = rules_of(
    "teletype",
    ("not-empty", "There is at least one line.", "Made up."),
    ("system-place", "Instructions are a line of the host.", "Made up."),
    ("text", "Every line has a text.", "Made up."),
    ("call-id", "An id has 1 to 32 small letters, digits and `_`.", "Made up."),
    ("call-answered", "Every call is answered.", "Made up."),
    ("result-has-call", "Every answer is to an open call.", "Made up."),
)


def check(found: RuleViolations, messages: Sequence[JSONObject], system: JSON) -> None:
    """Check a list of lines."""
    if not messages:
        found.add("not-empty", "messages", "there is no line")
    if system is not None:
        found.add("system-place", "system", "instructions are a line of the host")
    waiting: set[str] = set()
    for at, line in enumerate(messages):
        where, call, answered = f"messages[{at}]", line.get("call"), line.get("answers")
        if not is_text(line.get("text")):
            found.add("text", where, "there is no text")
        if call is not None and not matches(_ID, call):
            found.add("call-id", where, "the id is not valid")
        if answered is not None and answered not in waiting:
            found.add("result-has-call", where, "there is no call")
        waiting.discard(text_field(line, "answers"))
        waiting |= {call} if isinstance(call, str) else set()
    if waiting:
        found.add("call-answered", "messages", f"no answer to {', '.join(sorted(waiting))}")
