"""nanobot's session manager over a Holdfast store: `nanobot.session`, with the same names.

A nanobot session is the Holdfast session of the same key, its messages are messages. In memory a
session stays a list that nanobot changes as it likes; a save compares the list with what this
object saw last, and stores only the difference: new messages are appended, any other change is one
replace, on a new branch. A change touches only messages that its session object has seen, so what
another process has written meanwhile stays.

The metadata of a nanobot session, its times and its provider state are metadata of the Holdfast
session, under names of their own, written together with the messages. They are merged by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from holdfast import Goal, Head, Store
from holdfast import Session as StoredSession
from holdfast.adapters.nanobot_messages import (
    Item,
    Seen,
    View,
    merge,
    plain,
    to_items,
    to_local,
    to_moment,
)
from holdfast.adapters.shared_session import find_session, recovered
from holdfast.errors import HeadMoved, KeyTaken, install_command
from holdfast.values import JSON, GoalState, SessionChanges, SessionInfo

try:
    from nanobot.providers.base import ProviderConversationState
    from nanobot.session.goal_state import goal_state_raw, parse_goal_state
    from nanobot.session.manager import Session as NanobotSession
    from nanobot.session.manager import SessionManager as NanobotSessionManager
    from nanobot.utils.helpers import find_legal_message_start, strip_think
except ImportError as error:
    raise ImportError(
        f"nanobot-ai 0.3.5 or newer is not installed: {install_command('nanobot')}",
        name=error.name,
    ) from error

__all__ = ["HoldfastSessionStore", "RetentionResult", "Session", "SessionManager"]

FILE_MAX_MESSAGES: Final = 2000
_VALUE: Final = "nanobot.metadata."
_NULL: Final = "nanobot.null."  # The metadata of a Holdfast session has no null: this is one.
_BOUNDARY: Final = "nanobot.last_archived"
_PROVIDER_STATE: Final = "nanobot.provider_state"
_TIMES: Final = ("nanobot.created_at", "nanobot.updated_at")
_GOAL_NAMES: Final = frozenset({"goal_state", "thread_goal"})
_PREVIEW_MESSAGES: Final = 20
_REFRESHED: Final = (
    "created_at",
    "holdfast_view",
    "last_archived",
    "metadata",
    "provider_state",
    "updated_at",
)


# ---------------------------------------------------------------------------------------- sessions


class RetentionResult(NamedTuple):
    """What a retention took out of a list, and how many of those were archived before."""

    dropped: list[Item]
    already_consolidated_count: int


@dataclass
class Session(NanobotSession):
    """A conversation, as nanobot has it in memory; `SessionManager.save` stores what is new."""

    holdfast_view: View | None = field(default=None, init=False, repr=False, compare=False)

    def retain_recent_legal_suffix(
        self, max_messages: int, *, extend_to_user: bool = False
    ) -> RetentionResult:
        """Keep the newest messages, from a legal start; the others stay on the old branch."""
        return _retain(self, max_messages, extend_to_user=extend_to_user)

    def enforce_file_cap(
        self,
        on_archive: Callable[[list[Item]], object] | None = None,
        limit: int = FILE_MAX_MESSAGES,
    ) -> None:
        """Keep at most `limit` messages; `on_archive` gets those that no archive has yet."""
        if limit <= 0 or len(self.messages) <= limit:
            return
        dropped, archived = self.retain_recent_legal_suffix(limit)
        if on_archive is not None and dropped[archived:]:
            on_archive(dropped[archived:])


def _retain(session: NanobotSession, limit: int, *, extend_to_user: bool) -> RetentionResult:
    items: list[Item] = session.messages
    archived: int = session.last_archived
    if limit <= 0:
        session.clear()
        return RetentionResult(items, archived)
    if len(items) <= limit:
        return RetentionResult([], 0)
    start, end = _legal_range(items, limit, extend_to_user=extend_to_user)
    left = max(0, min(archived, end) - start)
    session.messages = items[start:end]
    session.last_archived = left
    session.updated_at = datetime.now()  # noqa: DTZ005 - nanobot's times are local
    return RetentionResult([*items[:start], *items[end:]], archived - left)


def _legal_range(items: Sequence[Item], limit: int, *, extend_to_user: bool) -> tuple[int, int]:
    """Return the range to keep: from a user's message, and from no result without its call."""
    users = [n for n, item in enumerate(items) if item.get("role") == "user"]
    start, end = len(items) - limit, len(items)
    earlier = [n for n in users if n <= start]
    later = [n for n in users if n >= start]
    if extend_to_user and earlier:
        start = earlier[-1]
    elif later:
        start = later[0]
    elif users and not extend_to_user:
        start, end = users[-1], users[-1] + limit
    return start + find_legal_message_start([*items[start:end]]), min(end, len(items))


