r"""JSON output, in ASCII.

One document per command, or one line per item of a stream. Characters outside printable ASCII are
escaped, lone surrogates included, so the output is safe for a terminal as well as for a parser.
Times are ISO 8601 in UTC; costs are strings.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

import msgspec


def to_ascii_json(value: object, *, indent: int | None = None) -> str:
    """Return a struct or plain value as JSON in printable ASCII."""
    text = json.dumps(msgspec.to_builtins(value, str_keys=True), indent=indent)
    return text.replace("\x7f", "\\u007f")  # ASCII, but a control character


def print_document(value: object) -> None:
    """Print the single JSON document of a command."""
    sys.stdout.write(to_ascii_json(value, indent=2) + "\n")


def print_line(value: object, file: TextIO | None = None) -> None:
    """Print one item of a stream, on a line."""
    (file or sys.stdout).write(to_ascii_json(value) + "\n")
