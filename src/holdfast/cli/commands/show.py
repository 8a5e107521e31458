"""`holdfast show`: print one conversation as it is stored.

By default it prints the current history. `--branch` selects another branch, `--at` the messages
around a given one. A line marks where the history came from another session or branch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

import holdfast
from holdfast.cli import params
from holdfast.cli.command import command
from holdfast.cli.output.humanize import (
    ago,
    count,
    describe_move,
    describe_relation,
    local_time,
    short_id,
    size,
)
from holdfast.cli.output.json_output import print_document, to_ascii_json
from holdfast.cli.output.pager import paged
from holdfast.cli.output.screen import Screen
from holdfast.cli.output.transcript import DisplayOptions, Transcript, usage_facts
from holdfast.cli.store_access import open_readonly
from holdfast.codec import encode_text, to_json
from holdfast.errors import Damaged, MessageNotFound
from holdfast.operations.history import DamageCallback
from holdfast.operations.positions import resolve_position
from holdfast.operations.records import read_record
from holdfast.operations.session_fields import TEXT_FIELDS
from holdfast.session import context_of, number_of
from holdfast.storage.ancestry import record_ranges
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import RecordRow
from holdfast.values import (
    BranchInfo,
    Link,
    Message,
    Record,
    SessionInfo,
    SessionProvenance,
    TurnInfo,
)

_INITIAL_REASONS: Final = frozenset({"start", "fork", "continue"})
_EXCERPT_MESSAGES: Final = 10
_NAMES: Final = tuple(name for name in TEXT_FIELDS if name not in {"id", "title", "parent"})


class MessageSelection(NamedTuple):
    """Which messages of a session to show."""

    branch: int | None = None
    at: str | None = None
    limit: int | None = None


class Excerpt(NamedTuple):
    """Consecutive messages of a branch, and the seq of the one to mark."""

    branch: BranchInfo
    messages: list[Message]
    at: int | None = None

    @property
    def earlier(self) -> int:
        """The number of messages before the excerpt."""
        return (self.messages[0].seq or 1) - 1 if self.messages else 0

    @property
    def later(self) -> int:
        """The number of messages after the excerpt, as of when the branch was read."""
        return max(0, self.branch.seq - (self.messages[-1].seq or 0)) if self.messages else 0


@command(
    "holdfast show support-42",
    "holdfast show support-42 --limit 2",
    "holdfast show support-42 --tools --thinking",
    "holdfast show support-42 --records --limit 2",
    "holdfast show support-42 --at 3",
    "holdfast show support-42 --branch 1",
    "holdfast show support-42 --raw > conversation.txt",
    "holdfast show support-42 --json",
)
@click.argument("ref")
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), help="Only this many of the newest messages."
)
@click.option(
    "--at", metavar="MESSAGE", help="Show the messages around this one: its id or number."
)
@click.option("--branch", "-b", type=click.IntRange(min=1), help="Show another branch.")
@click.option("--tools", is_flag=True, help="Unfold tool calls and their results.")
@click.option("--thinking", is_flag=True, help="Unfold thinking.")
@click.option("--records", is_flag=True, help="List the records behind the messages, too.")
@click.option("--raw", is_flag=True, help="Print only the stored texts, byte for byte.")
@click.option(
    "--pager/--no-pager", default=True, help="Page what is longer than the screen, or not."
)
def show(
    *,
    ref: str,
    limit: int | None,
    at: str | None,
    branch: int | None,
    tools: bool,
    thinking: bool,
    records: bool,
    raw: bool,
    pager: bool,
    store: str | None,
    as_json: bool,
) -> None:
    r"""Show a conversation.

    REF is a session's id, the first characters of it, its key or its title. `holdfast tree REF`
    lists its branches. On a terminal Markdown is drawn, and $PAGER pages what is long.

    Characters that could mislead you or control your terminal are shown as escapes such as \x1b.
    With --raw they are not escaped: redirect its output to a file or a program.
    """
    for name, is_given in (("--json", as_json), ("--records", records)):
        if raw and is_given:
            raise click.UsageError(f"--raw and {name} exclude each other.")
    with open_readonly(store) as opened:
        session = opened.get(ref)
        found = select(opened, session, MessageSelection(branch, at, limit))
        state = _read_records(opened, session, found) if records else None
        if raw:
            _print_raw(found.messages)
        elif as_json:
            _print_json(opened, session, found, state)
        else:
            with paged(wanted=pager) as out:
                _draw(out, session, found, DisplayOptions(tools, thinking, found.at))
                _draw_records(out, state)


# ----------------------------------------------------------------------------------- to choose


def select(
    opened: holdfast.Store, session: holdfast.Session, selection: MessageSelection
) -> Excerpt:
    """Read the selected messages."""
    branches = {branch.number: branch for branch in session.branches()}
    number, at = selection.branch or max(branches), None
    if selection.at is not None:
        number, at = _find(opened, session, selection.at, selection.branch)
    if number not in branches:
        known = f"1 to {max(branches)}" if len(branches) > 1 else "1 only"
        raise MessageNotFound(f"there is no branch {number}, this session has {known}.")
    branch = branches[number]
    if at is None:
        return Excerpt(branch, session.messages(limit=selection.limit, branch=number))
    if not at:
        raise MessageNotFound("messages are numbered from 1; there is no message 0.")
    around = selection.limit or _EXCERPT_MESSAGES
    first = max(1, at - around // 2)
    messages = session.messages(after=first - 1, limit=around, branch=number)
    return Excerpt(branch, messages, at)


def _find(
    opened: holdfast.Store, session: holdfast.Session, at: str, branch: int | None
) -> tuple[int, int]:
    """Resolve a message's number or id: (branch, seq)."""
    position = params.parse_position(at.removeprefix("#"), branch)
    n = number_of(session)

    def run(snapshot: Snapshot) -> tuple[int, int]:
        head = snapshot.head(n)
        if head is None:
            raise Damaged(f"session {session.id} has lost its head")
        found = resolve_position(snapshot, head, position)
        numbers = {row.n: row.number for row in snapshot.branches(session=n)}
        return numbers[found.branch], found.seq

    return opened.backend.read(run)


