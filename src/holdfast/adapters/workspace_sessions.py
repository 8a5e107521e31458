"""Workspace sessions: the session manager of agents that keep one JSON file for each run.

A run is a session that has the directory of its workspace, and `SessionConfig.session_dir` as its
scope: runs whose files would be in different directories do not see each other. No file is written.

`save` takes the whole conversation as a list of chat messages, and stores what is new of it. What
another process has stored in the same session meanwhile stays. What was changed in the list or left
out of it, as by a compaction, is left on an earlier branch. A `ConversationHistory` stores each
message when it is added, so that a crash in the middle of a turn loses none.

Every message comes back as it was given. Model and token usage of a session are a record.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeAlias

import msgspec

from holdfast import Message, Record, Session, Store, Text
from holdfast.adapters.changed_list import matched
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import BadMessage, HeadMoved, KeyTaken, SessionNotFound
from holdfast.formats import anthropic, keep, kept, openai, with_data

Item: TypeAlias = dict[str, Any]
Blobs: TypeAlias = Callable[[str], bytes]
Seen: TypeAlias = tuple[tuple[str, str], ...]

_SOURCE: Final = "workspace"
_STATE: Final = "workspace"
_PREFIX_CHARS: Final = 12
_ID_CHARS: Final = 32
_ANTHROPIC_TYPES: Final = frozenset({"document", "image", "thinking", "tool_result", "tool_use"})
_UNSENDABLE: Final = frozenset({"damaged", "erased"})


@dataclass(kw_only=True)
class SessionConfig:
    """Which sessions belong together, and for how long they are kept."""

    session_dir: str = ".sessions"
    max_session_age_hours: float = 24.0


@dataclass(kw_only=True)
class SessionData:
    """A conversation, with the fields of its JSON file. Times are ISO 8601, in UTC.

    `seen` has, of a conversation that a manager returned, a hash of each message and its id.
    """

    session_id: str
    workspace_root: str
    messages: list[Item] = field(default_factory=list)
    model: str | None = None
    token_usage: Item = field(default_factory=dict)
    created_at: str = ""
    updated_at: str = ""
    version: int = 1
    seen: Seen = field(default=(), repr=False, compare=False)

    def model_dump(self) -> Item:
        """Return the fields of the JSON file."""
        return {name: getattr(self, name) for name in _names(self) if name != "seen"}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the text of the JSON file."""
        return json.dumps(self.model_dump(), indent=indent)

    @classmethod
    def model_validate(cls, data: Mapping[str, Any]) -> Self:
        """Return the conversation of a dict; fields that this version does not have are ignored."""
        return cls(**{name: data[name] for name in _names(cls) if name in data and name != "seen"})

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """Return the conversation of a JSON file; bytes that are not UTF-8 stay what they are."""
        whole = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
        return cls.model_validate(json.loads(whole))


class History(Protocol):
    """A conversation in memory."""

    def to_serializable(self) -> list[Item]:
        """Return all messages."""
        ...

    def restore_from(self, messages: list[Item]) -> None:
        """Continue with these messages."""
        ...


