"""Long tool outputs: stored completely, shown shortened.

An output over the limit is stored completely, as a file in the same result. The model is shown its
beginning and its end, and between them how to read the rest. Windows never contain the complete
output: for a file of this type, every provider is sent only its breadcrumb.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from holdfast import codec
from holdfast.agent.tools.protocol import Output
from holdfast.values import WHOLE_OUTPUT, File, Raw, Text

Piece: TypeAlias = Text | File | Raw

MAX_STORED_BYTES: Final = 64 * 1024 * 1024
_MIN_LIMIT_CHARS: Final = 200
_LINE_END_SLACK: Final = (
    0.2  # The share of the shown text that may be dropped to end at a line end.
)


def shorten(output: Output, limit: int, *, name: str = "tool", readable: bool = True) -> Output:
    """Return an output that shows a model about `limit` characters; the whole is stored with it.

    `name` is the tool's. `readable`: the model has the tool `read_output` to read the rest.
    """
    pieces = tuple(_as_texts(output.content))
    texts = [piece.text for piece in pieces if isinstance(piece, Text)]
    limit = max(limit, _MIN_LIMIT_CHARS)
    if sum(map(len, texts)) + len(texts) - 1 <= limit:
        return output if _is_plain(output.content) else Output(pieces, output.error)
    kept = _shortened("\n".join(texts), limit, name, readable=readable)
    others = (piece for piece in pieces if not isinstance(piece, Text))
    return Output((*kept, *others), output.error)


def _is_plain(content: str | Sequence[Piece]) -> bool:
    return isinstance(content, str) or not any(map(_is_text_file, content))


def _as_texts(content: str | Sequence[Piece]) -> Iterable[Piece]:
    """Return the pieces, text files as text: otherwise some providers would be sent all of them."""
    for piece in (Text(content),) if isinstance(content, str) else content:
        if isinstance(piece, File) and piece.data is not None and _is_text_file(piece):
            yield Text(bytes(piece.data).decode("utf-8", "replace"))
        else:
            yield piece


def _is_text_file(piece: Piece) -> bool:
    if not isinstance(piece, File) or piece.data is None:
        return False
    mime = (piece.mime or "").lower()
    return mime.startswith("text/") or mime == "application/json"


def _shortened(text: str, limit: int, name: str, *, readable: bool) -> tuple[Piece, ...]:
    data = codec.encode_text(text)
    is_complete = len(data) <= MAX_STORED_BYTES
    if not is_complete:
        text = _decoded(data[:MAX_STORED_BYTES])
        data = codec.encode_text(text)
    head = _head(text, limit - limit // 2)
    tail = _tail(text, limit // 2)
    left_out = len(text) - len(head) - len(tail)
    handle = codec.sha256_hex(data)
    note = f"[… {left_out:,} of {len(text):,} characters left out"
    if readable:
        note += f'; read_output(handle="{handle}", offset={len(head)}) reads them'
    if not is_complete:
        note += f"; the output was longer than {MAX_STORED_BYTES:,} bytes, and the rest is lost"
    kept = File(
        name=f"output of {name}", mime=WHOLE_OUTPUT, data=data, sha256=handle, size=len(data)
    )
    # Separate pieces, so that a window that shortens further cuts the output and not the note.
    return Text(head), Text(f"{note} …]"), Text(tail), kept


def _decoded(data: bytes) -> str:
    """Decode bytes that may end in the middle of a character."""
    for cut in range(4):
        try:
            return codec.decode_text(data[: len(data) - cut])
        except UnicodeDecodeError:
            continue
    return data.decode("utf-8", "replace")


def _head(text: str, length: int) -> str:
    end = text.rfind("\n", length - int(length * _LINE_END_SLACK), length)
    return text[: length if end < 0 else end + 1]


def _tail(text: str, length: int) -> str:
    start = len(text) - length
    end = text.find("\n", start, start + int(length * _LINE_END_SLACK))
    return text[start if end < 0 else end + 1 :]
