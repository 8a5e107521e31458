"""What a provider's message format declares, and the formats by the names of their providers.

A format is the module of its provider's name (`openai-responses`: `formats/openai_responses.py`),
imported when it is first used, with a `FORMAT`. `values.Provider` lists the providers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final, get_args

import msgspec

from holdfast import ids
from holdfast.errors import BadMessage, BadQuery
from holdfast.formats.common import JSONObject
from holdfast.values import JSON, Message, Provider

PROVIDERS: Final[tuple[Provider, ...]] = get_args(Provider)


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's message format, and the provider's rules for the messages of a window.

    `encode`: returns a message as messages of the provider.
    `decode`: returns a message of the provider, or a whole reply, as our message; raises
    `BadMessage` if it is not valid.
    `has_content`: true if an encoded message, or the extra fields of one, hold anything to send.
    `is_thinking`: true if a piece that is kept verbatim is thinking.
    `make_compatible`: formats encode one message at a time; this applies the rules that span the
    messages of a window and concern the provider's own pieces.
    `encode_system`: returns instructions for a field of their own, as text or as a message of the
    provider; None if instructions are the first message.
    `alternates_roles`: user and assistant alternate, the user begins, and tool results count as
    the user's.
    `errors_in_text`: a result has no error flag, so its text must say that it is an error.
    `call_id`, `tool_name`, `max_name_chars`: what ids of calls and names of tools may consist of.
    `item_noun`: what the provider calls a message.
    """

    provider: Provider
    encode: Callable[[Message], list[JSONObject]]
    decode: Callable[[Mapping[str, JSON]], Message]
    has_content: Callable[[JSONObject], bool]
    is_thinking: Callable[[JSONObject], bool]
    make_compatible: Callable[[Sequence[Message]], list[Message]]
    encode_system: Callable[[str], JSON] | None
    alternates_roles: bool
    errors_in_text: bool
    call_id: re.Pattern[str]
    tool_name: re.Pattern[str]
    max_name_chars: int
    item_noun: str = "message"


def format_of(provider: str) -> Format:
    """Return the format of a provider; `BadQuery` if there is none of this name."""
    if provider not in PROVIDERS:
        raise BadQuery(f"provider: must be one of {', '.join(PROVIDERS)}")
    module = import_module(f"holdfast.formats.{provider.replace('-', '_')}")
    found: Format = module.FORMAT
    return found


def decode_items(provider: str, items: Sequence[Mapping[str, JSON]]) -> list[Message]:
    """Decode messages of a provider; `BadMessage` names the first that is not one by its index.

    Each has the id that the provider gave it, unless an earlier one has the same.
    """
    decode = format_of(provider).decode
    messages: dict[str, Message] = {}
    for number, item in enumerate(items):
        try:
            message = decode(item)
        except BadMessage as error:
            raise BadMessage(f"items[{number}]: {error}") from error
        if message.id in messages:
            message = msgspec.structs.replace(message, id=ids.message_id())
        messages[message.id] = message
    return [*messages.values()]
