"""The metadata of a GGUF file is read without loading it, and no file can do harm that way."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.models import gguf
from holdfast.errors import ModelMissing
from tests.agent.ggufs import made, smollm2

_FACTS: dict[str, str | int | list[str]] = {
    "general.architecture": "llama",
    "llama.context_length": 4096,
    "tokenizer.ggml.tokens": ["a", "bc", ""],
    "tokenizer.chat_template": "{% if tools %}{% endif %}",
}
_TENSORS = {"token_embd.weight": [64, 100], "output.weight": [64]}


@pytest.mark.parametrize("version", [2, 3])
def test_facts_are_read(tmp_path: Path, version: int) -> None:
    """Context, template and size; what stands between them is passed over."""
    path = tmp_path / "small.gguf"
    path.write_bytes(made(_FACTS, _TENSORS, version) + bytes(100))
    facts = gguf.read(path)
    assert facts.architecture == "llama"
    assert facts.context == 4096
    assert facts.supports_tools
    assert facts.parameters == 64 * 100 + 64


def test_what_is_not_said_is_not_known(tmp_path: Path) -> None:
    """A file need not say anything."""
    path = tmp_path / "small.gguf"
    path.write_bytes(made({}, {}))
    facts = gguf.read(path)
    assert (facts.architecture, facts.context, facts.template) == (None, None, None)
    assert not facts.supports_tools


def test_every_kind_of_value_is_passed_over(tmp_path: Path) -> None:
    """Numbers of all sizes, truths, arrays of them and arrays in arrays."""
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    name = struct.pack("<Q", 1) + b"x"
    facts = [name + struct.pack("<I", kind) + bytes(size) for kind, size in sizes.items()]
    facts += [
        name + struct.pack("<IIQ", 9, kind, 3) + bytes(3 * size) for kind, size in sizes.items()
    ]
    inner = struct.pack("<IQ", 8, 1) + struct.pack("<Q", 2) + b"yz"
    facts.append(name + struct.pack("<IIQ", 9, 9, 1) + inner)
    facts.append(
        struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 3) + b"abc"
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(facts))
    path = tmp_path / "small.gguf"
    path.write_bytes(head + b"".join(facts))
    assert gguf.read(path).architecture == "abc"


def test_the_real_weights_are_read() -> None:
    """SmolLM2-135M was made for 8192 tokens and knows no tools."""
    facts = gguf.read(smollm2())
    assert facts.context == 8192
    assert not facts.supports_tools
    assert 130_000_000 < facts.parameters < 140_000_000


def test_a_long_text_is_skipped_and_never_in_memory(tmp_path: Path) -> None:
    """Some files contain their whole tokenizer as one text, and a hostile one may say anything."""
    path = tmp_path / "long.gguf"
    path.write_bytes(made({"a": "x" * (64 << 20), **_FACTS}, _TENSORS))
    tracemalloc.start()
    try:
        assert gguf.read(path).architecture == "llama"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_many_texts_that_are_not_skipped_have_a_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header of 256 MiB of them took more than a gigabyte of memory."""
    monkeypatch.setattr(gguf, "_MAX_TEXTS_BYTES", 100)
    path = tmp_path / "model.gguf"
    path.write_bytes(made({f"key.{n}": "text" for n in range(9)}, {}))
    assert gguf.read(path).context is None
    path.write_bytes(made({f"key.{n}": "text" for n in range(20)}, {}))
    with pytest.raises(ModelMissing, match="texts are too long"):
        gguf.read(path)


_WHOLE = made(_FACTS, _TENSORS)
_HUGE = 1 << 62


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b"PK\x03\x04" + bytes(100), "lacks the GGUF signature"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, _HUGE), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, _HUGE, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, _HUGE), "header is too long"),
        (b"GGUF" + struct.pack("<IQQQIIQ", 3, 0, 1, 0, 9, 8, _HUGE), "too many strings"),
        (b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 99), "value type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe", "UTF-8|utf-8"),
        (
            b"GGUF" + struct.pack("<IQQQI", 3, 0, 1, 0, 9) + struct.pack("<IQ", 9, 1) * 9,
            "arrays are nested",
        ),
        (b"GGUF" + struct.pack("<IQQQI", 3, 1, 0, 0, 99), "99 dimensions"),
        (_WHOLE[:-1], "truncated"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    """Whatever it counts up to, the error says what is wrong and names the file."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelMissing, match=why) as raised:
        gguf.read(path)
    assert str(path) in str(raised.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """Nothing, a directory, and a pipe nobody writes to."""
    with pytest.raises(ModelMissing, match="No such file"):
        gguf.read(tmp_path / "none.gguf")
    with pytest.raises(ModelMissing, match="is not a file"):
        gguf.read(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelMissing, match="is not a file"):
        gguf.read(tmp_path / "pipe.gguf")


@given(st.data())
def test_a_damaged_file_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Never anything else: one byte changed, anywhere, or the rest cut off."""
    at = data.draw(st.integers(0, len(_WHOLE) - 1))
    changed = bytearray(_WHOLE)
    changed[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(changed[: data.draw(st.integers(at, len(_WHOLE)))])
    try:
        gguf.read(path)
    except ModelMissing:
        return
