"""Exports as a stranger writes them: every line is valid, and says whatever the stranger likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from holdfast.transfer.format import AnyLine, EndLine, decode_line, encode_line

Edit = Callable[[list[AnyLine]], Sequence[AnyLine]]


def rewrite(file: Path, edit: Edit = list, renamed: Mapping[str, str] = {}) -> Path:
    """Rewrite the lines of an export: sessions get other ids, then `edit` changes the records.

    The checksums and counts are right again.
    """
    header, *lines = file.read_bytes().splitlines(keepends=True)
    for old, new in renamed.items():
        lines = [line.replace(old.encode(), new.encode()) for line in lines]
    written, count, checksum = [header], 0, 0
    for record in edit([decode_line(_sealed(line)) for line in lines]):
        if isinstance(record, EndLine):
            end = msgspec.structs.replace(record, lines=count, checksum=f"{checksum:08x}")
            count, checksum = 0, 0
            written.append(encode_line(end))
        else:
            written.append(encode_line(record))
            count, checksum = count + 1, crc32(written[-1], checksum)
    file.write_bytes(b"".join(written))
    return file


def _sealed(line: bytes) -> bytes:
    """Return a line with a valid checksum."""
    data = line.rpartition(b',"crc":')[0]
    return b'%s,"crc":"%08x"}\n' % (data, crc32(data))
