"""The reference model, made of lists, that the machine compares a store with.

A history is a list of `Said`. Sessions that share a message hold the same object, so that sharing
is identity and erasing it once erases it for all. A session is a list of `Line`s, one for every
move of its head, each with its whole history written out; nothing is ever removed from one. The
targets of `redo` are a stack. A store is its sessions and the order of their last activity; what is
stored is what the existing sessions can reach.

The model has no ancestry, rows, tokens or transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.errors import BadQuery, IdConflict, MessageNotFound
from holdfast.values import (
    JSON,
    BranchReason,
    Goal,
    Head,
    Message,
    MessageRef,
    Part,
    Record,
    Relation,
    Text,
    Usage,
)

_NOT_SAID = ("hidden", "command", "injected")


def bare(message: Message) -> Message:
    """Return a message without its seq, its turn and its time."""
    return msgspec.structs.replace(message, seq=None, turn_id=None, created_at=None)


@dataclass(eq=False)
class Said:
    """One stored message: its body, its turn, and where it was stored."""

    message: Message
    turn: str | None
    home: tuple[str, int]

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def calls(self) -> set[str]:
        return {call.id for call in self.message.tool_calls}

    @property
    def results(self) -> set[str]:
        return {result.call_id for result in self.message.tool_results}

    def erase(self) -> None:
        """Make it a tombstone, which keeps id and role."""
        self.message = Message(id=self.id, role=self.message.role, status="erased")


@dataclass(eq=False)
class Kept:
    """One stored record: the seq it lies behind, and where it was stored."""

    record: Record
    seq: int
    home: tuple[str, int]


@dataclass
class Line:
    """A branch with its whole history, and why it was opened."""

    number: int
    reason: BranchReason
    said: list[Said] = field(default_factory=list)
    fork_seq: int = 0
    asked_seq: int = 0
    parent: tuple[str, int] | None = None
    records: list[Kept] = field(default_factory=list)

    @property
    def head(self) -> Head:
        return Head(self.number, len(self.said))


# ------------------------------------------------------------------------------- the rules


def is_whole(said: Sequence[Said], cut: int, awaited: Collection[str] = ()) -> bool:
    """True if no call before the cut is, or will be, answered after it."""
    unanswered: set[str] = set()
    for one in said[:cut]:
        unanswered = (unanswered - one.results) | one.calls
    answered, made = set(awaited), set[str]()
    for one in said[cut:]:
        answered |= one.results - made
        made |= one.calls
    return not unanswered & answered


def whole(said: Sequence[Said], cut: int, awaited: Collection[str] = ()) -> int:
    """Return the nearest cut, at or before this one, that splits no tool exchange."""
    return next(at for at in range(cut, -1, -1) if is_whole(said, at, awaited))


def undone(said: Sequence[Said], turns: int) -> int:
    """Return the length of a history after an undo of this many turns."""
    left = list(said)
    for _ in range(turns):
        while len(left) > 1 and left[-1].message.role == "summary":
            left.pop()
        if left:
            _take_back(left)
    return len(left)


def _take_back(left: list[Said]) -> None:
    """Undo the newest turn, or the newest question outside turns and what follows it."""
    turn = left[-1].turn
    if turn is not None:
        # Other writers may have appended in between, outside of turns.
        while any(one.turn == turn for one in _behind_other_turns(left, turn)):
            left.pop()
        return
    if not any(one.message.role == "user" for one in _behind_other_turns(left, None)):
        left.pop()
        return
    while left[-1].message.role != "user":
        left.pop()
    left.pop()


def _behind_other_turns(said: Sequence[Said], turn: str | None) -> list[Said]:
    """Return the newest messages that belong to this turn or to none."""
    found: list[Said] = []
    for one in reversed(said):
        if one.turn not in {turn, None}:
            break
        found.append(one)
    return found


def preview(said: Iterable[Said]) -> str | None:
    """Return the text of the first visible user message, else of the first reply."""
    shown = [one.message for one in said]
    shown = [m for m in shown if not any(m.metadata.get(flag) for flag in _NOT_SAID)]
    for role in ("user", "assistant"):
        for message in shown:
            folded = " ".join(message.text.split())[:120]
            if message.role == role and folded:
                return folded
    return None


# ----------------------------------------------------------------------------- one session


@dataclass
class Identity:
    """The identity of a session."""

    key: str | None = None
    title: str | None = None
    by_user: bool = False
    scope: str | None = None
    agent: str | None = None
    model: str | None = None
    cwd: str | None = None
    pinned: bool = False
    archived: bool = False
    goal: Goal | None = None
    metadata: dict[str, JSON] = field(default_factory=dict)
    parent: str | None = None
    relation: Relation | None = None
    trashed: bool = False


@dataclass
class Model:
    """The model of one session."""

    id: str
    who: Identity
    lines: list[Line] = field(default_factory=lambda: [Line(1, "start")])
    redo_stack: list[Line] = field(default_factory=list)
    queue: list[Message] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    spent: list[int] = field(default_factory=list)  # by each turn
    ledgers: list[dict[str, str]] = field(default_factory=list)
    tokens: int = 0
    awaited: set[str] = field(default_factory=set)  # calls of the open turn without a result

    @property
    def line(self) -> Line:
        return self.lines[-1]

    @property
    def said(self) -> list[Said]:
        return self.line.said

    @property
    def records(self) -> list[Kept]:
        return self.line.records

    @property
    def head(self) -> Head:
        return self.line.head

    def all_records(self) -> list[Kept]:
        """Return the records of every branch, each once, in the order of storing."""
        return list({id(one): one for line in self.lines for one in line.records}.values())

    def newest(self, kind: str, key: str | None) -> Kept | None:
        """Return the newest record of a kind and key in the history."""
        named = (one for one in self.records if (one.record.kind, one.record.key) == (kind, key))
        return max(named, key=self.records.index, default=None)

    def record(self, batch: Sequence[Message | Record]) -> Head:
        """Append new messages and records; return the head."""
        for entry in batch:
            if isinstance(entry, Record):
                home = (self.id, self.line.number)
                self.records.append(Kept(entry, len(self.said), home))
            else:
                self.append(entry)
        return self.head

    def forget(self, dropped: Collection[Kept]) -> None:
        """Remove records from every branch."""
        gone = {id(one) for one in dropped}
        for line in self.lines:
            line.records[:] = [one for one in line.records if id(one) not in gone]

    def seqs(self) -> dict[str, int]:
        """Return the seq of every id in the history."""
        return {one.id: seq for seq, one in enumerate(self.said, 1)}

    def ids(self) -> set[str]:
        """Return the ids of every branch."""
        return {one.id for line in self.lines for one in line.said}

    # ------------------------------------------------------------------------------- adding

    def append(self, *messages: Message, turn: int | None = None) -> list[Said]:
        """Append the messages that are not stored yet; return them."""
        here = self.seqs()
        fresh = {m.id: m for m in reversed(messages) if m.id not in here}
        ordered = [fresh.pop(m.id) for m in messages if m.id in fresh]
        name = None if turn is None else f"{self.id}.{turn}"
        return self._place([(message, name) for message in ordered])

    def _place(self, messages: Sequence[tuple[Message, str | None]]) -> list[Said]:
        known = self.ids()
        home = (self.id, self.line.number)
        placed = [Said(bare(message), turn, home) for message, turn in messages]
        for one in placed:
            if one.id not in known:
                self._charge(one)
        self.said.extend(placed)
        if placed:
            self.redo_stack.clear()
        return placed

    def _charge(self, one: Said) -> None:
        spent = (one.message.usage or Usage()).input
        self.tokens += spent
        if one.turn is not None:
            self.spent[int(one.turn.rpartition(".")[2]) - 1] += spent

    # ------------------------------------------------------------------------------- moving

    def locate(self, place: MessageRef | None) -> tuple[Line, int]:
        """Resolve a position: its branch, and the number of messages up to it."""
        if place is None:
            return self.line, len(self.said)
        if isinstance(place, int):
            if place > len(self.said):
                raise MessageNotFound("behind the end")
            return self.line, place
        if isinstance(place, Head):
            if not 1 <= place.branch <= len(self.lines):
                raise MessageNotFound("no such branch")
            line = self.lines[place.branch - 1]
            if place.seq > len(line.said):
                raise MessageNotFound("behind the end of its branch")
            return line, place.seq
        for line in reversed(self.lines):
            for seq, one in enumerate(line.said, 1):
                if one.id == place:
                    return line, seq
        raise MessageNotFound("no such id")

    def start(
        self, line: Line, asked: int, reason: BranchReason, number: int, lowest: int = 0
    ) -> Line:
        """Return a branch that starts at this position, or before the exchange it would split.

        It starts at `lowest` or behind it, also inside an exchange.
        """
        cut = max(lowest, whole(line.said, asked, self.awaited))
        parent = line.said[cut - 1].home if cut else None
        records = [one for one in line.records if one.seq <= cut]
        if records and records[-1].seq == cut:
            parent = records[-1].home
        return Line(number, reason, line.said[:cut], cut, asked, parent, records)

    def _leave(self, line: Line, asked: int, reason: BranchReason, lowest: int = 0) -> None:
        self.lines.append(self.start(line, asked, reason, len(self.lines) + 1, lowest))

    def rewind(self, place: MessageRef, *, exact: bool = False) -> None:
        line, seq = self.locate(place)
        records = [one for one in line.records if one.seq <= seq]
        if line.said[:seq] != self.said or records != self.records:
            self.redo_stack.append(self.line)
            self._leave(line, seq, "rewind", seq if exact else 0)

    def pop(self) -> None:
        if self.said:
            self.rewind(len(self.said) - 1, exact=True)

    def undo(self, turns: int) -> None:
        if not self.said:
            raise BadQuery("nothing to undo")
        self.redo_stack.append(self.line)
        self._leave(self.line, undone(self.said, turns), "undo")

    def redo(self) -> None:
        if not self.redo_stack:
            raise BadQuery("nothing to redo")
        target = self.redo_stack.pop()
        self._leave(target, len(target.said), "redo")

    def clear(self) -> None:
        if self.said or self.records:
            self.redo_stack.append(self.line)
            self.lines.append(Line(len(self.lines) + 1, "clear"))

    def has_grown_to(
        self, messages: Sequence[Message], seen: Head | None, keep: MessageRef | None = None
    ) -> bool:
        """True if the history grew from the expected head, and has all of these behind `keep`."""
        if seen is None or seen.branch != self.line.number:
            return False
        line, kept = self._base(keep)
        wanted = self._wanted(line, kept, messages)
        if line.said[:kept] != self.said[:kept]:
            return False
        return seen.seq < kept + len(wanted) == kept + _alike(line.said[kept:], wanted)

    def length_with(self, messages: Sequence[Message], keep: MessageRef | None) -> int:
        """Return the length of the history once these messages are behind `keep`."""
        line, kept = self._base(keep)
        return kept + len(self._wanted(line, kept, messages))

    def _base(self, keep: MessageRef | None) -> tuple[Line, int]:
        return (self.line, 0) if keep is None else self.locate(keep)

    def _wanted(self, line: Line, kept: int, messages: Sequence[Message]) -> list[Message]:
        """Return the messages to place, without those that what is kept has."""
        there = {one.id: one.message for one in line.said[:kept]}
        for message in messages:
            if there.get(message.id, bare(message)) != bare(message):
                raise IdConflict(message.id, 0)
        wanted = {message.id: message for message in messages}
        return [message for name, message in wanted.items() if name not in there]

    def replace(self, messages: Sequence[Message], keep: MessageRef | None = None) -> None:
        line, kept = self._base(keep)
        wanted = self._wanted(line, kept, messages)
        waiting = {message.id: bare(message) for message in self.queue}
        for message in wanted:
            if waiting.get(message.id, bare(message)) != bare(message):
                raise IdConflict(message.id, 0)
        self._replace(line, kept, wanted)

    def _replace(self, line: Line, kept: int, wanted: Sequence[Message]) -> None:
        end = kept + _alike(line.said[kept:], wanted)
        mine = [
            one for line in self.lines for one in line.said if one.home == (self.id, line.number)
        ]
        turns = {one.id: one.turn for one in mine}
        records = [one for one in line.records if one.seq <= end]
        if line.said[:end] != self.said or records != self.records:
            self._leave(line, end, "replace", kept)
            self.redo_stack.clear()
        rest = wanted[len(self.said) - kept :]
        self._place([(message, turns.get(message.id)) for message in rest])

    def amend(self, place: MessageRef, parts: tuple[Part, ...]) -> None:
        line, seq = self.locate(place)
        if not seq or line.said[:seq] != self.said[:seq]:
            raise MessageNotFound("not in the current history")
        first, *tail = [one.message for one in self.said[seq - 1 :]]
        if first.status == "erased" or first.role == "summary":
            raise BadQuery("cannot be amended")
        behind = [one for one in self.records if one.seq >= seq]
        earlier = self.line
        self._replace(earlier, seq - 1, [msgspec.structs.replace(first, parts=parts), *tail])
        if self.line is not earlier:
            home = (self.id, self.line.number)
            self.records.extend(Kept(one.record, one.seq, home) for one in behind)

    def covered(self, upto: MessageRef | None) -> str:
        """Return the last message that a summary covers."""
        line, seq = self.locate(upto)
        if line.said[:seq] != self.said[:seq]:
            raise MessageNotFound("not in the current history")
        cut = whole(self.said, seq, self.awaited)
        if not cut:
            raise BadQuery("nothing to summarize")
        return self.said[cut - 1].id

    def summarize(self, text: str, summary_id: str, covers: str) -> None:
        parts = (Text(text),)
        self.append(Message(id=summary_id, role="summary", parts=parts, covers=covers))


# ----------------------------------------------------------------------------- all of them


@dataclass
class Purged:
    """What a purge keeps of a session while some of its messages are shared."""

    parent: str | None
    relation: Relation | None
    seq: int
    starts: dict[int, tuple[str, int] | None]  # the branch that each branch starts on


@dataclass
class World:
    """The model of a store."""

    models: dict[str, Model] = field(default_factory=dict)
    purged: dict[str, Purged] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)  # by activity, the newest last

    def add(self, model: Model) -> None:
        self.models[model.id] = model
        self.order.append(model.id)

    def touch(self, model: Model) -> None:
        """Make it the newest by activity."""
        self.order.remove(model.id)
        self.order.append(model.id)

    def listed(self, *, trashed: bool = False) -> list[str]:
        """Return the ids of the sessions, newest first."""
        return [id for id in reversed(self.order) if self.models[id].who.trashed == trashed]

    def latest(self) -> str | None:
        found = (id for id in self.listed() if self.models[id].who.relation != "delegate")
        return next(found, None)

    def key_holder(self, key: str) -> Model | None:
        """Return the session with a key; trashed ones have none."""
        models = (m for m in self.models.values() if m.who.key == key and not m.who.trashed)
        return next(models, None)

    def stored(self) -> dict[int, Said]:
        """Return every stored message, once."""
        return {id(one): one for model in self.models.values() for one in _all(model)}

    def records(self) -> dict[int, Kept]:
        """Return every stored record, once."""
        return {id(one): one for model in self.models.values() for one in model.all_records()}

    def is_shared(self, record: Kept, model: Model) -> bool:
        """True if another session has this record, too."""
        others = (other for other in self.models.values() if other is not model)
        return any(one is record for other in others for one in other.all_records())

    def branches(self) -> int:
        """Count the branches, including shared ones of purged sessions."""
        kept = {at for model in self.models.values() for at in self._origins(model)}
        shared = [at for at in kept if at[0] in self.purged]
        return sum(len(model.lines) for model in self.models.values()) + len(shared)

    def has_branch(self, session_id: str, number: int) -> bool:
        """True if a branch of a purged session is still shared."""
        return any((session_id, number) in self._origins(m) for m in self.models.values())

    def is_husk(self, session_id: str) -> bool:
        """True if branches of a purged session are still shared."""
        return bool(self.sharing(session_id))

    def sharing(self, session_id: str) -> set[str]:
        """Return the ids of the sessions whose histories run through branches of this one."""
        return {
            model.id
            for model in self.models.values()
            if any(owner == session_id for owner, _ in self._origins(model))
        }

    def _origins(self, model: Model) -> set[tuple[str, int]]:
        """Return the branches that those of a session start on, directly or not."""
        pending = [line.parent for line in model.lines]
        found: set[tuple[str, int]] = set()
        while pending:
            at = pending.pop()
            if at is None or at in found:
                continue
            found.add(at)
            owner, number = at
            if owner in self.models:
                pending.append(self.models[owner].lines[number - 1].parent)
            else:
                pending.append(self.purged[owner].starts[number])
        return found

    def purge(self, model: Model) -> tuple[int, list[Said]]:
        """Purge a session; return how many messages went, and which of its own stay for others."""
        before = len(self.stored())
        del self.models[model.id]
        self.order.remove(model.id)
        self.purged[model.id] = Purged(
            model.who.parent,
            model.who.relation,
            model.lines[0].fork_seq,
            {line.number: line.parent for line in model.lines},
        )
        after = self.stored()
        kept = [one for one in after.values() if one.home[0] == model.id]
        return before - len(after), kept

    def copies(self, model: Model) -> list[Said]:
        """Return the copies of its messages that derived sessions stored again."""
        mine = {one.id for one in _all(model) if one.home[0] == model.id}
        descent = self._descent(model.id)
        stored = self.stored().values()
        return [one for one in stored if one.home[0] in descent and one.id in mine]

    def versions(self, model: Model, named: Said) -> list[Said]:
        """Return all versions of a message in a lineage, except those erased before.

        The same id is the same message if it says the same, or if one session has both.
        """
        lineage = self._lineage(model.id)
        others = [
            one
            for one in self.stored().values()
            if one.id == named.id and one.home[0] in lineage and one is not named
        ]
        found = [named]
        while more := [one for one in others if one not in found and self._is_one_of(one, found)]:
            found += more
        return [one for one in found if one.message.status != "erased"]

    def _is_one_of(self, one: Said, found: list[Said]) -> bool:
        said = one.message.status != "erased" and any(f.message == one.message for f in found)
        return said or bool(self.holders([one]) & self.holders(found))

    def _lineage(self, session_id: str) -> set[str]:
        """Return the ids of the whole lineage: all descendants of its oldest known ancestor."""
        parents, top = self._parents(), session_id
        while (above := parents.get(top)) in parents and above is not None:
            top = above
        return {top} | self._descent(top)

    def _parents(self) -> dict[str, str | None]:
        parents = {name: model.who.parent for name, model in self.models.items()}
        husks = {name: left.parent for name, left in self.purged.items() if self.is_husk(name)}
        return parents | husks

    def _descent(self, session_id: str) -> set[str]:
        """Return the ids of the known descendants of a session."""
        parents = self._parents()
        found = {session_id}
        while more := {name for name, up in parents.items() if up in found} - found:
            found |= more
        return found - {session_id}

    def holders(self, said: Iterable[Said]) -> set[str]:
        """Return the ids of the sessions that have any of these messages."""
        those = {id(one) for one in said}
        return {m.id for m in self.models.values() if any(id(one) in those for one in _all(m))}

    def dependants(self, session_id: str) -> set[str]:
        """Return the ids of the other sessions that have messages of this one."""
        mine = [one for one in self.stored().values() if one.home[0] == session_id]
        return self.holders(mine) - {session_id}


def _alike(said: Sequence[Said], messages: Sequence[Message]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(said, messages, strict=False)
    return [*(one.message == bare(two) for one, two in pairs), False].index(False)


def _all(model: Model) -> Iterator[Said]:
    for line in model.lines:
        yield from line.said
