"""The history checker: compares what a store acknowledged with what it kept.

The model. Several *workers* (processes or threads) write messages to sessions of one store. Each
records what it asked and what it was told as *events*, one JSON line each, in a file of its own:
a write began (`Invoked`), then it was acknowledged (`Acked`), refused (`Refused`), or its outcome
is not known (`Unknown`, or no end at all because the worker was killed). Reads, takeovers and
kills are events too. When all is over, the histories are read from the store, and `check`
compares the two.

What may be concluded. A write that was not refused *may* have stored its messages; one that was
acknowledged *must* have; one that was refused must not. A message was placed at some moment
between the first time anybody began to write it and the first time anybody was told of it, by an
acknowledgement or by a read; so the checker never needs to guess who of several retries stored
it. It reports only what no legal store could have shown, and it never raises for what it finds.
A record that makes no sense in itself (an end without a beginning, a damaged line in the middle
of a file) is `BadHistory`: then the harness is wrong, not the store.

Its limits. Histories only grow: rewind, replace and fork are not modelled. Times are
`time.monotonic_ns()`, comparable between the processes of one Linux host. Every rule visits each
event and each message a fixed number of times; only times are sorted.

    recorder = Recorder(directory / "w1.jsonl", "w1")
    write = recorder.invoked("s", ids=["a", "b"], digests=[digest("hi"), digest("ho")])
    try:
        head = append(...)
    except Conflict as error:
        recorder.refused(write, type(error).__name__)
    except OutcomeUnknown:
        recorder.unknown(write)
    else:
        recorder.acked(write, last=head.seq)

    check(load(directory.glob("*.jsonl")), {"s": [Stored("a", 1, "..."), ...]}).require()
"""

import enum
import hashlib
import itertools
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TypeVar

import msgspec

__all__ = [
    "Acked",
    "BadHistory",
    "Coverage",
    "Event",
    "Fenced",
    "Finding",
    "Invoked",
    "Killed",
    "Kind",
    "Read",
    "Recorder",
    "Refused",
    "Stored",
    "TornLine",
    "Unknown",
    "Verdict",
    "check",
    "digest",
    "load",
    "now",
]

_T = TypeVar("_T")


class BadHistory(ValueError):
    """The record of events contradicts itself: repair the harness, the store was not judged."""


# --- what is recorded ---------------------------------------------------------------------------


