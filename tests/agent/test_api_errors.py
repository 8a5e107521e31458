"""Provider errors, in the providers' own words: how they are classified."""

import sys
from datetime import UTC, datetime
from typing import Any

import anthropic
import openai
import pytest

from holdfast.agent.models.errors import parse_error, retry_after, to_model_failed
from holdfast.clock import to_micros
from holdfast.errors import ContextTooLong

# What the SDKs are built on; older versions use httpx.
_HTTP: Any = sys.modules.get("httpx2") or sys.modules["httpx"]
_REQUEST = _HTTP.Request("POST", "http://127.0.0.1/v1")


def answered(status: int, body: object, **headers: str) -> Exception:
    """What OpenAI's SDK raises for an answer; it takes the error out of the body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = _HTTP.Response(status, headers=named, request=_REQUEST)
    inner = body["error"] if isinstance(body, dict) and "error" in body else body
    return openai.APIStatusError("said", response=response, body=inner)


def answered_by_anthropic(status: int, kind: str, message: str) -> Exception:
    """What Anthropic's SDK raises; an error in a stream that began well has the status 200."""
    body = {"type": "error", "error": {"type": kind, "message": message}}
    response = _HTTP.Response(status, request=_REQUEST)
    return anthropic.APIStatusError("said", response=response, body=body)


# ---------------------------------------------------------------------------------- trying again


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
def test_what_may_go_better_next_time_is_tried_again(status: int) -> None:
    failed = to_model_failed(answered(status, {"error": {"message": "not now"}}), "m at h")
    assert (failed.status, failed.retryable) == (status, True)
    assert str(failed) == f"m at h answered {status}: not now"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 415, 422, 451])
def test_a_refusal_that_will_not_change_is_not_tried_again(status: int) -> None:
    failed = to_model_failed(answered(status, {"error": {"message": "no"}}), "m at h")
    assert (failed.status, failed.retryable) == (status, False)
    assert not isinstance(failed, ContextTooLong)


@pytest.mark.parametrize(
    ("body", "status", "retryable"),
    [
        ({"message": "Overloaded", "type": "overloaded_error"}, 529, True),
        ({"message": "try later", "type": "server_error", "code": None}, 500, True),
        ({"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}, 429, True),
        ({"message": "bad gateway", "code": 502}, 502, True),
        ({"message": "Unauthorized", "code": 401}, 401, False),
        ({"message": "wrong", "type": "invalid_request_error"}, 400, False),
        ({"message": "what is this"}, None, True),
        ("it broke", None, True),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_known_by_its_name(
    body: object, status: int | None, retryable: bool
) -> None:
    failed = to_model_failed(openai.APIError("said", _REQUEST, body=body), "m at h")
    assert (failed.status, failed.retryable) == (status, retryable)


@pytest.mark.parametrize(
    ("kind", "status", "retryable"),
    [
        ("overloaded_error", 529, True),
        ("api_error", 500, True),
        ("rate_limit_error", 429, True),
        ("timeout_error", 504, True),
        ("invalid_request_error", 400, False),
        ("permission_error", 403, False),
    ],
)
def test_an_error_event_of_anthropic_has_no_status_of_its_own(
    kind: str, status: int, retryable: bool
) -> None:
    failed = to_model_failed(answered_by_anthropic(200, kind, "so it is"), "m at h")
    assert (failed.status, failed.retryable) == (status, retryable)
    assert "so it is" in str(failed)


def test_no_waiting_fills_an_account() -> None:
    body = {
        "error": {"message": "quota", "type": "insufficient_quota", "code": "insufficient_quota"}
    }
    assert not to_model_failed(answered(429, body), "m").retryable


# --------------------------------------------------------------------------------- the right wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        # The provider's clock is an hour ahead, and so is its date.
        (
            {
                "retry-after": "Sun, 15 Nov 2026 13:00:05 GMT",
                "date": "Sun, 15 Nov 2026 13:00:00 GMT",
            },
            5.0,
        ),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"x-should-retry": "false", "retry-after": "2"}, 2.0),
    ],
)
def test_a_provider_says_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, clock=_Noon()) == seconds


