"""The parts of a streamed reply.

A draft is a sequence of deltas. They are stored in chunks as they arrive and merged into parts
once, when the reply is closed or recovered. Adjacent texts become one part, and so does adjacent
thinking, up to the signature that ends it; every other delta is a part by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.codec import encode_text, to_json
from holdfast.values import Part, Provenance, Raw, Text, Thinking, ToolCall, Usage

Delta = Text | Thinking | ToolCall | Raw


class DraftOpening(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first chunk of a draft: the message it will become."""

    id: str
    model: str | None
    at: int
    provenance: Provenance | None = None


class DraftChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """The chunk that one flush stores."""

    deltas: tuple[Delta, ...] = ()
    usage: Usage | None = None
    cost: Decimal | None = None


def merge_deltas(deltas: Iterable[Delta]) -> tuple[Part, ...]:
    """Return the parts that these deltas make up."""
    runs: list[list[Delta]] = []
    for delta in deltas:
        if runs and continues_part(runs[-1][-1], delta):
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return tuple(_merge(run) for run in runs)


def continues_part(last: Delta, delta: Delta) -> bool:
    """Return whether a delta belongs to the same part as the one before it."""
    if isinstance(last, Thinking):
        # A signature covers exactly the thinking before it: nothing may be added.
        return isinstance(delta, Thinking) and last.signature is None
    return isinstance(last, Text) and isinstance(delta, Text)


def _merge(run: list[Delta]) -> Part:
    last = run[-1]
    if isinstance(last, ToolCall | Raw):
        return last
    text = "".join(delta.text for delta in run if isinstance(delta, Text | Thinking))
    return Thinking(text, last.signature) if isinstance(last, Thinking) else Text(text)


def delta_bytes(delta: Delta) -> int:
    """Return the size of a delta in bytes, for the flush limit."""
    if isinstance(delta, ToolCall | Raw):
        return len(to_json(delta))
    return len(delta.text) if delta.text.isascii() else len(encode_text(delta.text))
