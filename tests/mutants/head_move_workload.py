"""A workload of moves for every store, healthy or broken, recorded for the history checker.

Several threads act on one session in rounds: in each, all have read the head before any of them
acts, and all have begun before any continues. In some rounds an append races an undo, in others all
expect the same head, in others there is a redo, a rewind, a replace, a summary, a fork. One worker
is killed after an undo that was not acknowledged. Then one takes the steps in sequence that a race
may leave out.

`Heads` is a store as this workload sees it. A mutant is one with one thing wrong.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.proof.checker import (
    Branch,
    Invoked,
    OperationName,
    Recorder,
    Stored,
    Verdict,
    check,
    digest,
    load,
    now,
)
from holdfast.session import Session
from holdfast.values import Head, Message, MessageRef, Text
from tests.mutants.workload import Log

ROUNDS = 10
WORKERS = 3
_WAIT = 60.0


def known_as(message: Message) -> str:
    """Return the checker's name of a message: a summary, whose id is generated, by its text."""
    return message.text if message.role == "summary" else message.id


def stored(messages: Sequence[Message]) -> tuple[Stored, ...]:
    """Return messages as the checker compares them."""
    return tuple(
        Stored(known_as(m), m.seq or 0, digest(m.text), m.role, m.turn_id) for m in messages
    )


class Heads(Log):
    """A healthy store in memory; a mutant overrides what it gets wrong."""

    def say(self, *messages: Message, expect: Head | None = None) -> Head:
        return self.session().append(*messages, expect=expect)

    def undo(self, turns: int, *, expect: Head | None = None) -> Head:
        return self.session().undo(turns, expect=expect)

    def redo(self, *, expect: Head | None = None) -> Head:
        return self.session().redo(expect=expect)

    def rewind(self, to: MessageRef, *, expect: Head | None = None) -> Head:
        return self.session().rewind(to, expect=expect)

    def clear(self, *, expect: Head | None = None) -> Head:
        return self.session().clear(expect=expect)

    def replace(self, messages: Sequence[Message], *, expect: Head | None = None) -> Head:
        return self.session().replace(messages, expect=expect)

    def summarize(self, text: str, *, expect: Head | None = None) -> Head:
        return self.session().summarize(text, expect=expect)

    def fork(self, *, expect: Head | None = None) -> str:
        return self.session().fork(expect=expect).id

    def look(self) -> tuple[int, list[Message]]:
        """The session's current branch and its history, from one snapshot."""
        while True:
            head, found = self.head(), self.read()
            if self.head() == head:
                return head.branch, found

    def branches(self, session: Session) -> list[Branch]:
        """All branches of a session, at the end."""
        return [
            Branch(
                branch.number,
                branch.reason,
                branch.fork_seq,
                branch.asked_seq,
                stored(session.messages(branch=branch.number)),
            )
            # As they are stored: the session itself refuses two with one number.
            for branch in self.store.backend.read(
                lambda snapshot: snapshot.branches(session=session._n)  # noqa: SLF001
            )
        ]

    def family(self) -> dict[str, list[Branch]]:
        """The session and its forks, at the end."""
        session = self.session()
        forks = [self.store.get(link.session_id) for link in session.children()]
        return {each.id: self.branches(each) for each in (session, *forks)}


