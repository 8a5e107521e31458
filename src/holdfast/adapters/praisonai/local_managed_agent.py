"""PraisonAI's `LocalManagedAgent`, as a façade of an agent: all runs go one way, through a turn.

A run is a stream, whether it is read or joined. The prompt is durable before the agent is asked,
and its text is written to a draft as it comes. A consumer that leaves the stream stops only
reading: the run goes on to its end, which the event loop waits for when it ends. `interrupt` stops
it, and what was said until then is a partial reply. What the agent's tools were asked and answered
is stored before its reply.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeAlias

from holdfast import Session, Store, Turn, Usage
from holdfast.adapters.praisonai.session_catalog import OWN
from holdfast.adapters.praisonai.session_message import (
    ChatAgent,
    Item,
    to_history,
    to_message,
)
from holdfast.values import JSON, SessionInfo

Emit: TypeAlias = Callable[[str | None], None]

_MANAGED: Final = OWN + "managed"
_STATE: Final = OWN + "managed_state"
_IDS: Final = ("agent_id", "agent_version", "environment_id")
_PAGE: Final = 200


class LocalManagedAgent:
    """An agent whose sessions are in a store, which the caller opens and closes.

    `agent` is PraisonAI's, or a function that makes one; without it one is made of the `config`
    (`name`, `system`, `model`, `tools`).
    """

    def __init__(
        self,
        store: Store,
        agent: ChatAgent | Callable[[], ChatAgent] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        provider: str = "local",
        api_key: str | None = None,
        api_base: str | None = None,
        timeout: float = 300,
        instructions: str = "You are a helpful coding assistant.",
        scope: str | None = None,
    ) -> None:
        self.provider = provider
        self.api_key = api_key
        self.api_base = api_base
        self.timeout = timeout
        self.instructions = instructions
        self.agent_id: str | None = None
        self.agent_version: int | None = 1
        self.environment_id: str | None = None
        self._store = store
        self._scope = scope
        self._given = agent
        self._cfg = dict(config or {})
        self._agent: ChatAgent | None = None
        self._session_id: str | None = None
        self._stops: set[threading.Event] = set()
        self._lock = threading.RLock()
        self._asking = threading.Lock()

    # ----------------------------------------------------------------------------------- runs

    async def execute(
        self,
        prompt: str,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as in PraisonAI
        stream_live: bool = False,
        **kwargs: object,
    ) -> str:
        """Return the agent's whole reply; `TimeoutError` after `timeout`, which interrupts it.

        Other options are those of other backends, and have no effect.
        """
        said: list[str] = []
        try:
            async with asyncio.timeout(timeout):
                async for chunk in self.stream(prompt, **kwargs):
                    said.append(chunk)
                    if stream_live:
                        sys.stdout.write(chunk)
        except TimeoutError:
            self.interrupt()
            raise
        return "".join(said)

    async def stream(self, prompt: str, **kwargs: object) -> AsyncGenerator[str]:  # noqa: ARG002
        """Yield the agent's reply as it comes; all of it is stored, read or not."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[str | None] = asyncio.Queue()

        def emit(chunk: str | None) -> None:
            with suppress(RuntimeError):  # The loop of a consumer that left is closed.
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        stop = threading.Event()
        self._stops.add(stop)
        context = contextvars.copy_context()
        run = loop.run_in_executor(None, context.run, self._run, prompt, emit, stop)
        while (chunk := await chunks.get()) is not None:
            yield chunk
        await run

    def _run(self, prompt: str, emit: Emit, stop: threading.Event) -> None:
        try:
            session = self._session(self._ensure_session())
            agent = self._ensure_agent()
            turn = session.turn(wait=self.timeout, model=self._cfg.get("model"))
            # An agent has one history: another session's run may not have ended yet.
            with turn, self._asking:
                agent.chat_history = history = self._history(session)
                turn.user(prompt)
                self._reply(agent, len(history), turn, prompt, emit=emit, stop=stop)
        finally:
            self._stops.discard(stop)
            emit(None)

    @staticmethod
    def _reply(
        agent: ChatAgent,
        known: int,
        turn: Turn,
        prompt: str,
        *,
        emit: Emit,
        stop: threading.Event,
    ) -> None:
        """Store an agent's reply as it comes, after what its tools did."""
        spent = _spent(agent)
        with turn.stream() as reply:
            for chunk in _chunks(agent, prompt):
                reply.write(chunk)
                emit(chunk)
                if stop.is_set():
                    break
            reply.usage(_difference(_spent(agent), spent))
            for item in _of_tools(agent.chat_history[known:]):
                turn.add(to_message(item, id=uuid.uuid4().hex))
            reply.close(status="partial" if stop.is_set() else "complete")
        if stop.is_set():
            turn.cancel("interrupted")
        elif reply.message is None:
            turn.fail("the agent gave no reply")

    def interrupt(self) -> None:
        """Stop the runs in progress after the next piece of their replies, which are kept."""
        stops = [*self._stops]
        for stop in stops:
            stop.set()
        controller = getattr(self._agent, "interrupt_controller", None)
        if controller is not None and stops:  # Else it would stop the next run.
            controller.request("interrupt")

    # ------------------------------------------------------------------------------- sessions

    def resume_session(self, session_id: str) -> None:
        """Continue a session, with the agent's ids and configuration as they were."""
        self._session_id = session_id
        session = self._session(session_id)
        state = session.info().metadata.get(_STATE)
        if isinstance(state, dict):
            for name in _IDS:
                if getattr(self, name) in {None, 1} and state.get(name) is not None:
                    setattr(self, name, state[name])
            config = state.get("config")
            if isinstance(config, dict):
                self._cfg = {**config, **self._cfg}
        if self._agent is not None:
            self._agent.chat_history = self._history(session)

    def retrieve_session(self) -> Item:
        """Return the id, status, title and usage of the current session."""
        if self._session_id is None:
            usage = {"input_tokens": 0, "output_tokens": 0}
            return {"id": "", "status": "unknown", "title": "", "usage": usage}
        info = self._session(self._session_id).info()
        return {
            "id": self._session_id,
            "status": "running" if info.state == "open" else "idle",
            "title": info.title or "",
            "usage": {"input_tokens": info.usage.input, "output_tokens": info.usage.output},
        }

    def list_sessions(self, *, limit: int | None = None) -> list[Item]:
        """Return all managed sessions, the first one first; `limit` of them if it is given."""
        found: list[SessionInfo] = []
        cursor = None
        while True:
            page = self._store.sessions(
                scope=self._scope, metadata={_MANAGED: True}, limit=_PAGE, cursor=cursor
            )
            found += page.items
            if (cursor := page.cursor) is None:
                break
        found.sort(key=lambda info: info.created_at)
        return [
            {
                "id": info.key,
                "status": "running" if info.state == "open" else "idle",
                "title": info.title or "",
                "created_at": info.created_at.timestamp(),
            }
            for info in islice(found, limit or None)
        ]

    def reset_session(self) -> None:
        """Start another session with the next run."""
        self._session_id = None
        if self._agent is not None:
            self._agent.chat_history = []

    def reset_all(self) -> None:
        """Start another session, with another agent, with the next run."""
        self.agent_id = self.environment_id = self._session_id = self._agent = None
        self.agent_version = 1

    def update_agent(self, **kwargs: object) -> None:
        """Change the configuration of the agent, which is made again for the next run."""
        self._cfg.update(kwargs)
        self.agent_version = (self.agent_version or 0) + 1
        self._agent = None
        if self._session_id is not None:
            self._session(self._session_id).update(metadata=self._metadata())

    def save_ids(self) -> Item:
        """Return the ids of the agent, its environment and the session."""
        return {**{name: getattr(self, name) for name in _IDS}, "session_id": self._session_id}

    def restore_ids(self, ids: Mapping[str, Any]) -> None:
        """Set the ids that `save_ids` returned."""
        for name in _IDS:
            setattr(self, name, ids.get(name))
        self._session_id = ids.get("session_id")

    @property
    def session_id(self) -> str | None:
        """The id of the current session."""
        return self._session_id

    @property
    def managed_session_id(self) -> str | None:
        """The id of the current session."""
        return self._session_id

    @property
    def total_input_tokens(self) -> int:
        """The tokens that the current session's runs were sent."""
        return int(self.retrieve_session()["usage"]["input_tokens"])

    @property
    def total_output_tokens(self) -> int:
        """The tokens that the current session's runs returned."""
        return int(self.retrieve_session()["usage"]["output_tokens"])

    # --------------------------------------------------------------------------------- inside

    def _ensure_agent(self) -> ChatAgent:
        with self._lock:
            if self._agent is None:
                self._agent = self._made()
            self.agent_id = self.agent_id or f"agent_{uuid.uuid4().hex[:12]}"
            self.environment_id = self.environment_id or f"env_{uuid.uuid4().hex[:12]}"
            return self._agent

    def _made(self) -> ChatAgent:
        given: Any = self._given
        if given is None:
            return self._built()
        is_agent = hasattr(given, "chat") and not isinstance(given, type)
        made: ChatAgent = given if is_agent else given()
        return made

    def _built(self) -> ChatAgent:
        from praisonaiagents import Agent  # noqa: PLC0415 - heavy

        options = {
            "name": self._cfg.get("name", "Agent"),
            "instructions": self._cfg.get("system", self.instructions),
            "llm": self._cfg.get("model"),
            "tools": self._cfg.get("tools"),
            "api_key": self.api_key,
            "base_url": self.api_base,
        }
        made: ChatAgent = Agent(**{name: v for name, v in options.items() if v is not None})
        return made

    def _ensure_session(self) -> str:
        self._ensure_agent()
        with self._lock:
            if self._session_id is None:
                self._session_id = f"session_{uuid.uuid4().hex[:12]}"
            return self._session_id

    def _session(self, session_id: str) -> Session:
        return self._store.session(
            session_id,
            scope=self._scope,
            title=self._cfg.get("session_title", "PraisonAI local session"),
            agent=self._cfg.get("name", "Agent"),
            metadata=self._metadata(),
        )

    def _metadata(self) -> dict[str, JSON]:
        config = {name: self._cfg.get(name) for name in ("model", "system", "name")}
        state: JSON = {
            **{name: getattr(self, name) for name in _IDS},
            "config": {name: value for name, value in config.items() if value is not None},
        }
        return {_MANAGED: True, _STATE: state}

    def _history(self, session: Session) -> list[Item]:
        return to_history(session.messages(), self._store.blob)


def _chunks(agent: ChatAgent, prompt: str) -> Iterator[str]:
    """Yield an agent's reply as it comes, or whole if it does not stream."""
    stream = getattr(agent, "iter_stream", None)
    if stream is None:
        options = {"stream": True} if "stream" in inspect.signature(agent.chat).parameters else {}
        reply = agent.chat(prompt, **options)
    else:
        reply = stream(prompt)
    pieces = [reply] if isinstance(reply, str) else reply or ()
    return (str(piece) for piece in pieces if piece)


def _of_tools(added: Sequence[Item]) -> Iterator[Item]:
    """Yield what an agent noted of its tools; the text beside a call is in the reply."""
    for item in added:
        if item.get("tool_calls"):
            yield {**item, "content": ""}
        elif item.get("role") == "tool":
            yield item


def _spent(agent: ChatAgent) -> Usage:
    return Usage(
        getattr(agent, "_total_tokens_in", 0) or 0, getattr(agent, "_total_tokens_out", 0) or 0
    )


def _difference(after: Usage, before: Usage) -> Usage:
    return Usage(max(0, after.input - before.input), max(0, after.output - before.output))
