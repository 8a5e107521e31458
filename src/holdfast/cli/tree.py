"""`holdfast tree`: where a session comes from, what came of it, and what it left behind.

The family is all sessions with the same root: forks, continuations, delegates and the rest, each
under the one it came from. Under the session that was asked for stand its branches, each under the
one it leaves. A line of only children runs straight down, so a work of a thousand runs stays
readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import click
import msgspec

import holdfast
from holdfast.backends.base import SessionRow, Snapshot
from holdfast.cli.command import command
from holdfast.cli.conversation import one_line
from holdfast.cli.machine import print_document
from holdfast.cli.opening import open_to_read
from holdfast.cli.pager import paged
from holdfast.cli.screen import Screen, Span
from holdfast.cli.wording import ago, count, short
from holdfast.clock import to_datetime
from holdfast.errors import SessionNotFound
from holdfast.records import BranchInfo, LinkState, Relation
from holdfast.session import number_of


class Relative(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the family; `at` is how much of its parent's history it began with."""

    id: str
    parent: str | None = None
    relation: Relation | None = None
    at: int = 0
    key: str | None = None
    title: str | None = None
    state: LinkState = "purged"
    messages: int = 0
    branches: int = 0
    updated_at: datetime | None = None


class Twig(NamedTuple):
    """A line of the drawing, and what hangs below it."""

    spans: list[Span]
    below: list[Twig]


@command(
    "holdfast tree support-42",
    "holdfast tree support-42 --json",
)
@click.argument("ref")
@click.option(
    "--pager/--no-pager", default=True, help="Page what is longer than the screen, or not."
)
def tree(*, ref: str, pager: bool, store: str | None, as_json: bool) -> None:
    """Draw a session's branches and forks.

    Each session of its family is drawn under the one it came from; ▶ marks the one you asked for.
    A branch is what an undo, rewind, redo, replace or clear opened: the drawing tells which
    messages are its own, and when and how it was left. `holdfast show REF --branch N` shows one.
    """
    with open_to_read(store) as opened:
        session = opened.get(ref)
        family = opened.backend.read(lambda snapshot: _family(snapshot, number_of(session)))
        branches = session.branches()
        if as_json:
            print_document({"session": session.id, "family": family, "branches": branches})
            return
        with paged(wanted=pager) as out:
            root = _grow(out, family, session, branches)
            for before, spans in drawn(root):
                out.brief((before, "dim"), *spans)


# ------------------------------------------------------------------------------------- to read


def _family(snapshot: Snapshot, session: int) -> list[Relative]:
    """Read the whole family, parents before their children."""
    found: list[Relative] = []
    waiting = [_root(snapshot, session)]
    seen = {waiting[0].id}
    while waiting:
        found.append(waiting.pop())
        children = [row for row in snapshot.children(found[-1].id) if row.id not in seen]
        seen.update(row.id for row in children)
        waiting += [_relative(snapshot, row) for row in reversed(children)]
    return found


def _root(snapshot: Snapshot, session: int) -> Relative:
    """Go up to the first of the family; of one that was purged only its name may be left."""
    row = snapshot.session(session)
    seen: set[str] = set()
    while row is not None and row.parent is not None and row.parent not in seen:
        seen.add(row.id)
        above = snapshot.relative(row.parent)
        if above is None:
            return Relative(id=row.parent)
        row = above
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return _relative(snapshot, row)


def _relative(snapshot: Snapshot, row: SessionRow) -> Relative:
    head, first = snapshot.head(row.n), snapshot.branch(row.n, 1)
    state: LinkState = "live" if row.trashed_at is None else "trashed"
    return Relative(
        id=row.id,
        parent=row.parent,
        relation=row.relation,
        at=0 if first is None else first.fork_seq,
        key=row.key,
        title=row.title or (None if head is None else head.preview),
        state=state if row.purged_at is None else "purged",
        messages=0 if head is None else head.seq,
        branches=0 if head is None else head.branch_no,
        updated_at=None if head is None else to_datetime(head.updated_at),
    )


# ------------------------------------------------------------------------------------- to draw


def _grow(
    out: Screen,
    family: list[Relative],
    session: holdfast.Session,
    branches: list[BranchInfo],
) -> Twig:
    """Hang every session under the one it came from, and the branches under theirs."""
    twigs = {one.id: Twig(_session(out, one, session.id), []) for one in family}
    if len(branches) > 1:
        twigs[session.id].below.extend(_branches(session, branches))
    for one in family[1:]:
        twigs[one.parent or ""].below.append(twigs[one.id])
    return twigs[family[0].id]


def _session(out: Screen, one: Relative, asked: str) -> list[Span]:
    relation = (
        "" if one.relation is None else f"{one.relation}{f' at {one.at}' if one.at else ''}  "
    )
    facts = [] if one.state == "purged" else [count(one.messages, "message")]
    facts += [f"{one.branches} branches"] if one.branches > 1 else []
    facts += [ago(one.updated_at)] if one.updated_at is not None else []
    return [
        ("▶ " if one.id == asked else "", "bold yellow"),
        (relation, "magenta"),
        (short(one.id) if out.terminal else one.id, "cyan"),
        "" if one.state == "live" else (f"  {one.state}", "red"),
        f"  {one.key}" if one.key else "",
        (f"  {one.title}" if one.title else "", "bold"),
        (f"  {' · '.join(facts)}" if facts else "", "dim"),
    ]


def _branches(session: holdfast.Session, branches: Iterable[BranchInfo]) -> Iterator[Twig]:
    """Hang every branch under the one it leaves; give those that leave none of this session's."""
    twigs: dict[int, Twig] = {}
    for one in branches:
        twigs[one.number] = Twig(_branch(session, one), [])
        if one.parent is not None and one.parent_id == session.id:
            twigs[one.parent].below.append(twigs[one.number])
        else:
            yield twigs[one.number]


def _branch(session: holdfast.Session, one: BranchInfo) -> list[Span]:
    fate: Span = ("current", "bold green")
    if one.abandoned_at is not None:
        fate = f"left {ago(one.abandoned_at)} by {one.abandoned_by}", "yellow"
    start = "" if one.reason == "start" else f"{one.reason} at {one.fork_seq}  "
    if one.asked_seq != one.fork_seq:
        start = f"{one.reason} at {one.fork_seq} (asked: {one.asked_seq})  "
    return [
        (f"branch {one.number}  ", "cyan"),
        fate,
        (f"  {start}", "magenta"),
        (f"{_span(one)}  ", "dim"),
        _first_words(session, one),
    ]


def _span(one: BranchInfo) -> str:
    first = one.fork_seq + 1
    if one.seq < first:
        return "nothing of its own"
    return f"#{first}" if one.seq == first else f"#{first} to #{one.seq}"


def _first_words(session: holdfast.Session, one: BranchInfo) -> str:
    """Return what a branch is about: the first message that is its own."""
    if one.seq == one.fork_seq:
        return ""
    found = session.messages(after=one.fork_seq, limit=1, branch=one.number)
    return one_line(found[0])


def drawn(root: Twig) -> Iterator[tuple[str, list[Span]]]:
    """Return the lines of a tree, each with the strokes that stand before it."""
    waiting = [("", "", root)]
    while waiting:
        before, under, twig = waiting.pop()
        yield before, twig.spans
        if len(twig.below) == 1:
            waiting.append((f"{under}↳ ", under, twig.below[0]))
            continue
        for n, one in reversed(list(enumerate(twig.below, 1))):
            strokes = ("└─ ", "   ") if n == len(twig.below) else ("├─ ", "│  ")
            waiting.append((under + strokes[0], under + strokes[1], one))
