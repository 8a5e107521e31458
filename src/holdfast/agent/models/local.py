"""A model in a GGUF file, run in this process: no key, no network.

The engine (the extra `local`) is loaded when the model is first called and freed when it is closed.
It computes on threads of its own; one worker of ours calls it, so calls wait for each other in the
order they were made, and hands what it says to the event loop. The engine also opens a port on
the loopback device, which nobody needs: it answers only to a key that is made up for each model and
told to nobody, and no web page may read what it says.

A window that ends with a reply that was cut off is gone on with for real: the model reads its own
words and writes the next ones.
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
from holdfast.agent.models.base import Delta, Request, Said, ToolSupport
from holdfast.agent.models.chat import ChatReading, flat, messages_of, tools_of
from holdfast.agent.models.failures import failure
from holdfast.core.windows.wording import CUT_OFF
from holdfast.errors import ModelFailed
from holdfast.records import JSON, Provider

_CONTEXT: Final = 8192  # A longer one takes memory and time, so it has to be asked for.
_LONGEST_REPLY: Final = 2048
_SMALL_REPLY: Final = 512  # What a small model says beyond that is no use to anybody.
_SMALL: Final = 500_000_000  # parameters; below them a model cannot follow what it is told of tools
_FEW_CORES: Final = 2
_MOST_THREADS: Final = 8
# Tokens read at once, for each thread. Between two batches a call can be stopped.
_BATCH: Final = 64
_MOST_BATCH: Final = 512
_REMEMBERED: Final = 512  # MiB for prompts that were read before
_SILENT: Final = -1
# At the engine's usual temperature a small model talks nonsense, and below it in circles, unless
# what repeats itself is made less likely, line breaks or not. Calls repeat themselves, and may.
_CALM: Final[dict[str, JSON]] = {"temperature": 0.2, "top_p": 0.9}
_STRAIGHT: Final[dict[str, JSON]] = {
    "dry_multiplier": 0.8,
    "dry_allowed_length": 4,
    "dry_sequence_breakers": ["<|im_end|>"],
}
_END: Final = None


class _Engine(Protocol):
    """The part of the engine that is used here."""

    listening_address: str

    def handle_chat_completions(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        """Answer a request, chunk by chunk, until `take` says that it is enough."""


class LocalModel:
    """A model in a file. `context` and `threads` are chosen by file and machine unless given."""

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
        """Look at the file; `ModelMissing` when it is none that can be used.

        `template` stands in for the file's own chat template. `extra` goes into each request as it
        is: `{"temperature": 0}`.
        """
        self._path = Path(path)
        self._facts = gguf.read(self._path)
        if template is not None:
            self._facts = msgspec.structs.replace(self._facts, template=template)
        self._template = template
        # It was not made for a longer context than it says.
        self._context = min(context or _CONTEXT, self._facts.context or _CONTEXT)
        self._extra = dict(extra or {})
        self._small = self._facts.parameters < _SMALL
        longest = _SMALL_REPLY if self._small else _LONGEST_REPLY
        self._max_output = max_output or min(longest, self._context // 4)
        self._threads = threads or _threads()
        self._worker = _Worker()
        self._engine: _Engine | None = None
        self._calls: set[_Call] = set()
        self._closed = False

    @property
    def name(self) -> str:
        """What it is called: its file's name."""
        return self._path.stem

    @property
    def provider(self) -> Provider:
        """Whose shape of messages it takes."""
        return "openai"

    @property
    def context(self) -> int:
        """How many tokens a request and its reply may have together."""
        return self._context

    @property
    def max_output(self) -> int:
        """How many tokens a reply may have."""
        return self._max_output

    @property
    def tools(self) -> ToolSupport:
        """Whether it was made for tools, can be told of them in words, or is too small for both."""
        if self._facts.knows_tools:
            return "lenient"
        return "none" if self._small else "text"

    @property
    def address(self) -> str | None:
        """Where the engine listens, once it is loaded."""
        return None if self._engine is None else self._engine.listening_address

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Call the model. Closing the iterator ends the call: at once here, soon in the engine."""
        if self._closed:
            raise ModelFailed(f"{self.name} was closed")
        call = _Call(asyncio.get_running_loop(), self._body(request))
        reading = ChatReading()
        self._calls.add(call)
        self._worker.do(lambda: self._answer(call))
        try:
            while (chunk := await call.next()) is not _END:
                # A long window takes its time to be read: an empty word says that it goes on.
                for delta in self._read(chunk, reading) or [Said("")]:
                    yield delta
            for delta in reading.end():
                yield delta
        finally:
            call.stopped = True
            self._calls.discard(call)

    async def close(self) -> None:
        """Stop what is going on and free the memory."""
        if self._closed:
            return
        self._closed = True
        for call in tuple(self._calls):
            call.stopped = True
        freed: Future[None] = Future()
        self._worker.do(lambda: self._free(freed))
        await asyncio.wrap_future(freed)

    def _read(self, chunk: bytes, reading: ChatReading) -> list[Delta]:
        told = json.loads(chunk)
        if isinstance(told, dict) and "error" in told:
            raise failure(_Refused(told), self.name)
        return reading.take(told)

    # --------------------------------------------------------------------------- on the worker

    def _answer(self, call: _Call) -> None:
        """Let the engine answer; whatever happens, the one who waits is told."""
        try:
            if not call.stopped:
                self._loaded().handle_chat_completions(call.body, call.give)
        except ModelFailed as error:
            call.end(error)
        except Exception as error:  # noqa: BLE001 - the engine's own: a template that refuses, say
            call.end(ModelFailed(f"{self.name}: {error}"))
        else:
            call.end(None)

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

    def _body(self, request: Request) -> bytes:
        body: dict[str, JSON] = {
            "messages": self._messages(request),
            "max_tokens": min(request.max_output or self._max_output, self._max_output),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
        }
        if self._small:
            body |= _CALM if request.tools else _CALM | _STRAIGHT
        if request.tools:
            body["tools"] = tools_of(request.tools)
        if request.continuing:
            # Thoughts cannot begin in the middle of a reply.
            body["chat_template_kwargs"] = {"enable_thinking": False}
        # What is not Unicode is sent as a mark.
        return json.dumps(body | self._extra, ensure_ascii=False).encode("utf-8", "replace")

    def _messages(self, request: Request) -> list[JSON]:
        """Return the messages as text; a reply that was cut off comes last, to be gone on with."""
        messages = messages_of(request, words=self.tools in {"text", "none"})
        if request.continuing and len(messages) > 1 and _ends_in_words(messages[-2]):
            messages = [*messages[:-2], _uncut(messages[-2])]
        return [_in_words(message) for message in flat(messages)]


class _Worker:
    """Does one thing after the other, on a thread that is there while there is something to do.

    So a program that ends without a word waits for no idle thread, and a busy one sees that it is
    time to stop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], None]] = deque()
        self._busy = False

    def do(self, job: Callable[[], None]) -> None:
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


