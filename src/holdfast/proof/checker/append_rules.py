"""The append rules: each finds one kind of violation in the log of one session."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from holdfast.proof.checker.event_log import Acked, Branch, Read, Refused, Stored
from holdfast.proof.checker.session_log import SessionLog, WriteAttempt
from holdfast.proof.checker.verdict import Finding, ViolationKind

_T = TypeVar("_T")


def _lost(h: SessionLog) -> Iterator[Finding]:
    """Find messages that were acknowledged or read, and are not stored at the end."""
    gone: dict[str, str] = {}
    for invoked, ack in h.acks():
        for id_ in invoked.ids:
            if id_ not in h.positions:
                gone.setdefault(id_, f"acknowledged to {ack.worker!r} (op {ack.op})")
    for read in h.reads:
        for id_ in read.ids:
            if id_ not in h.positions and (id_ in h.writers or id_ in h.store_written):
                gone.setdefault(id_, f"read by {read.worker!r}")
    for id_, how in gone.items():
        yield h.finding(ViolationKind.LOST, f"{id_!r} was {how} and is not stored", id_)


def _duplicate(h: SessionLog) -> Iterator[Finding]:
    """Find ids that occur twice in a history."""
    for branch in h.branches:
        for id_ in _repeated([message.id for message in branch.history]):
            yield h.finding(ViolationKind.DUPLICATE, f"{id_!r} is stored more than once", id_)
    for read in h.reads:
        for id_ in _repeated(read.ids):
            detail = f"{id_!r} was read more than once in one read by {read.worker!r}"
            yield h.finding(ViolationKind.DUPLICATE, detail, id_)


def _repeated(ids: Sequence[str]) -> list[str]:
    if len(set(ids)) == len(ids):
        return []
    return [id_ for id_, times in Counter(ids).items() if times > 1]


def _gap(h: SessionLog) -> Iterator[Finding]:
    """Find histories whose seqs are not 1, 2, 3 ..., and reads that are not contiguous."""
    for branch in h.branches:
        before = 0
        for message in branch.history:
            if message.seq != before + 1:
                detail = f"the history goes from seq {before} to {message.seq} ({message.id!r})"
                yield h.finding(ViolationKind.GAP, detail, message.id)
            before = message.seq
    for read in h.reads:
        yield from _gap_in_read(h, read)


def _gap_in_read(h: SessionLog, read: Read) -> Iterator[Finding]:
    before = 0 if read.complete or not read.seqs else read.seqs[0] - 1
    for id_, seq in zip(read.ids, read.seqs, strict=True):
        if seq != before + 1:
            detail = f"a read by {read.worker!r} goes from seq {before} to {seq} ({id_!r})"
            yield h.finding(ViolationKind.GAP, detail, id_)
            return
        before = seq


def _invented(h: SessionLog) -> Iterator[Finding]:
    """Find messages that are stored or were read although no write could have stored them."""
    refused = {
        id_: write.end.error
        for write in h.writes
        if isinstance(write.end, Refused)
        for id_ in write.invoked.ids
    }
    seen = dict.fromkeys(message.id for message in h.stored)
    seen |= dict.fromkeys(id_ for read in h.reads for id_ in read.ids)
    for id_ in seen:
        if id_ in h.writers or id_ in h.store_written:
            continue
        why = "no worker wrote it"
        if id_ in refused:
            why = f"every write of it was refused ({refused[id_]})"
        where = "is stored" if id_ in h.positions else "was read"
        yield h.finding(ViolationKind.INVENTED, f"{id_!r} {where}, but {why}", id_)


def _mutated(h: SessionLog) -> Iterator[Finding]:
    """Find bodies that differ from the acknowledged one or, without one, from all written ones."""
    acked: dict[str, set[str]] = {}
    for invoked, _ in h.acks():
        for id_, body in zip(invoked.ids, invoked.digests, strict=True):
            acked.setdefault(id_, set()).add(body)
    written: dict[str, set[str]] = {}
    for write in h.writes:
        if not write.refused:
            for id_, body in zip(write.invoked.ids, write.invoked.digests, strict=True):
                written.setdefault(id_, set()).add(body)
    for message in h.stored:
        acknowledged = acked.get(message.id, set())
        legal = acknowledged or written.get(message.id)
        # Two bodies acknowledged for one id: whichever is stored, the other one was changed.
        if legal and (message.digest not in legal or len(acknowledged) > 1):
            detail = f"{message.id!r} (seq {message.seq}) has a body other than the one written"
            yield h.finding(ViolationKind.MUTATED, detail, message.id)


def _mutated_between_reads(h: SessionLog) -> Iterator[Finding]:
    """Find bodies that were read and differ from the final ones."""
    for read in h.reads:
        for id_, body in zip(read.ids, read.digests, strict=False):
            if id_ in h.positions and h.stored[h.positions[id_]].digest != body:
                detail = f"{id_!r} was read by {read.worker!r} with a body other than the final one"
                yield h.finding(ViolationKind.MUTATED, detail, id_)


def _wrong_seq(h: SessionLog) -> Iterator[Finding]:
    """Find messages stored with a seq other than the acknowledged or read one."""
    stored: set[tuple[str, int | None, int]] = {
        (m.id, branch.number, m.seq) for branch in h.branches for m in branch.history
    }
    stored |= {(id_, None, seq) for id_, _, seq in stored}
    for id_, number, seq, source in _reported_seqs(h):
        if id_ in h.positions and (id_, number, seq) not in stored:
            at = h.stored[h.positions[id_]].seq
            yield h.finding(
                ViolationKind.REORDER, f"{id_!r} is stored as seq {at}, {source} as {seq}", id_
            )


def _reported_seqs(h: SessionLog) -> Iterator[tuple[str, int | None, int, str]]:
    for invoked, ack in h.acks():
        source = f"acknowledged to {ack.worker!r} (op {ack.op})"
        for id_, seq in zip(invoked.ids, ack.seqs, strict=False):
            yield id_, ack.branch, seq, source
        # An acknowledged head may belong to another id than the last; see `_wrong_acked_head`.
        if ack.last is not None and ack.branch is None and invoked.ids:
            yield invoked.ids[-1], None, ack.last, source
    for read in h.reads:
        source = f"read by {read.worker!r}"
        for id_, seq in zip(read.ids, read.seqs, strict=True):
            yield id_, read.branch, seq, source


def _out_of_order(h: SessionLog) -> Iterator[Finding]:
    """Find B stored before A although A was settled before the first write of B began."""
    began = [
        (min(write.invoked.at for write in writers), id_)
        for id_, writers in h.writers.items()
        if id_ in h.positions
    ]
    for id_, furthest in _settled_before(h, began):
        if furthest > h.positions[id_]:
            first = h.stored[furthest].id
            detail = f"{id_!r} was invoked after {first!r} was settled, and is stored before it"
            yield h.finding(ViolationKind.REORDER, detail, first, id_)


def _settled_before(h: SessionLog, timed: Iterable[tuple[int, _T]]) -> Iterator[tuple[_T, int]]:
    """Yield with each time the highest position that was settled before it."""
    settled = sorted((at, h.positions[id_]) for id_, at in h.settled.items() if id_ in h.positions)
    cursor, furthest = 0, -1
    for at, what in sorted(timed, key=itemgetter(0)):
        while cursor < len(settled) and settled[cursor][0] < at:
            furthest = max(furthest, settled[cursor][1])
            cursor += 1
        if furthest >= 0:
            yield what, furthest


def _batches(h: SessionLog) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each appended batch with those of its ids that no other write may have stored."""
    batches = dict.fromkeys(
        (write.invoked.operation == "replace", write.invoked.ids)
        for write in h.writes
        if not write.refused
    )
    mentions = Counter(id_ for _, ids in batches for id_ in ids)
    for replaces, ids in batches:
        if not replaces:
            yield ids, [id_ for id_ in ids if mentions[id_] == 1]


