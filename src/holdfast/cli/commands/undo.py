"""`holdfast undo`, `redo`, `rewind`, `clear`: move the end of a history.

No message is changed or lost: each command opens a new branch at an earlier message, and the
abandoned messages stay on theirs. Branches are numbered in the order in which they were opened, so
the branch before the new one is the abandoned one; the output is therefore correct even if another
process wrote meanwhile. Each command prints how to go back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import click

import holdfast
from holdfast.cli import params
from holdfast.cli.command import command
from holdfast.cli.errors import hint
from holdfast.cli.output.humanize import count
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import command_line
from holdfast.cli.output.screen import screen
from holdfast.cli.store_access import open_existing
from holdfast.errors import BadQuery
from holdfast.values import BranchInfo, Head


class HeadMove(NamedTuple):
    """A move of the head: the abandoned branch, the new branch, and the seq it starts at."""

    session: holdfast.Session
    previous: BranchInfo
    current: BranchInfo
    seq: int

    @property
    def is_noop(self) -> bool:
        """True if the history ended there already, so that no branch was opened."""
        return self.previous is self.current


@command(
    "holdfast undo support-42",
    "holdfast undo support-42 -n 2",
    "holdfast undo support-42 && holdfast redo support-42",
)
@click.argument("ref")
@click.option(
    "--turns",
    "-n",
    default=1,
    type=click.IntRange(min=1),
    show_default=True,
    help="How many turns; at most all are undone.",
)
def undo(*, ref: str, turns: int, store: str | None, as_json: bool) -> None:
    """Undo the last turns.

    A turn is a user's message and all that followed from it. `holdfast redo` brings it back, until
    something new is appended; after that, `holdfast tree` shows where it is.
    """
    move = _move(store, ref, lambda session: session.undo(turns))
    taken = _span(move.seq + 1, move.previous.seq)
    where = f"the history ends at {move.seq}" if move.seq else "the history is empty"
    _print_result(move, f"undone {taken}, {where}; {_redo(move, store)}", as_json=as_json)


@command(
    "holdfast redo support-42",
    "holdfast redo support-42 --json",
)
@click.argument("ref")
def redo(*, ref: str, store: str | None, as_json: bool) -> None:
    """Reverse the last undo, rewind or clear.

    Several of them are reversed one by one, the last one first. After a new message is appended
    there is nothing to redo: use `holdfast tree` and `holdfast rewind REF N --branch B`.
    """
    move = _move(store, ref, lambda session: session.redo())
    target = str(move.previous.seq), "--branch", str(move.previous.number)
    back = command_line("rewind", move.session, *target, store=store)
    _print_result(move, f"redone, the history ends at {move.seq}; undo: {back}", as_json=as_json)


@command(
    "holdfast rewind support-42 5",
    "holdfast rewind support-42 5 --branch 1   # also to an earlier branch",
    "holdfast rewind support-42 5 --json",
)
@click.argument("ref")
@click.argument("to", metavar="MESSAGE")
@click.option(
    "--branch", "-b", type=click.IntRange(min=1), help="The branch on which that number is."
)
def rewind(*, ref: str, to: str, branch: int | None, store: str | None, as_json: bool) -> None:
    """Go back to an earlier message.

    MESSAGE is the number of the message that becomes the last one (`holdfast show` lists them), or
    its id; write id:7 for an id that looks like a number. Inside a tool call the history goes back
    to before the call.
    """
    position = params.parse_position(to, branch)
    move = _move(store, ref, lambda session: session.rewind(position))
    result = f"rewound to {move.seq}{cut_note(move.current)}; {_redo(move, store)}"
    _print_result(
        move, f"it ends at {move.seq} already" if move.is_noop else result, as_json=as_json
    )


@command(
    "holdfast clear support-42",
    "holdfast clear support-42 && holdfast redo support-42",
)
@click.argument("ref")
def clear(*, ref: str, store: str | None, as_json: bool) -> None:
    """Start again with an empty history.

    The session keeps its name, and all that was said stays readable: `holdfast tree` shows where.
    """
    move = _move(store, ref, lambda session: session.clear())
    result = f"cleared {count(move.previous.seq, 'message')}; {_redo(move, store)}"
    _print_result(move, "it is empty already" if move.is_noop else result, as_json=as_json)


def cut_note(branch: BranchInfo) -> str:
    """Return a note if a branch starts before the requested message; else ""."""
    if branch.asked_seq == branch.fork_seq:
        return ""
    return f" ({branch.asked_seq} is inside a tool call)"


def _move(store: str | None, ref: str, act: Callable[[holdfast.Session], Head]) -> HeadMove:
    with open_existing(store) as opened:
        session = opened.get(ref)
        before = session.head()
        tree = command_line("tree", session, store=store)
        with hint(BadQuery, f"`{tree}` shows all branches, `holdfast rewind` goes to any of them"):
            head = act(session)
        branches = {branch.number: branch for branch in session.branches()}
    now = branches[head.branch]
    left = now if head.branch == before.branch else branches[head.branch - 1]
    return HeadMove(session, left, now, head.seq)


def _redo(move: HeadMove, store: str | None) -> str:
    return f"redo: {command_line('redo', move.session, store=store)}"


def _span(first: int, last: int) -> str:
    return f"message {first}" if first == last else f"messages {first} to {last}"


def _print_result(move: HeadMove, result: str, *, as_json: bool) -> None:
    if as_json:
        print_document(
            {
                "session": move.session.id,
                "key": move.session.key,
                "moved": not move.is_noop,
                "asked": move.seq if move.is_noop else move.current.asked_seq,
                "head": Head(move.current.number, move.seq),
                "left": move.previous.head,
            }
        )
        return
    screen().line(result)
