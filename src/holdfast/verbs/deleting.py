"""Trash, restore, purge.

Trash only hides: it is one mark, and gives the key free. Purge erases. What a fork shares of a
purged session stays as long as the fork does: the session then loses its identity and everything
that is its own, keeps the branches that are needed, as far as they are needed (`core.purging`), and
goes with the last fork. With `forks="erase"` those messages become tombstones instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

import msgspec

from holdfast.backends.base import (
    BranchRow,
    MessageRow,
    Query,
    SessionRow,
    Snapshot,
    Transaction,
    Verb,
)
from holdfast.core.branches import Segment
from holdfast.core.purging import Line, needed
from holdfast.errors import BadQuery, KeyTaken, SessionNotFound
from holdfast.records import Forks, PurgeReport, SessionInfo
from holdfast.verbs.appending import find_head
from holdfast.verbs.burying import bury, descent, heirs, refuse_changes, renew_previews
from holdfast.verbs.reading import describe
from holdfast.verbs.turns import free_head

_PAGE: Final = 500


def trash(session: int) -> Verb[SessionInfo]:
    """Put a session in the trash; its key is free then."""

    def run(tx: Transaction) -> SessionInfo:
        row = _row(tx, session)
        if row.trashed_at is not None:
            return _info(tx, row)
        trashed = msgspec.structs.replace(row, trashed_at=tx.now())
        tx.put_session(trashed)
        return _info(tx, trashed)

    return run


def restore(session: int, *, keyless: bool) -> Verb[SessionInfo]:
    """Take a session out of the trash, without its key if it is to have none."""

    def run(tx: Transaction) -> SessionInfo:
        row = _row(tx, session)
        if row.trashed_at is None:
            return _info(tx, row)
        key = None if keyless else row.key
        taken = None if key is None else tx.find_session(key=key)
        if taken is not None:
            raise KeyTaken(
                f"session {taken.id} has the key that this one had; it stays in the trash. Restore "
                "it with keyless=True, or put the other one in the trash first."
            )
        restored = msgspec.structs.replace(row, trashed_at=None, key=key)
        tx.put_session(restored)
        return _info(tx, restored)

    return run


def _info(tx: Transaction, row: SessionRow) -> SessionInfo:
    return describe(tx, row, find_head(tx, row.n))


def check_forks(forks: object) -> None:
    """Refuse what is not a way to treat forks."""
    if forks not in get_args(Forks):
        raise BadQuery(f"forks: must be one of {', '.join(get_args(Forks))}")


def foretell(session: int, *, forks: Forks) -> Query[list[Segment]]:
    """Return which messages a purge erases."""

    def run(snapshot: Snapshot) -> list[Segment]:
        row = snapshot.session(session)
        return [] if row is None else _Doom(snapshot, row, forks).segments()

    return run


def purge(
    session: int, session_id: str, *, forks: Forks, doomed: Sequence[Segment] | None = None
) -> Verb[PurgeReport]:
    """Erase a session. One that is gone already is reported as nothing erased.

    With `doomed`, nothing is erased but these messages; what a crash left of a reply goes as well.
    """

    def run(tx: Transaction) -> PurgeReport:
        row = tx.session(session)
        if row is None:
            return _nothing(session_id)
        if doomed is not None:
            refuse_changes(doomed, _Doom(tx, row, forks).segments())
        free_head(tx, find_head(tx, session))
        return _Purge(tx, _Doom(tx, row, forks)).run()

    return run


def _nothing(session_id: str) -> PurgeReport:
    return PurgeReport(
        session_id=session_id,
        messages=0,
        kept=0,
        kept_for=(),
        erased_in=(),
        turns=0,
        drafts=0,
        queued=0,
        blobs=0,
        blob_bytes=0,
        pending=(),
    )


class _Doom:
    """What has to go of a session, and what must stay for others."""

    def __init__(self, snapshot: Snapshot, row: SessionRow, forks: Forks) -> None:
        self._snapshot = snapshot
        self.row = row
        self.erase = forks == "erase"
        self.family = _family(snapshot, row.n)
        self.gone = {row.n} | {branch.session for branch in self.family if branch.purged}
        lines = [Line(b.n, b.session, b.parent, b.fork_seq) for b in self.family]
        self.needed = needed(lines, self.gone)
        self.own = [branch for branch in self.family if branch.session == row.n]
        self.kept = [branch for branch in self.own if branch.n in self.needed]

    def kept_until(self, branch: BranchRow) -> int:
        """Return up to which message a branch of what is gone must stay."""
        return self.needed.get(branch.n, branch.fork_seq)

    def copies(self) -> Iterator[tuple[int, str, MessageRow]]:
        """Find where a session that comes from this one stored its messages again, by a replace.

        Gives branch, owner and row.
        """
        relatives = list(descent(self._snapshot, self.row.id))
        for branch in self.own if relatives else ():
            for rows in self.pages(branch, branch.last_seq):
                names = [row.id for row in rows]
                for other in relatives:
                    for n, copy in self._snapshot.placed(other.n, names):
                        yield n, other.id, copy

    def pages(self, branch: BranchRow, last: int) -> Iterator[list[MessageRow]]:
        """Read a branch's own messages, a page at a time."""
        for first in range(branch.fork_seq + 1, last + 1, _PAGE):
            span = Segment(branch.n, first, min(last, first + _PAGE - 1), branch.session_id)
            for _, rows in self._snapshot.messages([span]):
                yield rows

    def segments(self) -> list[Segment]:
        """Name everything whose body goes."""
        found = []
        for branch in self.family:
            if branch.session not in self.gone:
                continue
            all_of_it = self.erase and branch.session == self.row.n
            kept = branch.fork_seq if all_of_it else self.kept_until(branch)
            if kept < branch.last_seq:
                found.append(Segment(branch.n, kept + 1, branch.last_seq, branch.session_id))
        if self.erase:
            found += [Segment(n, row.seq, row.seq, owner) for n, owner, row in self.copies()]
        return sorted(dict.fromkeys(found), key=lambda span: (span.branch, span.first))


