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
_MOST_BYTES: Final = 256 << 20
_MOST_FACTS: Final = 65_536
_MOST_TENSORS: Final = 1 << 20
_MOST_STRINGS: Final = 1 << 23
_MOST_DIMENSIONS: Final = 8
_DEEPEST: Final = 4


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The architecture, the context it was trained for, its chat template, and its size."""

    architecture: str | None
    context: int | None
    template: str | None
    parameters: int

    @property
    def knows_tools(self) -> bool:
        """True if its chat template mentions tools."""
        return self.template is not None and "tools" in self.template


def read(path: Path) -> Facts:
    """Read the header of a file; `ModelMissing` if it does not exist or is not a GGUF file."""
    try:
        if path.exists() and not path.is_file():  # Opening a pipe would block.
            raise ModelMissing(f"{path} is not a file")
        with path.open("rb") as file:
            return _Reader(file).facts()
    except OSError as error:
        raise ModelMissing(f"{path}: {error.strerror or error}") from error
    except (_Broken, UnicodeDecodeError, struct.error) as error:
        raise ModelMissing(f"{path} is not a valid GGUF file: {error}") from error


class _Broken(Exception):
    """The file is not a valid GGUF file."""


class _Reader:
    """Reads a header value by value; only the bytes read so far are in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._bytes = bytearray()
        self._at = 0
        self._strings = 0

    def facts(self) -> Facts:
        if self._take(4) != _MAGIC:
            raise _Broken("it lacks the GGUF signature")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise _Broken(f"version {version} is not supported")
        tensors = self._count(_MOST_TENSORS, "tensors")
        metadata = dict(self._fact() for _ in range(self._count(_MOST_FACTS, "metadata entries")))
        architecture = metadata.get("general.architecture")
        context = metadata.get(f"{architecture}.context_length")
        template = metadata.get("tokenizer.chat_template")
        return Facts(
            architecture=architecture if isinstance(architecture, str) else None,
            context=context if isinstance(context, int) and context > 0 else None,
            template=template if isinstance(template, str) else None,
            parameters=sum(self._tensor() for _ in range(tensors)),
        )

    def _fact(self) -> tuple[str, object]:
        name = self._text()
        return name, self._value(self._number("<I"))

    def _value(self, kind: int, depth: int = 0) -> object:
        """Read a value; an array is skipped."""
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            self._pass_array(depth)
            return None
        if kind not in _PLAIN:
            raise _Broken(f"value type {kind} is unknown")
        value: object = self._number(_PLAIN[kind])
        return value

    def _pass_array(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise _Broken("arrays are nested too deeply")
        kind = self._number("<I")
        length = self._number("<Q")
        if kind in _PLAIN:
            self._skip(length * struct.calcsize(_PLAIN[kind]))
            return
        self._strings += length
        if self._strings > _MOST_STRINGS:
            raise _Broken("too many strings")
        for _ in range(length):
            if kind == _STRING:
                self._skip(self._number("<Q"))
            else:
                self._value(kind, depth + 1)

    def _tensor(self) -> int:
        """Read a tensor's description; return how many parameters it has."""
        self._text()
        dimensions = self._number("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise _Broken(f"a tensor has {dimensions} dimensions")
        size = math.prod(self._number("<Q") for _ in range(dimensions))
        self._skip(12)  # Its data type and offset.
        return size

    def _count(self, maximum: int, what: str) -> int:
        count = self._number("<Q")
        if count > maximum:
            raise _Broken(f"too many {what}: {count}")
        return count

    def _text(self) -> str:
        return self._take(self._number("<Q")).decode("utf-8")

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        self._have(size)
        value: int
        (value,) = struct.unpack_from(form, self._bytes, self._at)
        self._at += size
        return value

    def _take(self, size: int) -> bytes:
        self._have(size)
        taken = bytes(self._bytes[self._at : self._at + size])
        self._at += size
        return taken

    def _skip(self, size: int) -> None:
        self._have(size)
        self._at += size

    def _have(self, size: int) -> None:
        """Read until `size` more bytes are buffered."""
        if self._at + size > _MOST_BYTES:
            raise _Broken("its header is too long")
        while len(self._bytes) < self._at + size:
            more = self._file.read(_CHUNK)
            if not more:
                raise _Broken("it is truncated")
            self._bytes += more