class _Noon:
    def micros(self) -> int:
        return to_micros(datetime(2026, 11, 15, 12, tzinfo=UTC))

    def monotonic(self) -> int:
        return 0


def test_headers_are_read_whatever_their_case() -> None:
    failed = to_model_failed(answered(429, {"error": {"message": "x"}}, Retry_After="3"), "m")
    assert failed.retry_after == 3.0


def test_gemini_says_how_long_to_wait_in_the_body() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    error = {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED", "details": [detail]}
    failed = to_model_failed(answered(429, [{"error": error}]), "m")
    assert (failed.status, failed.retryable, failed.retry_after) == (429, True, 34.5)


# -------------------------------------------------------------------------------- too long a window

_TOO_LONG = [
    (
        "openai",
        400,
        {
            "message": "This model's maximum context length is 128000 tokens. However, your "
            "messages resulted in 130011 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        },
        128_000,
    ),
    (
        "openai, newer",
        400,
        {
            "message": "Your input exceeds the context window of this model. Please adjust your "
            "input and try again.",
            "code": "context_length_exceeded",
        },
        None,
    ),
    (
        "openai, more than a minute's worth",
        429,
        {
            "message": "Request too large for gpt-4o on tokens per min (TPM): "
            "Limit 30000, Requested 45113.",
            "code": "rate_limit_exceeded",
        },
        30_000,
    ),
    (
        "azure",
        400,
        {
            "message": "This model's maximum context length is 8192 tokens, however you requested "
            "9001 tokens (8001 in your prompt; 1000 for the completion).",
        },
        8192,
    ),
    (
        "vllm",
        400,
        {
            "message": "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's "
            "maximum context length is 4096 tokens and your request has 2104 input tokens.",
            "type": "BadRequestError",
            "code": 400,
        },
        4096,
    ),
    (
        "vllm, the prompt",
        400,
        {
            "message": "The decoder prompt (length 5000) is longer than the maximum "
            "model length of 4096."
        },
        4096,
    ),
    ("ollama", 400, {"message": "the input length exceeds the context length"}, None),
    (
        "llama.cpp",
        400,
        {
            "code": 400,
            "message": "request (5000 tokens) exceeds the available context size (4096 tokens), "
            "try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5000,
            "n_ctx": 4096,
        },
        4096,
    ),
    (
        "openrouter",
        400,
        {
            "message": "This endpoint's maximum context length is 32,768 tokens. However, you "
            "requested about 40000 tokens.",
            "code": 400,
        },
        32_768,
    ),
    (
        "openrouter, the provider behind it",
        400,
        {
            "message": "Provider returned error",
            "code": 400,
            "metadata": {"raw": '{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}'},
        },
        8,
    ),
    (
        "gemini",
        400,
        {
            "code": 400,
            "message": "The input token count (1200000) exceeds the maximum number of tokens "
            "allowed (1048576).",
            "status": "INVALID_ARGUMENT",
        },
        1_048_576,
    ),
    (
        "mistral",
        400,
        {
            "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with "
            "32768 maximum context length",
        },
        32_768,
    ),
    (
        "xai",
        400,
        {
            "message": "This model's maximum prompt length is 131072 but the request contains "
            "200000 tokens.",
        },
        131_072,
    ),
    ("a proxy", 413, "<html><h1>413 Request Entity Too Large</h1></html>", None),
]


@pytest.mark.parametrize(
    ("status", "error", "limit"), [row[1:] for row in _TOO_LONG], ids=[row[0] for row in _TOO_LONG]
)
def test_every_provider_says_in_its_own_words_that_a_window_is_too_long(
    status: int, error: object, limit: int | None
) -> None:
    failed = to_model_failed(answered(status, error), "m at h")
    assert isinstance(failed, ContextTooLong)
    assert (failed.status, failed.limit, failed.retryable) == (status, limit, False)
    assert "<html>" not in str(failed)


@pytest.mark.parametrize(
    ("status", "kind", "message", "limit"),
    [
        (
            400,
            "invalid_request_error",
            "prompt is too long: 208310 tokens > 200000 maximum",
            200_000,
        ),
        (
            400,
            "invalid_request_error",
            (
                "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, "
                "decrease input length or `max_tokens` and try again"
            ),
            200_000,
        ),
        (413, "request_too_large", "Request exceeds the maximum size", None),
    ],
)
def test_anthropic_says_that_a_window_is_too_long(
    status: int, kind: str, message: str, limit: int | None
) -> None:
    failed = to_model_failed(answered_by_anthropic(status, kind, message), "m at h")
    assert isinstance(failed, ContextTooLong)
    assert failed.limit == limit


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Too many tokens, please wait before trying again."),
        (
            429,
            "Rate limit reached on tokens per min: Limit 30000, Used 29000, Requested 2000.",
        ),
        (400, "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens"),
        (400, "Invalid 'messages[3].tool_calls': array too long."),
        (404, "no model here has a context window of this name"),
    ],
)
def test_other_limits_are_not_taken_for_too_long_a_window(status: int, message: str) -> None:
    assert not isinstance(
        to_model_failed(answered(status, {"message": message}), "m"), ContextTooLong
    )


