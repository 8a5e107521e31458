"""Which items of the OpenAI Responses API may be sent together.

The service recognizes the items it made by their ids, and rejects one whose required items are
missing: "Item 'fc_…' of type 'function_call' was provided without its required 'reasoning' item",
and the same for messages and built-in tools; "Item 'rs_…' of type 'reasoning' was provided without
its required following item"; "No tool output found for …". So, for the messages of one window:

* messages and calls of the model keep their item's id if reasoning of the same run of items is sent
  before them, and lose it otherwise: an item without an id is new to the service and requires
  nothing. Whether reasoning never existed or was omitted cannot be distinguished;
* items of built-in tools must have their ids. They are sent after their reasoning, or in a run that
  has no reasoning and from which nothing was omitted;
* reasoning is sent only if the item it led to directly follows;
* a built-in tool that the client runs (a computer, a shell) is sent with its output, or not at all;
* a result is of the kind of its call: the result of a custom tool is a different item;
* no item is sent twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from holdfast.formats.common import JSONObject, raw_object
from holdfast.formats.openai_passthrough import with_notes
from holdfast.values import JSON, File, Message, Part, Raw, Text, ToolCall, ToolResult

SOURCE: Final = "openai-responses"

_CUSTOM: Final = "custom_tool_call"
_CUSTOM_OUTPUT: Final = "custom_tool_call_output"
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PREFIXES: Final[Mapping[str, str]] = {"function_call": "fc", _CUSTOM: "ctc", "assistant": "msg"}
# Built-in tools that the client runs: the type of the output, and the field that holds the id in
# the call and in the output.
_CLIENT_TOOLS: Final[Mapping[str, tuple[str, str, str]]] = {
    "apply_patch_call": ("apply_patch_call_output", "call_id", "call_id"),
    "computer_call": ("computer_call_output", "call_id", "call_id"),
    "local_shell_call": ("local_shell_call_output", "call_id", "id"),
    "mcp_approval_request": ("mcp_approval_response", "id", "approval_request_id"),
    "shell_call": ("shell_call_output", "call_id", "call_id"),
}
_CLIENT_TOOL_OUTPUTS: Final = {
    output: (kind, key) for kind, (output, _, key) in _CLIENT_TOOLS.items()
}


def make_compatible(messages: Sequence[Message]) -> list[Message]:
    """Return the messages, in sending order, without the items that the service would reject."""
    paired = _drop_unfollowed_reasoning(_drop_unpaired(messages))
    # An omitted item may leave its output, or its reasoning, without a counterpart.
    accepted = _drop_unfollowed_reasoning(_drop_unpaired(_ItemFilter().filter(paired)))
    return _match_result_kinds(accepted)


def _item(part: Part) -> JSONObject | None:
    """Return the item that a part keeps verbatim."""
    return raw_object(part, "item") if isinstance(part, Raw) and part.source == SOURCE else None


def _is_reasoning(part: Part) -> bool:
    item = _item(part)
    return item is not None and item.get("type") == "reasoning"


def _is_sent(part: Part) -> bool:
    """True if a part is sent as an item, or as a piece of one."""
    if isinstance(part, Raw):
        kept = part.source == SOURCE and raw_object(part, "content") is not None
        return kept or _item(part) is not None
    return isinstance(part, Text | File | ToolCall | ToolResult)


def _follows(message: Message, before: Message) -> bool:
    """True if the two messages are adjacent in the history."""
    return message.seq is not None and before.seq is not None and message.seq == before.seq + 1


# ----------------------------------------------------------------------------- calls and outputs


def _drop_unpaired(messages: Sequence[Message]) -> list[Message]:
    """Omit calls of client-run tools without an output, and outputs without a call."""
    paired = _paired_parts(messages)
    kept: list[Message] = []
    for message in messages:
        parts: list[Part] = []
        for part in message.parts:
            item = _item(part) or {}
            if _call_key(item) is not None and id(part) not in paired:
                while parts and _is_reasoning(parts[-1]):
                    parts.pop()  # The call it led to is omitted.
            if _pair_key(item) is None or id(part) in paired:
                parts.append(part)
        if parts or not message.parts:
            kept.append(message.with_parts(parts))
    return kept


def _paired_parts(messages: Sequence[Message]) -> set[int]:
    """Return the `id()` of each part that is a call with an output after it, or that output."""
    waiting: dict[tuple[str, str], int] = {}
    paired: set[int] = set()
    for part in (part for message in messages for part in message.parts):
        item = _item(part) or {}
        pair = _pair_key(item)
        if pair is not None and _call_key(item) is not None:
            waiting[pair] = id(part)
        elif pair in waiting:
            paired |= {waiting.pop(pair), id(part)}
    return paired


def _pair_key(item: JSONObject) -> tuple[str, str] | None:
    """Return the key that a call and its output share; None for other items."""
    return _call_key(item) or _output_key(item)


def _call_key(item: JSONObject) -> tuple[str, str] | None:
    """Return the key of an item that is a call of a client-run tool."""
    kind = str(item.get("type"))
    return (kind, str(item.get(_CLIENT_TOOLS[kind][1]))) if kind in _CLIENT_TOOLS else None


def _output_key(item: JSONObject) -> tuple[str, str] | None:
    kind, key = _CLIENT_TOOL_OUTPUTS.get(str(item.get("type")), ("", ""))
    return (kind, str(item.get(key))) if kind else None


def _match_result_kinds(messages: Sequence[Message]) -> list[Message]:
    """Make each result of the kind of its call, whichever provider produced it."""
    custom = {
        part.id
        for message in messages
        for part, more in with_notes(message.parts, SOURCE)
        if isinstance(part, ToolCall) and more.get("of") == _CUSTOM
    }
    return [message.with_parts(_with_result_kind(message.parts, custom)) for message in messages]


def _with_result_kind(parts: Sequence[Part], custom: set[str]) -> list[Part]:
    kept: list[Part] = []
    for part, following in pairwise((*parts, None)):
        if part is None:
            continue
        result = kept[-1] if kept and isinstance(kept[-1], ToolResult) else None
        if result is not None and _is_output_note(part):
            if (result.call_id in custom) == (_note_kind(part) == _CUSTOM_OUTPUT):
                kept.append(part)
            continue
        kept.append(part)
        if (
            isinstance(part, ToolResult)
            and part.call_id in custom
            and not _is_custom_output_note(following)
        ):
            kept.append(Raw(SOURCE, {"part": {}, "of": _CUSTOM_OUTPUT}))
    return kept


def _is_output_note(part: Part) -> bool:
    return isinstance(part, Raw) and part.source == SOURCE and raw_object(part, "part") is not None


def _is_custom_output_note(part: Part | None) -> bool:
    return part is not None and _is_output_note(part) and _note_kind(part) == _CUSTOM_OUTPUT


def _note_kind(part: Part) -> JSON:
    return part.data.get("of") if isinstance(part, Raw) and isinstance(part.data, dict) else None


# ------------------------------------------------------------------------------------- reasoning


def _drop_unfollowed_reasoning(messages: Sequence[Message]) -> list[Message]:
    """Omit reasoning that is not directly followed by the item it led to."""
    kept: list[Message] = []
    followed, following = False, None
    for message in reversed(messages):
        if message.role != "assistant" or following is None or not _follows(following, message):
            followed = False
        parts: list[Part] = []
        for part in reversed(message.parts):
            if _is_reasoning(part) and not followed:
                continue
            parts.append(part)
            followed = followed or _is_sent(part)
        followed = followed and message.role == "assistant"
        kept.append(message.with_parts(parts[::-1]))
        following = message
    return kept[::-1]


class _ItemFilter:
    """Removes the ids, and the items, of a window whose required items are not sent."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._has_reasoning = False  # Reasoning of this run is sent.
        self._is_complete = False  # Nothing of this run is omitted.

    def filter(self, messages: Sequence[Message]) -> list[Message]:
        kept: list[Message] = []
        before: Message | None = None
        for message in messages:
            self._update_run(message, before)
            parts = tuple(self._parts(message))
            if parts or not message.parts:
                kept.append(message.with_parts(parts))
            before = message
        return kept

    def _update_run(self, message: Message, before: Message | None) -> None:
        """Reset the run's state unless a message continues the run of the one before."""
        if before is None:
            self._has_reasoning, self._is_complete = False, False
        elif message.role != "assistant" or before.role != "assistant":
            self._has_reasoning = False
            self._is_complete = before.role == "tool" or _follows(message, before)
        elif not _follows(message, before):
            self._has_reasoning, self._is_complete = False, False

    def _parts(self, message: Message) -> Iterable[Part]:
        for part in message.parts:
            if not isinstance(part, Raw) or part.source != SOURCE:
                yield part
            elif (item := _item(part)) is not None:
                if self._keeps_item(item):
                    yield part
            else:
                yield self._note(part, by_the_model=message.role == "assistant")

    def _keeps_item(self, item: JSONObject) -> bool:
        """True if a verbatim item can be sent."""
        id, is_reasoning = item.get("id"), item.get("type") == "reasoning"
        if isinstance(id, str) and id in self._seen:
            self._has_reasoning = False
            return False
        if not is_reasoning and not (
            self._has_reasoning or self._is_complete or _is_client_item(item)
        ):
            return False
        if isinstance(id, str):
            self._seen.add(id)
        self._has_reasoning = self._has_reasoning or is_reasoning
        return True

    def _note(self, part: Raw, *, by_the_model: bool) -> Raw:
        """Return an item's note without the id if that must not be sent."""
        for key in ("part", "fields"):
            fields = raw_object(part, key)
            if fields is not None and "id" in fields and isinstance(part.data, dict):
                if self._is_sendable(fields["id"], _note_kind(part), by_the_model=by_the_model):
                    return part
                bare = {name: value for name, value in fields.items() if name != "id"}
                return Raw(SOURCE, {**part.data, key: bare})
        return part

    def _is_sendable(self, id: JSON, of: JSON, *, by_the_model: bool) -> bool:
        if not isinstance(id, str) or id in self._seen or not _ID.fullmatch(id):
            return False
        if by_the_model and not (self._has_reasoning and id.startswith(_PREFIXES.get(str(of), ""))):
            return False
        self._seen.add(id)
        return True


def _is_client_item(item: JSONObject) -> bool:
    """True if an item comes from the client, not from the model."""
    kind = str(item.get("type"))
    return kind.endswith(("_output", "_response")) or kind in {
        "None",
        "additional_tools",
        "compaction_trigger",
        "configuration_update",
        "item_reference",
    }
