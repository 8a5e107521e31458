"""The fixes of `doctor --fix`, none of which can lose data.

* Other users' permissions on the store's files and directory are removed.
* Turns that a crash left open are closed, with everything that was stored of them.
* Purges that were interrupted are finished.
* Of a damaged store everything readable is copied into a new one beside it. The damaged file is not
  written to, not even to close turns: those are closed in the copy.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

import holdfast
from holdfast import url
from holdfast.cli.commands.recover import recover_all
from holdfast.cli.errors import hint_for, what_happened
from holdfast.cli.output.humanize import count
from holdfast.cli.store_access import open_or_create, open_readonly
from holdfast.errors import HoldfastError, Invalid
from holdfast.storage import registry
from holdfast.storage.sqlite import location
from holdfast.written_files import DAMAGED_DIRECTORY, SALVAGED


class Fix(msgspec.Struct, frozen=True):
    """A fix that was applied or failed; `next` are lines that say what remains to do."""

    what: str
    ok: bool = True
    next: tuple[str, ...] = ()


_DEFAULT_NAME: Final = "agent.db"  # names the salvaged copy of a store that is not in a file
_EXPORT_HINT: Final = "To keep all that can be read: holdfast export --no-redact -o sessions.jsonl"


def apply_fixes(store: str | None, *, damaged: bool) -> list[Fix]:
    """Apply the fixes and return what was done."""
    path = registry.store_file(url.parse_url(store, os.environ))
    fixed = [] if path is None else list(_restrict_permissions(path))
    try:
        if not damaged:
            with open_or_create(store) as opened:
                fixed += _recover(opened)
                fixed += _finish_purges(opened)
        else:
            fixed += _salvage(store, path or Path(_DEFAULT_NAME).absolute())
    except Invalid as error:  # This kind of store cannot be salvaged to a file.
        fixed.append(Fix(what_happened(error), ok=False, next=(_EXPORT_HINT,)))
    except HoldfastError as error:
        fixed.append(Fix(what_happened(error), ok=False, next=(f"hint: {hint_for(error)}",)))
    return fixed


# ---------------------------------------------------------------------------------- permissions


def _restrict_permissions(path: Path) -> Iterator[Fix]:
    """Remove the permissions of all users but the owner."""
    for one in (path.parent, *location.files_of(path)):
        wanted = _private_mode(one)
        if wanted is None:
            continue
        try:
            one.chmod(wanted)
        except OSError as error:
            yield Fix(f"permissions of {one}: {error.strerror}", ok=False)
        else:
            others = "write there" if one == path.parent else "read it"
            yield Fix(f"permissions of {one} are {wanted:o} now: no other user may {others}")


def _private_mode(path: Path) -> int | None:
    """Return the mode a path should have; None if it has it, or belongs to another user."""
    try:
        found = path.lstat()
    except OSError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        return None
    if stat.S_ISREG(found.st_mode):
        wanted = mode & ~0o077
    elif stat.S_ISDIR(found.st_mode) and not mode & stat.S_ISVTX:
        wanted = mode & ~0o022
    else:
        return None
    return None if wanted == mode else wanted


# ------------------------------------------------------------------------------- turns, damage


def _recover(opened: holdfast.Store) -> Iterator[Fix]:
    for session, what in recover_all(opened):
        turn = what.turn_id.rpartition(".")[2]
        kept = count(what.messages, "message")
        unknown = (
            f"; the outcome of {count(len(what.unknown_tools), 'tool call')} is unknown"
            if what.unknown_tools
            else ""
        )
        yield Fix(f"turn {turn} of {session.key or session.id} is closed, with {kept}{unknown}")


def _finish_purges(opened: holdfast.Store) -> Iterator[Fix]:
    erased = opened.finish_purges()
    if erased:
        yield Fix(f"interrupted purges are finished: {count(erased, 'message')} erased")


def _salvage(store: str | None, path: Path) -> Iterator[Fix]:
    """Copy everything readable into a new store beside the damaged one."""
    new = _unused_name(path)
    with open_readonly(store) as opened:
        report = opened.salvage(new)
    amounts = f"{count(report.sessions, 'session')} and {count(report.messages, 'message')}"
    yield Fix(
        f"{amounts} could be read and were copied into {new}; {path} was not changed",
        next=_switch_commands(path, new),
    )
    with open_or_create(str(new)) as opened:
        yield from _recover(opened)


def _unused_name(path: Path) -> Path:
    """Return an unused name for a new store beside this one."""
    names = (f"{path.stem}{SALVAGED}{n or ''}{path.suffix}" for n in range(10_000))
    return next(one for name in names if not (one := path.with_name(name)).exists())


def _switch_commands(path: Path, new: Path) -> tuple[str, ...]:
    """Return the commands to type. They use `backup`, which includes the new store's WAL."""
    aside, old, copy = (
        shlex.quote(str(one)) for one in (path.with_name(path.stem + DAMAGED_DIRECTORY), path, new)
    )
    return (
        f"To inspect it:  holdfast ls --store {copy}",
        "To switch to it, once no process uses the store:",
        f"  mkdir {aside} && mv {old}* {aside} && holdfast backup --store {copy} {old}",
    )
