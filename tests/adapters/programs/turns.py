"""The turns that writers store, with a mark in each message, and what is recognised of them.

Only the standard library: this module runs in the environments of frameworks.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MESSAGES: Final = 4
TOOL: Final = "track"
KEY: Final = "shared"
_MARK: Final = re.compile(r"<(w\d+) (\d+) ([0-3])>")


class Turn(NamedTuple):
    """A question, a call of a tool, its result, and the answer."""

    writer: str
    number: int
    user: str
    call_id: str
    arguments: dict[str, str]
    result: str
    reply: str

    def id(self, message: int) -> str:
        """Return an id of one of its messages."""
        return f"{self.writer}-{self.number}-{message}"


class Mark(NamedTuple):
    """Which message of which turn this is."""

    writer: str
    number: int
    message: int


def turn(writer: str, number: int) -> Turn:
    """Return a turn of a writer."""
    marks = [f"<{writer} {number} {message}>" for message in range(MESSAGES)]
    return Turn(
        writer,
        number,
        user=f"{marks[0]} Where is it?",
        call_id=f"call_{writer}_{number}",
        arguments={"parcel": marks[1]},
        result=f"{marks[2]} {'In Bern. ' * 50}",
        reply=f"{marks[3]} It is in Bern.",
    )


def mark_of(message: object) -> Mark | None:
    """Return the mark of a message, whatever its type; None if it has none, or several."""
    found = set(_MARK.findall(str(message)))
    if len(found) != 1:
        return None
    ((writer, number, index),) = found
    return Mark(writer, int(number), int(index))
