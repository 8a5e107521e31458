"""The append rules: each finds one kind of violation in the log of one session."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from holdfast.proof.checker.event_log import Acked, Branch, Read, Refused, Stored
from holdfast.proof.checker.session_log import History, Write
from holdfast.proof.checker.verdict import Finding, Kind

_T = TypeVar("_T")


def _lost(h: History) -> Iterator[Finding]:
    """Find messages that were acknowledged or read, and are not stored at the end."""
    gone: dict[str, str] = {}
    for begun, ack in h.acks():
        for id_ in begun.ids:
            if id_ not in h.place:
                gone.setdefault(id_, f"acknowledged to {ack.worker!r} (op {ack.op})")
    for read in h.reads:
        for id_ in read.ids:
            if id_ not in h.place and (id_ in h.writers or id_ in h.own):
                gone.setdefault(id_, f"read by {read.worker!r}")
    for id_, how in gone.items():
        yield h.found(Kind.LOST, f"{id_!r} was {how} and is not stored", id_)


def _duplicate(h: History) -> Iterator[Finding]:
    """Find ids that occur twice in a history."""
    for branch in h.branches:
        for id_ in _repeated([message.id for message in branch.history]):
            yield h.found(Kind.DUPLICATE, f"{id_!r} is stored more than once", id_)
    for read in h.reads:
        for id_ in _repeated(read.ids):
            detail = f"{id_!r} was read more than once in one read by {read.worker!r}"
            yield h.found(Kind.DUPLICATE, detail, id_)


def _repeated(ids: Sequence[str]) -> list[str]:
    if len(set(ids)) == len(ids):
        return []
    return [id_ for id_, times in Counter(ids).items() if times > 1]


def _gap(h: History) -> Iterator[Finding]:
    """Find histories whose seqs are not 1, 2, 3 ..., and reads that are not contiguous."""
    for branch in h.branches:
        before = 0
        for message in branch.history:
            if message.seq != before + 1:
                detail = f"the history goes from seq {before} to {message.seq} ({message.id!r})"
                yield h.found(Kind.GAP, detail, message.id)
            before = message.seq
    for read in h.reads:
        yield from _gap_in_read(h, read)


def _gap_in_read(h: History, read: Read) -> Iterator[Finding]:
    before = 0 if read.complete or not read.seqs else read.seqs[0] - 1
    for id_, seq in zip(read.ids, read.seqs, strict=True):
        if seq != before + 1:
            detail = f"a read by {read.worker!r} goes from seq {before} to {seq} ({id_!r})"
            yield h.found(Kind.GAP, detail, id_)
            return
        before = seq


def _invented(h: History) -> Iterator[Finding]:
    """Find messages that are stored or were read although no write could have stored them."""
    refused = {
        id_: write.end.error
        for write in h.writes
        if isinstance(write.end, Refused)
        for id_ in write.begun.ids
    }
    seen = dict.fromkeys(message.id for message in h.stored)
    seen |= dict.fromkeys(id_ for read in h.reads for id_ in read.ids)
    for id_ in seen:
        if id_ in h.writers or id_ in h.own:
            continue
        why = "no worker wrote it"
        if id_ in refused:
            why = f"every write of it was refused ({refused[id_]})"
        where = "is stored" if id_ in h.place else "was read"
        yield h.found(Kind.INVENTED, f"{id_!r} {where}, but {why}", id_)


def _mutated(h: History) -> Iterator[Finding]:
    """Find bodies that differ from the acknowledged one or, without one, from all written ones."""
    acked: dict[str, set[str]] = {}
    for begun, _ in h.acks():
        for id_, body in zip(begun.ids, begun.digests, strict=True):
            acked.setdefault(id_, set()).add(body)
    written: dict[str, set[str]] = {}
    for write in h.writes:
        if not write.refused:
            for id_, body in zip(write.begun.ids, write.begun.digests, strict=True):
                written.setdefault(id_, set()).add(body)
    for message in h.stored:
        acknowledged = acked.get(message.id, set())
        legal = acknowledged or written.get(message.id)
        # Two bodies acknowledged for one id: whichever is stored, the other one was changed.
        if legal and (message.digest not in legal or len(acknowledged) > 1):
            detail = f"{message.id!r} (seq {message.seq}) has a body other than the one written"
            yield h.found(Kind.MUTATED, detail, message.id)


def _mutated_between_reads(h: History) -> Iterator[Finding]:
    """Find bodies that were read and differ from the final ones."""
    for read in h.reads:
        for id_, body in zip(read.ids, read.digests, strict=False):
            if id_ in h.place and h.stored[h.place[id_]].digest != body:
                detail = f"{id_!r} was read by {read.worker!r} with a body other than the final one"
                yield h.found(Kind.MUTATED, detail, id_)


def _moved(h: History) -> Iterator[Finding]:
    """Find messages stored with a seq other than the acknowledged or read one."""
    stored: set[tuple[str, int | None, int]] = {
        (m.id, branch.number, m.seq) for branch in h.branches for m in branch.history
    }
    stored |= {(id_, None, seq) for id_, _, seq in stored}
    for id_, number, seq, who in _told(h):
        if id_ in h.place and (id_, number, seq) not in stored:
            at = h.stored[h.place[id_]].seq
            yield h.found(Kind.REORDER, f"{id_!r} is stored as seq {at}, {who} as {seq}", id_)


def _told(h: History) -> Iterator[tuple[str, int | None, int, str]]:
    for begun, ack in h.acks():
        who = f"acknowledged to {ack.worker!r} (op {ack.op})"
        for id_, seq in zip(begun.ids, ack.seqs, strict=False):
            yield id_, ack.branch, seq, who
        # An acknowledged head may belong to another id than the last; see `_wrong_acked_head`.
        if ack.last is not None and ack.branch is None and begun.ids:
            yield begun.ids[-1], None, ack.last, who
    for read in h.reads:
        who = f"read by {read.worker!r}"
        for id_, seq in zip(read.ids, read.seqs, strict=True):
            yield id_, read.branch, seq, who


def _overtaken(h: History) -> Iterator[Finding]:
    """Find B stored before A although A was settled before the first write of B began."""
    began = [
        (min(write.begun.at for write in writers), id_)
        for id_, writers in h.writers.items()
        if id_ in h.place
    ]
    for id_, furthest in _after(h, began):
        if furthest > h.place[id_]:
            first = h.stored[furthest].id
            detail = f"{id_!r} was begun after {first!r} was settled, and is stored before it"
            yield h.found(Kind.REORDER, detail, first, id_)


def _after(h: History, moments: Iterable[tuple[int, _T]]) -> Iterator[tuple[_T, int]]:
    """Yield with each time the highest position that was settled before it."""
    settled = sorted((at, h.place[id_]) for id_, at in h.settled.items() if id_ in h.place)
    cursor, furthest = 0, -1
    for at, what in sorted(moments, key=itemgetter(0)):
        while cursor < len(settled) and settled[cursor][0] < at:
            furthest = max(furthest, settled[cursor][1])
            cursor += 1
        if furthest >= 0:
            yield what, furthest


def _batches(h: History) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each appended batch with those of its ids that no other write may have stored."""
    batches = dict.fromkeys(
        (write.begun.verb == "replace", write.begun.ids) for write in h.writes if not write.refused
    )
    mentions = Counter(id_ for _, ids in batches for id_ in ids)
    for replaces, ids in batches:
        if not replaces:
            yield ids, [id_ for id_ in ids if mentions[id_] == 1]