class Event(
    msgspec.Struct,
    frozen=True,
    tag_field="event",
    tag=str.lower,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Something a worker, or the harness, has recorded: one line of its file."""


class Invoked(Event, frozen=True):
    """A write began. `op` is unique per worker; `expect` is the head's seq the caller saw."""

    worker: str
    op: int | str
    session: str
    ids: tuple[str, ...]
    digests: tuple[str, ...]
    at: int
    expect: int | None = None
    fence: int | None = None

    def __post_init__(self) -> None:
        """Refuse a batch that is empty or whose digests do not match its ids."""
        if not self.ids or len(self.ids) != len(self.digests):
            raise BadHistory(
                f"a write needs one digest per id: {len(self.ids)} ids, {len(self.digests)}"
            )


class Acked(Event, frozen=True):
    """A write returned. `seqs` has one seq per id; or only `last`, the seq of the last id.

    `duplicate` says that the store called it a repetition; it is counted, and never believed.
    """

    worker: str
    op: int | str
    session: str
    seqs: tuple[int, ...]
    at: int
    last: int | None = None
    duplicate: bool = False


class Refused(Event, frozen=True):
    """A write was refused by a typed error: it must have stored nothing."""

    worker: str
    op: int | str
    session: str
    error: str
    at: int


class Unknown(Event, frozen=True):
    """A write whose outcome is not known: stored whole, or not at all."""

    worker: str
    op: int | str
    session: str
    at: int


class Read(Event, frozen=True):
    """What a read saw: the whole history (`complete`) or the newest part of it."""

    worker: str
    session: str
    began: int
    ended: int
    ids: tuple[str, ...]
    seqs: tuple[int, ...]
    complete: bool
    digests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a read whose columns differ in length."""
        size = len(self.ids)
        if len(self.seqs) != size or len(self.digests) not in {0, size}:
            raise BadHistory(f"a read needs one seq per id: {size} ids, {len(self.seqs)} seqs")


class Fenced(Event, frozen=True):
    """A takeover with this fence was acknowledged: lower fences may not write from now on."""

    session: str
    fence: int
    at: int


class Killed(Event, frozen=True):
    """The harness ended this worker with SIGKILL."""

    worker: str
    at: int


class TornLine(Event, frozen=True):
    """A file whose last line was cut by a kill; what was being recorded there is not known."""

    path: str


_Line = Invoked | Acked | Refused | Unknown | Read | Fenced | Killed
_End = Acked | Refused | Unknown


class Stored(msgspec.Struct, frozen=True):
    """One message as the store returned it."""

    id: str
    seq: int
    digest: str


def digest(body: str | bytes) -> str:
    """Return a short fingerprint of a message's body."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return hashlib.sha256(data).hexdigest()[:24]


def now() -> int:
    """Return the time events are stamped with; take it *before* a read begins."""
    return time.monotonic_ns()


class Recorder:
    """Writes one worker's events to a file that must not exist yet.

    Each event is a single `write` to a file opened for appending: a kill can tear only the last
    line, and nothing waits in a buffer. Give every thread, and every life of a restarted process,
    a name and a file of its own: operations are numbered per recorder.
    """

    def __init__(self, path: str | Path, worker: str) -> None:
        """Create the file."""
        self.worker = worker
        self._ops = itertools.count(1)
        self._encoder = msgspec.json.Encoder()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)

    def invoked(
        self,
        session: str,
        ids: Sequence[str],
        digests: Sequence[str],
        *,
        expect: int | None = None,
        fence: int | None = None,
    ) -> Invoked:
        """Record that a write begins; pass what this returns to the method that ends it."""
        op = next(self._ops)
        begun = Invoked(self.worker, op, session, tuple(ids), tuple(digests), now(), expect, fence)
        self._record(begun)
        return begun

    def acked(
        self,
        write: Invoked,
        seqs: Sequence[int] = (),
        *,
        last: int | None = None,
        duplicate: bool = False,
    ) -> None:
        """Record that a write returned, with a seq per id or the `last` one only."""
        end = Acked(self.worker, write.op, write.session, tuple(seqs), now(), last, duplicate)
        self._record(end)

    def refused(self, write: Invoked, error: str) -> None:
        """Record that a write was refused by an error which says that nothing was stored."""
        self._record(Refused(self.worker, write.op, write.session, error, now()))

    def unknown(self, write: Invoked) -> None:
        """Record that nobody knows whether a write was stored."""
        self._record(Unknown(self.worker, write.op, write.session, now()))

    def read(self, session: str, began: int, seen: Iterable[Stored], *, complete: bool) -> None:
        """Record what a read that began at `began` has just returned."""
        ended = now()
        rows = list(seen)
        ids, seqs, digests = (tuple(map(attrgetter(name), rows)) for name in _STORED_FIELDS)
        self._record(Read(self.worker, session, began, ended, ids, seqs, complete, digests))

    def fenced(self, session: str, fence: int) -> None:
        """Record that a takeover with this fence was acknowledged."""
        self._record(Fenced(session, fence, now()))

    def killed(self, worker: str) -> None:
        """Record, in the harness's own file, that `worker` was killed and is gone."""
        self._record(Killed(worker, now()))

    def close(self) -> None:
        """Close the file; nothing is lost when this is never called."""
        os.close(self._fd)

    def _record(self, event: Event) -> None:
        line = self._encoder.encode(event) + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError(f"the event file of {self.worker} is cut short: is the disk full?")


_STORED_FIELDS = ("id", "seq", "digest")


