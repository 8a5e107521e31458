"""Writes the recorded conversations: requests as the providers' own packages make them.

Each conversation is built with the package's types, replies as replies and requests as requests,
and assembled as agents do it: each reply is dumped and appended. Nothing in them depends on the
date or the machine.

    python -m tests.formats.record     # writes tests/formats/recorded/*.json
"""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from anthropic.types import Message as AnthropicReply
from anthropic.types.assistant_message_param import AssistantMessageParam
from anthropic.types.user_message_param import UserMessageParam
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionMessageParam,
    ChatCompletionMessage,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.responses import (
    EasyInputMessageParam,
    Response,
    ResponseCustomToolCallOutputParam,
)
from openai.types.responses.response_input_item_param import ComputerCallOutput, FunctionCallOutput
from pydantic import BaseModel

from tests.formats.genai import types as genai

RECORDED = Path(__file__).parent / "recorded"

Conversation = list[dict[str, Any]]

_PNG_BYTES = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
_PNG = b64encode(_PNG_BYTES).decode()
_PDF = b64encode(b"%PDF-1.4\n%%EOF\n").decode()
_WAV = b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt ").decode()


def _dumped(reply: BaseModel) -> dict[str, Any]:
    return reply.model_dump(mode="json", exclude_unset=True)


# ------------------------------------------------------------------------------ chat completions


def _says(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """A reply, dumped as the examples of the package do it."""
    return _dumped(ChatCompletionMessage.model_validate({"role": "assistant", **fields}))


def _calls(*calls: tuple[str, str, dict[str, Any]], content: str | None = None) -> dict[str, Any]:
    return _says(
        content=content,
        tool_calls=[
            {
                "id": id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for id, name, arguments in calls
        ],
    )


def openai_agent() -> Conversation:
    """Names, parallel and custom tools, images, a file, sound, a refusal, citations."""
    return [
        dict(ChatCompletionSystemMessageParam(role="system", content="You plan journeys.")),
        dict(
            ChatCompletionUserMessageParam(
                role="user", name="Ada", content="Oslo or Bergen this weekend?"
            )
        ),
        _calls(
            ("call_oslo", "get_weather", {"city": "Oslo", "days": 2}),
            ("call_bergen", "get_weather", {"city": "Bergen", "days": 2}),
        ),
        dict(
            ChatCompletionToolMessageParam(
                role="tool", tool_call_id="call_oslo", content='{"sky":"clear","max":4.5}'
            )
        ),
        dict(
            ChatCompletionToolMessageParam(
                role="tool",
                tool_call_id="call_bergen",
                content=[
                    {"type": "text", "text": "rain"},
                    {"type": "text", "text": "and more rain"},
                ],
            )
        ),
        _says(content="Oslo: it stays clear there.", refusal=None),
        dict(
            ChatCompletionUserMessageParam(
                role="user",
                content=[
                    {"type": "text", "text": "Is this the station, and this my ticket?"},
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "high"},
                    },
                    {"type": "image_url", "image_url": {"url": "https://a.example/oslo.jpg"}},
                    {
                        "type": "file",
                        "file": {
                            "filename": "ticket.pdf",
                            "file_data": f"data:application/pdf;base64,{_PDF}",
                        },
                    },
                ],
            )
        ),
        _says(
            content="Yes, Oslo S; and the ticket is for Saturday.",
            annotations=[
                {
                    "type": "url_citation",
                    "url_citation": {
                        "start_index": 5,
                        "end_index": 11,
                        "title": "Oslo S",
                        "url": "https://a.example/oslo-s",
                    },
                }
            ],
        ),
        dict(
            ChatCompletionUserMessageParam(
                role="user",
                content=[{"type": "input_audio", "input_audio": {"data": _WAV, "format": "wav"}}],
            )
        ),
        _says(content=None, refusal="I cannot listen to other people's calls."),
        dict(ChatCompletionUserMessageParam(role="user", content="Sorry. Route to the hut, then?")),
        dict(
            ChatCompletionAssistantMessageParam(
                role="assistant",
                content="I ask the planner.",
                tool_calls=[
                    {
                        "id": "call_plan",
                        "type": "custom",
                        "custom": {"name": "planner", "input": "FROM oslo TO hut\nBY train"},
                    }
                ],
            )
        ),
        dict(
            ChatCompletionToolMessageParam(
                role="tool", tool_call_id="call_plan", content="09:12 from platform 4"
            )
        ),
        _says(content="Take the 09:12 from platform 4."),
        dict(
            ChatCompletionDeveloperMessageParam(role="developer", content="Answer in one sentence.")
        ),
        dict(ChatCompletionUserMessageParam(role="user", name="Ada", content="And back?")),
    ]