def _torn(h: History) -> Iterator[Finding]:
    """Find batches that are stored only in part."""
    for _, ids in _batches(h):
        missing = [id_ for id_ in ids if id_ not in h.place]
        if missing and len(missing) < len(ids):
            detail = f"of a batch of {len(ids)}, {len(missing)} are missing, first {missing[0]!r}"
            yield h.found(Kind.TORN, detail, *missing)


def _shuffled(h: History) -> Iterator[Finding]:
    """Find batches stored in another order, or with other messages in between."""
    for batch, ids in _batches(h):
        places = [h.place[id_] for id_ in ids if id_ in h.place]
        if places != sorted(places):
            detail = f"the batch of {ids[0]!r} is stored in another order"
            yield h.found(Kind.REORDER, detail, *ids)
        elif places:
            inside = sum(places[0] <= h.place.get(id_, -1) <= places[-1] for id_ in batch)
            if inside < places[-1] - places[0] + 1:
                detail = f"messages of other writes are stored inside the batch of {ids[0]!r}"
                yield h.found(Kind.REORDER, detail, *ids)


def _misplaced(h: History) -> Iterator[Finding]:
    """Find writes with an expected head that are not stored directly after it."""
    behind = {m.id: (b.number, m.seq - 1) for b in reversed(h.branches) for m in _own(b)}
    for id_, writers in h.writers.items():
        heads = {(write.begun.expect_branch, write.begun.expect) for write in writers}
        sure = all(write.begun.ids[0] == id_ and write.begun.verb != "replace" for write in writers)
        if sure and id_ in behind and not any(seq is None for _, seq in heads):
            branch, seq = behind[id_]
            if not heads & {(branch, seq), (None, seq)}:
                detail = f"{id_!r} expected the head {_heads(heads)} and has seq {seq + 1}"
                yield h.found(Kind.REORDER, detail, id_)


