"""A model in a GGUF file, run in this process: no key, no network.

The engine (the extra `local`) is loaded at the first call and freed when the model is closed. It
computes on its own threads; one worker thread calls it, so calls are queued in order, and passes
its output to the event loop. The engine also opens a port on the loopback interface, which is not
needed: it requires a random key, generated for each model and never disclosed, and no web page may
read its responses.

A cut-off reply at the end of a window is continued directly: the engine receives it as the
beginning of the reply and generates what follows.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from holdfast.agent.models import gguf
from holdfast.agent.models.chat_completions import (
    ChatStreamParser,
    encode_messages,
    encode_tools,
    flatten_text,
)
from holdfast.agent.models.errors import to_model_failed
from holdfast.agent.models.protocol import Delta, ModelRequest, ReplyText, ToolSupport
from holdfast.errors import ModelFailed, install_command
from holdfast.values import JSON, Provider
from holdfast.windows.rendering import CUT_OFF_MARK

_DEFAULT_CONTEXT_TOKENS: Final = (
    8192  # A longer one takes memory and time, so it must be requested.
)
_MAX_REPLY_TOKENS: Final = 2048
_MAX_SMALL_REPLY_TOKENS: Final = 512  # Longer replies of small models are of no use.
_SMALL_MODEL_PARAMETERS: Final = (
    500_000_000  # parameters; smaller models cannot use tools described in the prompt
)
_FEW_CORES: Final = 2
_MAX_THREADS: Final = 8
# Prompt tokens per batch and thread. A call can be stopped between two batches.
_BATCH_TOKENS_PER_THREAD: Final = 64
_MAX_BATCH_TOKENS: Final = 512
_PROMPT_CACHE_MIB: Final = 512  # MiB for the cache of evaluated prompts
_LOG_OFF: Final = -1
# At the engine's default temperature small models write nonsense, and at a lower one they loop,
# unless repetition is penalized, also across line breaks. Calls may repeat, so not with tools.
_SMALL_MODEL_SAMPLING: Final[dict[str, JSON]] = {"temperature": 0.2, "top_p": 0.9}
_REPETITION_PENALTY: Final[dict[str, JSON]] = {
    "dry_multiplier": 0.8,
    "dry_allowed_length": 4,
    "dry_sequence_breakers": ["<|im_end|>"],
}
_END: Final = None


class _Engine(Protocol):
    """The part of the engine that is used here."""

    listening_address: str

    def handle_chat_completions(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        """Answer a request chunk by chunk, until `take` returns true."""


class LocalModel:
    """A model in a file. `context` and `threads` default to what suits the file and the machine."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: int | None = None,
        max_output: int | None = None,
        threads: int | None = None,
        template: str | None = None,
        extra: Mapping[str, JSON] | None = None,
    ) -> None:
        """Read the file's header; `ModelMissing` if it cannot be used.

        `template` replaces the file's own chat template. `extra` is added to each request
        unchanged: `{"temperature": 0}`.
        """
        self._path = Path(path)
        self._metadata = gguf.read(self._path)
        if template is not None:
            self._metadata = msgspec.structs.replace(self._metadata, template=template)
        self._template = template
        # Never more than the model was trained for.
        self._context = min(
            context or _DEFAULT_CONTEXT_TOKENS, self._metadata.context or _DEFAULT_CONTEXT_TOKENS
        )
        self._extra = dict(extra or {})
        self._is_small = self._metadata.parameters < _SMALL_MODEL_PARAMETERS
        longest = _MAX_SMALL_REPLY_TOKENS if self._is_small else _MAX_REPLY_TOKENS
        self._max_output = max_output or min(longest, self._context // 4)
        self._threads = threads or _threads()
        self._worker = _Worker()
        self._engine: _Engine | None = None
        self._calls: set[_EngineCall] = set()
        self._closed = False

    @property
    def name(self) -> str:
        """The model's name: that of its file."""
        return self._path.stem

    @property
    def provider(self) -> Provider:
        """The provider whose message format it takes."""
        return "openai"

    @property
    def context(self) -> int:
        """The most tokens that a request and its reply may have together."""
        return self._context

    @property
    def max_output(self) -> int:
        """The most tokens that a reply may have."""
        return self._max_output

    @property
    def tools(self) -> ToolSupport:
        """How tools are offered: by its chat template, in the prompt, or not if it is too small."""
        if self._metadata.supports_tools:
            return "lenient"
        return "none" if self._is_small else "text"

    @property
    def address(self) -> str | None:
        """The address the engine listens on; `None` until it is loaded."""
        return None if self._engine is None else self._engine.listening_address

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Call the model. Closing the iterator ends the call: at once here, soon in the engine."""
        if self._closed:
            raise ModelFailed(f"the model {self.name} was closed")
        call = _EngineCall(asyncio.get_running_loop(), self._body(request))
        reading = ChatStreamParser()
        self._calls.add(call)
        self._worker.submit(lambda: self._run_call(call))
        try:
            while (chunk := await call.next()) is not _END:
                # Evaluating a long window takes a while: an empty delta reports progress.
                for delta in self._read(chunk, reading) or [ReplyText("")]:
                    yield delta
            for delta in reading.finish():
                yield delta
        finally:
            call.stopped = True
            self._calls.discard(call)

    async def close(self) -> None:
        """Stop running calls and free the memory."""
        if self._closed:
            return
        self._closed = True
        for call in tuple(self._calls):
            call.stopped = True
        freed: Future[None] = Future()
        self._worker.submit(lambda: self._free(freed))
        await asyncio.wrap_future(freed)

    def _read(self, chunk: bytes, reading: ChatStreamParser) -> list[Delta]:
        decoded = json.loads(chunk)
        if isinstance(decoded, dict) and "error" in decoded:
            raise to_model_failed(_EngineError(decoded), self.name)
        return reading.feed(decoded)

    # --------------------------------------------------------------------------- on the worker

    def _run_call(self, call: _EngineCall) -> None:
        """Run a call in the engine; the waiting caller gets its end or its failure in any case."""
        try:
            if not call.stopped:
                self._loaded().handle_chat_completions(call.body, call.put_chunk)
        except ModelFailed as error:
            call.finish(error)
        except Exception as error:  # noqa: BLE001 - the engine's own: a template that refuses, say
            call.finish(ModelFailed(f"{self.name}: {error}"))
        else:
            call.finish(None)

    def _loaded(self) -> _Engine:
        if self._engine is None:
            self._engine = _load(
                self._path, self._template, context=self._context, threads=self._threads
            )
        return self._engine

    def _free(self, freed: Future[None]) -> None:
        self._engine = None
        freed.set_result(None)

    # ------------------------------------------------------------------------------- requests

    def _body(self, request: ModelRequest) -> bytes:
        body: dict[str, JSON] = {
            "messages": self._messages(request),
            "max_tokens": min(request.max_output or self._max_output, self._max_output),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
        }
        if self._is_small:
            body |= (
                _SMALL_MODEL_SAMPLING
                if request.tools
                else _SMALL_MODEL_SAMPLING | _REPETITION_PENALTY
            )
        if request.tools:
            body["tools"] = encode_tools(request.tools)
        if request.continuing:
            # Thinking cannot begin in the middle of a reply.
            body["chat_template_kwargs"] = {"enable_thinking": False}
        # Lone surrogates are sent as replacement characters.
        return json.dumps(body | self._extra, ensure_ascii=False).encode("utf-8", "replace")

    def _messages(self, request: ModelRequest) -> list[JSON]:
        """Return the messages as text; a cut-off reply that is to be continued comes last."""
        messages = encode_messages(request, as_text=self.tools in {"text", "none"})
        if request.continuing and len(messages) > 1 and _is_text_reply(messages[-2]):
            messages = [*messages[:-2], _without_cut_off_mark(messages[-2])]
        return [_text_only(message) for message in flatten_text(messages)]


class _Worker:
    """Runs jobs one after the other, on a thread that exists only while there are jobs.

    So a program that exits never waits for an idle thread; a busy one notices the exit and stops.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], None]] = deque()
        self._busy = False

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._todo.append(job)
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._work, name="holdfast-model").start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._busy = False
                    return
                job = self._todo.popleft()
            job()


