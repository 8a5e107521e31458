"""Salvage: copying everything readable from a damaged store into a new one.

The damaged file is only ever read. Rows are copied as they are, with their numbers. What is damaged
goes, with its bytes, into the new store's `quarantine`, and a replacement keeps the rest readable:
a placeholder message with the status `damaged` under the same number, a new session for messages
whose own is lost, a head that matches its history. So the new store reads without error, no history
becomes shorter than it was known to be, and everything that was lost is reported.

The rows are read through SQLite, if it finds the file's structure sound. If not, they are collected
page by page (`page_copy`, `page_scan`): whatever else is lost, a row in a whole page is not.

Each stage relies on the ones before it: sessions, heads and branches (`rebuild_sessions`); their
messages (`rebuild_messages`), which show how long the branches are; the records behind them
(`rebuild_records`); what then is left to repair of branches (`finalize`); turns, drafts, queues and
usage (`rebuild_turns`). All of them write through one `RowCopier` (`copy_rows`), which inserts
messages as every other write does, and computes the checksums at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import apsw
import msgspec

from holdfast import codec
from holdfast.errors import Damaged, StoreUnavailable
from holdfast.storage.sqlite import location, migrations
from holdfast.storage.sqlite.connection import connect, enable_checkpoint_on_close
from holdfast.storage.sqlite.metadata_table import fill_marks
from holdfast.storage.sqlite.new_file import new_file
from holdfast.storage.sqlite.recent_table import fill_recent
from holdfast.storage.sqlite.repair.column_rules import BLOBS, QUARANTINE, TENANTS, text_of
from holdfast.storage.sqlite.repair.copy_rows import RowCopier
from holdfast.storage.sqlite.repair.finalize import Finalizer
from holdfast.storage.sqlite.repair.page_copy import copy_pages
from holdfast.storage.sqlite.repair.page_scan import CONFLICTS, collect_rows
from holdfast.storage.sqlite.repair.rebuild_messages import MessageRebuilder
from holdfast.storage.sqlite.repair.rebuild_records import RecordRebuilder
from holdfast.storage.sqlite.repair.rebuild_sessions import SessionRebuilder
from holdfast.storage.sqlite.repair.rebuild_turns import TurnRebuilder
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE, Values, open_damaged
from holdfast.storage.sqlite.repair.verify import schema_damage, structure, verify
from holdfast.storage.sqlite.transaction import message_capacity
from holdfast.storage.sqlite.wal_check import find_ignored, write_replay
from holdfast.values import Damage, SalvageReport

_SOURCE_UNCHANGED: Final = "The damaged file was not changed."
_NOTHING_SALVAGED: Final = f"nothing was salvaged. {_SOURCE_UNCHANGED}"


def salvage(
    source: Path, target: Path, build: Callable[[Path], None] = migrations.build_store
) -> SalvageReport:
    """Copy everything readable of `source` into a new store at `target`."""
    location.require_utf8(target)
    location.refuse_network(target)
    location.prepare_directory(target)
    location.refuse_orphaned_log(target)
    location.check_file(source)  # SQLite would delete the log beside an empty file.
    with (
        new_file(target, _NOTHING_SALVAGED, copy_of=source) as temporary,
        ExitStack() as stack,
    ):
        damaged = stack.enter_context(_open(source))
        _refuse_newer(damaged, source)
        copy, log_damage = _replay_log(damaged, source, temporary)
        if copy != source:
            damaged = stack.enter_context(_open(copy))
        found = schema_damage(damaged) or structure(damaged)
        if found:
            damaged = stack.enter_context(_collect(copy, temporary))
        build(temporary)
        report = _fill(damaged, temporary, source, collected=bool(found))
    return msgspec.structs.replace(report, damage=(*log_damage, *found, *report.damage))


def _replay_log(
    damaged: apsw.Connection, source: Path, temporary: Path
) -> tuple[Path, list[Damage]]:
    """Return a copy of the store and the damage of its log, if SQLite does not read all of that.

    Without such damage it is the store itself.
    """
    try:
        ignored = find_ignored(damaged, source)
        size = damaged.execute("PRAGMA page_size").get
    except UNREADABLE:
        return source, []
    if ignored is None or not ignored.damaged:
        return source, []
    copy = location.companion(temporary, "-replay")
    write_replay(source, ignored, size, copy)
    return copy, [Damage(what=str(ignored))]


def _open(source: Path) -> AbstractContextManager[apsw.Connection]:
    try:
        return _closing(open_damaged(source))
    except apsw.CantOpenError as error:
        raise StoreUnavailable(
            f"{source} cannot be opened ({error}). If it is in a read-only directory, copy it and "
            "its -wal file to a writable one and salvage the copy."
        ) from error


@contextmanager
def _closing(connection: apsw.Connection) -> Iterator[apsw.Connection]:
    try:
        yield connection
    finally:
        connection.close(force=True)


def _refuse_newer(damaged: apsw.Connection, source: Path) -> None:
    """Raise `SchemaTooNew` if a newer Holdfast wrote the store, as far as its header shows."""
    steps = migrations.load()
    try:
        version = damaged.execute("PRAGMA user_version").get
        if migrations.header_damage(damaged, steps) is not None:
            return
        migrations.check_version(version, max(steps), source)
    except (*UNREADABLE, UnicodeDecodeError):
        return


def _collect(source: Path, temporary: Path) -> AbstractContextManager[apsw.Connection]:
    """Collect the rows of a file with a damaged structure, and open them as a source."""
    copy, rows = location.companion(temporary, "-pages"), location.companion(temporary, "-rows")
    copy_pages(source, copy)
    if not collect_rows(copy, rows):
        raise Damaged(
            f"{source} has no readable row of a store: it is another program's, encrypted, or "
            f"wholly overwritten; {_NOTHING_SALVAGED} Restore a backup with "
            "`holdfast restore-backup FILE`."
        )
    copy.unlink()
    return _closing(open_damaged(rows))


def _fill(source: apsw.Connection, target: Path, path: Path, *, collected: bool) -> SalvageReport:
    """Fill a new store from `source`, which has the rows of the damaged file at `path`."""
    capacity = message_capacity(location.file_size(path) + location.wal_size(path))
    connection = connect(target, readonly=False, durability="power", busy=10.0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        copier = RowCopier(source, connection, capacity=capacity, collected=collected)
        report = _run_stages(copier)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        enable_checkpoint_on_close(connection)
    finally:
        connection.close(force=True)
    return report


def _run_stages(copier: RowCopier) -> SalvageReport:
    sessions = SessionRebuilder(copier)
    messages, turns = MessageRebuilder(copier, sessions), TurnRebuilder(copier)
    records = RecordRebuilder(copier, sessions)
    copier.for_each_row(QUARANTINE, lambda values: _old_quarantine(copier, values))
    if copier.collected:
        copier.for_each_row(CONFLICTS, lambda values: _conflict(copier, values))
    copier.for_each_row(
        TENANTS, lambda values: copier.copy("tenants", copier.repaired_row("tenants", values))
    )
    copier.for_each_row(BLOBS, lambda values: _blob(copier, values))
    sessions.run()
    messages.run()
    records.run()
    Finalizer(copier, sessions).run()
    records.repair_counts()
    turns.run()
    copier.write_checksums()
    fill_marks(copier.target)
    fill_recent(copier.target)
    found = list(copier.damage())
    found += verify(copier.target)  # Empty, unless the damage is of a kind that no stage repairs.
    return SalvageReport(
        sessions=copier.fetch_int("SELECT count(*) FROM heads"),
        messages=messages.messages,
        turns=turns.turns,
        blobs=copier.fetch_int("SELECT count(*) FROM blobs"),
        quarantined=copier.quarantined,
        damage=tuple(found),
    )


def _old_quarantine(copier: RowCopier, values: Values) -> None:
    """Copy a row that an earlier salvage quarantined, under its number if it is free.

    Placeholder messages may name that number.
    """
    row = dict(copier.repaired_row("quarantine", values))
    row |= {name: text_of(row[name]) or "?" for name in ("origin", "reason")}
    if not copier.insert("quarantine", row):
        copier.insert("quarantine", {**row, "n": None})


def _conflict(copier: RowCopier, values: Values) -> None:
    origin, content = str(values["origin"]), values["content"]
    copier.quarantine(origin, "conflicts with other rows", content)
    copier.report(f"a row of {origin} was quarantined: it conflicts with other rows")


def _blob(copier: RowCopier, values: Values) -> None:
    data = values["data"]
    if not isinstance(data, bytes) or codec.sha256_hex(data) != values["sha256"]:
        copier.quarantine("blobs", "does not match its hash", data)
        copier.report(f"the data of blob {values['sha256']!r} does not match its hash")
    else:
        copier.copy("blobs", values)
