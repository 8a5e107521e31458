"""Marks of metadata: how sessions are found by what their metadata has.

Metadata is pairs of a name and a value. Values are equal if their JSON is: the order of names in an
object does not count, but 1, 1.0 and true are three values. A *mark* is a hash of a pair, so that
an index can hold pairs of any size. What is found by a mark is compared with the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final, TypeAlias

from holdfast import codec

_MARK_BYTES: Final = 16
Pair: TypeAlias = tuple[str, bytes]  # a name, and the JSON of its value with sorted names


def pair(name: str, value: object) -> Pair:
    """Return a pair of metadata."""
    return name, codec.to_sorted_json(value)


def pairs(metadata: bytes) -> set[Pair]:
    """Return the pairs of stored metadata; none if it cannot be decoded."""
    if metadata == b"{}":  # which most metadata is
        return set()
    try:
        decoded = codec.from_json(metadata, dict)
    except ValueError:
        return set()
    return {pair(name, value) for name, value in decoded.items()}


def mark(wanted: Pair) -> bytes:
    """Return the mark of a pair."""
    name, value = wanted
    # The value is hashed first: a name may contain any text.
    return sha256(sha256(value).digest() + codec.encode_text(name)).digest()[:_MARK_BYTES]


def marks(found: Iterable[Pair]) -> set[bytes]:
    """Return the marks of pairs."""
    return set(map(mark, found))
