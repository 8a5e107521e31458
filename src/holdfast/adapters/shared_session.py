"""What adapters do alike when they open a session that others write to, and when they read it."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from holdfast import AsyncSession, Message, Session, Store
from holdfast.errors import ReadOnly, SessionBusy, SessionNotFound

_NOT_FOR_MODELS: Final = ("hidden", "command")


def is_for_models(message: Message) -> bool:
    """True unless a message is damaged, erased or flagged as not for models: as in windows."""
    flagged = any(message.metadata.get(flag) for flag in _NOT_FOR_MODELS)
    return not flagged and message.status not in {"damaged", "erased"}


def find_session(store: Store, key: str) -> Session | None:
    """Return the session with this key, `recovered`; None if there is none."""
    with suppress(SessionNotFound):
        return recovered(store.session(key, create=False))
    return None


def recovered(session: Session) -> Session:
    """Return a session after closing a turn that a crash left open, if it may be closed.

    What its reply had is a message then, and comes before what is appended next.
    """
    if session.interrupted:
        with suppress(ReadOnly, SessionBusy):
            session.recover()
    return session


async def async_recovered(session: AsyncSession) -> AsyncSession:
    """Return a session after closing a turn that a crash left open; see `recovered`."""
    if session.interrupted:
        with suppress(ReadOnly, SessionBusy):
            await session.recover()
    return session