def openai_legacy() -> Conversation:
    """Function calls of the first kind, which have no ids, with one function called twice."""
    return [
        dict(ChatCompletionUserMessageParam(role="user", content="What is the weather in Paris?")),
        _says(
            content=None,
            function_call={"name": "get_weather", "arguments": '{\n  "city": "Paris"\n}'},
        ),
        dict(
            ChatCompletionFunctionMessageParam(
                role="function", name="get_weather", content='{"degrees": 21}'
            )
        ),
        _says(content="21 degrees."),
        dict(ChatCompletionUserMessageParam(role="user", content="And in Rome?")),
        _says(
            content="Let me see.",
            function_call={"name": "get_weather", "arguments": '{"city":"Rome"}'},
        ),
        dict(ChatCompletionFunctionMessageParam(role="function", name="get_weather", content="28")),
        _says(content="28 degrees."),
        dict(ChatCompletionUserMessageParam(role="user", content="Thank you!")),
    ]


# ------------------------------------------------------------------------------------- responses


def _output(*items: dict[str, Any]) -> Conversation:
    """The output of a response, dumped to go into the next input."""
    response = Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_790_000_000,
            "model": "gpt-5",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "output": list(items),
        }
    )
    return [_dumped(item) for item in response.output]


def _reasoning(id: str, *summary: str) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": id,
        "summary": [{"type": "summary_text", "text": text} for text in summary],
        "encrypted_content": f"gAAAAAB{id}",
    }


def _message(id: str, text: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "message",
        "id": id,
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": list(annotations)}],
    }


def _function_call(id: str, call_id: str, name: str, **arguments: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": id,
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
    }


def responses_reasoning() -> Conversation:
    """A model that reasons: parallel and custom tools, a search, citations, files, a refusal."""
    cited = {
        "type": "url_citation",
        "start_index": 0,
        "end_index": 6,
        "title": "Huts",
        "url": "https://a.example/huts",
    }
    return [
        dict(EasyInputMessageParam(role="developer", content="You plan journeys.")),
        dict(EasyInputMessageParam(role="user", content="Oslo or Bergen?")),
        *_output(
            _reasoning("rs_01", "Both need the weather."),
            _function_call("fc_01", "call_oslo", "get_weather", city="Oslo"),
            _function_call("fc_02", "call_bergen", "get_weather", city="Bergen"),
        ),
        dict(FunctionCallOutput(type="function_call_output", call_id="call_oslo", output="clear")),
        dict(
            FunctionCallOutput(
                type="function_call_output",
                call_id="call_bergen",
                output=[
                    {"type": "input_text", "text": "rain, see the radar"},
                    {
                        "type": "input_image",
                        "image_url": f"data:image/png;base64,{_PNG}",
                        "detail": "auto",
                    },
                ],
            )
        ),
        *_output(_reasoning("rs_02"), _message("msg_01", "Oslo.")),
        dict(
            EasyInputMessageParam(
                type="message",
                role="user",
                content=[
                    {"type": "input_text", "text": "Find the hut on this map."},
                    {
                        "type": "input_image",
                        "image_url": f"data:image/png;base64,{_PNG}",
                        "detail": "high",
                    },
                    {
                        "type": "input_file",
                        "filename": "map.pdf",
                        "file_data": f"data:application/pdf;base64,{_PDF}",
                    },
                ],
            )
        ),
        *_output(
            _reasoning("rs_03", "A search first.", "Then compare."),
            {
                "type": "web_search_call",
                "id": "ws_01",
                "status": "completed",
                "action": {"type": "search", "query": "huts near Oslo"},
            },
            _reasoning("rs_04"),
            _message("msg_02", "The hut is at Kikut.", cited),
        ),
        dict(EasyInputMessageParam(role="user", content="Plan the way there.")),
        *_output(
            _reasoning("rs_05"),
            {
                "type": "custom_tool_call",
                "id": "ctc_01",
                "call_id": "call_plan",
                "name": "planner",
                "input": "FROM oslo\nTO kikut",
            },
        ),
        dict(
            ResponseCustomToolCallOutputParam(
                type="custom_tool_call_output", call_id="call_plan", output="two hours on foot"
            )
        ),
        *_output(
            _reasoning("rs_06", "It is dark."),
            {
                "type": "message",
                "id": "msg_03",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "refusal", "refusal": "I do not send people out at night."}],
            },
        ),
        dict(EasyInputMessageParam(role="user", content="In the morning, of course.")),
    ]


