"""The file that an import reads.

It is opened once and read by offset, so that readers in several threads share no position, and the
second pass reads the file that was checked even if the path is replaced meanwhile. Lines are read
one by one; one that is longer than an export can write is never held in memory.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import msgspec

from holdfast.errors import Invalid, StoreUnavailable, TooLarge, system_error
from holdfast.transfer.format import MAX_LINE_BYTES, AnyLine, BadLine, decode_line

_FIRST_READ_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 1024 * 1024
_MIN_BUFFER_BYTES: Final = 4096
_LINE_START: Final = b'{"type":"'


class RawLine(msgspec.Struct, frozen=True):
    """A line as it is in the file; the last one is not `whole` if it has no newline."""

    number: int
    offset: int
    length: int
    data: bytes
    complete: bool


class ImportFile:
    """A file of lines, read by offset."""

    def __init__(self, path: str) -> None:
        """Open a file; raise `Invalid` if that fails or it is not a regular file."""
        self.path = path
        try:
            # Non-blocking: opening a pipe without a writer would never return.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise Invalid(f"{path} does not exist; nothing was imported.") from error
        except (IsADirectoryError, PermissionError, NotADirectoryError) as error:
            raise Invalid(
                f"{path} cannot be opened ({error.strerror}); nothing was imported."
            ) from error
        except OSError as error:
            raise system_error(
                error, "the file cannot be opened", "nothing was imported."
            ) from error
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._descriptor)
            raise Invalid(f"{path} is not a regular file; nothing was imported.")
        self.size = found.st_size

    @property
    def name(self) -> str:
        """The file's name, without its directory, as text that can be stored and shown."""
        name = os.fsencode(os.path.basename(self.path)).decode("utf-8", "replace")  # noqa: PTH119
        return name or "?"

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def lines(self, start: int = 0, stop: int | None = None, number: int = 1) -> Iterator[RawLine]:
        """Return the lines between two offsets; `number` is that of the first."""
        end = self.size if stop is None else stop
        offset = start
        buffer = min(max(end - start, _MIN_BUFFER_BYTES), _BUFFER_BYTES)
        with io.BufferedReader(_FileRange(self, start, end), buffer) as reader:
            while offset < end:
                data, length, whole = self._read_line(reader, number)
                if not length:
                    raise StoreUnavailable(
                        f"{self.path} was truncated while it was read; import it again."
                    )
                yield RawLine(number, offset, length, data, whole)
                offset += length
                number += 1

    def _read_line(self, reader: BinaryIO, number: int) -> tuple[bytes, int, bool]:
        """Read a line; return its bytes, its length, and whether it ends with a newline.

        Of a long line that does not begin as ours do, only the first bytes are returned.
        """
        data = reader.readline(_FIRST_READ_BYTES)
        length = len(data)
        if data.endswith(b"\n") or length < _FIRST_READ_BYTES:
            return data, length, data.endswith(b"\n")
        held = [data] if data.startswith(_LINE_START) else None
        while True:
            piece = reader.readline(_BUFFER_BYTES)
            length += len(piece)
            if length > MAX_LINE_BYTES:
                raise TooLarge(
                    f"line {number} is longer than {MAX_LINE_BYTES} bytes; nothing was imported."
                )
            if held is not None:
                held.append(piece)
            if piece.endswith(b"\n") or not piece:
                return data if held is None else b"".join(held), length, bool(piece)

    def line_at(self, offset: int) -> AnyLine:
        """Decode again a line that was valid in the first pass."""
        with io.BufferedReader(_FileRange(self, offset, self.size), _FIRST_READ_BYTES) as reader:
            data, _, _ = self._read_line(reader, 0)
        try:
            return decode_line(data)
        except BadLine as error:
            raise StoreUnavailable(
                f"{self.path} was changed while it was read; import it again."
            ) from error

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at an offset."""
        return os.pread(self._descriptor, size, offset)


class _FileRange(io.RawIOBase):
    """A byte range of the file, with a read position of its own."""

    def __init__(self, source: ImportFile, start: int, stop: int) -> None:
        self._file = source
        self._offset = start
        self._stop = stop

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Read the next bytes into the buffer; return how many."""
        size = min(len(buffer), self._stop - self._offset)
        data = self._file.read_at(self._offset, size) if size > 0 else b""
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)
