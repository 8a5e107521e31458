"""`holdfast ls`: list sessions.

Pinned sessions come first, then the others, each newest first. They are read a page at a time, so a
store of ten thousand sessions is listed as fast as one of fifty. Archived sessions are listed only
with --archived or --all, and trashed ones only with --trashed. A damaged session is listed as
damaged, with what can be read of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple, get_args

import click

import holdfast
from holdfast.cli.command import command
from holdfast.cli.errors import print_error
from holdfast.cli.output.humanize import ago, compact_number, count, money, short_id
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, Span, TableColumn, screen
from holdfast.cli.params import DIRECTORY, METADATA_HELP, UTF8_TEXT, parse_metadata
from holdfast.cli.store_access import NoStoreYet, open_readonly
from holdfast.clock import EPOCH
from holdfast.values import JSON, Order, Page, SessionInfo, SessionState

_PAGE_SIZE: Final = 500
_MAX_COUNTED: Final = 100
_START: Final = "start"
_DOCTOR_HINT: Final = "`holdfast doctor` shows details"
_STYLES: Final[dict[SessionState, str]] = {
    "interrupted": "yellow",
    "open": "green",
    "done": "dim",
    "damaged": "red",
}


class ListFilter(NamedTuple):
    """Which sessions to list."""

    text: str | None = None
    scope: str | None = None
    agent: str | None = None
    cwd: str | None = None
    pinned: bool | None = None
    archived: bool | None = None
    trashed: bool = False
    state: SessionState | None = None
    since: str | None = None
    until: str | None = None
    key_prefix: str | None = None
    metadata: dict[str, JSON] | None = None
    delegates: bool = True
    order: Order = "pinned"


class _ListColumn(NamedTuple):
    """A column, and the function that returns its cell for a session."""

    column: TableColumn
    cell: Callable[[SessionInfo, Screen], Span]
    always: bool = False  # else it is omitted if all its cells are empty


@command(
    "holdfast ls",
    "holdfast ls --limit 5",
    "holdfast ls --text parcel",
    "holdfast ls --scope telegram --json",
    "holdfast ls --since 7d --state interrupted",
    "holdfast ls --metadata user=42 --key-prefix slack:",
    "holdfast ls --all",
    "holdfast ls --trashed",
)
@click.option("--limit", "-n", default=50, type=click.IntRange(min=1), show_default=True)
@click.option("--all", "everything", is_flag=True, help="No limit, and the archived ones too.")
@click.option("--pinned", is_flag=True, help="Only pinned ones.")
@click.option("--archived", is_flag=True, help="Only archived ones.")
@click.option("--trashed", is_flag=True, help="Only those in the trash.")
@click.option("--text", help="Only those with this in their title, key or first words.")
@click.option("--scope", help="Only those of this scope.")
@click.option("--agent", help="Only those of this agent.")
@click.option("--cwd", type=DIRECTORY, help="Only those of this working directory.")
@click.option("--key-prefix", type=UTF8_TEXT, help="Only those whose key begins with this.")
@click.option(
    "--metadata",
    "--meta",
    type=UTF8_TEXT,
    multiple=True,
    metavar="NAME=TEXT",
    help=f"Only those with all of this metadata: {METADATA_HELP}",
)
@click.option("--no-delegates", is_flag=True, help="Without the sessions of sub-agents.")
@click.option("--since", metavar="TIME", help="Only those written to since: 7d, 12h, 2026-01-31.")
@click.option("--until", metavar="TIME", help="Only those last written to by then.")
@click.option(
    "--state", type=click.Choice(get_args(SessionState)), help="Only those in this state."
)
@click.option(
    "--order",
    type=click.Choice(get_args(Order)),
    default="pinned",
    show_default=True,
    help="The pinned ones first, or all by activity.",
)
@click.option(
    "--cursor",
    help=f"Continue after a page. With --json the output is then a page: its items and the cursor "
    f"of the next one; `--cursor {_START}` returns the first.",
)
def ls(
    *,
    limit: int,
    everything: bool,
    pinned: bool,
    archived: bool,
    trashed: bool,
    text: str | None,
    scope: str | None,
    agent: str | None,
    cwd: str | None,
    key_prefix: str | None,
    metadata: tuple[str, ...],
    no_delegates: bool,
    since: str | None,
    until: str | None,
    state: SessionState | None,
    order: Order,
    cursor: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List sessions, newest first.

    Pinned sessions come first of all. An interrupted session has a turn that a crash left open;
    `holdfast recover` closes it. A damaged one cannot be read in full; `holdfast doctor` shows why.
    FROM is the session that this one came from, and how; on a terminal, where there may be no room
    for it, ↳ marks such sessions. BRANCHES and FORKS count other versions of the history;
    `holdfast tree` draws them.

    TIME is a number of hours, days, weeks, months or years ago (12h, 7d, 2w, 3m, 1y), a day, a
    month, a year, or a date and time (2026-01-31T18:00).
    """
    if everything and cursor is not None:
        raise click.UsageError("--all and --cursor exclude each other: all is one page.")
    wanted = ListFilter(
        text=text,
        scope=scope,
        agent=agent,
        cwd=cwd,
        pinned=True if pinned else None,
        # The trash includes archived sessions: they may be erased soon.
        archived=True if archived else None if everything or trashed else False,
        trashed=trashed,
        state=state,
        since=since,
        until=until,
        key_prefix=key_prefix,
        metadata=parse_metadata(metadata),
        delegates=not no_delegates,
        order=order,
    )
    try:
        opened = open_readonly(store)
    except NoStoreYet as missing:
        _print_no_store(str(missing), as_json=as_json)
        return
    with opened:
        start = None if cursor == _START else cursor
        found, rest = find(opened, wanted, None if everything else limit, start)
        if as_json:
            print_document(found if cursor is None else Page(tuple(found), rest))
        else:
            _draw(screen(), found)
            _print_omitted(screen(), opened, wanted, len(found), rest)
        _warn_damage(opened, found)


