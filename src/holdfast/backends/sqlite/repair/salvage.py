"""Carrying everything that can be read out of a damaged store into a new one.

The damaged file is only ever read. Rows are copied as they are, with their numbers. What is damaged
goes, with its bytes, into the new store's `quarantine`; in its place stands what lets the rest be
read: a message with the status `damaged` under the same number, a session with a name of its own
for messages whose session is lost, a head that fits its history. So the new store reads without
error, no history reads as shorter than it was known to be, and what was lost is said.

The order is that of trust: first who the sessions are and which branches they have (`mending`);
then the messages along those branches (`refilling`), which tell how long these are (`settling`);
then what hangs on a session (`belongings`). All of them write through one `Carrier` (`carrying`),
which makes the checksums in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from holdfast import codec
from holdfast.backends.sqlite import place as places
from holdfast.backends.sqlite.connection import adopt, connect, translate
from holdfast.backends.sqlite.repair.belongings import Belongings
from holdfast.backends.sqlite.repair.carrying import Carrier
from holdfast.backends.sqlite.repair.mending import Mender
from holdfast.backends.sqlite.repair.refilling import Refiller
from holdfast.backends.sqlite.repair.rules import BLOBS, QUARANTINE, TENANTS, text_of
from holdfast.backends.sqlite.repair.scan import UNREADABLE, Values, open_damaged
from holdfast.backends.sqlite.repair.settling import Settler
from holdfast.backends.sqlite.repair.verify import structure, verify
from holdfast.errors import Damaged, Invalid, StoreUnavailable
from holdfast.records import SalvageReport

_SAFE: Final = "The damaged file was not changed."


def salvage(source: Path, target: Path, create: Callable[[Path], None]) -> SalvageReport:
    """Copy everything readable of `source` into a new store, which `create` makes at `target`."""
    if target.exists():
        raise Invalid(f"{target} exists already and was left as it is; choose another path.")
    damaged = _open(source)
    try:
        _refuse_unreadable(damaged, source)
        create(target)
        try:
            return _fill(damaged, target)
        except BaseException as error:
            for leftover in (target, *(places.companion(target, s) for s in places.COMPANIONS)):
                leftover.unlink(missing_ok=True)
            if isinstance(error, apsw.Error):
                raise translate(error, f"nothing was salvaged. {_SAFE}") from error
            raise
    finally:
        damaged.close(force=True)


def _open(source: Path) -> apsw.Connection:
    try:
        return open_damaged(source)
    except apsw.CantOpenError as error:
        raise StoreUnavailable(
            f"{source} cannot be opened ({error}). If it lies in a read-only place, copy it and "
            "its -wal file to another one and salvage from there."
        ) from error


def _refuse_unreadable(damaged: apsw.Connection, source: Path) -> None:
    """Without a header, or the entry that says where the messages are, nothing can be found."""
    try:
        damaged.execute("SELECT place, id, turn, crc, body FROM messages LIMIT 0").fetchall()
    except UNREADABLE as error:
        raise Damaged(
            f"the header of {source} cannot be read ({error}), so nothing in it can be found. "
            f"Restore a backup. {_SAFE}"
        ) from error


def _fill(damaged: apsw.Connection, target: Path) -> SalvageReport:
    connection = connect(target, readonly=False, durability="power", busy=10.0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        report = _carry(damaged, connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        adopt(connection)
    finally:
        connection.close(force=True)
    places.sync_directory(target.parent)
    return report


def _carry(source: apsw.Connection, target: apsw.Connection) -> SalvageReport:
    found = structure(source)
    carrier = Carrier(source, target)
    mender = Mender(carrier)
    refiller, belongings = Refiller(carrier, mender), Belongings(carrier)
    carrier.each(QUARANTINE, lambda values: _old_quarantine(carrier, values))
    carrier.each(
        TENANTS, lambda values: carrier.carry("tenants", carrier.mended("tenants", values))
    )
    carrier.each(BLOBS, lambda values: _blob(carrier, values))
    mender.run()
    refiller.run()
    Settler(carrier, mender).run()
    belongings.run()
    carrier.seal_all()
    found += carrier.told()
    found += verify(target)  # None, unless the damage is beyond all rules here.
    return SalvageReport(
        sessions=carrier.number("SELECT count(*) FROM heads"),
        messages=refiller.messages,
        turns=belongings.turns,
        blobs=carrier.number("SELECT count(*) FROM blobs"),
        quarantined=carrier.quarantined,
        damage=tuple(found),
    )


def _old_quarantine(carrier: Carrier, values: Values) -> None:
    """Keep what an earlier salvage has set aside, under its number, which messages may name."""
    row = dict(carrier.mended("quarantine", values))
    row |= {name: text_of(row[name]) or "?" for name in ("origin", "reason")}
    if not carrier.insert("quarantine", row):
        carrier.insert("quarantine", {**row, "n": None})


def _blob(carrier: Carrier, values: Values) -> None:
    data = values["data"]
    if not isinstance(data, bytes) or codec.digest(data) != values["sha256"]:
        carrier.keep_aside("blobs", "does not fit its hash", data)
        carrier.tell(f"the data of blob {values['sha256']!r} do not fit their hash")
    else:
        carrier.carry("blobs", values)
