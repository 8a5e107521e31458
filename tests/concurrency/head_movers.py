"""Processes that move the head of one session while others do the same, and record what they do.

Each runs random operations: append, retry, undo, redo, rewind, replace, clear, summarize, fork;
with the head it has just read as `expect`, or without. The caller cannot choose the id of a
summary, so the checker identifies it by its text, which is unique.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast import Head, Message, Session
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.proof import checker
from holdfast.values import MessageRef
from tests.concurrency.children import Pipe

_OPERATIONS = [
    *["append"] * 6,
    *["undo"] * 4,
    *["redo"] * 3,
    *["rewind"] * 3,
    *["replace"] * 3,
    *["summarize", "fork", "again", "read", "clear"],
]


def name_of(message: Message) -> str:
    """Return the name by which the checker identifies a message."""
    return message.text if message.role == "summary" else message.id


def stored(messages: Sequence[Message]) -> list[checker.Stored]:
    """Return a history in the checker's form."""
    return [
        checker.Stored(name_of(m), m.seq or 0, checker.digest(m.text), m.role, m.turn_id)
        for m in messages
    ]


def branches_of(session: Session) -> list[checker.Branch]:
    """Read all branches of a session."""
    return [
        checker.Branch(
            branch.number,
            branch.reason,
            branch.fork_seq,
            branch.asked_seq,
            tuple(stored(session.messages(branch=branch.number))),
        )
        for branch in session.branches()
    ]


def exchange(name: str) -> list[Message]:
    """Return a question and its reply: what one undo removes."""
    return [
        Message.user(f"{name} asks", id=f"{name}.q"),
        Message.assistant(f"{name} replies", id=f"{name}.a"),
    ]


