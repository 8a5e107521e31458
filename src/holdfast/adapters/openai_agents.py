"""The session of OpenAI Agents, kept in a store: `Runner.run(agent, text, session=…)`.

An item of the Agents SDK is one message, decoded by the format of the Responses API, and comes back
exactly as it was given. An item that is not one of that API, such as the envelope of an
`EncryptedSession`, is kept beside a message without parts, which no model is sent.

What the SDK reads is the conversation as a model is to see it: a summary takes the place of what it
covers, and hidden, damaged and erased messages are left out. A message that another program wrote
is as many items as it takes. Removing items opens a new branch, so all of them stay in the store;
while a turn is open that raises `SessionBusy`, as adding items never does.

All work is done in threads. A task that is cancelled in a write ends when the write has ended.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from holdfast import Head, Message, Session, Store
from holdfast.adapters.shared_session import find_session, is_for_models, recovered
from holdfast.errors import (
    AmbiguousRef,
    BadMessage,
    HeadMoved,
    IdConflict,
    KeyTaken,
    MessageNotFound,
    SessionBusy,
    SessionNotFound,
    install_command,
)
from holdfast.formats import keep, kept, openai_responses, with_data

try:
    from agents import UserError, __version__
    from agents.memory import session as protocol
    from agents.memory.session_settings import SessionSettings, resolve_session_limit
except ImportError as error:
    raise ImportError(
        f"sessions of OpenAI Agents need its package: {install_command('openai-agents')}"
    ) from error

Item: TypeAlias = dict[str, Any]
BlobReader: TypeAlias = Callable[[str], bytes]
P = ParamSpec("P")
T = TypeVar("T")

_RESPONSES: Final = "openai-responses"
_VERBATIM: Final = "openai-agents"
_SESSION_ID: Final = re.compile(r"[a-z2-7]{16}")
_SUMMARY_PREFIX: Final = "Summary of the conversation so far:\n"
# The hooks are private to the SDK, so they are offered only to versions whose own tests they have
# passed. Without them its wrappers use the public methods.
_HAS_HOOKS: Final = __version__.startswith("0.24.")


class HoldfastSession:
    """A session of a store, as OpenAI Agents uses one. The caller closes the store.

    `session_id` is the key of a session, or the id of one. One that does not exist is created when
    the first items are added: with this `scope` and `agent`, and for a sub-agent as a delegate of
    `parent`.
    """

    def __init__(
        self,
        session_id: str,
        store: Store,
        *,
        scope: str | None = None,
        agent: str | None = None,
        parent: HoldfastSession | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = (
            session_settings
            if isinstance(session_settings, SessionSettings)
            else SessionSettings().resolve(session_settings)
        )
        self._store = store
        self._scope = scope
        self._agent = agent
        self._parent = parent

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the newest `limit` items, oldest first; all without one, or if it is negative."""
        wanted = resolve_session_limit(limit, self.session_settings)
        return await asyncio.to_thread(self._get_items, wanted)

    async def add_items(self, items: list[Item]) -> None:
        """Store items, all or none; a batch with ids that the history ends with is a retry."""
        await _settled(self._add_items, items)

    async def pop_item(self) -> Item | None:
        """Remove the newest item and return it; None if there is none."""
        return await _settled(self._pop_item)

    async def clear_session(self) -> None:
        """Continue with an empty history."""
        await _settled(self._clear)

    # ------------------------------------------------------------- what the SDK's wrappers look for

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Item], bool] | None = None
    ) -> Any:  # noqa: ANN401 - a private class of the SDK
        """Return the newest `limit` items, and a function that replaces the end of them.

        It returns False if the session has moved, or has an open turn. With `prune_prefix` it also
        leaves out the first items of the history as long as they match.
        """
        if not self._is_hooked():
            return None
        tail = await asyncio.to_thread(self._read_tail, limit + 1)
        if tail is None:
            return None
        items = tail.items[-limit:]
        skipped = len(tail.items) - len(items)

        async def replace_suffix(start: int, output: list[Item]) -> bool:
            if start >= len(items):
                return False
            with suppress(SessionBusy):  # A later run compacts it; this one's reply is stored.
                return await _settled(tail.replace_from, skipped + start, output, prune_prefix)
            return False

        complete = tail.is_complete and not skipped
        return protocol._CompactionSnapshot(items, complete, replace_suffix)  # noqa: SLF001

    async def _atomic_replace_items(self, items: list[Item]) -> bool:
        """Replace all items in one write; False if the caller has to clear and add them."""
        if not self._is_hooked():
            return False
        await _settled(self._replace, items)
        return True

    def _is_hooked(self) -> bool:
        """True unless a subclass changes items on their way, which the hooks would bypass."""
        methods = ("get_items", "add_items", "pop_item", "clear_session")
        return _HAS_HOOKS and all(
            getattr(type(self), name) is getattr(HoldfastSession, name) for name in methods
        )

    # -------------------------------------------------------------------------------- in a thread

    def _find(self) -> Session | None:
        """Return the session with this key or id, if there is one."""
        found = find_session(self._store, self.session_id)
        if found is None and _SESSION_ID.fullmatch(self.session_id):
            with suppress(SessionNotFound, AmbiguousRef):
                found = self._store.get(self.session_id)
                return recovered(found) if found.id == self.session_id else None
        return found

    def _find_or_create(self) -> Session:
        found = self._find()
        if found is not None:
            return found
        key, scope, agent = self.session_id, self._scope, self._agent
        if self._parent is None:
            return self._store.session(key, scope=scope, agent=agent)
        parent = self._parent._find_or_create()  # noqa: SLF001 - of this class
        with suppress(KeyTaken):
            return self._store.create(
                key=key, parent=parent, relation="delegate", scope=scope, agent=agent
            )
        return self._store.session(key)

    def _read_tail(self, limit: int | None) -> _Tail | None:
        session = self._find()
        return None if session is None else _read_tail(self._store, session, limit)

    def _get_items(self, limit: int | None) -> list[Item]:
        if limit == 0:
            return []
        tail = self._read_tail(None if limit is None or limit < 0 else limit)
        if tail is None:
            return []
        return tail.items if limit is None or limit < 0 else tail.items[-limit:]

    def _add_items(self, items: Sequence[Item]) -> None:
        messages = _to_messages(items)
        if not messages:
            return
        session = self._find_or_create()
        own = {m.id for m, item in zip(messages, items, strict=True) if m.id == item.get("id")}
        refused: set[str] = set()
        while True:
            taken = refused.union(id for id in own if _is_in_history(session, id))
            if taken and self._ends_with(session, items):
                return
            try:
                session.append(*(_with_free_id(message, taken) for message in messages))
            except IdConflict as conflict:  # Another process has just stored this id.
                refused.add(conflict.message_id)
            else:
                return

    def _ends_with(self, session: Session, items: Sequence[Item]) -> bool:
        """True if the newest items are these, stored by an earlier attempt."""
        newest = _read_tail(self._store, session, len(items)).items
        return newest[-len(items) :] == list(items)

    def _pop_item(self) -> Item | None:
        while True:
            tail = self._read_tail(1)
            if tail is None or not tail.items:
                return None
            if tail.replace_from(len(tail.items) - 1, []):
                return tail.items[-1]

    def _clear(self) -> None:
        session = self._find()
        if session is not None:
            session.clear()

    def _replace(self, items: Sequence[Item]) -> None:
        self._find_or_create().replace(_to_messages(items))


