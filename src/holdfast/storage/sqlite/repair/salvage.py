"""Salvage: copying everything readable from a damaged store into a new one.

The damaged file is only ever read. Rows are copied as they are, with their numbers. What is damaged
goes, with its bytes, into the new store's `quarantine`, and a replacement keeps the rest readable:
a placeholder message with the status `damaged` under the same number, a new session for messages
whose own is lost, a head that matches its history. So the new store reads without error, no history
becomes shorter than it was known to be, and everything that was lost is reported.

Each stage relies on the ones before it: sessions, heads and branches (`rebuild_sessions`); their
messages (`rebuild_messages`), which show how long the branches are (`finalize`); then turns,
drafts, queues and usage (`rebuild_turns`). All of them write through one `RowCopier` (`copy_rows`),
which inserts messages as every other write does, and computes the checksums at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from holdfast import codec
from holdfast.errors import Damaged, Invalid, StoreUnavailable
from holdfast.storage.sqlite import location
from holdfast.storage.sqlite.connection import connect, enable_checkpoint_on_close, translate
from holdfast.storage.sqlite.repair.column_rules import BLOBS, QUARANTINE, TENANTS, text_of
from holdfast.storage.sqlite.repair.copy_rows import RowCopier
from holdfast.storage.sqlite.repair.finalize import Finalizer
from holdfast.storage.sqlite.repair.rebuild_messages import MessageRebuilder
from holdfast.storage.sqlite.repair.rebuild_sessions import SessionRebuilder
from holdfast.storage.sqlite.repair.rebuild_turns import TurnRebuilder
from holdfast.storage.sqlite.repair.row_scan import UNREADABLE, Values, open_damaged
from holdfast.storage.sqlite.repair.verify import structure, verify
from holdfast.values import SalvageReport

_SOURCE_UNCHANGED: Final = "The damaged file was not changed."


def salvage(source: Path, target: Path, create: Callable[[Path], None]) -> SalvageReport:
    """Copy everything readable of `source` into a new store, which `create` makes at `target`."""
    if target.exists():
        raise Invalid(f"{target} exists already and was not changed; choose another path.")
    damaged = _open(source)
    try:
        _refuse_unreadable(damaged, source)
        create(target)
        try:
            return _fill(damaged, target)
        except BaseException as error:
            for leftover in (
                target,
                *(location.companion(target, s) for s in location.COMPANION_SUFFIXES),
            ):
                leftover.unlink(missing_ok=True)
            if isinstance(error, apsw.Error):
                raise translate(error, f"nothing was salvaged. {_SOURCE_UNCHANGED}") from error
            raise
    finally:
        damaged.close(force=True)


def _open(source: Path) -> apsw.Connection:
    try:
        return open_damaged(source)
    except apsw.CantOpenError as error:
        raise StoreUnavailable(
            f"{source} cannot be opened ({error}). If it is in a read-only directory, copy it and "
            "its -wal file to a writable one and salvage the copy."
        ) from error


def _refuse_unreadable(damaged: apsw.Connection, source: Path) -> None:
    """Raise `Damaged` if the header, or the schema entry of `messages`, cannot be read."""
    try:
        damaged.execute("SELECT place, id, turn, crc, body FROM messages LIMIT 0").fetchall()
    except UNREADABLE as error:
        raise Damaged(
            f"the header of {source} cannot be read ({error}), so nothing in it can be found. "
            f"Restore a backup. {_SOURCE_UNCHANGED}"
        ) from error


def _fill(damaged: apsw.Connection, target: Path) -> SalvageReport:
    connection = connect(target, readonly=False, durability="power", busy=10.0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        report = _run_stages(damaged, connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        enable_checkpoint_on_close(connection)
    finally:
        connection.close(force=True)
    location.sync_directory(target.parent)
    return report


def _run_stages(source: apsw.Connection, target: apsw.Connection) -> SalvageReport:
    found = structure(source)
    copier = RowCopier(source, target)
    sessions = SessionRebuilder(copier)
    messages, turns = MessageRebuilder(copier, sessions), TurnRebuilder(copier)
    copier.for_each_row(QUARANTINE, lambda values: _old_quarantine(copier, values))
    copier.for_each_row(
        TENANTS, lambda values: copier.copy("tenants", copier.repaired_row("tenants", values))
    )
    copier.for_each_row(BLOBS, lambda values: _blob(copier, values))
    sessions.run()
    messages.run()
    Finalizer(copier, sessions).run()
    turns.run()
    copier.write_checksums()
    found += copier.damage()
    found += verify(target)  # Empty, unless the damage is of a kind that no stage repairs.
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


def _blob(copier: RowCopier, values: Values) -> None:
    data = values["data"]
    if not isinstance(data, bytes) or codec.sha256_hex(data) != values["sha256"]:
        copier.quarantine("blobs", "does not match its hash", data)
        copier.report(f"the data of blob {values['sha256']!r} does not match its hash")
    else:
        copier.copy("blobs", values)