class Mover:
    """One worker on one session."""

    def __init__(self, session: Session, recorder: checker.Recorder, chance: random.Random) -> None:
        self.session = session
        self.recorder = recorder
        self.chance = chance
        self.made = 0
        self.written: list[list[Message]] = []
        self.steps_done = 0

    def step(self) -> None:
        """Run one random operation."""
        operation = self.chance.choice(_OPERATIONS)
        getattr(self, operation)()
        self.steps_done += 1

    def new_name(self) -> str:
        self.made += 1
        return f"{self.recorder.worker}-{self.made}"

    def seen(self) -> Head | None:
        """Return the current head to expect, or None."""
        return self.session.head() if self.chance.random() < 0.4 else None

    def end(self, write: checker.Invoked, call: Callable[[], Head]) -> None:
        """Run the call, and record how it ended."""
        try:
            head = call()
        except (Conflict, Invalid, NotFound) as error:
            self.recorder.refused(write, type(error).__name__)
        else:
            self.recorder.acked_head(write, head)

    def begin(
        self,
        operation: checker.OperationName,
        messages: Sequence[Message] = (),
        *,
        expect: Head | None = None,
        to: MessageRef | None = None,
        turns: int = 1,
    ) -> checker.Invoked:
        """Record that an operation begins."""
        ids = [name_of(message) for message in messages]
        digests = [checker.digest(message.text) for message in messages]
        return self.recorder.invoked_operation(
            self.session.id, operation, ids, digests, to=to, turns=turns, expect=expect
        )

    # ----------------------------------------------------------------------- the operations

    def append(self, batch: list[Message] | None = None) -> None:
        if batch is None:
            batch = exchange(self.new_name())
            self.written.append(batch)
        expect = self.seen()
        write = self.begin("append", batch, expect=expect)
        self.end(write, lambda: self.session.append(*batch, expect=expect))

    def again(self) -> None:
        """Retry a batch that may be stored, or may have been undone since."""
        if self.written:
            self.append(self.chance.choice(self.written))

    def undo(self) -> None:
        expect, turns = self.seen(), self.chance.choice([1, 1, 2])
        write = self.begin("undo", expect=expect, turns=turns)
        self.end(write, lambda: self.session.undo(turns, expect=expect))

    def redo(self) -> None:
        expect = self.seen()
        write = self.begin("redo", expect=expect)
        self.end(write, lambda: self.session.redo(expect=expect))

    def clear(self) -> None:
        expect = self.seen()
        write = self.begin("clear", expect=expect)
        self.end(write, lambda: self.session.clear(expect=expect))

    def rewind(self) -> None:
        expect, to = self.seen(), self.place()
        write = self.begin("rewind", expect=expect, to=to)
        self.end(write, lambda: self.session.rewind(to, expect=expect))

    def place(self) -> MessageRef:
        """Return a position: a seq, the id of an own message, or a head on any branch."""
        head = self.session.head()
        kind = self.chance.random()
        if kind < 0.4 or not self.written:
            return self.chance.randint(0, head.seq)
        if kind < 0.7:
            return self.chance.choice(self.chance.choice(self.written)).id
        branch = self.chance.choice(self.session.branches()[-8:])
        return Head(branch.number, self.chance.randint(0, branch.seq))

    def replace(self) -> None:
        """Replace the history by most of it and a new exchange."""
        expect = self.seen()
        read = self.session.messages()
        kept = read[: self.chance.randint(max(0, len(read) - 6), len(read))]
        moved = [m for m in read[len(kept) :] if self.chance.random() < 0.3]
        wanted = [*kept, *moved, *exchange(self.new_name())]
        write = self.begin("replace", wanted, expect=expect)
        self.end(write, lambda: self.session.replace(wanted, expect=expect))

    def summarize(self) -> None:
        expect, text = self.seen(), f"so far, {self.new_name()}"
        summary = Message(role="summary", parts=(holdfast.Text(text),))
        write = self.begin("summarize", [summary], expect=expect)
        self.end(write, lambda: self.session.summarize(text, expect=expect))

    def fork(self) -> None:
        """Fork, and append to the fork."""
        expect = self.seen()
        to = None if self.chance.random() < 0.5 else self.place()
        write = self.begin("fork", expect=expect, to=to)
        try:
            child = self.session.fork(to, expect=expect)
        except (Conflict, Invalid, NotFound) as error:
            self.recorder.refused(write, type(error).__name__)
            return
        self.recorder.acked_fork(write, child.id)
        Mover(child, self.recorder, self.chance).append(exchange(f"{self.new_name()}-child"))

    def read(self) -> None:
        """Read a history and its branch; skip it if the head moved in between."""
        began = checker.now()
        head = self.session.head()
        found = self.session.messages()
        if self.session.head() == head:
            seen, where = stored(found), self.session.id
            self.recorder.read(where, began, seen, complete=True, branch=head.branch)


class Where(NamedTuple):
    """The store, and the folder for the event files."""

    url: str
    folder: Path


def move(pipe: Pipe, where: Where, name: str, seed: int, steps: int) -> None:
    """Run operations on the shared session; with `steps` of 0 until killed."""
    recorder = checker.Recorder(where.folder / f"{name}.jsonl", name)
    with holdfast.open(where.url, durability="process") as store:
        mover = Mover(store.session("shared"), recorder, random.Random(seed))
        pipe.say("ready")
        pipe.hear()
        while not steps or mover.steps_done < steps:
            mover.step()
        pipe.say("done")


def inherit(pipe: Pipe, where: Where, name: str, dead: str, steps: int) -> None:
    """Continue after a killed worker: retry its last write, then run operations."""
    recorder = checker.Recorder(where.folder / f"{name}.jsonl", name)
    events = checker.load([where.folder / f"{dead}.jsonl"])
    said = [
        event.ids
        for event in events
        if isinstance(event, checker.Invoked)
        and event.operation == "append"
        and "child" not in event.ids[0]
    ]
    with holdfast.open(where.url, durability="process") as store:
        mover = Mover(store.session("shared"), recorder, random.Random(name))
        for ids in said[-3:]:
            mover.append(exchange(ids[0].rpartition(".")[0]))
        while mover.steps_done < steps:
            mover.step()
        pipe.say("done")
