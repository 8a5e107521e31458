"""Text files: detecting binary data, decoding, and how text is shown."""

from __future__ import annotations

from typing import Final

from holdfast.agent.tools.function_tools import ToolError

_SNIFFED_BYTES: Final = 8192
_NOT_UTF8: Final = "\n[not valid UTF-8: invalid bytes are shown as \ufffd]"
_KINDS: Final = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database",
}


def is_binary(data: bytes) -> bool:
    """True if this is binary data: a known file type, or a null byte near the beginning."""
    return b"\0" in data[:_SNIFFED_BYTES] or any(map(data.startswith, _KINDS))


def describe_type(data: bytes) -> str:
    """Return a description of binary data, by its signature."""
    return next((kind for start, kind in _KINDS.items() if data.startswith(start)), "binary data")


def decoded(data: bytes) -> tuple[str, str]:
    """Return the text, and a note if it is not valid UTF-8."""
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), _NOT_UTF8


def encoded(text: str) -> bytes:
    """Return a text in UTF-8; `ToolError` if it contains lone surrogates."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError("the text contains characters that cannot be written as UTF-8.") from error


def with_crlf(text: str) -> str:
    """Return a text with CRLF line ends."""
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def cut_line(line: str, longest: int) -> str:
    """Return a line, cut to `longest` characters with a note if it is longer."""
    if len(line) <= longest:
        return line
    return f"{line[:longest]}[… the line has {len(line):,} characters]"


def lines_of(text: str, part: str) -> str:
    """Return the numbers of the first few lines in which a text contains a part."""
    numbers: list[int] = []
    at = text.find(part)
    number = 1 + text.count("\n", 0, at)
    while at >= 0 and len(numbers) < 5:  # noqa: PLR2004 - enough to see where
        numbers.append(number)
        following = text.find(part, at + len(part))
        number += text.count("\n", at, following) if following >= 0 else 0
        at = following
    return "line " + ", ".join(map(str, numbers))