def _read_records(
    opened: holdfast.Store, session: holdfast.Session, found: Excerpt
) -> list[Record]:
    """Read the records behind the messages of an excerpt; one that is damaged has no time."""
    n = number_of(session)
    first = (found.messages[0].seq or 1) if found.earlier else 0
    last = found.messages[-1].seq if found.later else None

    def run(snapshot: Snapshot) -> list[Record]:
        branch = snapshot.branch(n, found.branch.number)
        if branch is None:
            raise Damaged(f"session {session.id} has lost branch {found.branch.number}")
        ranges = record_ranges(snapshot.path(branch.n), last)
        rows = [pair for pair in snapshot.records(ranges) if pair[1].seq >= first]
        report = context_of(session).report
        return [_read_record(snapshot, *pair, report) for pair in reversed(rows)]

    return opened.backend.read(run)


def _read_record(snapshot: Snapshot, owner: str, row: RecordRow, report: DamageCallback) -> Record:
    try:
        return read_record(snapshot, row, owner, report)
    except Damaged:
        return Record(row.kind, key=row.key, id=row.id, seq=row.seq)


def _turns(session: holdfast.Session, messages: Sequence[Message]) -> list[TurnInfo]:
    """Return the turns from the first message's on; of a long history these are few."""
    if not messages or messages[0].seq == 1:
        return session.turns()
    own = (message.turn_id.rpartition(".") for message in messages if message.turn_id)
    numbers = [int(number) for owner, _, number in own if owner == session.id]
    total = session.info().turns
    return session.turns(limit=total - min(numbers, default=total) + 1)


# ------------------------------------------------------------------------------------ to print


def _print_raw(messages: list[Message]) -> None:
    """Write the texts byte for byte, each ending its line."""
    sys.stdout.flush()
    for text in (message.text for message in messages):
        if text:
            sys.stdout.buffer.write(encode_text(text if text.endswith("\n") else f"{text}\n"))


def _print_json(
    opened: holdfast.Store, session: holdfast.Session, found: Excerpt, state: list[Record] | None
) -> None:
    print_document(
        {
            "session": session.info(),
            "head": session.head(),
            "branch": found.branch,
            "at": found.at,
            "messages": found.messages,
            **({} if state is None else {"records": state}),
            "turns": _turns(session, found.messages),
            "queued": session.queued(),
            "held": session.queued(held=True),
            "lineage": session.lineage(),
            "damage": opened.damage,
        }
    )


def _draw(out: Screen, session: holdfast.Session, found: Excerpt, options: DisplayOptions) -> None:
    info, branches = session.info(), session.branches()
    _draw_header(out, info, found.branch)
    _draw_rest(out, found.earlier, "earlier")
    conversation = Transcript(
        out,
        _turns(session, found.messages),
        session=session.id,
        abandoned=info.interrupted,
        options=options,
        marks=origin_marks(found.branch, branches, session.lineage()),
    )
    # In a session with several branches, a turn may be empty because its messages are on another.
    empty_turns = len(branches) == 1
    ended = found.branch.active and not found.later
    conversation.draw(found.messages, empty_turns=empty_turns, ended=ended)
    _draw_rest(out, found.later, "later")
    if ended:
        _draw_end(out, session, info)


