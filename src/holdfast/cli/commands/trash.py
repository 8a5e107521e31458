"""`holdfast trash` and `restore`: move sessions to the trash and back."""

from __future__ import annotations

import click

from holdfast.cli import errors
from holdfast.cli.command import TRASHED_REF, command
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import command_line, full_name
from holdfast.cli.output.screen import screen
from holdfast.cli.store_access import open_existing
from holdfast.cli.trash_lookup import find_any, find_trashed
from holdfast.errors import KeyTaken


@command(
    "holdfast trash support-42",
    "holdfast trash support-42 && holdfast restore support-42",
)
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
def trash(*, refs: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Move sessions to the trash; `restore` brings them back.

    They are no longer listed (`holdfast ls --trashed` lists them), and other sessions may use
    their keys. Nothing is erased, however long they stay there: `holdfast purge` does that.
    """
    with open_existing(store) as opened:
        ids = dict.fromkeys(find_any(opened, ref).id for ref in refs)
        thrown = [opened.trash(id) for id in ids]
    if as_json:
        print_document(thrown)
        return
    out = screen()
    for info in thrown:
        back = command_line("restore", info, store=store)
        out.line((full_name(info), "cyan"), f": in the trash; restore: {back}")


@command(
    "holdfast restore support-42",
    "holdfast restore support-42 --keyless",
    "holdfast restore support-42 --json",
)
@click.argument("ref", type=TRASHED_REF)
@click.option("--keyless", is_flag=True, help="Without its key, if another session has it now.")
def restore(*, ref: str, keyless: bool, store: str | None, as_json: bool) -> None:
    """Bring a session back from the trash.

    It is restored unchanged, its key included.
    """
    with open_existing(store) as opened:
        session = find_trashed(opened, ref)
        before = session.info()
        with errors.hint(KeyTaken, f"{command_line('restore', before, store=store)} --keyless"):
            info = opened.restore(session.id, keyless=keyless)
    if as_json:
        print_document(info)
        return
    outcome = "restored" if before.trashed else "is not in the trash"
    lost = f", without its key {before.key}" if before.key != info.key else ""
    screen().line((full_name(info), "cyan"), f": {outcome}{lost}")