class ConversationHistory:
    """A conversation in memory whose messages are stored when they are added."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager
        self.messages: list[Item] = []

    def add(self, *messages: Item) -> None:
        """Add messages: all of them are stored when this returns, or none if it raises."""
        self._manager.append(*messages)
        self.messages += messages

    def to_serializable(self) -> list[Item]:
        """Return all messages."""
        return list(self.messages)

    def restore_from(self, messages: list[Item]) -> None:
        """Continue with these messages."""
        self.messages = list(messages)


class SessionManager:
    """The sessions of one workspace; each manager is a run, and starts a session of its own.

    `restore` continues an earlier session instead. One thread at a time may use a manager.
    """

    def __init__(
        self,
        config: SessionConfig | None,
        workspace_root: str | os.PathLike[str],
        *,
        store: Store,
        agent: str | None = None,
    ) -> None:
        self.config = config or SessionConfig()
        self.workspace_root = Path(workspace_root).resolve()
        self._store = store
        self._agent = agent
        self._token = secrets.token_hex(8)
        prefix = _hash(str(self.workspace_root), _PREFIX_CHARS)
        self.session_id = f"{prefix}_{datetime.now(UTC):%Y%m%d_%H%M%S}_{self._token}"
        self._session: Session | None = None
        self._seen: Seen = ()
        self._writes = 0

    # ----------------------------------------------------------------------------------- saving

    def save(
        self,
        history: SessionData | History | Sequence[Item],
        *,
        model: str | None = None,
        token_usage: Item | None = None,
    ) -> SessionData:
        """Store what is new of a conversation, and return it.

        A session that is in the trash is taken out of it; one that was erased begins anew.
        """
        self._reopen()
        if isinstance(history, SessionData):
            self._continue(history)
            model, token_usage = model or history.model, token_usage or history.token_usage
        items = _items_in(history)
        digests = [_digest(item) for item in items]
        common = _common(self._seen, digests)
        new = self._new(items, digests, common)
        state = self._changed_state(model, token_usage)
        if common < len(self._seen):
            self._rewrite(common, new)
            self._store_entries(state, model if state else None)
        else:
            self._store_entries([*new, *state], model if state else None)
        added = zip(digests[common:], (message.id for message in new), strict=True)
        self._seen = (*self._seen[:common], *added)
        self._writes += 1
        saved = self._described(self._session, items, self._seen)
        if isinstance(history, SessionData):
            history.seen = saved.seen
        return saved

    def append(self, *messages: Item) -> None:
        """Store messages after those saved so far: all when this returns, or none if it raises."""
        self._reopen()
        digests = [_digest(item) for item in messages]
        new = [
            _to_message(item, self._new_id(digest, at))
            for at, (item, digest) in enumerate(zip(messages, digests, strict=True))
        ]
        self._store_entries(new, None)
        ids = (message.id for message in new)
        self._seen = (*self._seen, *zip(digests, ids, strict=True))
        self._writes += 1

    def _reopen(self) -> None:
        if self._session is None:
            return
        try:
            is_trashed = self._session.info().trashed
        except SessionNotFound:
            self._session, self._seen = None, ()
            return
        if is_trashed:
            with suppress(SessionNotFound):  # Another process has restored it.
                self._store.restore(self._session.id)

    def _new(self, items: Sequence[Item], digests: Sequence[str], common: int) -> list[Message]:
        """Return the messages after the common ones; those saved before keep their ids."""
        pieces = Counter(id for _, id in self._seen)
        known = [each for each in self._seen[common:] if pieces[each[1]] == 1]
        places = matched(digests[common:], (digest for digest, _ in known))
        return [
            _to_message(items[at], self._new_id(digests[at], at) if n is None else known[n][1])
            for at, n in enumerate(places, common)
        ]

    def _new_id(self, digest: str, at: int) -> str:
        """Return the id of a new message: the same in every attempt to store it."""
        return _hash(f"{self._token} {self._writes} {at} {digest}", _ID_CHARS)

    def _store_entries(self, entries: Sequence[Message | Record], model: str | None) -> None:
        if not entries:
            return
        if self._session is None:
            self._session = self._create(entries, model)
        else:
            self._session.append(*entries, update=None if model is None else {"model": model})

    def _create(self, entries: Sequence[Message | Record], model: str | None) -> Session:
        try:
            return self._store.create(
                key=self.session_id,
                scope=self.config.session_dir,
                cwd=str(self.workspace_root),
                agent=self._agent,
                model=model,
                entries=entries,
            )
        except KeyTaken:  # By an attempt of this manager whose outcome was not known.
            session = self._store.session(self.session_id, create=False)
            session.append(*entries)
            return session

    def _rewrite(self, common: int, new: Sequence[Message]) -> None:
        """Replace what follows the common messages, but for what others have stored."""
        if self._session is None:
            return
        mine = {id for _, id in self._seen} | {message.id for message in new}
        while True:
            head, history = self._session.head(), self._session.messages()
            stored = {message.id: message for message in history}
            last = self._seen[common - 1][1] if common else None
            if last is not None and last not in stored:  # Another process rewrote the history.
                self._session.append(*(each for each in new if each.id not in stored))
                return
            start = 0 if last is None else [*stored].index(last) + 1
            before, after = {*[*stored][:start]}, history[start:]
            messages = [stored.get(each.id, each) for each in new if each.id not in before]
            summaries = [each for each in after if each.role == "summary"]
            # One of what is replaced would stand for what takes its place.
            current = [each for each in summaries if each.covers in before]
            others = [each for each in after if each.id not in mine and each not in summaries]
            try:
                self._session.replace([*current, *messages, *others], keep=start, expect=head)
            except HeadMoved:
                continue
            return

    def _changed_state(self, model: str | None, token_usage: Item | None) -> list[Record]:
        before = _state_of(self._session)
        given = {"model": model, "token_usage": token_usage or None}
        after = {**before, **{name: value for name, value in given.items() if value is not None}}
        return [] if after == before else [Record(_STATE, data=after)]

    # -------------------------------------------------------------------------------- restoring

    def load_latest(self) -> SessionData | None:
        """Return the conversation of this workspace that was written to last; None without one."""
        cwd = str(self.workspace_root)
        session = self._store.latest(scope=self.config.session_dir, cwd=cwd)
        return None if session is None else self._load(session)

    def restore(
        self, session: SessionData | None = None, history: History | None = None
    ) -> SessionData | None:
        """Continue a session, as it is stored now: the latest by default; None if there is none.

        `history.restore_from` gets its messages. One that is not stored, as from a JSON file, is
        stored by the next save.
        """
        data = self.load_latest() if session is None else session
        if data is None:
            return None
        stored = self._find(data.session_id)
        if stored is not None:
            data = self._load(stored)
        self._continue(data)
        if history is not None:
            history.restore_from(list(data.messages))
        return data

    def _continue(self, data: SessionData) -> None:
        """Save to the session of a conversation from now on, as its successor."""
        if data.session_id != self.session_id:
            self.session_id, self._session = data.session_id, self._find(data.session_id)
        if self._session is None:
            self._seen = ()
        elif data.seen:
            self._seen = data.seen
        else:  # Not from a manager: what is stored beyond it stays.
            stored = self._load(self._session).seen
            self._seen = stored[: _common(stored, [_digest(item) for item in data.messages])]

    def _find(self, session_id: str) -> Session | None:
        by_key = find_session(self._store, session_id)
        if by_key is not None:
            return by_key
        try:
            found = self._store.get(session_id)  # One without a key is known by its id.
        except SessionNotFound:
            return None
        return recovered(found) if found.id == session_id else None

    def _load(self, session: Session) -> SessionData:
        messages = session.messages()
        hashes = {f.sha256 for m in messages for f in m.files if f.sha256 is not None}
        blob = self._store.blobs(*hashes).__getitem__
        found = [(item, message.id) for message in messages for item in _items_of(message, blob)]
        seen = tuple((_digest(item), id) for item, id in found)
        return self._described(session, [item for item, _ in found], seen)

    def _described(self, session: Session | None, items: list[Item], seen: Seen) -> SessionData:
        if session is None:
            return SessionData(
                session_id=self.session_id, workspace_root=str(self.workspace_root), messages=items
            )
        info, state = session.info(), _state_of(session)
        return SessionData(
            session_id=info.key or info.id,
            workspace_root=info.cwd or "",
            messages=items,
            model=state.get("model") or info.model,
            token_usage=state.get("token_usage") or {},
            created_at=info.created_at.isoformat(),
            updated_at=info.updated_at.isoformat(),
            seen=seen,
        )

    # --------------------------------------------------------------------------------- clean-up

    def cleanup_old(self) -> int:
        """Move sessions of this workspace that are too old to the trash; return how many.

        The age is the time since the last write. Pinned ones, open ones and this one stay.
        """
        before = datetime.now(UTC) - timedelta(hours=self.config.max_session_age_hours)
        return sum(self._trash_unchanged(id, before) for id in list(self._ids_before(before)))

    def _ids_before(self, before: datetime) -> Iterator[str]:
        scope, cwd = self.config.session_dir, str(self.workspace_root)
        cursor = None
        while True:
            page = self._store.sessions(
                scope=scope, cwd=cwd, until=before, pinned=False, cursor=cursor
            )
            yield from (info.id for info in page if info.state in {"done", "interrupted"})
            cursor = page.cursor
            if cursor is None:
                return

    def _trash_unchanged(self, id: str, before: datetime) -> bool:
        """Trash a session unless it was written to meanwhile; return whether it was trashed."""
        session = self._store.get(id)
        head = session.head()
        is_own = self._session is not None and self._session.id == id
        if is_own or session.info().updated_at >= before:
            return False
        try:
            self._store.trash(id, expect=head)
        except HeadMoved:
            return False
        return True


# --------------------------------------------------------------------------------------- messages


def _items_in(history: SessionData | History | Sequence[Item]) -> list[Item]:
    if isinstance(history, SessionData):
        return list(history.messages)
    return list(history if isinstance(history, Sequence) else history.to_serializable())


def _names(data: SessionData | type[SessionData]) -> list[str]:
    return [each.name for each in fields(data)]


def _hash(text: str, chars: int) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:chars]


def _digest(item: Item) -> str:
    """Return a hash of a message; `BadMessage` if it is not JSON."""
    try:
        return _hash(json.dumps(item, sort_keys=True), _ID_CHARS)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"messages: {error}") from error


def _common(seen: Seen, digests: Sequence[str]) -> int:
    """Return how many messages at the beginning are the same; not a part of one of ours."""
    pairs = zip(seen, digests, strict=False)
    common = next((at for at, (one, other) in enumerate(pairs) if one[0] != other), None)
    common = min(len(seen), len(digests)) if common is None else common
    while 0 < common < len(seen) and seen[common][1] == seen[common - 1][1]:
        common -= 1
    return common


def _state_of(session: Session | None) -> Item:
    record = None if session is None else session.record(_STATE)
    return record.data if record is not None and isinstance(record.data, dict) else {}


def _to_message(item: Item, id: str) -> Message:
    """Return an item as a message: in one of the usual formats, else with its text."""
    if not isinstance(item, dict):
        raise BadMessage(f"messages: expected dicts, got {type(item).__name__}")
    decode = anthropic.decode if _is_anthropic(item) else openai.decode
    try:
        message = decode(item)
    except BadMessage:
        content = item.get("content")
        message = Message.user([Text(content)] if isinstance(content, str) else [])
    return keep(msgspec.structs.replace(message, id=id), _SOURCE, item)


def _is_anthropic(item: Item) -> bool:
    content = item.get("content")
    if not isinstance(content, list):
        return False
    return any(
        isinstance(block, dict) and block.get("type") in _ANTHROPIC_TYPES for block in content
    )


def _items_of(message: Message, blob: Blobs) -> list[Item]:
    """Return a message as it was given, or as chat messages if another program wrote it."""
    if message.role == "summary" or message.status in _UNSENDABLE:
        return []
    for source in (_SOURCE, openai.SOURCE):
        try:
            original = kept(message, source, blob=blob)
        except BadMessage:  # Another program changed its parts: they say what holds.
            continue
        if original is not None:
            return [original]
    return [*openai.encode_all(with_data(message, blob))]
