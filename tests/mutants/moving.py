"""A workload of movements for every store, healthy or broken, recorded for the history checker.

Several threads act on one session in rounds: in each, all have looked at the head before any of
them acts, and all have begun before any goes on. In some rounds an append races an undo, in others
everybody expects the same head, in others there is a redo, a rewind, a replace, a summary, a fork.
One worker falls silent behind an undo that nobody acknowledged. Then one takes the steps in turn
that a race may leave out.

`Heads` is a store as this workload sees it. A mutant is one with one thing wrong.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.records import Head, Message, Place, Text
from holdfast.session import Session
from holdfast.testing.checker import (
    Branch,
    Invoked,
    Recorder,
    Stored,
    Verb,
    Verdict,
    check,
    digest,
    load,
    now,
)
from tests.mutants.workload import Log

ROUNDS = 10
WORKERS = 3
_WAIT = 60.0


def known_as(message: Message) -> str:
    """Name a message: a summary has no id of its caller's choice, but a text of its own."""
    return message.text if message.role == "summary" else message.id


def stored(messages: Sequence[Message]) -> tuple[Stored, ...]:
    """Return messages as the checker compares them."""
    return tuple(
        Stored(known_as(m), m.seq or 0, digest(m.text), m.role, m.turn_id) for m in messages
    )


class Heads(Log):
    """A healthy store in memory; whatever a mutant gets wrong it overrides."""

    def say(self, *messages: Message, expect: Head | None = None) -> Head:
        return self.session().append(*messages, expect=expect)

    def undo(self, turns: int, *, expect: Head | None = None) -> Head:
        return self.session().undo(turns, expect=expect)

    def redo(self, *, expect: Head | None = None) -> Head:
        return self.session().redo(expect=expect)

    def rewind(self, to: Place, *, expect: Head | None = None) -> Head:
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
        """The branch the session is on and its history, of one moment."""
        while True:
            head, found = self.head(), self.read()
            if self.head() == head:
                return head.branch, found

    def branches(self, session: Session) -> list[Branch]:
        """All branches of a session, in the end."""
        return [
            Branch(
                branch.number,
                branch.reason,
                branch.fork_seq,
                branch.asked_seq,
                stored(session.messages(branch=branch.number)),
            )
            for branch in session.branches()
        ]

    def family(self) -> dict[str, list[Branch]]:
        """The session and its forks, in the end."""
        session = self.session()
        forks = [self.store.get(link.session_id) for link in session.children()]
        return {each.id: self.branches(each) for each in (session, *forks)}