# ------------------------------------------------------------------------------------- to find


def find(
    opened: holdfast.Store, wanted: ListFilter, limit: int | None, cursor: str | None = None
) -> tuple[list[SessionInfo], str | None]:
    """Return a page of sessions, or all, and the cursor of the next page if there is one."""
    found: list[SessionInfo] = []
    while True:
        page = opened.sessions(**wanted._asdict(), limit=limit or _PAGE_SIZE, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None or limit is not None:
            return found, cursor


# ------------------------------------------------------------------------------------- to show


def _short(id: str, out: Screen) -> str:
    """Return an id, shortened on a terminal: eight characters identify a session."""
    return short_id(id) if out.terminal else id


def _state(info: SessionInfo) -> Span:
    words: list[str] = [] if info.state == "done" else [info.state]
    words += [name for name in ("pinned", "archived", "trashed") if getattr(info, name)]
    return ", ".join(words), _STYLES[info.state]


def _active(info: SessionInfo) -> Span:
    """Return when the session was last written to, if that could be read."""
    return ("" if info.updated_at == EPOCH else ago(info.updated_at), "dim")


def _cwd(info: SessionInfo, out: Screen) -> Span:
    """Return the working directory; on a terminal, `~` replaces the home directory."""
    home, cwd = os.path.expanduser("~"), info.cwd or ""  # noqa: PTH111 - the text is what counts
    short_one = out.terminal and (cwd == home or cwd.startswith(f"{home}{os.sep}"))
    return (f"~{cwd[len(home) :]}" if short_one else cwd, "dim")


def _title(info: SessionInfo, out: Screen) -> str:
    """Return the title; on a terminal, where FROM may not fit, ↳ marks sessions with a parent."""
    mark = "↳ " if out.terminal and info.parent is not None else ""
    return f"{mark}{info.title or info.preview or ''}"


_COLUMNS: Final = (
    _ListColumn(
        TableColumn("ID", whole=True), lambda i, out: (_short(i.id, out), "cyan"), always=True
    ),
    _ListColumn(TableColumn("KEY"), lambda i, _: i.key or "", always=True),
    _ListColumn(TableColumn("STATE", whole=True), lambda i, _: _state(i), always=True),
    _ListColumn(
        TableColumn("ACTIVE", extra=2, whole=True),
        lambda i, _: _active(i),
        always=True,
    ),
    _ListColumn(
        TableColumn("MESSAGES", extra=3, right=True, whole=True),
        lambda i, _: f"{i.messages:,}",
        always=True,
    ),
    _ListColumn(
        TableColumn("TURNS", extra=8, right=True, whole=True),
        lambda i, _: f"{i.turns:,}" if i.turns else "",
    ),
    _ListColumn(
        TableColumn("TOKENS", extra=6, right=True, whole=True),
        lambda i, _: compact_number(i.usage.total) if i.usage.total else "",
    ),
    _ListColumn(
        TableColumn("COST", extra=5, right=True, whole=True),
        lambda i, _: money(i.cost) if i.cost else "",
    ),
    _ListColumn(TableColumn("MODEL", extra=7, whole=True), lambda i, _: (i.model or "", "dim")),
    _ListColumn(TableColumn("SCOPE", extra=9, whole=True), lambda i, _: (i.scope or "", "dim")),
    _ListColumn(TableColumn("AGENT", extra=10, whole=True), lambda i, _: (i.agent or "", "dim")),
    _ListColumn(TableColumn("CWD", extra=13, whole=True), _cwd),
    _ListColumn(
        TableColumn("BRANCHES", extra=12, right=True, whole=True),
        lambda i, _: f"{i.branches:,}" if i.branches > 1 else "",
    ),
    _ListColumn(
        TableColumn("FORKS", extra=11, right=True, whole=True),
        lambda i, _: f"{i.forks:,}" if i.forks else "",
    ),
    _ListColumn(
        TableColumn("FROM", extra=4, whole=True),
        lambda i, out: (f"{i.relation} {_short(i.parent, out)}" if i.parent else "", "cyan"),
    ),
    _ListColumn(TableColumn("TITLE"), _title, always=True),
)


def _draw(out: Screen, found: list[SessionInfo]) -> None:
    if not found:
        out.line("No sessions.")
        return
    cells = [[shown.cell(info, out) for info in found] for shown in _COLUMNS]
    filled = [
        (shown.column, column)
        for shown, column in zip(_COLUMNS, cells, strict=True)
        if shown.always or any(_text(cell) for cell in column)
    ]
    columns, contents = zip(*filled, strict=True)
    out.table(columns, zip(*contents, strict=True))


def _text(span: Span) -> str:
    return span if isinstance(span, str) else span[0]


def _print_omitted(
    out: Screen, opened: holdfast.Store, wanted: ListFilter, shown: int, cursor: str | None
) -> None:
    """Print what was not listed, as far as it is known without reading the whole store."""
    if cursor is not None:
        text = f"There are more: --limit {shown * 2}, or --all; from here: --cursor {cursor}"
        out.line((text, "dim"))
    elif wanted.archived is False:
        hidden, more = find(opened, wanted._replace(archived=True), _MAX_COUNTED)
        if hidden:
            number = f"more than {_MAX_COUNTED:,}" if more else f"{len(hidden):,}"
            out.line((f"Not listed: {number} archived (--archived or --all)", "dim"))


def _print_no_store(what: str, *, as_json: bool) -> None:
    if as_json:
        print_document([])
        return
    out = screen()
    out.line(f"T{what[1:]}.")
    out.line("Start with:  ", ('holdfast append my-first-session "Hello"', "bold"))


def _warn_damage(opened: holdfast.Store, found: list[SessionInfo]) -> None:
    damaged = sum(info.state == "damaged" for info in found)
    if damaged:
        several = count(damaged, "session is", "sessions are")
        print_error(f"{several} damaged and may be listed incorrectly", _DOCTOR_HINT)
    elif opened.damage:
        print_error("something in this store cannot be read", _DOCTOR_HINT)
