"""`holdfast new`: create a session, on its own or from a parent."""

from __future__ import annotations

from typing import Final, get_args

import click

from holdfast.cli import params
from holdfast.cli.command import REF, command
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import screen
from holdfast.cli.store_access import open_or_create, require_store
from holdfast.values import Relation

_RELATIONS: Final = get_args(Relation)


@command(
    "holdfast new",
    'holdfast new --key support-43 --title "A second parcel" --meta channel:=7',
    "holdfast new --parent support-42   # continues support-42, without copying it",
    "holdfast new --parent support-42 --relation delegate --agent researcher",
    'id=$(holdfast new) && holdfast append "$id" "Hello"',
)
@click.option("--key", type=params.UTF8_TEXT, help="A unique name that you choose.")
@click.option("--title", type=params.UTF8_TEXT, help="The title shown in lists.")
@click.option("--scope", type=params.UTF8_TEXT, help="What it belongs to: a channel, a workspace.")
@click.option("--agent", type=params.UTF8_TEXT, help="The agent that answers in it.")
@click.option("--model", type=params.UTF8_TEXT, help="The model that answers.")
@click.option("--cwd", type=params.DIRECTORY, metavar="DIR", help="Its working directory.")
@click.option(
    "--meta", type=params.UTF8_TEXT, multiple=True, metavar="NAME=TEXT", help=params.METADATA_HELP
)
@click.option("--parent", type=REF, metavar="REF", help="The session it comes from.")
@click.option(
    "--relation",
    type=click.Choice(_RELATIONS),
    help="How it relates to its parent: continue and fork start with the parent's history, the "
    "others empty.  [default: continue]",
)
def new(
    *,
    key: str | None,
    title: str | None,
    scope: str | None,
    agent: str | None,
    model: str | None,
    cwd: str | None,
    meta: tuple[str, ...],
    parent: str | None,
    relation: Relation | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Create a session.

    It prints only the new session's id. Without options the session is empty and is named by its
    id. The store is created if there is none.
    """
    metadata = params.parse_metadata(meta)
    if relation is not None and parent is None:
        raise click.UsageError("--relation needs a --parent.")
    if parent is not None:
        require_store(store)
    with open_or_create(store) as opened:
        session = opened.create(
            key=key,
            parent=parent,
            relation=relation or "continue",
            scope=scope,
            title=title,
            agent=agent,
            model=model,
            cwd=cwd,
            metadata=metadata,
        )
        if as_json:
            print_document(session.info())
        else:
            screen().line((session.id, "cyan"))
