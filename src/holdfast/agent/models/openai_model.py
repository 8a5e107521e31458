"""OpenAI's models, and servers with a compatible chat completions API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, cast

from holdfast.agent.models.api import (
    CONNECT_TIMEOUT_S,
    NO_KEY,
    ApiModel,
    EventStream,
    SdkClient,
    StreamParser,
)
from holdfast.agent.models.chat_completions import (
    NO_SERVER_FIELDS,
    ChatStreamParser,
    ServerFields,
    encode_messages,
    encode_tools,
    flatten_text,
)
from holdfast.agent.models.context_limits import is_reasoning_model
from holdfast.agent.models.protocol import ModelRequest, ToolSupport
from holdfast.values import JSON

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_ADDRESS: Final = "https://api.openai.com/v1"
_ALSO_OPENAI: Final = (".openai.com", ".openai.azure.com", ".cognitiveservices.azure.com")
# Fields of these servers that must be sent back, or the next call is rejected.
_SERVER_FIELDS: Final[Mapping[str, ServerFields]] = {
    "deepseek.com": ServerFields(message=frozenset({"reasoning_content"})),
    "googleapis.com": ServerFields(call=frozenset({"extra_content"})),
    "moonshot.ai": ServerFields(message=frozenset({"reasoning_content"})),
    "moonshot.cn": ServerFields(message=frozenset({"reasoning_content"})),
}
_OLD_LIMIT: Final = "max_tokens"
_NEW_LIMIT: Final = "max_completion_tokens"
_USAGE: Final = "stream_options"


class OpenAIModel(ApiModel):
    """A model of OpenAI's, or of a server at `base_url` with a compatible API."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context: int | None = None,
        max_output: int | None = None,
        tools: ToolSupport | None = None,
        extra: Mapping[str, JSON] | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        """Configure a model.

        `context` and `max_output` default to a guess by the name; `extra` is added to each request
        unchanged. On servers other than OpenAI's, `tools` defaults to `lenient`: small models may
        write a call as text. A given `client` (Azure's, say) is used with its retries turned off.
        """
        given = None if client is None else client.with_options(max_retries=0)
        super().__init__(
            name,
            base_url=str(client.base_url) if client is not None else base_url,
            api_key=api_key,
            context=context,
            max_output=max_output,
            tools=tools or "native",
            extra=extra,
            client=given,
            package="openai",
            address=_ADDRESS,
        )
        host = self._url.hostname or ""
        self._is_official = self._is_official or host.endswith(_ALSO_OPENAI)
        if tools is None and not self._is_official:
            self._tools = "lenient"
        self._server_fields = next(
            (own for ending, own in _SERVER_FIELDS.items() if host.endswith(ending)),
            NO_SERVER_FIELDS,
        )

    @property
    def provider(self) -> Literal["openai"]:
        """The provider whose message format it takes."""
        return "openai"

    def _connect(self) -> SdkClient:
        import openai  # noqa: PLC0415 - it takes a second to import

        return openai.AsyncOpenAI(
            api_key=self._key or NO_KEY,
            base_url=self._url.geturl(),
            max_retries=0,
            timeout=openai.Timeout(None, connect=CONNECT_TIMEOUT_S),
            http_client=self._http_client(),
        )

    def _body(self, request: ModelRequest) -> dict[str, JSON]:
        messages = encode_messages(
            request, own=self._server_fields, as_text=self.tools in {"text", "none"}
        )
        body: dict[str, JSON] = {
            "model": self.name,
            "messages": messages if self._is_official else flatten_text(messages),
            "stream": True,
            self._limit_parameter(): self.output_for(request),
        }
        if not self.has_rejected(_USAGE):
            body[_USAGE] = {"include_usage": True}
        if request.tools:
            body["tools"] = encode_tools(request.tools)
        return {**body, **self.extra}

    def _limit_parameter(self) -> str:
        """Return the parameter that limits a reply: OpenAI renamed it, most others did not."""
        if self.has_rejected(_OLD_LIMIT):
            return _NEW_LIMIT
        if self.has_rejected(_NEW_LIMIT):
            return _OLD_LIMIT
        return _NEW_LIMIT if self._is_official or is_reasoning_model(self.name) else _OLD_LIMIT

    def _optional_parameters(self) -> tuple[str, ...]:
        return (_USAGE, self._limit_parameter())

    async def _call(self, client: SdkClient, body: dict[str, JSON]) -> EventStream:
        from openai import AsyncStream  # noqa: PLC0415 - as above

        # Not `chat.completions.create`: servers send fields that its types drop.
        return await cast("AsyncOpenAI", client).post(
            "/chat/completions",
            body=body,
            cast_to=object,
            stream=True,
            stream_cls=AsyncStream[object],
        )

    def _parser(self) -> StreamParser:
        return ChatStreamParser(self._server_fields)
