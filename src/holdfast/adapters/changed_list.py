"""What a changed list of messages means for the history that it was read from.

Frameworks that keep a conversation as a list change it as they like, and save all of it. What is in
the list as it was stored stays the message that it is: two writers that change one list would else
store copies of each other's messages. What a writer has not seen is not its to remove.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from holdfast import Head, Message, Session


def matched(items: Iterable[Hashable], known: Iterable[Hashable]) -> Iterator[int | None]:
    """Yield for each item the place of the next known one that is equal; None if there is none."""
    places: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, each in enumerate(known):
        places[each].append(place)
    after = -1
    for item in items:
        equal = places.get(item, deque())
        while equal and equal[0] <= after:
            equal.popleft()
        yield equal[0] if equal else None
        after = equal[0] if equal else after


def split(
    session: Session, stored: Sequence[Message], seen: Head, is_own: Callable[[Message], bool]
) -> tuple[list[Message], list[Message]]:
    """Return the messages that a writer has seen or stored itself, and what others said since.

    A summary that it has not seen is in neither: it would stand for what takes the place of what it
    covers.
    """
    known = {message.id for message in session.messages(upto=seen)} if seen.seq else set()
    own = [one for one in stored if one.id in known or is_own(one)]
    kept = {message.id for message in own}
    return own, [one for one in stored if one.id not in kept and one.role != "summary"]