def load(paths: Iterable[str | Path]) -> list[Event]:
    """Read event files; a torn last line becomes a `TornLine`, any other damage `BadHistory`."""
    decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
    return [event for path in paths for event in _load_file(Path(path), decoder)]


def _load_file(path: Path, decoder: "msgspec.json.Decoder[_Line]") -> Iterator[Event]:
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BadHistory(f"{path}:{number} is not an event: {error}") from error
    # Without its newline even a line that parses was not written whole. Leaving it out is safe:
    # a write it began never started, an end it told becomes an unknown outcome.
    if rest:
        yield TornLine(str(path))


# --- what is concluded --------------------------------------------------------------------------


class Kind(enum.StrEnum):
    """What can be wrong with a history."""

    LOST = "LOST"
    DUPLICATE = "DUPLICATE"
    REORDER = "REORDER"
    GAP = "GAP"
    INVENTED = "INVENTED"
    MUTATED = "MUTATED"
    TORN = "TORN"
    STALE_READ = "STALE READ"
    ZOMBIE_WRITE = "ZOMBIE WRITE"


class Finding(msgspec.Struct, frozen=True):
    """One broken promise: what, in which session, about which messages, in words."""

    kind: Kind
    session: str
    detail: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.kind}: session {self.session!r}: {self.detail}"


class Coverage(msgspec.Struct, frozen=True):
    """How much happened in a run; a run in which nothing happened proves nothing.

    `kills` counts killed workers that had begun a write, `retries` the writes of an id that an
    earlier write may have stored, `duplicates` the acknowledgements that said so, `overlaps` the
    writes that began while another worker was writing to the same session.
    """

    workers: int = 0
    sessions: int = 0
    writes: int = 0
    acked: int = 0
    refused: int = 0
    unknown: int = 0
    reads: int = 0
    retries: int = 0
    duplicates: int = 0
    overlaps: int = 0
    kills: int = 0
    takeovers: int = 0
    torn_lines: int = 0
    stored: int = 0


_HAPPENED = ("kills", "retries", "overlaps")
_SHOWN = 20