class _Refused(Exception):
    """What the engine answered instead of a reply."""

    def __init__(self, body: dict[str, object]) -> None:
        super().__init__(str(body))
        self.body = body


class _Call:
    """A call on its way between the worker and the event loop."""

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

    def give(self, chunk: bytes) -> bool:
        """Take a chunk from the engine; true when nobody wants more."""
        self._put(chunk)
        # A program that ends waits for its threads.
        return self.stopped or not threading.main_thread().is_alive()

    def end(self, failure: ModelFailed | None) -> None:
        """Tell that no more will come."""
        self._put(failure)

    def _put(self, item: bytes | ModelFailed | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # The loop is closed: nobody waits any more.
            self.stopped = True


def _load(path: Path, template: str | None, *, context: int, threads: int) -> _Engine:
    """Load the engine, silent and closed to everybody else."""
    try:
        engine = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ModelFailed("the local model needs its engine: pip install 'holdfast[local]'") from (
            error
        )
    wanted = engine.CommonParams()
    wanted.model.path = str(path)
    if template is not None:
        wanted.chat_template = template
    _size(wanted, context=context, threads=threads)
    _shut(wanted)
    try:
        loaded: _Engine = engine.Server(wanted)
    except (RuntimeError, ValueError) as error:
        raise ModelFailed(f"{path} cannot be loaded: {error}") from error
    return loaded


def _size(wanted: Any, *, context: int, threads: int) -> None:  # noqa: ANN401 - it has no types
    """Take as much of the machine as is needed, and say nothing about it."""
    wanted.n_ctx = context
    wanted.n_parallel = 1
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = threads
    wanted.n_batch = wanted.n_ubatch = min(_BATCH * threads, _MOST_BATCH)
    wanted.cache_ram_mib = _REMEMBERED
    wanted.warmup = wanted.fit_params = False  # Both take longer than they save.
    wanted.verbosity = _SILENT


def _shut(wanted: Any) -> None:  # noqa: ANN401 - as above
    """Let nobody in, by a secret key, a secret path, no origin and no pages; and nothing out."""
    wanted.offline = True
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = 0
    wanted.n_threads_http = 1
    wanted.api_keys = [secrets.token_urlsafe(32)]
    wanted.api_prefix = f"/{secrets.token_urlsafe(16)}"
    wanted.cors_origins = wanted.cors_methods = wanted.cors_headers = ""
    wanted.cors_credentials = False
    wanted.ui = wanted.ui_mcp_proxy = False
    wanted.endpoint_slots = wanted.endpoint_props = wanted.endpoint_metrics = False


def _threads() -> int:
    """Choose how many threads compute: on a small machine more than one is slower."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not every system tells which cores are ours.
        cores = os.cpu_count() or 1
    return 1 if cores <= _FEW_CORES else min(cores // 2, _MOST_THREADS)


def _ends_in_words(message: JSON) -> bool:
    """Return whether a message is the model's own, and says something last."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    return isinstance(message.get("content"), str) and not message.get("tool_calls")


def _uncut(message: JSON) -> JSON:
    """Return a reply without the mark that says that it was cut off."""
    if not isinstance(message, dict):
        return message
    said = str(message["content"])
    return {**message, "content": said.removesuffix(CUT_OFF).removesuffix(" ")}


def _in_words(message: JSON) -> JSON:
    """Return a message whose content is text; what is none is named."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": "\n".join(map(_piece, content))}
    return {**message, "content": content or ""}


def _piece(piece: JSON) -> str:
    said = piece if isinstance(piece, dict) else {}
    text = said.get("text")
    if isinstance(text, str):
        return text
    kind = str(said.get("type", "file")).removesuffix("_url").removeprefix("input_")
    return f"[{kind}: this model reads text only]"
