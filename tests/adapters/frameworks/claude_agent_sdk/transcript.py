"""Lines of a transcript, as Claude Code writes them."""

from __future__ import annotations

import itertools
import uuid
from typing import Any, Final

PROJECT: Final = "-home-ada-parcels"
SESSION: Final = "3f1c1f9e-6d0b-4d6e-9a53-0f2d1a7c5b11"
MAIN: Final = {"project_key": PROJECT, "session_id": SESSION}
AGENT: Final = {**MAIN, "subpath": "subagents/agent-a1"}

_seconds = itertools.count()


def line(kind: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """Return a line with an id of its own."""
    number = next(_seconds)
    return {
        "parentUuid": None,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/ada/parcels",
        "sessionId": SESSION,
        "version": "2.1.0",
        "gitBranch": "main",
        "type": kind,
        "uuid": str(uuid.uuid4()),
        "timestamp": f"2026-01-02T03:{number // 60 % 60:02}:{number % 60:02}.250Z",
        **fields,
    }


def said(text: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """Return a line of the user."""
    return line("user", message={"role": "user", "content": text}, **fields)


def reply(
    *blocks: dict[str, Any],
    id: str = "msg_01ABCDEFGHIJKLMNOPQRSTUV",
    **fields: Any,  # noqa: ANN401 - any JSON
) -> dict[str, Any]:
    """Return a line of the model."""
    message = {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [*blocks],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 100,
            "cache_read_input_tokens": 20,
            "output_tokens": 7,
            "service_tier": "standard",
        },
    }
    return line("assistant", message=message, requestId="req_1", **fields)


def text(words: str) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": words}


def whole_transcript() -> list[dict[str, Any]]:
    """Return lines of every kind, in an order that Claude Code writes them in."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "parcel.txt"}
    image = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    return [
        {"type": "queue-operation", "operation": "enqueue", "content": "Where is it?"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {"files": {}}},
        said("Where is my parcel?"),
        line("attachment", attachment={"type": "date", "date": "2026-01-02"}),
        reply({"type": "thinking", "thinking": "Look.", "signature": "c2lnbmVk"}),
        reply(text("I look.")),
        reply(call),
        line(
            "user",
            message={"role": "user", "content": [result]},
            toolUseResult={"stdout": "parcel.txt", "stderr": "", "interrupted": False},
        ),
        reply(text("It is here."), id="msg_01ZZZZZZZZZZZZZZZZZZZZZZ"),
        {"type": "custom-title", "customTitle": "Parcels", "sessionId": SESSION},
        {"type": "tag", "tag": "post", "sessionId": SESSION},
        {"type": "summary", "summary": "A parcel is found", "leafUuid": "x"},
        line(
            "user",
            message={
                "role": "user",
                "content": [text("Like this?"), {"type": "image", "source": image}],
            },
        ),
        line("system", subtype="compact_boundary", content="Compacted", logicalParentUuid="x"),
        said("", isMeta=True),
        line("user", message={"content": "no role"}),
        line("assistant", message={"role": "assistant", "content": 7}),
        line("progress", data={"a": [1, 1.0, True, None, "\ud800", "\x00"]}),
        {"type": "mode", "mode": "plan"},
        {"type": "mode", "mode": "plan"},
    ]
