"""PraisonAI's `BotSessionManager`: a bot's conversations, each a session, each reply a turn.

The user's message is durable before the agent is asked, under the id of the platform's message: one
that is delivered again is answered once. What the agent adds to its history is appended to the
session, so nothing that others wrote meanwhile is replaced, and no message is dropped because there
are more than `max_history`, which is how many the agent is given. The keys of sessions are those of
PraisonAI's manager.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from praisonaiagents.agent.interrupt import InterruptController
from praisonaiagents.bots.agent_reply import extract_presentation

from holdfast import AsyncSession, AsyncStore, AsyncTurn, Message, Session, Store
from holdfast.adapters.praisonai.bot_run import BotRun, ToolFilter
from holdfast.adapters.praisonai.session_catalog import OWN
from holdfast.adapters.praisonai.session_message import ChatAgent, Item, to_history, to_message
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import MessageNotFound
from holdfast.values import JSON, SessionInfo

_BOT: Final = OWN + "bot"
_STORAGE_KEY: Final = OWN + "storage_key"
_DIRECT: Final = frozenset({"direct", "dm", "private"})
_PAGE: Final = 200


class IdentityResolver(Protocol):
    """Who a platform's user is on all platforms."""

    def resolve(self, platform: str, user_id: str) -> str:
        """Return one id for a person, whatever the platform."""


class BotRunTimeout(Exception):
    """A run of a bot's agent took longer than `run_timeout`; the user's message is stored."""


