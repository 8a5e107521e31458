"""Metadata of a GGUF file, read without loading the model.

A GGUF file begins with a header: metadata (the architecture, the vocabulary, the chat template),
then a list of its tensors. Only the header is read, and only the values that an agent needs before
it calls the model are kept. The file is untrusted: every count in it is bounded.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from holdfast.errors import ModelMissing

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
# The scalar types: their numbers and formats.
_PLAIN: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_CHUNK: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 256 << 20
_MAX_TEXT_BYTES: Final = 1 << 20  # A longer text is skipped: some files contain their tokenizer.
_MAX_TEXTS_BYTES: Final = 32 << 20  # Of all texts that are not skipped.
_MAX_ENTRIES: Final = 65_536
_MAX_TENSORS: Final = 1 << 17
_MAX_STRINGS: Final = 1 << 22
_MAX_DIMENSIONS: Final = 8
_MAX_DEPTH: Final = 4


class GgufMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture, the context it was trained for, its chat template, and its size."""

    architecture: str | None
    context: int | None
    template: str | None
    parameters: int

    @property
    def supports_tools(self) -> bool:
        """True if its chat template mentions tools."""
        return self.template is not None and "tools" in self.template


def read(path: Path) -> GgufMetadata:
    """Read the header of a file; `ModelMissing` if it does not exist or is not a GGUF file."""
    try:
        if path.exists() and not path.is_file():  # Opening a pipe would block.
            raise ModelMissing(f"{path} is not a file")
        with path.open("rb") as file:
            return _HeaderReader(file).metadata()
    except OSError as error:
        raise ModelMissing(f"{path}: {error.strerror or error}") from error
    except (_InvalidFile, UnicodeDecodeError, struct.error) as error:
        raise ModelMissing(f"{path} is not a valid GGUF file: {error}") from error


class _InvalidFile(Exception):
    """The file is not a valid GGUF file."""


class _HeaderReader:
    """Reads a header value by value; only the bytes of the current one are in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._bytes = b""
        self._at = 0  # In these bytes.
        self._read = 0  # Bytes of the file before these.
        self._strings = 0
        self._text_bytes = 0

    def metadata(self) -> GgufMetadata:
        if self._take(4) != _MAGIC:
            raise _InvalidFile("it lacks the GGUF signature")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise _InvalidFile(f"version {version} is not supported")
        tensors = self._count(_MAX_TENSORS, "tensors")
        metadata = dict(self._entry() for _ in range(self._count(_MAX_ENTRIES, "metadata entries")))
        architecture = metadata.get("general.architecture")
        context = metadata.get(f"{architecture}.context_length")
        template = metadata.get("tokenizer.chat_template")
        return GgufMetadata(
            architecture=architecture if isinstance(architecture, str) else None,
            context=context if isinstance(context, int) and context > 0 else None,
            template=template if isinstance(template, str) else None,
            parameters=sum(self._tensor() for _ in range(tensors)),
        )

    def _entry(self) -> tuple[str, object]:
        name = self._text()
        return name, self._value(self._number("<I"))

    def _value(self, kind: int, depth: int = 0) -> object:
        """Read a value; an array is skipped."""
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            self._skip_array(depth)
            return None
        if kind not in _PLAIN:
            raise _InvalidFile(f"value type {kind} is unknown")
        value: object = self._number(_PLAIN[kind])
        return value

    def _skip_array(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _InvalidFile("arrays are nested too deeply")
        kind = self._number("<I")
        length = self._number("<Q")
        if kind in _PLAIN:
            self._skip(length * struct.calcsize(_PLAIN[kind]))
            return
        self._strings += length
        if self._strings > _MAX_STRINGS:
            raise _InvalidFile("too many strings")
        for _ in range(length):
            if kind == _STRING:
                self._skip(self._number("<Q"))
            else:
                self._value(kind, depth + 1)

    def _tensor(self) -> int:
        """Read a tensor's description; return how many parameters it has."""
        self._text()
        dimensions = self._number("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise _InvalidFile(f"a tensor has {dimensions} dimensions")
        size = math.prod(self._number("<Q") for _ in range(dimensions))
        self._skip(12)  # Its data type and offset.
        return size

    def _count(self, maximum: int, what: str) -> int:
        count = self._number("<Q")
        if count > maximum:
            raise _InvalidFile(f"too many {what}: {count}")
        return count

    def _text(self) -> str:
        """Read a text; one that is too long to be of use is skipped, and empty."""
        length = self._number("<Q")
        if length > _MAX_TEXT_BYTES:
            self._skip(length)
            return ""
        self._text_bytes += length
        if self._text_bytes > _MAX_TEXTS_BYTES:
            raise _InvalidFile("its texts are too long")
        return self._take(length).decode("utf-8")

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        self._buffer(size)
        value: int
        (value,) = struct.unpack_from(form, self._bytes, self._at)
        self._at += size
        return value

    def _take(self, size: int) -> bytes:
        self._buffer(size)
        taken = self._bytes[self._at : self._at + size]
        self._at += size
        return taken

    def _skip(self, size: int) -> None:
        self._check_length(size)
        while size > _CHUNK:
            self._take(_CHUNK)
            size -= _CHUNK
        self._take(size)

    def _buffer(self, size: int) -> None:
        """Read until `size` more bytes are buffered."""
        self._check_length(size)
        while len(self._bytes) < self._at + size:
            more = self._file.read(_CHUNK)
            if not more:
                raise _InvalidFile("it is truncated")
            self._bytes, self._read = self._bytes[self._at :] + more, self._read + self._at
            self._at = 0

    def _check_length(self, size: int) -> None:
        if self._read + self._at + size > _MAX_HEADER_BYTES:
            raise _InvalidFile("its header is too long")