def responses_hosted() -> Conversation:
    """A model that does not reason, with the service's own tools and a computer."""
    return [
        dict(EasyInputMessageParam(role="user", content="What do our notes say of the hut?")),
        *_output(
            {
                "type": "file_search_call",
                "id": "fs_01",
                "status": "completed",
                "queries": ["hut"],
                "results": [
                    {"file_id": "file_1", "filename": "notes.md", "score": 0.9, "text": "Closed."}
                ],
            },
            _message(
                "msg_11",
                "It is closed.",
                {"type": "file_citation", "file_id": "file_1", "filename": "notes.md", "index": 12},
            ),
        ),
        dict(EasyInputMessageParam(role="user", content="How many days until May? Compute it.")),
        *_output(
            {
                "type": "code_interpreter_call",
                "id": "ci_01",
                "status": "completed",
                "code": "print(167)",
                "container_id": "cntr_1",
                "outputs": [{"type": "logs", "logs": "167\n"}],
            },
            _message("msg_12", "167 days."),
        ),
        dict(EasyInputMessageParam(role="user", content="Book it on their page.")),
        *_output(
            {
                "type": "computer_call",
                "id": "cu_01",
                "call_id": "call_screen",
                "status": "completed",
                "pending_safety_checks": [],
                "action": {"type": "screenshot"},
            },
        ),
        dict(
            ComputerCallOutput(
                type="computer_call_output",
                call_id="call_screen",
                output={
                    "type": "computer_screenshot",
                    "image_url": f"data:image/png;base64,{_PNG}",
                },
            )
        ),
        *_output(
            _message("msg_13", "I ask for the price first."),
            _function_call("fc_11", "call_price", "get_price", hut="Kikut"),
        ),
        dict(FunctionCallOutput(type="function_call_output", call_id="call_price", output="90")),
        *_output(_message("msg_14", "90 a night.")),
        dict(EasyInputMessageParam(role="user", content="Too much.")),
    ]


# ------------------------------------------------------------------------------------- anthropic


def _reply(*content: dict[str, Any]) -> dict[str, Any]:
    """A reply, of which role and content go into the next request."""
    reply = AnthropicReply.model_validate(
        {
            "id": "msg_01",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 10},
            "content": list(content),
        }
    )
    return {"role": reply.role, "content": [_dumped(block) for block in reply.content]}