class BotSessionManager:
    """The sessions of one platform's bot, by user or by chat."""

    def __init__(
        self,
        store: Store,
        max_history: int = 100,
        platform: str = "",
        *,
        identity_resolver: IdentityResolver | None = None,
        run_timeout: float = 300.0,
        session_scope: str = "per_user",
        attribution: str = "[{sender}] ",
        scope: str | None = None,
    ) -> None:
        self._store = store
        self._max_history = max_history
        self._platform = platform
        self._identity_resolver = identity_resolver
        self._run_timeout = run_timeout
        self._session_scope = session_scope
        self._attribution = attribution
        self._scope = scope
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._agent_locks: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
        self._runs: dict[str, InterruptController] = {}
        self._presentations: dict[str, object] = {}

    # ------------------------------------------------------------------------------- messages

    async def chat(  # noqa: PLR0917 - as in PraisonAI
        self,
        agent: ChatAgent,
        user_id: str,
        prompt: str,
        chat_id: str = "",
        thread_id: str = "",
        user_name: str = "",
        message_id: str = "",
        account: str = "",
        stream_callback: Callable[[object], object] | None = None,
        tool_policy: ToolFilter | None = None,
        correlation_id: str = "",
        attachments: list[str] | None = None,
        received_at: datetime | None = None,
        *,
        chat_type: str = "",
    ) -> str:
        """Return the agent's reply to a message; "" if that message was answered before.

        In a chat of several, whose `chat_type` is not `direct`, the prompt is stored with its
        sender's name.
        """
        route = {"account": account, "chat_id": chat_id, "thread_id": thread_id}
        key = self._storage_key(user_id, chat_type=chat_type, **route)
        if key != self._storage_key(user_id):
            prompt = self._attributed(prompt, user_name or user_id)
        id = json.dumps([*route.values(), message_id]) if message_id else uuid.uuid4().hex
        question = msgspec.structs.replace(Message.user(prompt, id=id), created_at=received_at)
        run = BotRun(self._storage_key(user_id), agent, stream_callback, tool_policy, attachments)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            session = await AsyncStore(self._store).session(**self._fields(key))
            if await _is_answered(session, id):
                return ""
            async with session.turn(wait=self._run_timeout, run_id=correlation_id or None) as turn:
                if await _is_answered(session, id):  # Another process was first.
                    return ""
                asked = await _stored(session, id) or await turn.add(question)
                return await self._answer(run, session, turn, asked)

    async def _answer(
        self, run: BotRun, session: AsyncSession, turn: AsyncTurn, question: Message
    ) -> str:
        """Ask the agent with the history before a question, and store what it adds to that."""
        # One more than asked for shows whether the first one is cut off from its call.
        limit = self._max_history + 1 if self._max_history else None
        before = await session.messages(before=question.seq, limit=limit)
        history = await asyncio.to_thread(self._items, before, self._max_history)
        response, after = await self._asked(run, history, question.text)
        added = _added(after, history)
        text, presentation = extract_presentation(response)
        self._presentations[run.key] = presentation
        if text and not any(item["role"] == "assistant" and item["content"] for item in added):
            added.append({"role": "assistant", "content": text})
        ids = [uuid.uuid4().hex for _ in added]
        if text:
            ids[-1] = _answer_id(question.id)
        for id, item in zip(ids, added, strict=True):
            await turn.add(to_message(item, id=id))
        if not added:
            await turn.fail("the agent gave no reply")
        return text or ""

    async def _asked(
        self, run: BotRun, history: list[Item], prompt: str
    ) -> tuple[object, list[Item]]:
        """Return what an agent replies, and its history then.

        The agent may be shared: it is lent again when this run has ended, also if nobody waits for
        it any more. Else two users would write to one history.
        """
        loop, controller = asyncio.get_running_loop(), InterruptController()
        call = partial(contextvars.copy_context().run, run.ask, prompt, history, controller, loop)
        lock = self._agent_locks.setdefault(run.agent, asyncio.Lock())
        await lock.acquire()
        running = loop.run_in_executor(None, call)
        running.add_done_callback(lambda _: lock.release())
        self._runs[run.key] = controller
        try:
            async with asyncio.timeout(self._run_timeout or None):
                return await asyncio.shield(running)
        except TimeoutError as error:
            if running.done():  # It is the agent's own.
                raise
            raise BotRunTimeout(f"the run took longer than {self._run_timeout} s") from error
        finally:
            if not running.done():
                controller.request("nobody waits for the reply")
            self._runs.pop(run.key, None)

    def record_passive(self, user_id: str, content: str, sender: str = "", **route: str) -> bool:
        """Append a message that the agent is not asked about; False if it is empty."""
        if not content:
            return False
        text = self._attributed(content, sender)
        item = {"role": "user", "content": text, "timestamp": time.time(), "passive": True}
        session = self._open(self._storage_key(user_id, **route))
        session.append(to_message(item, id=uuid.uuid4().hex))
        return True

    def export_history(self, storage_key: str) -> list[Item]:
        """Return the history of a session."""
        session = self._find(storage_key)
        return [] if session is None else self._items(session.messages())

    def seed_history(self, storage_key: str, history: Sequence[Mapping[str, Any]]) -> None:
        """Replace the history of a session; the one before stays on its branch."""
        messages = [to_message(item, id=uuid.uuid4().hex) for item in history]
        self._open(storage_key).replace(messages)

    def _items(self, messages: Sequence[Message], limit: int | None = None) -> list[Item]:
        return to_history(messages, self._store.blob, limit)

    # ------------------------------------------------------------------------------- sessions

    def reset(self, user_id: str, **route: str) -> bool:
        """Continue with no messages, and return True if there were any; they stay on a branch.

        `SessionBusy` while a run of the session is in progress.
        """
        return self._clear(self._find(self._storage_key(user_id, **route)))

    def reset_all(self) -> int:
        """Continue all sessions with no messages; return how many had any."""
        return sum(self._clear(self._store.get(info.id)) for info in [*self._infos()])

    def reap_stale(self, max_age_seconds: int) -> int:
        """Continue sessions that nobody wrote to for so long with no messages; return how many."""
        if max_age_seconds <= 0:
            return 0
        limit = datetime.now(UTC) - timedelta(seconds=max_age_seconds)
        stale = [info for info in self._infos() if info.updated_at < limit and info.state != "open"]
        return sum(self._clear(self._store.get(info.id)) for info in stale)

    @property
    def active_sessions(self) -> int:
        """The number of sessions that have messages."""
        return len(self.get_user_ids())

    def get_user_ids(self) -> list[str]:
        """Return the storage keys of the sessions that have messages."""
        return [str(info.metadata[_STORAGE_KEY]) for info in self._infos() if info.messages]

    def cancel_run(self, user_id: str, reason: str = "user_cancel") -> bool:
        """Ask the run of a user to stop; False if there is none."""
        controller = self._runs.get(self._storage_key(user_id))
        if controller is not None:
            controller.request(reason)
        return controller is not None

    def get_active_runs(self) -> list[str]:
        """Return the storage keys of the sessions whose runs are in progress."""
        return [*self._runs]

    def pop_last_presentation(self, user_id: str) -> object:
        """Return the interactive form of the last reply, once; None if it was text."""
        return self._presentations.pop(self._storage_key(user_id), None)

    def _infos(self) -> Iterator[SessionInfo]:
        cursor = None
        while True:
            page = self._store.sessions(
                scope=self._scope, metadata={_BOT: self._platform}, limit=_PAGE, cursor=cursor
            )
            yield from page
            if (cursor := page.cursor) is None:
                return

    def _fields(self, storage_key: str) -> Item:
        metadata: dict[str, JSON] = {_BOT: self._platform, _STORAGE_KEY: storage_key}
        return {"key": self._persist_key(storage_key), "scope": self._scope, "metadata": metadata}

    def _open(self, storage_key: str) -> Session:
        return recovered(self._store.session(**self._fields(storage_key)))

    def _find(self, storage_key: str) -> Session | None:
        return find_session(self._store, self._persist_key(storage_key))

    @staticmethod
    def _clear(session: Session | None) -> bool:
        had_messages = session is not None and session.head().seq > 0
        if session is not None and had_messages:
            session.clear()
        return had_messages

    # ----------------------------------------------------------------------------------- keys

    def _storage_key(
        self,
        user_id: str,
        *,
        account: str = "",
        chat_id: str = "",
        thread_id: str = "",
        chat_type: str = "",
    ) -> str:
        if self._session_scope == "per_chat" and chat_id and chat_type.lower() not in _DIRECT:
            platform = self._platform or "bot"
            return f"{platform}:acct:{account or 'default'}:chat:{chat_id}:{thread_id}"
        if self._identity_resolver is not None and self._platform:
            return str(self._identity_resolver.resolve(self._platform, user_id))
        return user_id

    def _persist_key(self, storage_key: str) -> str:
        if self._identity_resolver is not None and self._platform:
            return storage_key
        return "_".join(filter(None, ("bot", self._platform, storage_key)))

    def _attributed(self, prompt: str, sender: str) -> str:
        """Return a text with who said it, on one line, if there is a form for that."""
        name = " ".join(sender.split())
        return self._attribution.format(sender=name, time="") + prompt if name else prompt


async def _stored(session: AsyncSession, id: str) -> Message | None:
    try:
        return await session.message(id)
    except MessageNotFound:
        return None


async def _is_answered(session: AsyncSession, id: str) -> bool:
    """True if the answer to a message is stored, or the message was cleared since."""
    if await _stored(session, _answer_id(id)) is not None:
        return True
    asked = await _stored(session, id)
    if asked is None or asked.seq is None:
        return False
    after = await session.messages(after=asked.seq - 1, limit=1)
    return [message.id for message in after] != [id]


def _answer_id(id: str) -> str:
    """Return the id of the last message of an answer, which tells that it is whole."""
    return f"answer to {id}"


def _added(after: Sequence[Item], before: Sequence[Item]) -> list[Item]:
    """Return what an agent appended, without the question; nothing if it rewrote its history."""
    if [*after[: len(before)]] != [*before]:
        return []
    added = [dict(item) for item in after[len(before) :]]
    return added[1:] if added and added[0]["role"] == "user" else added
