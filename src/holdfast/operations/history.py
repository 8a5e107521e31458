"""Reading messages along a path of branches: each one verified, or reported as damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, get_args

import msgspec

from holdfast import codec
from holdfast.errors import Damaged
from holdfast.ids import turn_id
from holdfast.storage.ancestry import Path, ranges
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import HeadRow, MessageRow
from holdfast.values import Damage, Message, Role

DamageCallback = Callable[[Damage], None]
_PAGE_MESSAGES: Final = 1000
_NO_TOOLS: Final = Message(role="user")
_ROLE_STARTS: Final[dict[Role, bytes]] = {
    role: b'{"role":"%s"' % role.encode() for role in get_args(Role)
}


class MessageFilter(msgspec.Struct, frozen=True):
    """Which messages to read: of these roles, and hidden ones, others, or both (`None`).

    A damaged message matches every filter: what it was cannot be known.
    """

    roles: frozenset[Role]
    hidden: bool | None = None

    def matches(self, message: Message) -> bool:
        """Return whether a message belongs to what is read."""
        if message.status == "damaged":
            return True
        hidden = bool(message.metadata.get("hidden"))
        return message.role in self.roles and self.hidden in {None, hidden}

    def excludes(self, row: MessageRow) -> bool:
        """Return whether the bytes of an intact row tell that its message does not match."""
        body = row.body
        if self.hidden and b'"hidden"' not in body and b"\\u" not in body:
            return True
        return body.startswith(_starts_of_others(self.roles))


@cache
def _starts_of_others(roles: frozenset[Role]) -> tuple[bytes, ...]:
    return tuple(start for role, start in _ROLE_STARTS.items() if role not in roles)


def read_span(
    snapshot: Snapshot,
    path: Path,
    span: tuple[int, int],
    *,
    last: bool = False,
    report: DamageCallback | None = None,
    strict: bool = False,
) -> list[Message]:
    """Read the messages of `span`; raise `Damaged` if one is missing.

    A row that fails its checksum is returned as a message with status `damaged` and reported, so
    that only itself is lost; with `strict` it raises. With `last` the span must end the history.
    """
    return [
        read_row(snapshot, owner, row, report, strict=strict)
        for owner, rows in _pages(snapshot, path, span, report, last=last)
        for row in rows
    ]


def read_matching(
    snapshot: Snapshot,
    path: Path,
    span: tuple[int, int],
    wanted: MessageFilter,
    *,
    last: bool = False,
    report: DamageCallback | None = None,
) -> list[Message]:
    """Read the messages of `span` that match; see `read_span`.

    A row whose first bytes tell that it does not match is not decoded.
    """
    read = (
        read_row(snapshot, owner, row, report)
        for owner, rows in _pages(snapshot, path, span, report, last=last)
        for row in rows
        if not (wanted.excludes(row) and is_intact(row))
    )
    return [message for message in read if wanted.matches(message)]


def read_tools(snapshot: Snapshot, path: Path, span: tuple[int, int]) -> list[Message]:
    """Read the messages of `span` for their tool calls and results alone.

    A row that has neither is not decoded: an empty message is returned for it.
    """
    return [
        read_row(snapshot, owner, row) if _may_hold_tools(row.body) else _NO_TOOLS
        for owner, rows in _pages(snapshot, path, span)
        for row in rows
    ]


def _may_hold_tools(body: bytes) -> bool:
    return b'"tool_' in body or b'"blob"' in body


def _pages(
    snapshot: Snapshot,
    path: Path,
    span: tuple[int, int],
    report: DamageCallback | None = None,
    *,
    last: bool = False,
) -> Iterator[tuple[str, list[MessageRow]]]:
    """Yield the rows of `span`, some at a time, with the id of the session that wrote them.

    What is decoded soon after it was read is still in the processor's cache. A gap is reported, and
    raises `Damaged`.
    """
    low, high = span
    end = high + 1 if last else high
    expected = low
    for first in range(low, end + 1, _PAGE_MESSAGES):
        page = ranges(path, first, min(end, first + _PAGE_MESSAGES - 1))
        for owner, rows in snapshot.messages(page):
            for row in rows:
                if row.seq != expected or expected > high:
                    raise _damaged_row(owner, row.seq, expected, high, report)
                expected += 1
            yield owner, rows
    if expected <= high:
        (lost, *_) = ranges(path, expected, expected)
        what = f"lacks messages {expected} to {high}"
        raise _damaged_history(lost.session_id, expected, what, report)


def _damaged_row(
    owner: str, seq: int, expected: int, high: int, report: DamageCallback | None
) -> Damaged:
    """Return the error of a history that has another message than the expected one."""
    if seq > high:
        return _damaged_history(owner, seq, "has messages beyond its head", report)
    return _damaged_history(owner, expected, f"lacks message {expected}", report)


def _damaged_history(owner: str, seq: int, what: str, report: DamageCallback | None) -> Damaged:
    """Return the error of a history that is not whole, which is reported."""
    if report is not None:
        report(Damage(what=f"the history {what}", session_id=owner, seq=seq))
    return Damaged(
        f"the history of session {owner} {what}; nothing was changed. Run store.verify(), and "
        "store.salvage(to) to keep what can be read."
    )


def read_row(
    snapshot: Snapshot,
    owner: str,
    row: MessageRow,
    report: DamageCallback | None = None,
    *,
    strict: bool = False,
) -> Message:
    """Decode one stored message of the session `owner`; damage as in `read_span`."""
    turn = None if row.turn is None else turn_id(owner, row.turn)
    try:
        check_row(row)
        return codec.decode(row.body, id=row.id, seq=row.seq, turn_id=turn, blob=snapshot.blob)
    except Damaged as error:
        if strict:
            raise
        if report is not None:
            report(damage_of(error, owner, row.seq))
        return damaged_message(row, turn)


def damage_of(error: Damaged, owner: str | None, seq: int | None = None) -> Damage:
    """Return the damage that an error reports, in the session `owner`."""
    return Damage(what=str(error), session_id=owner, seq=seq, blocking=error.blocking)


def is_intact(row: MessageRow) -> bool:
    """Return whether a message matches its checksum."""
    return codec.checksum(row.id, row.turn, row.body) == row.crc


def check_row(row: MessageRow) -> None:
    """Raise `Damaged` if a message does not match its checksum."""
    if codec.checksum(row.id, row.turn, row.body) != row.crc:
        raise Damaged(f"message {row.seq} does not match its checksum")


def damaged_message(row: MessageRow, turn: str | None = None) -> Message:
    """Return a placeholder for a message that cannot be read, with its stored bytes as text."""
    left = row.body.decode("utf-8", "backslashreplace")
    return msgspec.structs.replace(codec.placeholder(row.id, left), seq=row.seq, turn_id=turn)


def last_covered_seq(snapshot: Snapshot, head: HeadRow, summary: Message) -> int:
    """Return the last seq that a summary covers."""
    if summary.covers is None:
        return (summary.seq or 1) - 1
    found = snapshot.stored(head.branch, [summary.covers]).get(summary.covers)
    return (summary.seq or 1) - 1 if found is None else found[1].seq


def newest_summary(snapshot: Snapshot, head: HeadRow, report: DamageCallback) -> Message | None:
    """Return the newest summary of a history that is readable and not erased."""
    path, last = snapshot.path(head.branch), head.seq
    while (seq := snapshot.newest_summary(path, last)) is not None:
        (found,) = read_span(snapshot, snapshot.path(head.branch, seq), (seq, seq), report=report)
        if found.status == "complete":
            return found
        last = seq - 1
    return None
