"""PraisonAI's `DefaultSessionStore`, on a store of Holdfast instead of a directory of JSON files.

A session is the one whose key is its id; its fields are metadata, each changed by itself, those
that are not the user's with names that begin with `praisonai.`. A message is appended. A history
that is set replaces the one before, which stays on its branch; what another process appended since
this store last returned the history is kept after it. A compaction is a summary: it stands for what
it covers in windows and in `get_working_history`, and nothing is removed.

Nothing is reported as saved that is not: where PraisonAI's store would return False, errors of
Holdfast are raised.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from praisonaiagents.session.store import CompactionCheckpoint, SessionData, SessionMessage

from holdfast import Head, Message, Session, Store
from holdfast.adapters.changed_list import matched, split
from holdfast.adapters.praisonai.partial_reply import PartialReply
from holdfast.adapters.praisonai.session_catalog import OWN, iso
from holdfast.adapters.praisonai.session_message import (
    PARTIAL,
    Item,
    to_message,
    to_session_messages,
)
from holdfast.adapters.praisonai.session_metadata import (
    OWN_FIELDS,
    SessionMetadata,
    public_metadata,
    runtime_state,
)
from holdfast.errors import HeadMoved
from holdfast.values import JSON, Role, SessionChanges, SessionInfo

_COMPACTION: Final = OWN + "compaction"
_MAX_MESSAGES: Final = 100
_SAID: Final[tuple[Role, ...]] = ("system", "user", "assistant", "tool")
_UNCOMPACTED: Final[SessionChanges] = {"metadata": {_COMPACTION: None}}


class DefaultSessionStore(SessionMetadata):
    """The sessions of a store, which the caller opens and closes, as PraisonAI's agents use them.

    `max_messages` is how many `get_working_history` returns if it is not told; none is dropped.
    """

    def __init__(
        self, store: Store, max_messages: int = _MAX_MESSAGES, *, scope: str | None = None
    ) -> None:
        super().__init__(store, scope)
        self.max_messages = max_messages
        self._writer = uuid.uuid4().hex
        self._seen: dict[str, Head] = {}
        self._replies: dict[str, PartialReply] = {}
        self._own_replies: set[str] = set()
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------- messages

    def add_message(  # noqa: PLR0917 - as in PraisonAI
        self,
        session_id: str,
        role: str,
        content: str,
        metadata: dict[str, Any] | None = None,
        tool_calls: list[Item] | None = None,
        tool_call_id: str | None = None,
    ) -> bool:
        """Append a message, durable on return; return True."""
        message = SessionMessage(
            role, content, time.time(), metadata or {}, tool_calls, tool_call_id
        )
        return self._append(session_id, message.to_dict())

    def add_user_message(
        self, session_id: str, content: str, metadata: dict[str, Any] | None = None
    ) -> bool:
        """Append a message of the user; return True."""
        return self.add_message(session_id, "user", content, metadata)

    def add_assistant_message(
        self, session_id: str, content: str, metadata: dict[str, Any] | None = None
    ) -> bool:
        """Append a message of the assistant; return True."""
        return self.add_message(session_id, "assistant", content, metadata)

    def _append(self, session_id: str, item: Item) -> bool:
        with self._lock:
            self._end_reply(session_id)
            self._open(session_id).append(self._message(item))
        return True

    def _message(self, item: Mapping[str, Any]) -> Message:
        return to_message(item, id=f"{self._writer}-{uuid.uuid4().hex}")

    def get_chat_history(self, session_id: str, max_messages: int | None = None) -> list[Item]:
        """Return the newest messages, or all, as a model is sent them."""
        session = self._find(session_id)
        if session is None:
            return []
        # One more than asked for shows whether the first one is cut off from its call.
        limit = None if not max_messages else max_messages + 1
        messages = self._stored(session, limit)
        found = SessionData(session_id=session_id, messages=self._with_reply(session_id, messages))
        return found.get_chat_history(max_messages)

    def get_working_history(self, session_id: str, max_messages: int | None = None) -> list[Item]:
        """Return the summary of the last compaction and what follows it; else the messages."""
        return self._whole(session_id).get_working_history(max_messages or self.max_messages)

    def get_session(self, session_id: str) -> SessionData:
        """Return a session whole; an empty one if there is none."""
        return self._whole(session_id)

    def _whole(self, session_id: str) -> SessionData:
        session = self._find(session_id)
        if session is None:
            return SessionData(session_id=session_id)
        info = session.info()
        messages = self._stored(session)
        return SessionData(
            session_id=session_id,
            messages=self._with_reply(session_id, messages),
            created_at=iso(info.created_at),
            updated_at=iso(info.updated_at),
            metadata=public_metadata(info),
            runtime_state=runtime_state(info),
            last_compaction=self._compaction(info, messages),
            **{name: info.metadata.get(OWN + name) for name in OWN_FIELDS},
        )

    def _stored(self, session: Session, limit: int | None = None) -> list[Message]:
        head = session.head()
        self._seen[session.id] = head
        if head.seq == 0:
            return []
        return session.messages(upto=head, limit=limit, role=_SAID if limit else None)

    def _with_reply(self, session_id: str, stored: Iterable[Message]) -> list[SessionMessage]:
        """Return stored messages, and the text so far of a reply that is being streamed here."""
        found = self._converted(stored)
        reply = self._replies.get(session_id)
        if reply is not None:
            found.append(SessionMessage("assistant", reply.text, metadata={PARTIAL: True}))
        return found

    def _converted(self, stored: Iterable[Message]) -> list[SessionMessage]:
        return [one for message in stored for one in to_session_messages(message, self._store.blob)]

    def _compaction(
        self, info: SessionInfo, stored: Sequence[Message]
    ) -> CompactionCheckpoint | None:
        summaries = [message for message in stored if message.role == "summary"]
        if not summaries:
            return None
        last = summaries[-1]
        covered = next((n for n, one in enumerate(stored, 1) if one.id == last.covers), 0)
        known = info.metadata.get(_COMPACTION)
        return CompactionCheckpoint.from_dict(
            {
                **(known if isinstance(known, dict) else {}),
                "summary": last.text,
                "message_index": len(self._converted(stored[:covered])),
            }
        )

    # ------------------------------------------------------------------------------- histories

    def set_chat_history(self, session_id: str, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Replace the history, and keep what others appended since it was read; return True."""
        with self._lock:
            self._end_reply(session_id)
            session = self._open(session_id)
            given = [{**item, "content": item.get("content") or ""} for item in messages]
            while True:
                try:
                    return self._replace(session, given)
                except HeadMoved:  # Another process wrote meanwhile.
                    continue

    def _replace(self, session: Session, given: list[Item]) -> bool:
        head = session.head()
        stored = session.messages(upto=head) if head.seq else []
        same = self._shared(stored, given)
        new = [self._message(item) for item in given[same:]]
        if same == len(stored):
            self._seen[session.id] = session.append(*new, expect=head) if new else head
            return True
        known, others = self._split(session, stored[same:])
        places = matched(map(_said, given[same:]), map(self._said, known))
        new = [
            one if place is None else known[place] for one, place in zip(new, places, strict=True)
        ]
        moved = session.replace([*stored[:same], *new, *others], expect=head, update=_UNCOMPACTED)
        # The caller has not seen the others yet, and may set the history again without them.
        self._seen[session.id] = Head(moved.branch, same + len(new))
        return True

    def _split(
        self, session: Session, stored: Sequence[Message]
    ) -> tuple[list[Message], list[Message]]:
        """Return the messages that this store has returned or stored, and what others said since.

        If it has not returned the history, it replaces all.
        """
        seen = self._seen.get(session.id)
        if seen is None:
            return [*stored], []
        return split(session, stored, seen, self._is_own)

    def _is_own(self, message: Message) -> bool:
        return message.id.startswith(self._writer) or message.id in self._own_replies

    def _shared(self, stored: Sequence[Message], given: Sequence[Item]) -> int:
        """Return with how many messages both begin."""
        pairs = enumerate(zip(stored, given, strict=False))
        differ = (place for place, (message, item) in pairs if self._said(message) != _said(item))
        return next(differ, min(len(stored), len(given)))

    def _said(self, message: Message) -> str:
        return _to_text(self._converted([message]))

    def clear_session(self, session_id: str) -> bool:
        """Continue with no messages; the old ones stay on their branch. Return True."""
        with self._lock:
            self._end_reply(session_id)
            session = self._open(session_id)
            self._seen[session.id] = session.clear(update=_UNCOMPACTED)
        return True

    def append_compaction_checkpoint(
        self,
        session_id: str,
        summary: str,
        *,
        role: str = "system",
        tokens_before: int = 0,
        tokens_after: int = 0,
        metadata: dict[str, Any] | None = None,
    ) -> bool:
        """Summarise the history so far; False if the summary is blank, or there is no history."""
        if not (summary or "").strip():
            return False
        about: JSON = {
            "role": role,
            "tokens_before": tokens_before,
            "tokens_after": tokens_after,
            "timestamp": time.time(),
            "metadata": metadata or {},
        }
        with self._lock:
            self._end_reply(session_id)
            session = self._open(session_id)
            if session.head().seq == 0:
                return False
            session.summarize(summary, update={"metadata": {_COMPACTION: about}})
        return True

    # ------------------------------------------------------------------------ streamed replies

    def upsert_partial_assistant_message(
        self, session_id: str, content: str, *, finalize: bool = False
    ) -> bool:
        """Store the text so far of the reply that is being streamed; return True.

        `SessionBusy` if another process streams one to this session.
        """
        with self._lock:
            reply = self._replies.get(session_id)
            if reply is not None and not reply.continues(content):
                self._end_reply(session_id)
                reply = None
            if reply is None and (finalize or not content):
                final = {"role": "assistant", "content": content, "timestamp": time.time()}
                self._replace_partial(session_id, [final] if content else [])
                return True
            if reply is None:
                self._replace_partial(session_id, [])
                reply = self._replies[session_id] = PartialReply(self._open(session_id))
                self._own_replies.add(reply.id)
            reply.grow(content)
            if finalize:
                self._replies.pop(session_id).close("complete")
        return True

    def discard_partial_assistant_message(self, session_id: str) -> bool:
        """Continue without the newest message if it is a partial reply; return True."""
        with self._lock:
            self._end_reply(session_id)
            self._replace_partial(session_id, [])
        return True

    def _end_reply(self, session_id: str) -> None:
        reply = self._replies.pop(session_id, None)
        if reply is not None:
            reply.close("partial")

    def _replace_partial(self, session_id: str, items: Sequence[Item]) -> None:
        """Append messages, in place of the newest one if that is a partial reply."""
        session = self._find(session_id) if not items else self._open(session_id)
        if session is None:
            return
        head = session.head()
        last = session.messages(upto=head, limit=1) if head.seq else []
        new = [self._message(item) for item in items]
        if last and last[0].role == "assistant" and last[0].status == PARTIAL:
            session.replace(new, keep=head.seq - 1 or None, expect=head)
        elif new:
            session.append(*new)

    # -------------------------------------------------------------------------------- sessions

    def session_exists(self, session_id: str) -> bool:
        """True if there is such a session."""
        return self._find(session_id) is not None

    def delete_session(self, session_id: str) -> bool:
        """Move a session to the trash; return True."""
        with self._lock:
            self._end_reply(session_id)
            session = self._find(session_id)
            if session is not None:
                self._seen.pop(session.id, None)
                self._store.trash(session.id)
        return True

    def invalidate_cache(self, session_id: str | None = None) -> None:
        """Forget what this store has returned; nothing else is cached."""
        if not session_id:
            self._seen.clear()
        elif (session := self._find(session_id)) is not None:
            self._seen.pop(session.id, None)


def _said(item: Mapping[str, Any]) -> str:
    """Return what a model is sent of a dict of a history."""
    return _to_text([SessionMessage.from_dict(dict(item))])


def _to_text(messages: Iterable[SessionMessage]) -> str:
    return json.dumps([one.to_llm_message() for one in messages], sort_keys=True, default=repr)
