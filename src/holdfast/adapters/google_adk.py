"""Google ADK: a `BaseSessionService` in a store.

A session's key is `APP/USER/SESSION`, with `/` and `%` within a name escaped. An event that says
something is a message under the event's id, with its dict kept beside the parts; any other event is
a record behind the message before it. Each event is stored once, after the newest one: a session
object that other writers have overtaken loses nothing and refuses nothing, except a compaction that
would hide events it has not seen.

State is stored in one write with the event that changes it. The states of an app and of a user are
records of the store. The state of a session is the sum of the changes behind its events, so it goes
back with them; some records hold all of it, so that few have to be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Final, NamedTuple
from zlib import crc32

from holdfast import (
    AsyncSession,
    AsyncStore,
    Head,
    Message,
    Record,
    Session,
    Store,
    errors,
)
from holdfast.adapters.google_adk_events import EVENT, to_entry, to_event
from holdfast.adapters.shared_session import recovered

try:
    from google.adk import sessions as adk
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.input_validation_error import InputValidationError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as error:
    raise ImportError(
        f"google-adk is not installed: {errors.install_command('google-adk')}", name=error.name
    ) from error
try:
    from google.adk.errors import StaleSessionError
except ImportError:  # Older versions raise what has become its base class.
    StaleSessionError = ValueError

_STATE: Final = "google_adk.state"
_NAMES: Final = 3
_NO_EVENTS: Final = GetSessionConfig(num_recent_events=0)
_PAGE_SESSIONS: Final = 200
_PAGE_CHANGES: Final = 64
# One in so many changes of a session's state is followed by a record of the whole state.
_WHOLE_STATE_EVERY: Final = 32

_log = logging.getLogger(__name__)


class _Changes(NamedTuple):
    """A change of state by what it belongs to; of `temp:` keys nothing is kept."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]


