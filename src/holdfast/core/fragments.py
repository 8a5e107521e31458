"""Which pieces of a text to look for, to see whether any of it is left.

Pieces are taken from what a message says (its texts, names, arguments, metadata), as bytes, exactly
as they are stored, and not from what every message has (its role, its time, the names of fields).
Each is long enough that it hardly occurs by chance, and short enough that a few bytes overwritten
in a text leave most of its pieces. They are spread over the whole of it. A text that is shorter
than the shortest piece, or hardly varies, has none: nobody could say whose it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast import codec
from holdfast.records import JSON

LENGTH: Final = 32
SHORTEST: Final = 12
_FEWEST_BYTES: Final = 6
_EVERY_MESSAGE_HAS: Final = frozenset({"role", "at", "type", "status", "sha256", "tokens", "size"})


def of_body(body: bytes, most: int) -> list[bytes]:
    """Pick pieces of a stored message, so many at most."""
    said = _read(body)
    if said is None:
        return of_data(body, most)
    return _pick([codec.to_json(text)[1:-1] for text in _texts(said)], most)


def hashes(body: bytes) -> list[str]:
    """Name the files and large parts of a stored message."""
    return list(dict.fromkeys(_hashes(_read(body))))


def _read(body: bytes) -> JSON:
    try:
        return codec.from_json(body, dict)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _hashes(value: JSON) -> Iterator[str]:
    for item in value if isinstance(value, list) else ():
        yield from _hashes(item)
    for name, item in value.items() if isinstance(value, dict) else ():
        if name == "sha256" and isinstance(item, str):
            yield item
        elif name in {"parts", "content"}:
            yield from _hashes(item)


def of_data(data: bytes, most: int) -> list[bytes]:
    """Pick pieces of a file or a large part."""
    return _pick([data], most)


def _texts(value: JSON) -> Iterator[str]:
    """Go through the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _EVERY_MESSAGE_HAS:
                yield from _texts(item)


def _pick(texts: Sequence[bytes], most: int) -> list[bytes]:
    """Take a piece of each text, the longest first, then more of those that have more."""
    ways = [_pieces(text, most) for text in sorted(texts, key=len, reverse=True)[:most]]
    found: dict[bytes, None] = {}
    for turn in range(most):
        for pieces in ways:
            if turn < len(pieces) and len(found) < most:
                found[pieces[turn]] = None
    return list(found)


def _pieces(text: bytes, most: int) -> list[bytes]:
    """Cut pieces out of a text, evenly, its beginning and its end among them."""
    if len(text) < SHORTEST:
        return []
    last = max(0, len(text) - LENGTH)
    count = min(most, last // LENGTH + 2) if last else 1
    starts = [last * n // max(1, count - 1) for n in range(count)]
    pieces = (text[start : start + LENGTH] for start in starts)
    return [piece for piece in pieces if len(set(piece)) >= _FEWEST_BYTES]


def thinned(pieces: Iterable[bytes], most: int) -> list[bytes]:
    """Leave so many of them at most, evenly."""
    all_of_them = list(dict.fromkeys(pieces))
    if len(all_of_them) <= most:
        return all_of_them
    return [all_of_them[len(all_of_them) * n // most] for n in range(most)]
