"""Anthropic's models, and servers with a compatible Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from holdfast.agent.models.anthropic_messages import (
    MessagesStreamParser,
    encode_messages,
    encode_past_tools,
    encode_tools,
)
from holdfast.agent.models.api import (
    CONNECT_TIMEOUT_S,
    NO_KEY,
    ApiModel,
    EventStream,
    SdkClient,
    StreamParser,
)
from holdfast.agent.models.protocol import ModelRequest, ToolSupport
from holdfast.values import JSON

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_ADDRESS: Final = "https://api.anthropic.com"
_CACHE: Final = "cache_control"


class AnthropicModel(ApiModel):
    """A model of Anthropic's, or of a server at `base_url` with a compatible Messages API."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context: int | None = None,
        max_output: int | None = None,
        tools: ToolSupport = "native",
        extra: Mapping[str, JSON] | None = None,
        client: AsyncAnthropic | None = None,
    ) -> None:
        """Configure a model.

        `context` and `max_output` default to a guess by the name; `extra` is added to each request
        unchanged. A given `client` is used with its own retries turned off.
        """
        given = None if client is None else client.with_options(max_retries=0)
        super().__init__(
            name,
            base_url=str(client.base_url) if client is not None else base_url,
            api_key=api_key,
            context=context,
            max_output=max_output,
            tools=tools,
            extra=extra,
            client=given,
            package="anthropic",
            address=_ADDRESS,
        )

    @property
    def provider(self) -> Literal["anthropic"]:
        """The provider whose message format it takes."""
        return "anthropic"

    def _connect(self) -> SdkClient:
        import anthropic  # noqa: PLC0415 - it takes seconds to import

        # Versions before 2 cannot send traces, and refuse the option.
        has_traces = "open_telemetry" in signature(anthropic.AsyncAnthropic).parameters
        options: dict[str, Any] = {"open_telemetry": False} if has_traces else {}
        return anthropic.AsyncAnthropic(
            api_key=self._key or NO_KEY,
            base_url=self._url.geturl(),
            max_retries=0,
            timeout=anthropic.Timeout(None, connect=CONNECT_TIMEOUT_S),
            http_client=self._http_client(),
            **options,
        )

    def _body(self, request: ModelRequest) -> dict[str, JSON]:
        messages = encode_messages(request)
        body: dict[str, JSON] = {
            "model": self.name,
            "messages": messages,
            "max_tokens": self.output_for(request),
            "stream": True,
        }
        if request.window.system:
            body["system"] = request.window.system
        if request.tools:
            body["tools"] = encode_tools(request.tools)
        elif past := encode_past_tools(messages):
            body["tools"], body["tool_choice"] = past, {"type": "none"}
        # The next round sends all of this again, so the provider should cache it.
        if request.tools and self._is_official and not self.has_rejected(_CACHE):
            body[_CACHE] = {"type": "ephemeral"}
        return {**body, **self.extra}

    def _optional_parameters(self) -> tuple[str, ...]:
        return (_CACHE,)

    async def _call(self, client: SdkClient, body: dict[str, JSON]) -> EventStream:
        from anthropic import AsyncStream  # noqa: PLC0415 - as above

        # Not `messages.create`: it warns about old models, and the parser reads plain JSON.
        return await cast("AsyncAnthropic", client).post(
            "/v1/messages", body=body, cast_to=object, stream=True, stream_cls=AsyncStream[object]
        )

    def _parser(self) -> StreamParser:
        return MessagesStreamParser()
