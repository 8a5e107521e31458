"""Tombstones: what is put in the place of a message whose body is erased.

An erasure is decided twice. Whoever keeps something that was made from the messages has to know
beforehand which ones go, so they are foretold by a query; the write then works them out again,
inside its transaction, and refuses with `Changed`, before it writes, if these are not the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from holdfast import codec
from holdfast.backends.base import MessageRow, Query, SessionRow, Snapshot, Transaction
from holdfast.clock import EPOCH
from holdfast.core import fragments
from holdfast.core.branches import Segment
from holdfast.verbs.appending import find_head, show_preview
from holdfast.verbs.histories import read_row
from holdfast.verbs.places import read_preview

MOST_FRAGMENTS: Final = 16


class Changed(Exception):
    """What would be erased is not what was foretold. Nothing was written."""


def refuse_changes(doomed: Sequence[Segment] | None, found: Sequence[Segment]) -> None:
    """Refuse to erase anything but what was foretold; `None` if nothing was."""
    if doomed is not None and list(doomed) != list(found):
        raise Changed


def bury(tx: Transaction, branch: int, owner: str, row: MessageRow) -> frozenset[str]:
    """Put a tombstone in the place of a message; give the blobs it needed."""
    message = read_row(tx, owner, row)
    stone = codec.encode(codec.tombstone(message), EPOCH, known=True)
    crc = codec.checksum(row.id, row.turn, stone.body)
    return tx.put_tombstone(branch, MessageRow(row.seq, row.id, row.turn, crc, stone.body))


def heirs(snapshot: Snapshot, starts: Mapping[int, int]) -> dict[str, int]:
    """Name the sessions that live and have these messages: branches, each from a seq on.

    Each comes with its number.
    """
    found: dict[str, int] = {}
    wanted = dict(starts)
    seen = set(wanted)
    while wanted:
        n, first = wanted.popitem()
        owner = snapshot.find_branch(n)
        if owner is not None and not owner.purged:
            found[owner.session_id] = owner.session
        for branch in snapshot.branches_from(n):
            if branch.fork_seq >= first and branch.n not in seen:
                seen.add(branch.n)
                wanted[branch.n] = 0
    return found


def descent(snapshot: Snapshot, session_id: str) -> Iterator[SessionRow]:
    """Go through all sessions that come from one, those that were purged included."""
    wanted, seen = [session_id], {session_id}
    while wanted:
        for child in snapshot.children(wanted.pop()):
            if child.id not in seen:
                seen.add(child.id)
                wanted.append(child.id)
                yield child


def renew_previews(tx: Transaction, sessions: Iterable[int]) -> None:
    """Let no list show the first words of what was erased; for whoever follows it is activity."""
    for session in sessions:
        head = find_head(tx, session)
        tx.put_head(show_preview(head, read_preview(tx, head.branch, head.seq)))


# ------------------------------------------------------------------------------ pieces of the text


def sample(doomed: Sequence[Segment]) -> Query[list[bytes]]:
    """Take pieces of the messages that are to be erased, to look for them afterwards."""

    def run(snapshot: Snapshot) -> list[bytes]:
        spots = list(_spread(doomed))
        each = max(1, MOST_FRAGMENTS // max(1, len(spots)))
        found: list[bytes] = []
        for spot in spots:
            for _, rows in snapshot.messages([spot]):
                for row in rows:
                    found += _of_row(snapshot, row, each)
        return fragments.thinned(found, MOST_FRAGMENTS)

    return run


def _spread(doomed: Sequence[Segment]) -> Iterator[Segment]:
    """Choose single messages from everywhere in these ranges."""
    total = sum((span.last or 0) - span.first + 1 for span in doomed)
    step, skip = max(1, total // MOST_FRAGMENTS), 0
    for span in doomed:
        last = span.last or 0
        for seq in range(span.first + skip, last + 1, step):
            yield Segment(span.branch, seq, seq, span.session_id)
        length = last - span.first + 1
        skip = skip - length if skip >= length else -(length - skip) % step


def _of_row(snapshot: Snapshot, row: MessageRow, most: int) -> list[bytes]:
    """Take pieces of one message, and of what is kept of it as blobs."""
    found = fragments.of_body(row.body, most)
    for sha256 in fragments.hashes(row.body):
        found += fragments.of_data(snapshot.blob(sha256) or b"", most)
    return fragments.thinned(found, most)
