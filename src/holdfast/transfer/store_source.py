"""The sessions of one store as the source of a copy, row by row.

It implements the same protocol as an import file. Rows are decoded only to check that they can be:
the bytes of a message, a draft or a queued message are copied as they were stored. A message that
cannot be read becomes the placeholder that a reader would get, and is reported. An open turn is
copied without its lease, which stays with the holder in the source store.

A `SessionDigest` identifies the content of a session in any store: equal sessions have equal
digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.clock import EPOCH
from holdfast.errors import Damaged
from holdfast.operations import residue
from holdfast.operations.history import Report
from holdfast.operations.queue import queued_message
from holdfast.operations.session_import import (
    Item,
    NewBranch,
    Newcomer,
    NewDraft,
    NewMessage,
    NewTurn,
)
from holdfast.storage.ancestry import Segment
from holdfast.storage.protocol import (
    BranchRow,
    HeadRow,
    MessageRow,
    QueueRow,
    SessionRow,
    Snapshot,
    TurnRow,
    UsageRow,
)
from holdfast.titles import Preview
from holdfast.transfer.export import Plan, stand_in_for
from holdfast.values import Damage

_PAGE: Final = 200
_MAY_NAME_BLOBS: Final = b'"sha256"'
# Part of every digest, and thus of what a copy reports: they stay when a class is renamed.
_DIGEST_TAGS: Final[Mapping[type, str]] = {
    NewTurn: "NewTurn",
    UsageRow: "UsageRow",
    NewDraft: "NewDraft",
}


class Print(msgspec.Struct, frozen=True, kw_only=True):
    """The digest and counts of a session; a different `change_stamp` means it was written to."""

    husk: bool
    digest: bytes
    messages: int
    turns: int
    queued: int
    interrupted: bool
    stamp: int | None


class Rows:
    """The sessions of one snapshot, as the source of a copy."""

    def __init__(
        self,
        snapshot: Snapshot,
        report: Report,
        step: Callable[[int], None],
        sound: dict[bytes, bool] | None = None,
    ) -> None:
        """Read from `snapshot`; `step` is called with the number of messages read.

        `sound` caches, by hash, whether a blob is intact; it is updated.
        """
        self._snapshot = snapshot
        self._report = report
        self._step = step
        self._branches: dict[tuple[str, int], BranchRow] = {}
        self._sound: dict[bytes, bool] = {} if sound is None else sound

    # ------------------------------------------------------------------------- fields and branches

    def families(self, ids: Iterable[str]) -> list[list[Newcomer]]:
        """Return the sessions that exist, grouped with those they share messages with.

        Parents come first. A stub has only the messages that its forks share.
        """
        found = [self._snapshot.find_session(id=id) for id in ids]
        plan = Plan(self._snapshot, [row.n for row in found if row is not None])
        families = []
        for family in plan.families:
            branches = plan.branches(family)
            rows = [
                self._snapshot.relative(family.husks[n])
                if n in family.husks
                else self._snapshot.session(n)
                for n in family.sessions
            ]
            families.append([self.newcomer(row, branches[row.n]) for row in rows if row])
        return families

    def newcomer(self, row: SessionRow, branches: Sequence[BranchRow]) -> Newcomer:
        """Return the fields and branches of a session, as an import takes them."""
        head = self._snapshot.head(row.n)
        self._branches |= {(row.id, branch.number): branch for branch in branches}
        return Newcomer(
            name=row.id,
            row=row,
            branches=tuple(self._branch(branch) for branch in branches),
            turns=0 if head is None else head.turns,
            updated_at=row.created_at if head is None else head.updated_at,
            rank=0,
            shows=None if head is None else _shows(head),
        )

    def _branch(self, row: BranchRow) -> NewBranch:
        parent = None if row.parent is None else self._snapshot.find_branch(row.parent)
        return NewBranch(
            number=row.number,
            parent=None if parent is None else (parent.session_id, parent.number),
            fork_seq=row.fork_seq,
            asked_seq=row.asked_seq,
            last_seq=row.last_seq,
            reason=row.reason,
            created_at=row.created_at,
            token=row.token,
        )

    def there(self, id: str, reach: Mapping[int, int] | None) -> Newcomer | None:
        """Find a session by its id; `reach` limits a stub to these branches and last seqs."""
        row = self._snapshot.relative(id)
        if row is None:
            return None
        branches = self._snapshot.branches(row.n)
        if reach is not None and row.purged_at is not None:
            branches = [
                msgspec.structs.replace(branch, last_seq=min(branch.last_seq, reach[branch.number]))
                for branch in branches
                if branch.number in reach
            ]
        return self.newcomer(row, branches)

    # ------------------------------------------------------------------------------- the content

    def items(self, session: Newcomer) -> Iterator[Item]:
        """Return the content of a session, in the order of an import."""
        yield from self.messages(session)
        if not session.is_husk:
            yield from self.turns(session)
            yield from self.usage(session)
            yield from self.queue(session)
            yield from self._drafts(session)

    def blob(self, name: str) -> bytes | None:
        """Return a blob; `None` if it is missing or does not match its hash."""
        data = self._snapshot.blob(name)
        return data if data is not None and codec.digest(data) == name else None

    def messages(self, session: Newcomer) -> Iterator[NewMessage]:
        """Return the messages of each branch, up to its `last_seq`."""
        for branch in session.branches:
            n = self._branches[session.name, branch.number].n
            for first in range(branch.fork_seq + 1, branch.last_seq + 1, _PAGE):
                last = min(branch.last_seq, first + _PAGE - 1)
                for _, rows in self._snapshot.messages([Segment(n, first, last, session.name)]):
                    if [row.seq for row in rows] != list(range(first, last + 1)):
                        raise Damaged(
                            f"session {session.name}: some of the messages {first} to {last} are "
                            "missing"
                        )
                    self._step(len(rows))
                    yield from (self._message(session, branch.number, row) for row in rows)

    def _message(self, session: Newcomer, branch: int, row: MessageRow) -> NewMessage:
        try:
            return NewMessage(branch=branch, row=row, needs=self._named(row))
        except Damaged as error:
            self._report(Damage(what=str(error), session_id=session.name, seq=row.seq))
        item = codec.encode(stand_in_for(row), EPOCH, limit=None, known=True)
        crc = codec.checksum(row.id, row.turn, item.body)
        row = MessageRow(row.seq, row.id, row.turn, crc, item.body)
        return NewMessage(branch=branch, row=row, blobs=item.blobs, lost=True)

    def _named(self, row: MessageRow) -> tuple[str, ...]:
        """Return the hashes of a message's blobs; raise `Damaged` if it cannot be read."""
        if codec.checksum(row.id, row.turn, row.body) != row.crc:
            raise Damaged(f"message {row.seq} does not fit its checksum")
        if _MAY_NAME_BLOBS not in row.body:
            return ()
        message = codec.decode(row.body, id=row.id, seq=row.seq, turn_id=None, blob=self.blob)
        # A large part is a blob itself: the files it names are not in the body.
        return tuple(dict.fromkeys([*residue.hashes(row.body), *codec.files_named(message)]))

    def turns(self, session: Newcomer) -> Iterator[NewTurn]:
        """Return the turns, read one by one because there may be very many."""
        for number in range(1, session.turns + 1):
            row = self._snapshot.turn(session.row.n, number)
            if row is not None:
                tools = self._snapshot.tools(session.row.n, number)
                yield NewTurn(
                    _unheld(row), tuple(msgspec.structs.replace(tool, session=0) for tool in tools)
                )

    def usage(self, session: Newcomer) -> list[UsageRow]:
        """Return the usage by day and model."""
        return self._snapshot.usage(session.row.n)

    def queue(self, session: Newcomer) -> Iterator[QueueRow]:
        """Return queued messages, with the data of all their files."""
        for row in self._snapshot.queue(session.row.n):
            try:
                named = codec.files_named(queued_message(self._snapshot, row))
            except Damaged:
                what = "a queued message cannot be read"
                self._report(Damage(what=what, session_id=session.name))
                continue
            own = dict(row.blobs)
            for name in named:
                data = own.get(name) or self.blob(name)
                if data is not None:
                    own[name] = data
            yield QueueRow(0, row.id, row.created_at, row.body, tuple(sorted(own.items())))

    def became(self, session: Newcomer, id: str) -> bool:
        """True if any branch of the session has a message with this id."""
        return bool(self._snapshot.placed(session.row.n, [id]))

    def _drafts(self, session: Newcomer) -> Iterator[NewDraft]:
        head = self._snapshot.head(session.row.n)
        if head is None or head.open_turn is None:
            return
        for number, record in enumerate(self._snapshot.draft(session.row.n, head.open_turn)):
            yield NewDraft(head.open_turn, number, record, None)

    # --------------------------------------------------------------------------------- digests

    def summed_up(self, session: Newcomer) -> Print:
        """Read all of a session, including its files, and return its digest."""
        head = self._snapshot.head(session.row.n)
        digest = sha256()
        # The time of a purge differs between stores.
        row = msgspec.structs.replace(session.row, n=0, purged_at=0 if session.is_husk else None)
        digest.update(
            codec.to_json((row, session.branches, None if head is None else _stands(head)))
        )
        messages = turns = queued = 0
        for item in self.items(session):
            messages += isinstance(item, NewMessage)
            turns += isinstance(item, NewTurn)
            queued += isinstance(item, QueueRow)
            digest.update(codec.to_json(self._outline(item)))
            if isinstance(item, NewMessage):
                digest.update(item.row.body)
        return Print(
            husk=session.is_husk,
            digest=digest.digest(),
            messages=messages,
            turns=turns,
            queued=queued,
            interrupted=head is not None and head.open_turn is not None,
            stamp=self.stamp(session),
        )

    def stamp(self, session: Newcomer) -> int | None:
        """Return a checksum that changes with each write; `None` while a turn is open.

        Not every write to an open turn changes the rows that it is computed from.
        """
        head = self._snapshot.head(session.row.n)
        if head is not None and head.open_turn is not None:
            return None
        return crc32(codec.to_json((0 if head is None else head.activity, session.row)))

    def _outline(self, item: Item) -> object:
        """Return an item without message bodies and file data, for the digest."""
        if isinstance(item, NewMessage):
            row, own = item.row, dict(item.blobs)
            names = sorted({*own, *item.needs})
            files = [(name, name in own or self._is_sound(name)) for name in names]
            return ("message", item.branch, row.seq, row.id, row.turn, len(row.body), files)
        if isinstance(item, QueueRow):
            files = [(name, codec.digest(data) == name) for name, data in item.blobs]
            return ("queued", item.id, item.created_at, item.body, files)
        return (_DIGEST_TAGS[type(item)], item)

    def _is_sound(self, name: str) -> bool:
        """True if a blob exists and matches its hash; each is read only once."""
        key = bytes.fromhex(name)
        if key not in self._sound:
            self._sound[key] = self.blob(name) is not None
        return self._sound[key]


def _stands(head: HeadRow) -> tuple[object, ...]:
    """Return the fields of a head that do not depend on the store's row numbers."""
    return (
        head.branch_no,
        head.seq,
        head.turns,
        head.open_turn,
        head.updated_at,
        head.usage,
        head.cost,
        _shows(head),
        head.queued,
    )


def _shows(head: HeadRow) -> Preview:
    return Preview(head.preview, head.preview_rank, head.preview_seq)


def _unheld(row: TurnRow) -> TurnRow:
    """Return a turn without its lease, which is valid only in the source store."""
    lease = 0 if row.state == "open" else row.lease_until
    return msgspec.structs.replace(row, session=0, lease_until=lease)
