"""`holdfast append`: append a message to a session."""

from __future__ import annotations

from typing import Final

import click

import holdfast
from holdfast.cli import params
from holdfast.cli.command import REF, command
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import full_name
from holdfast.cli.output.screen import screen
from holdfast.cli.session_choice import find_or_create
from holdfast.cli.store_access import open_or_create, require_store
from holdfast.values import Head, Message, MessageFields

_CREATE_HINT: Final = "--no-create appends to that one, --create creates a new session"
_ROLES: Final = ("user", "assistant", "system")


@command(
    'holdfast append support-42 "Where is my parcel?"',
    'echo "It is on its way." | holdfast append support-42 --role assistant',
    'holdfast append support-42 "Paid." --id invoice-7   # stored once, however often it is run',
    "holdfast append --no-create support-42 - < notes.txt",
)
@click.argument("name", metavar="KEY-OR-REF", type=REF)
@click.argument("text", required=False)
@click.option("--role", type=click.Choice(_ROLES), default="user", show_default=True)
@click.option(
    "--id",
    "message_id",
    help="The message's id; a message that is stored already is not stored again.",
)
@click.option(
    "--create/--no-create",
    default=None,
    help="Create a session with this key, or never.  [default: if no session matches]",
)
def append(
    *,
    name: str,
    text: str | None,
    role: str,
    message_id: str | None,
    create: bool | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Append a message to a session.

    TEXT is read from standard input if it is omitted or "-"; one trailing newline is dropped.
    The message is on disk when the command returns. It prints the message's branch and number.
    """
    message = _message(role, params.read_text(text), message_id)
    if create is False:
        require_store(store)
    with open_or_create(store) as opened:
        session, created = find_or_create(
            opened, name, opened.session, create=create, advice=_CREATE_HINT
        )
        head = session.append(message)
    if as_json:
        print_document(
            {
                "session": session.id,
                "key": session.key,
                "created": created,
                "message": message.id,
                "head": head,
            }
        )
        return
    _print_result(session, head, created=created)


def _print_result(session: holdfast.Session, head: Head, *, created: bool) -> None:
    screen().line(
        f"{'new session' if created else 'session'} ",
        (full_name(session), "cyan"),
        f": branch {head.branch}, seq {head.seq}",
    )


def _message(role: str, text: str, message_id: str | None) -> Message:
    fields: MessageFields = {} if message_id is None else {"id": message_id}
    if role == "assistant":
        return Message.assistant(text, **fields)
    if role == "system":
        return Message.system(text, **fields)
    return Message.user(text, **fields)
