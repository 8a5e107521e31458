"""Edit the lines of an export, with or without a valid checksum."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

Change = Callable[[dict[str, Any]], object]


def sealed(record: dict[str, Any]) -> bytes:
    """Return a line with a valid checksum."""
    record = {name: value for name, value in record.items() if name != "crc"}
    return sealed_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")))


def sealed_text(text: str) -> bytes:
    """Return a line of this text, which ends with a brace, with a valid checksum."""
    data = text.encode()[:-1]
    return b'%s,"crc":"%08x"}\n' % (data, crc32(data))


def find(path: Path, **fields: object) -> int:
    """Return the index of the only line with these fields."""
    wanted = [json.dumps({name: value})[1:-1].replace(": ", ":") for name, value in fields.items()]
    found = [
        at
        for at, line in enumerate(path.read_bytes().splitlines())
        if all(field.encode() in line for field in wanted) and b'{"type":"end"' not in line
    ]
    assert len(found) == 1, f"{len(found)} lines have {fields}"
    return found[0]


def put(path: Path, at: int, line: bytes) -> None:
    """Replace a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[at] = line
    path.write_bytes(b"".join(lines))


def change(path: Path, at: int, how: Change) -> None:
    """Change the fields of a line, and update its checksum."""
    record = json.loads(path.read_bytes().splitlines()[at])
    how(record)
    put(path, at, sealed(record))


def flip(path: Path, at: int) -> bytes:
    """Flip a bit in the middle of a line; return the damaged line."""
    line = bytearray(path.read_bytes().splitlines(keepends=True)[at])
    middle = len(line) // 2
    while line[middle] in b'"\\\n{}[]:,':
        middle += 1
    line[middle] ^= 1
    put(path, at, bytes(line))
    return bytes(line)
