"""Events of every kind, with times that only grow, so that no order depends on a clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any, Final

from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.genai import types

KEY: Final = "desk/ada/one"
ONE: Final[dict[str, Any]] = {"app_name": "desk", "user_id": "ada", "session_id": "one"}
# Later than any session is created in a test.
START: Final = 4_000_000_000.5


def said(text: str, author: str = "user", **fields: object) -> Event:
    """Return an event with a text."""
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(**{"author": author, "invocation_id": "run", "content": content} | fields)


def noted(**fields: object) -> Event:
    """Return an event that says nothing."""
    return Event(**{"author": "helper", "invocation_id": "run"} | fields)


class EventMaker:
    """Makes random events; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._numbers = count(1)

    def next(self) -> Event:
        """Return an event with a content, or without."""
        number = next(self._numbers)
        author = self._chance.choice(["user", "root", "helper"])
        fields: dict[str, Any] = {
            "id": f"event-{number}",
            "timestamp": START + number,
            "invocation_id": f"run-{number // 4}",
            "author": author,
            "actions": self._actions(),
        }
        if self._chance.random() < 0.75:
            parts = [*self._parts(author)]
            role = self._chance.choice(["user" if author == "user" else "model"] * 4 + [None])
            fields["content"] = types.Content(role=role, parts=parts)
            fields["long_running_tool_ids"] = {
                part.function_call.id for part in parts if part.function_call
            } or None
        return Event(**fields, **dict(self._details()))

    def state(self) -> dict[str, Any]:
        """Return a change of state, of all prefixes."""
        prefixes = ["", "", "app:", "user:", "temp:"]
        return {
            self._chance.choice(prefixes) + self._chance.choice("abc/%:"): self._value()
            for _ in range(self._chance.randrange(4))
        }

    def _value(self) -> object:
        values: list[object] = [
            None,
            True,
            0,
            1.0,
            0.1 + 0.2,
            2**70,
            "",
            "ü\n😀",
            [1, [None]],
            {"a": {}},
        ]
        return self._chance.choice(values)

    def _actions(self) -> EventActions:
        made = EventActions(state_delta=self.state())
        if self._chance.random() < 0.2:
            made.artifact_delta = {"report.md": 3}
            made.transfer_to_agent = "helper"
            made.escalate = True
            made.agent_state = {"step": [1, None]}
        if self._chance.random() < 0.1:
            content = types.Content(role="model", parts=[types.Part(text="so far")])
            made.compaction = EventCompaction(
                start_timestamp=1.0, end_timestamp=2.0, compacted_content=content
            )
        return made

    def _parts(self, author: str) -> Iterator[types.Part]:
        if author == "helper" and self._chance.random() < 0.3:
            yield types.Part.from_function_response(
                name="look", response={"rows": [1, 2.5, None], "text": self._value()}
            )
            return
        for _ in range(self._chance.randrange(1, 4)):
            yield self._part()

    def _part(self) -> types.Part:
        call = types.FunctionCall(id=f"call-{self._chance.random()}", name="look", args={"at": 1})
        code = types.ExecutableCode(code="1+1", language=types.Language.PYTHON)
        return self._chance.choice(
            [
                types.Part(text=f"text {self._chance.random()}"),
                types.Part(text="", thought_signature=b"\xfb\xff"),
                types.Part(text="hm", thought=True, thought_signature=b"\x00\xfe"),
                types.Part(function_call=call, thought_signature=b"sign"),
                types.Part.from_bytes(data=b"\xff\xfb?>" * 9, mime_type="image/png"),
                types.Part.from_uri(file_uri="gs://bucket/a.pdf", mime_type="application/pdf"),
                types.Part(executable_code=code),
            ]
        )

    def _details(self) -> Iterator[tuple[str, Any]]:
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=7, candidates_token_count=5, thoughts_token_count=2
        )
        details: dict[str, Any] = {
            "branch": "root.helper",
            "usage_metadata": usage,
            "model_version": "gemini-9",
            "error_code": "MAX_TOKENS",
            "error_message": "too long",
            "turn_complete": True,
            "interrupted": True,
            "custom_metadata": {"$": ["a", {"b": None}], "author": "nobody"},
            "finish_reason": types.FinishReason.STOP,
            "grounding_metadata": types.GroundingMetadata(web_search_queries=["a", "b"]),
            "output_transcription": types.Transcription(text="spoken", finished=True),
            "avg_logprobs": -0.125,
        }
        for name, value in details.items():
            if self._chance.random() < 0.15:
                yield name, value
