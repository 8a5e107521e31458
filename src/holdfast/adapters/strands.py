"""Strands: a `SessionRepository` in a store, for its `RepositorySessionManager`.

A session of Strands is the session whose key is its id; the agent that was created first has its
messages there. Each further agent has a session of its own, a `delegate` of the first. A history
that another framework began is continued by the first agent that asks for it.

A message's index is its place in the history, and never changes. The place is decided when it is
stored: a writer that did not know of another's messages has its own stored after them, and its
`message_id` is set to where it is. Every message comes back as it was given; one that Strands did
not write is made from its parts.

A redaction amends the message: nothing of what was redacted is left in the history. The earlier
version is on the branch before it, until `Session.erase`. The states of sessions, agents and
multi-agents are records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import holdfast
from holdfast import Message, Record, Store
from holdfast.adapters.shared_session import find_session
from holdfast.adapters.strands_messages import from_messages, to_message
from holdfast.errors import (
    Conflict,
    IdConflict,
    Invalid,
    KeyTaken,
    NotFound,
    PreconditionFailed,
    install_command,
)

try:
    from strands.agent.conversation_manager import (
        ConversationManager,
        SlidingWindowConversationManager,
    )
    from strands.session.session_repository import SessionRepository
    from strands.types.exceptions import SessionException
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType
except ImportError as error:
    raise ImportError(
        f"strands-agents is not installed: {install_command('strands')}", name=error.name
    ) from error

if TYPE_CHECKING:
    from strands.multiagent.base import MultiAgentBase

State: TypeAlias = dict[str, Any]

_SESSION: Final = "strands.session"
_AGENT: Final = "strands.agent"
_MULTI_AGENT: Final = "strands.multi_agent"


class _Place(NamedTuple):
    """The session that has an agent's messages, its state, and the record that claims it."""

    session: holdfast.Session
    state: State
    claim: tuple[Record, ...] = ()