def _own(branch: Branch) -> Sequence[Stored]:
    return branch.history[branch.fork_seq :]


def _heads(heads: Iterable[tuple[int | None, int | None]]) -> str:
    names = (f"{seq}" if branch is None else f"{branch}:{seq}" for branch, seq in heads)
    return " or ".join(sorted(names))


def _stale(h: History) -> Iterator[Finding]:
    """Find reads that lack, in the range they cover, messages settled before they began."""
    if h.moves:
        return  # What was settled may be on another branch; see the branch rules.
    for read, furthest in _after(h, [(read.began, read) for read in h.reads]):
        seen = set(read.ids)
        # Stops at the first message the read lacks, so the cost is bounded by the read's length.
        for position in range(_floor(h, read, furthest), furthest + 1):
            if h.stored[position].id not in seen:
                absent = h.stored[position]
                detail = f"a read by {read.worker!r} lacks {absent.id!r} (seq {absent.seq}), "
                detail += f"though {h.stored[furthest].id!r} was settled before it began"
                yield h.found(Kind.STALE_READ, detail, absent.id)
                break


def _floor(h: History, read: Read, furthest: int) -> int:
    if read.complete:
        return 0
    # A partial read that is empty, or begins with an unknown id, must still have the newest.
    return h.place.get(read.ids[0], furthest) if read.ids else furthest


def _zombie(h: History) -> Iterator[Finding]:
    """Find writes that an old holder began after a takeover, and that took effect."""
    fences = iter(h.fences)
    pending = next(fences, None)
    highest = -1
    for write in sorted(h.writes, key=lambda write: write.begun.at):
        while pending is not None and pending.at < write.begun.at:
            highest = max(highest, pending.fence)
            pending = next(fences, None)
        fence = write.begun.fence
        if fence is not None and fence < highest and _took_effect(h, write):
            begun = write.begun
            detail = f"op {begun.op} of {begun.worker!r} wrote with fence {fence} after {highest}"
            yield h.found(Kind.ZOMBIE_WRITE, detail, *begun.ids)


def _took_effect(h: History, write: Write) -> bool:
    if write.refused:
        return False
    alone = (id_ for id_ in write.begun.ids if len(h.writers[id_]) == 1)
    return isinstance(write.end, Acked) or any(id_ in h.place for id_ in alone)


def _outlived(h: History) -> Iterator[Finding]:
    """Find messages of a lower fence stored after one of a higher fence."""
    highest = -1
    for message in h.stored:
        fences = [write.begun.fence for write in h.writers.get(message.id, ())]
        known = [fence for fence in fences if fence is not None]
        if not known or len(known) < len(fences):
            continue  # it may have been stored by a write without a turn
        if max(known) < highest:
            detail = f"{message.id!r} (seq {message.seq}, fence {max(known)}) follows a write "
            detail += f"with fence {highest}"
            yield h.found(Kind.ZOMBIE_WRITE, detail, message.id)
        highest = max(highest, min(known))


RULES: tuple[Callable[[History], Iterator[Finding]], ...] = (
    _lost,
    _duplicate,
    _gap,
    _invented,
    _mutated,
    _mutated_between_reads,
    _moved,
    _overtaken,
    _torn,
    _shuffled,
    _misplaced,
    _stale,
    _zombie,
    _outlived,
)
