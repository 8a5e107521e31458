"""What the writers of a proof say, and what they note down; writers and judge both know it.

Every text is a function of its message's id, so whoever has the id, a writer that was started
again or the judge at the end, can say the message again word for word. The ids of written messages
are ours (`w3.2:17u`: writer 3, second life, seventeenth message, by the user); the id of a streamed
reply is the store's, and its text a function of that.

The checker hears of every message through its `Recorder`. What it has no word for (how much of a
reply was flushed, which tool was started, which turn was sealed) goes into a second file, one JSON
line each, written only after the store had acknowledged it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast import Message
from holdfast.testing import checker

_WORDS: Final = (
    "anchor", "bay", "cable", "deck", "ebb", "fathom", "gale", "harbour", "island", "jetty", "keel",
    "lantern", "mast", "north", "oar", "pier", "quay", "rope", "sail", "tide", "wind", "größe",
    "línea", "航海", "⚓", "🌊",
)  # fmt: skip
TOOL: Final = "look_up"


# --- what is said -------------------------------------------------------------------------------


def text_of(message_id: str) -> str:
    """Return the text that belongs to an id; replies are long enough to be killed in."""
    chance = random.Random(message_id)  # noqa: S311 - the same text each time is the point
    words = chance.choices(_WORDS, k=chance.randint(4, 200 if is_reply(message_id) else 60))
    return f"{message_id}: {' '.join(words)}"


def message_of(message_id: str) -> Message:
    """Return the message that belongs to one of our ids: its last letter is the role."""
    text = text_of(message_id)
    match message_id[-1]:
        case "u":
            return Message.user(text, id=message_id)
        case "t":
            return Message.tool(call_of(message_id), text, id=message_id)
        case _:
            return Message.assistant(text, id=message_id)


def call_of(tool_message_id: str) -> str:
    """Name the tool call that a tool message answers."""
    return f"{tool_message_id}.call"


def is_reply(message_id: str) -> bool:
    """Return whether this is a streamed reply: then the store made up its id."""
    return ":" not in message_id


def fingerprint(message: Message) -> str:
    """Return the digest a message is checked by.

    A reply may be kept whole or in part, which is for the judge to weigh; its digest only names it.
    """
    body = "" if is_reply(message.id) else message.text
    return checker.digest(f"{message.role} {message.id} {body}")


def reply_fingerprint(message_id: str) -> str:
    """Return the digest of a streamed reply before it is a message."""
    return checker.digest(f"assistant {message_id} ")


def stored(message: Message) -> checker.Stored:
    """Return what the checker wants to know of a message that was read."""
    seq, seen = message.seq or 0, fingerprint(message)
    return checker.Stored(message.id, seq, seen, message.role, message.turn_id)


# --- what is noted ------------------------------------------------------------------------------


class Note(msgspec.Struct, frozen=True, tag_field="note", tag=str.lower):
    """Something the store acknowledged: one line of a writer's second file."""


class Opened(Note, frozen=True):
    """A turn was opened; `recovered` names the interrupted one it had to close first."""

    session: str
    turn: str
    recovered: str | None = None


class Replying(Note, frozen=True):
    """A streamed reply was begun; nothing of it is written yet."""

    session: str
    reply: str


class Flushed(Note, frozen=True):
    """So many characters of a reply were flushed."""

    session: str
    reply: str
    length: int


class Started(Note, frozen=True):
    """A tool was started."""

    session: str
    turn: str
    call: str


class Sealed(Note, frozen=True):
    """A turn was ended as it should."""

    session: str
    turn: str


AnyNote: TypeAlias = Opened | Replying | Flushed | Started | Sealed


class Notebook:
    """Writes one life's notes: a single `write` each, so that a kill can tear only the last."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._encode = msgspec.json.Encoder().encode

    def note(self, note: AnyNote) -> None:
        """Write one down."""
        os.write(self._descriptor, self._encode(note) + b"\n")


def read_notes(path: Path) -> Iterator[AnyNote]:
    """Read a file of notes; a torn last line was not noted."""
    decoder = msgspec.json.Decoder(AnyNote)
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield decoder.decode(line)


# --- who writes, and where ----------------------------------------------------------------------

Role: TypeAlias = Literal["shared", "spread", "turns", "moves"]
MOVING: Final = ("moves-", "fork-")  # how the keys of sessions begin whose heads move


class Part(msgspec.Struct, frozen=True):
    """One life of one writer: what it does, and where it leaves its record."""

    url: str
    folder: str
    writer: int
    life: int
    role: Role
    sessions: int

    @property
    def name(self) -> str:
        """The name of this life; every life has its own."""
        return f"w{self.writer}.{self.life}"

    @property
    def events(self) -> Path:
        """What the checker reads."""
        return Path(self.folder) / f"{self.name}.events.jsonl"

    @property
    def notes(self) -> Path:
        """What the judge reads besides."""
        return Path(self.folder) / f"{self.name}.notes.jsonl"

    @property
    def errors(self) -> Path:
        """What it said before it stopped by itself."""
        return Path(self.folder) / f"{self.name}.stderr"

    def before(self) -> Iterator[Part]:
        """Return its earlier lives, the latest first."""
        for life in range(self.life - 1, 0, -1):
            yield msgspec.structs.replace(self, life=life)
