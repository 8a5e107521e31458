"""Which messages of a batch are new.

An id that the history holds already is not stored again: that is what makes a retry safe. The same
id with another body is refused. Equal texts under two ids are two messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.codec import Encoded, same_body
from holdfast.errors import HeadMoved, IdConflict, Invalid
from holdfast.records import Head


def new_messages(batch: Sequence[Encoded], known: Mapping[str, tuple[int, bytes]]) -> list[Encoded]:
    """Pick what is not known yet, in order; refuse an id that is there with another body.

    `known` gives the seq and body of each id that is stored, or waits to be (at seq 0).
    """
    fresh: dict[str, Encoded] = {}
    for item in batch:
        if item.id in known:
            seq, body = known[item.id]
            if not same_body(body, item.body):
                raise IdConflict(item.id, seq)
        elif item.id not in fresh:
            fresh[item.id] = item
        elif not same_body(fresh[item.id].body, item.body):
            raise IdConflict(item.id, 0)
    return list(fresh.values())


def compare(expect: Head | None, actual: Head) -> None:
    """Refuse a write by somebody who has not seen the newest message."""
    if expect is None:
        return
    if not isinstance(expect, Head):
        raise Invalid("expect: pass a head, as session.head() gives it; nothing was stored.")
    if expect != actual:
        raise HeadMoved(expect, actual)
