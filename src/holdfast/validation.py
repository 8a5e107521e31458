"""Validation of every field of a message or record, before anything is encoded or stored.

A value is valid if JSON returns it as the same value of the same type. Anything else (NaN, a set in
metadata, a time without a zone, a number where text belongs) raises `BadMessage` naming the field,
rather than being stored as something slightly different. Within JSON, two types that lose nothing
but their name are accepted: a tuple, which is stored as a list, and a subclass of `str`, such as a
`StrEnum`, which is stored as its text. A named tuple would lose the names of its fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET

from holdfast.errors import BadMessage, BadQuery
from holdfast.values import (
    JSON,
    File,
    Message,
    Part,
    Provenance,
    Provider,
    Raw,
    Record,
    Role,
    Status,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)

MAX_DEPTH: Final = 200
MAX_INT_BITS: Final = 8192
MAX_QUERY_NUMBER: Final = 2**62
MAX_NAME_BYTES: Final = 4096
MAX_TOKEN_COUNT: Final = 2**53
COST_QUANTUM: Final = Decimal("1e-12")
MAX_COST: Final = Decimal(10_000)
MONEY_CONTEXT: Final = Context(prec=50)  # Sums must not depend on the caller's decimal context.

_KNOWN_ROLES: Final = frozenset(get_args(Role))
_KNOWN_STATUSES: Final = frozenset(get_args(Status))
_ROLES: Final = _KNOWN_ROLES - {"summary"}
_STATUSES: Final = _KNOWN_STATUSES - {"damaged", "erased"}
# Fields that only one provider's messages have, and types of them or of their content.
_PROVIDER_FIELDS: Final[Mapping[str, Provider]] = {
    **dict.fromkeys(("choices", "refusal", "tool_call_id", "tool_calls"), "openai"),
    **dict.fromkeys(("call_id", "output"), "openai-responses"),
    "stop_reason": "anthropic",
    **dict.fromkeys(("candidates", "parts"), "gemini"),
}
_PROVIDER_TYPES: Final[Mapping[str, Provider]] = {
    **dict.fromkeys(("file", "image_url"), "openai"),
    **dict.fromkeys(("input_image", "input_text", "output_text", "reasoning"), "openai-responses"),
    **dict.fromkeys(("document", "image", "thinking", "tool_result", "tool_use"), "anthropic"),
}
_SHA256_LENGTH: Final = 64
_HEX: Final = frozenset("0123456789abcdef")


def check_message(message: Message, *, known: bool = False) -> Message:
    """Return a valid message, with its JSON as it is stored; raise `BadMessage` for any other.

    A `known` one may have a role or status that only the store sets.
    """
    try:
        _check_message(message, known=known)
    except BadMessage:
        plain = _with_plain_json(message)  # Few messages need it, so it costs the others nothing.
    else:
        return message
    _check_message(plain, known=known)
    return plain


def _with_plain_json(message: Message) -> Message:
    """Return a message, valid or not, with plain JSON."""
    if not isinstance(message, Message) or not isinstance(message.parts, list | tuple):
        return message
    return msgspec.structs.replace(
        message,
        parts=tuple(_with_plain_data(part) for part in message.parts),
        metadata=_to_plain(message.metadata),
    )


def _with_plain_data(part: Part) -> Part:
    if isinstance(part, ToolCall):
        return ToolCall(part.id, part.name, _to_plain(part.arguments))
    if isinstance(part, Raw):
        return Raw(part.source, _to_plain(part.data))
    if isinstance(part, ToolResult) and isinstance(part.content, tuple):
        content = tuple(_with_plain_data(piece) for piece in part.content)
        return msgspec.structs.replace(part, content=content)
    return part


def _check_message(message: object, *, known: bool) -> None:
    if not isinstance(message, Message):
        raise BadMessage(
            f"expected a holdfast.Message, got {_type_name(message)}; {_way_in(message)}"
        )
    check_name(message.id, "id")
    roles, statuses = (_KNOWN_ROLES, _KNOWN_STATUSES) if known else (_ROLES, _STATUSES)
    if type(message.role) is not str or message.role not in roles:
        raise BadMessage(f"role: must be one of {', '.join(sorted(roles))}")
    if type(message.status) is not str or message.status not in statuses:
        raise BadMessage("status: must be complete or partial")
    if type(message.parts) is not tuple and type(message.parts) is not list:
        raise BadMessage(f"parts: expected a tuple of parts, got {_type_name(message.parts)}")
    for number, part in enumerate(message.parts):
        # Most parts are texts, and a call for each would cost as much as all other checks.
        if type(part) is not Text or type(part.text) is not str:
            check_part(part, number)
    _check_optional_fields(message)


def _way_in(value: object) -> str:
    """Return how a value that is not a message becomes one, or where it is taken."""
    if isinstance(value, list | tuple):
        return "pass the messages themselves, as in session.append(*messages)."
    if isinstance(value, Record):
        return "session.append and fork, and store.create, take records."
    if not isinstance(value, dict):
        return "create one with Message.user(…), .assistant(…), .tool(…) or .system(…)."
    provider = _likely_provider(value)
    if provider is not None:
        return f'session.append_from("{provider}", …) takes it as it is.'
    known = ", ".join(get_args(Provider))
    return f"session.append_from(provider, …) takes messages of a provider ({known}) as they are."


def _likely_provider(value: Mapping[str, object]) -> Provider | None:
    """Return the provider whose message a dict surely is; None if it may be several ones'."""
    content = value.get("content")
    pieces = [value, *(content if isinstance(content, list) else ())]
    types = [str(piece.get("type")) for piece in pieces if isinstance(piece, dict)]
    found = {_PROVIDER_FIELDS[key] for key in value if key in _PROVIDER_FIELDS}
    found |= {_PROVIDER_TYPES[type] for type in types if type in _PROVIDER_TYPES}
    return found.pop() if len(found) == 1 else None


