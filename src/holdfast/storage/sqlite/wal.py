"""The write-ahead log: its file format, and the binding of a store to its log.

SQLite's log is a header and frames. A frame is a page with a short header of its own; a transaction
ends with a frame that has the database's size, its commit. Two numbers in the header, the salts,
identify a log: they change each time SQLite restarts it, and each frame repeats them. Each
frame's checksum continues that of the frame before it, so it proves the order of all before it.

SQLite knows nothing else that connects a file and its log. So the row 'log' of `meta` binds them:
it has the salts of the log that the store is written through and those of the log before it. The
writer stores it durably before it acknowledges anything in a new log, so a log that holds an
acknowledged write also holds its binding, in bytes that are found without SQLite.

The log is read through descriptors of its own. SQLite takes no locks on it that closing them drops.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import apsw
import msgspec

from holdfast.errors import StoreMoved, StoreUnavailable
from holdfast.storage.sqlite.connection import open_file
from holdfast.storage.sqlite.location import companion, wal_size
from holdfast.storage.sqlite.statements import SQL
from holdfast.url import Durability

Checksum = tuple[int, int]

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
SALTS_BYTES: Final = 8
_SALTS_OFFSET: Final = 16
_MAGIC: Final = 0x377F0682  # The lowest bit is set if checksums are big-endian.
_VERSION: Final = 3007000
_MASK: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct(">IIII8s2I")
_FRAME: Final = struct.Struct(">II8s2I")
_BINDING: Final = struct.Struct(">8s8s?")
_BINDING_MARK: Final = b"HoldfLog"
_MAX_BINDS: Final = 3
_BINDING_BYTES: Final = len(_BINDING_MARK) + 2 * _BINDING.size


class Binding(msgspec.Struct, frozen=True):
    """Names the log that a store is written through, by its salts, and the log before it.

    `unsynced` is true if a writer with `durability="process"` has written to the log.
    """

    salts: bytes
    previous: bytes = bytes(SALTS_BYTES)
    unsynced: bool = False

    def encode(self) -> bytes:
        """Return the value of the row 'log': a mark, and the binding twice.

        A page that a power cut left half written never has two equal halves by chance.
        """
        body = _BINDING.pack(self.salts, self.previous, self.unsynced)
        return _BINDING_MARK + body + body

    @classmethod
    def decode(cls, value: object) -> Self | None:
        """Return the binding in a value of the row 'log'; `None` if it is not valid."""
        if not isinstance(value, bytes) or len(value) != _BINDING_BYTES:
            return None
        mark, body = value[: len(_BINDING_MARK)], value[len(_BINDING_MARK) :]
        first, second = body[: _BINDING.size], body[_BINDING.size :]
        if mark != _BINDING_MARK or first != second or first[-1] > 1:
            return None
        return cls(*_BINDING.unpack(first))

    @classmethod
    def random(cls) -> Self:
        """Return the binding of a store without a log."""
        return cls(os.urandom(SALTS_BYTES))


def read_binding(connection: apsw.Connection) -> Binding | None:
    """Return the binding that a connection reads; `None` if there is none that is valid."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'log'").fetchone()
    return None if row is None else Binding.decode(row[0])


def bindings_in(page: bytes) -> Iterator[Binding]:
    """Yield the bindings in the bytes of a page."""
    at = page.find(_BINDING_MARK)
    while at >= 0:
        found = Binding.decode(page[at : at + _BINDING_BYTES])
        if found is not None:
            yield found
        at = page.find(_BINDING_MARK, at + 1)


class LogHeader(NamedTuple):
    """The header of a log."""

    page_size: int
    salts: bytes
    checksum: Checksum
    big_endian: bool

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the header in these bytes; `None` if SQLite would ignore the log."""
        if len(data) < HEADER_BYTES:
            return None
        magic, version, page_size, _, salts, *stored = _HEADER.unpack_from(data)
        big_endian = bool(magic & 1)
        found = checksum(data[: _HEADER.size - 8], (0, 0), big_endian=big_endian)
        if magic & ~1 != _MAGIC or version != _VERSION or found != tuple(stored):
            return None
        return cls(page_size, salts, found, big_endian)

    @classmethod
    def seal(cls, page_size: int, salts: bytes) -> Self:
        """Return the header of a new log, with little-endian checksums."""
        unsealed = cls(page_size, salts, (0, 0), big_endian=False)
        return unsealed._replace(
            checksum=checksum(unsealed.encode()[:-8], (0, 0), big_endian=False)
        )

    def encode(self) -> bytes:
        """Return the bytes of this header."""
        magic = _MAGIC | self.big_endian
        return _HEADER.pack(magic, _VERSION, self.page_size, 0, self.salts, *self.checksum)


class Frame(NamedTuple):
    """A frame: a version of a page. `commit` is 0, except at the end of a transaction."""

    page: int
    commit: int
    salts: bytes
    checksum: Checksum
    data: bytes

    def continued(self, before: Checksum, *, big_endian: bool) -> Checksum:
        """Return the checksum of this frame's content behind a frame with the checksum `before`."""
        start = struct.pack(">II", self.page, self.commit)
        return checksum(start + self.data, before, big_endian=big_endian)

    def encode(self) -> bytes:
        """Return the bytes of this frame."""
        return _FRAME.pack(self.page, self.commit, self.salts, *self.checksum) + self.data


