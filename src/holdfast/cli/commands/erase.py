"""`holdfast erase`: erase the content of one message, wherever it is shared.

Like `purge` it cannot be undone, so it shows the message and asks first.
"""

from __future__ import annotations

import click

import holdfast
from holdfast.cli import errors, params
from holdfast.cli.command import ANY_REF, command
from holdfast.cli.erasure_report import (
    delete_input_history,
    exit_code,
    print_proof,
    require_confirmation,
)
from holdfast.cli.output.humanize import count, local_time, shorten, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import full_name
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.store_access import open_existing
from holdfast.cli.trash_lookup import find_any
from holdfast.errors import MessageNotFound
from holdfast.values import EraseReport, Head, Message, MessageRef


@command(
    "holdfast erase --yes support-42 3",
    "holdfast erase --yes support-42 3 --branch 1   # also on an earlier branch",
    "holdfast erase --yes --json support-42 3",
)
@click.argument("ref", type=ANY_REF)
@click.argument("message", metavar="MESSAGE")
@click.option(
    "--branch", "-b", type=click.IntRange(min=1), help="The branch on which that number is."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def erase(
    *, ref: str, message: str, branch: int | None, yes: bool, store: str | None, as_json: bool
) -> int:
    """Erase one message for good, wherever it is shared.

    MESSAGE is its number or its id. Its content is erased in this session, in those it was forked
    from and in its forks, with files that no other message needs, and their bytes on the disk. Its
    number, id, role and time stay, so that nothing else moves; it is no longer sent to a model.
    What a title, a summary or another message quotes of it stays; copies beside the store that
    still hold it are named. It asks first; where it cannot ask, --yes is required.
    """
    require_confirmation(yes=yes, as_json=as_json)
    position = params.parse_position(message, branch)
    with open_existing(store) as opened:
        session = find_any(opened, ref)
        if not yes and not _confirmed(session, position):
            screen().line("Nothing was erased.")
            return errors.DECLINED
        delete_input_history()
        report = session.erase(position)
    if as_json:
        print_document(report)
    else:
        _print_report(screen(), full_name(session), report)
    return exit_code(report.pending, report.scan)


def _confirmed(session: holdfast.Session, position: MessageRef) -> bool:
    out = screen()
    out.line((full_name(session), "cyan"))
    found = _find(session, position)
    if found is not None:
        when = "" if found.created_at is None else f", {local_time(found.created_at)}"
        out.line(f"  message {found.seq}, {found.role}{when}: ", shorten(found.text))
    others = _count_sharing(session, 1 if found is None or found.seq is None else found.seq)
    if others:
        out.line(("  it may be shared", "yellow"), f" with {count(others, 'other session')}")
    out.flush()
    return click.confirm("Erase its content for good?", err=True)


def _count_sharing(session: holdfast.Session, seq: int) -> int:
    """Return how many parents and children of this session share the message."""
    *above, own = session.lineage()
    below = [link for link in session.children() if link.state != "purged"]
    return (len(above) if own.seq >= seq else 0) + sum(link.seq >= seq for link in below)


def _find(session: holdfast.Session, position: MessageRef) -> Message | None:
    """Return the message to erase; None if its id is not in the current history."""
    branch = position.branch if isinstance(position, Head) else None
    seq = position.seq if isinstance(position, Head) else position
    if isinstance(seq, str):
        return next((m for m in session.messages() if m.id == seq), None)
    found = session.messages(before=seq + 1, limit=1, branch=branch)
    if not found or found[0].seq != seq:
        raise MessageNotFound(f"there is no message {seq}; nothing was erased.")
    return found[0]


def _print_report(out: Screen, name: str, report: EraseReport) -> None:
    what = f"message {report.seq} of "
    if not report.places:
        out.line(what, (name, "cyan"), " was erased before; nothing was changed")
    else:
        files = f", {count(report.blobs, 'file')} ({size(report.blob_bytes)})"
        out.line("erased ", what, (name, "cyan"), files if report.blobs else "")
        others = [id for id in report.erased_in if id != report.session_id]
        if others:
            out.line(f"  gone also from {', '.join(others)}")
    print_proof(out, report.pending, report.scan)
