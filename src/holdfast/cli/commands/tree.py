"""`holdfast tree`: draw a session's ancestors, descendants and branches.

The family is all sessions with the same root: forks, continuations, delegates and the rest, each
under its parent. Under the given session are its branches, each under the branch it diverged from.
A chain of only children is not indented further, so a chain of a thousand sessions stays readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

import click
import msgspec

import holdfast
from holdfast.cli.command import command
from holdfast.cli.output.humanize import ago, count, short_id
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.pager import paged
from holdfast.cli.output.screen import Screen, Span
from holdfast.cli.output.transcript import message_preview
from holdfast.cli.store_access import open_readonly
from holdfast.clock import to_datetime
from holdfast.errors import SessionNotFound
from holdfast.session import number_of
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import SessionRow
from holdfast.values import BranchInfo, LinkState, Relation


class FamilyMember(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the family; `at` is the length of the parent's history it started with."""

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


class TreeNode(NamedTuple):
    """A line of the drawing, and the nodes below it."""

    spans: list[Span]
    children: list[TreeNode]


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

    Each session of its family is drawn under its parent; ▶ marks REF. A branch is opened by an
    undo, rewind, redo, replace or clear: the drawing shows which messages are its own, and when and
    how it was left. `holdfast show REF --branch N` shows one.
    """
    with open_readonly(store) as opened:
        session = opened.get(ref)
        family = opened.backend.read(lambda snapshot: _family(snapshot, number_of(session)))
        branches = session.branches()
        if as_json:
            print_document({"session": session.id, "family": family, "branches": branches})
            return
        with paged(wanted=pager) as out:
            root = _build_tree(out, family, session, branches)
            for before, spans in tree_lines(root):
                out.truncated_line((before, "dim"), *spans)


# ------------------------------------------------------------------------------------- to read


def _family(snapshot: Snapshot, session: int) -> list[FamilyMember]:
    """Read the whole family, parents before their children."""
    found: list[FamilyMember] = []
    pending = [_root(snapshot, session)]
    seen = {pending[0].id}
    while pending:
        found.append(pending.pop())
        children = [row for row in snapshot.children(found[-1].id) if row.id not in seen]
        seen.update(row.id for row in children)
        pending += [_family_member(snapshot, row) for row in reversed(children)]
    return found


def _root(snapshot: Snapshot, session: int) -> FamilyMember:
    """Return the root of the family; of a purged root only the id may be known."""
    row = snapshot.session(session)
    seen: set[str] = set()
    while row is not None and row.parent is not None and row.parent not in seen:
        seen.add(row.id)
        above = snapshot.find_session(id=row.parent, stubs=True)
        if above is None:
            return FamilyMember(id=row.parent)
        row = above
    if row is None:
        raise SessionNotFound("this session is no longer in the store.")
    return _family_member(snapshot, row)


def _family_member(snapshot: Snapshot, row: SessionRow) -> FamilyMember:
    head, first = snapshot.head(row.n), snapshot.branch(row.n, 1)
    state: LinkState = "live" if row.trashed_at is None else "trashed"
    return FamilyMember(
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


def _build_tree(
    out: Screen,
    family: list[FamilyMember],
    session: holdfast.Session,
    branches: list[BranchInfo],
) -> TreeNode:
    """Return the tree of sessions, with the branches under the given session."""
    nodes = {one.id: TreeNode(_session(out, one, session.id), []) for one in family}
    if len(branches) > 1:
        nodes[session.id].children.extend(_branches(session, branches))
    for one in family[1:]:
        nodes[one.parent or ""].children.append(nodes[one.id])
    return nodes[family[0].id]


def _session(out: Screen, one: FamilyMember, marked: str) -> list[Span]:
    relation = (
        "" if one.relation is None else f"{one.relation}{f' at {one.at}' if one.at else ''}  "
    )
    facts = [] if one.state == "purged" else [count(one.messages, "message")]
    facts += [f"{one.branches} branches"] if one.branches > 1 else []
    facts += [ago(one.updated_at)] if one.updated_at is not None else []
    return [
        ("▶ " if one.id == marked else "", "bold yellow"),
        (relation, "magenta"),
        (short_id(one.id) if out.terminal else one.id, "cyan"),
        "" if one.state == "live" else (f"  {one.state}", "red"),
        f"  {one.key}" if one.key else "",
        (f"  {one.title}" if one.title else "", "bold"),
        (f"  {' · '.join(facts)}" if facts else "", "dim"),
    ]


def _branches(session: holdfast.Session, branches: Iterable[BranchInfo]) -> Iterator[TreeNode]:
    """Yield the top-level branches, with each other branch under the one it diverged from."""
    nodes: dict[int, TreeNode] = {}
    for one in branches:
        nodes[one.number] = TreeNode(_branch(session, one), [])
        if one.parent is not None and one.parent_id == session.id:
            nodes[one.parent].children.append(nodes[one.number])
        else:
            yield nodes[one.number]


def _branch(session: holdfast.Session, one: BranchInfo) -> list[Span]:
    status: Span = ("current", "bold green")
    if one.abandoned_at is not None:
        status = f"left {ago(one.abandoned_at)} by {one.abandoned_by}", "yellow"
    start = "" if one.reason == "start" else f"{one.reason} at {one.fork_seq}  "
    if one.asked_seq != one.fork_seq:
        start = f"{one.reason} at {one.fork_seq} (requested: {one.asked_seq})  "
    return [
        (f"branch {one.number}  ", "cyan"),
        status,
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
    """Return a preview of a branch: the first message that is its own."""
    if one.seq == one.fork_seq:
        return ""
    found = session.messages(after=one.fork_seq, limit=1, branch=one.number)
    return message_preview(found[0])


def tree_lines(root: TreeNode) -> Iterator[tuple[str, list[Span]]]:
    """Yield the lines of a tree, each with its prefix of box-drawing characters."""
    pending = [("", "", root)]
    while pending:
        before, under, node = pending.pop()
        yield before, node.spans
        if len(node.children) == 1:
            pending.append((f"{under}↳ ", under, node.children[0]))
            continue
        for n, one in reversed(list(enumerate(node.children, 1))):
            strokes = ("└─ ", "   ") if n == len(node.children) else ("├─ ", "│  ")
            pending.append((under + strokes[0], under + strokes[1], one))
