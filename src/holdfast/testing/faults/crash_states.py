"""Every disk state a power cut could leave, rebuilt from one recorded run.

The model. A crash can come after any event of the trace. What was synced before survives. Of what
was not, *any subset* may survive, in pieces (the part of one write in one 512-byte sector), so
writes tear; a file that grew may have its new size without its data; the creation, deletion or
truncation of a file may or may not survive. That is the model `power`. In the model `kill` only the
process dies and the system's cache survives: everything written is there.

Where a point has few pieces in doubt all subsets are visited. Otherwise none, all, all but the
last write, only the last write; then, in an order drawn by the seed, each prefix, each single
write missing, each write torn in several ways, and random pieces. The points take turns, so
a limit thins all of them alike. The same bytes under the same promises are visited once.

    trace = record(scenario)
    explored = explore(trace, check, limit=2_000)

A state's name, `POINT:PIECES`, rebuilds it from the saved trace; a failing check prints the
command that does so.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import random
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.testing.faults.disk import Disk, Effect, Extend
from holdfast.testing.faults.recorder import fast_directory
from holdfast.testing.faults.trace import (
    Ack,
    Adopt,
    Begin,
    LinkName,
    Sync,
    SyncNames,
    Trace,
    Truncate,
    Unlink,
    Write,
)

SECTOR = 512
EXHAUSTIVE_PIECES = 8
RANDOM_SUBSETS = 48

Model = Literal["kill", "power"]


class StateFailed(AssertionError):
    """A check failed on a crash state; the message ends with the command that replays it."""


@dataclass(frozen=True)
class CrashState:
    """One possible disk after a crash, and what had been promised by then."""

    point: int
    model: Model
    pieces: int
    """Which of the pieces in doubt survived, one bit each, the oldest lowest."""
    torn: bool
    """True if a write survived only in part."""
    files: dict[str, bytes]
    begun: tuple[str, ...]
    acked: tuple[str, ...]

    def describe(self) -> str:
        """Return the name with which `state_named` rebuilds this state from its trace."""
        return f"{self.point}:{'kill' if self.model == 'kill' else format(self.pieces, 'x')}"

    def write_to(self, directory: Path) -> None:
        """Write the files into a directory."""
        for name, data in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@dataclass(frozen=True)
class Explored:
    """How much was visited, so that tests can reject an exploration that proves nothing."""

    points: int
    kill: int
    power: int
    torn: int

    @property
    def states(self) -> int:
        """The number of distinct states checked."""
        return self.kill + self.power


@dataclass(frozen=True)
class _Piece:
    """The smallest unit that survives or is lost; `event` is the write it is a part of."""

    event: int
    effect: Effect


@dataclass
class _Epoch:
    """The time between two syncs: one durable disk, and a growing list of pieces in doubt."""

    durable: Disk
    pieces: list[_Piece] = field(default_factory=list)


@dataclass(frozen=True)
class _Point:
    """A moment at which a crash can come: after `index` events."""

    index: int
    epoch: _Epoch
    doubtful: int
    begun: tuple[str, ...]
    acked: tuple[str, ...]

    def pieces(self) -> list[_Piece]:
        return self.epoch.pieces[: self.doubtful]

    def everything(self) -> int:
        return (1 << self.doubtful) - 1


def states(
    trace: Trace, *, seed: int = 0, samples: int = RANDOM_SUBSETS, limit: int | None = None
) -> Iterator[CrashState]:
    """Yield distinct crash states: of killed processes all, then of power cuts up to `limit`.

    `samples` is the number of random subsets at each point that is not visited exhaustively.
    """
    points, seen = _points(trace), _SeenStates()
    yield from filter(seen.is_new, _kill_states(points))
    yield from itertools.islice(filter(seen.is_new, _power_states(points, seed, samples)), limit)


def state_named(trace: Trace, name: str) -> CrashState:
    """Rebuild the state that `describe` named."""
    index, _, pieces = name.partition(":")
    point = _points(trace)[int(index)]
    if pieces == "kill":
        return _state(point, "kill", point.everything())
    return _state(point, "power", int(pieces, 16))


def explore(
    trace: Trace,
    check: Callable[[Path, CrashState], None],
    *,
    seed: int = 0,
    samples: int = RANDOM_SUBSETS,
    limit: int | None = None,
    keep: Path | None = None,
) -> Explored:
    """Write each state to a fresh directory and check it; a failure names the replay command.

    `keep` is the directory for a failing trace; without it a new temporary one is made.
    """
    counts: Counter[str] = Counter()
    points = set()
    for state in states(trace, seed=seed, samples=samples, limit=limit):
        _check_one(trace, state, check, keep)
        points.add(state.point)
        counts[state.model] += 1
        counts["torn"] += state.torn
    return Explored(len(points), counts["kill"], counts["power"], counts["torn"])


def _check_one(
    trace: Trace,
    state: CrashState,
    check: Callable[[Path, CrashState], None],
    keep: Path | None,
) -> None:
    with tempfile.TemporaryDirectory(dir=fast_directory(), prefix="holdfast-state-") as made:
        directory = Path(made)
        state.write_to(directory)
        try:
            check(directory, state)
        except Exception as error:
            raise StateFailed(
                f"{error!r}\nreplay: {_replay_command(trace, state, check, keep)}"
            ) from error


def _replay_command(
    trace: Trace,
    state: CrashState,
    check: Callable[[Path, CrashState], None],
    keep: Path | None,
) -> str:
    kept = keep or Path(tempfile.mkdtemp(prefix="holdfast-crash-"))
    kept.mkdir(parents=True, exist_ok=True)
    saved = kept / "run.trace"
    trace.save(saved)
    module = "holdfast.testing.faults.replay"
    command = [sys.executable, "-m", module, str(saved), "--state", state.describe()]
    command += ["--to", str(kept / "state")]
    # A nested function cannot be imported; its state can still be rebuilt and inspected.
    if inspect.isfunction(check) and check.__qualname__ == check.__name__:
        command += ["--check", f"{inspect.getsourcefile(check)}:{check.__name__}"]
    return shlex.join(command)


def _kill_states(points: list[_Point]) -> Iterator[CrashState]:
    for point in points:
        yield _state(point, "kill", point.everything())


def _power_states(points: list[_Point], seed: int, samples: int) -> Iterator[CrashState]:
    waiting = [(point, _subsets(point, seed, samples)) for point in points]
    while waiting:
        remaining = []
        for point, subsets in waiting:
            pieces = next(subsets, None)
            if pieces is not None:
                yield _state(point, "power", pieces)
                remaining.append((point, subsets))
        waiting = remaining


class _SeenStates:
    """The states seen, by bytes and promises; not by model: kill comes first and is stricter."""

    def __init__(self) -> None:
        self._keys: set[tuple[bytes, int, int]] = set()
        self._latest: dict[str, tuple[bytes, bytes]] = {}

    def is_new(self, state: CrashState) -> bool:
        key = (self._digest(state.files), len(state.begun), len(state.acked))
        known = key in self._keys
        self._keys.add(key)
        return not known

    def _digest(self, files: dict[str, bytes]) -> bytes:
        """Return the digest of a disk; a file shared with the state before is not hashed again."""
        latest, digest = {}, hashlib.blake2b(digest_size=16)
        for name, data in files.items():
            before, known = self._latest.get(name, (None, b""))
            found = known if before is data else hashlib.blake2b(data, digest_size=16).digest()
            latest[name] = data, found
            digest.update(f"{name}\0".encode())
            digest.update(found)
        self._latest = latest
        return digest.digest()


def _state(point: _Point, model: Model, pieces: int) -> CrashState:
    doubtful = point.pieces()
    chosen = [piece for bit, piece in enumerate(doubtful) if pieces >> bit & 1]
    whole = Counter(piece.event for piece in doubtful)
    there = Counter(piece.event for piece in chosen)
    return CrashState(
        point=point.index,
        model=model,
        pieces=pieces,
        torn=any(count < whole[event] for event, count in there.items()),
        files=point.epoch.durable.after(piece.effect for piece in chosen).contents(),
        begun=point.begun,
        acked=point.acked,
    )


def _subsets(point: _Point, seed: int, samples: int) -> Iterator[int]:
    """Yield sets of pieces as bits; the essential ones first, so that a limit spares them."""
    if point.doubtful <= EXHAUSTIVE_PIECES:
        yield from range(point.everything(), -1, -1)
        return
    everything, writes = point.everything(), _writes(point.pieces())
    last = writes[-1]
    yield from (0, everything, everything & ~last, last)
    chooser = random.Random(f"{seed}:{point.index}")  # noqa: S311  (a repeatable choice)
    mixed = [everything & ~write | part for write in writes for part in _torn(write)]
    mixed += [(write & -write) - 1 for write in writes]
    mixed += [everything & ~write for write in writes]
    mixed += [chooser.getrandbits(point.doubtful) for _ in range(samples)]
    chooser.shuffle(mixed)
    yield from mixed


def _writes(pieces: list[_Piece]) -> list[int]:
    """Return the bits of each write, oldest first."""
    bits: dict[int, int] = {}
    for bit, piece in enumerate(pieces):
        bits[piece.event] = bits.get(piece.event, 0) | 1 << bit
    return list(bits.values())


def _torn(write: int) -> list[int]:
    """Return parts of one write: each half, every other piece, all but one piece, one piece."""
    bits = [1 << bit for bit in range(write.bit_length()) if write >> bit & 1]
    half = len(bits) // 2
    parts = [sum(bits[:half]), sum(bits[half:]), sum(bits[::2]), sum(bits[1::2])]
    return [*parts, write & ~bits[half], bits[0], bits[-1]]


def _points(trace: Trace) -> list[_Point]:
    epoch = _Epoch(Disk.at_start(trace))
    sizes = {number: len(data) for number, data in epoch.durable.files.items()}
    begun: tuple[str, ...] = ()
    acked: tuple[str, ...] = ()
    points = [_Point(0, epoch, 0, begun, acked)]
    for index, event in enumerate(trace.events):
        match event:
            case Begin(what):
                begun = (*begun, what)
            case Ack(what):
                acked = (*acked, what)
            case Sync() | SyncNames():
                epoch = _synced(epoch, event)
            case Adopt():
                epoch = _adopted(epoch, event)
                sizes[event.file] = len(event.data)
            case _:
                epoch.pieces += [_Piece(index, effect) for effect in _cut(event, sizes)]
        points.append(_Point(index + 1, epoch, len(epoch.pieces), begun, acked))
    return points


def _cut(event: LinkName | Unlink | Write | Truncate, sizes: dict[int, int]) -> list[Effect]:
    """Cut an event into effects that can happen independently, and track the file's size."""
    if isinstance(event, Truncate):
        sizes[event.file] = event.size
    if not isinstance(event, Write):
        return [event]
    end = event.offset + len(event.data)
    grown = end > sizes.get(event.file, 0)
    sizes[event.file] = max(end, sizes.get(event.file, 0))
    return [*([Extend(event.file, end)] if grown else []), *_sectors(event)]


def _sectors(write: Write) -> Iterator[Write]:
    offset, end = write.offset, write.offset + len(write.data)
    while offset < end:
        stop = min(end, (offset // SECTOR + 1) * SECTOR)
        data = write.data[offset - write.offset : stop - write.offset]
        yield Write(write.file, offset, data)
        offset = stop


def _synced(epoch: _Epoch, sync: Sync | SyncNames) -> _Epoch:
    settled: list[_Piece] = []
    doubtful: list[_Piece] = []
    for piece in epoch.pieces:
        done = piece.event < sync.covers and _covers(sync, piece.effect)
        (settled if done else doubtful).append(piece)
    return _Epoch(epoch.durable.after(piece.effect for piece in settled), doubtful)


def _covers(sync: Sync | SyncNames, effect: Effect) -> bool:
    if isinstance(effect, LinkName | Unlink):
        return isinstance(sync, SyncNames)
    if isinstance(effect, Write | Truncate | Extend):
        return isinstance(sync, Sync) and sync.file == effect.file
    return False


def _adopted(epoch: _Epoch, adopt: Adopt) -> _Epoch:
    return _Epoch(epoch.durable.after([adopt]), list(epoch.pieces))
