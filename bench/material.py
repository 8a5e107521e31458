"""The stored data: turns, histories and lists of sessions.

One turn is four messages: 300 characters by the user, a tool call, 2 KB by the tool, 800
characters by the assistant. Long histories are created through the backend's own transaction in
large batches: the rows are those an append writes, only faster.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Final

import msgspec

from holdfast import Message, Session, Store, ToolCall, codec
from holdfast.session import number_of
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchStart, MessageRow, SessionRow

MESSAGES_PER_TURN: Final = 4
FEW_SCOPE: Final = "returns"
_FEW_EVERY: Final = 100
_VARIED_TURNS: Final = 500
_ROWS_PER_COMMIT: Final = 20_000
_SESSIONS_PER_COMMIT: Final = 5_000
_LONG_AGO: Final = datetime(2025, 1, 1, tzinfo=UTC)
_VOCABULARY: Final = (
    "parcel depot courier address label scanned morning delayed van route signature neighbour "
    "refund window tracking number arrived the a of and to in for was is it your we will"
)
_serial = count(1)


def prose(length: int, seed: int) -> str:
    """Return words of exactly this many characters."""
    chance = random.Random(seed)
    words = _VOCABULARY.split()
    return " ".join(chance.choices(words, k=length))[:length]


_USER: Final = prose(300, 1)
_RESULT: Final = prose(2048, 2)
_REPLY: Final = prose(800, 3)


def turn(user: str = _USER, result: str = _RESULT, reply: str = _REPLY) -> tuple[Message, ...]:
    """Return the messages of one turn, with new ids."""
    name = f"call_{os.getpid()}_{next(_serial):09}"
    call = ToolCall(name, "track_parcel", {"number": "RX 12 34", "days": 3})
    return (
        Message.user(user),
        Message.assistant("Let me look that up.", tool_calls=[call]),
        Message.tool(call.id, result),
        Message.assistant(reply),
    )


def bodies() -> list[str]:
    """Return the stored bytes of one turn, for the bare engine."""
    return [item.body.decode("utf-8") for item in codec.encode_batch(turn(), _LONG_AGO)[0]]


def varied_bodies() -> list[str]:
    """Return the stored bytes of many turns whose texts are half to one and a half as long.

    Turns of equal length may happen to fill pages exactly.
    """
    chance = random.Random(4)
    longest = prose(2 * len(_RESULT), 5)
    found = []
    for _ in range(_VARIED_TURNS):
        texts = (
            longest[: int(len(text) * chance.uniform(0.5, 1.5))]
            for text in (_USER, _RESULT, _REPLY)
        )
        found += [
            item.body.decode("utf-8") for item in codec.encode_batch(turn(*texts), _LONG_AGO)[0]
        ]
    return found


def lengthen(
    store: Store, session: Session, messages: int, texts: Sequence[str] | None = None
) -> None:
    """Extend a history to this many messages, of these bodies or of equal turns."""
    kept = [body.encode("utf-8") for body in texts or bodies()]
    for first in range(0, messages, _ROWS_PER_COMMIT):
        size = min(_ROWS_PER_COMMIT, messages - first)
        store.backend.write(_more(number_of(session), kept, size))


def _more(session: int, bodies: list[bytes], size: int) -> Operation[None]:
    def run(tx: Transaction) -> None:
        head = tx.head(session)
        assert head is not None
        last = head.seq + size
        rows = [_row(session, seq, bodies) for seq in range(head.seq + 1, last + 1)]
        tx.add_messages(head.branch, rows)
        tx.put_head(
            msgspec.structs.replace(
                head,
                seq=last,
                updated_at=tx.now(),
                preview=_USER[:120],
                preview_rank=2,
                preview_seq=1,
            )
        )

    return run


def _row(session: int, seq: int, bodies: list[bytes]) -> MessageRow:
    body = bodies[(seq - 1) % len(bodies)]
    name = old_id(session << 32 | seq)
    return MessageRow.create(seq, name, None, body)


def old_id(number: int) -> str:
    """Return an id in the store's format, older than any generated today; higher is newer."""
    millis, fraction = divmod(number, 0x1000)
    text = f"{0x0180_0000_0000 + millis:012x}"
    return f"{text[:8]}-{text[8:]}-7{fraction:03x}-8000-{number:012x}"


def add_sessions(store: Store, sessions: int) -> None:
    """Create sessions with the counts and preview of a short history, 1 % in `FEW_SCOPE`."""
    for first in range(0, sessions, _SESSIONS_PER_COMMIT):
        numbers = range(first, min(first + _SESSIONS_PER_COMMIT, sessions))
        store.backend.write(_more_sessions(numbers))


def key_of(number: int) -> str:
    """Return the key of a session that `add_sessions` created."""
    return f"customer-{number}"


def _more_sessions(numbers: range) -> Operation[None]:
    def run(tx: Transaction) -> None:
        for number in numbers:
            _add_session(tx, number)

    return run


def _add_session(tx: Transaction, number: int) -> None:
    n = tx.add_session(
        SessionRow(
            n=0,
            id=f"bench{number:011}",
            key=key_of(number),
            scope=FEW_SCOPE if number % _FEW_EVERY == 0 else "support",
            agent="bench",
            title=f"Parcel {number}",
            title_by="auto",
            model="model-1",
            cwd=None,
            created_at=tx.now(),
            pinned=False,
            archived=False,
            trashed_at=None,
            goal=None,
            metadata=b"{}",
            parent=None,
            relation=None,
        ),
        BranchStart(token=f"bench{number:011}"),
    )
    head = tx.head(n)
    assert head is not None
    tx.put_head(
        msgspec.structs.replace(
            head, seq=24, turns=6, preview=_USER[:120], preview_rank=2, preview_seq=1
        )
    )
