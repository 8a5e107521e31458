"""Processes that move the head of one session while others do the same, and record what they do.

Each does at random what a user could: say something, say it again, undo, redo, go back anywhere,
replace, clear, summarize, fork; with the head it has just seen, or whatever the head is. A summary
has no id of its caller's choice, so the checker knows it by its text, which is used once.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import holdfast
from holdfast import Head, Message, Session
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.records import Place
from holdfast.testing import checker
from tests.concurrency.children import Pipe

_VERBS = [
    *["append"] * 6,
    *["undo"] * 4,
    *["redo"] * 3,
    *["rewind"] * 3,
    *["replace"] * 3,
    *["summarize", "fork", "again", "read", "clear"],
]


def name_of(message: Message) -> str:
    """Name a message as the checker knows it."""
    return message.text if message.role == "summary" else message.id


def stored(messages: Sequence[Message]) -> list[checker.Stored]:
    """Return what the checker wants to know of a history."""
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
    """Make a question and its reply: what one undo takes back."""
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
        self.verbs = 0

    def step(self) -> None:
        """Do one thing."""
        verb = self.chance.choice(_VERBS)
        getattr(self, verb)()
        self.verbs += 1

    def new_name(self) -> str:
        self.made += 1
        return f"{self.recorder.worker}-{self.made}"

    def seen(self) -> Head | None:
        """Look at the head, or do not care."""
        return self.session.head() if self.chance.random() < 0.4 else None

    def end(self, write: checker.Invoked, call: Callable[[], Head]) -> None:
        """Do it, and record how it ended."""
        try:
            head = call()
        except (Conflict, Invalid, NotFound) as error:
            self.recorder.refused(write, type(error).__name__)
        else:
            self.recorder.moved(write, head)

    def begin(
        self,
        verb: checker.Verb,
        messages: Sequence[Message] = (),
        *,
        expect: Head | None = None,
        to: Place | None = None,
        turns: int = 1,
    ) -> checker.Invoked:
        """Record that something begins."""
        ids = [name_of(message) for message in messages]
        digests = [checker.digest(message.text) for message in messages]
        return self.recorder.moving(
            self.session.id, verb, ids, digests, to=to, turns=turns, expect=expect
        )

    # ---------------------------------------------------------------------------- the verbs

    def append(self, batch: list[Message] | None = None) -> None:
        if batch is None:
            batch = exchange(self.new_name())
            self.written.append(batch)
        expect = self.seen()
        write = self.begin("append", batch, expect=expect)
        self.end(write, lambda: self.session.append(*batch, expect=expect))

    def again(self) -> None:
        """Say again what may be there, or may be undone since."""
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

    def place(self) -> Place:
        """Name a place: a number, a message of one's own, or somewhere on any branch."""
        head = self.session.head()
        kind = self.chance.random()
        if kind < 0.4 or not self.written:
            return self.chance.randint(0, head.seq)
        if kind < 0.7:
            return self.chance.choice(self.chance.choice(self.written)).id
        branch = self.chance.choice(self.session.branches()[-8:])
        return Head(branch.number, self.chance.randint(0, branch.seq))

    def replace(self) -> None:
        """Keep most of what was read, and add something."""
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
        """Split off, and say something there."""
        expect = self.seen()
        to = None if self.chance.random() < 0.5 else self.place()
        write = self.begin("fork", expect=expect, to=to)
        try:
            child = self.session.fork(to, expect=expect)
        except (Conflict, Invalid, NotFound) as error:
            self.recorder.refused(write, type(error).__name__)
            return
        self.recorder.forked(write, child.id)
        Mover(child, self.recorder, self.chance).append(exchange(f"{self.new_name()}-child"))

    def read(self) -> None:
        """Read a history and where it ends; what changed in between cannot be told apart."""
        began = checker.now()
        head = self.session.head()
        found = self.session.messages()
        if self.session.head() == head:
            seen, where = stored(found), self.session.id
            self.recorder.read(where, began, seen, complete=True, branch=head.branch)


class Where(NamedTuple):
    """The store, and the folder for what is recorded."""

    url: str
    folder: Path


def move(pipe: Pipe, where: Where, name: str, seed: int, steps: int) -> None:
    """Work on the shared session; `steps` of 0 goes on until killed."""
    recorder = checker.Recorder(where.folder / f"{name}.jsonl", name)
    with holdfast.open(where.url, durability="process") as store:
        mover = Mover(store.session("shared"), recorder, random.Random(seed))
        pipe.say("ready")
        pipe.hear()
        while not steps or mover.verbs < steps:
            mover.step()
        pipe.say("done")


def inherit(pipe: Pipe, where: Where, name: str, dead: str, steps: int) -> None:
    """Come after somebody who was killed: say again what it said last, then go on."""
    recorder = checker.Recorder(where.folder / f"{name}.jsonl", name)
    events = checker.load([where.folder / f"{dead}.jsonl"])
    said = [
        event.ids
        for event in events
        if isinstance(event, checker.Invoked)
        and event.verb == "append"
        and "child" not in event.ids[0]
    ]
    with holdfast.open(where.url, durability="process") as store:
        mover = Mover(store.session("shared"), recorder, random.Random(name))
        for ids in said[-3:]:
            mover.append(exchange(ids[0].rpartition(".")[0]))
        while mover.verbs < steps:
            mover.step()
        pipe.say("done")