class _EngineError(Exception):
    """An error response of the engine."""

    def __init__(self, body: dict[str, object]) -> None:
        super().__init__(str(body))
        self.body = body


class _EngineCall:
    """A call shared by the worker thread and the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, body: bytes) -> None:
        self.body = body
        self.stopped = False
        self._loop = loop
        self._queue: asyncio.Queue[bytes | ModelFailed | None] = asyncio.Queue()

    async def next(self) -> bytes | None:
        """Wait for the next chunk; `None` at the end."""
        item = await self._queue.get()
        if isinstance(item, ModelFailed):
            raise item
        return item

    def put_chunk(self, chunk: bytes) -> bool:
        """Pass on a chunk from the engine; return true if it should stop."""
        self._put(chunk)
        # At exit a program waits for its threads, so they must stop.
        return self.stopped or not threading.main_thread().is_alive()

    def finish(self, failure: ModelFailed | None) -> None:
        """Report the end of the call, or its failure."""
        self._put(failure)

    def _put(self, item: bytes | ModelFailed | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # The loop is closed: the caller is gone.
            self.stopped = True


def _load(path: Path, template: str | None, *, context: int, threads: int) -> _Engine:
    """Load the engine, without log output and locked against other clients."""
    try:
        engine = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ModelFailed(
            f"the local model needs the package xllamacpp: run {install_command('local')}"
        ) from error
    params = engine.CommonParams()
    params.model.path = str(path)
    if template is not None:
        params.chat_template = template
    _set_resources(params, context=context, threads=threads)
    _lock_down(params)
    try:
        loaded: _Engine = engine.Server(params)
    except (RuntimeError, ValueError) as error:
        raise ModelFailed(f"{path} cannot be loaded: {error}") from error
    return loaded


def _set_resources(params: Any, *, context: int, threads: int) -> None:  # noqa: ANN401 - it has no types
    """Set the engine's memory, threads and batches, and turn its log off."""
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = min(_BATCH_TOKENS_PER_THREAD * threads, _MAX_BATCH_TOKENS)
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    params.warmup = params.fit_params = False  # Both take longer than they save.
    params.verbosity = _LOG_OFF


