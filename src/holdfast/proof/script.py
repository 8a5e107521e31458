"""What the writers of a proof write and record; shared by the writers and the final check.

The text of a message is a function of its id, so a restarted writer or the final check can
reproduce any message from its id alone. So is the record that is stored with each batch, behind its
last message. Writers choose the ids of the messages they append (`w3.2:17u`: writer 3, second life,
seventeenth message, role user); the id of a streamed reply is the store's, and its text is a
function of that.

Every message is recorded for the checker by a `Recorder`. What the checker does not model (how much
of a reply was flushed, which tool was started, which turn was sealed) goes into a second file of
notes, one JSON line each, written only after the store has acknowledged it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast import Message, Record
from holdfast.proof import checker

_WORDS: Final = (
    "anchor", "bay", "cable", "deck", "ebb", "fathom", "gale", "harbour", "island", "jetty", "keel",
    "lantern", "mast", "north", "oar", "pier", "quay", "rope", "sail", "tide", "wind", "größe",
    "línea", "航海", "⚓", "🌊",
)  # fmt: skip
TOOL_NAME: Final = "look_up"


# --- messages -----------------------------------------------------------------------------------


def text_of(message_id: str) -> str:
    """Return the text for an id; replies are long enough that a kill can come in the middle."""
    chance = random.Random(message_id)  # noqa: S311 - the same text each time is the point
    words = chance.choices(_WORDS, k=chance.randint(4, 200 if is_reply(message_id) else 60))
    return f"{message_id}: {' '.join(words)}"


def message_of(message_id: str) -> Message:
    """Return the message for an id that a writer chose: its last letter is the role."""
    text = text_of(message_id)
    match message_id[-1]:
        case "u":
            return Message.user(text, id=message_id)
        case "t":
            return Message.tool(call_id_of(message_id), text, id=message_id)
        case _:
            return Message.assistant(text, id=message_id)


def state_after(message_id: str) -> Record:
    """Return the record that is stored with a batch whose last message has this id."""
    return Record("state", id=f"{message_id}.state", data={"text": text_of(message_id)})


def call_id_of(tool_message_id: str) -> str:
    """Return the id of the tool call that a tool message answers."""
    return f"{tool_message_id}.call"


def is_reply(message_id: str) -> bool:
    """True if this is the id of a streamed reply, which the store generated."""
    return ":" not in message_id


def fingerprint(message: Message) -> str:
    """Return the digest that the checker compares.

    A reply may be stored whole or in part, which `note_violations` checks; so its digest leaves
    out the text.
    """
    body = "" if is_reply(message.id) else message.text
    return checker.digest(f"{message.role} {message.id} {body}")


def reply_fingerprint(message_id: str) -> str:
    """Return the digest of a streamed reply that is not stored as a message yet."""
    return checker.digest(f"assistant {message_id} ")


def to_stored(message: Message) -> checker.Stored:
    """Convert a message that was read to the checker's form."""
    seq, seen = message.seq or 0, fingerprint(message)
    return checker.Stored(message.id, seq, seen, message.role, message.turn_id)


# --- notes --------------------------------------------------------------------------------------


class Note(msgspec.Struct, frozen=True, tag_field="note", tag=str.lower):
    """A step that the store acknowledged: one line of a writer's note file."""


class Opened(Note, frozen=True):
    """A turn was opened; `recovered` is the id of the interrupted turn it recovered first."""

    session: str
    turn: str
    recovered: str | None = None


class Replying(Note, frozen=True):
    """A streamed reply was invoked; nothing of it is written yet."""

    session: str
    reply: str


class Flushed(Note, frozen=True):
    """The first `length` characters of a reply were flushed."""

    session: str
    reply: str
    length: int


class Started(Note, frozen=True):
    """A tool was started."""

    session: str
    turn: str
    call: str


class Sealed(Note, frozen=True):
    """A turn ended normally."""

    session: str
    turn: str


AnyNote: TypeAlias = Opened | Replying | Flushed | Started | Sealed


class NoteFile:
    """Appends notes to a file, one `write` each, so that a kill can tear only the last."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._encode = msgspec.json.Encoder().encode

    def note(self, note: AnyNote) -> None:
        """Append a note."""
        os.write(self._descriptor, self._encode(note) + b"\n")


def read_notes(path: Path) -> Iterator[AnyNote]:
    """Read a file of notes; a torn last line is skipped."""
    decoder = msgspec.json.Decoder(AnyNote)
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield decoder.decode(line)


# --- writers ------------------------------------------------------------------------------------

WriterRole: TypeAlias = Literal["shared", "spread", "turns", "moves"]
MOVING_KEY_PREFIXES: Final = ("moves-", "fork-")  # key prefixes of the sessions whose heads move


class WriterLife(msgspec.Struct, frozen=True):
    """One life of one writer (a process): what it does, and where its files are."""

    url: str
    folder: str
    writer: int
    life: int
    role: WriterRole
    sessions: int

    @property
    def name(self) -> str:
        """The name of this life, unique in the run."""
        return f"w{self.writer}.{self.life}"

    @property
    def events(self) -> Path:
        """The event file, read by the checker."""
        return Path(self.folder) / f"{self.name}.events.jsonl"

    @property
    def notes(self) -> Path:
        """The note file, read by the final check."""
        return Path(self.folder) / f"{self.name}.notes.jsonl"

    @property
    def stderr(self) -> Path:
        """The process's standard error."""
        return Path(self.folder) / f"{self.name}.stderr"

    def earlier_lives(self) -> Iterator[WriterLife]:
        """Yield the writer's earlier lives, latest first."""
        for life in range(self.life - 1, 0, -1):
            yield msgspec.structs.replace(self, life=life)
