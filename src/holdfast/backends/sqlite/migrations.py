"""The schema, in numbered steps.

`PRAGMA user_version` tells how many steps a file has seen. A new store is made whole in a file of
another name and then renamed, so nobody ever sees half of one. An older store is brought up to date
under the lock, in one transaction, after a backup, and the counts of what it holds are compared
before the commit. A store with more steps than this program knows is refused and left untouched.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from holdfast import ids
from holdfast.backends.sqlite import place
from holdfast.backends.sqlite.connection import APPLICATION_ID, connect, translate
from holdfast.backends.sqlite.turnstile import Turnstile
from holdfast.backends.statements import load_steps
from holdfast.errors import Damaged, SchemaTooNew, StorageError, StoreFull, StoreUnavailable

_COUNTED: Final = ("sessions", "heads", "branches", "messages", "turns", "blobs")

Steps = dict[int, str]


def load() -> Steps:
    """Read the numbered steps."""
    return load_steps(__package__)


def version_of(connection: apsw.Connection, path: Path) -> int:
    """Tell how many steps a file has seen; refuse one that is not ours."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreUnavailable(
            f"{path} is a database of another program; it was left untouched. Choose another path."
        )
    return _pragma(connection, "user_version")


def check_version(found: int, known: int, path: Path) -> None:
    """Refuse a store of a newer program."""
    if found > known:
        raise SchemaTooNew(
            f"{path} was written by a newer Holdfast (format {found}, this one knows {known}); it "
            "was left untouched. Update this program to open it."
        )


def create(path: Path, steps: Steps, lock: Turnstile, *, vfs: str | None, deadline: float) -> None:
    """Make a new store, unless another process just did."""
    lock.enter_within(deadline)
    try:
        if not path.exists():
            place.refuse_orphaned_log(path)
            _make(path, steps, vfs)
    except apsw.Error as error:
        raise translate(error, "no store was made.") from error
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull(f"the disk is full ({error}); no store was made.") from error
        raise StoreUnavailable(f"{path} cannot be made ({error}).") from error
    finally:
        lock.leave()


def _make(path: Path, steps: Steps, vfs: str | None) -> None:
    draft = path.with_name(f".{path.name}.{ids.session_id()}.new")
    try:
        _build(draft, steps, vfs)
        draft.rename(path)
    finally:
        for leftover in (draft, *(place.companion(draft, s) for s in place.COMPANIONS)):
            leftover.unlink(missing_ok=True)
    place.sync_directory(path.parent)


def _build(path: Path, steps: Steps, vfs: str | None) -> None:
    place.create_private(path)
    connection = connect(path, readonly=False, durability="power", busy=1.0, vfs=vfs)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        with connection:
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            for number, script in steps.items():
                connection.execute(script)
                connection.execute(f"PRAGMA user_version={number}")
        # The file must be whole without its log before it gets its name.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def migrate(
    connection: apsw.Connection,
    path: Path,
    steps: Steps,
    lock: Turnstile,
    *,
    deadline: float,
    backup: Callable[[Path], object],
) -> None:
    """Bring an older store up to date: backup first, counts compared, all or nothing."""
    lock.enter_within(deadline)
    try:
        before = version_of(connection, path)
        wanted = {number: script for number, script in steps.items() if number > before}
        if not wanted:
            return
        copy = _unused(path.with_name(f"{path.name}.before-{max(wanted)}"))
        backup(copy)
        with connection:
            counts = _counts(connection)
            for number, script in wanted.items():
                connection.execute(script)
                connection.execute(f"PRAGMA user_version={number}")
            if _counts(connection) != counts:
                raise Damaged(
                    f"bringing {path} up to date would have lost rows; nothing was changed. The "
                    f"backup {copy} holds everything."
                )
    except apsw.SQLError as error:
        raise StorageError(
            f"{path} could not be brought up to date ({error}); nothing was changed."
        ) from error
    except apsw.Error as error:
        raise translate(error, f"{path} was not brought up to date.") from error
    finally:
        lock.leave()


def _unused(wanted: Path) -> Path:
    """Return a name that nothing has: the backup of an earlier attempt may lack what came since."""
    names = (wanted.with_name(f"{wanted.name}.{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], names) if not name.exists())


def _counts(connection: apsw.Connection) -> list[int]:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    return [
        connection.execute(f"SELECT count(*) FROM {table}").get  # noqa: S608 - our own names
        for table in _COUNTED
        if table in tables
    ]


def _pragma(connection: apsw.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").get
    return value
