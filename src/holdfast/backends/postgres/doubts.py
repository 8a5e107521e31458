"""What became of a transaction whose commit was sent, and whose answer was lost.

The server knows it by the transaction's number. A server that lived on cannot forget a number; one
that crashed or was replaced meanwhile may mean another's. Of a transaction that was one journey
nobody knows the number. It is told by its messages, which are where they were to be, or are not.

If they are not, and the server lived on, it was undone once what served the lost link has ended;
whoever asks ends it first.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
import psycopg

from holdfast.backends.postgres.failures import is_lost
from holdfast.backends.postgres.link import Birth, Link
from holdfast.backends.postgres.rows import bind, numbers, split_branch
from holdfast.backends.postgres.snapshot import Tenant
from holdfast.backends.postgres.transaction import Trace
from holdfast.errors import HoldfastError

Fate = Literal["stored", "undone", "unknown"]
_FATES: Final[dict[str | None, Fate | None]] = {
    "committed": "stored",
    "aborted": "undone",
    "in progress": None,
}


class Receipt(msgspec.Struct, frozen=True):
    """What a transaction gave whose commit was sent, and by what it can be asked for.

    That is its number, or its `trace`: where its messages were to be. `undone` is what is said if
    it turns out that it was not received.
    """

    number: str | None
    trace: Trace | None
    value: Any
    undone: HoldfastError


class Lost(Exception):
    """The link was lost. With a receipt, its commit was sent and may have been received."""

    def __init__(
        self, error: HoldfastError, born: Birth | None = None, receipt: Receipt | None = None
    ) -> None:
        """Remember why, and who served the link."""
        super().__init__(str(error))
        self.error = error
        self.born = born
        self.receipt = receipt


def fate_of(link: Link, tenant: Tenant, lost: Lost) -> Fate | None:
    """Ask what became of a transaction; nothing while it is under way.

    Only errors that end the link are raised.
    """
    if lost.born is None or lost.receipt is None:
        return "unknown"
    ended = end_orphan(link, lost.born)
    lives = link.birth.life == lost.born.life
    number, trace = lost.receipt.number, lost.receipt.trace
    told: Fate | None = "unknown"
    try:
        if trace is not None:
            told = _told_by_messages(link, tenant, trace)
            if told is None:
                told = "unknown" if not lives else "undone" if ended else None
        elif number is not None and lives:
            row = link.ask("fate", (number,)).fetchone()
            told = _FATES.get(row[0] if row else None, "unknown")
        if told == "stored":
            _put_up_a_fence(link)
    except psycopg.Error as error:
        if is_lost(error):
            raise
        link.roll_back()
        return "unknown"
    return told


def end_orphan(link: Link, orphan: Birth) -> bool:
    """End the server's side of a lost link: its commit has arrived by now, or never will.

    If it cannot be ended it ends by itself, when it has been idle for too long; say whether it has
    ended. Only errors that end the link are raised.
    """
    who = (orphan.process, orphan.since)
    try:
        return all(row[0] for row in link.ask("end_orphan", who).fetchall())
    except psycopg.Error as error:
        if is_lost(error):
            raise
    return link.ask("orphan", who).fetchone() is None


def _told_by_messages(link: Link, tenant: Tenant, trace: Trace) -> Fate | None:
    """Look for messages where a lost transaction would have left them.

    If nothing is there, that says nothing of a transaction that may not have ended, or of a server
    that may be late, as a standby is. Ids with another body are of somebody else, or what was
    erased: nobody knows.
    """
    branch, rows = trace
    seqs, ids, bodies = zip(*((row.seq, bind(row.id), row.body) for row in rows), strict=True)
    places = (*split_branch(branch), numbers(seqs), list(ids), list(bodies))
    link.begin("begin_writing")
    link.ask("enter_reading", (tenant.mark,))
    found = link.ask("are_there", (tenant.mark, *places)).fetchall()
    link.roll_back()
    ((there, named, same),) = found
    if named:
        return "stored" if same == len(rows) else "unknown"
    return "undone" if there else None


def _put_up_a_fence(link: Link) -> None:
    """Commit something that waits for the disk and for standbys, behind what is asked about.

    Ending who served the lost link ended its waiting for a standby, too.
    """
    link.begin("begin_writing")
    link.ask("fence")
    link.commit()
