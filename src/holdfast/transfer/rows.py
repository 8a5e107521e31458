"""Sessions of a store as another store takes them: row by row, as they are.

Beside the lines of a file this is the other cargo that can be brought in. Nothing is decoded but to
see that it can be: the bytes of a message, a draft or waiting input are those that were stored.
What cannot be read is the stand-in that a reader would get, and is reported. A turn that is open
comes with all it has, but for its lease: whoever holds it holds it in the store it comes from.

A *print* sums a session up, in any store: two that are the same have the same print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final
from zlib import crc32

import msgspec

from holdfast import codec
from holdfast.backends.base import (
    BranchRow,
    HeadRow,
    MessageRow,
    QueueRow,
    SessionRow,
    Snapshot,
    TurnRow,
    UsageRow,
)
from holdfast.clock import EPOCH
from holdfast.core import fragments
from holdfast.core.branches import Segment
from holdfast.core.titles import Preview
from holdfast.errors import Damaged
from holdfast.records import Damage
from holdfast.transfer.exporting import Plan, stand_in_for
from holdfast.verbs.histories import Report
from holdfast.verbs.importing import Item, NewBranch, Newcomer, NewDraft, NewMessage, NewTurn
from holdfast.verbs.queue import queued_message

_PAGE: Final = 200
_MAY_NAME_BLOBS: Final = b'"sha256"'


class Print(msgspec.Struct, frozen=True, kw_only=True):
    """A session summed up; `stamp` tells whether it was written to."""

    husk: bool
    digest: bytes
    messages: int
    turns: int
    queued: int
    interrupted: bool
    stamp: int | None


class Rows:
    """The sessions of one snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        report: Report,
        step: Callable[[int], None],
        sound: dict[bytes, bool] | None = None,
    ) -> None:
        """Read here; `step` is told how many messages were read.

        `sound` is what is known of the blobs, and is added to.
        """
        self._snapshot = snapshot
        self._report = report
        self._step = step
        self._branches: dict[tuple[str, int], BranchRow] = {}
        self._sound: dict[bytes, bool] = {} if sound is None else sound

    # --------------------------------------------------------------------------- who they are

    def families(self, ids: Iterable[str]) -> list[list[Newcomer]]:
        """Return those of these sessions that are here, with whom they share messages.

        Parents come first. A session that is only there for its forks comes with what they share.
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
        """Return who a session is, and how its history runs."""
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
        """Find a session by its id; with `reach`, only these of its branches, and so far."""
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

    # -------------------------------------------------------------------------- what they hold

    def items(self, who: Newcomer) -> Iterator[Item]:
        """Return what a session holds, in order."""
        yield from self.messages(who)
        if not who.is_husk:
            yield from self.turns(who)
            yield from self.usage(who)
            yield from self.queue(who)
            yield from self._drafts(who)

    def blob(self, name: str) -> bytes | None:
        """Read a blob; `None` if it is not what it was."""
        data = self._snapshot.blob(name)
        return data if data is not None and codec.digest(data) == name else None

    def messages(self, who: Newcomer) -> Iterator[NewMessage]:
        """Return the messages of each branch, as far as `who` says it goes."""
        for branch in who.branches:
            n = self._branches[who.name, branch.number].n
            for first in range(branch.fork_seq + 1, branch.last_seq + 1, _PAGE):
                last = min(branch.last_seq, first + _PAGE - 1)
                for _, rows in self._snapshot.messages([Segment(n, first, last, who.name)]):
                    if [row.seq for row in rows] != list(range(first, last + 1)):
                        raise Damaged(
                            f"session {who.name}: of messages {first} to {last} some are missing"
                        )
                    self._step(len(rows))
                    yield from (self._message(who, branch.number, row) for row in rows)

    def _message(self, who: Newcomer, branch: int, row: MessageRow) -> NewMessage:
        try:
            return NewMessage(branch=branch, row=row, needs=self._named(row))
        except Damaged as error:
            self._report(Damage(what=str(error), session_id=who.name, seq=row.seq))
        item = codec.encode(stand_in_for(row), EPOCH, limit=None, known=True)
        crc = codec.checksum(row.id, row.turn, item.body)
        row = MessageRow(row.seq, row.id, row.turn, crc, item.body)
        return NewMessage(branch=branch, row=row, blobs=item.blobs, lost=True)

    def _named(self, row: MessageRow) -> tuple[str, ...]:
        """Name the blobs of a message; `Damaged` if it cannot be read."""
        if codec.checksum(row.id, row.turn, row.body) != row.crc:
            raise Damaged(f"message {row.seq} does not fit its checksum")
        if _MAY_NAME_BLOBS not in row.body:
            return ()
        message = codec.decode(row.body, id=row.id, seq=row.seq, turn_id=None, blob=self.blob)
        # Those of a large part stand in its blob, and not in the body.
        return tuple(dict.fromkeys([*fragments.hashes(row.body), *codec.files_named(message)]))

    def turns(self, who: Newcomer) -> Iterator[NewTurn]:
        """Return the turns, one by one: there may be very many."""
        for number in range(1, who.turns + 1):
            row = self._snapshot.turn(who.row.n, number)
            if row is not None:
                tools = self._snapshot.tools(who.row.n, number)
                yield NewTurn(
                    _unheld(row), tuple(msgspec.structs.replace(tool, session=0) for tool in tools)
                )

    def usage(self, who: Newcomer) -> list[UsageRow]:
        """Return what was used, by day and model."""
        return self._snapshot.usage(who.row.n)

    def queue(self, who: Newcomer) -> Iterator[QueueRow]:
        """Return input that waits, with the data of all its files."""
        for row in self._snapshot.queue(who.row.n):
            try:
                named = codec.files_named(queued_message(self._snapshot, row))
            except Damaged:
                what = "input that waits cannot be read"
                self._report(Damage(what=what, session_id=who.name))
                continue
            own = dict(row.blobs)
            for name in named:
                data = own.get(name) or self.blob(name)
                if data is not None:
                    own[name] = data
            yield QueueRow(0, row.id, row.created_at, row.body, tuple(sorted(own.items())))

    def became(self, who: Newcomer, id: str) -> bool:
        """Return whether a message of this id is somewhere in a session."""
        return bool(self._snapshot.placed(who.row.n, [id]))

    def _drafts(self, who: Newcomer) -> Iterator[NewDraft]:
        head = self._snapshot.head(who.row.n)
        if head is None or head.open_turn is None:
            return
        for number, record in enumerate(self._snapshot.draft(who.row.n, head.open_turn)):
            yield NewDraft(head.open_turn, number, record, None)

    # ------------------------------------------------------------------------------ summing up

    def summed_up(self, who: Newcomer) -> Print:
        """Sum a session up: read all of it, its files included."""
        head = self._snapshot.head(who.row.n)
        digest = sha256()
        # When it was purged is each store's own matter.
        row = msgspec.structs.replace(who.row, n=0, purged_at=0 if who.is_husk else None)
        digest.update(codec.to_json((row, who.branches, None if head is None else _stands(head))))
        messages = turns = queued = 0
        for item in self.items(who):
            messages += isinstance(item, NewMessage)
            turns += isinstance(item, NewTurn)
            queued += isinstance(item, QueueRow)
            digest.update(codec.to_json(self._outline(item)))
            if isinstance(item, NewMessage):
                digest.update(item.row.body)
        return Print(
            husk=who.is_husk,
            digest=digest.digest(),
            messages=messages,
            turns=turns,
            queued=queued,
            interrupted=head is not None and head.open_turn is not None,
            stamp=self.stamp(who),
        )

    def stamp(self, who: Newcomer) -> int | None:
        """Mark a session as it is now; not every step of an open turn would show: `None`."""
        head = self._snapshot.head(who.row.n)
        if head is not None and head.open_turn is not None:
            return None
        return crc32(codec.to_json((0 if head is None else head.activity, who.row)))

    def _outline(self, item: Item) -> object:
        """Return what an item is made of, the body of a message and the data of files aside."""
        if isinstance(item, NewMessage):
            row, own = item.row, dict(item.blobs)
            names = sorted({*own, *item.needs})
            files = [(name, name in own or self._is_sound(name)) for name in names]
            return ("message", item.branch, row.seq, row.id, row.turn, len(row.body), files)
        if isinstance(item, QueueRow):
            files = [(name, codec.digest(data) == name) for name, data in item.blobs]
            return ("queued", item.id, item.created_at, item.body, files)
        return (type(item).__name__, item)

    def _is_sound(self, name: str) -> bool:
        """Return whether a blob is there and fits its hash; each is read once."""
        key = bytes.fromhex(name)
        if key not in self._sound:
            self._sound[key] = self.blob(name) is not None
        return self._sound[key]


def _stands(head: HeadRow) -> tuple[object, ...]:
    """Return where a session stands, in no numbers of a store's own."""
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
    """Return a turn as it stands elsewhere: nobody holds it there."""
    lease = 0 if row.state == "open" else row.lease_until
    return msgspec.structs.replace(row, session=0, lease_until=lease)