class _Purge:
    """The erasing of one session, within one transaction."""

    def __init__(self, tx: Transaction, doom: _Doom) -> None:
        self._tx = tx
        self._doom = doom
        self._row = doom.row
        self._blobs: set[str] = set()

    def run(self) -> PurgeReport:
        """Erase, and say what was."""
        doom = self._doom
        kept = sum(doom.needed[branch.n] - branch.fork_seq for branch in doom.kept)
        sharing = self._heirs({branch.n: 0 for branch in doom.own})
        if doom.erase:
            sharing |= self._heirs(self._bury_copies())
        cut = self._cut()
        if doom.erase:
            self._bury_shared()
        belongings = self._tx.drop_belongings(self._row.n)
        self._drop_identities()
        if doom.erase:
            renew_previews(self._tx, sharing.values())
        blobs, size = self._tx.drop_blobs(self._blobs)
        return PurgeReport(
            session_id=self._row.id,
            messages=cut + (kept if doom.erase else 0),
            kept=0 if doom.erase else kept,
            kept_for=() if doom.erase else tuple(sharing),
            erased_in=tuple(sharing) if doom.erase else (),
            turns=belongings.turns,
            drafts=belongings.drafts,
            queued=belongings.queued,
            blobs=blobs,
            blob_bytes=size,
            pending=(),
        )

    def _heirs(self, starts: Mapping[int, int]) -> dict[str, int]:
        found = heirs(self._tx, starts)
        found.pop(self._row.id, None)
        return found

    def _cut(self) -> int:
        """Erase what nobody needs, of this session and of those that were purged before."""
        erased = 0
        for branch in sorted(self._doom.family, key=lambda branch: branch.n, reverse=True):
            if branch.session not in self._doom.gone:
                continue
            cut = self._tx.cut_branch(branch.n, self._doom.kept_until(branch))
            erased += cut.messages
            self._blobs |= cut.blobs
            if branch.n not in self._doom.needed:
                self._tx.drop_branch(branch.n)
        return erased

    def _drop_identities(self) -> None:
        """Forget who the purged sessions were; the id of one stays while branches of it do."""
        doom = self._doom
        still = {branch.session for branch in doom.family if branch.n in doom.needed}
        for session in doom.gone:
            if session not in still:
                self._tx.drop_session(session)
        if self._row.n in still:
            self._tx.put_session(_husk(self._row, self._tx.now()))

    def _bury_shared(self) -> None:
        """Put tombstones in the place of messages that forks share."""
        for branch in self._doom.kept:
            for rows in self._doom.pages(branch, self._doom.needed[branch.n]):
                for row in rows:
                    self._blobs |= bury(self._tx, branch.n, branch.session_id, row)

    def _bury_copies(self) -> dict[int, int]:
        """Do so where they were stored again; give the branches, and from which seq on."""
        buried: dict[int, int] = {}
        for n, owner, copy in self._doom.copies():
            self._blobs |= bury(self._tx, n, owner, copy)
            buried[n] = min(copy.seq, buried.get(n, copy.seq))
        return buried


def _family(tx: Snapshot, session: int) -> list[BranchRow]:
    """Collect the branches that decide what must stay.

    They are this session's, those that start on them, and the same again for every session among
    these and above these that was purged before.
    """
    found: dict[int, BranchRow] = {}
    wanted, seen = [session], {session}
    while wanted:
        for branch in tx.branches(wanted.pop()):
            found[branch.n] = branch
            above = None if branch.parent is None else tx.find_branch(branch.parent)
            near = [*tx.branches_from(branch.n), *([] if above is None else [above])]
            for relative in near:
                found.setdefault(relative.n, relative)
                if relative.purged and relative.session not in seen:
                    seen.add(relative.session)
                    wanted.append(relative.session)
    return list(found.values())


def _husk(row: SessionRow, now: int) -> SessionRow:
    """Return what stays of a session while forks need its branches."""
    return SessionRow(
        n=row.n,
        id=row.id,
        key=None,
        scope=None,
        agent=None,
        title=None,
        title_by=None,
        model=None,
        cwd=None,
        created_at=row.created_at,
        pinned=False,
        archived=False,
        trashed_at=None,
        goal=None,
        metadata=b"{}",
        parent=row.parent,
        relation=row.relation,
        purged_at=now,
    )


def _row(tx: Transaction, session: int) -> SessionRow:
    row = tx.session(session)
    if row is None:
        raise SessionNotFound("this session is no longer in the store; nothing was changed.")
    return row
