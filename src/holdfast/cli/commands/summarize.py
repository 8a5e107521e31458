"""`holdfast summarize`: store a summary that stands for earlier messages, which are all kept."""

from __future__ import annotations

import click

from holdfast.cli import params
from holdfast.cli.command import command
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import short_name
from holdfast.cli.output.screen import screen
from holdfast.cli.store_access import open_existing


@command(
    'holdfast summarize support-42 "The parcel is in Oslo."',
    'holdfast summarize support-42 "The parcel is in Oslo." --upto 5',
    "holdfast summarize support-42 - < notes.txt",
)
@click.argument("ref")
@click.argument("text", required=False)
@click.option(
    "--upto",
    metavar="MESSAGE",
    help="The last message it stands for: its number or its id.  [default: the newest]",
)
def summarize(
    *, ref: str, text: str | None, upto: str | None, store: str | None, as_json: bool
) -> None:
    """Store a summary that stands for the messages so far.

    A model is then sent the summary instead of these messages; they stay in the history, readable
    as before. TEXT is read from standard input if it is omitted or "-". `holdfast undo` undoes the
    summary together with the turn before it.
    """
    summary = params.read_text(text)
    position = None if upto is None else params.parse_position(upto, None)
    with open_existing(store) as opened:
        session = opened.get(ref)
        head = session.summarize(summary, upto=position)
        message = session.messages(branch=head.branch, after=head.seq - 1, limit=1)[0]
    if as_json:
        print_document(
            {
                "session": session.id,
                "key": session.key,
                "message": message.id,
                "covers": message.covers,
                "head": head,
            }
        )
        return
    screen().line(f"summary of {short_name(session)} stored as message {head.seq}")
