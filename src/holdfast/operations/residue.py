"""The fragments of an erased text to search for, to prove that nothing of it is left.

Fragments are taken from the content of a message (its texts, names, arguments, metadata) and of a
purged session (its title, key, goal and so on, and its queue), as bytes, exactly as they are
stored, and not from what every message has (its role, its time, the names of fields). Each is long
enough that it hardly occurs by chance, and short enough that overwriting a few bytes of a text
spares most of its fragments. They are spread over the whole text. A text that is shorter than
`MIN_FRAGMENT_BYTES`, or hardly varies, has none: a match would prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast import codec
from holdfast.values import JSON

FRAGMENT_BYTES: Final = 32
MIN_FRAGMENT_BYTES: Final = 12
_MIN_DISTINCT_BYTES: Final = 6
_COMMON_FIELDS: Final = frozenset({"role", "at", "type", "status", "sha256", "tokens", "size"})


def body_fragments(body: bytes, limit: int) -> list[bytes]:
    """Return at most `limit` fragments of a stored message."""
    content = _decode(body)
    if content is None:
        return data_fragments(body, limit)
    return _pick_fragments([codec.to_json(text)[1:-1] for text in _texts(content)], limit)


def blob_hashes(body: bytes) -> list[str]:
    """Return the hashes of a stored message's blobs: its files and large parts."""
    return list(dict.fromkeys(_blob_hashes(_decode(body))))


def _decode(body: bytes) -> JSON:
    try:
        return codec.from_json(body, dict)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _blob_hashes(value: JSON) -> Iterator[str]:
    for item in value if isinstance(value, list) else ():
        yield from _blob_hashes(item)
    for name, item in value.items() if isinstance(value, dict) else ():
        if name == "sha256" and isinstance(item, str):
            yield item
        elif name in {"parts", "content"}:
            yield from _blob_hashes(item)


def data_fragments(data: bytes, limit: int) -> list[bytes]:
    """Return at most `limit` fragments of a blob."""
    return _pick_fragments([data], limit)


def _texts(value: JSON) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _COMMON_FIELDS:
                yield from _texts(item)


def _pick_fragments(texts: Sequence[bytes], limit: int) -> list[bytes]:
    """Take one fragment of each text, the longest text first, then more in further rounds."""
    by_text = [_cut_fragments(text, limit) for text in sorted(texts, key=len, reverse=True)[:limit]]
    found: dict[bytes, None] = {}
    for turn in range(limit):
        for fragments in by_text:
            if turn < len(fragments) and len(found) < limit:
                found[fragments[turn]] = None
    return list(found)


def _cut_fragments(text: bytes, limit: int) -> list[bytes]:
    """Cut fragments out of a text at even distances, from its beginning to its end."""
    if len(text) < MIN_FRAGMENT_BYTES:
        return []
    last = max(0, len(text) - FRAGMENT_BYTES)
    count = min(limit, last // FRAGMENT_BYTES + 2) if last else 1
    starts = [last * n // max(1, count - 1) for n in range(count)]
    fragments = (text[start : start + FRAGMENT_BYTES] for start in starts)
    return [fragment for fragment in fragments if len(set(fragment)) >= _MIN_DISTINCT_BYTES]


def sample_evenly(fragments: Iterable[bytes], limit: int) -> list[bytes]:
    """Return at most `limit` distinct fragments, chosen at even distances."""
    distinct = list(dict.fromkeys(fragments))
    if len(distinct) <= limit:
        return distinct
    return [distinct[len(distinct) * n // limit] for n in range(limit)]
