"""What went wrong, said to somebody at a shell.

The library's errors say what happened, what is safe, and which call helps. Here the call is
replaced by the command that helps, and the kind of error becomes the exit code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from holdfast import errors
from holdfast.cli.opening import NoStoreYet
from holdfast.cli.visible import visible
from holdfast.cli.wording import ago, words
from holdfast.errors import HoldfastError
from holdfast.records import Candidate

FOUND_A_PROBLEM: Final = 1
SAID_NO: Final = 1
MODEL_FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
STORAGE: Final = 5
NO_MODEL: Final = 6
INTERRUPTED: Final = 130
NOBODY_READS: Final = 141

_CODES: Final[tuple[tuple[type[HoldfastError], int], ...]] = (
    (errors.NotFound, NOT_FOUND),
    (errors.AmbiguousRef, NOT_FOUND),
    (errors.Conflict, CONFLICT),
    (errors.StorageError, STORAGE),
    (errors.ModelMissing, NO_MODEL),
    (errors.AgentError, MODEL_FAILED),
    (errors.Invalid, USAGE),
)

# The first that fits is said.
_HINTS: Final[tuple[tuple[type[HoldfastError], str], ...]] = (
    (NoStoreYet, "`holdfast append KEY TEXT` begins one; --store or $HOLDFAST_URL names another"),
    (errors.MessageNotFound, "`holdfast show` tells the numbers, `holdfast tree` the branches"),
    (errors.SessionNotFound, "`holdfast ls` lists the sessions, with --trashed those in the trash"),
    (errors.AmbiguousRef, "name one of these by its id, or as much of it as tells it apart"),
    (errors.IdConflict, "leave --id out, or give the new text an id of its own"),
    (errors.KeyTaken, "choose another key, or use that session"),
    (errors.Diverged, "copy to another store; `holdfast purge --store TO` erases what is there"),
    (errors.SessionBusy, "wait for it to end its turn; `holdfast append` works meanwhile"),
    (errors.HeadMoved, "read what is new with `holdfast show`, then try again"),
    (errors.Damaged, "`holdfast doctor` tells what can still be read"),
    (errors.StoreFull, "free some space, then try again"),
    (errors.StoreMoved, "put the file back, or name the store with --store"),
    (
        errors.OutcomeUnknown,
        "`holdfast show` tells whether it was done; `append` with the same --id stores once",
    ),
    (errors.SchemaTooNew, "update holdfast; the store was left as it is"),
    (errors.ReadOnly, "check who may write there: `holdfast doctor`"),
    (errors.StoreUnavailable, "check the path or URL; `holdfast doctor` looks at the store"),
    (errors.UnknownBackend, "a store is a path, sqlite:///path.db or postgresql://host/database"),
    (errors.BadRef, "name a session by its id, key or title"),
    (errors.TooLarge, "split it, or store it as a file"),
    (errors.ModelMissing, "`holdfast models` lists what can be used here"),
    (errors.ContextTooLong, "make the window smaller: [window] max_tokens in holdfast.toml"),
    (errors.AgentError, "what was said before is kept; try again, or choose another --model"),
    (errors.BadConfig, "`holdfast config` shows what is set, and where"),
    (errors.Invalid, "see --help"),
)
_DEFAULT_HINT: Final = "`holdfast doctor` looks at the store"
_CLAUSE: Final = re.compile(r"(?<=[.;:]) +")
_API: Final = re.compile(
    r"\b(store|session|turn|Store|Session)(\.\w+)?\(|\b(expect|keyless|parent)="
)


def exit_code(error: HoldfastError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), STORAGE)


def what_happened(error: BaseException) -> str:
    """Say an error in one line, without the calls a program would make next."""
    clauses = [c for c in _CLAUSE.split(str(error)) if not _API.search(c)]
    return " ".join(clauses).rstrip(" .;:") or type(error).__name__


def hint_for(error: HoldfastError) -> str:
    """Return what to do next at a shell."""
    for note in getattr(error, "__notes__", ()):
        return str(note)
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), _DEFAULT_HINT)


@contextmanager
def hint(kind: type[HoldfastError], what: str) -> Iterator[None]:
    """Within this block, an error of this kind has a hint of its own."""
    try:
        yield
    except kind as error:
        error.add_note(what)
        raise


def tell(error: HoldfastError, *, as_json: bool) -> int:
    """Print an error and what helps; give the exit code."""
    code = exit_code(error)
    if as_json:
        from holdfast.cli.machine import print_line

        said: dict[str, object] = {
            "error": type(error).__name__,
            "message": what_happened(error),
            "hint": hint_for(error),
            "exit_code": code,
        }
        if isinstance(error, errors.AmbiguousRef):
            said["candidates"] = error.candidates
        print_line(said, sys.stderr)
    else:
        candidates = error.candidates if isinstance(error, errors.AmbiguousRef) else ()
        complain(what_happened(error), hint_for(error), [_line(found) for found in candidates])
    return code


def _line(found: Candidate) -> str:
    """Tell a session from others it could be taken for."""
    names = [name for name in (found.key, found.title or found.preview) if name]
    where = " (in the trash)" if found.trashed else ""
    return f"{found.id}  {ago(found.updated_at):>10}  {': '.join(map(words, names))}{where}"


def complain(what: str, hint: str | None = None, details: Sequence[str] = ()) -> None:
    """Print what is wrong, in one line, then its details, and below them what helps."""
    sys.stderr.write(f"holdfast: {visible(what)}\n")
    for line in details:
        sys.stderr.write(f"    {visible(line)}\n")
    if hint is not None:
        sys.stderr.write(f"    hint: {visible(hint)}\n")
