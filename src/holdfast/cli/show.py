"""`holdfast show`: one conversation, as it is stored."""

from __future__ import annotations

import sys

import click

import holdfast
from holdfast.cli.command import command
from holdfast.cli.conversation import Conversation, spent
from holdfast.cli.machine import print_document, to_ascii
from holdfast.cli.opening import open_to_read
from holdfast.cli.screen import Screen, Span, screen
from holdfast.cli.wording import ago, count
from holdfast.codec import encode_text
from holdfast.records import Message, SessionInfo


@command(
    "holdfast show support-42",
    "holdfast show support-42 --limit 2",
    "holdfast show support-42 --raw > conversation.txt",
    "holdfast show support-42 --json",
)
@click.argument("ref")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Only the newest so many messages.")
@click.option("--raw", is_flag=True, help="Print the stored texts and nothing else, as they are.")
def show(*, ref: str, limit: int | None, raw: bool, store: str | None, as_json: bool) -> None:
    r"""Show a conversation.

    REF is a session's id, the first characters of it, its key or its title.

    Characters that could fool you or your terminal are shown as escapes such as \x1b. With --raw
    they are not: send that to a file or a program rather than to a terminal.
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other.")
    with open_to_read(store) as opened:
        session = opened.get(ref)
        if raw:
            _print_raw(session.messages(limit=limit))
        elif as_json:
            _print_json(opened, session, limit)
        else:
            _draw(screen(), session, limit)


def _print_raw(messages: list[Message]) -> None:
    """Write the texts byte for byte, each ending its line."""
    sys.stdout.flush()
    for text in (message.text for message in messages):
        if text:
            sys.stdout.buffer.write(encode_text(text if text.endswith("\n") else f"{text}\n"))


def _print_json(opened: holdfast.Store, session: holdfast.Session, limit: int | None) -> None:
    messages = session.messages(limit=limit)
    print_document(
        {
            "session": session.info(),
            "head": session.head(),
            "messages": messages,
            "turns": session.turns(),
            "queued": session.queued(),
            "damage": opened.damage,
        }
    )


def _draw(out: Screen, session: holdfast.Session, limit: int | None) -> None:
    info = session.info()
    messages = session.messages(limit=limit)
    _draw_header(out, info)
    earlier = (messages[0].seq or 1) - 1 if messages else 0
    if earlier:
        out.line((f"… {count(earlier, 'earlier message')} …", "dim"))
        out.line()
    Conversation(out, session.turns(), abandoned=info.interrupted).draw(messages)
    for waiting in session.queued():
        out.line(("waits for the next turn", "yellow"))
        out.body(waiting.message.text)
    if info.interrupted:
        out.line(
            ("Interrupted", "bold yellow"),
            ": a crash left the last turn open. To close it and keep what was streamed:",
        )
        out.line("  ", (f"holdfast recover {info.id}", "bold"))


def _draw_header(out: Screen, info: SessionInfo) -> None:
    out.line((info.title or info.key or info.preview or info.id, "bold"))
    goal = None if info.goal is None else f"{info.goal.objective} ({info.goal.state})"
    facts: tuple[tuple[str, str | None], ...] = (
        ("id", info.id),
        ("key", info.key),
        ("scope", info.scope),
        ("agent", info.agent),
        ("model", info.model),
        ("cwd", info.cwd),
        ("goal", goal),
        ("metadata", to_ascii(info.metadata) if info.metadata else None),
        ("state", _state(info)),
        ("holds", _amount(info)),
        ("active", f"{ago(info.updated_at)}, begun {ago(info.created_at)}"),
    )
    for name, value in facts:
        if value is not None:
            spans: tuple[Span, ...] = ((f"  {name:<9}", "dim"), value)
            out.line(*spans)
    out.line()


def _state(info: SessionInfo) -> str:
    marks: list[str] = [info.state]
    marks += [name for name in ("pinned", "archived", "trashed") if getattr(info, name)]
    return ", ".join(marks)


def _amount(info: SessionInfo) -> str:
    spending = spent(info.usage, info.cost)
    return ", ".join((count(info.messages, "message"), count(info.turns, "turn"), *spending))
