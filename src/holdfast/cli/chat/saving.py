"""Points: places of a history that have a name, so that one can go back to them.

They are kept in the session's metadata, by name: the id of the message that was the newest then.
An id is found on every branch of the session, and in its forks. The beginning has no message, and
needs no name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.aio.session import AsyncSession
from holdfast.errors import BadQuery
from holdfast.records import JSON, Place, SessionInfo

_POINTS: Final = "points"
_LONGEST: Final = 100


class Point(NamedTuple):
    """A place with a name; `seq` is its number on the branch it was saved on."""

    name: str
    message_id: str
    seq: int


def points(info: SessionInfo) -> list[Point]:
    """List the points of a session, in the order in which they were saved."""
    kept = info.metadata.get(_POINTS)
    found = []
    for name, value in kept.items() if isinstance(kept, dict) else ():
        match value:
            case {"message": str(id), "seq": int(seq)}:
                found.append(Point(name, id, seq))
    return found


async def save(session: AsyncSession, name: str) -> Point:
    """Name the newest message; a name that is taken moves there."""
    if not name or len(name) > _LONGEST or name.isdecimal():
        raise BadQuery(f"a point needs a name of at most {_LONGEST} characters that is no number")
    newest = await session.messages(limit=1)
    if not newest:
        raise BadQuery("nothing was said yet, so there is no point to name")
    point = Point(name, newest[0].id, newest[0].seq or 0)
    kept: dict[str, JSON] = {
        one.name: {"message": one.message_id, "seq": one.seq}
        for one in points(await session.info())
        if one.name != name
    }
    kept[name] = {"message": point.message_id, "seq": point.seq}
    await session.update(metadata={_POINTS: kept})
    return point


async def place(session: AsyncSession, text: str) -> Place:
    """Understand where to go: the name of a point, a message's number, or its id."""
    for point in points(await session.info()):
        if point.name == text:
            return point.message_id
    number = text.removeprefix("#")
    if number.isascii() and number.isdecimal():
        return int(number[:18])
    return text