class Mover:
    """Acts on a session and records what it asked and what it was told."""

    def __init__(self, heads: Heads, folder: Path, name: str) -> None:
        self.heads = heads
        self.name = name
        self.recorder = Recorder(folder / f"{name}.jsonl", name)
        self._session = heads.session().id

    def begin(
        self,
        verb: Verb,
        messages: Sequence[Message] = (),
        *,
        expect: Head | None = None,
        to: Place | None = None,
    ) -> Invoked:
        """Record that something begins."""
        ids, digests = [known_as(m) for m in messages], [digest(m.text) for m in messages]
        return self.recorder.moving(self._session, verb, ids, digests, to=to, expect=expect)

    def end(self, write: Invoked, call: Callable[[], Head | str]) -> None:
        """Do it, and record how it ended."""
        try:
            told = call()
        except (Conflict, Invalid, NotFound) as error:
            self.recorder.refused(write, type(error).__name__)
            return
        if isinstance(told, str):
            self.recorder.forked(write, told)
        else:
            self.recorder.moved(write, told)

    def plan(self, verb: Verb, expect: Head | None, mark: str) -> Callable[[], None]:
        """Begin something; give what finishes it."""
        heads = self.heads
        new = exchange(f"{self.name} {mark}")
        if verb == "append":
            write = self.begin(verb, new, expect=expect)
            return lambda: self.end(write, lambda: heads.say(*new, expect=expect))
        if verb == "replace":
            wanted = [*heads.look()[1][:-1], *new]
            write = self.begin(verb, wanted, expect=expect)
            return lambda: self.end(write, lambda: heads.replace(wanted, expect=expect))
        if verb == "summarize":
            text = f"{self.name} {mark} in short"
            write = self.begin(verb, [Message(role="summary", parts=(Text(text),))], expect=expect)
            return lambda: self.end(write, lambda: heads.summarize(text, expect=expect))
        if verb == "rewind":
            to = max(0, len(heads.look()[1]) - 3)
            write = self.begin(verb, expect=expect, to=to)
            return lambda: self.end(write, lambda: heads.rewind(to, expect=expect))
        write = self.begin(verb, expect=expect)
        calls: dict[str, Callable[[], Head | str]] = {
            "undo": lambda: heads.undo(1, expect=expect),
            "redo": lambda: heads.redo(expect=expect),
            "clear": lambda: heads.clear(expect=expect),
            "fork": lambda: heads.fork(expect=expect),
        }
        return lambda: self.end(write, calls[verb])

    def do(self, verb: Verb, mark: str, expect: Head | None = None) -> None:
        """Do something at once."""
        self.plan(verb, expect, mark)()

    def look(self) -> None:
        """Read everything."""
        began = now()
        branch, found = self.heads.look()
        seen = stored(found)
        self.recorder.read(self._session, began, seen, complete=True, branch=branch)


def exchange(name: str) -> list[Message]:
    """Make a question and its reply: what one undo takes back."""
    return [
        Message.user(f"{name}?", id=f"{name}.q"),
        Message.assistant(f"{name}.", id=f"{name}.a"),
    ]


# What each of the three does in a round, and whether all expect the head they have seen.
_ROUNDS: list[tuple[tuple[Verb, Verb, Verb], bool]] = [
    (("append", "append", "append"), False),
    (("undo", "append", "append"), False),
    (("undo", "replace", "append"), True),
    (("redo", "rewind", "fork"), False),
    (("replace", "summarize", "append"), False),
    (("undo", "undo", "redo"), True),
    (("append", "replace", "replace"), True),
]

_STEPS: list[Verb] = [
    *("append", "append", "append", "undo", "undo", "redo", "redo", "clear", "redo"),
    *("fork", "append", "fork", "replace", "rewind"),
]
_LATE: list[Verb] = ["undo", "rewind", "replace", "clear", "append", "fork"]


def run(heads: Heads, folder: Path) -> Verdict:
    """Run the whole workload and check what came of it."""
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
    verbs, compares = _ROUNDS[n % len(_ROUNDS)]
    if n:
        mover.do("append", f"before {n}")
    gate.wait(_WAIT)
    expect = mover.heads.head() if compares else None
    finish = mover.plan(verbs[number], expect, f"round {n}")
    gate.wait(_WAIT)
    finish()
    gate.wait(_WAIT)
    mover.look()


def _fall_silent(heads: Heads, folder: Path) -> None:
    """Be killed behind an undo whose answer nobody hears."""
    harness = Recorder(folder / "harness.jsonl", "harness")
    victim, heir = Mover(heads, folder, "victim"), Mover(heads, folder, "heir")
    victim.do("append", "last words")
    victim.begin("undo")
    heads.undo(1)
    harness.killed("victim")
    again = exchange("victim last words")
    heir.end(heir.begin("append", again), lambda: heads.say(*again))
    for recorder in (victim.recorder, heir.recorder, harness):
        recorder.close()


def _step_by_step(heads: Heads, folder: Path) -> None:
    """Take every step once more, one after the other, some with an old head."""
    mover = Mover(heads, folder, "calm")
    old = heads.head()
    for n, verb in enumerate(_STEPS):
        mover.do(verb, f"step {n}")
        mover.look()
    for n, verb in enumerate(_LATE):
        mover.do(verb, f"late {n}", expect=old)
    mover.look()
    mover.recorder.close()