class Verdict(msgspec.Struct, frozen=True):
    """What `check` found, and how much it had to look at."""

    findings: tuple[Finding, ...]
    coverage: Coverage

    @property
    def ok(self) -> bool:
        """Say whether nothing is wrong; ask `vacuous` whether anything was tried."""
        return not self.findings

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of finding that occurred."""
        return frozenset(finding.kind for finding in self.findings)

    def vacuous(self, require: Sequence[str] = _HAPPENED) -> list[str]:
        """Return those of the named fields of `Coverage` that stayed at zero."""
        unnamed = set(require).difference(Coverage.__struct_fields__)
        if unnamed:
            raise ValueError(f"coverage does not count {', '.join(sorted(unnamed))}")
        return [name for name in require if not getattr(self.coverage, name)]

    def require(self, happened: Sequence[str] = _HAPPENED) -> None:
        """Raise AssertionError for findings, and for a run in which `happened` did not."""
        idle = self.vacuous(happened)
        if idle:
            raise AssertionError(f"this run proves nothing: no {', no '.join(idle)}\n{self}")
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        """Return a short table for people."""
        counts = Counter(finding.kind for finding in self.findings)
        summary = "nothing wrong" if self.ok else f"{len(self.findings)} findings"
        did = ", ".join(
            f"{name.replace('_', ' ')} {getattr(self.coverage, name)}"
            for name in Coverage.__struct_fields__
        )
        lines = [f"history check: {summary}", *(f"  {k:<13}{counts[k]:>8}" for k in Kind), did]
        lines += [f"  {finding}" for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"  and {len(self.findings) - _SHOWN} more")
        return "\n".join(lines)


def check(
    events: Iterable[Event],
    final: Mapping[str, Sequence[Stored]],
    *,
    own: Collection[str] = (),
) -> Verdict:
    """Compare the events of all workers with the final histories, in the order the store gave.

    `own` are ids of messages which the store writes by itself (a recovered partial reply): they
    are not INVENTED though no worker wrote them.
    """
    log = _sort_by_type(events)
    writes = _join(log)
    histories = _histories(log, writes, final, frozenset(own))
    findings = tuple(
        finding for history in histories for rule in _RULES for finding in rule(history)
    )
    return Verdict(findings, _coverage(log, writes, histories))


# --- from events to one picture per session -----------------------------------------------------


class _Log(msgspec.Struct, frozen=True):
    """The events by type, whatever order they came in."""

    begun: list[Invoked]
    ends: list[_End]
    reads: list[Read]
    fences: list[Fenced]
    kills: list[Killed]
    torn: list[TornLine]


class _Write(msgspec.Struct, frozen=True):
    """One operation: its beginning joined with its end, if it had one."""

    begun: Invoked
    end: _End | None

    @property
    def refused(self) -> bool:
        return isinstance(self.end, Refused)


class _History(msgspec.Struct, frozen=True):
    """Everything known about one session; positions are indexes into `stored`."""

    session: str
    writes: list[_Write]
    reads: list[Read]
    fences: list[Fenced]  # by time
    stored: Sequence[Stored]
    own: frozenset[str]
    place: dict[str, int]  # id -> its first position
    writers: dict[str, list[_Write]]  # id -> the writes that may have stored it
    settled: dict[str, int]  # id -> the first time somebody was told that it is stored

    def acks(self) -> Iterator[tuple[Invoked, Acked]]:
        for write in self.writes:
            if isinstance(write.end, Acked):
                yield write.begun, write.end

    def found(self, kind: Kind, detail: str, *ids: str) -> Finding:
        return Finding(kind, self.session, detail, ids)


def _sort_by_type(events: Iterable[Event]) -> _Log:
    log = _Log([], [], [], [], [], [])
    for event in events:
        match event:
            case Invoked():
                log.begun.append(event)
            case Acked() | Refused() | Unknown():
                log.ends.append(event)
            case Read():
                log.reads.append(event)
            case Fenced():
                log.fences.append(event)
            case Killed():
                log.kills.append(event)
            case TornLine():
                log.torn.append(event)
    return log


def _join(log: _Log) -> list[_Write]:
    begun = {(event.worker, event.op): event for event in log.begun}
    if len(begun) != len(log.begun):
        raise BadHistory(
            "two writes share worker and op: give every life of a worker a name of its own"
        )
    ends: dict[tuple[str, int | str], _End] = {}
    for end in log.ends:
        key = (end.worker, end.op)
        if key in ends:
            raise BadHistory(f"op {end.op} of worker {end.worker!r} ended twice")
        _match(begun.get(key), end)
        ends[key] = end
    return [_Write(event, ends.get(key)) for key, event in begun.items()]


def _match(begun: Invoked | None, end: _End) -> None:
    where = f"op {end.op} of worker {end.worker!r}"
    if begun is None:
        msg = f"{where} ended and never began"
    elif begun.session != end.session or begun.at > end.at:
        msg = f"{where} ended in another session, or before it began"
    elif isinstance(end, Acked) and len(end.seqs) not in {0, len(begun.ids)}:
        msg = f"{where} was acknowledged with {len(end.seqs)} seqs for {len(begun.ids)} ids"
    else:
        return
    raise BadHistory(msg)


def _histories(
    log: _Log, writes: list[_Write], final: Mapping[str, Sequence[Stored]], own: frozenset[str]
) -> list[_History]:
    by_writes = _group(writes, lambda write: write.begun.session)
    by_reads = _group(log.reads, lambda read: read.session)
    by_fences = _group(sorted(log.fences, key=attrgetter("at")), lambda fence: fence.session)
    sessions = dict.fromkeys([*by_writes, *by_reads, *by_fences, *final])
    return [
        _history(s, by_writes[s], by_reads[s], by_fences[s], (final.get(s, ()), own))
        for s in sessions
    ]


def _group(items: Iterable[_T], key: Callable[[_T], str]) -> defaultdict[str, list[_T]]:
    groups: defaultdict[str, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _history(
    session: str,
    writes: list[_Write],
    reads: list[Read],
    fences: list[Fenced],
    kept: tuple[Sequence[Stored], frozenset[str]],
) -> _History:
    stored, own = kept
    place: dict[str, int] = {}
    for position, message in enumerate(stored):
        place.setdefault(message.id, position)
    writers: dict[str, list[_Write]] = {}
    for write in writes:
        if not write.refused:
            # An id may stand twice in one batch; it still has one writer there.
            for id_ in dict.fromkeys(write.begun.ids):
                writers.setdefault(id_, []).append(write)
    settled = _settled(writes, reads)
    return _History(session, writes, reads, fences, stored, own, place, writers, settled)


def _settled(writes: list[_Write], reads: list[Read]) -> dict[str, int]:
    told = [(w.end.at, w.begun.ids) for w in writes if isinstance(w.end, Acked)]
    told += [(read.ended, read.ids) for read in reads]
    settled: dict[str, int] = {}
    for at, ids in sorted(told, key=itemgetter(0)):
        for id_ in ids:
            settled.setdefault(id_, at)
    return settled


# --- the rules: each finds one thing in one session ---------------------------------------------


def _lost(h: _History) -> Iterator[Finding]:
    """Find what was acknowledged, or was seen once, and is absent at the end."""
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


def _duplicate(h: _History) -> Iterator[Finding]:
    """Find ids that a history shows twice."""
    for id_ in _repeated([message.id for message in h.stored]):
        yield h.found(Kind.DUPLICATE, f"{id_!r} is stored more than once", id_)
    for read in h.reads:
        for id_ in _repeated(read.ids):
            detail = f"{id_!r} was read more than once in one read by {read.worker!r}"
            yield h.found(Kind.DUPLICATE, detail, id_)


def _repeated(ids: Sequence[str]) -> list[str]:
    if len(set(ids)) == len(ids):
        return []
    return [id_ for id_, times in Counter(ids).items() if times > 1]


def _gap(h: _History) -> Iterator[Finding]:
    """Find where the final history is not 1, 2, 3 ..., or a read not an unbroken piece of it."""
    before = 0
    for message in h.stored:
        if message.seq != before + 1:
            detail = f"the history goes from seq {before} to {message.seq} ({message.id!r})"
            yield h.found(Kind.GAP, detail, message.id)
        before = message.seq
    for read in h.reads:
        yield from _gap_in_read(h, read)


def _gap_in_read(h: _History, read: Read) -> Iterator[Finding]:
    before = 0 if read.complete or not read.seqs else read.seqs[0] - 1
    for id_, seq in zip(read.ids, read.seqs, strict=True):
        if seq != before + 1:
            detail = f"a read by {read.worker!r} goes from seq {before} to {seq} ({id_!r})"
            yield h.found(Kind.GAP, detail, id_)
            return
        before = seq


def _invented(h: _History) -> Iterator[Finding]:
    """Find what is stored or was read, and no write could have stored."""
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
        why = f"every write of it was refused ({refused[id_]})" if id_ in refused else "nobody did"
        where = "stored" if id_ in h.place else "read"
        yield h.found(Kind.INVENTED, f"{id_!r} is {where}; who wrote it? {why}", id_)


def _mutated(h: _History) -> Iterator[Finding]:
    """Find bodies other than the acknowledged one or, failing that, than any that was written."""
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
        told = acked.get(message.id, set())
        legal = told or written.get(message.id)
        # Two bodies acknowledged for one id: whichever is stored, the other one was changed.
        if legal and (message.digest not in legal or len(told) > 1):
            detail = f"{message.id!r} (seq {message.seq}) has a body other than the one written"
            yield h.found(Kind.MUTATED, detail, message.id)


def _mutated_between_reads(h: _History) -> Iterator[Finding]:
    """Find bodies that were read otherwise than they are at the end."""
    for read in h.reads:
        for id_, body in zip(read.ids, read.digests, strict=False):
            if id_ in h.place and h.stored[h.place[id_]].digest != body:
                detail = f"{id_!r} was read by {read.worker!r} with a body other than the final one"
                yield h.found(Kind.MUTATED, detail, id_)


def _moved(h: _History) -> Iterator[Finding]:
    """Find messages stored with a seq other than the one that was told."""
    stored = {(message.id, message.seq) for message in h.stored}
    for id_, seq, who in _told(h):
        if id_ in h.place and (id_, seq) not in stored:
            at = h.stored[h.place[id_]].seq
            yield h.found(Kind.REORDER, f"{id_!r} is stored as seq {at}, {who} as {seq}", id_)


def _told(h: _History) -> Iterator[tuple[str, int, str]]:
    for begun, ack in h.acks():
        who = f"acknowledged to {ack.worker!r} (op {ack.op})"
        for id_, seq in zip(begun.ids, ack.seqs, strict=False):
            yield id_, seq, who
        if ack.last is not None:
            yield begun.ids[-1], ack.last, who
    for read in h.reads:
        who = f"read by {read.worker!r}"
        for id_, seq in zip(read.ids, read.seqs, strict=True):
            yield id_, seq, who


def _overtaken(h: _History) -> Iterator[Finding]:
    """Find B stored before A though A was settled before anybody began to write B."""
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


def _after(h: _History, moments: Iterable[tuple[int, _T]]) -> Iterator[tuple[_T, int]]:
    """Give with each moment the furthest position that was settled before it."""
    settled = sorted((at, h.place[id_]) for id_, at in h.settled.items() if id_ in h.place)
    cursor, furthest = 0, -1
    for at, what in sorted(moments, key=itemgetter(0)):
        while cursor < len(settled) and settled[cursor][0] < at:
            furthest = max(furthest, settled[cursor][1])
            cursor += 1
        if furthest >= 0:
            yield what, furthest


def _batches(h: _History) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Give each batch with those of its ids that no other batch may have stored."""
    batches = dict.fromkeys(write.begun.ids for write in h.writes if not write.refused)
    mentions = Counter(id_ for ids in batches for id_ in ids)
    for ids in batches:
        yield ids, [id_ for id_ in ids if mentions[id_] == 1]


