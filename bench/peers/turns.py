"""The turns that every store is given, and how they are recognised in what it gives back.

One turn is four messages: 300 characters by the user, a tool call with 200 characters of arguments,
2,000 characters by the tool, 800 characters by the assistant. The words follow Zipf's law. Each
message begins with a mark that no other has (the tool call has it as its id), so that a message
that is lost, doubled or changed is noticed. A turn is made from its writer and number alone.

Only the standard library: this module runs in the environments of other projects.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from typing import Final, NamedTuple

MESSAGES_PER_TURN: Final = 4
TOOL: Final = "track_parcel"
_USER, _ARGUMENTS, _RESULT, _REPLY = 300, 200, 2_000, 800
_POOL: Final = 1 << 20
_WORDS: Final = 20_000
_SYLLABLES: Final = ("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pa", "re", "si")
_MARK: Final = re.compile(r"([a-z]+\d*)t(\d{6,})n([0-3])\b")


class Turn(NamedTuple):
    """One turn, as plain texts; the arguments are a JSON object with one text."""

    user: str
    call_id: str
    arguments: dict[str, str]
    result: str
    reply: str


class Mark(NamedTuple):
    """Which message of which turn this is: its writer, the turn's number, and 0 to 3."""

    writer: str
    turn: int
    message: int


def _word(number: int) -> str:
    """Return a word; the numbers of frequent ones are low, and their words short."""
    word = ""
    while number or not word:
        number, syllable = divmod(number, len(_SYLLABLES))
        word += _SYLLABLES[syllable]
    return f"{word}s"


def _pool() -> str:
    weights = [0.0]
    for rank in range(1, _WORDS + 1):
        weights.append(weights[-1] + 1 / rank)
    chance = random.Random(20)
    numbers = chance.choices(range(_WORDS), cum_weights=weights[1:], k=_POOL // 5)
    return " ".join(map(_word, numbers))[:_POOL]


_TEXT: Final = _pool()
COMMON_WORDS: Final = tuple(map(_word, range(12)))
USUAL_WORDS: Final = tuple(map(_word, range(100, 116)))


def turn(writer: str, number: int) -> Turn:
    """Return a turn of a writer."""
    marks = [f"{writer}t{number:06}n{message}" for message in range(MESSAGES_PER_TURN)]
    argument = _prose("", marks[1], _ARGUMENTS)
    argument = argument[: len(argument) - len(json.dumps({"number": ""}))]
    return Turn(
        user=_prose(marks[0], marks[0], _USER),
        call_id=marks[1],
        arguments={"number": argument},
        result=_prose(marks[2], marks[2], _RESULT),
        reply=_prose(marks[3], marks[3], _REPLY),
    )


def _prose(start: str, seed: str, length: int) -> str:
    first = zlib.crc32(seed.encode()) % (_POOL - length)
    text = f"{start} {_TEXT[first : first + length]}"[:length]
    return text.strip().ljust(length, "s")  # Some stores trim what they are given.


def recognise(text: str | None, arguments: dict[str, str] | None = None) -> Mark | None:
    """Return the mark of a stored message; `None` if it is not exactly as it was given.

    `text` is the message's own, or the id of its tool call, which is given with its arguments.
    """
    found = _MARK.match(text or "")
    if found is None:
        return None
    mark = Mark(found[1], int(found[2]), int(found[3]))
    given = turn(mark.writer, mark.turn)
    expected: tuple[str, dict[str, str] | None] = (
        (given.user, None),
        (given.call_id, given.arguments),
        (given.result, None),
        (given.reply, None),
    )[mark.message]
    return mark if (text, arguments) == expected else None
