"""Errors as a command reports them: one line, a hint, and an exit code.

The library's errors say what happened, what is safe, and which method to call next. Here the
method is replaced by a command, and the type of the error determines the exit code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from holdfast import errors
from holdfast.cli.output.humanize import ago, shorten
from holdfast.cli.output.sanitize import sanitize
from holdfast.cli.store_access import NoStoreYet, UntrustedStore
from holdfast.errors import HoldfastError
from holdfast.values import Candidate

PROBLEM_FOUND: Final = 1
DECLINED: Final = 1
MODEL_FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
STORAGE: Final = 5
NO_MODEL: Final = 6
NOT_INSTALLED: Final = 6
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_CODES: Final[tuple[tuple[type[HoldfastError], int], ...]] = (
    (errors.NotFound, NOT_FOUND),
    (errors.AmbiguousRef, NOT_FOUND),
    (errors.Conflict, CONFLICT),
    (errors.StorageError, STORAGE),
    (errors.ModelMissing, NO_MODEL),
    (errors.AgentError, MODEL_FAILED),
    (errors.Invalid, USAGE),
)

# The first matching type determines the hint.
_HINTS: Final[tuple[tuple[type[HoldfastError], str], ...]] = (
    (NoStoreYet, "`holdfast append KEY TEXT` creates one; --store or $HOLDFAST_URL names another"),
    (
        errors.MessageNotFound,
        "`holdfast show` lists the message numbers, `holdfast tree` the branches",
    ),
    (errors.SessionNotFound, "`holdfast ls` lists the sessions, with --trashed those in the trash"),
    (errors.AmbiguousRef, "use the id of one of these, or enough of its first characters"),
    (errors.IdConflict, "omit --id, or give the new text an id of its own"),
    (errors.KeyTaken, "choose another key, or use that session"),
    (errors.Diverged, "copy to another store; `holdfast purge --store TO` erases what is there"),
    (errors.SessionBusy, "wait for it to end its turn; `holdfast append` works meanwhile"),
    (errors.HeadMoved, "read what is new with `holdfast show`, then try again"),
    (errors.Damaged, "`holdfast doctor` shows what can still be read"),
    (errors.StoreFull, "free some space, then try again"),
    (errors.StoreMoved, "close the store in all processes, then try again; or put the file back"),
    (
        errors.OutcomeUnknown,
        "`holdfast show` shows whether it was done; `append` with the same --id stores once",
    ),
    (errors.SchemaTooNew, "update holdfast; the store was not changed"),
    (errors.ReadOnly, "check the permissions: `holdfast doctor` shows them"),
    (errors.StoreUnavailable, "check the path or URL; `holdfast doctor` checks the store"),
    (errors.UnknownBackend, "a store is a path, sqlite:///path.db or postgresql://host/database"),
    (errors.BadRef, "name a session by its id, key or title"),
    (errors.TooLarge, "split it, or store it as a file"),
    (errors.ModelMissing, "`holdfast models` lists what can be used here"),
    (errors.ContextTooLong, "make the window smaller: [window] max_tokens in holdfast.toml"),
    (errors.AgentError, "the conversation so far is kept; try again, or choose another --model"),
    (
        UntrustedStore,
        "`holdfast show` reads it without risk; --trust takes it for yours, now and from now on",
    ),
    (errors.BadConfig, "`holdfast config` shows each setting, and where it is set"),
    (errors.Invalid, "see --help"),
)
_DEFAULT_HINT: Final = "`holdfast doctor` checks the store"
_CLAUSE: Final = re.compile(r"(?<=[.;:]) +")
_API_CALL: Final = re.compile(
    r"\b(store|session|turn|Store|Session)(\.\w+)?\(|\b(expect|keyless|parent)="
)


def exit_code(error: HoldfastError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), STORAGE)


def what_happened(error: BaseException) -> str:
    """Return an error's message in one line, without the API calls it suggests."""
    clauses = [c for c in _CLAUSE.split(str(error)) if not _API_CALL.search(c)]
    return " ".join(clauses).rstrip(" .;:") or type(error).__name__


def hint_for(error: HoldfastError) -> str:
    """Return what to do next at a shell; a note on the error comes first."""
    for note in getattr(error, "__notes__", ()):
        return str(note)
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), _DEFAULT_HINT)


@contextmanager
def hint(kind: type[HoldfastError], what: str) -> Iterator[None]:
    """Attach a specific hint to errors of this type that are raised in the block."""
    try:
        yield
    except kind as error:
        error.add_note(what)
        raise


def report_error(error: HoldfastError, *, as_json: bool) -> int:
    """Print an error and its hint to standard error; return the exit code."""
    code = exit_code(error)
    if as_json:
        from holdfast.cli.output.json_output import print_line

        document: dict[str, object] = {
            "error": type(error).__name__,
            "message": what_happened(error),
            "hint": hint_for(error),
            "exit_code": code,
        }
        if isinstance(error, errors.AmbiguousRef):
            document["candidates"] = error.candidates
        print_line(document, sys.stderr)
    else:
        candidates = error.candidates if isinstance(error, errors.AmbiguousRef) else ()
        print_error(
            what_happened(error), hint_for(error), [_candidate_line(found) for found in candidates]
        )
    return code


def _candidate_line(found: Candidate) -> str:
    """Return one line that distinguishes a matching session from the others."""
    names = [name for name in (found.key, found.title or found.preview) if name]
    where = " (in the trash)" if found.trashed else ""
    return f"{found.id}  {ago(found.updated_at):>10}  {': '.join(map(shorten, names))}{where}"


def print_error(what: str, hint: str | None = None, details: Sequence[str] = ()) -> None:
    """Print a problem in one line to standard error, then its details, then the hint."""
    sys.stderr.write(f"holdfast: {sanitize(what)}\n")
    for line in details:
        sys.stderr.write(f"    {sanitize(line)}\n")
    if hint is not None:
        sys.stderr.write(f"    hint: {sanitize(hint)}\n")
