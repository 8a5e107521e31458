"""`holdfast search`: full-text search.

Each hit is two lines: its location, and a snippet with the matches in colour. The store is opened
for writing if possible, so that the search index can be updated; a read-only store is searched too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

import click

import holdfast
from holdfast.cli.command import REF, command
from holdfast.cli.output.humanize import ago, count, short_id, shorten
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import command_line
from holdfast.cli.output.screen import Screen, Span, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.store_access import open_readonly, require_store
from holdfast.errors import NotFound, StorageError
from holdfast.values import Hit, Message, Page, Role

_MATCH: Final = "bold yellow"
_NEIGHBOUR_CHARS: Final = 120


@command(
    "holdfast search parcel",
    "holdfast search 'parcel -letter since:7d'",
    "holdfast search '\"where is my parcel\"' --role user",
    "holdfast search gateway/run.py --scope telegram --around 2",
    "holdfast search --literal 'TODO: \"fix\" -x'",
    "holdfast search oslo --session support-42 --all-branches",
    "holdfast search parcel --json",
)
@click.argument("query", nargs=-1, required=True)
@click.option("--scope", help="Only in sessions of this scope.")
@click.option("--agent", help="Only in sessions of this agent.")
@click.option("--role", type=click.Choice(get_args(Role)), help="Only messages of this role.")
@click.option("--since", metavar="TIME", help="Only what was said since: 7d, 12h, 2026-01-31.")
@click.option("--until", metavar="TIME", help="Only what was said until then.")
@click.option("--session", type=REF, metavar="REF", help="Only in this session: every match.")
@click.option("--literal", is_flag=True, help="Search the query as plain text, without operators.")
@click.option("--thinking", is_flag=True, help="Search the models' thinking, too.")
@click.option("--all-branches", is_flag=True, help="Search undone and replaced messages, too.")
@click.option(
    "--around", default=0, type=click.IntRange(0, 100), help="Show this many messages around each."
)
@click.option("--limit", default=20, type=click.IntRange(1, 1000), show_default=True)
@click.option("--cursor", help="Continue after a page; --json prints the cursor of the next one.")
def search(
    *,
    query: tuple[str, ...],
    scope: str | None,
    agent: str | None,
    role: Role | None,
    since: str | None,
    until: str | None,
    session: str | None,
    literal: bool,
    thinking: bool,
    all_branches: bool,
    around: int,
    limit: int,
    cursor: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Find what was said.

    QUERY is words, all of which must match; "a phrase"; a prefix: pre*; an excluded word: -word.
    And filters: role:user, scope:x, agent:x, session:REF, title:word, since:7d, until:2026-01-31.
    Anything else is text. Put -- before a query that starts with -.

    Titles, texts, tool calls and their results are searched; accents and capitals do not matter.
    Of several matches in sessions that were forked from each other, the best is shown. `holdfast
    show REF --at NUMBER` goes there. Trashed sessions are not searched.
    """
    require_store(store)
    with _open(store) as opened:
        with spinner("Searching") as progress:
            opened.catch_up_index(progress)
            found = opened.search(
                " ".join(query),
                scope=scope,
                agent=agent,
                role=role,
                since=since,
                until=until,
                session=session,
                literal=literal,
                thinking=thinking,
                all_branches=all_branches,
                around=around,
                limit=limit,
                cursor=cursor,
            )
        if as_json:
            print_document(found)
        else:
            _draw(screen(), opened, found)
            _print_show_command(screen(), opened, found, store, by_id=all_branches)


def _open(store: str | None) -> holdfast.Store:
    """Open an existing store, for writing if possible."""
    try:
        return holdfast.open(store)
    except StorageError:
        return open_readonly(store)


# --------------------------------------------------------------------------------------- drawing


def _draw(out: Screen, opened: holdfast.Store, found: Page[Hit]) -> None:
    if not found.items:
        out.line("Nothing found.")
    for hit in found:
        for message in hit.before:
            _draw_neighbour(out, message)
        out.line(*_location(opened, hit))
        out.line("  ", *_snippet_spans(hit))
        for message in hit.after:
            _draw_neighbour(out, message)
        if hit.before or hit.after:
            out.line()
    if found.cursor is not None:
        out.line((f"There are more: --limit {min(1000, 2 * len(found))}", "dim"))
    if found.behind:
        missed = count(found.behind, "older message")
        out.line((f"The index is still catching up: {missed} not searched yet", "yellow"))


def _print_show_command(
    out: Screen, opened: holdfast.Store, found: Page[Hit], store: str | None, *, by_id: bool
) -> None:
    """Print, on a terminal, the command that shows the first hit."""
    first = next((hit for hit in found if hit.message_id is not None), None)
    if not out.terminal or first is None:
        return
    # A number is one of the current history; an id is found on every branch.
    at = first.message_id if by_id else str(first.seq)
    there = command_line("show", opened.get(first.session_id), "--at", at or "", store=store)
    out.line()
    out.line(("To go there:  ", "dim"), there)


def _location(opened: holdfast.Store, hit: Hit) -> Iterator[Span]:
    """Yield the location of a hit: session, message, time, title, number of other matches."""
    yield _name(opened, hit), "bold"
    if hit.seq is None:
        yield "  title", "cyan"
    else:
        yield f"  #{hit.seq} {hit.role}", "cyan"
    yield f"  {ago(hit.created_at)}", "dim"
    if hit.title is not None and hit.seq is not None:
        yield f"  {shorten(hit.title, 60)}", ""
    if hit.more:
        yield f"  and {count(hit.more, 'more match', 'more matches')}", "dim"


def _name(opened: holdfast.Store, hit: Hit) -> str:
    try:
        return opened.get(hit.session_id).key or short_id(hit.session_id)
    except NotFound:  # It was trashed meanwhile.
        return short_id(hit.session_id)


def _snippet_spans(hit: Hit) -> Iterator[Span]:
    """Yield a snippet in spans, with the matches styled."""
    at = 0
    for start, end in hit.marks:
        yield hit.snippet[at:start]
        yield hit.snippet[start:end], _MATCH
        at = end
    yield hit.snippet[at:]


def _draw_neighbour(out: Screen, message: Message) -> None:
    text = shorten(message.text, _NEIGHBOUR_CHARS) or ", ".join(
        call.name for call in message.tool_calls
    )
    out.line((f"    #{message.seq} {message.role}  {text}", "dim"))