def _torn(h: _History) -> Iterator[Finding]:
    """Find batches stored in part."""
    for _, ids in _batches(h):
        missing = [id_ for id_ in ids if id_ not in h.place]
        if missing and len(missing) < len(ids):
            detail = f"of a batch of {len(ids)}, {len(missing)} are missing, first {missing[0]!r}"
            yield h.found(Kind.TORN, detail, *missing)


def _shuffled(h: _History) -> Iterator[Finding]:
    """Find batches stored in another order, or with something foreign in between."""
    for batch, ids in _batches(h):
        places = [h.place[id_] for id_ in ids if id_ in h.place]
        if places != sorted(places):
            detail = f"the batch of {ids[0]!r} is stored in another order"
            yield h.found(Kind.REORDER, detail, *ids)
        elif places:
            inside = sum(places[0] <= h.place.get(id_, -1) <= places[-1] for id_ in batch)
            if inside < places[-1] - places[0] + 1:
                detail = f"foreign messages lie inside the batch of {ids[0]!r}"
                yield h.found(Kind.REORDER, detail, *ids)


def _misplaced(h: _History) -> Iterator[Finding]:
    """Find writes that expected a head and are not stored right behind it."""
    for id_, writers in h.writers.items():
        heads = {write.begun.expect for write in writers if write.begun.ids[0] == id_}
        sure = all(write.begun.ids[0] == id_ for write in writers) and None not in heads
        if sure and id_ in h.place:
            seq = h.stored[h.place[id_]].seq
            if seq - 1 not in heads:
                detail = f"{id_!r} expected the head {sorted(map(str, heads))} and has seq {seq}"
                yield h.found(Kind.REORDER, detail, id_)