class SessionManager(NanobotSessionManager):
    """nanobot's session manager, whose sessions are in an open Holdfast store."""

    def __init__(
        self,
        workspace: Path,
        store: Store,
        *,
        scope: str | None = None,
        agent: str | None = None,
        sessions_root: Path | None = None,
    ) -> None:
        self.history = HoldfastSessionStore(store, scope=scope, agent=agent, cwd=str(workspace))
        super().__init__(workspace, store=self.history, sessions_root=sessions_root)

    def get_or_create(self, key: str) -> NanobotSession:
        """Return the session of a key; one without unsaved changes, as it is in the store now."""
        session = self.get_cached(key)
        if session is not None:
            self.history.refresh(session)
            return session
        session = self.history.load(key) or Session(key=key)
        self._remember(session)
        return session

    def update_session_metadata(
        self, key: str, updates: dict[str, Any], *, fsync: bool = False
    ) -> bool:
        """Change metadata of a session by name; False if there is no such session."""
        updated: bool = super().update_session_metadata(key, updates, fsync=fsync)
        view = _view_of(self.get_cached(key))
        if updated and view is not None:
            view.state = {**view.state, **_to_state(updates)}
        return updated


def _view_of(session: NanobotSession | None) -> View | None:
    view = getattr(session, "holdfast_view", None)
    return view if isinstance(view, View) else None


# ------------------------------------------------------------------------------------------- store


