"""Stores that move a head wrongly, each in one way seen in a real store."""

from collections.abc import Sequence

import msgspec

from holdfast.errors import HeadMoved
from holdfast.operations import head_moves
from holdfast.operations.append import check_expected_head
from holdfast.operations.session_changes import SessionUpdate
from holdfast.proof.checker import Branch
from holdfast.session import Session
from holdfast.storage.protocol import Operation, Transaction
from holdfast.storage.rows import BranchRow, BranchStart, HeadRow
from holdfast.values import Head, Message
from tests.mutants.head_move_workload import Heads
from tests.mutants.stores import pause, replaced


class Patched(Heads):
    """A healthy store in which one part of the moves is replaced while it is used."""

    name: str

    def __init__(self) -> None:
        self._patch = replaced(head_moves, self.name, self.broken())
        self._patch.__enter__()
        super().__init__()

    def broken(self) -> object:
        """Return the broken part."""
        raise NotImplementedError

    def close(self) -> None:
        super().close()
        self._patch.__exit__(None, None, None)


class ForgetsCompare(Patched):
    """It ignores the expected head: an undo removes messages that its caller has not seen."""

    name = "check_expected_head"

    def broken(self) -> object:
        return lambda expect, actual: None


class RefusesAndMoves(Patched):
    """It moves and then raises `HeadMoved`: the caller retries."""

    name = "_move"

    def broken(self) -> object:
        healthy = head_moves._move  # noqa: SLF001 - what is broken here

        def move(
            session: int,
            decide: head_moves.ChooseStart,
            token: str,
            expect: Head | None,
            update: SessionUpdate | None,
        ) -> Operation[Head]:
            return healthy(session, decide, token, None, update)

        return move

    def undo(self, turns: int, *, expect: Head | None = None) -> Head:
        before = self.head()
        after = super().undo(turns, expect=expect)
        check_expected_head(expect, before)
        return after

    def rewind(self, to: object, *, expect: Head | None = None) -> Head:
        before = self.head()
        after = super().rewind(to, expect=expect)  # type: ignore[arg-type]
        check_expected_head(expect, before)
        return after


class ReusesNumbers(Patched):
    """It has a current branch and an old one: every move opens branch 2."""

    name = "_open_branch"

    def broken(self) -> object:
        healthy = head_moves._open_branch  # noqa: SLF001 - what is broken here

        def leave(tx: Transaction, head: HeadRow, start: BranchStart) -> HeadRow:
            return healthy(tx, msgspec.structs.replace(head, branch_no=1), start)

        return leave


class RedoesTheFirst(Patched):
    """Redo goes to the first undone state, whatever was undone last."""

    name = "redo_target"

    def broken(self) -> object:
        def target(newest_first: Sequence[BranchRow]) -> BranchRow:
            return list(newest_first)[-1]

        return target


class UndoesOneMessage(Patched):
    """Undo removes a message, not a turn: a question stays without its answer."""

    name = "seq_before_turns"

    def broken(self) -> object:
        return lambda tx, head, turns: max(0, head.seq - turns)


# ------------------------------------------------------------------------------ wrong by design


class Careless(Heads):
    """It checks and then acts without a lock: an append can come in between."""

    def __init__(self) -> None:
        super().__init__()
        self._between = 0

    def say(self, *messages: Message, expect: Head | None = None) -> Head:
        pause(lambda: self._between > 0)
        return super().say(*messages, expect=expect)

    def let_in(self, before: Head) -> None:
        """Wait for a concurrent append."""
        self._between += 1
        pause(lambda: self.head() != before)
        self._between -= 1


class LosesRacingAppend(Careless):
    """It reads a history, cuts its end and writes it back: appends in between are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[str] = set()

    def undo(self, turns: int, *, expect: Head | None = None) -> Head:
        before, seen = self.head(), {message.id for message in self.read()}
        self.let_in(before)
        between = {message.id for message in self.read()} - seen
        head = super().undo(turns, expect=expect)
        self.lost |= between
        return head

    def branches(self, session: Session) -> list[Branch]:
        return [_without(branch, self.lost) for branch in super().branches(session)]


def _without(branch: Branch, lost: set[str]) -> Branch:
    left = [message for message in branch.history if message.id not in lost]
    kept = tuple(msgspec.structs.replace(m, seq=seq) for seq, m in enumerate(left, 1))
    shared = sum(m.id not in lost for m in branch.history[: branch.fork_seq])
    return msgspec.structs.replace(branch, history=kept, fork_seq=shared)


class CopiesHistories(Heads):
    """It starts a branch with copies: every message is stored again in full."""

    def branches(self, session: Session) -> list[Branch]:
        found = super().branches(session)
        return [msgspec.structs.replace(branch, fork_seq=0) for branch in found]


class DropsTheTail(Heads):
    """It drops abandoned messages: of an old branch only what the next one shares is kept."""

    def branches(self, session: Session) -> list[Branch]:
        found = super().branches(session)
        return [*map(_shortened, found, found[1:]), found[-1]]


def _shortened(branch: Branch, following: Branch) -> Branch:
    kept = max(branch.fork_seq, following.fork_seq)
    return msgspec.structs.replace(branch, history=branch.history[:kept])


class ReplacesStaleHead(Careless):
    """It compares the head, waits, and replaces: messages appended meanwhile are not compared."""

    def replace(self, messages: Sequence[Message], *, expect: Head | None = None) -> Head:
        before = self.head()
        check_expected_head(expect, before)
        self.let_in(before)
        return super().replace(messages)


class ForksStaleHead(Heads):
    """It forks a cached, stale head."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: Head | None = None

    def fork(self, *, expect: Head | None = None) -> str:
        if self.cached is None:
            self.cached = self.head()
        return self.session().fork(self.cached, expect=expect).id


class ForgetsMoves(Heads):
    """It acknowledges an undo, and forgets it."""

    def undo(self, turns: int, *, expect: Head | None = None) -> Head:
        head = self.head()
        if expect is not None and expect != head:
            raise HeadMoved(expect, head)
        return Head(head.branch + 1_000, max(0, head.seq - 2 * turns))


class CachesHistories(Heads):
    """It returns cached histories after the head has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: tuple[int, list[Message]] | None = None
        self.age = 0

    def look(self) -> tuple[int, list[Message]]:
        if self.cache is None or self.age % 4 == 0:
            self.cache = super().look()
        self.age += 1
        return self.cache


class RenamesBranches(Heads):
    """It skips branch numbers now and then, as a database sequence does."""

    def branches(self, session: Session) -> list[Branch]:
        found = super().branches(session)
        return [msgspec.structs.replace(b, number=b.number + (b.number > 3)) for b in found]
