"""`holdfast backup`: a verified copy of the store."""

from __future__ import annotations

import click

from holdfast.cli.command import FILE, command
from holdfast.cli.output.humanize import count, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import screen
from holdfast.cli.store_access import open_readonly


@command(
    "holdfast backup backup.db",
    "holdfast backup --json backup-$(date +%F).db",
)
@click.argument("to", type=FILE)
def backup(*, to: str, store: str | None, as_json: bool) -> None:
    """Copy a store while it is in use, and verify the copy.

    TO must not exist yet. The copy is a store like any other: `holdfast ls --store TO`.
    """
    with open_readonly(store) as opened:
        report = opened.backup(to)
    if as_json:
        print_document(report)
        return
    screen().line(
        (report.path, "cyan"),
        f": {count(report.sessions, 'session')}, {count(report.messages, 'message')}, "
        f"{size(report.size)}, ",
        ("verified", "green"),
    )