def check_record(record: Record) -> Record:
    """Return a valid record, with its JSON as it is stored; raise `BadMessage` for any other."""
    if not isinstance(record, Record):
        raise BadMessage(
            f"expected a holdfast.Record, got {_type_name(record)}; create one with "
            "Record(kind, data=…)."
        )
    check_name(record.kind, "kind")
    check_name(record.id, "id")
    for name, value in (("key", record.key), ("after", record.after), ("scope", record.scope)):
        if value is not None and value is not UNSET:
            check_name(value, name)
    data = check_json(record.data, "data")
    if type(record.files) is not dict:
        raise BadMessage(f"files: expected a dict, got {_type_name(record.files)}")
    for name, file in record.files.items():
        check_name(name, "files: a name")
        if type(file) is not File:
            raise BadMessage(f"files: expected File(data=…), got {_type_name(file)}")
        check_file(file, "files")
    return record if data is record.data else msgspec.structs.replace(record, data=data)


def _check_optional_fields(message: Message) -> None:
    """Check the fields that most messages do not set."""
    if message.name is not None:
        check_text(message.name, "name")
    if message.model is not None:
        check_text(message.model, "model")
    if message.usage is not None:
        check_usage(message.usage)
    if message.metadata or type(message.metadata) is not dict:
        _check_dict(message.metadata, "metadata")
        _check_plain(message.metadata, "metadata")
    if message.provenance is not None:
        _check_provenance(message.provenance)
    if message.covers is not None:
        if message.role != "summary":
            raise BadMessage("covers: only a summary can cover other messages")
        check_name(message.covers, "covers")


def check_part(part: object, number: int) -> None:
    """Check one part of a message."""
    if type(part) is Text:
        check_text(part.text, f"parts[{number}].text")
    elif type(part) is ToolResult:
        _check_result(part, f"parts[{number}]")
    else:
        _check_other_part(part, f"parts[{number}]")


def _check_other_part(part: object, where: str) -> None:
    if type(part) is ToolCall:
        check_text(part.id, f"{where}.id")
        check_text(part.name, f"{where}.name")
        _check_plain(part.arguments, f"{where}.arguments")
    elif type(part) is Thinking:
        check_text(part.text, f"{where}.text")
        _check_optional_text(part.signature, f"{where}.signature")
    elif type(part) is File:
        check_file(part, where)
    elif type(part) is Raw:
        check_text(part.source, f"{where}.source")
        _check_plain(part.data, f"{where}.data")
    else:
        raise BadMessage(f"{where}: expected a part such as Text, got {_type_name(part)}")


