r"""What programs read: JSON in ASCII.

One document per command, or one line per item for what goes on. Whatever was stored comes out as
an escape if it is not plain ASCII, lone surrogates included, so a terminal is as safe as a parser.
Times are ISO 8601 in UTC, amounts of money are texts.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

import msgspec


def to_ascii(value: object, *, indent: int | None = None) -> str:
    """Turn records and plain values into JSON in printable ASCII."""
    text = json.dumps(msgspec.to_builtins(value, str_keys=True), indent=indent)
    return text.replace("\x7f", "\\u007f")  # ASCII, but a control character


def print_document(value: object) -> None:
    """Print a command's one answer."""
    sys.stdout.write(to_ascii(value, indent=2) + "\n")


def print_line(value: object, file: TextIO | None = None) -> None:
    """Print one item of a stream."""
    (file or sys.stdout).write(to_ascii(value) + "\n")
