"""Provider errors: parsing them, and whether a retry may help.

Covers the SDKs' exceptions, HTTP responses, errors in mid-stream, and the many ways to say that a
window is too long. No SDK is imported: an error is recognized by its attributes. A retry may help
if the connection broke or the provider was busy or failed; not if the request itself was rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

import msgspec

from holdfast.clock import Clock, SystemClock, to_datetime
from holdfast.errors import ContextTooLong, ModelFailed

_MAX_MESSAGE_CHARS: Final = 500  # Characters of a provider's text that go into an error message.
_MAX_SEARCHED_CHARS: Final = 4_000  # Characters of it that are searched.
_MIN_SECRET_CHARS: Final = 8  # A shorter secret may be a common word, and is not redacted.
_RETRYABLE_STATUSES: Final = frozenset({408, 409, 425, 429})
_SERVER: Final = 500
_CLIENT_ERROR: Final = 400
# Error types in mid-stream, where there is no HTTP status any more.
_STATUSES: Final = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "conflict_error": 409,
    "deadline_exceeded": 504,
    "engine_overloaded": 503,
    "insufficient_quota": 402,
    "internal_error": 500,
    "internal_server_error": 500,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded": 503,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "resource_exhausted": 429,
    "server_error": 500,
    "service_unavailable": 503,
    "timeout_error": 504,
    "unavailable": 503,
}
# Errors that waiting does not resolve, even with status 429: the account has no credit left.
_OUT_OF_CREDIT: Final = frozenset(
    {"billing_error", "insufficient_quota", "billing_hard_limit_reached"}
)
_HINTS: Final = {
    401: "check the API key",
    402: "check the account's credit",
    403: "the API key lacks permission",
    404: "check the model's name and the base URL",
}

_TOO_LONG_KINDS: Final = frozenset(
    {
        "context_length_exceeded",
        "context_window_exceeded",
        "exceed_context_size_error",
        "model_context_window_exceeded",
        "request_too_large",
    }
)
# In the order of: OpenAI and vLLM, Anthropic, llama.cpp, Ollama, Gemini, Mistral, xAI, Groq,
# Bedrock, Moonshot, LM Studio, Cohere.
_TOO_LONG: Final = re.compile(
    r"maximum context length|context window|maximum model length"
    r"|prompt is too long|exceed context limit"
    r"|available context size|exceeds the context"
    r"|input length exceeds|exceeds (?:the )?maximum context"
    r"|input token count.{0,40}exceeds"
    r"|too large for model with"
    r"|maximum prompt length"
    r"|reduce the length of the (?:messages|prompt)"
    r"|input is too long"
    r"|exceeded model token limit"
    r"|greater than the context length|context length exceeded"
    r"|tokens in the prompt cannot exceed",
    re.IGNORECASE,
)
# A request larger than the account's limit per minute is never accepted.
_OVER_RATE_LIMIT: Final = re.compile(r"request too large for", re.IGNORECASE)
_NUMBER: Final = r"\(?(\d[\d,_]*)"
_LIMITS: Final = tuple(
    re.compile(pattern.replace("N", _NUMBER), re.IGNORECASE)
    for pattern in (
        r"> N maximum",
        r"exceed context limit: .{0,60}?> N",
        r"(?:context length|model length|context size|prompt length)(?: of| is)? N",
        r"maximum number of tokens allowed N",
        r"too large for model with N",
        r"token limit: N",
        r"\bLimit N, Requested",
        r"cannot exceed N",
    )
)
_OUTPUT_LIMITS: Final = tuple(
    re.compile(pattern.replace("N", r"`?(\d+)"), re.IGNORECASE)
    for pattern in (
        r"max_tokens: \d+ > N, which is the maximum allowed",
        r"supports at most N completion tokens",
        r"max_(?:completion_)?tokens`? must be less than or equal to N",
        r"valid range of max_tokens is \[\d+, ?N\]",
    )
)
_NO_TOOLS: Final = re.compile(
    r"does not support tools|tools? (?:use|calling|choice) (?:is )?not supported"
    r"|no endpoints found that support tool|--enable-auto-tool-choice|--jinja",
    re.IGNORECASE,
)


class ProviderError(msgspec.Struct, frozen=True):
    """A provider's error: the HTTP status, if there was one, the error types, and the text."""

    status: int | None
    kinds: frozenset[str]
    text: str
    retry_after: float | None = None
    context: int | None = None

    @property
    def is_too_long(self) -> bool:
        """True if the window is too long for the model."""
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            return _OVER_RATE_LIMIT.search(self.text) is not None
        if self.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or self.kinds & _TOO_LONG_KINDS:
            return True
        plausible = self.status in {None, 400, 422, 500}
        return plausible and _TOO_LONG.search(self.text) is not None

    @property
    def limit(self) -> int | None:
        """The model's context limit in tokens, if the provider reported it."""
        return self.context or _number(_LIMITS, self.text)

    @property
    def output_limit(self) -> int | None:
        """The limit of tokens in a reply, if the provider rejected a larger one."""
        return _number(_OUTPUT_LIMITS, self.text)

    @property
    def lacks_tool_support(self) -> bool:
        """True if the model does not support tool calling."""
        return _NO_TOOLS.search(self.text) is not None

    @property
    def retryable(self) -> bool:
        """True if a retry may help."""
        if self.kinds & _OUT_OF_CREDIT:
            return False
        # No status: an error of unknown type in mid-stream, after the request was accepted.
        return self.status is None or self.status >= _SERVER or self.status in _RETRYABLE_STATUSES


