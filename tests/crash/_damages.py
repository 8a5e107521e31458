"""Random damages of a store's files, and which earlier states they could be mistaken for.

A damage is a value with the seed it was drawn from: the same case on the same files does the same.
Whether a log still shows that something is missing is decided here by its frames alone, as
SQLite's documentation of the file format describes them.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.crash._damage_worlds import DATABASE, WORLDS, World

PAGE = 4096
LOG = f"{DATABASE}-wal"
_FRAME = 24 + PAGE
_HEADER = 32
_MAGIC = 0x377F0683
_WEIGHTS = {DATABASE: 10, LOG: 9, "-search": 3, "-shm": 1, "-lock": 1, "-queue": 1}
_KINDS = {
    "bit": 6,
    "byte": 3,
    "run": 3,
    "zeros": 2,
    "zero page": 3,
    "duplicate page": 2,
    "swap pages": 2,
    "truncate": 4,
    "extend": 1,
    "earlier": 1,
    "other": 1,
    "delete": 1,
}


@dataclass(frozen=True)
class Damage:
    """What is done to one file: `at` is an offset, `to` a length or another offset."""

    kind: str
    file: str
    at: int = 0
    to: int = 0
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of {self.file} (at {self.at}, to {self.to}, seed {self.seed})"


@dataclass(frozen=True)
class Case:
    """A numbered case: a world, another that files are taken from, and one or two damages."""

    seed: int
    number: int
    world: World
    other: World
    damages: tuple[Damage, ...]

    def __str__(self) -> str:
        damages = "; ".join(map(str, self.damages))
        return f"case {self.seed}/{self.number}, {self.world.name}: {damages}"


def case(seed: int, number: int, worlds: Path) -> Case:
    """Draw a case."""
    chance = random.Random(f"{seed} {number}")
    world, other = chance.sample(WORLDS, 2)
    files = sorted((worlds / world.name / "files").iterdir())
    damages = tuple(_draw(chance, files) for _ in range(1 + (chance.random() < 0.25)))
    return Case(seed, number, world, other, damages)


def _draw(chance: random.Random, files: list[Path]) -> Damage:
    if chance.random() < 0.03:
        return Damage(chance.choice(("earlier store", "other store")), DATABASE)
    weights = [_weight(file.name) for file in files]
    file = chance.choices(files, weights)[0]
    kind = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
    size = file.stat().st_size
    if not size and kind not in {"delete", "other"}:
        kind = "extend"
    # Fractions, so that a file of a slightly different size is damaged at about the same place.
    first, second = chance.random(), chance.random()
    at, to = int(first * size), int(second * size)
    if kind == "bit":
        to = chance.randrange(8)
    elif kind in {"run", "zeros"}:
        to = chance.choice((2, 8, 60, 600, 5000))
    elif kind.endswith(("page", "pages")):
        head = _HEADER if file.name == LOG else 0
        step = _FRAME if file.name == LOG else PAGE
        at, to = (head + step * int(part * (size // step)) for part in (first, second))
    elif kind == "truncate" and chance.random() < 0.5:
        at -= at % PAGE
    elif kind == "extend":
        to = chance.choice((1, 100, PAGE, 3 * PAGE))
    if file.name == DATABASE and kind in {"bit", "byte", "run", "zeros"} and chance.random() < 0.2:
        at %= 100  # The header: a small target, and much depends on it.
    if file.name == LOG and kind in {"bit", "byte", "run"} and chance.random() < 0.2:
        at %= _HEADER
    return Damage(kind, file.name, at, to, chance.randrange(1 << 30))


def _weight(name: str) -> int:
    return next((weight for end, weight in _WEIGHTS.items() if name.endswith(end)), 1)


# ------------------------------------------------------------------------------------- the harm


def harm(case: Case, worlds: Path, folder: Path) -> None:
    """Copy the files of the case's world into a folder, and damage them there."""
    shutil.copytree(worlds / case.world.name / "files", folder)
    for damage in case.damages:
        _harm(damage, case, worlds, folder)


def _harm(damage: Damage, case: Case, worlds: Path, folder: Path) -> None:
    earlier = worlds / case.world.name / "earlier"
    other = worlds / case.other.name / "files"
    path = folder / damage.file
    match damage.kind:
        case "earlier" | "other":
            _take(path, (earlier if damage.kind == "earlier" else other) / damage.file)
        case "earlier store" | "other store":
            for name in (DATABASE, LOG):
                _take(folder / name, (earlier if "earlier" in damage.kind else other) / name)
        case "delete":
            path.unlink(missing_ok=True)
        case _ if path.exists():
            path.write_bytes(_changed(bytearray(path.read_bytes()), damage))


def _take(path: Path, source: Path) -> None:
    path.unlink(missing_ok=True)
    if source.exists():
        shutil.copyfile(source, path)
        path.chmod(0o600)


def _changed(data: bytearray, damage: Damage) -> bytes:
    chance = random.Random(damage.seed)
    at, to = damage.at, damage.to
    if damage.kind == "truncate":
        return bytes(data[:at])
    if damage.kind == "extend":
        return bytes(data) + (b"\0" * to if damage.seed % 2 else chance.randbytes(to))
    if at >= len(data):  # Another damage came before, and cut it off.
        return bytes(data)
    step = (_FRAME if damage.file == LOG else PAGE) if "page" in damage.kind else 0
    match damage.kind:
        case "bit":
            data[at] ^= 1 << to
        case "byte":
            data[at] ^= chance.randrange(1, 256)
        case "run" | "zeros":
            end = min(at + to, len(data))
            data[at:end] = chance.randbytes(end - at) if damage.kind == "run" else bytes(end - at)
        case "zero page":
            end = min(at + step, len(data))
            data[at:end] = bytes(end - at)
        case "duplicate page":
            data[to : to + step] = data[at : at + step]
        case "swap pages":
            data[at : at + step], data[to : to + step] = (
                data[to : to + step],
                data[at : at + step],
            )
    return bytes(data)