def _stale(h: _History) -> Iterator[Finding]:
    """Find reads that lack, as far back as they reach, what was settled before they began."""
    for read, furthest in _after(h, [(read.began, read) for read in h.reads]):
        seen = set(read.ids)
        # Stops at the first message the read lacks, so this costs no more than the read is long.
        for position in range(_floor(h, read, furthest), furthest + 1):
            if h.stored[position].id not in seen:
                absent = h.stored[position]
                detail = f"a read by {read.worker!r} lacks {absent.id!r} (seq {absent.seq}), "
                detail += f"though {h.stored[furthest].id!r} was settled before it began"
                yield h.found(Kind.STALE_READ, detail, absent.id)
                break


def _floor(h: _History, read: Read, furthest: int) -> int:
    if read.complete:
        return 0
    # A newest part that is empty, or begins with a stranger, must still show the newest.
    return h.place.get(read.ids[0], furthest) if read.ids else furthest


def _zombie(h: _History) -> Iterator[Finding]:
    """Find writes an old holder began after a takeover that stored or were acknowledged."""
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


def _took_effect(h: _History, write: _Write) -> bool:
    if write.refused:
        return False
    alone = (id_ for id_ in write.begun.ids if len(h.writers[id_]) == 1)
    return isinstance(write.end, Acked) or any(id_ in h.place for id_ in alone)


