"""Redact a message or a record, and list the findings.

Every text in a message is scanned: text parts, tool arguments and results, names, file names, the
data of text files, provider data, metadata and provenance. In JSON a value is scanned together with
its key, and keys are scanned too. Ids are not scanned, because messages and calls are found by
them. Data that is not text is reported as not looked into.

Signed content is never edited, because the provider would reject it. Signed thinking that contains
a secret is left out completely, with the other signed thinking of its message: a provider verifies
it together. Sealed provider data (signatures, encrypted content, reasoning) is kept unchanged, or
left out completely if its readable fields contain a secret, together with the call that it
answers. The sealed values themselves are not scanned: they are opaque.

A record is scanned in the same way: its data, its files and their names. One that has a secret in
its kind, key or scope is left out, because two of them could get the same mark.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast import codec
from holdfast.transfer.redact.secrets import (
    Detectors,
    SecretSpan,
    find_in_row,
    find_secrets,
    insert_marks,
    redact_text,
)
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Provenance,
    Raw,
    Record,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    is_original,
)

Action: TypeAlias = Literal["replaced", "left out", "not looked into"]
Piece: TypeAlias = Text | File | Raw

_PREVIEW_CHARS: Final = 4
_SEALED_KEY: Final = re.compile(r"(?i)(?:.*_)?encrypted_?\w*|\w*signature")
_SEALED_TYPES: Final = frozenset({"reasoning", "redacted_thinking", "thinking", "compaction"})
_SIGNED_TYPES: Final = frozenset({"redacted_thinking", "thinking"})
_BINARY_MIMES: Final = re.compile(
    r"(?i)(?:image/(?!svg)|audio/|video/|font/|model/|application/(?:pdf|zip|gzip|wasm|msword|epub"
    r"|java-archive|x-(?:tar|7z|bzip|rar|xz)|vnd\.(?:ms-|openxml|oasis|rar|apple\.installer)))"
)
# Byte order marks, the longer first; the mark stays a part of the text.
_BYTE_ORDER_MARKS: Final = (
    *((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be")),
    *((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
)
_CONTROL_BYTES: Final = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_MANY_NULS: Final = 0.4  # Of every second byte, in UTF-16 without a mark.
# Keys of JSON objects whose values may be secrets.
_SECRET_KEY: Final = re.compile(
    r"(?i)pass|pwd|pw|secret|token|key|credential|auth|cookie|phrase|mnemonic|kennwort|contrase"
)
_QUOTES: Final = "\"'`"


class RedactionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a review: where the secret was, its detector, a preview, and the action.

    For data that was not looked into, `detector` is empty and `preview` describes the data.
    """

    message_id: str | None
    seq: int | None
    where: str
    detector: str
    preview: str
    action: Action


class FoundSecret(msgspec.Struct, frozen=True):
    """A secret inside a value, without the message it belongs to."""

    where: str
    detector: str
    preview: str


def redact_message(message: Message, using: Detectors) -> tuple[Message, list[RedactionFinding]]:
    """Return the redacted message and the findings; the same message if it has no secret."""
    work = _ValueRedactor(using)
    changed = work.message(message)
    return changed, work.redaction_findings(message.id, message.seq)


def redact_record(record: Record, using: Detectors) -> tuple[Record | None, list[RedactionFinding]]:
    """Return the redacted record and the findings, as for a message; `None` if it is left out."""
    work = _ValueRedactor(using)
    changed = work.record(record)
    return changed, work.redaction_findings(None, record.seq)


def redact_json(value: JSON, using: Detectors) -> tuple[JSON, list[FoundSecret]]:
    """Return redacted JSON, such as the metadata of a session, and the secrets found."""
    work = _ValueRedactor(using)
    changed = work.json(value, "")
    return changed, [seen for _, seen in work.findings]


