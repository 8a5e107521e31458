"""Originals: the dict that a message was made from, kept exactly beside its parts.

A provider's reply or a framework's dict has more than parts can hold. `keep` adds the difference
(see `difference`) as one last `Raw` part, and `kept` returns the dict. The source of that part is
`original NAME`, which no format has: it is stored, exported, redacted and erased like every part,
and never sent, searched or counted as tokens.

A path of the difference begins with a provider, for a place in what `encode` returns for it, or
with `message`, for a field of the message or of one of its parts. The message takes precedence:
what is redacted in it is redacted in its original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec

from holdfast.errors import BadMessage
from holdfast.formats.common import JSONObject, copied, is_deeper, to_base64
from holdfast.formats.difference import difference, is_same, restored, verbatim
from holdfast.formats.registry import PROVIDERS, format_of
from holdfast.validation import MAX_DEPTH, check_json_object, check_name
from holdfast.values import (
    JSON,
    ORIGINAL,
    File,
    Message,
    Part,
    Raw,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    is_original,
)

P = TypeVar("P", bound=Part)
BlobReader: TypeAlias = Callable[[str], bytes]

_KEY: Final = "original"


def keep(
    message: Message,
    source: str,
    original: Mapping[str, JSON],
    *,
    blob: BlobReader | None = None,
) -> Message:
    """Return a message that carries the dict it was made from; `kept` returns that dict.

    `source` is a provider, or the name of any other program whose dict it is. See `kept` for
    `blob`.
    """
    name = ORIGINAL + check_name(source, "source")
    given = check_json_object(dict(original), "original")
    parts = tuple(p for p in message.parts if not (isinstance(p, Raw) and p.source == name))
    bare = msgspec.structs.replace(message, parts=parts)
    whole = with_data(bare, blob)
    if source in PROVIDERS and is_same(_encoded(whole, source), [given]):
        return bare
    found = difference(given, _Document(whole, source))
    if is_deeper(found, MAX_DEPTH - 1):
        found = verbatim(given)
    found = copied(found)  # Changing the dict must not change the message.
    return msgspec.structs.replace(bare, parts=(*parts, Raw(name, {_KEY: found})))


def kept(message: Message, source: str, *, blob: BlobReader | None = None) -> JSONObject | None:
    """Return the dict that a message was made from; None if it carries none of this source.

    A message from a store has the hashes of its files in place of their data: then pass
    `blob=store.blob`, or, for many messages or an async store, `blob=found.__getitem__` with what
    `store.blobs` has read of their `files`. If `source` is a provider and nothing beyond the parts
    was kept, the dict is the one that its `encode` returns.
    """
    found = _difference_of(message, source)
    if found is None and source not in PROVIDERS:
        return None
    document = _Document(with_data(message, blob), source)
    if found is not None:
        return _restored(found, document, source)
    match document[source]:
        case [dict(only)]:
            return only
    return None


def without_originals(message: Message) -> Message:
    """Return a message without its originals."""
    if not any(map(is_original, message.parts)):
        return message
    parts = tuple(part for part in message.parts if not is_original(part))
    return msgspec.structs.replace(message, parts=parts)


def _difference_of(message: Message, source: str) -> JSON:
    for part in message.parts:
        if isinstance(part, Raw) and part.source == ORIGINAL + source:
            return part.data.get(_KEY) if isinstance(part.data, dict) else None
    return None


def _restored(found: JSON, document: Mapping[str, JSON], source: str) -> JSONObject:
    try:
        return check_json_object(restored(found, document), "original")
    except (LookupError, TypeError) as error:
        raise BadMessage(
            f"the original of {source!r} refers to what the message no longer holds, because the "
            "message was changed. Its parts are whole: encode them instead."
        ) from error


# -------------------------------------------------------------------------- what it is compared to


class _Document(Mapping[str, JSON]):
    """What references lead to: the message's fields, and what `encode` returns for a provider.

    For a source that is not a provider that is the original of each provider, if there is one. A
    value is made when it is first read: most references lead to one provider.
    """

    def __init__(self, message: Message, source: str) -> None:
        self._message = message
        self._source = source
        self._found: dict[str, JSON] = {}

    def __getitem__(self, name: str) -> JSON:
        """Return the value that a path with this first step leads into."""
        if name not in self._found:
            self._found[name] = self._value(name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the first steps of paths."""
        return iter(("message", *([self._source] if self._source in PROVIDERS else PROVIDERS)))

    def __len__(self) -> int:
        """Return how many there are."""
        return 2 if self._source in PROVIDERS else 1 + len(PROVIDERS)

    def _value(self, name: str) -> JSON:
        if name not in (*self,):
            raise KeyError(name)
        if name == "message":
            return _message_fields(without_originals(self._message))
        if name == self._source:
            return _encoded(self._message, name)
        found = _difference_of(self._message, name)
        if found is None:
            return _encoded(self._message, name)
        return [_restored(found, _Document(self._message, name), name)]


def _encoded(message: Message, provider: str) -> JSON:
    return [*format_of(provider).encode(without_originals(message))]


def _message_fields(message: Message) -> JSONObject:
    """Return the fields that storing a message, or giving it another id, does not change."""
    return {
        "text": message.text,
        "name": message.name,
        "model": message.model,
        "metadata": message.metadata,
        "parts": [_part_fields(part) for part in message.parts],
    }


def _part_fields(part: Part) -> JSONObject:
    match part:
        case Text():
            return {"text": part.text}
        case Thinking():
            return {"text": part.text, "signature": part.signature}
        case ToolCall():
            return {"id": part.id, "name": part.name, "arguments": part.arguments}
        case ToolResult(content=str(content)):
            return {"id": part.call_id, "name": part.name, "content": content}
        case ToolResult(content=pieces):
            inside: JSON = [_part_fields(piece) for piece in pieces]  # type: ignore[arg-type]
            return {"id": part.call_id, "name": part.name, "content": inside}
        case File():
            return {"name": part.name, "mime": part.mime, "data": to_base64(part)}
        case Raw():
            return {"data": part.data}


def with_data(message: Message, blob: BlobReader | None) -> Message:
    """Return a message whose files have their data, as `encode` needs; see `kept` for `blob`."""
    parts = tuple(_loaded(part, blob) for part in message.parts)
    return msgspec.structs.replace(message, parts=parts)


def _loaded(part: P, blob: BlobReader | None) -> P:
    if isinstance(part, ToolResult) and not isinstance(part.content, str):
        content = tuple(_loaded(piece, blob) for piece in part.content)
        return msgspec.structs.replace(part, content=content)
    if not isinstance(part, File) or part.data is not None or part.sha256 is None:
        return part
    if blob is None:
        raise BadMessage(
            "parts: the data of a file is in the store, not in the message; pass blob=store.blob"
        )
    data = blob(part.sha256)
    if not isinstance(data, bytes):
        raise BadMessage(
            f"blob: expected a function that returns bytes, got {type(data).__name__}; of an async "
            "store, read `found = await store.blobs(…)` first and pass blob=found.__getitem__"
        )
    return msgspec.structs.replace(part, data=data)