def checksum(data: bytes, before: Checksum, *, big_endian: bool) -> Checksum:
    """Return SQLite's checksum of data that continues other data with the checksum `before`."""
    first, second = before
    for one, other in struct.iter_unpack(">II" if big_endian else "<II", data):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second


class LogFile:
    """The log beside a store, for reading. Frames are numbered from 1."""

    def __init__(self, path: Path, page_size: int) -> None:
        """Open the log of the store at `path`; raise `FileNotFoundError` if there is none."""
        self.page_size = page_size
        self._frame_size = FRAME_HEADER_BYTES + page_size
        self._descriptor = _open(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def header_bytes(self) -> bytes:
        """Return the bytes of the header; fewer if the log is shorter."""
        return os.pread(self._descriptor, HEADER_BYTES, 0)

    def frame_count(self) -> int:
        """Return how many frames the file has room for."""
        size = os.fstat(self._descriptor).st_size
        return max(0, size - HEADER_BYTES) // self._frame_size

    def commit_and_salts(self, number: int) -> tuple[int, bytes]:
        """Return the commit field and the salts of a frame; zeros behind the end of the file."""
        data = os.pread(self._descriptor, _FRAME.size, self._offset(number))
        if len(data) < _FRAME.size:
            return 0, bytes(SALTS_BYTES)
        _, commit, salts, *_ = _FRAME.unpack(data)
        return commit, salts

    def frame(self, number: int) -> Frame | None:
        """Return a frame; `None` behind the end of the file."""
        data = os.pread(self._descriptor, self._frame_size, self._offset(number))
        if len(data) < self._frame_size:
            return None
        page, commit, salts, *stored = _FRAME.unpack_from(data)
        return Frame(page, commit, salts, (stored[0], stored[1]), data[FRAME_HEADER_BYTES:])

    def frames(self, first: int, last: int | None = None) -> Iterator[Frame]:
        """Yield the frames from `first` to `last`, or to the end of the file."""
        number = first
        while last is None or number <= last:
            frame = self.frame(number)
            if frame is None:
                return
            yield frame
            number += 1

    def _offset(self, number: int) -> int:
        return HEADER_BYTES + (number - 1) * self._frame_size


class SaltsProbe:
    """Reads a log's salts in about a microsecond, without releasing the interpreter lock."""

    _pread = ctypes.PyDLL(None).pread
    _pread.restype = ctypes.c_ssize_t

    def __init__(self, path: Path) -> None:
        """Open the log of the store at `path`."""
        try:
            self._descriptor = _open(path)
        except FileNotFoundError as error:
            raise StoreMoved(
                f"the write-ahead log of {path} was deleted while the store was open; nothing was "
                "stored. Open the store again."
            ) from error
        self._buffer = ctypes.create_string_buffer(SALTS_BYTES)
        self._arguments = (
            ctypes.c_int(self._descriptor),
            self._buffer,
            ctypes.c_size_t(SALTS_BYTES),
            ctypes.c_longlong(_SALTS_OFFSET),
        )

    def salts(self) -> bytes:
        """Return the salts of the log; empty if it has no header."""
        read = self._pread(*self._arguments)
        return self._buffer.raw if read == SALTS_BYTES else b""

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(companion(path, "-wal"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"the write-ahead log of {path} cannot be opened ({error.strerror}); nothing was "
            "changed."
        ) from error


def sync_log(path: Path, vfs: str | None) -> None:
    """Sync the log of the store at `path`, if there is one, through SQLite's file layer."""
    if not wal_size(path):
        return
    try:
        with open_file(companion(path, "-wal"), vfs) as file:
            file.xSync(apsw.SQLITE_SYNC_FULL)
    except apsw.CantOpenError:
        if companion(path, "-wal").exists():
            raise


class LogBinder:
    """Keeps a store bound to the log that one connection writes through."""

    def __init__(self, connection: apsw.Connection, path: Path, durability: Durability) -> None:
        """Open the log of the store at `path`, which `connection` has open."""
        connection.execute("PRAGMA user_version").fetchall()  # The first read creates a log.
        self._connection = connection
        self._unsynced = durability == "process"
        self._probe = SaltsProbe(path)
        self._bound = b""

    @property
    def is_current(self) -> bool:
        """True if the log is the one that was bound last, or is empty."""
        salts = self._probe.salts()
        return salts == self._bound or not salts

    def bind(self) -> None:
        """Bind the store durably to its log, unless it is bound.

        Storing the binding restarts the log if all of it was in the file already. A log that is
        checkpointed after every commit is never bound: nothing in it can be lost.
        """
        for _ in range(_MAX_BINDS):
            if self.is_current:
                return
            salts = self._probe.salts()
            self._store(salts)
            self._bound = salts

    def _store(self, salts: bytes) -> None:
        found = read_binding(self._connection) or Binding(bytes(SALTS_BYTES))
        if found.salts == salts:
            wanted = msgspec.structs.replace(found, unsynced=found.unsynced or self._unsynced)
        else:
            wanted = Binding(salts, previous=found.salts, unsynced=self._unsynced)
        if wanted == found:
            return
        if self._unsynced:
            self._connection.execute("PRAGMA synchronous=FULL")
        try:
            self._connection.execute(SQL["bind_log"], (wanted.encode(),))
        finally:
            if self._unsynced:
                self._connection.execute("PRAGMA synchronous=NORMAL")

    def close(self) -> None:
        """Close the descriptor of the log."""
        self._probe.close()