class HoldfastSessionRepository(SessionRepository):
    """Sessions, agents and messages of Strands in a store.

    `conversation_manager` is the one of agents that continue what another framework began; without
    it, the one that agents have by default.
    """

    def __init__(
        self,
        store: Store,
        *,
        scope: str | None = None,
        conversation_manager: ConversationManager | None = None,
    ) -> None:
        self._store = store
        self._scope = scope
        manager = conversation_manager or SlidingWindowConversationManager()
        self._manager_state: State = manager.get_state()

    # -------------------------------------------------------------------------------- sessions

    def create_session(self, session: Session, **_: object) -> Session:
        """Create a session; `SessionException` if it exists."""
        key = _session_key(session.session_id)
        state = Record(_SESSION, data=session.to_dict())
        with _session_errors():
            self._store.create(key=key, scope=self._scope, entries=[state])
        return session

    def read_session(self, session_id: str, **_: object) -> Session | None:
        """Return a session; None if there is none."""
        with _session_errors():
            found = find_session(self._store, _session_key(session_id))
            if found is None:
                return None
            info, state = found.info(), found.record(_SESSION)
        session = Session(
            session_id=session_id,
            session_type=SessionType.AGENT,
            created_at=info.created_at.isoformat(),
            updated_at=info.updated_at.isoformat(),
        )
        stored = _data_of(state) or {}
        return Session.from_dict({**session.to_dict(), **stored, "session_id": session_id})

    def delete_session(self, session_id: str, **_: object) -> None:
        """Move a session and its further agents' to the trash; `SessionException` if none is."""
        with _session_errors():
            found = self._get(session_id)
            for link in found.children():
                if link.relation == "delegate" and link.state == "live":
                    self._store.trash(link.session_id)
            self._store.trash(found.id)

    # ---------------------------------------------------------------------------------- agents

    def create_agent(self, session_id: str, session_agent: SessionAgent, **_: object) -> None:
        """Create an agent in a session; `SessionException` if it exists."""
        agent_id = session_agent.agent_id
        state = Record(_AGENT, data=session_agent.to_dict(), after=None)
        with _session_errors():
            main = self._get(session_id)
            found, existing = self._session_of(main, agent_id)
            if existing is not None:
                raise SessionException(f"agent {agent_id!r} exists in session {session_id!r}")
            try:
                if found is None:
                    self._create_delegate(main, agent_id, state)
                else:
                    found.append(state)
            except (PreconditionFailed, KeyTaken):  # Another agent was first: look again.
                self.create_agent(session_id, session_agent)

    def read_agent(self, session_id: str, agent_id: str, **_: object) -> SessionAgent | None:
        """Return an agent of a session; None if there is none."""
        with _session_errors():
            found = self._find_agent(session_id, agent_id)
        return None if found is None else SessionAgent.from_dict(found.state)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **_: object) -> None:
        """Store the state of an agent; `SessionException` if it does not exist."""
        with _session_errors():
            place = self._get_agent(session_id, session_agent.agent_id)
            session_agent.created_at = place.state["created_at"]
            changed = Record(_AGENT, data=session_agent.to_dict())
            place.session.append(*place.claim, changed)

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: object) -> None:
        """Store the state of a multi-agent."""
        state = Record(_MULTI_AGENT, key=multi_agent.id, data=multi_agent.serialize_state())
        with _session_errors():
            self._get(session_id).append(state)

    def read_multi_agent(
        self, session_id: str, multi_agent_id: str, **_: object
    ) -> dict[str, Any] | None:
        """Return the state of a multi-agent; None if there is none."""
        with _session_errors():
            found = find_session(self._store, _session_key(session_id))
            return _data_of(None if found is None else found.record(_MULTI_AGENT, multi_agent_id))

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: object) -> None:
        """Store the state of a multi-agent; `SessionException` if it does not exist."""
        id = multi_agent.id
        if self.read_multi_agent(session_id, id) is None:
            raise SessionException(f"multi-agent {id!r} does not exist in session {session_id!r}")
        self.create_multi_agent(session_id, multi_agent)

    # -------------------------------------------------------------------------------- messages

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **_: object
    ) -> None:
        """Store a message at the end; its `message_id` becomes its place in the history."""
        with _session_errors():
            message = to_message(session_message)
            session, _, claim = self._get_agent(session_id, agent_id)
            try:
                head = session.append(*claim, message)
            except PreconditionFailed:  # Another agent was first: look again.
                self.create_message(session_id, agent_id, session_message)
                return
            except IdConflict:  # The same message once more, at another place.
                alias = f"{message.id}#{session_message.message_id}"
                head = session.append(*claim, to_message(session_message, alias))
        session_message.message_id = head.seq - 1

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **_: object
    ) -> SessionMessage | None:
        """Return a message by its index; None if there is none."""
        with _session_errors():
            found = self._find_agent(session_id, agent_id)
            listed = [] if found is None else self._listed(_messages_at(found.session, message_id))
        return listed[0] if listed else None

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **_: object
    ) -> None:
        """Amend a message; `SessionException` if there is none, or another one."""
        index = session_message.message_id
        with _session_errors():
            session = self._get_agent(session_id, agent_id).session
            stored = _messages_at(session, index)
            if not stored:
                raise SessionException(f"message {index} does not exist")
            for before in self._listed(stored):
                _check_same(before, session_message)
                session_message.created_at = before.created_at
            session.amend(stored[0].id, to_message(session_message).parts)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: object
    ) -> list[SessionMessage]:
        """Return up to `limit` messages from an index on."""
        with _session_errors():
            session = self._get_agent(session_id, agent_id).session
            return self._listed(session.messages(after=offset, limit=limit))

    # --------------------------------------------------------------------------------- look-up

    def _get(self, session_id: str) -> holdfast.Session:
        found = find_session(self._store, _session_key(session_id))
        if found is None:
            raise SessionException(f"session {session_id!r} does not exist")
        return found

    def _session_of(
        self, main: holdfast.Session, agent_id: str
    ) -> tuple[holdfast.Session | None, State | None]:
        """Return an agent's session and state; the first session if no agent has that yet."""
        first = _data_of(main.record(_AGENT))
        if first is not None and first["agent_id"] == agent_id:
            return main, first
        found = find_session(self._store, _delegate_key(main, agent_id))
        if found is not None:
            return found, _data_of(found.record(_AGENT))
        return (main if first is None else None), None

    def _create_delegate(self, main: holdfast.Session, agent_id: str, state: Record) -> None:
        self._store.create(
            key=_delegate_key(main, agent_id),
            parent=main,
            relation="delegate",
            scope=self._scope,
            agent=agent_id,
            entries=[state],
        )

    def _find_agent(self, session_id: str, agent_id: str) -> _Place | None:
        main = find_session(self._store, _session_key(session_id))
        if main is None:
            return None
        session, state = self._session_of(main, agent_id)
        if session is not None and state is not None:
            return _Place(session, state)
        if session is not main or not main.head().seq:
            return None
        # Another framework began it.
        state = SessionAgent(agent_id, {}, self._manager_state).to_dict()
        return _Place(main, state, (Record(_AGENT, data=state, after=None),))

    def _get_agent(self, session_id: str, agent_id: str) -> _Place:
        found = self._find_agent(session_id, agent_id)
        if found is None:
            raise SessionException(f"agent {agent_id!r} does not exist in session {session_id!r}")
        return found

    def _listed(self, messages: Sequence[Message]) -> list[SessionMessage]:
        hashes = {f.sha256 for m in messages for f in m.files if f.sha256 is not None}
        return from_messages(messages, blob=self._store.blobs(*hashes).__getitem__)


@contextmanager
def _session_errors() -> Iterator[None]:
    """Translate what Holdfast refuses into `SessionException`; failures of the store stay."""
    try:
        yield
    except (Conflict, Invalid, NotFound) as error:
        raise SessionException(str(error)) from error


def _session_key(session_id: str) -> str:
    """Return the key of a session: its id, unless that could be the key of a further agent."""
    return json.dumps([session_id]) if session_id.startswith("[") else session_id


def _delegate_key(main: holdfast.Session, agent_id: str) -> str:
    return json.dumps([main.id, agent_id], ensure_ascii=False)


def _data_of(record: Record | None) -> State | None:
    return record.data if record is not None and isinstance(record.data, dict) else None


def _messages_at(session: holdfast.Session, index: int) -> list[Message]:
    if not isinstance(index, int):
        raise ValueError(f"message_id: expected an integer, got {index!r}")  # noqa: TRY004 - theirs
    return session.messages(after=index, limit=1) if index >= 0 else []


def _check_same(before: SessionMessage, given: SessionMessage) -> None:
    """Raise `SessionException` if both are known to be different messages."""
    ids = {one.to_message().get("tracking_id") for one in (before, given)} - {None, ""}
    if len(ids) > 1:
        raise SessionException(
            f"message {given.message_id} is another one now, because the history was changed; "
            "nothing was stored"
        )
