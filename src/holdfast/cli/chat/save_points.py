"""Save points: named positions in a history.

They are stored in the session's metadata, as the id of the message that was newest when the point
was saved. An id is valid on every branch of the session and in its forks. The start of the history
has no message and cannot be saved.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from holdfast.aio.session import AsyncSession
from holdfast.errors import BadQuery, Conflict
from holdfast.values import JSON, MessageRef, SessionInfo

_POINTS: Final = "points"
_MAX_NAME_CHARS: Final = 100


class SavePoint(NamedTuple):
    """A named position; `seq` is the message's number on the branch it was saved on."""

    name: str
    message_id: str
    seq: int


def save_points(info: SessionInfo) -> list[SavePoint]:
    """Return the save points of a session, in the order in which they were saved."""
    stored = info.metadata.get(_POINTS)
    found = []
    for name, value in stored.items() if isinstance(stored, dict) else ():
        match value:
            case {"message": str(id), "seq": int(seq)}:
                found.append(SavePoint(name, id, seq))
    return found


async def save(session: AsyncSession, name: str) -> SavePoint:
    """Save the newest message as a point; an existing point of this name is moved."""
    if not name or len(name) > _MAX_NAME_CHARS or name.isdecimal():
        raise BadQuery(f"a point's name has 1 to {_MAX_NAME_CHARS} characters and is not a number")
    newest = await session.messages(limit=1)
    if not newest:
        raise BadQuery("the conversation is empty, so there is nothing to save")
    point = SavePoint(name, newest[0].id, newest[0].seq or 0)
    while True:
        info = await session.info()
        stored = info.metadata.get(_POINTS)
        updated: dict[str, JSON] = {
            one.name: {"message": one.message_id, "seq": one.seq}
            for one in save_points(info)
            if one.name != name
        }
        updated[name] = {"message": point.message_id, "seq": point.seq}
        with suppress(Conflict):  # Another chat saved a point meanwhile.
            await session.update(metadata={_POINTS: updated}, expect_metadata={_POINTS: stored})
            return point


async def parse_position(session: AsyncSession, text: str) -> MessageRef:
    """Return the position a text means: the name of a point, a message's number, or its id."""
    for point in save_points(await session.info()):
        if point.name == text:
            return point.message_id
    number = text.removeprefix("#")
    if number.isascii() and number.isdecimal():
        return int(number[:18])
    return text