@pytest.mark.parametrize(
    ("message", "most"),
    [
        ("max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens", 8192),
        (
            "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
            16_384,
        ),
        ("`max_tokens` must be less than or equal to `8192`", 8192),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
        ("max_tokens is odd", None),
    ],
)
def test_a_limit_of_replies_is_read(message: str, most: int | None) -> None:
    complaint = parse_error(answered(400, {"message": message}))
    assert complaint is not None
    assert complaint.output_limit == most


# ------------------------------------------------------------------------------- what errors tell


def test_an_error_never_tells_the_key() -> None:
    key = "sk-very-secret-key"
    said = {"message": f"Incorrect API key provided: {key}"}
    failed = to_model_failed(answered(401, said), "m at h", secret=key)
    assert (
        str(failed) == "m at h answered 401: Incorrect API key provided: [key] (check the API key)"
    )


def test_an_error_is_one_line_and_not_a_page() -> None:
    long = to_model_failed(answered(400, {"message": "so\nmany\twords " * 100}), "m at h")
    page = to_model_failed(answered(502, "<html>\n<body>Bad Gateway</body></html>"), "m at h")
    assert "\n" not in str(long)
    assert len(str(long)) < 600
    assert str(page) == "m at h answered 502"


def test_what_a_server_says_in_pieces_is_still_read() -> None:
    detail = [
        {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "not permitted"}
    ]
    complaint = parse_error(answered(422, {"detail": detail}))
    assert complaint is not None
    assert "stream_options" in complaint.text


def _because(cause: Exception) -> Exception:
    error = openai.APIConnectionError(request=_REQUEST)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("cause", "retryable", "said"),
    [
        (_HTTP.ConnectError("All connection attempts failed"), True, "cannot be reached"),
        (_HTTP.ConnectTimeout("late"), True, "did not answer in time"),
        (_HTTP.ReadError("reset"), True, "was lost: reset"),
        (_HTTP.RemoteProtocolError("incomplete chunked read"), True, "was lost"),
        (_HTTP.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED]"), False, "is not trusted"),
        (_HTTP.UnsupportedProtocol("ftp://"), False, "check the base URL"),
        (
            _HTTP.LocalProtocolError("Illegal header value b'Bearer sk-1'"),
            False,
            "check the base URL",
        ),
    ],
)
def test_a_call_that_came_to_no_answer(cause: Exception, retryable: bool, said: str) -> None:
    # Anthropic's SDK lets errors of the transport through in the middle of a stream.
    for error in (_because(cause), cause):
        failed = to_model_failed(error, "m at h")
        assert (failed.status, failed.retryable) == (None, retryable)
        assert said in str(failed)
        assert "sk-1" not in str(failed)


def test_what_is_no_json_is_tried_again() -> None:
    assert to_model_failed(ValueError("Expecting value: line 1"), "m at h").retryable