def _torn(h: SessionLog) -> Iterator[Finding]:
    """Find batches that are stored only in part."""
    for _, ids in _batches(h):
        missing = [id_ for id_ in ids if id_ not in h.positions]
        if missing and len(missing) < len(ids):
            detail = f"of a batch of {len(ids)}, {len(missing)} are missing, first {missing[0]!r}"
            yield h.finding(ViolationKind.TORN, detail, *missing)


def _mixed_batch(h: SessionLog) -> Iterator[Finding]:
    """Find batches stored in another order, or with other messages in between."""
    for batch, ids in _batches(h):
        positions = [h.positions[id_] for id_ in ids if id_ in h.positions]
        if positions != sorted(positions):
            detail = f"the batch of {ids[0]!r} is stored in another order"
            yield h.finding(ViolationKind.REORDER, detail, *ids)
        elif positions:
            inside = sum(positions[0] <= h.positions.get(id_, -1) <= positions[-1] for id_ in batch)
            if inside < positions[-1] - positions[0] + 1:
                detail = f"messages of other writes are stored inside the batch of {ids[0]!r}"
                yield h.finding(ViolationKind.REORDER, detail, *ids)


def _wrong_position(h: SessionLog) -> Iterator[Finding]:
    """Find writes with an expected head that are not stored directly after it."""
    head_before = {
        m.id: (b.number, m.seq - 1) for b in reversed(h.branches) for m in _own_messages(b)
    }
    for id_, writers in h.writers.items():
        heads = {(write.invoked.expect_branch, write.invoked.expect) for write in writers}
        certain = all(
            write.invoked.ids[0] == id_ and write.invoked.operation != "replace"
            for write in writers
        )
        if certain and id_ in head_before and not any(seq is None for _, seq in heads):
            branch, seq = head_before[id_]
            if not heads & {(branch, seq), (None, seq)}:
                detail = f"{id_!r} expected the head {_format_heads(heads)} and has seq {seq + 1}"
                yield h.finding(ViolationKind.REORDER, detail, id_)


