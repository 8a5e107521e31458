"""nanobot's messages as Holdfast's, and what a changed list of them means for a history.

nanobot keeps a conversation as a list of dicts, *items*, which it changes as it likes. A `View` is
what one such list had in common with the store when it was last loaded or saved. Each item that is
in the store belongs to a message; a message that another program wrote may consist of several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast import Head, Message, Thinking
from holdfast.adapters.changed_list import matched
from holdfast.errors import BadMessage, install_command
from holdfast.formats import keep, kept, openai
from holdfast.values import JSON

try:
    from nanobot.session.history_visibility import is_hidden_history_message
except ImportError as error:
    raise ImportError(
        f"nanobot-ai is not installed: {install_command('nanobot')}", name=error.name
    ) from error

Item: TypeAlias = dict[str, Any]

SOURCE: Final = "nanobot"
_CHAT_FIELDS: Final = ("role", "content", "tool_calls", "tool_call_id", "name")


def to_message(item: Mapping[str, Any], id: str | None = None) -> Message:
    """Return an item as a message; of one that is no chat message, only a text is a part."""
    fields: dict[str, Any] = {} if id is None else {"id": id}
    try:
        message = openai.decode({name: item[name] for name in _CHAT_FIELDS if name in item})
        parts, role = (*_thinking(item), *message.parts), message.role
    except BadMessage:
        message = Message.user(_text(item.get("content")) or ())
        parts, role = message.parts, message.role
    given = Message(
        role=role,
        parts=parts,
        name=message.name,
        created_at=to_moment(item.get("timestamp")),
        metadata=_flags(item),
        **fields,
    )
    return keep(given, SOURCE, item)


def to_items(message: Message, blob: Callable[[str], bytes] | None = None) -> list[Item]:
    """Return a message as items: nanobot's own, or one for each chat message it consists of."""
    original = kept(message, SOURCE, blob=blob)
    if original is not None:
        return [original]
    moment = {} if message.created_at is None else {"timestamp": to_local(message.created_at)}
    items: list[Item] = [{**item, **moment} for item in openai.encode_all(message)]
    thinking = "\n".join(part.text for part in message.parts if isinstance(part, Thinking))
    if thinking and items[0]["role"] == "assistant":
        items[0]["reasoning_content"] = thinking
    return items


def _thinking(item: Mapping[str, Any]) -> Iterator[Thinking]:
    """Yield the reasoning: with its signatures, if there are blocks that have them."""
    blocks = item.get("thinking_blocks")
    signed = [
        Thinking(block["thinking"], _text(block.get("signature")))
        for block in (blocks if isinstance(blocks, list) else ())
        if isinstance(block, dict) and _text(block.get("thinking"))
    ]
    text = _text(item.get("reasoning_content"))
    yield from signed or ([Thinking(text)] if text else [])


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _flags(item: Mapping[str, Any]) -> dict[str, JSON]:
    """Return what keeps an item out of previews; a command is also no message for a model."""
    if item.get("_command"):
        return {"command": True}
    injected = item.get("injected_event") or is_hidden_history_message(item)
    return {"injected": SOURCE} if injected else {}


def to_moment(text: object) -> datetime | None:
    """Return a time of nanobot's, which is local if it has no zone; None if it is not one."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).astimezone() if isinstance(text, str) else None
    return None


def to_local(moment: datetime) -> str:
    """Return a time as nanobot writes it."""
    return moment.astimezone().replace(tzinfo=None).isoformat()


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a copy of a value as it will be read: names are text, tuples are lists."""
    return json.loads(json.dumps(value))


# ------------------------------------------------------------------------------------------- views


class Seen(NamedTuple):
    """An item, and which of the items of its message it is; `new` is a message not yet stored."""

    id: str
    piece: int
    pieces: int
    item: Item
    new: Message | None = None


@dataclass
class View:
    """What a session object has seen of its session, as of its last load or save.

    `head` is where the session then was, if nothing of it is unseen. `pending` are new items of a
    save that failed: a retry stores them under the same ids.
    """

    session_id: str
    seen: list[Seen] = field(default_factory=list)
    state: dict[str, JSON] = field(default_factory=dict)
    boundary: int = 0
    head: Head | None = None
    pending: list[Seen] = field(default_factory=list)

    def align(self, items: Sequence[Item]) -> list[Seen]:
        """Return each item with its message: the one that was seen, or a new one."""
        before = [each.item for each in self.seen]
        start = _common(items, before)
        rest = [plain(item) for item in items[start:]]
        end = _common(rest[::-1], before[start:][::-1])
        last = len(before) - end
        middle = _match(rest[: len(rest) - end], [*self.seen[start:last], *self.pending])
        aligned = _whole([*self.seen[:start], *middle, *self.seen[last:]])
        self.pending = [each for each in aligned if each.new is not None]
        return aligned

    def extended_by(self, items: Sequence[Seen]) -> bool:
        """Whether these items begin with all that were seen."""
        first = [each.id for each in items[: len(self.seen)]]
        return first == [each.id for each in self.seen]

    def saved(self, items: Sequence[Seen], state: dict[str, JSON], boundary: int) -> None:
        """Set what was saved as what was seen."""
        self.seen = [each if each.new is None else each._replace(new=None) for each in items]
        self.state, self.boundary, self.pending = state, boundary, []


def _common(first: Sequence[Item], second: Sequence[Item]) -> int:
    """Return how many items both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _match(items: Sequence[Item], known: Sequence[Seen]) -> list[Seen]:
    """Return the items, each as the next equal one of those that are known, or as a new one."""
    places = matched(map(_to_text, items), (_to_text(each.item) for each in known))
    return [
        _new(item) if place is None else known[place]
        for item, place in zip(items, places, strict=True)
    ]


def _to_text(item: Item) -> str:
    return json.dumps(item, sort_keys=True)


def _new(item: Item, id: str | None = None) -> Seen:
    message = to_message(item, id)
    return Seen(message.id, 0, 1, item, message)


def _whole(items: Sequence[Seen]) -> list[Seen]:
    """Return the items; those of a message that no longer has all of them become new messages."""
    ids = [(each.id, each.piece) for each in items]
    whole = []
    for n, each in enumerate(items):
        expected = [(each.id, piece) for piece in range(each.pieces)]
        first = max(0, n - each.piece)
        intact = ids[first : first + each.pieces] == expected
        whole.append(each if intact else _new(each.item, f"{each.id}.{each.piece}"))
    return whole


def merge(mine: Sequence[str], stored: Sequence[str], seen: set[str]) -> list[str]:
    """Return my order of ids, with those of the store that I have not seen where they are there."""
    behind: dict[str | None, list[str]] = {None: []}
    behind |= {id: [] for id in mine}
    last = None
    for id in stored:
        if id in behind:
            last = id
        elif id not in seen:
            behind[last].append(id)
    return [id for first, unseen in behind.items() for id in (first, *unseen) if id is not None]