def _lock_down(params: Any) -> None:  # noqa: ANN401 - as above
    """Lock the engine's server: a secret key and path, no CORS, no UI, no outgoing requests."""
    params.offline = True
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_threads_http = 1
    params.api_keys = [secrets.token_urlsafe(32)]
    params.api_prefix = f"/{secrets.token_urlsafe(16)}"
    params.cors_origins = params.cors_methods = params.cors_headers = ""
    params.cors_credentials = False
    params.ui = params.ui_mcp_proxy = False
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False


def _threads() -> int:
    """Return how many threads compute: on a small machine more than one is slower."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not every system reports the process's cores.
        cores = os.cpu_count() or 1
    return 1 if cores <= _FEW_CORES else min(cores // 2, _MAX_THREADS)


def _is_text_reply(message: JSON) -> bool:
    """True if a message is a reply that ends with text."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    return isinstance(message.get("content"), str) and not message.get("tool_calls")


def _without_cut_off_mark(message: JSON) -> JSON:
    """Return a reply without the cut-off mark."""
    if not isinstance(message, dict):
        return message
    text = str(message["content"])
    return {**message, "content": text.removesuffix(CUT_OFF_MARK).removesuffix(" ")}


def _text_only(message: JSON) -> JSON:
    """Return a message whose content is text; a label stands for other pieces."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": "\n".join(map(_piece, content))}
    return {**message, "content": content or ""}


def _piece(piece: JSON) -> str:
    fields = piece if isinstance(piece, dict) else {}
    text = fields.get("text")
    if isinstance(text, str):
        return text
    kind = str(fields.get("type", "file")).removesuffix("_url").removeprefix("input_")
    return f"[{kind}: this model reads text only]"
