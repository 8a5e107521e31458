"""A reply that is still being streamed.

The draft is a sequence of deltas. They are stored in chunks as they come and put together once, at
the end or at recovery. Neighbouring texts are one part, and so are neighbouring thoughts, up to the
signature that ends them; every other delta is a part of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.codec import encode_text, to_json
from holdfast.records import Part, Raw, Text, Thinking, ToolCall, Usage

Delta = Text | Thinking | ToolCall | Raw


class Opening(msgspec.Struct, frozen=True):
    """The first record of a draft: the message it will become."""

    id: str
    model: str | None
    at: int


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one flush stores."""

    deltas: tuple[Delta, ...] = ()
    usage: Usage | None = None
    cost: Decimal | None = None


def put_together(deltas: Iterable[Delta]) -> tuple[Part, ...]:
    """Make parts of deltas."""
    runs: list[list[Delta]] = []
    for delta in deltas:
        if runs and _goes_on(runs[-1][-1], delta):
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return tuple(_merge(run) for run in runs)


def _goes_on(last: Delta, delta: Delta) -> bool:
    """Return whether a delta belongs to the same part as the one before it."""
    if isinstance(last, Thinking):
        # A signature holds for what it was made of: nothing may be added to that.
        return isinstance(delta, Thinking) and last.signature is None
    return isinstance(last, Text) and isinstance(delta, Text)


def _merge(run: list[Delta]) -> Part:
    last = run[-1]
    if isinstance(last, ToolCall | Raw):
        return last
    text = "".join(delta.text for delta in run if isinstance(delta, Text | Thinking))
    return Thinking(text, last.signature) if isinstance(last, Thinking) else Text(text)


def size(delta: Delta) -> int:
    """Count the bytes of a delta, for the flush limit."""
    if isinstance(delta, ToolCall | Raw):
        return len(to_json(delta))
    return len(delta.text) if delta.text.isascii() else len(encode_text(delta.text))
