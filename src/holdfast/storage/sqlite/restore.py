"""Restoring a backup: a verified copy of it takes the place of a store, which is set aside.

Each step leaves a store that can be opened, or is refused until the restore is run again:

1. The backup is copied beside the store and verified (`backup`). Nothing has changed yet.
2. The store's file and log get a second name, `agent.db.replaced-TIME`, under which they can be
   opened like any store.
3. The copy is renamed over the store's file. If the process dies now, the old log lies beside the
   new file; it belongs to another store, and is not read.
4. The old log and search indexes leave the store's name.

Old and new file are locked meanwhile, so no process opens the one with the log of the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw

from holdfast.errors import Damaged, Invalid, StoreUnavailable, system_errors
from holdfast.storage.sqlite import location, migrations
from holdfast.storage.sqlite.backup import write_copy
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.sqlite.new_file import new_file
from holdfast.storage.sqlite.open_files import is_in_use, lock_exclusively
from holdfast.storage.sqlite.process_lock import ProcessLock
from holdfast.values import RestoreReport
from holdfast.written_files import REPLACED, SEARCH_INDEX

_UNCHANGED: Final = "nothing was restored, and the store is unchanged."
_LOCK_TIMEOUT_S: Final = 5.0


def restore_backup(backup: Path, store: Path) -> RestoreReport:
    """Replace a store by a verified copy of a backup; what was there is set aside.

    Raises `Damaged` if the backup is not sound, and `StoreUnavailable` if the store is in use.
    """
    _check_paths(backup, store)
    with _open(backup) as connection:
        location.prepare_directory(store)
        with _locked(store) as held:
            _finish_interrupted(store)
            with new_file(
                store,
                _UNCHANGED,
                overwrite=True,
                copy_of=store,
                before_naming=lambda new: held.enter_context(lock_exclusively(new)),
            ) as temporary:
                sessions, messages = write_copy(connection, temporary, _UNCHANGED)
                size = temporary.stat().st_size
                replaced = _set_aside(store)
            _detach(store, replaced)
    return RestoreReport(
        path=str(store),
        sessions=sessions,
        messages=messages,
        size=size,
        replaced=None if replaced is None else str(replaced),
    )


def _check_paths(backup: Path, store: Path) -> None:
    if not location.check_file(backup):
        raise Invalid(f"{backup} does not exist; {_UNCHANGED}")
    with suppress(Damaged):  # A damaged store is what a backup is restored for.
        location.check_file(store)
    if store.exists() and store.samefile(backup):
        raise Invalid(f"{backup} is the store itself; {_UNCHANGED}")


@contextmanager
def _open(backup: Path) -> Iterator[apsw.Connection]:
    """Open the backup for reading; raise if it is not a store that this version can read."""
    try:
        with closing(_connect(backup)) as connection:
            found = migrations.schema_version(connection, backup)
            migrations.check_version(found, max(migrations.load()), backup)
            yield connection
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Damaged(
            f"{backup} is not a sound backup ({error}); {_UNCHANGED} `holdfast doctor --store "
            f"{backup}` shows what can still be read."
        ) from error


def _connect(backup: Path) -> apsw.Connection:
    # A complete file is read without a log, so that none is made beside it.
    immutable = not location.wal_size(backup) and not is_in_use(backup)
    return connect(backup, readonly=True, durability="power", busy=1.0, immutable=immutable)


@contextmanager
def _locked(store: Path) -> Iterator[ExitStack]:
    """Hold the store's lock and that of its file, and the locks that are added to what is lent.

    Raises `StoreUnavailable` if any process has the store open.
    """
    with ExitStack() as held:
        lock = ProcessLock(store)
        held.callback(lock.close)
        lock.acquire_within(_LOCK_TIMEOUT_S)
        held.callback(lock.release)
        try:
            held.enter_context(lock_exclusively(store))
        except apsw.BusyError as error:
            raise StoreUnavailable(
                f"{store} is open in another process; {_UNCHANGED} End that process and try again."
            ) from error
        yield held


def _set_aside(store: Path) -> Path | None:
    """Link the store's file and log to a second name and return it; `None` without a store."""
    if not store.exists() and not location.wal_size(store):
        return None
    now = datetime.now(UTC)
    replaced = store.with_name(f"{store.name}.replaced-{now:%Y%m%dT%H%M%S}{now.microsecond:06}")
    for suffix in ("", "-wal"):
        file = location.companion(store, suffix)
        if file.exists():
            os.link(file, location.companion(replaced, suffix))
    location.sync_directory(store.parent)
    return replaced


def _detach(store: Path, replaced: Path | None) -> None:
    """Remove the old log, which was set aside, and move the old search indexes after it."""
    with system_errors("what was replaced cannot be moved", "run the same command again."):
        for suffix in ("-wal", "-shm"):
            location.companion(store, suffix).unlink(missing_ok=True)
        index = re.compile(rf"{re.escape(store.name)}({SEARCH_INDEX}(-wal|-shm)?)")
        for file in list(store.parent.iterdir()):
            if (match := index.fullmatch(file.name)) and replaced is not None:
                file.rename(location.companion(replaced, match[1]))
        location.sync_directory(store.parent)


def _finish_interrupted(store: Path) -> None:
    """Complete or undo what a restore that was killed left.

    Before the new file had the store's name, the store has a second name too many; after that,
    the log beside it is an old one, which has been set aside.
    """
    pattern = re.compile(rf"({re.escape(store.name)}{REPLACED})(-wal)?")
    matches = [m for file in store.parent.iterdir() if (m := pattern.fullmatch(file.name))]
    with system_errors("what an earlier restore left cannot be removed", _UNCHANGED):
        for replaced in {store.with_name(match[1]) for match in matches}:
            if _is_same(replaced, store):
                for suffix in ("", "-wal"):
                    location.companion(replaced, suffix).unlink(missing_ok=True)
            elif _is_same(*(location.companion(path, "-wal") for path in (replaced, store))):
                _detach(store, replaced)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:
        return False