class _Tail:
    """The newest items of a session as it was at a head.

    It is complete if the first item is the first of the conversation.
    """

    def __init__(self, store: Store, session: Session, head: Head) -> None:
        self._store = store
        self._session = session
        self._head = head
        self._messages: list[Message] = []
        self._places: list[tuple[Message, int]] = []
        self.items: list[Item] = []
        self.is_complete = False

    def read(self, count: int | None) -> None:
        """Read the newest `count` messages, or all."""
        self._messages = self._session.messages(limit=count)
        visible, reaches_summary = _visible(self._messages)
        self.is_complete = reaches_summary or count is None or len(self._messages) < count
        if not self.is_complete:
            visible = [message for message in visible if message.role != "summary"]
        blob = _blob_reader(self._store, visible)
        found = [(m, n, item) for m in visible for n, item in enumerate(_to_items(m, blob))]
        self._places = [(message, number) for message, number, _ in found]
        self.items = [item for _, _, item in found]

    def replace_from(
        self, index: int, items: Sequence[Item], prune: Callable[[Item], bool] | None = None
    ) -> bool:
        """Replace all items from this one on; False if the session has moved."""
        message, number = self._places[index]
        after = _to_messages([*self.items[index - number : index], *items])
        keep = 0
        if message.role != "summary":  # Summaries stay: those that follow cover earlier messages.
            keep = (message.seq or 1) - 1
            after += [m for m in self._messages if _is_summary(m) and (m.seq or 0) > keep + 1]
        before = self._without_prefix(keep, prune)
        try:
            self._move(keep, before, after)
        except HeadMoved:
            return False
        return True

    def _move(self, keep: int, before: Sequence[Message] | None, after: Sequence[Message]) -> None:
        if before is not None:
            self._session.replace([*before, *after], expect=self._head)
        elif after:
            self._session.replace(after, keep=keep, expect=self._head)
        else:
            self._session.rewind(keep, exact=True, expect=self._head)

    def _without_prefix(
        self, last: int, prune: Callable[[Item], bool] | None
    ) -> list[Message] | None:
        """Return messages 1 to `last` without the first that match; None if none does."""
        if prune is None or not last:
            return None

        def matches(message: Message) -> bool:
            blob = _blob_reader(self._store, [message])
            return all(map(prune, _to_items(message, blob)))

        if not all(map(matches, self._session.messages(after=0, limit=1))):
            return None
        return list(dropwhile(matches, self._session.messages(before=last + 1)))