# ---------------------------------------------------------------------------------- the log


@dataclass(frozen=True)
class Log:
    """What a log holds: the ends of its commits, and how many lie behind a bad frame.

    Those `directly` behind it follow it in an unbroken chain of checksums.
    """

    commits: tuple[int, ...]
    behind: int = 0
    directly: int = 0

    @property
    def end(self) -> int:
        """Where the last commit ends that a reader takes."""
        return self.commits[-1] if self.commits else 0


def read_log(data: bytes) -> Log:
    """Read the frames of a log."""
    if len(data) < _HEADER + _FRAME:
        return Log(())
    magic, _, size = struct.unpack(">III", data[:12])
    order = ">" if magic & 1 else "<"
    stored = struct.unpack(">II", data[24:32])
    whole = magic | 1 == _MAGIC and size == PAGE and _sums(order, data[:24], (0, 0)) == stored
    salt = data[16:24]
    salts = {salt, data[_HEADER + 8 : _HEADER + 16]}  # The header may be what is damaged.
    commits: list[int] = []
    behind = directly = 0
    unbroken = whole  # Behind a torn header lies what was read before the log was started again.
    for at in range(_HEADER, len(data) - _FRAME + 1, _FRAME):
        frame = data[at : at + _FRAME]
        sums = _sums(order, frame[24:], _sums(order, frame[:8], stored))
        stored = struct.unpack(">II", frame[16:24])
        good = sums == stored and frame[8:16] in salts
        commit = frame[4:8] != bytes(4)
        if whole and good and frame[8:16] == salt:
            commits += [at + _FRAME] * commit
            continue
        first, whole = whole, False
        unbroken = unbroken and (first or good)
        behind += good and commit
        directly += good and commit and unbroken
    return Log(tuple(commits), behind, directly)


def _sums(order: str, data: bytes, start: tuple[int, ...]) -> tuple[int, int]:
    first, second = start
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for left, right in zip(words, words, strict=True):
        first = (first + left + second) & 0xFFFFFFFF
        second = (second + right + first) & 0xFFFFFFFF
    return first, second


# ------------------------------------------------------------------- what nobody can know


@dataclass(frozen=True)
class State:
    """A state that existed, which the damaged files may be taken for, and why.

    With `told`, `verify` or `doctor` must say that something is there that is not read.
    """

    why: str
    files: Path | None  # None: no store at all
    log: int = 0
    told: bool = False


def states(case: Case, worlds: Path, folder: Path) -> Iterator[State]:
    """Yield the states that the damaged files may be taken for.

    Nothing outside of the files says what they should be. So they can be taken for those of another
    moment, or another store, if the main file and its log are from there and the log shows nothing
    behind its end; one commit behind it is what a power cut leaves of the last write.
    """
    main, log = folder / DATABASE, folder / LOG
    data = log.read_bytes() if log.exists() else b""
    found = read_log(data)
    if not main.exists() or not main.stat().st_size:
        if not found.commits and not found.behind:
            yield State("the whole main file is gone, and no log is left", None)
        return
    taken = source(case, DATABASE)
    files = {
        "": worlds / case.world.name / "files",
        "earlier": worlds / case.world.name / "earlier",
        "other": worlds / case.other.name / "files",
    }[taken]
    whole, known = _known_log(files / LOG)
    if data[: found.end] != whole[: found.end]:
        if _adds_nothing(data[: found.end], main.read_bytes()):
            yield State("the log is one before, and all of it is in the main file", files)
        else:
            yield State("the log is not of this main file", files, told=True)
        return
    if taken:
        why = f"main file and log are {taken}"
    elif found.end == known.end:
        return
    else:
        why = "the log ends early"
    left = "several commits are" if found.behind > 1 else "one is" if found.behind else "nothing is"
    yield State(f"{why}, and {left} left behind its end", files, found.end, told=found.behind > 1)


def _adds_nothing(log: bytes, main: bytes) -> bool:
    """True if the main file has all pages of a log: it could be started again, and was not yet."""
    pages = {}
    for at in range(_HEADER, len(log) - _FRAME + 1, _FRAME):
        (number,) = struct.unpack_from(">I", log, at)
        pages[number] = log[at + 24 : at + _FRAME]
    return all(main[(number - 1) * PAGE : number * PAGE] == page for number, page in pages.items())


@cache
def _known_log(path: Path) -> tuple[bytes, Log]:
    data = path.read_bytes() if path.exists() else b""
    return data, read_log(data)


def source(case: Case, file: str) -> str:
    """Return where main file or log was taken from, if it was."""
    for damage in reversed(case.damages):
        word, *both = damage.kind.split()
        if word in {"earlier", "other"} and (damage.file == file or both == ["store"]):
            return word
    return ""


def restore(state: State, folder: Path) -> None:
    """Make the files of a state."""
    if state.files is None:
        folder.mkdir()
        return
    shutil.copytree(state.files, folder)
    log = folder / LOG
    if log.exists():
        log.write_bytes(log.read_bytes()[: state.log])
