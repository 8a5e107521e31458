"""What the server's errors mean.

Three things are told apart. *Lost*: the connection is gone, or can no longer be trusted. *Again*:
the transaction was undone because of what others did, and may be tried again. Everything else is
said in our words.
"""

from __future__ import annotations

from typing import Final

import psycopg

from holdfast.errors import (
    Damaged,
    HoldfastError,
    StorageError,
    StoreFull,
    StoreUnavailable,
)

_AGAIN: Final = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "23505",  # unique_violation: somebody else was first, the verb will find it
        "55P03",  # lock_not_available: somebody held a session for very long
        "HF001",  # ours: what was supposed of a session is not so
    }
)
_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300"})
# A server that only reads, as a standby does until it takes over: another link may lead elsewhere.
_READS: Final = "25006"
_SLOW: Final = frozenset({"55P03", "57014"})  # and query_canceled
_FULL: Final = frozenset({"53100", "53200"})
_DAMAGED: Final = frozenset({"XX001", "XX002"})


def is_again(error: BaseException) -> bool:
    """Return whether a transaction was undone because of others."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _AGAIN


def is_lost(error: BaseException) -> bool:
    """Return whether an error ends the connection."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _LOST or state == _READS or state.startswith("08")


def translate(error: psycopg.Error, then: str) -> HoldfastError:
    """Say an error in our words; `then` says what that means for what was asked."""
    told = _in_our_words(error, then)
    told.__cause__ = error  # It may be raised later, where nobody knows the cause any more.
    return told


def _in_our_words(error: psycopg.Error, then: str) -> HoldfastError:
    state, said = error.sqlstate, _first_line(error)
    if state == _READS:
        return StoreUnavailable(
            f"the database only reads ({said}); {then} Connect to the primary server."
        )
    if is_lost(error):
        return StoreUnavailable(f"the database cannot be reached ({said}); {then}")
    if state in _SLOW:
        return StoreUnavailable(
            f"the database took too long ({said}); {then} Try again, and see `holdfast doctor` if "
            "it stays so."
        )
    if state in _FULL:
        return StoreFull(f"the database has no room ({said}); {then}")
    if state in _DAMAGED:
        return Damaged(f"the database is damaged ({said}); {then}")
    if state in {"42501", "3F000", "42P01"}:
        return StoreUnavailable(
            f"the role may not use the store's tables, or they are gone ({said}); {then} "
            "docs/postgresql.md has the grants it needs."
        )
    return StorageError(f"the database refused ({state}: {said}); {then}")


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return " ".join(text.split("\n", 1)[0].split()) or type(error).__name__