def to_model_failed(
    error: Exception, where: str, *, secret: str = "", clock: Clock | None = None
) -> ModelFailed:
    """Convert an SDK's error; `where` names the endpoint, `secret` (the API key) is redacted."""
    parsed = parse_error(error, clock=clock, secret=secret)
    if parsed is None:
        return _connection_failure(error, where, secret)
    message = _error_message(parsed, where)
    if parsed.is_too_long:
        return ContextTooLong(message, status=parsed.status, limit=parsed.limit)
    return ModelFailed(
        message, status=parsed.status, retryable=parsed.retryable, retry_after=parsed.retry_after
    )


def _error_message(error: ProviderError, where: str) -> str:
    # A proxy's HTML page is of no use in a message.
    text = "" if error.text.lstrip().startswith("<") else _shortened(error.text)
    event = f"{where} answered {error.status}" if error.status else f"{where} stopped with an error"
    hint = f" ({_HINTS[error.status]})" if error.status in _HINTS else ""
    return ": ".join(part for part in (event, text) if part) + hint


def _redacted(text: str, secret: str) -> str:
    """Return a text without the secret, whole: what is cut from it later may be half of it."""
    return text.replace(secret, "[key]") if len(secret) >= _MIN_SECRET_CHARS else text


def _shortened(text: str) -> str:
    """Return a text on one line, as long as it fits into a message."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else line[:_MAX_MESSAGE_CHARS] + "…"


# --------------------------------------------------------------------------------- error responses


def parse_error(
    error: Exception, *, clock: Clock | None = None, secret: str = ""
) -> ProviderError | None:
    """Parse a provider's error response, without the secret; `None` if there was no response."""
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    if not isinstance(status, int) and body is None:
        return None
    inner = _innermost(body)
    kinds = frozenset(
        value.lower()
        for key in ("type", "code", "status")
        if isinstance(value := inner.get(key), str)
    )
    response = getattr(error, "response", None)
    headers = getattr(response, "headers", None)
    delay = retry_after(headers, clock=clock) if isinstance(headers, Mapping) else None
    return ProviderError(
        status=_status(status, inner, kinds),
        kinds=kinds,
        text=_redacted(_error_text(inner), secret)[:_MAX_SEARCHED_CHARS],
        retry_after=_delay(inner) if delay is None else delay,
        context=_whole_number(inner.get("n_ctx")),
    )