def preview(secret: str) -> str:
    """Return the first characters of a secret: enough to recognise it, too few to use it."""
    shown = secret[: min(_PREVIEW_CHARS, len(secret) // 4)]
    return f"{shown}… ({len(secret):,} characters)"


def is_text_file(file: File) -> bool:
    """True unless the type of a file says that its data is not text."""
    return not file.mime or _BINARY_MIMES.match(file.mime) is None


def decode_file(file: File) -> tuple[str, str] | None:
    """Return the text of a file and its encoding; `None` if its data is not text."""
    data = bytes(file.data or b"")
    for encoding in _encodings(data, text=(file.mime or "").lower().startswith("text/")):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return text, encoding
    return None


def _encodings(data: bytes, *, text: bool) -> Iterator[str]:
    """Return the encodings that data may have, the likelier first."""
    yield from (encoding for mark, encoding in _BYTE_ORDER_MARKS if data.startswith(mark))
    even, odd = data[::2], data[1::2]
    for low, high, encoding in ((even, odd, "utf-16-le"), (odd, even, "utf-16-be")):
        if high.count(0) > len(high) * _MANY_NULS and _CONTROL_BYTES.search(low) is None:
            yield encoding
    yield "utf-8"
    if text or _CONTROL_BYTES.search(data) is None:
        yield "latin-1"  # Or one of its relatives: keys and their names are ASCII in all of them.


class _ValueRedactor:
    """Redacts values one by one, and records the findings."""

    def __init__(self, using: Detectors) -> None:
        self._detectors = using
        self.findings: list[tuple[Action, FoundSecret]] = []

    def redaction_findings(self, message: str | None, seq: int | None) -> list[RedactionFinding]:
        """Return what was found, in the message with this id."""
        return [
            RedactionFinding(
                message_id=message,
                seq=seq,
                where=seen.where,
                detector=seen.detector,
                preview=seen.preview,
                action=action,
            )
            for action, seen in self.findings
        ]

    @property
    def _changed(self) -> bool:
        return any(action != "not looked into" for action, _ in self.findings)

    # ------------------------------------------------------------------- messages and records

    def record(self, record: Record) -> Record | None:
        """Redact a record; `None` if its names have a secret."""
        names = _ValueRedactor(self._detectors)
        for field, name in (("kind", record.kind), ("key", record.key), ("scope", record.scope)):
            if isinstance(name, str):
                names.text(name, field)
        if names.findings:
            self.findings += [("left out", seen) for _, seen in names.findings]
            return None
        data = self.json(record.data, "data")
        files: dict[str, File] = {}
        for name, file in record.files.items():
            new_name = _unused_key(self.text(name, "files"), files)
            files[new_name] = self._file(file, f"files.{new_name}")
        now = msgspec.structs.replace(record, data=data, files=files)
        return now if self._changed else record

    def message(self, message: Message) -> Message:
        """Redact a message."""
        parts = self._parts(message.parts)
        metadata = self.json(message.metadata, "metadata")
        now = msgspec.structs.replace(
            message,
            parts=parts,
            name=self._optional(message.name, "name"),
            model=self._optional(message.model, "model"),
            metadata=metadata if isinstance(metadata, dict) else {},
            provenance=self._provenance(message.provenance),
        )
        return now if self._changed else message

    def _provenance(self, given: Provenance | None) -> Provenance | None:
        if given is None:
            return None
        source = self.text(given.source, "provenance.source")
        return Provenance(source, self._optional(given.ref, "provenance.ref"), given.role)

    def _parts(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        out = self._parts_to_omit(parts)
        texts = self._texts(parts, out, "parts")
        return tuple(
            texts.get(at) or self._part(part, f"parts[{at}]")
            for at, part in enumerate(parts)
            if at not in out
        )

    def _texts(self, parts: Sequence[Part], out: set[int], where: str) -> dict[int, Text]:
        """Redact the text parts; a secret may begin in one and end in the next."""
        changed: dict[int, Text] = {}
        kept = [(at, part) for at, part in enumerate(parts) if at not in out]
        for is_text, row in groupby(kept, lambda one: isinstance(one[1], Text)):
            if is_text:
                row_of = {at: part.text for at, part in row if isinstance(part, Text)}
                found = find_in_row([*row_of.values()], self._detectors)
                for (at, text), spans in zip(row_of.items(), found, strict=True):
                    self._record_spans(text, spans, f"{where}[{at}].text")
                    changed[at] = Text(insert_marks(text, spans))
        return changed

    def _part(self, part: Part, where: str) -> Part:
        if isinstance(part, Text | File | Raw):
            return self._piece(part, where)
        if isinstance(part, Thinking):
            if part.signature:
                return part
            return Thinking(self.text(part.text, f"{where}.text"), part.signature)
        if isinstance(part, ToolCall):
            name = self.text(part.name, f"{where}.name")
            return ToolCall(part.id, name, self.json(part.arguments, f"{where}.arguments"))
        return self._result(part, where)

    def _result(self, result: ToolResult, where: str) -> ToolResult:
        content: str | tuple[Piece, ...]
        if isinstance(result.content, str):
            content = self.text(result.content, f"{where}.content")
        else:
            out = self._parts_to_omit(result.content, f"{where}.content")
            texts = self._texts(result.content, out, f"{where}.content")
            content = tuple(
                texts.get(at) or self._piece(piece, f"{where}.content[{at}]")
                for at, piece in enumerate(result.content)
                if at not in out
            )
        name = self._optional(result.name, f"{where}.name")
        return ToolResult(result.call_id, content, error=result.error, name=name)

    def _piece(self, piece: Piece, where: str) -> Piece:
        if isinstance(piece, Text):
            return Text(self.text(piece.text, f"{where}.text"))
        if isinstance(piece, Raw):
            # Sealed parts with a secret were left out before; the others stay unchanged.
            data = piece.data if _is_sealed(piece.data) else self.json(piece.data, f"{where}.data")
            return Raw(self.text(piece.source, f"{where}.source"), data)
        return self._file(piece, where)

    # -------------------------------------------------------------------------------- sealed

    def _parts_to_omit(self, parts: Sequence[Part], where: str = "parts") -> set[int]:
        """Return the positions of signed or sealed parts to leave out, and of what needs them."""
        signed = {at for at in range(len(parts)) if _is_signed(parts, at)}
        out: set[int] = set()
        for at, part in enumerate(parts):
            if at in signed or (isinstance(part, Raw) and _is_sealed(part.data)):
                seen = self._secrets_in_sealed(part, f"{where}[{at}]")
                if seen:
                    self.findings += [("left out", one) for one in seen]
                    out |= signed if at in signed else {at}
        return _with_companions(parts, out)

    def _secrets_in_sealed(self, part: Part, where: str) -> list[FoundSecret]:
        """Return the secrets in the readable fields of a sealed part, without editing it."""
        scan = _ValueRedactor(self._detectors)
        if isinstance(part, Thinking):
            scan.text(part.text, f"{where}.text")
        elif isinstance(part, Raw):
            scan.json(_without_sealed(part.data), f"{where}.data")
        return [seen for _, seen in scan.findings]

    # --------------------------------------------------------------------------------- files

    def _file(self, file: File, where: str) -> File:
        name = self._optional(file.name, f"{where}.name")
        data = self._data(file, where)
        if name == file.name and data == file.data:
            return file
        if data == file.data or data is None:
            return msgspec.structs.replace(file, name=name)
        sha256 = None if file.sha256 is None else codec.sha256_hex(data)
        size = None if file.size is None else len(data)
        return File(name=name, mime=file.mime, data=data, sha256=sha256, size=size)

    def _data(self, file: File, where: str) -> bytes | None:
        if file.data is None or not is_text_file(file):
            return self._record_binary(file, where)
        decoded = decode_file(file)
        if decoded is None:
            return self._record_binary(file, where)
        text, encoding = decoded
        changed = self.text(text, f"{where}.data")
        return file.data if changed == text else changed.encode(encoding)

    def _record_binary(self, file: File, where: str) -> bytes | None:
        size = file.size if file.data is None else len(file.data)
        length = "unknown size" if size is None else f"{size:,} bytes"
        about = f"{file.mime or 'unknown type'}, {length}"
        self.findings.append(("not looked into", FoundSecret(f"{where}.data", "", about)))
        return file.data

    # ---------------------------------------------------------------------------------- text

    def text(self, text: str, where: str) -> str:
        """Redact a text."""
        changed, found = redact_text(text, self._detectors)
        self._record_spans(text, found, where)
        return changed

    def _optional(self, text: str | None, where: str) -> str | None:
        return None if text is None else self.text(text, where)

    def _record_spans(self, text: str, found: Iterable[SecretSpan], where: str) -> None:
        self.findings += [
            ("replaced", FoundSecret(where, one.detector, preview(text[one.start : one.end])))
            for one in found
        ]

    # ---------------------------------------------------------------------------------- JSON

    def json(self, value: JSON, where: str) -> JSON:
        """Redact JSON: strings, values together with their keys, and keys."""
        if isinstance(value, str):
            return self.text(value, where)
        if isinstance(value, list):
            return self._list(value, where)
        if isinstance(value, dict):
            return self._object(value, where)
        return value

    def _list(self, given: list[JSON], where: str) -> list[JSON]:
        """Redact a list; one of texts only may be the words of a command."""
        words = [one for one in given if isinstance(one, str)]
        if len(words) != len(given):
            return [self.json(inner, f"{where}[{at}]") for at, inner in enumerate(given)]
        found = find_in_row(words, self._detectors, joint=" ")
        for at, (word, spans) in enumerate(zip(words, found, strict=True)):
            self._record_spans(word, spans, f"{where}[{at}]")
        return [insert_marks(word, spans) for word, spans in zip(words, found, strict=True)]

    def _object(self, given: dict[str, JSON], where: str) -> dict[str, JSON]:
        changed: dict[str, JSON] = {}
        entry = _entry_name(given)
        for key, value in given.items():
            name = entry if entry is not None and key == "value" else key
            # Findings are shown to the user, so their path uses the redacted key.
            new_key = _unused_key(self.text(key, where or "keys"), changed)
            path = f"{where}.{new_key}" if where else new_key
            changed[new_key] = (
                self._named_value(name, value, path)
                if isinstance(value, str) and _SECRET_KEY.search(name)
                else self.json(value, path)
            )
        return changed

    def _named_value(self, key: str, value: str, where: str) -> str:
        """Redact a value whose key hints at a secret: by itself, else as `key="value"`."""
        found = find_secrets(value, self._detectors)
        quote = next((mark for mark in _QUOTES if mark not in value), None)
        if not found and quote is not None and "\n" not in value and "\\" not in value:
            before = f"{key}={quote}"
            whole = find_secrets(f"{before}{value}{quote}", self._detectors)
            shift = len(before)
            found = [
                SecretSpan(one.detector, one.start - shift, one.end - shift)
                for one in whole
                if shift <= one.start and one.end <= shift + len(value)
            ]
        self._record_spans(value, found, where)
        return insert_marks(value, found)


def _entry_name(given: dict[str, JSON]) -> str | None:
    """Return the name in `{"name": "DB_PASSWORD", "value": …}`, a common form in lists."""
    name = given.get("name", given.get("key"))
    return name if isinstance(name, str) and "value" in given else None


def _unused_key(key: str, taken: Container[str]) -> str:
    """Return a key that is not taken, numbered if needed: two keys may get the same mark."""
    number, free = 1, key
    while free in taken:
        number += 1
        free = f"{key} {number}"
    return free


# ---------------------------------------------------------------------------------- sealed data


def _is_signed(parts: Sequence[Part], at: int) -> bool:
    """True if a part is signed thinking; the signature may be in the note that follows it."""
    part = parts[at]
    if isinstance(part, Thinking):
        return bool(part.signature) or _is_sealed(_following_note(parts, at))
    return _content_field(part, "type") in _SIGNED_TYPES


def _following_note(parts: Sequence[Part], at: int) -> JSON:
    following = parts[at + 1] if at + 1 < len(parts) else None
    if isinstance(following, Raw) and isinstance(following.data, dict) and "part" in following.data:
        return following.data
    return None


def _with_companions(parts: Sequence[Part], out: set[int]) -> set[int]:
    """Add the notes that follow left-out parts, the calls that these parts answer, and originals.

    An original refers to the parts of its message by their position.
    """
    if not out:
        return out
    notes = {at + 1 for at in out if _following_note(parts, at) is not None}
    answered = {_content_field(parts[at], "tool_use_id") for at in out} - {None}
    calls = {at for at, part in enumerate(parts) if _content_field(part, "id") in answered}
    originals = {at for at, part in enumerate(parts) if is_original(part)}
    return out | notes | calls | originals


def _content_field(part: Part, key: str) -> str | None:
    """Return a string field of the original content of a provider's part."""
    piece = part.data.get("content") if isinstance(part, Raw) and isinstance(part.data, dict) else 0
    value = piece.get(key) if isinstance(piece, dict) else None
    return value if isinstance(value, str) else None


def _is_sealed(value: JSON) -> bool:
    """True if a value contains sealed data, which must not be edited."""
    if isinstance(value, dict):
        if _is_sealed_type(value):
            return True
        return any(
            (isinstance(inner, str) and _SEALED_KEY.fullmatch(key)) or _is_sealed(inner)
            for key, inner in value.items()
        )
    return isinstance(value, list) and any(map(_is_sealed, value))


def _is_sealed_type(value: dict[str, JSON]) -> bool:
    kind = value.get("type")
    return isinstance(kind, str) and kind in _SEALED_TYPES


def _without_sealed(value: JSON) -> JSON:
    """Return a value without its sealed fields."""
    if isinstance(value, dict):
        hidden = {"data"} if value.get("type") == "redacted_thinking" else set[str]()
        return {
            key: _without_sealed(inner)
            for key, inner in value.items()
            if key not in hidden and not (isinstance(inner, str) and _SEALED_KEY.fullmatch(key))
        }
    return [_without_sealed(inner) for inner in value] if isinstance(value, list) else value