def _check_result(result: ToolResult, where: str) -> None:
    check_text(result.call_id, f"{where}.call_id")
    _check_optional_text(result.name, f"{where}.name")
    if type(result.error) is not bool:
        raise BadMessage(f"{where}.error: expected true or false, got {_type_name(result.error)}")
    if type(result.content) is str:
        return
    if type(result.content) is not tuple:
        raise BadMessage(f"{where}.content: expected text or a tuple of parts")
    for number, part in enumerate(result.content):
        if type(part) not in {Text, File, Raw}:
            raise BadMessage(f"{where}.content[{number}]: expected Text, File or Raw")
        if type(part) is Text:
            check_text(part.text, f"{where}.content[{number}].text")
        else:
            _check_other_part(part, f"{where}.content[{number}]")


def check_file(file: File, where: str) -> None:
    """Check a file: it has data, or the hash of data that is stored."""
    _check_optional_text(file.name, f"{where}.name")
    _check_optional_text(file.mime, f"{where}.mime")
    if file.size is not None and (type(file.size) is not int or file.size < 0):
        raise BadMessage(f"{where}.size: expected a number of bytes")
    if file.data is not None and not isinstance(file.data, bytes | bytearray | memoryview):
        raise BadMessage(f"{where}.data: expected bytes, got {_type_name(file.data)}")
    if (file.data is None or file.sha256 is not None) and not is_sha256(file.sha256):
        raise BadMessage(f"{where}.sha256: a file needs data, or the sha256 of stored data")


def is_sha256(value: object) -> bool:
    """Return whether a value is a SHA-256 in lower-case hex."""
    return type(value) is str and len(value) == _SHA256_LENGTH and _HEX.issuperset(value)