class Mover:
    """Acts on a session and records its calls and their results."""

    def __init__(self, heads: Heads, folder: Path, name: str) -> None:
        self.heads = heads
        self.name = name
        self.recorder = Recorder(folder / f"{name}.jsonl", name)
        self._session = heads.session().id

    def begin(
        self,
        operation: OperationName,
        messages: Sequence[Message] = (),
        *,
        expect: Head | None = None,
        to: MessageRef | None = None,
    ) -> Invoked:
        """Record that an operation begins."""
        ids, digests = [known_as(m) for m in messages], [digest(m.text) for m in messages]
        return self.recorder.invoked_operation(
            self._session, operation, ids, digests, to=to, expect=expect
        )

    def end(self, write: Invoked, call: Callable[[], Head | str]) -> None:
        """Run the call, and record how it ended."""
        try:
            told = call()
        except (Conflict, Invalid, NotFound) as error:
            self.recorder.refused(write, type(error).__name__)
            return
        if isinstance(told, str):
            self.recorder.acked_fork(write, told)
        else:
            self.recorder.acked_head(write, told)

    def plan(self, operation: OperationName, expect: Head | None, mark: str) -> Callable[[], None]:
        """Begin an operation; return the function that finishes it."""
        heads = self.heads
        new = exchange(f"{self.name} {mark}")
        if operation == "append":
            write = self.begin(operation, new, expect=expect)
            return lambda: self.end(write, lambda: heads.say(*new, expect=expect))
        if operation == "replace":
            wanted = [*heads.look()[1][:-1], *new]
            write = self.begin(operation, wanted, expect=expect)
            return lambda: self.end(write, lambda: heads.replace(wanted, expect=expect))
        if operation == "summarize":
            text = f"{self.name} {mark} in short"
            write = self.begin(
                operation, [Message(role="summary", parts=(Text(text),))], expect=expect
            )
            return lambda: self.end(write, lambda: heads.summarize(text, expect=expect))
        if operation == "rewind":
            to = max(0, len(heads.look()[1]) - 3)
            write = self.begin(operation, expect=expect, to=to)
            return lambda: self.end(write, lambda: heads.rewind(to, expect=expect))
        write = self.begin(operation, expect=expect)
        calls: dict[str, Callable[[], Head | str]] = {
            "undo": lambda: heads.undo(1, expect=expect),
            "redo": lambda: heads.redo(expect=expect),
            "clear": lambda: heads.clear(expect=expect),
            "fork": lambda: heads.fork(expect=expect),
        }
        return lambda: self.end(write, calls[operation])

    def do(self, operation: OperationName, mark: str, expect: Head | None = None) -> None:
        """Run an operation at once."""
        self.plan(operation, expect, mark)()

    def look(self) -> None:
        """Read everything."""
        began = now()
        branch, found = self.heads.look()
        seen = stored(found)
        self.recorder.read(self._session, began, seen, complete=True, branch=branch)


def exchange(name: str) -> list[Message]:
    """Return a question and its reply: what one undo removes."""
    return [
        Message.user(f"{name}?", id=f"{name}.q"),
        Message.assistant(f"{name}.", id=f"{name}.a"),
    ]


# The operation of each of the three in a round, and whether all expect the head they read.
_ROUNDS: list[tuple[tuple[OperationName, OperationName, OperationName], bool]] = [
    (("append", "append", "append"), False),
    (("undo", "append", "append"), False),
    (("undo", "replace", "append"), True),
    (("redo", "rewind", "fork"), False),
    (("replace", "summarize", "append"), False),
    (("undo", "undo", "redo"), True),
    (("append", "replace", "replace"), True),
]

_STEPS: list[OperationName] = [
    *("append", "append", "append", "undo", "undo", "redo", "redo", "clear", "redo"),
    *("fork", "append", "fork", "replace", "rewind"),
]
_LATE: list[OperationName] = ["undo", "rewind", "replace", "clear", "append", "fork"]


def run(heads: Heads, folder: Path) -> Verdict:
    """Run the whole workload and check the result."""
    _move_together(heads, folder)
    _fall_silent(heads, folder)
    _step_by_step(heads, folder)
    heads.crash()
    return check(load(sorted(folder.glob("*.jsonl"))), {}, branches=heads.family())


def _move_together(heads: Heads, folder: Path) -> None:
    gate = threading.Barrier(WORKERS)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        mover = Mover(heads, folder, f"w{number}")
        try:
            for n in range(ROUNDS):
                _round(mover, gate, number, n)
        except BaseException as error:
            failed.append(error)
            gate.abort()
            raise
        finally:
            mover.recorder.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT)
    if failed:
        raise failed[0]


def _round(mover: Mover, gate: threading.Barrier, number: int, n: int) -> None:
    operations, compares = _ROUNDS[n % len(_ROUNDS)]
    if n:
        mover.do("append", f"before {n}")
    gate.wait(_WAIT)
    expect = mover.heads.head() if compares else None
    finish = mover.plan(operations[number], expect, f"round {n}")
    gate.wait(_WAIT)
    finish()
    gate.wait(_WAIT)
    mover.look()


def _fall_silent(heads: Heads, folder: Path) -> None:
    """Be killed after an undo whose result is not recorded."""
    harness = Recorder(folder / "harness.jsonl", "harness")
    victim, successor = Mover(heads, folder, "victim"), Mover(heads, folder, "successor")
    victim.do("append", "last words")
    victim.begin("undo")
    heads.undo(1)
    harness.killed("victim")
    again = exchange("victim last words")
    successor.end(successor.begin("append", again), lambda: heads.say(*again))
    for recorder in (victim.recorder, successor.recorder, harness):
        recorder.close()


def _step_by_step(heads: Heads, folder: Path) -> None:
    """Run every operation once more, one after the other, some with a stale head."""
    mover = Mover(heads, folder, "calm")
    old = heads.head()
    for n, operation in enumerate(_STEPS):
        mover.do(operation, f"step {n}")
        mover.look()
    for n, operation in enumerate(_LATE):
        mover.do(operation, f"late {n}", expect=old)
    mover.look()
    mover.recorder.close()
