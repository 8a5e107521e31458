"""Parameter types and parsers: texts, metadata, and positions in a history.

A text that is not valid UTF-8 is refused as a whole, so that no part of it is stored. Metadata is
text unless it is marked as JSON, so that a version 1.10 or a number with leading zeros is kept as
it was typed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from holdfast.codec import MAX_MESSAGE_BYTES
from holdfast.errors import TooLarge
from holdfast.values import JSON, Head, MessageRef

_ID_PREFIX: Final = "id:"


class _Utf8Text(click.types.StringParamType):
    """A text in one argument. It must be valid UTF-8; other encodings are not guessed."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the text; fail if its bytes are not valid UTF-8."""
        text = super().convert(value, param, ctx)
        try:
            return os.fsencode(text).decode("utf-8")
        except UnicodeError:
            self.fail("this is not UTF-8; nothing was stored.", param, ctx)


class _Directory(_Utf8Text):
    """A working directory, stored as an absolute path."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return the absolute path; an empty text stays empty."""
        text = super().convert(value, param, ctx)
        return os.path.abspath(text) if text else text  # noqa: PTH100 - the text is what is kept


UTF8_TEXT: Final = _Utf8Text()
DIRECTORY: Final = _Directory()
METADATA_HELP: Final = "NAME=TEXT, or NAME:=JSON for numbers, lists and the like.  [repeatable]"


def parse_metadata(pairs: Sequence[str]) -> dict[str, JSON]:
    """Parse `name=text` and `name:=JSON` pairs; refuse a name that is given twice."""
    found: dict[str, JSON] = {}
    for pair in pairs:
        name, value = _parse_pair(pair)
        if name in found:
            raise click.UsageError(f"--meta: {name!r} is given twice; nothing was stored.")
        found[name] = value
    return found


def _parse_pair(pair: str) -> tuple[str, JSON]:
    name, sign, value = pair.partition("=")
    if not sign or not name.removesuffix(":"):
        raise click.UsageError(f"--meta {pair!r}: expected NAME=TEXT or NAME:=JSON.")
    if not name.endswith(":"):
        return name, value
    try:
        decoded: JSON = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.UsageError(f"--meta {pair!r}: {error}.") from error
    if decoded is None:
        raise click.UsageError(f"--meta {pair!r}: null cannot be stored; --unset removes a name.")
    return name.removesuffix(":"), decoded


def parse_position(text: str, branch: int | None) -> MessageRef:
    """Parse a message's number, on the current or another branch, or its id."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None  # noqa: PLR2004 - as far as seqs go
    if number is None and branch is not None:
        raise click.UsageError("--branch needs a message's number; an id is unique without it.")
    if number is None:
        return text.removeprefix(_ID_PREFIX)
    return number if branch is None else Head(branch, number)


def read_text(argument: str | None) -> str:
    """Return the text of an argument, or standard input if it is missing or `-`."""
    if argument is None or argument == "-":
        data = _read_input().removesuffix(b"\n")
    else:
        data = argument.encode("utf-8", "surrogateescape")
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"The text is not UTF-8 (byte {error.start + 1}); nothing was stored. "
            "Convert it first: iconv -f LATIN1 -t UTF-8"
        ) from error
    if not decoded:
        raise click.UsageError("The text is empty; nothing was stored.")
    return decoded


def _read_input() -> bytes:
    if sys.stdin.isatty():
        sys.stderr.write("Type the message, then Ctrl-D on a line of its own.\n")
    data = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1)
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the text on standard input is over the limit of {MAX_MESSAGE_BYTES:,} bytes; nothing "
            "was stored."
        )
    return data
