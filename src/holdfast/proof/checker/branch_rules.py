"""The branch rules: whether a session's branches can result from a serial order of operations.

The model. At any time a session is in one *state*: its current branch, and that branch's length. An
append leads to a longer state of the same branch; a move leads from the end of a branch to the
start of the next one. So the states of a session are totally ordered, by (branch, length), and the
head that a write returned is the state it produced or found: the returned heads give the serial
order. It remains to check that each move, applied to the state before it, produces the stored
branch; that the expected head was that state; and that the order agrees with real time.

A write whose outcome is not known may have opened a branch that no other write explains.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TypeAlias

import msgspec

from holdfast.proof.checker.event_log import APPEND_OPERATIONS, Acked, Branch, Invoked, Read, Stored
from holdfast.proof.checker.session_log import SessionLog
from holdfast.proof.checker.verdict import Finding, ViolationKind

State: TypeAlias = tuple[int, int]


class MoveTarget(msgspec.Struct, frozen=True):
    """The target of a move: a history, and how many of its messages are kept."""

    history: Sequence[Stored]
    length: int


# --- the effect of each operation on a state ----------------------------------------------------


def _target(h: SessionLog, branch: Branch, invoked: Invoked) -> MoveTarget | None:
    """Return the target of this write at the end of the previous branch; None if invalid."""
    before = h.branches[branch.number - 2].history
    match invoked.operation:
        case "clear":
            return MoveTarget((), 0)
        case "undo":
            return MoveTarget(before, length_after_undo(before, invoked.turns)) if before else None
        case "redo":
            target = _redo_targets(h.branches).get(branch.number)
            return None if target is None else MoveTarget(target.history, len(target.history))
        case "replace":
            return MoveTarget(before, _common_prefix(before, invoked))
        case "rewind":
            return _resolve_target(h, _end(h.branches[branch.number - 2]), invoked)
    return None


def _resolve_target(h: SessionLog, state: State, invoked: Invoked) -> MoveTarget | None:
    """Resolve the target position of a write in this state of the session."""
    number, length = state
    here = h.branches[number - 1].history[:length]
    histories = [*(branch.history for branch in h.branches[: number - 1]), here]
    if isinstance(invoked.to, str):
        for history in reversed(histories):
            for seq, message in enumerate(history, 1):
                if message.id == invoked.to:
                    return MoveTarget(history, seq)
        return None
    if invoked.to_branch is not None:
        if invoked.to_branch > number:
            return None
        here = histories[invoked.to_branch - 1]
    return None if invoked.to is None or invoked.to > len(here) else MoveTarget(here, invoked.to)


def length_after_undo(history: Sequence[Stored], turns: int) -> int:
    """Return the length of a history after an undo of this many turns.

    A turn is its messages or, outside turns, a user's message and what follows it; summaries belong
    to what precedes them.
    """
    length = len(history)
    for _ in range(turns):
        while length > 1 and history[length - 1].role == "summary":
            length -= 1
        if length:
            length = _turn_start(history[:length])
    return length


def _turn_start(history: Sequence[Stored]) -> int:
    turn = history[-1].turn
    first = len(history)
    while first and history[first - 1].turn in {turn, None}:
        first -= 1
    # No message from `first` on belongs to another turn.
    if turn is not None:
        return next(at for at in range(first, len(history)) if history[at].turn == turn)
    by_user = [at for at in range(first, len(history)) if history[at].role == "user"]
    return by_user[-1] if by_user else len(history) - 1


def _redo_targets(branches: Sequence[Branch]) -> dict[int, Branch | None]:
    """Map each branch that a redo opened to the branch whose end it restores: a stack."""
    undone: list[Branch] = []
    targets: dict[int, Branch | None] = {}
    for before, branch in pairwise(branches):
        if len(before.history) > before.fork_seq:
            undone.clear()
        if branch.reason == "redo":
            targets[branch.number] = undone.pop() if undone else None
        elif branch.reason == "replace":
            undone.clear()
        else:
            undone.append(before)
    return targets


def _common_prefix(history: Sequence[Stored], invoked: Invoked) -> int:
    """Return the length of the common prefix of a history and the messages of a write."""
    wanted = zip(invoked.ids, invoked.digests, strict=True)
    pairs = zip(history, wanted, strict=False)
    return [*((m.id, m.digest) == want for m, want in pairs), False].index(False)


def _same_messages(one: Sequence[Stored], two: Sequence[Stored]) -> bool:
    return [(m.id, m.digest) for m in one] == [(m.id, m.digest) for m in two]


def _produces(h: SessionLog, branch: Branch, invoked: Invoked) -> bool:
    """True if this write, applied to the end of the previous branch, produces this branch."""
    start = _target(h, branch, invoked)
    if start is None or branch.asked_seq != start.length or branch.fork_seq > start.length:
        return False
    tools = any(message.role == "tool" for message in start.history)
    if branch.fork_seq < start.length and not tools:
        return False  # A move goes further back only to keep a tool exchange whole.
    if not _same_messages(branch.history[: branch.fork_seq], start.history[: branch.fork_seq]):
        return False
    return invoked.operation != "replace" or _common_prefix(branch.history, invoked) == len(
        invoked.ids
    )


def _expected(invoked: Invoked, state: State) -> bool:
    return invoked.expect is None or (invoked.expect_branch, invoked.expect) == state


def _can_have_opened(h: SessionLog, branch: Branch, invoked: Invoked) -> bool:
    """True if this write can have opened this branch."""
    if branch.number == 1 or invoked.operation != branch.reason:
        return False
    before = h.branches[branch.number - 2]
    return _expected(invoked, _end(before)) and _produces(h, branch, invoked)


def _end(branch: Branch) -> State:
    return branch.number, len(branch.history)


def _was_no_op(h: SessionLog, invoked: Invoked, state: State) -> bool:
    """True if the session was already at the target of this write, which changed nothing."""
    branch = h.branches[state[0] - 1]
    here = branch.history[: state[1]]
    if invoked.operation == "replace":
        # The branch had grown, or grew by this write, from the expected head.
        grown = invoked.expect is None or invoked.expect_branch == branch.number
        return grown and _common_prefix(branch.history, invoked) == len(invoked.ids) == state[1]
    if not _expected(invoked, state) or state[1] < branch.fork_seq:
        return False
    if invoked.operation == "clear":
        return not here
    if invoked.operation != "rewind":
        return False
    start = _resolve_target(h, state, invoked)
    return start is not None and _same_messages(start.history[: start.length], here)


# --- the rules ----------------------------------------------------------------------------------


def _gap(h: SessionLog) -> Iterator[Finding]:
    """Find branches that are not numbered 1, 2, 3 ..., or share more messages than they have."""
    for number, branch in enumerate(h.branches, 1):
        if branch.number != number:
            yield h.finding(
                ViolationKind.GAP, f"branch {branch.number} is in the position of branch {number}"
            )
        if branch.fork_seq > len(branch.history):
            detail = f"branch {number} shares {branch.fork_seq} messages and has fewer"
            yield h.finding(ViolationKind.GAP, detail)


def _copied(h: SessionLog) -> Iterator[Finding]:
    """Find messages that are stored more often than they were written: copied, not shared."""
    for id_, times in Counter(message.id for message in h.stored).items():
        writers = len(h.writers.get(id_, ()))
        if times > max(writers, 1):
            detail = f"{id_!r} is stored {times} times and was written {writers} times"
            yield h.finding(ViolationKind.DUPLICATE, detail, id_)


def _moves(h: SessionLog) -> Iterator[tuple[Invoked, Acked, State]]:
    """Yield the acknowledged moves with the head that each returned."""
    for invoked, ack in h.acks():
        if (
            invoked.operation not in APPEND_OPERATIONS
            and ack.branch is not None
            and ack.last is not None
        ):
            yield invoked, ack, (ack.branch, ack.last)


def _missing_head(h: SessionLog) -> Iterator[Finding]:
    """Find acknowledged heads that are not on any branch."""
    for invoked, ack in h.acks():
        if ack.branch is None or ack.last is None or _exists(h, (ack.branch, ack.last)):
            continue
        detail = f"{invoked.operation} (op {ack.op} of {ack.worker!r}) returned the head "
        yield h.finding(
            ViolationKind.LOST, f"{detail}{ack.branch}:{ack.last}, which does not exist"
        )


def _wrong_acked_head(h: SessionLog) -> Iterator[Finding]:
    """Find appends that returned a head at which none of their messages is stored."""
    for invoked, ack in h.acks():
        if invoked.operation not in APPEND_OPERATIONS or ack.branch is None or ack.last is None:
            continue
        if ack.last and _exists(h, (ack.branch, ack.last)):
            at = h.branches[ack.branch - 1].history[ack.last - 1]
            if at.id not in invoked.ids:
                detail = (
                    f"{invoked.ids[-1]!r} (op {ack.op} of {ack.worker!r}) was acknowledged with "
                )
                detail += f"the head {ack.branch}:{ack.last}, where {at.id!r} is stored"
                yield h.finding(ViolationKind.REORDER, detail, *invoked.ids)


def _exists(h: SessionLog, state: State) -> bool:
    return 1 <= state[0] <= len(h.branches) and state[1] <= len(h.branches[state[0] - 1].history)


def _returned_twice(h: SessionLog) -> Iterator[Finding]:
    """Find a branch that several moves returned although each of them opens one."""
    returned = Counter(
        state[0] for invoked, _, state in _moves(h) if invoked.operation in {"undo", "redo"}
    )
    for number, times in returned.items():
        if times > 1:
            yield h.finding(
                ViolationKind.DUPLICATE, f"branch {number} was returned to {times} moves"
            )


def _wrong_move(h: SessionLog) -> Iterator[Finding]:
    """Find moves that, applied to the state before, do not produce what is stored."""
    for invoked, ack, state in _moves(h):
        if not _exists(h, state):
            continue
        branch = h.branches[state[0] - 1]
        opened = _can_have_opened(h, branch, invoked) and state[1] == _length_after_move(
            branch, invoked
        )
        if not opened and not _was_no_op(h, invoked, state):
            detail = (
                f"{invoked.operation} (op {ack.op} of {ack.worker!r}, head {state[0]}:{state[1]}) "
            )
            detail += f"does not lead from the end of branch {state[0] - 1} to what is stored"
            yield h.finding(ViolationKind.WRONG_MOVE, detail)


def _length_after_move(branch: Branch, invoked: Invoked) -> int:
    """Return the length of the history right after a move opened this branch."""
    return len(invoked.ids) if invoked.operation == "replace" else branch.fork_seq


def _unexplained(h: SessionLog) -> Iterator[Finding]:
    """Find branches that no move can have opened."""
    claims: dict[int, list[tuple[Invoked, State]]] = {}
    for invoked, _, state in _moves(h):
        claims.setdefault(state[0], []).append((invoked, state))
    unknown: list[Branch] = []
    for branch in h.branches[1:]:
        claimed = [(b, s) for b, s in claims.get(branch.number, []) if b.operation == branch.reason]
        explained = any(_can_have_opened(h, branch, invoked) for invoked, _ in claimed)
        # A wrong claim is found by `_wrong_move`.
        if not explained and all(_was_no_op(h, invoked, state) for invoked, state in claimed):
            unknown.append(branch)
    for branch in _unmatched(h, unknown):
        detail = f"no recorded operation can have opened branch {branch.number} ({branch.reason})"
        yield h.finding(
            ViolationKind.WRONG_MOVE if branch.number in claims else ViolationKind.INVENTED, detail
        )


def _unmatched(h: SessionLog, branches: Sequence[Branch]) -> Iterator[Branch]:
    """Yield the branches not explained even if each write of unknown outcome opened one."""
    writes = [w.invoked for w in h.writes if not w.refused and not isinstance(w.end, Acked)]
    taken: dict[int, Branch] = {}

    def match(branch: Branch, tried: set[int]) -> bool:
        for at, invoked in enumerate(writes):
            if at in tried or not _can_have_opened(h, branch, invoked):
                continue
            tried.add(at)
            # The branch that took this write may be explained by another one.
            if at not in taken or match(taken[at], tried):
                taken[at] = branch
                return True
        return False

    for branch in branches:
        if not match(branch, set()):
            yield branch


def _out_of_order(h: SessionLog) -> Iterator[Finding]:
    """Find states that precede one that was settled before the operation for them began."""
    furthest: State = (0, 0)
    settled = sorted(_settled_states(h), key=itemgetter(0))
    cursor = 0
    for at, latest, what, kind in sorted(_claimed_states(h), key=itemgetter(0)):
        while cursor < len(settled) and settled[cursor][0] < at:
            furthest = max(furthest, settled[cursor][1])
            cursor += 1
        if latest < furthest:
            detail = f"{what} began when the session was already at {furthest[0]}:{furthest[1]}"
            yield h.finding(kind, detail)


def _settled_states(h: SessionLog) -> Iterator[tuple[int, State]]:
    """Yield the times by which a session was known to have reached a state."""
    for invoked, ack in h.acks():
        if ack.branch is not None and ack.last is not None and invoked.operation != "fork":
            state = (ack.branch, ack.last)
            if _exists(h, state):
                yield ack.at, max(state, (ack.branch, h.branches[ack.branch - 1].fork_seq))
    for read in _whole_reads(h):
        yield read.ended, (read.branch or 0, len(read.ids))


def _claimed_states(h: SessionLog) -> Iterator[tuple[int, State, str, ViolationKind]]:
    """Yield the times at which writes and reads began, with the latest state each produced or saw.

    An append may be a retry that only found its messages: then the state is not known, only that
    the session was on that branch.
    """
    for invoked, ack in h.acks():
        if ack.branch is None or ack.last is None or not _exists(h, (ack.branch, ack.last)):
            continue
        alone = invoked.operation not in APPEND_OPERATIONS or len(h.writers[invoked.ids[-1]]) == 1
        latest = (ack.branch, ack.last) if alone else _end(h.branches[ack.branch - 1])
        what = f"{invoked.operation} (op {ack.op} of {ack.worker!r}, head {ack.branch}:{ack.last})"
        yield invoked.at, latest, what, ViolationKind.REORDER
    for read in _whole_reads(h):
        what = f"a read of {read.branch}:{len(read.ids)} by {read.worker!r}"
        yield read.began, (read.branch or 0, len(read.ids)), what, ViolationKind.STALE_READ


def _whole_reads(h: SessionLog) -> Iterator[Read]:
    for read in h.reads:
        if read.complete and read.branch is not None and read.branch <= len(h.branches):
            yield read


def _torn_read(h: SessionLog) -> Iterator[Finding]:
    """Find reads of a branch that return fewer messages than it ever had."""
    for read in _whole_reads(h):
        branch = h.branches[(read.branch or 1) - 1]
        if not branch.fork_seq <= len(read.ids):
            detail = f"a read by {read.worker!r} returned {len(read.ids)} messages of branch "
            detail += f"{branch.number}, which started with {branch.fork_seq}"
            yield h.finding(ViolationKind.STALE_READ, detail)


_Rule: TypeAlias = Callable[[SessionLog], Iterator[Finding]]
_ALWAYS: tuple[_Rule, ...] = (_gap, _copied, _returned_twice)
# These compare states, and need branches that are numbered without gaps.
_BY_STATE: tuple[_Rule, ...] = (
    _missing_head,
    _wrong_acked_head,
    _wrong_move,
    _unexplained,
    _out_of_order,
    _torn_read,
)


def rules(h: SessionLog) -> tuple[_Rule, ...]:
    """Return the rules that apply to a session."""
    if not h.moves:
        return ()
    return _ALWAYS if any(_gap(h)) else (*_ALWAYS, *_BY_STATE)


# --- forks: rules over two sessions -------------------------------------------------------------


def fork_findings(histories: Mapping[str, SessionLog]) -> Iterator[Finding]:
    """Find forks that do not begin with a state of their parent at the time of the fork."""
    for h in histories.values():
        for invoked, ack in h.acks():
            if invoked.operation != "fork" or ack.child is None or any(_gap(h)):
                continue
            child = histories.get(ack.child)
            if child is None or not child.branches:
                yield h.finding(
                    ViolationKind.LOST, f"the fork {ack.child!r} (op {ack.op}) does not exist"
                )
            elif not any(_is_fork(h, child, invoked, state) for state in _states(h, invoked)):
                detail = f"the fork {ack.child!r} (op {ack.op} of {ack.worker!r}) does not begin "
                yield h.finding(
                    ViolationKind.WRONG_MOVE, f"{detail}with a state of its parent at that time"
                )


def _states(h: SessionLog, invoked: Invoked) -> Iterator[State]:
    """Yield the states a session may have been in since this write began."""
    furthest = max((state for at, state in _settled_states(h) if at < invoked.at), default=(0, 0))
    for branch in h.branches:
        for length in range(branch.fork_seq, len(branch.history) + 1):
            if (branch.number, length) >= furthest and _expected(invoked, (branch.number, length)):
                yield branch.number, length


def _is_fork(h: SessionLog, child: SessionLog, invoked: Invoked, state: State) -> bool:
    """True if a session begins as a fork of this state would."""
    first = child.branches[0]
    history: Sequence[Stored] = h.branches[state[0] - 1].history[: state[1]]
    requested: int | None = len(history)
    if invoked.to is not None:
        start = _resolve_target(h, state, invoked)
        history, requested = ((), None) if start is None else (start.history, start.length)
    shares = _same_messages(first.history[: first.fork_seq], history[: first.fork_seq])
    return first.asked_seq == requested and first.fork_seq <= first.asked_seq and shares
