"""GGUF files for tests: the weights of the local model, and small ones made by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from holdfast.agent.models import weights


def smollm2() -> Path:
    """The real weights; without them (and the engine) there is nothing to test."""
    pytest.importorskip("xllamacpp", reason="the engine is not installed: holdfast[local]")
    path = weights.find()
    if path is None:
        pytest.skip("the weights of the local model are not installed (see the Makefile)")
    return path


def made(
    facts: Mapping[str, str | int | Sequence[str]],
    tensors: Mapping[str, Sequence[int]],
    version: int = 3,
) -> bytes:
    """The beginning of a GGUF file, with these facts and tensors of these dimensions."""
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(facts))]
    for name, value in facts.items():
        parts += [_text(name), _value(value)]
    for name, dimensions in tensors.items():
        parts += [_text(name), struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)]
        parts.append(struct.pack("<IQ", 0, 0))
    return b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: str | int | Sequence[str]) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