def check_name(value: object, field: str) -> str:
    """Check an id or key: any text of 1 to 4,096 bytes."""
    if type(value) is not str:
        raise BadMessage(f"{field}: expected text, got {_type_name(value)}")
    longest = MAX_NAME_BYTES // 4
    if not value or (
        len(value) > longest and len(value.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES
    ):
        raise BadMessage(f"{field}: must be 1 to {MAX_NAME_BYTES} bytes long")
    return value


def check_text(value: object, field: str) -> str:
    """Check text of any length."""
    if type(value) is not str:
        raise BadMessage(f"{field}: expected text, got {_type_name(value)}")
    return value


def _check_optional_text(value: object, field: str) -> None:
    if value is not None:
        check_text(value, field)


def check_json_object(value: object, field: str) -> dict[str, JSON]:
    """Return a JSON object, such as metadata, as it is stored; see `check_json`."""
    _check_dict(value, field)
    return check_json(value, field)  # type: ignore[return-value]


def _check_dict(value: object, field: str) -> None:
    if type(value) is not dict:
        raise BadMessage(f"{field}: expected a dict, got {_type_name(value)}")


def check_json(value: object, field: str) -> JSON:
    """Return a JSON value as it is stored: tuples as lists, subclasses of `str` as text.

    NaN, bytes, named tuples and keys that are not text are rejected.
    """
    try:
        return _check_plain(value, field)
    except BadMessage:
        plain = _to_plain(value)
    return _check_plain(plain, field)


class _TooDeep(Exception):
    """A value is nested too deeply, or contains itself."""


def _to_plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a value with plain lists and text; what is not JSON, or too deep, stays as it is."""
    try:
        return _plain(value, MAX_DEPTH)
    except _TooDeep:
        return value


def _plain(value: Any, depth: int) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return str.__str__(value)
    if type(value) not in {dict, list, tuple}:
        return value
    if depth == 0:
        raise _TooDeep  # At once: a list that contains itself twice has no end.
    if type(value) is not dict:
        return [_plain(item, depth - 1) for item in value]
    plain = {
        str.__str__(key) if isinstance(key, str) else key: _plain(item, depth - 1)
        for key, item in value.items()
    }
    return plain if len(plain) == len(value) else value  # Of two equal keys one would be lost.


def _check_plain(value: object, field: str, depth: int = 1) -> JSON:
    """Check a JSON value of plain types."""
    if value is None or type(value) in {bool, str}:
        return value  # type: ignore[return-value]
    if type(value) is int or type(value) is float:
        return _check_json_number(value, field)
    if type(value) is not list and type(value) is not dict:
        raise BadMessage(f"{field}: {_type_name(value)} is not JSON")
    if depth > MAX_DEPTH:
        raise BadMessage(f"{field}: nested more than {MAX_DEPTH} deep")
    items: Iterable[object] = value
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise BadMessage(f"{field}: a key is not text")
        items = value.values()
    for item in items:
        _check_plain(item, field, depth + 1)
    return value


def _check_json_number(value: float, field: str) -> float:
    if isinstance(value, int):
        if value.bit_length() > MAX_INT_BITS:
            raise BadMessage(f"{field}: a number is over {MAX_INT_BITS} bits long")
    elif not math.isfinite(value):
        raise BadMessage(f"{field}: {value} is not JSON")
    return value


def check_number(value: object, field: str, *, lowest: int = 0) -> int:
    """Check a number in a query."""
    if type(value) is not int or value < lowest:
        raise BadQuery(f"{field}: expected a whole number from {lowest} up, got {value!r}")
    return min(value, MAX_QUERY_NUMBER)


def check_seconds(value: object, field: str) -> float:
    """Check a duration in seconds."""
    if type(value) not in {int, float} or not 0 <= value < math.inf:  # type: ignore[operator]
        raise BadQuery(f"{field}: expected a number of seconds")
    return float(value)  # type: ignore[arg-type]


def check_flag(value: object, field: str, *, optional: bool) -> None:
    """Check a filter of a list: true or false, or `None` if it is optional."""
    if type(value) is not bool and not (optional and value is None):
        raise BadQuery(f"{field}: expected true or false, got {_type_name(value)}")


def check_arguments(given: Iterable[str], declared: type, function: str) -> None:
    """Raise `TypeError`, as Python does, if a keyword argument is not in a typed dictionary."""
    for name in given:
        if name not in declared.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def check_filter(value: object, field: str) -> None:
    """Check a filter of a list: text or `None`."""
    if value is not None and type(value) is not str:
        raise BadQuery(f"{field}: expected text, got {_type_name(value)}")


def check_usage(usage: object) -> Usage:
    """Check token counts."""
    if type(usage) is not Usage:
        raise BadMessage(f"usage: expected a Usage, got {_type_name(usage)}")
    for field in usage.__struct_fields__:
        count = getattr(usage, field)
        if type(count) is not int or not 0 <= count <= MAX_TOKEN_COUNT:
            raise BadMessage(f"usage.{field}: expected a count from 0 to {MAX_TOKEN_COUNT}")
    return usage


def to_cost(value: object) -> Decimal:
    """Return a cost as a decimal number, rounded to twelve places."""
    if not isinstance(value, Decimal | int | float | str) or isinstance(value, bool):
        raise BadMessage(f"cost: expected a Decimal, got {_type_name(value)}")
    try:
        amount = MONEY_CONTEXT.create_decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation as error:
        raise BadMessage("cost: is not a number") from error
    if not amount.is_finite() or not 0 <= amount <= MAX_COST:
        raise BadMessage(f"cost: must be between 0 and {MAX_COST}")
    return (
        MONEY_CONTEXT.normalize(MONEY_CONTEXT.quantize(amount, COST_QUANTUM))
        if amount
        else Decimal(0)
    )


def to_time(value: object) -> datetime:
    """Return a time with a zone; it becomes UTC unless its offset is in whole minutes."""
    if not isinstance(value, datetime):
        raise BadMessage(f"created_at: expected a datetime, got {_type_name(value)}")
    offset = value.utcoffset()
    if offset is None:
        raise BadMessage("created_at: has no time zone; use datetime.now(UTC)")
    if offset.seconds % 60 or offset.microseconds:
        return value.astimezone(UTC)
    return value


def _check_provenance(value: object) -> None:
    if type(value) is not Provenance:
        raise BadMessage(f"provenance: expected a Provenance, got {_type_name(value)}")
    check_text(value.source, "provenance.source")
    _check_optional_text(value.ref, "provenance.ref")
    if value.role is not None and (type(value.role) is not str or value.role not in _KNOWN_ROLES):
        raise BadMessage(f"provenance.role: must be one of {', '.join(sorted(_KNOWN_ROLES))}")


def _type_name(value: object) -> str:
    return type(value).__name__