def anthropic_thinking() -> Conversation:
    """Signed and redacted thinking, parallel tools, errors, images, documents, citations."""
    return [
        dict(UserMessageParam(role="user", content="Oslo or Bergen?")),
        _reply(
            {"type": "thinking", "thinking": "Both need the weather.", "signature": "c2lnLTE="},
            {"type": "text", "text": "I look at both."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {"city": "?"}},
        ),
        dict(
            UserMessageParam(
                role="user",
                content=[
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [
                            {"type": "text", "text": "clear, see the radar"},
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": _PNG,
                                },
                            },
                        ],
                    },
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": "no such city",
                        "is_error": True,
                        "cache_control": {"type": "ephemeral"},
                    },
                ],
            )
        ),
        _reply({"type": "text", "text": "Oslo is clear."}),
        dict(
            UserMessageParam(
                role="user",
                content=[
                    {
                        "type": "document",
                        "source": {
                            "type": "base64",
                            "media_type": "application/pdf",
                            "data": _PDF,
                        },
                        "title": "map.pdf",
                        "citations": {"enabled": True},
                        "cache_control": {"type": "ephemeral", "ttl": "1h"},
                    },
                    {
                        "type": "image",
                        "source": {"type": "url", "url": "https://a.example/hut.png"},
                    },
                    {"type": "text", "text": "Where is the hut?"},
                ],
            )
        ),
        _reply(
            {"type": "text", "text": "The map says "},
            {
                "type": "text",
                "text": "it is at Kikut",
                "citations": [
                    {
                        "type": "page_location",
                        "cited_text": "Kikut",
                        "document_index": 0,
                        "document_title": "map.pdf",
                        "start_page_number": 1,
                        "end_page_number": 2,
                        "file_id": None,
                    }
                ],
            },
            {"type": "text", "text": "."},
        ),
        dict(UserMessageParam(role="user", content=[{"type": "text", "text": "Book it."}])),
        _reply(
            {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
            {"type": "thinking", "thinking": "The price first.", "signature": "c2lnLTI="},
            {"type": "tool_use", "id": "toolu_3", "name": "get_price", "input": {}},
        ),
        dict(
            UserMessageParam(
                role="user",
                content=[
                    {"type": "tool_result", "tool_use_id": "toolu_3", "content": "90"},
                    {"type": "text", "text": "Only if it is under 100."},
                ],
            )
        ),
        dict(AssistantMessageParam(role="assistant", content="It is 90: booked.")),
        dict(UserMessageParam(role="user", content="Thank you!")),
    ]


def anthropic_server_tools() -> Conversation:
    """The service's own search, its results cited, and search results of one's own."""
    return [
        dict(UserMessageParam(role="user", content="What is new in Oslo?")),
        _reply(
            {"type": "text", "text": "I search."},
            {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_search",
                "input": {"query": "Oslo news"},
            },
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [
                    {
                        "type": "web_search_result",
                        "title": "Oslo today",
                        "url": "https://a.example/oslo",
                        "encrypted_content": "ZW5j",
                        "page_age": "1 day",
                    }
                ],
            },
            {
                "type": "text",
                "text": "A new library opened.",
                "citations": [
                    {
                        "type": "web_search_result_location",
                        "cited_text": "opened",
                        "encrypted_index": "aW5k",
                        "title": "Oslo today",
                        "url": "https://a.example/oslo",
                    }
                ],
            },
        ),
        dict(UserMessageParam(role="user", content="And what do our notes say?")),
        _reply({"type": "tool_use", "id": "toolu_9", "name": "notes", "input": {"about": "Oslo"}}),
        dict(
            UserMessageParam(
                role="user",
                content=[
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_9",
                        "content": [
                            {
                                "type": "search_result",
                                "source": "https://a.example/notes",
                                "title": "Notes",
                                "content": [{"type": "text", "text": "Bring a coat."}],
                                "citations": {"enabled": True},
                            }
                        ],
                    }
                ],
            )
        ),
        _reply(
            {
                "type": "text",
                "text": "Bring a coat.",
                "citations": [
                    {
                        "type": "search_result_location",
                        "cited_text": "Bring a coat.",
                        "search_result_index": 0,
                        "source": "https://a.example/notes",
                        "start_block_index": 0,
                        "end_block_index": 1,
                        "title": "Notes",
                    }
                ],
            }
        ),
        dict(UserMessageParam(role="user", content="Is the sea warm?")),
        _reply(
            {
                "type": "server_tool_use",
                "id": "srvtoolu_2",
                "name": "web_search",
                "input": {"query": "sea"},
            },
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_2",
                "content": {
                    "type": "web_search_tool_result_error",
                    "error_code": "max_uses_exceeded",
                },
            },
            {"type": "text", "text": "I cannot say."},
        ),
        dict(UserMessageParam(role="user", content="A pity.")),
    ]