def _innermost(body: object) -> dict[str, object]:
    """Return the error object of a body: bare, under `error`, in a list, or as text."""
    if isinstance(body, list):
        body = body[0] if body else {}
    if isinstance(body, dict) and "error" in body:
        body = body["error"]
    if isinstance(body, dict):
        return body
    return {"message": body} if isinstance(body, str) else {}


def _error_text(inner: Mapping[str, object]) -> str:
    """Return the text of an error, with that of the upstream provider behind a router."""
    message = next((inner[key] for key in ("message", "detail", "msg") if inner.get(key)), "")
    metadata = inner.get("metadata")
    upstream = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return " ".join(_text(part) for part in (message, upstream) if part)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, RecursionError):  # Nested too deeply, say.
        return ""


def _status(given: object, inner: Mapping[str, object], kinds: frozenset[str]) -> int | None:
    """Return the status of the response, or of an error in a stream that had begun."""
    for value in (given, inner.get("code"), inner.get("status_code")):
        if isinstance(value, int) and _CLIENT_ERROR <= value < 600:  # noqa: PLR2004 (HTTP's last status)
            return value
    return next((_STATUSES[kind] for kind in sorted(kinds) if kind in _STATUSES), None)


def _number(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    for pattern in patterns:
        if found := pattern.search(text):
            return _whole_number(int(re.sub(r"\D", "", found[1])))
    return None


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


# -------------------------------------------------------------------------------------- retry delay


def retry_after(headers: Mapping[str, str], *, clock: Clock | None = None) -> float | None:
    """Return the seconds of a `Retry-After` header (a number or a date); `None` without one."""
    if (millis := _seconds(headers.get("retry-after-ms"))) is not None:
        return millis / 1000
    given = headers.get("retry-after")
    if given is None or (seconds := _seconds(given)) is not None:
        return None if given is None else seconds
    until, now = _date(given), _date(headers.get("date", ""))
    if until is None:
        return None
    # Prefer the provider's own clock: the local one may be wrong.
    now = now or to_datetime((clock or SystemClock()).micros())
    return max(0.0, (until - now).total_seconds())


def _seconds(text: str | None) -> float | None:
    """Parse a finite, non-negative number of seconds; `None` if it is not one."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _date(text: str) -> datetime | None:
    try:
        retry_at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return retry_at if retry_at.tzinfo else retry_at.replace(tzinfo=UTC)


def _delay(inner: Mapping[str, object]) -> float | None:
    """Return the delay in the details of a Gemini error: `"retryDelay": "34s"`."""
    details = inner.get("details")
    for item in details if isinstance(details, list) else ():
        delay = item.get("retryDelay") if isinstance(item, Mapping) else None
        if isinstance(delay, str):
            return _seconds(delay.removesuffix("s"))
    return None


# ------------------------------------------------------------------------------- connection errors


def _connection_failure(error: Exception, where: str, secret: str) -> ModelFailed:
    """Return the failure of a call that got no response, or an incomplete one."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    kind = type(cause).__name__
    if isinstance(cause, ModelFailed):  # The transport ended the call.
        return cause
    if isinstance(error, RecursionError):
        return ModelFailed(f"{where} sent a response that is nested too deeply")
    if isinstance(error, ValueError):
        return ModelFailed(f"{where} sent a response that cannot be parsed", retryable=True)
    if kind in {"LocalProtocolError", "UnsupportedProtocol", "InvalidURL"}:
        # The text of such an error may contain the key.
        return ModelFailed(f"{where} cannot be called: check the base URL and the API key")
    why = _shortened(_redacted(str(cause), secret)) or kind
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return ModelFailed(f"the certificate of {where} is not trusted: {why}")
    if "Timeout" in kind:
        return ModelFailed(f"{where} did not answer in time", retryable=True)
    if kind.startswith("Connect"):
        return ModelFailed(f"{where} cannot be reached: {why}", retryable=True)
    return ModelFailed(f"the connection to {where} was lost: {why}", retryable=True)