class HoldfastSessionStore:
    """nanobot's `SessionStore` over an open Holdfast store; the caller closes the store."""

    def __init__(
        self,
        store: Store,
        *,
        scope: str | None = None,
        agent: str | None = None,
        cwd: str | None = None,
    ) -> None:
        self.store = store
        self._scope = scope
        self._agent = agent
        self._cwd = cwd

    def load(self, key: str) -> Session | None:
        """Return the session of a key, detached from every other object; None if there is none."""
        stored = self._find(key)
        return None if stored is None else self._read(key, stored)

    def refresh(self, session: NanobotSession) -> None:
        """Read a session again if another process wrote to it, and nothing of it is unsaved."""
        view, stored = _view_of(session), self._find(session.key)
        if stored is None or _is_changed(session, view):
            return
        if view is not None and (view.session_id, view.head) == (stored.id, stored.head()):
            return
        found = self._read(session.key, stored)
        session.messages[:] = found.messages
        for name in _REFRESHED:
            setattr(session, name, getattr(found, name))

    def save(self, session: NanobotSession, *, fsync: bool = False) -> None:  # noqa: ARG002
        """Store what is new in a session; how durable a write is, is the store's setting."""
        stored = recovered(
            self.store.session(session.key, scope=self._scope, agent=self._agent, cwd=self._cwd)
        )
        view = _view_of(session)
        if view is None or view.session_id != stored.id:
            self._check_scope(stored)
            view = session.holdfast_view = View(stored.id)
        items, state = view.align(session.messages), _session_state(session)
        boundary: int = session.last_archived
        update = _update(session.metadata, _changes(view.state, state))
        if boundary == view.boundary and view.extended_by(items):
            _append(stored, view, items, update)
        else:
            while not _rewrite(stored, view, items, boundary, update):
                pass
        view.saved(items, state, boundary)

    def delete(self, key: str) -> bool:
        """Move a session to the trash, where `store.restore` finds it; False if there is none."""
        stored = self._find(key)
        if stored is not None:
            self.store.trash(stored.id)
        return stored is not None

    def read(self, key: str) -> dict[str, Any] | None:
        """Return a session as a dict; None if there is none."""
        session = self.load(key)
        return None if session is None else {**_header(session), "messages": session.messages}

    def read_metadata(self, key: str) -> dict[str, Any] | None:
        """Return a session as a dict, without its messages; None if there is none."""
        stored = self._find(key)
        return None if stored is None else _header(_empty(key, stored.info()))

    def update_metadata(
        self,
        key: str,
        updates: dict[str, Any],
        *,
        fsync: bool = False,  # noqa: ARG002
    ) -> bool:
        """Change metadata by name, and nothing else; False if there is no such session."""
        stored = self._find(key)
        if stored is not None:
            stored.update(**_update(updates, _with_removals(_to_state(updates))))
        return stored is not None

    def list_sessions(self) -> list[dict[str, Any]]:
        """List all sessions that have a key, the one that was changed last first."""
        rows = [self._row(info.key, info) for info in self._infos() if info.key is not None]
        return sorted(rows, key=lambda row: str(row["updated_at"]), reverse=True)

    def _infos(self) -> Iterator[SessionInfo]:
        cursor = None
        while True:
            page = self.store.sessions(scope=self._scope, cursor=cursor)
            yield from page
            cursor = page.cursor
            if cursor is None:
                return

    def _row(self, key: str, info: SessionInfo) -> dict[str, Any]:
        header = _header(_empty(key, info))
        metadata = header.pop("metadata")
        title = metadata.get("title", info.title)
        title = title if isinstance(title, str) else ""
        edited = metadata.get("title_user_edited") is True
        return {
            **header,
            "title": title if edited else strip_think(title),
            "preview": info.preview or self._first_reply(info),
            "path": self.store.url,
        }

    def _first_reply(self, info: SessionInfo) -> str:
        if not info.messages or info.state == "damaged":
            return ""
        first = self.store.get(info.id).messages(after=0, limit=_PREVIEW_MESSAGES)
        return next((m.text for m in first if m.role == "assistant" and m.text), "")

    def _find(self, key: str) -> StoredSession | None:
        stored = find_session(self.store, key)
        if stored is None:
            return None
        self._check_scope(stored)
        return stored

    def _check_scope(self, stored: StoredSession) -> None:
        """Raise `KeyTaken` if a session is of another scope, such as another workspace's."""
        if self._scope is not None and (scope := stored.info().scope) != self._scope:
            raise KeyTaken(
                f"the key {stored.key!r} is that of a session in the scope {scope!r}, not in "
                f"{self._scope!r}; nothing was read or stored. Use a store of another tenant."
            )

    def _read(self, key: str, stored: StoredSession) -> Session:
        head, info = stored.head(), stored.info()
        seen = [
            Seen(message.id, index, len(items), item)
            for message in stored.messages()
            if message.status not in {"damaged", "erased"}
            for items in [to_items(message, self.store.blob)]
            for index, item in enumerate(items)
        ]
        last = info.metadata.get(_BOUNDARY)
        ends = [n for n, each in enumerate(seen, start=1) if each.id == last]
        session = _empty(key, info)
        session.messages = [plain(each.item) for each in seen]
        session.last_archived = boundary = max(ends, default=0)
        state = {name: value for name, value in info.metadata.items() if _is_state(name)}
        session.holdfast_view = View(stored.id, seen, state, boundary, head)
        return session


def _is_changed(session: NanobotSession, view: View | None) -> bool:
    """True if a session has changes that are not saved."""
    if view is None:
        return bool(session.messages or session.metadata)
    return (
        session.last_archived != view.boundary
        or bool(_changes(view.state, _session_state(session)))
        or session.messages != [each.item for each in view.seen]
    )


def _append(
    stored: StoredSession, view: View, items: Sequence[Seen], update: SessionChanges
) -> None:
    """Store what follows the items that were seen, and the changes."""
    new = [each.new for each in items[len(view.seen) :] if each.new is not None]
    if not new:
        if update["metadata"]:
            stored.update(**update)
        return
    before = view.head or Head(1, 0)
    head = stored.append(*new, update=update)
    seen_all = view.head is not None or not view.seen
    alone = seen_all and head == Head(before.branch, before.seq + len(new))
    view.head = head if alone else None