# ---------------------------------------------------------------------------------------- gemini


def _content(role: str, *parts: genai.Part) -> dict[str, Any]:
    content = genai.Content(role=role, parts=list(parts))
    return content.model_dump(mode="json", by_alias=True, exclude_none=True)


def gemini_tools() -> Conversation:
    """Calls without ids, parallel and again in another turn, signatures, thoughts, files."""
    call, answer, text = (
        genai.Part.from_function_call,
        genai.Part.from_function_response,
        genai.Part.from_text,
    )
    signed = call(name="get_weather", args={"city": "Oslo"})
    signed.thought_signature = b"signature one"
    summary = text(text="Both need the weather.")
    summary.thought = True
    closing = text(text="The hut is at Kikut.")
    closing.thought_signature = b"signature two"
    return [
        _content("user", text(text="Oslo or Bergen?")),
        _content("model", summary, signed, call(name="get_weather", args={"city": "Bergen"})),
        _content(
            "user",
            answer(name="get_weather", response={"sky": "clear", "max": 4.5}),
            answer(name="get_weather", response={"error": "no such city"}),
        ),
        _content("model", text(text="Oslo.")),
        _content(
            "user",
            text(text="Find the hut on this map."),
            genai.Part.from_bytes(data=_PNG_BYTES, mime_type="image/png"),
            genai.Part.from_uri(file_uri="gs://bucket/map.pdf", mime_type="application/pdf"),
        ),
        _content("model", closing),
        _content("user", text(text="And the weather there?")),
        _content("model", call(name="get_weather", args={"city": "Kikut"})),
        _content("user", answer(name="get_weather", response={"result": "snow"})),
        _content("model", text(text="Snow. "), text(text="Take skis.")),
        _content("user", text(text="Thank you!")),
    ]


def gemini_built_in() -> Conversation:
    """Code the service ran, calls with ids, pictures in a response, a part of a film."""
    code = genai.Part.from_executable_code(code="print(167)", language=genai.Language.PYTHON)
    ran = genai.Part.from_code_execution_result(outcome=genai.Outcome.OUTCOME_OK, output="167\n")
    call = genai.Part(
        function_call=genai.FunctionCall(id="fn-1", name="take_picture", args={"of": "hut"})
    )
    answered = genai.Part(
        function_response=genai.FunctionResponse(
            id="fn-1",
            name="take_picture",
            response={"output": "taken"},
            parts=[
                genai.FunctionResponsePart(
                    inline_data=genai.FunctionResponseBlob(mime_type="image/png", data=_PNG_BYTES)
                )
            ],
        )
    )
    film = genai.Part(
        file_data=genai.FileData(file_uri="https://a.example/film", mime_type="video/mp4"),
        video_metadata=genai.VideoMetadata(start_offset="3s", end_offset="9s"),
    )
    text = genai.Part.from_text
    return [
        _content("user", text(text="How many days until May? Compute it.")),
        _content("model", text(text="I compute."), code, ran, text(text="167 days.")),
        _content("user", text(text="Take a picture of the hut.")),
        _content("model", call),
        _content("user", answered),
        _content("model", text(text="Here it is.")),
        _content("user", film, text(text="What happens here?")),
        _content("model", text(text="Somebody waxes skis.")),
        _content(
            "user", genai.Part.from_bytes(data=b"RIFF\x00WAVE\xff\xfe", mime_type="audio/wav")
        ),
    ]


CONVERSATIONS = {
    "openai": (openai_agent, openai_legacy),
    "openai-responses": (responses_reasoning, responses_hosted),
    "anthropic": (anthropic_thinking, anthropic_server_tools),
    "gemini": (gemini_tools, gemini_built_in),
}


def files() -> dict[str, str]:
    """Return the recorded files, by name."""
    return {
        f"{make.__name__}.json": json.dumps(
            {"provider": provider, "about": make.__doc__, "messages": make()},
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
        for provider, makers in CONVERSATIONS.items()
        for make in makers
    }


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    for name, text in files().items():
        (RECORDED / name).write_text(text, encoding="utf-8")