def _read_tail(store: Store, session: Session, limit: int | None) -> _Tail:
    """Return at least the newest `limit` items of a session, or all."""
    tail = _Tail(store, session, session.head())
    count = limit
    tail.read(count)
    while count is not None and not tail.is_complete and len(tail.items) < (limit or 0):
        count *= 2
        tail.read(count)
    return tail


def _visible(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """Return the messages that a model may see, and whether all before them are summarized."""
    summary = next(filter(_is_summary, reversed(messages)), None)
    covers = None if summary is None else summary.covers
    covered = next((m.seq for m in messages if m.id == covers), None)
    shown = [m for m in messages if m.role != "summary" and is_for_models(m)]
    rest = [m for m in shown if (m.seq or 0) > (covered or 0)]
    return ([summary, *rest] if summary else rest), covered is not None


def _is_summary(message: Message) -> bool:
    return message.role == "summary" and message.status == "complete"


# ---------------------------------------------------------------------------- items and messages


def _to_messages(items: Sequence[Item]) -> list[Message]:
    """Return items as messages; an id that occurs twice is kept by the first."""
    found: dict[str, Message] = {}
    for number, item in enumerate(items):
        try:
            message = _with_free_id(_to_message(item), found)
        except BadMessage as error:
            raise UserError(f"items[{number}] cannot be stored: {error}") from error
        found[message.id] = message
    return list(found.values())


def _to_message(item: Item) -> Message:
    if not isinstance(item, dict):
        raise BadMessage(f"expected a dict, got {type(item).__name__}")
    if item.get("object") != "response":  # That is a whole reply, not an item.
        with suppress(BadMessage):
            return openai_responses.decode(item)
    return keep(Message(role="user"), _VERBATIM, item)


def _with_free_id(message: Message, taken: Container[str]) -> Message:
    return msgspec.structs.replace(message, id=str(uuid4())) if message.id in taken else message


def _is_in_history(session: Session, id: str) -> bool:
    """True if the current history has this id, not only an abandoned branch."""
    try:
        seq = session.message(id).seq or 0
    except MessageNotFound:
        return False
    return any(message.id == id for message in session.messages(after=seq - 1, limit=1))


def _to_items(message: Message, blob: BlobReader) -> list[Item]:
    """Return the item that a message was made from, or those that it is encoded as."""
    if _is_summary(message):
        return [{"role": "user", "content": _SUMMARY_PREFIX + message.text}]
    for source in (_VERBATIM, _RESPONSES):
        with suppress(BadMessage):  # A message that was changed no longer holds it.
            item = kept(message, source, blob=blob)
            if item is not None and (source == _VERBATIM or item.get("object") != "response"):
                return [item]
    return openai_responses.encode(with_data(message, blob))


def _blob_reader(store: Store, messages: Sequence[Message]) -> BlobReader:
    """Return a function that returns the data of the files of these messages, by their hashes."""
    hashes = {file.sha256 for message in messages for file in message.files if file.sha256}
    return store.blobs(*hashes).__getitem__ if hashes else store.blob


async def _settled(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await work in a thread to its end, even if the task is cancelled meanwhile; then cancel."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    failed = running.exception()
    if cancelled is not None:
        raise cancelled from failed
    return running.result()