def _outlived(h: _History) -> Iterator[Finding]:
    """Find messages of a lower fence stored behind one of a higher fence."""
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


_RULES: tuple[Callable[[_History], Iterator[Finding]], ...] = (
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


# --- how much happened --------------------------------------------------------------------------


def _coverage(log: _Log, writes: list[_Write], histories: list[_History]) -> Coverage:
    killed = {kill.worker: kill.at for kill in log.kills}
    writers = {write.begun.worker for write in writes}
    acks = [end for end in log.ends if isinstance(end, Acked)]
    refused = sum(write.refused for write in writes)
    return Coverage(
        workers=len(writers | {read.worker for read in log.reads}),
        sessions=len(histories),
        writes=len(writes),
        acked=len(acks),
        refused=refused,
        unknown=len(writes) - len(acks) - refused,
        reads=len(log.reads),
        retries=sum(_retries(history.writes) for history in histories),
        duplicates=sum(ack.duplicate for ack in acks),
        overlaps=sum(_overlaps(history.writes, killed) for history in histories),
        kills=len(writers.intersection(killed)),
        takeovers=len(log.fences),
        torn_lines=len(log.torn),
        stored=sum(len(history.stored) for history in histories),
    )


def _retries(writes: list[_Write]) -> int:
    """Count the writes of which an earlier one may have stored a message already."""
    seen: set[str] = set()
    count = 0
    for write in sorted(writes, key=lambda write: write.begun.at):
        if not write.refused:
            count += not seen.isdisjoint(write.begun.ids)
            seen.update(write.begun.ids)
    return count


def _overlaps(writes: list[_Write], killed: Mapping[str, int]) -> int:
    """Count the writes that began while another worker's was under way."""
    count = 0
    latest, runner_up = (-1, ""), (-1, "")  # latest ends, of two different workers
    for write in sorted(writes, key=lambda write: write.begun.at):
        worker = write.begun.worker
        rival = runner_up if latest[1] == worker else latest
        count += write.begun.at < rival[0]
        end = (_end(write, killed), worker)
        if latest[1] == worker:
            latest = max(latest, end)
        elif end > latest:
            latest, runner_up = end, latest
        else:
            runner_up = max(runner_up, end)
    return count


def _end(write: _Write, killed: Mapping[str, int]) -> int:
    if write.end is not None:
        return write.end.at
    return killed.get(write.begun.worker, write.begun.at)
