"""Trash, restore, purge.

Trash only hides: it is one mark, and gives the key free. Purge erases. What a fork shares of a
purged session stays as long as the fork does: the session then loses its identity and everything
that is its own, keeps the branches that are needed, as far as they are needed (`core.purging`), and
goes with the last fork. With `forks="erase"` those messages become tombstones instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

import msgspec

from holdfast import codec
from holdfast.backends.base import BranchRow, MessageRow, SessionRow, Transaction, Verb
from holdfast.clock import EPOCH
from holdfast.core.branches import Segment
from holdfast.core.purging import Line, needed
from holdfast.errors import BadQuery, KeyTaken, SessionNotFound
from holdfast.records import Forks, PurgeReport, SessionInfo
from holdfast.verbs.histories import read_row
from holdfast.verbs.places import read_preview
from holdfast.verbs.placing import find_head, show_preview
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


def purge(session: int, session_id: str, *, forks: Forks) -> Verb[PurgeReport]:
    """Erase a session. One that is gone already is reported as nothing erased."""

    def run(tx: Transaction) -> PurgeReport:
        row = tx.session(session)
        if row is None:
            return _nothing(session_id)
        free_head(tx, find_head(tx, session))
        return _Purge(tx, row, forks).run()

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


class _Purge:
    """The erasing of one session, within one transaction."""

    def __init__(self, tx: Transaction, row: SessionRow, forks: Forks) -> None:
        self._tx = tx
        self._row = row
        self._forks = forks
        self._family = _family(tx, row.n)
        self._gone = {row.n} | {branch.session for branch in self._family if branch.purged}
        lines = [Line(b.n, b.session, b.parent, b.fork_seq) for b in self._family]
        self._needed = needed(lines, self._gone)
        self._blobs: set[str] = set()

    def run(self) -> PurgeReport:
        """Erase, and say what was."""
        own = self._own()
        kept = [branch for branch in own if branch.n in self._needed]
        kept_messages = sum(self._needed[branch.n] - branch.fork_seq for branch in kept)
        heirs = self._heirs({branch.n: 0 for branch in own})
        erase = self._forks == "erase"
        if erase:
            heirs = tuple(dict.fromkeys([*heirs, *self._heirs(self._bury_copies())]))
        cut = self._cut()
        if erase:
            self._bury_shared(kept)
        belongings = self._tx.drop_belongings(self._row.n)
        self._drop_identities()
        if erase:
            self._renew_previews(heirs)
        blobs, size = self._tx.drop_blobs(self._blobs)
        return PurgeReport(
            session_id=self._row.id,
            messages=cut + (kept_messages if erase else 0),
            kept=0 if erase else kept_messages,
            kept_for=() if erase else heirs,
            erased_in=heirs if erase else (),
            turns=belongings.turns,
            drafts=belongings.drafts,
            queued=belongings.queued,
            blobs=blobs,
            blob_bytes=size,
            pending=(),
        )

    def _own(self) -> list[BranchRow]:
        return [branch for branch in self._family if branch.session == self._row.n]

    def _heirs(self, starts: Mapping[int, int]) -> tuple[str, ...]:
        """Name the sessions that live and have these messages: branches, each from a seq on."""
        found: dict[str, None] = {}
        wanted = dict(starts)
        seen = set(wanted)
        while wanted:
            n, first = wanted.popitem()
            owner = self._tx.find_branch(n)
            if owner is not None and not owner.purged and owner.session != self._row.n:
                found[owner.session_id] = None
            for branch in self._tx.branches_from(n):
                if branch.fork_seq >= first and branch.n not in seen:
                    seen.add(branch.n)
                    wanted[branch.n] = 0
        return tuple(found)

    def _cut(self) -> int:
        """Erase what nobody needs, of this session and of those that were purged before."""
        erased = 0
        for branch in sorted(self._family, key=lambda branch: branch.n, reverse=True):
            if branch.session not in self._gone:
                continue
            cut = self._tx.cut_branch(branch.n, self._needed.get(branch.n, branch.fork_seq))
            erased += cut.messages
            self._blobs |= cut.blobs
            if branch.n not in self._needed:
                self._tx.drop_branch(branch.n)
        return erased

    def _drop_identities(self) -> None:
        """Forget who the purged sessions were; the id of one stays while branches of it do."""
        still = {branch.session for branch in self._family if branch.n in self._needed}
        for session in self._gone:
            if session not in still:
                self._tx.drop_session(session)
        if self._row.n in still:
            self._tx.put_session(_husk(self._row, self._tx.now()))

    def _bury_shared(self, branches: Iterable[BranchRow]) -> None:
        """Put tombstones in the place of messages that forks share."""
        for branch in branches:
            for rows in self._pages(branch, self._needed[branch.n]):
                for row in rows:
                    self._bury(branch.n, branch.session_id, row)

    def _bury_copies(self) -> dict[int, int]:
        """Do so where a session that comes from this one stored its messages again, by a replace.

        Gives the branches where that was, and from which seq on.
        """
        buried: dict[int, int] = {}
        descent = list(_descent(self._tx, self._row.id))
        for branch in self._own():
            for rows in self._pages(branch, branch.last_seq):
                names = [row.id for row in rows]
                for other in descent:
                    for n, copy in self._tx.placed(other.n, names):
                        self._bury(n, other.id, copy)
                        buried[n] = min(copy.seq, buried.get(n, copy.seq))
        return buried

    def _bury(self, branch: int, owner: str, row: MessageRow) -> None:
        message = read_row(self._tx, owner, row)
        stone = codec.encode(codec.tombstone(message), EPOCH, known=True)
        crc = codec.checksum(row.id, row.turn, stone.body)
        buried = MessageRow(row.seq, row.id, row.turn, crc, stone.body)
        self._blobs |= self._tx.put_tombstone(branch, buried)

    def _pages(self, branch: BranchRow, last: int) -> Iterator[list[MessageRow]]:
        for first in range(branch.fork_seq + 1, last + 1, _PAGE):
            span = Segment(branch.n, first, min(last, first + _PAGE - 1), branch.session_id)
            for _, rows in self._tx.messages([span]):
                yield rows

    def _renew_previews(self, heirs: Iterable[str]) -> None:
        """Let no list show the first words of what was erased."""
        for session_id in heirs:
            row = self._tx.find_session(id=session_id)
            if row is None:
                continue
            head = find_head(self._tx, row.n)
            shown = read_preview(self._tx, head.branch, head.seq)
            self._tx.put_head(show_preview(head, shown))


def _descent(tx: Transaction, session_id: str) -> Iterator[SessionRow]:
    """Go through all sessions that come from one, those that were purged included."""
    wanted, seen = [session_id], {session_id}
    while wanted:
        for child in tx.children(wanted.pop()):
            if child.id not in seen:
                seen.add(child.id)
                wanted.append(child.id)
                yield child


def _family(tx: Transaction, session: int) -> list[BranchRow]:
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
    """Give what stays of a session while forks need its branches."""
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