def _rewrite(
    stored: StoredSession,
    view: View,
    items: Sequence[Seen],
    boundary: int,
    update: SessionChanges,
) -> bool:
    """Store a changed list on a new branch; False if another process wrote meanwhile."""
    head = stored.head()
    before = {message.id: message for message in stored.messages()}
    ids = [*before]
    order = merge(
        [each.id for each in items], ids, {each.id for each in (*view.seen, *view.pending)}
    )
    messages = before | {each.id: each.new for each in items if each.new is not None}
    shared = next((n for n, id in enumerate(order) if [id] != ids[n : n + 1]), len(order))
    rest = [messages[id] for id in order[shared:] if messages[id].status != "erased"]
    archived = {each.id for each in items[:boundary] if each.piece == each.pieces - 1}
    unread = next((n for n, id in enumerate(order) if id not in archived), len(order))
    last = order[unread - 1] if unread else None
    update = {**update, "metadata": {**update.get("metadata", {}), _BOUNDARY: last}}
    try:
        if not order and ids:
            moved = stored.clear(expect=head, update=update)
        elif shared < len(ids):
            keep = ids[shared - 1] if shared else None
            moved = stored.replace(rest, keep=keep, expect=head, update=update)
        elif rest:
            moved = stored.append(*rest, expect=head, update=update)
        else:
            stored.update(expect=head, **update)
            moved = head
    except HeadMoved:
        return False
    view.head = moved if len(order) == len({each.id for each in items}) else None
    return True


# ------------------------------------------------------------------------------------------- state


def _is_state(name: str) -> bool:
    return name.startswith((_VALUE, _NULL)) or name in (*_TIMES, _PROVIDER_STATE)


def _to_state(metadata: Mapping[str, Any]) -> dict[str, JSON]:
    """Return nanobot's metadata as metadata of the stored session."""
    given = plain(metadata).items()
    return {
        (_NULL if value is None else _VALUE) + name: True if value is None else value
        for name, value in given
    }


def _from_state(state: Mapping[str, JSON]) -> dict[str, Any]:
    values = {n.removeprefix(_VALUE): v for n, v in state.items() if n.startswith(_VALUE)}
    return {**values, **{n.removeprefix(_NULL): None for n in state if n.startswith(_NULL)}}


def _with_removals(state: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return state to merge: a value replaces a null of the same name, and the reverse."""
    names = _from_state(state)
    return {**dict.fromkeys([p + name for name in names for p in (_VALUE, _NULL)]), **state}


def _session_state(session: NanobotSession) -> dict[str, JSON]:
    state = _to_state(session.metadata)
    times = (session.created_at.isoformat(), session.updated_at.isoformat())
    state |= dict(zip(_TIMES, times, strict=True))
    if session.provider_state is not None:
        state[_PROVIDER_STATE] = plain(session.provider_state.to_private_record())
    return state


def _changes(before: Mapping[str, JSON], after: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return what is to be merged into one state for the other; None removes a name."""
    removed: dict[str, JSON] = {name: None for name in before if name not in after}
    return {**removed, **{n: v for n, v in after.items() if n not in before or before[n] != v}}


def _update(metadata: Mapping[str, Any], changes: dict[str, JSON]) -> SessionChanges:
    """Return the changes of a session: those of its title and goal, too, if they are among them."""
    update: SessionChanges = {"metadata": changes}
    names = {name.removeprefix(_VALUE).removeprefix(_NULL) for name in changes}
    title = metadata.get("title")
    if "title" in names and isinstance(title, str) and title.strip():
        update["title" if metadata.get("title_user_edited") is True else "auto_title"] = title
    if names & _GOAL_NAMES:
        update["goal"] = _goal(metadata)
    return update


def _goal(metadata: Mapping[str, Any]) -> Goal | None:
    given = parse_goal_state(goal_state_raw(metadata)) or {}
    objective: object = given.get("objective")
    state: Any = given.get("status")
    if not isinstance(objective, str) or not objective.strip() or state not in get_args(GoalState):
        return None
    texts = {name: given.get(name) for name in ("ui_summary", "recap")}
    summary, recap = (text if isinstance(text, str) and text else None for text in texts.values())
    return Goal(
        objective=objective,
        summary=summary,
        state=state,
        started_at=to_moment(given.get("started_at")),
        ended_at=to_moment(given.get("ended_at")),
        recap=recap,
    )


def _empty(key: str, info: SessionInfo) -> Session:
    """Return a stored session without its messages."""
    created, updated = (info.metadata.get(name) for name in _TIMES)
    return Session(
        key=key,
        created_at=datetime.fromisoformat(str(created or to_local(info.created_at))),
        updated_at=datetime.fromisoformat(str(updated or to_local(info.updated_at))),
        metadata=_from_state(info.metadata),
        provider_state=ProviderConversationState.from_private_record(
            info.metadata.get(_PROVIDER_STATE)
        ),
    )


def _header(session: Session) -> dict[str, Any]:
    return {
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": session.metadata,
    }
