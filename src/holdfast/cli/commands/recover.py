"""`holdfast recover`: close turns that a crash left open."""

from __future__ import annotations

from collections.abc import Iterator

import click

import holdfast
from holdfast.cli.command import command
from holdfast.cli.output.humanize import count, local_time
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.store_access import NoStoreYet, open_or_create, require_store
from holdfast.errors import SessionBusy
from holdfast.values import Recovered


@command(
    "holdfast recover support-42",
    "holdfast recover --all",
    "holdfast recover --all --json",
)
@click.argument("ref", required=False)
@click.option("--all", "everything", is_flag=True, help="Every interrupted session of the store.")
def recover(*, ref: str | None, everything: bool, store: str | None, as_json: bool) -> None:
    """Close turns that a crash left open, keeping all of them.

    What was streamed becomes a message marked partial; the outcome of a tool call that had
    started is recorded as unknown, and it is not run again. A turn whose holder is alive is not
    closed (exit code 4).
    """
    if (ref is None) != everything:
        raise click.UsageError("Name one session, or pass --all.")
    found = _recover_all(store) if ref is None else _recover_one(store, ref)
    if as_json:
        print_document([{"session": id, "recovered": what} for id, what in found])
        return
    out = screen()
    for session_id, what in found:
        _print_report(out, session_id, what)
    if ref is None and not found:
        out.line("Nothing to recover.")


def _recover_one(store: str | None, ref: str) -> list[tuple[str, Recovered | None]]:
    require_store(store)
    with open_or_create(store) as opened:
        session = opened.get(ref)
        return [(session.id, session.recover())]


def _recover_all(store: str | None) -> list[tuple[str, Recovered | None]]:
    try:
        require_store(store)
    except NoStoreYet:
        return []
    with open_or_create(store) as opened:
        return [(session.id, what) for session, what in recover_all(opened)]


def recover_all(opened: holdfast.Store) -> Iterator[tuple[holdfast.Session, Recovered]]:
    """Recover every interrupted session, except those that another process continues meanwhile."""
    for session in interrupted_sessions(opened):
        what = _recover_unless_busy(session)
        if what is not None:
            yield session, what


def _recover_unless_busy(session: holdfast.Session) -> Recovered | None:
    try:
        return session.recover()
    except SessionBusy:
        return None  # Another process started a turn meanwhile, which recovered it.


def interrupted_sessions(opened: holdfast.Store) -> Iterator[holdfast.Session]:
    """Yield the interrupted sessions, trashed ones included; fast if no turn is open."""
    if not opened.stats().open_turns:
        return
    for trashed in (False, True):
        cursor: str | None = None
        while True:
            page = opened.sessions(trashed=trashed, limit=500, cursor=cursor)
            # Recovered sessions move to the front of the list, so take the cursor first.
            cursor = page.cursor
            yield from (opened.get(info.id) for info in page if info.interrupted)
            if cursor is None:
                break


def _print_report(out: Screen, session_id: str, what: Recovered | None) -> None:
    if what is None:
        out.line((session_id, "cyan"), ": nothing to recover")
        return
    out.line(
        (session_id, "cyan"),
        f": turn {what.turn_id.rpartition('.')[2]} of {local_time(what.since)} is closed as ",
        ("interrupted", "yellow"),
        f", with {count(what.messages, 'message')}",
    )
    if what.partial is not None:
        letters = count(len(what.partial.text), "character")
        out.line(f"  kept what was streamed ({letters}) as message {what.partial.seq}, partial")
    for call in what.unknown_tools:
        out.line("  tool call ", (call, "bold"), " had started: its outcome is unknown")
    for call in what.not_run_tools:
        out.line("  tool call ", (call, "bold"), " was not run")
