"""Translating the server's errors.

Three kinds are distinguished. *Connection lost*: it is gone, or can no longer be trusted.
*Retryable*: the transaction was rolled back because of concurrent ones, and may be run again. All
others are raised as Holdfast's errors.
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

_RETRYABLE: Final = frozenset(
    {
        "40001",  # serialization_failure
        "40P01",  # deadlock_detected
        "23505",  # unique_violation: another write was first, the operation will find it
        "55P03",  # lock_not_available: another transaction held a session too long
        "HF001",  # ours: the cached head of a session is stale
    }
)
_CONNECTION_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "53300"})
# A read-only server, as a standby until it takes over: a new connection may reach another one.
_READ_ONLY: Final = "25006"
_TIMED_OUT: Final = frozenset({"55P03", "57014"})  # and query_canceled
# A prepared statement that is missing, or there already: a pooler has lent another process.
_NAME_CONFLICT: Final = frozenset({"26000", "42P05"})
_NO_TRANSACTIONS: Final = "statement pooling mode"  # in what pgbouncer answers to a BEGIN
_FULL: Final = frozenset({"53100", "53200"})
_DAMAGED: Final = frozenset({"XX001", "XX002"})


def is_retryable(error: BaseException) -> bool:
    """True if a transaction was rolled back because of concurrent ones."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _RETRYABLE | _NAME_CONFLICT


def is_name_conflict(error: BaseException) -> bool:
    """True if a name of a prepared statement means something else, or nothing, to the server."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _NAME_CONFLICT


def is_connection_lost(error: BaseException) -> bool:
    """True if an error ends the connection."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in _CONNECTION_LOST or state == _READ_ONLY or state.startswith("08")


def translate(error: psycopg.Error, effect: str) -> HoldfastError:
    """Return the server's error as one of Holdfast's; `effect` says what was stored or changed."""
    translated = _as_holdfast_error(error, effect)
    translated.__cause__ = error  # It may be raised later, outside the `except` that has the cause.
    return translated


def _as_holdfast_error(error: psycopg.Error, effect: str) -> HoldfastError:
    state, reason = error.sqlstate, _first_line(error)
    if state == _READ_ONLY:
        return StoreUnavailable(
            f"the database is read-only ({reason}); {effect} Connect to the primary server."
        )
    if _NO_TRANSACTIONS in str(error):
        return StoreUnavailable(
            f"the pooler in between allows no transactions ({reason}); {effect} Set pool_mode to "
            "transaction or session in its configuration, or connect to the server directly."
        )
    if state in _NAME_CONFLICT:
        return StoreUnavailable(
            f"the pooler in between has mixed up prepared statements ({reason}); {effect} Try "
            "again; if it keeps happening, connect to the server directly."
        )
    if is_connection_lost(error):
        return StoreUnavailable(f"the database cannot be reached ({reason}); {effect}")
    if state in _TIMED_OUT:
        return StoreUnavailable(
            f"the database took too long ({reason}); {effect} Try again; if it keeps happening, "
            "run `holdfast doctor`."
        )
    if state in _FULL:
        return StoreFull(f"the database is out of disk space or memory ({reason}); {effect}")
    if state in _DAMAGED:
        return Damaged(f"the database is damaged ({reason}); {effect}")
    if state in {"42501", "3F000", "42P01"}:
        return StoreUnavailable(
            f"the role may not use the store's tables, or they are gone ({reason}); {effect} "
            "docs/postgresql.md has the grants it needs."
        )
    return StorageError(f"the database refused the request ({state}: {reason}); {effect}")


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return " ".join(text.split("\n", 1)[0].split()) or type(error).__name__
