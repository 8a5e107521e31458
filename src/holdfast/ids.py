"""Ids of messages, sessions and turns.

Message ids are UUIDv7 in their usual text form: time-ordered, so that the index on them grows at
one end and insertion stays fast with millions of rows. Session ids are 16 random lower-case base32
characters (80 bits): short enough to type, and a prefix of a few characters is unique. A turn id is
its session's id and its number within the session.
"""

from __future__ import annotations

import os
import time
from _random import Random
from base64 import b32encode

# Ids must be unique, not secret; and a system call for each would let other threads run. `_random`
# is what `random` is made of; to import that takes twenty times as long.
_random = Random()
_random.seed(int.from_bytes(os.urandom(32)))
os.register_at_fork(after_in_child=lambda: _random.seed(int.from_bytes(os.urandom(32))))


def message_id() -> str:
    """Return a new UUIDv7, ordered by time to a quarter of a microsecond."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    tail = _random.getrandbits(62) | 0x8000_0000_0000_0000
    text = f"{millis << 16 | 0x7000 | fraction:016x}{tail:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def session_id() -> str:
    """Return a new session id."""
    return b32encode(os.urandom(10)).decode("ascii").lower()


def turn_id(session: str, number: int) -> str:
    """Return the id of a turn, from its session's id and its number."""
    return f"{session}.{number}"


def split_turn_id(name: str) -> tuple[str, int]:
    """Return the session id and the number of a turn id."""
    session, _, number = name.rpartition(".")
    return session, int(number)