def _own_messages(branch: Branch) -> Sequence[Stored]:
    return branch.history[branch.fork_seq :]


def _format_heads(heads: Iterable[tuple[int | None, int | None]]) -> str:
    names = (f"{seq}" if branch is None else f"{branch}:{seq}" for branch, seq in heads)
    return " or ".join(sorted(names))


def _stale(h: SessionLog) -> Iterator[Finding]:
    """Find reads that lack, in the range they cover, messages settled before they began."""
    if h.moves:
        return  # What was settled may be on another branch; see the branch rules.
    for read, furthest in _settled_before(h, [(read.began, read) for read in h.reads]):
        seen = set(read.ids)
        # Stops at the first message the read lacks, so the cost is bounded by the read's length.
        for position in range(_first_required(h, read, furthest), furthest + 1):
            if h.stored[position].id not in seen:
                absent = h.stored[position]
                detail = f"a read by {read.worker!r} lacks {absent.id!r} (seq {absent.seq}), "
                detail += f"though {h.stored[furthest].id!r} was settled before it began"
                yield h.finding(ViolationKind.STALE_READ, detail, absent.id)
                break


def _first_required(h: SessionLog, read: Read, furthest: int) -> int:
    if read.complete:
        return 0
    # A partial read that is empty, or begins with an unknown id, must still have the newest.
    return h.positions.get(read.ids[0], furthest) if read.ids else furthest


def _zombie(h: SessionLog) -> Iterator[Finding]:
    """Find writes that an old holder began after a takeover, and that took effect."""
    fences = iter(h.fences)
    pending = next(fences, None)
    highest = -1
    for write in sorted(h.writes, key=lambda write: write.invoked.at):
        while pending is not None and pending.at < write.invoked.at:
            highest = max(highest, pending.fence)
            pending = next(fences, None)
        fence = write.invoked.fence
        if fence is not None and fence < highest and _took_effect(h, write):
            invoked = write.invoked
            detail = (
                f"op {invoked.op} of {invoked.worker!r} wrote with fence {fence} after {highest}"
            )
            yield h.finding(ViolationKind.ZOMBIE_WRITE, detail, *invoked.ids)


def _took_effect(h: SessionLog, write: WriteAttempt) -> bool:
    if write.refused:
        return False
    alone = (id_ for id_ in write.invoked.ids if len(h.writers[id_]) == 1)
    return isinstance(write.end, Acked) or any(id_ in h.positions for id_ in alone)


def _late_fence(h: SessionLog) -> Iterator[Finding]:
    """Find messages of a lower fence stored after one of a higher fence."""
    highest = -1
    for message in h.stored:
        fences = [write.invoked.fence for write in h.writers.get(message.id, ())]
        known = [fence for fence in fences if fence is not None]
        if not known or len(known) < len(fences):
            continue  # it may have been stored by a write without a turn
        if max(known) < highest:
            detail = f"{message.id!r} (seq {message.seq}, fence {max(known)}) follows a write "
            detail += f"with fence {highest}"
            yield h.finding(ViolationKind.ZOMBIE_WRITE, detail, message.id)
        highest = max(highest, min(known))


RULES: tuple[Callable[[SessionLog], Iterator[Finding]], ...] = (
    _lost,
    _duplicate,
    _gap,
    _invented,
    _mutated,
    _mutated_between_reads,
    _wrong_seq,
    _out_of_order,
    _torn,
    _mixed_batch,
    _wrong_position,
    _stale,
    _zombie,
    _late_fence,
)
