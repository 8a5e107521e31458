"""`holdfast fork`: a new session that starts with the history of another."""

from __future__ import annotations

import click

from holdfast.cli import params
from holdfast.cli.command import command
from holdfast.cli.commands.undo import cut_note
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import command_line, full_name, short_name
from holdfast.cli.output.screen import screen
from holdfast.cli.store_access import open_existing


@command(
    "holdfast fork support-42",
    'holdfast fork support-42 --at 5 --key another-try --title "Another try"',
    "holdfast fork support-42 --at 5 --branch 1   # also on an earlier branch",
)
@click.argument("ref")
@click.option(
    "--at",
    metavar="MESSAGE",
    help="The last message they share: its number or its id.  [default: the newest]",
)
@click.option(
    "--branch", "-b", type=click.IntRange(min=1), help="The branch on which that number is."
)
@click.option("--key", type=params.UTF8_TEXT, help="A unique name that you choose.")
@click.option("--title", type=params.UTF8_TEXT, help="The title shown in lists.")
@click.option("--model", type=params.UTF8_TEXT, help="The model that answers.  [default: the same]")
@click.option(
    "--cwd", type=params.DIRECTORY, metavar="DIR", help="Its directory.  [default: the same]"
)
@click.option(
    "--meta", type=params.UTF8_TEXT, multiple=True, metavar="NAME=TEXT", help=params.METADATA_HELP
)
def fork(
    *,
    ref: str,
    at: str | None,
    branch: int | None,
    key: str | None,
    title: str | None,
    model: str | None,
    cwd: str | None,
    meta: tuple[str, ...],
    store: str | None,
    as_json: bool,
) -> None:
    """Fork a new session at any message.

    Nothing is copied, however long the history is, and the original stays as it is. Inside a tool
    call the fork starts before the call.
    """
    metadata = params.parse_metadata(meta)
    if at is None and branch is not None:
        raise click.UsageError("--branch needs --at and a message's number.")
    position = None if at is None else params.parse_position(at, branch)
    with open_existing(store) as opened:
        session = opened.get(ref)
        made = session.fork(
            position, key=key, title=title, model=model, cwd=cwd, metadata=metadata or None
        )
        start = made.branches()[0]
    if as_json:
        print_document(
            {
                "session": made.id,
                "key": made.key,
                "parent": session.id,
                "asked": start.asked_seq,
                "head": start.head,
            }
        )
        return
    screen().line(
        "new session ",
        (full_name(made), "cyan"),
        f" forked from {short_name(session)} at {start.fork_seq}{cut_note(start)}; "
        f"to take it back: {command_line('trash', made, store=store)}",
    )