def _draw_records(out: Screen, records: list[Record] | None) -> None:
    """Draw a line for each record: where, kind, key, size, time and id."""
    if records is None:
        return
    out.line((count(len(records), "record"), "bold"))
    for record in records:
        where = f"behind #{record.seq}" if record.seq else "at the start"
        facts = [where, record.kind, *([] if record.key is None else [record.key])]
        when = "damaged" if record.created_at is None else local_time(record.created_at)
        files = sum(file.size or 0 for file in record.files.values())
        facts += [size(len(to_json(record.data)) + files), when]
        out.line("  ", " · ".join(facts), (f"  {record.id}", "dim"))


def _draw_rest(out: Screen, number: int, which: str) -> None:
    if number:
        out.line((f"… {count(number, f'{which} message')} …", "dim"))
        out.line()


def _draw_end(out: Screen, session: holdfast.Session, info: SessionInfo) -> None:
    for waiting in session.queued():
        out.line(("waits for the next turn", "yellow"))
        out.body(waiting.message.text)
    for held in session.queued(held=True):
        out.line(("came with the import, and is sent only if you send it", "yellow"))
        out.body(held.message.text)
    if info.interrupted:
        out.line(
            ("Interrupted", "bold yellow"),
            ": a crash left the last turn open. To close it and keep what was streamed:",
        )
        out.line("  ", (f"holdfast recover {info.id}", "bold"))


def _draw_header(out: Screen, info: SessionInfo, branch: BranchInfo) -> None:
    out.line((info.title or info.key or info.preview or info.id, "bold"))
    goal = None if info.goal is None else f"{info.goal.objective} ({info.goal.state})"
    facts: tuple[tuple[str, str | None], ...] = (
        ("id", info.id),
        *((name, getattr(info, name)) for name in _NAMES),
        ("goal", goal),
        ("metadata", to_ascii_json(info.metadata) if info.metadata else None),
        ("state", _state(info)),
        ("from", info.parent and describe_relation(info.parent, info.relation)),
        ("imported", _provenance(info.provenance)),
        ("branch", _branch(branch)),
        ("holds", _amount(info, branch)),
        ("active", f"{ago(info.updated_at)}, created {ago(info.created_at)}"),
    )
    for name, value in facts:
        if value is not None:
            out.fact(f"  {name:<9}", value)
    out.line()


def _provenance(found: SessionProvenance | None) -> str | None:
    """Return where a session was imported from, and the fields that it had there."""
    if found is None:
        return None
    names = ("cwd", "key", "scope", "agent")
    there = [f"{name} {value}" for name in names if (value := getattr(found, name)) is not None]
    there += ["pinned"] if found.pinned else []
    return f"from {found.source}" + (f" (there: {', '.join(there)})" if there else "")


def _state(info: SessionInfo) -> str:
    found: list[str] = [info.state]
    found += [name for name in ("pinned", "archived", "trashed") if getattr(info, name)]
    return ", ".join(found)


def _branch(branch: BranchInfo) -> str | None:
    """Return which branch this is; None if it is the only one so far."""
    if branch.abandoned_at is not None:
        return f"{branch.number}, left {ago(branch.abandoned_at)} by {branch.abandoned_by}"
    return None if branch.number == 1 else f"{branch.number}, the current one"


def _amount(info: SessionInfo, branch: BranchInfo) -> str:
    here = "" if branch.active else " on this branch"
    usage = usage_facts(info.usage, info.cost)
    return ", ".join((count(branch.seq, "message") + here, count(info.turns, "turn"), *usage))


# -------------------------------------------------------------------------------------- marks


def origin_marks(
    branch: BranchInfo, branches: Sequence[BranchInfo], lineage: Sequence[Link]
) -> Mapping[int, Sequence[str]]:
    """Return marks where a history diverged from a branch or session, by the seq before them."""
    found: dict[int, list[str]] = {}
    path = _branch_path(branch, branches, lineage[-1].session_id)
    for one in path:
        if one.reason not in _INITIAL_REASONS:
            # Every move opens the branch with the next number.
            previous = f"the previous history is on branch {one.number - 1}"
            mark = f"{describe_move(one.reason, one.fork_seq)}; {previous}"
            found.setdefault(one.fork_seq, []).append(mark)
    shared = path[-1].fork_seq
    for link in reversed(lineage):
        # Messages after the point where a descendant forked are not part of this history.
        seq = shared if link is lineage[-1] else link.seq
        if link.parent is None or link.relation not in {"fork", "continue"} or not seq > 0:
            break
        if link is lineage[-1] or seq < shared:
            mark = f"{describe_relation(short_id(link.parent), link.relation)} at {seq}"
            found.setdefault(seq, []).insert(0, mark)
            shared = seq
    return found


def _branch_path(
    branch: BranchInfo, branches: Sequence[BranchInfo], session: str
) -> list[BranchInfo]:
    """Return the branches of this session that a history consists of, the last one first."""
    known = {one.number: one for one in branches}
    path = [branch]
    while path[-1].parent is not None and path[-1].parent_id == session:
        path.append(known[path[-1].parent])
    return path
