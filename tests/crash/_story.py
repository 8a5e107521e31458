"""A script with every kind of write, run by a child process whose disk fails.

Messages are recorded for the history checker: begun, acknowledged, refused, or unknown. Everything
else is printed once it is durable. A step that fails with a Holdfast error is reported and, at the
end, retried with the same ids; any other exception ends the child with a traceback, and fails the
test. The exit code is 0 when everything was stored at last, else 3.

    python -c "…; main()" story|leave|recover|migrate STORE EVENTS
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from holdfast import Message, Store, Turn
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.proof.checker import Recorder, digest
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.backend import SQLiteBackend
from holdfast.url import Location
from tests.crash._messages import looks, message

GAVE_UP = 3
REPLY = "".join(f"word {number} " for number in range(900))
NEXT_STEP = """
CREATE TABLE flavours (session INTEGER PRIMARY KEY, flavour TEXT) STRICT;
INSERT INTO flavours SELECT n, 'plain' FROM sessions;
ALTER TABLE turns ADD COLUMN flavour TEXT;
"""


class Oops(Exception):
    """An exception that the script itself raises."""


NEXT_VERSION = max(migrations.load()) + 1


def steps_to_next() -> migrations.Steps:
    """The store's migration steps, and an invented one after them."""
    return {**migrations.load(), NEXT_VERSION: NEXT_STEP}


def open_store(path: Path, steps: migrations.Steps | None = None) -> Store:
    """Open with a short lease, so that a turn whose end could not be written is soon free."""
    return Store(SQLiteBackend(Location("sqlite", str(path), lease=1.0), steps=steps))


def number_of(turn: Turn) -> int:
    """Return the number of a turn in its session."""
    return int(turn.id.rpartition(".")[2])


class Teller:
    """Runs each step, and reports its outcome."""

    def __init__(self, recorder: Recorder, say: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._say = say

    def write(self, session: str, do: Callable[..., object], *given: Message) -> None:
        """Write messages, and record how it ended."""
        ids = [item.id for item in given]
        begun = self._recorder.invoked(session, ids, [digest(looks(item)) for item in given])
        try:
            do(*given)
        except OutcomeUnknown:
            self._recorder.unknown(begun)
            raise
        except HoldfastError as error:
            self._recorder.refused(begun, type(error).__name__)
            raise
        self._recorder.acked(begun)

    def says(self, *words: object) -> None:
        """Report that something is durable."""
        self._say(" ".join(map(str, words)))

    # ------------------------------------------------------------------------------ the steps

    def appends(self, store: Store) -> None:
        """Batches, small and large."""
        session = store.session("talk")
        self.says("made", "talk")
        self.write("talk", session.append, message("user-1"))
        self.write("talk", session.append, *map(message, ("user-2", "big-3", "file-4")))
        self.write("talk", session.append, message("user-5"))

    def turn(self, store: Store) -> None:
        """A turn with a tool and a streamed reply."""
        session = store.session("turn")
        with session.turn(wait=20) as turn:
            self.write("turn", turn.add, message("user-1"))
            self.write("turn", turn.add, message("call-x"))
            turn.tool_started("x")
            self.says("started", number_of(turn))
            self.write("turn", turn.add, message("result-x"))
            self._stream(turn)
        self.says("sealed", number_of(turn))

    def _stream(self, turn: Turn) -> None:
        reply = turn.stream()
        for begin, end in ((0, 40), (40, len(REPLY))):
            reply.write(REPLY[begin:end])
            reply.flush()
            self.says("flushed", reply.id, end)
        self.write("turn", lambda _: reply.close(), Message.assistant(REPLY, id=reply.id))

    def failing(self, store: Store) -> None:
        """A turn that ends by an exception."""
        turn = store.session("failing").turn(wait=20)
        try:
            self._fail(turn)
        except Oops as error:
            if getattr(error, "__notes__", None):
                raise OutcomeUnknown("the turn's end could not be written") from error
        self.says("failed", number_of(turn))

    def _fail(self, turn: Turn) -> None:
        with turn:
            self.write("failing", turn.add, message("user-1"))
            raise Oops

    def queue(self, store: Store) -> None:
        """Input that is queued and taken."""
        session = store.session("queue")
        self.write("queue", session.enqueue, message("user-1"))
        self.write("queue", session.enqueue, message("file-2"))
        with session.turn(wait=20) as turn:
            turn.take_queued()
            self.says("took")

    def naming(self, store: Store) -> None:
        """Two things changed together."""
        store.session("talk").update(title="a title", metadata={"topic": "a topic"})
        self.says("named")

    def tell(self, store: Store, steps: Sequence[str]) -> list[str]:
        """Run these steps; return those that failed."""
        left = []
        for step in steps:
            try:
                getattr(self, step)(store)
            except HoldfastError as error:
                self.says("error", step, type(error).__name__)
                left.append(step)
        return left


STEPS = ("appends", "turn", "failing", "queue", "naming")


def story(path: Path, teller: Teller) -> int:
    """Run all steps, then retry the failed ones: in the same store if it could be opened."""
    left: Sequence[str] = STEPS
    for _ in range(2):
        try:
            with open_store(path) as store:
                left = teller.tell(store, left)
                left = teller.tell(store, left)
        except HoldfastError as error:
            teller.says("error", "open", type(error).__name__)
        if not left:
            return 0
    return GAVE_UP


def leave(path: Path, teller: Teller) -> int:
    """Die during a turn."""
    with open_store(path) as store, store.session("left").turn() as turn:
        teller.write("left", turn.add, message("user-1"))
        teller.write("left", turn.add, message("call-x"))
        turn.tool_started("x")
        reply = turn.stream()
        reply.write("so far")
        reply.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return GAVE_UP


def recover(path: Path, teller: Teller) -> int:
    """Recover what a crash left open, and continue."""
    for _ in range(2):
        try:
            with open_store(path) as store:
                session = store.session("left", create=False)
                session.recover()
                teller.says("recovered")
                teller.write("left", session.append, message("user-2"))
                return 0
        except HoldfastError as error:
            teller.says("error", "recover", type(error).__name__)
    return GAVE_UP


def migrate(path: Path, teller: Teller) -> int:
    """Open with a newer program."""
    for _ in range(2):
        try:
            with open_store(path, steps_to_next()) as store:
                teller.says("migrated")
                session = store.session("left")
                teller.write("left", session.append, message("user-2"))
                return 0
        except HoldfastError as error:
            teller.says("error", "migrate", type(error).__name__)
    return GAVE_UP


def main() -> None:
    """Run a script, with checkpoints often enough to be hit by the faults."""
    mode, path, events = sys.argv[1:]
    apsw.connection_hooks.append(lambda connection: connection.wal_autocheckpoint(25))
    teller = Teller(Recorder(events, "child"), lambda line: print(line, flush=True))  # noqa: T201
    modes = {"story": story, "leave": leave, "recover": recover, "migrate": migrate}
    sys.exit(modes[mode](Path(path), teller))
