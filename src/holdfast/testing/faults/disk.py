"""A disk held in memory: files by number, names bound to them, and effects applied in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.testing.faults.trace import (
    Adopt,
    LinkName,
    Trace,
    TraceEvent,
    Truncate,
    Unlink,
    Write,
)


@dataclass(frozen=True)
class Extend:
    """A file grew to a size, its new bytes still zero: the size reached the disk, the data not."""

    file: int
    size: int


Effect = TraceEvent | Extend


@dataclass
class Disk:
    """Contents by file number, and which number each name has."""

    files: dict[int, bytes]
    names: dict[str, int]

    @classmethod
    def at_start(cls, trace: Trace) -> Disk:
        """Return the disk as it was before the run."""
        return cls(
            files=dict(enumerate(trace.before.values())),
            names={name: number for number, name in enumerate(trace.before)},
        )

    def after(self, effects: Iterable[Effect]) -> Disk:
        """Return another disk, with the effects applied; this one stays as it is."""
        disk = Disk(dict(self.files), dict(self.names))
        open_files: dict[int, bytearray] = {}
        for effect in effects:
            if isinstance(effect, Write | Truncate | Extend):
                _change(_opened(open_files, self.files, effect.file), effect)
            else:
                disk.apply(effect)
        disk.files |= {number: bytes(data) for number, data in open_files.items()}
        return disk

    def apply(self, effect: Effect) -> None:
        """Apply one effect; syncs and markers have none."""
        match effect:
            case LinkName(name, file):
                self.names[name] = file
                self.files.setdefault(file, b"")
            case Adopt(name, file, data):
                self.names[name] = file
                self.files[file] = data
            case Unlink(name):
                self.names.pop(name, None)
            case Write() | Truncate() | Extend():
                changed = bytearray(self.files.get(effect.file, b""))
                _change(changed, effect)
                self.files[effect.file] = bytes(changed)
            case _:
                pass

    def read(self, name: str) -> bytes | None:
        """Return the bytes under a name, or None if the name does not exist."""
        if name not in self.names:
            return None
        return self.files.get(self.names[name], b"")

    def contents(self) -> dict[str, bytes]:
        """Return the bytes under every name."""
        return {name: self.files.get(number, b"") for name, number in sorted(self.names.items())}


def _opened(open_files: dict[int, bytearray], files: dict[int, bytes], number: int) -> bytearray:
    if number not in open_files:
        open_files[number] = bytearray(files.get(number, b""))
    return open_files[number]


def _change(data: bytearray, effect: Write | Truncate | Extend) -> None:
    match effect:
        case Write(_, offset, new):
            _grow(data, offset)
            data[offset : offset + len(new)] = new
        case Truncate(_, size):
            _grow(data, size)
            del data[size:]
        case Extend(_, size):
            _grow(data, size)


def _grow(data: bytearray, size: int) -> None:
    if size > len(data):
        data.extend(bytes(size - len(data)))