class HoldfastSessionService(adk.BaseSessionService):
    """The sessions of all apps and users, in a store that the caller opens and closes.

    `scope` is that of the sessions it creates. `agent` is the author of replies that another
    program stored without a name; if there is none, it is the app's name.
    """

    def __init__(self, store: Store, *, scope: str | None = None, agent: str | None = None) -> None:
        self._store = store
        self._async_store = AsyncStore(store)
        self._scope = scope
        self._agent = agent

    # ------------------------------------------------------------------------------- sessions

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> adk.Session:
        """Create a session and return it; `AlreadyExistsError` if there is one with this id."""
        session_id = (session_id or "").strip() or Event.new_id()
        session = adk.Session(app_name=app_name, user_id=user_id, id=session_id)
        token = Event.new_id()
        with _adk_errors(session_id):
            changes = _changes(state or {})
            while True:
                entries = await self._shared_changes(app_name, user_id, changes, token)
                if changes.session:
                    entries.append(_change(changes.session, whole=True))
                try:
                    stored = await asyncio.to_thread(
                        self._store.create,
                        key=_key(session),
                        entries=entries,
                        scope=self._scope,
                        agent=self._agent or app_name or None,
                    )
                except errors.PreconditionFailed:
                    continue
                return await asyncio.to_thread(self._loaded, session, stored)

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> adk.Session | None:
        """Return a session with its events, or those that `config` asks for; None if not found.

        With `after_timestamp` all events are read.
        """
        session = adk.Session(app_name=app_name, user_id=user_id, id=session_id.strip())
        with _adk_errors(session.id):
            try:
                stored = await asyncio.to_thread(self._stored, session)
            except errors.SessionNotFound:
                return None
            return await asyncio.to_thread(self._loaded, session, stored, config)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Return the sessions of an app, or of one of its users, without their events."""
        with _adk_errors():
            found = await asyncio.to_thread(self._listed, app_name, user_id)
        found.sort(key=lambda one: (one.last_update_time, one.user_id, one.id))
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Move a session to the trash, from which `store.restore` brings it back."""
        session = adk.Session(app_name=app_name, user_id=user_id, id=session_id.strip())
        with _adk_errors(session.id), suppress(errors.SessionNotFound):
            stored = await asyncio.to_thread(self._stored, session)
            await self._async_store.trash(stored.id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix `user:`."""
        with _adk_errors():
            found = await self._async_store.record(_STATE, scope=_path(app_name, user_id))
        return _values(found)

    # --------------------------------------------------------------------------------- events

    async def append_event(self, session: adk.Session, event: Event) -> Event:
        """Store an event with the state it changes, once, and add it to the session object.

        A partial event is not stored. `SessionNotFoundError` if the session was deleted,
        `AlreadyExistsError` if another event has this id, `StaleSessionError` if this is a
        compaction of a time in which other writers have said something.
        """
        if event.partial:
            return event
        with _adk_errors(session.id, event.id):
            stored = await asyncio.to_thread(self._stored, session)
            changes = _changes(event.actions.state_delta)
            await self._append(stored, session, event, changes)
        if not _has_event(session, event):
            await super().append_event(session, event)
            session.last_update_time = event.timestamp
        if changes.session and not crc32(event.id.encode(errors="replace")) % _WHOLE_STATE_EVERY:
            await asyncio.to_thread(_store_whole_state, stored)
        return event

    async def _append(
        self, stored: Session, session: adk.Session, event: Event, changes: _Changes
    ) -> None:
        token = f"{stored.id} {event.id}"
        entries = [to_entry(event)]
        if changes.session:
            entries.append(_change(changes.session, id=f"state {event.id}"))
        while True:
            shared = await self._shared_changes(session.app_name, session.user_id, changes, token)
            expect = None
            if event.actions.compaction is not None:
                expect = await asyncio.to_thread(self._checked_head, stored, session, event)
            try:
                await AsyncSession(stored).append(*entries, *shared, expect=expect)
            except (errors.PreconditionFailed, errors.HeadMoved):
                continue  # Another writer was first: build on what it stored.
            return

    async def _shared_changes(
        self, app_name: str, user_id: str, changes: _Changes, token: str
    ) -> list[Message | Record]:
        """Return the new states of the app and the user; `token` tells a retry from a change."""
        found: list[Message | Record] = []
        for scope, values in (
            (_path(app_name), changes.app),
            (_path(app_name, user_id), changes.user),
        ):
            if values:
                old = await self._async_store.record(_STATE, scope=scope)
                data: Any = {"values": {**_values(old), **values}}
                after = None if old is None else old.id
                id = f"{scope} {token}"
                found.append(Record(_STATE, id=id, scope=scope, data=data, after=after))
        return found

    def _checked_head(self, stored: Session, session: adk.Session, event: Event) -> Head:
        """Return the head that a compaction is stored at: it hides what was said in its time."""
        compaction = event.actions.compaction
        head, seen = stored.head(), {one.id for one in session.events}
        for one in self._events(stored, session.app_name):
            within = compaction.start_timestamp <= one.timestamp <= compaction.end_timestamp
            if within and one.content and one.id not in seen:
                raise StaleSessionError(
                    f"session {session.id} has events of other writers that this compaction would "
                    "hide; nothing was stored. Read it with get_session and compact it again."
                )
        return head

    # -------------------------------------------------------------------------------- reading

    def _stored(self, session: adk.Session) -> Session:
        return recovered(self._store.session(_key(session), create=False))

    def _loaded(
        self, session: adk.Session, stored: Session, config: GetSessionConfig | None = None
    ) -> adk.Session:
        """Return a session with its events, its state and the time of its newest event.

        The state is read last: it may be newer than the events, but not older.
        """
        app_name, user_id = session.app_name, session.user_id
        events = self._configured(stored, app_name, config)
        newest = events[-1:] or self._events(stored, app_name, limit=1)
        session.events = events
        session.last_update_time = (
            newest[0].timestamp if newest else stored.info().created_at.timestamp()
        )
        session.state = _session_state(stored)
        for prefix, scope in (
            (adk.State.APP_PREFIX, _path(app_name)),
            (adk.State.USER_PREFIX, _path(app_name, user_id)),
        ):
            values = _values(self._store.record(_STATE, scope=scope))
            session.state |= {prefix + name: value for name, value in values.items()}
        return session

    def _configured(
        self, stored: Session, app_name: str, config: GetSessionConfig | None
    ) -> list[Event]:
        limit = None if config is None else config.num_recent_events
        if limit == 0:
            return []
        if config is None or config.after_timestamp is None:
            return self._events(stored, app_name, limit=limit)
        after, found = config.after_timestamp, self._events(stored, app_name)
        return [one for one in found if one.timestamp >= after][-limit if limit else None :]

    def _listed(self, app_name: str, user_id: str | None) -> list[adk.Session]:
        prefix = _path(app_name) if user_id is None else _path(app_name, user_id)
        found: dict[str, adk.Session] = {}
        cursor: str | None = None
        while True:
            page = self._store.sessions(key_prefix=prefix, limit=_PAGE_SESSIONS, cursor=cursor)
            for info in page:
                names = _names(info.key or "")
                if names is not None and info.state != "damaged":
                    session = adk.Session(app_name=names[0], user_id=names[1], id=names[2])
                    with suppress(errors.SessionNotFound):
                        stored = self._store.get(info.id)
                        found[info.id] = self._loaded(session, stored, _NO_EVENTS)
            cursor = page.cursor
            if cursor is None:
                return [*found.values()]

    def _events(self, stored: Session, app_name: str, *, limit: int | None = None) -> list[Event]:
        """Return the newest events, in the order in which they were stored."""
        entries = _entries(stored, limit)
        messages = [entry for entry in entries if isinstance(entry, Message)]
        files = (file for message in messages for file in message.files)
        hashes = {file.sha256 for file in files if file.data is None and file.sha256 is not None}
        blobs = self._store.blobs(*hashes) if hashes else {}
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        author = self._agent or app_name
        found = (to_event(entry, names, blobs, author) for entry in entries)
        return [event for event in found if event is not None]


def _entries(stored: Session, limit: int | None) -> list[Message | Record]:
    """Return the newest messages that are not hidden, and records of events, as of one moment."""
    while True:
        head = stored.head()
        messages = stored.messages(upto=head, limit=limit, hidden=False) if head.seq else []
        records = stored.records(EVENT, limit=limit)
        # Records behind later messages belong to events of which some were not read.
        seen = [record for record in records if (record.seq or 0) <= head.seq]
        if stored.head().branch == head.branch and (limit is None or len(seen) == len(records)):
            break
    entries: list[Message | Record] = [*messages, *seen]
    entries.sort(key=lambda entry: (entry.seq or 0, isinstance(entry, Record)))
    return entries if limit is None else entries[-limit:]


# ----------------------------------------------------------------------------------------- names


def _path(*names: str) -> str:
    """Return names as a path that no other names have; it ends with `/`."""
    return "".join(name.replace("%", "%25").replace("/", "%2F") + "/" for name in names)


def _key(session: adk.Session) -> str:
    return _path(session.app_name, session.user_id, session.id)[:-1]


def _names(key: str) -> list[str] | None:
    """Return the app, user and session of a key; None if it is another program's."""
    names = [name.replace("%2F", "/").replace("%25", "%") for name in key.split("/")]
    return names if len(names) == _NAMES and _path(*names)[:-1] == key else None


@contextmanager
def _adk_errors(session_id: str | None = None, event_id: str | None = None) -> Iterator[None]:
    """Raise the errors of Holdfast in the block as those of ADK."""
    try:
        yield
    except errors.SessionNotFound as error:
        raise SessionNotFoundError(f"Session {session_id} not found.") from error
    except errors.KeyTaken as error:
        raise AlreadyExistsError(f"Session with id {session_id} already exists.") from error
    except errors.IdConflict as error:
        raise AlreadyExistsError(f"Another event with id {event_id} already exists.") from error
    except (errors.Invalid, UnicodeError) as error:
        raise InputValidationError(str(error)) from error


# ----------------------------------------------------------------------------------------- state


def _changes(state: Mapping[str, Any]) -> _Changes:
    """Return a change of state by what it belongs to, as JSON."""
    found = _Changes({}, {}, {})
    for name, value in state.items():
        if name.startswith(adk.State.APP_PREFIX):
            found.app[name.removeprefix(adk.State.APP_PREFIX)] = value
        elif name.startswith(adk.State.USER_PREFIX):
            found.user[name.removeprefix(adk.State.USER_PREFIX)] = value
        elif not name.startswith(adk.State.TEMP_PREFIX):
            found.session[name] = value
    return _Changes(*map(_to_json, found))


def _to_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as JSON; what has no form in it is described by a text, as in ADK."""
    try:
        found: dict[str, Any] = to_jsonable_python(values, inf_nan_mode="null")
    except PydanticSerializationError as error:
        _log.warning("state is stored with texts in place of what is not JSON: %s", error)
        found = to_jsonable_python(values, inf_nan_mode="null", serialize_unknown=True)
    return found


def _change(values: dict[str, Any], *, whole: bool = False, **fields: Any) -> Record:  # noqa: ANN401
    """Return the record of a change of a session's state, or of the whole state."""
    return Record(_STATE, data={"values": values, "whole": whole}, **fields)


def _values(record: Record | None) -> dict[str, Any]:
    return {} if record is None else record.data["values"]  # type: ignore[index,call-overload,return-value]


def _session_state(stored: Session) -> dict[str, Any]:
    """Return the state of a session: its newest changes, up to a record of the whole state."""
    state: dict[str, Any] = {}
    for record in _changes_newest_first(stored):
        state = {**_values(record), **state}
        if record.data["whole"]:  # type: ignore[index,call-overload]
            break
    return state


def _changes_newest_first(stored: Session) -> Iterator[Record]:
    page = stored.records(_STATE, limit=_PAGE_CHANGES)
    while page:
        yield from reversed(page)
        page = stored.records(_STATE, limit=_PAGE_CHANGES, before=page[0].id)


def _store_whole_state(stored: Session) -> None:
    """Store the whole state of a session, unless another writer is changing it."""
    newest = stored.record(_STATE)
    if newest is not None:
        with suppress(errors.PreconditionFailed):
            stored.append(_change(_session_state(stored), whole=True, after=newest.id))


def _has_event(session: adk.Session, event: Event) -> bool:
    """True if a session object has an event already; they are ordered by time."""
    recent = takewhile(lambda one: one.timestamp >= event.timestamp, reversed(session.events))
    return any(one.id == event.id for one in recent)
