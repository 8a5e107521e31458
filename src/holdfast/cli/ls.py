"""`holdfast ls`: which sessions there are."""

from __future__ import annotations

import click

import holdfast
from holdfast.cli.command import command
from holdfast.cli.machine import print_document
from holdfast.cli.opening import NoStoreYet, open_to_read
from holdfast.cli.problems import complain
from holdfast.cli.screen import Column, Screen, Span, screen
from holdfast.cli.wording import ago, count
from holdfast.records import Page, SessionInfo

_SHORT_ID = 8
_COLUMNS = (
    Column("ID", whole=True),
    Column("KEY"),
    Column("STATE", whole=True),
    Column("ACTIVE", extra=True, whole=True),
    Column("MESSAGES", extra=True, right=True, whole=True),
    Column("TITLE"),
)


@command(
    "holdfast ls",
    "holdfast ls --limit 5",
    "holdfast ls --text parcel",
    "holdfast ls --scope telegram --json",
)
@click.option("--limit", "-n", default=50, type=click.IntRange(min=1), show_default=True)
@click.option("--text", help="Only those with this in their title, key or first words.")
@click.option("--scope", help="Only those of this scope.")
@click.option("--agent", help="Only those of this agent.")
@click.option("--cwd", help="Only those of this working directory.")
def ls(
    *,
    limit: int,
    text: str | None,
    scope: str | None,
    agent: str | None,
    cwd: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List sessions, newest first.

    An interrupted session has a turn that a crash left open; `holdfast recover` closes it.
    """
    try:
        opened = open_to_read(store)
    except NoStoreYet as none:
        _say_none(str(none), as_json=as_json)
        return
    with opened:
        page = opened.sessions(text=text, scope=scope, agent=agent, cwd=cwd, limit=limit)
        if as_json:
            print_document(page.items)
        else:
            _draw(screen(), page)
        _say_damage(opened)


def _say_none(what: str, *, as_json: bool) -> None:
    if as_json:
        print_document([])
        return
    out = screen()
    out.line(f"T{what[1:]}.")
    out.line("Begin with:  ", ('holdfast append my-first-session "Hello"', "bold"))


def _draw(out: Screen, page: Page[SessionInfo]) -> None:
    if not page.items:
        out.line("No sessions.")
        return
    out.table(_COLUMNS, [_row(info, out) for info in page])
    if page.cursor is not None:
        out.line((f"There are more: --limit {len(page) * 2}", "dim"))


def _row(info: SessionInfo, out: Screen) -> tuple[Span, ...]:
    shown = info.id[:_SHORT_ID] if out.terminal else info.id
    return (
        (shown, "cyan"),
        info.key or "",
        _state(info),
        (ago(info.updated_at), "dim"),
        f"{info.messages:,}",
        info.title or info.preview or "",
    )


def _state(info: SessionInfo) -> Span:
    if info.interrupted:
        return "interrupted", "yellow"
    if info.state == "open":
        return "open", "green"
    return ("pinned" if info.pinned else "archived" if info.archived else ""), "dim"


def _say_damage(opened: holdfast.Store) -> None:
    if opened.damage:
        complain(
            f"{count(len(opened.damage), 'session')} cannot be read and had to be left out",
            "`holdfast doctor` tells which",
        )
