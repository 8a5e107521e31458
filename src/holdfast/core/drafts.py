"""A reply that is still being streamed.

The draft is a sequence of deltas. They are stored in chunks as they come and put together once, at
the end or at recovery. Neighbouring deltas of one kind are one part.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.codec import encode_text, to_json
from holdfast.records import Part, Text, Thinking, ToolCall, Usage

Delta = Text | Thinking | ToolCall


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
        if runs and type(runs[-1][0]) is type(delta) and not isinstance(delta, ToolCall):
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return tuple(_merge(run) for run in runs)


def _merge(run: list[Delta]) -> Part:
    first = run[0]
    if isinstance(first, ToolCall):
        return first
    text = "".join(delta.text for delta in run if not isinstance(delta, ToolCall))
    if isinstance(first, Text):
        return Text(text)
    signed = [d.signature for d in run if isinstance(d, Thinking) and d.signature is not None]
    return Thinking(text, signed[-1] if signed else None)


def size(delta: Delta) -> int:
    """Count the bytes of a delta, for the flush limit."""
    if isinstance(delta, ToolCall):
        return len(to_json(delta))
    return len(delta.text) if delta.text.isascii() else len(encode_text(delta.text))
