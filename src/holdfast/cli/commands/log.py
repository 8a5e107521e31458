"""`holdfast log`: print the newest messages, and follow new ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

import click
import msgspec

import holdfast
from holdfast.cli.command import command
from holdfast.cli.output.humanize import describe_move, local_time
from holdfast.cli.output.json_output import print_line
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.output.transcript import DisplayOptions, MessagePrinter, message_preview
from holdfast.cli.store_access import open_readonly
from holdfast.errors import NotFound
from holdfast.storage.protocol import Snapshot
from holdfast.storage.rows import SessionFilter, UnreadableSession
from holdfast.values import Activity, BranchChanged, Head, Message

T = TypeVar("T")


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A write to a session; `message` is the newest one after it."""

    number: int
    session: str
    key: str | None
    head: Head
    at: datetime
    message: Message | None


@command(
    "holdfast log",
    "holdfast log -n 3 support-42",
    "holdfast log -f support-42",
    "holdfast log -f --json",
)
@click.argument("ref", required=False)
@click.option("--follow", "-f", is_flag=True, help="Follow new messages until Ctrl-C.")
@click.option("--limit", "-n", default=10, type=click.IntRange(min=0), show_default=True)
@click.option("--tools", is_flag=True, help="Unfold tool calls and their results.")
def log(
    *,
    ref: str | None,
    follow: bool,
    limit: int,
    tools: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Print the newest messages; with -f, follow new ones.

    With REF it prints the messages of that session; without, one line for each session that was
    written to. A line marks where a session moved to another branch (by undo, rewind and the like);
    the messages on that branch follow. --json prints one JSON document per line.
    """
    with open_readonly(store) as opened:
        if ref is None:
            _print_all(_activity(opened, limit, follow=follow), _activity_printer(as_json=as_json))
        else:
            messages = _messages(opened.get(ref), limit, follow=follow)
            _print_all(messages, _message_printer(tools=tools, as_json=as_json))


def _print_all(items: Iterator[T], show: Callable[[T], None]) -> None:
    """Print each item as soon as it arrives."""
    for item in items:
        show(item)
        sys.stdout.flush()


# ---------------------------------------------------------------------------------- what to print


def _messages(
    session: holdfast.Session, limit: int, *, follow: bool
) -> Iterator[Message | BranchChanged]:
    """Yield the newest messages and then, without a gap, new ones."""
    head = session.head()
    newest = session.messages(
        after=max(0, head.seq - limit), before=head.seq + 1, branch=head.branch
    )
    yield from newest
    if follow:
        yield from session.follow(after=head)


def _activity(opened: holdfast.Store, limit: int, *, follow: bool) -> Iterator[LogEvent]:
    """Yield the latest writes, oldest first, and then new ones."""
    newest = opened.backend.read(_newest(max(1, limit)))
    for activity in newest[len(newest) - limit :]:
        yield from _event(opened, activity)
    if follow:
        for activity in opened.follow(since=newest[-1].number if newest else 0):
            yield from _event(opened, activity)


def _newest(limit: int) -> Callable[[Snapshot], list[Activity]]:
    def run(snapshot: Snapshot) -> list[Activity]:
        found = snapshot.list_sessions(SessionFilter(), before=None, limit=limit)
        readable = [item for item in reversed(found) if not isinstance(item, UnreadableSession)]
        return [
            Activity(head.activity, row.id, Head(head.branch_no, head.seq))
            for row, head in readable
        ]

    return run


def _event(opened: holdfast.Store, activity: Activity) -> Iterator[LogEvent]:
    """Yield the event of an activity; nothing if its session was removed meanwhile."""
    head = activity.head
    try:
        session = opened.get(activity.session_id)
        found = (
            session.messages(after=head.seq - 1, limit=1, branch=head.branch) if head.seq else []
        )
        at = session.info().updated_at
    except NotFound:
        return
    yield LogEvent(
        number=activity.number,
        session=session.id,
        key=session.key,
        head=head,
        at=at,
        message=found[0] if found else None,
    )


# ----------------------------------------------------------------------------------- how to print


def _message_printer(*, tools: bool, as_json: bool) -> Callable[[Message | BranchChanged], None]:
    if as_json:
        return print_line
    out = screen()
    messages = MessagePrinter(out, {}, DisplayOptions(tools=tools))

    def show(item: Message | BranchChanged) -> None:
        if isinstance(item, BranchChanged):
            messages.end_fold()
            _draw_change(out, item)
        else:
            messages.draw(item)

    return show


def _draw_change(out: Screen, change: BranchChanged) -> None:
    """Print how the history moved; the messages of the new branch follow."""
    text = describe_move(change.reason, change.kept)
    if change.reason == "redo":
        text = f"what came after {change.kept} is back (redo)"
    out.line((f"══ {text} ══", "magenta"))
    out.line()


def _activity_printer(*, as_json: bool) -> Callable[[LogEvent], None]:
    if as_json:
        return print_line
    out = screen()
    return lambda event: _draw_event(out, event)


def _draw_event(out: Screen, event: LogEvent) -> None:
    words = "created" if event.message is None else message_preview(event.message)
    role = "" if event.message is None else f" {event.message.role}"
    out.line(
        (local_time(event.at), "dim"),
        "  ",
        (event.key or event.session, "cyan"),
        (f"  #{event.head.seq}{role}  ", "dim"),
        words,
    )
