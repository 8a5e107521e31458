"""`holdfast restore-backup`: replace a store by a verified copy of a backup."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli import errors
from holdfast.cli.command import FILE, command
from holdfast.cli.erasure_report import require_confirmation
from holdfast.cli.output.humanize import count, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import screen
from holdfast.errors import Invalid
from holdfast.storage import registry
from holdfast.url import parse_url


@command(
    "holdfast restore-backup --yes backup.db",
    "holdfast restore-backup --yes --json backup.db",
)
@click.argument("file", type=FILE)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def restore_backup(*, file: str, yes: bool, store: str | None, as_json: bool) -> int:
    """Replace a store by a backup, and set aside what was there.

    FILE is a backup made by `holdfast backup`, or any store's file; it is verified first and not
    changed. The store that it replaces keeps all it has, under a new name beside it. No other
    process may have the store open. If it is interrupted, run it again. It asks first; where it
    cannot ask, --yes is required.
    """
    require_confirmation(yes=yes, as_json=as_json, done="restored")
    target = _store_file(store)
    if not yes and not click.confirm(f"Replace {target} by {file}?", err=True):
        screen().line("Nothing was restored.")
        return errors.DECLINED
    from holdfast.storage.sqlite.restore import restore_backup as restore

    report = restore(Path(os.path.abspath(file)), target)  # noqa: PTH100 - keeps symlinks
    if as_json:
        print_document(report)
        return 0
    out = screen()
    out.line(
        (report.path, "cyan"),
        f": {count(report.sessions, 'session')}, {count(report.messages, 'message')}, "
        f"{size(report.size)}, ",
        ("verified", "green"),
    )
    if report.replaced is not None:
        out.line("  what was there is now ", (report.replaced, "cyan"))
    return 0


def _store_file(store: str | None) -> Path:
    """Return the path of the store's file; raise `Invalid` if it has none."""
    location = parse_url(store, os.environ)
    path = registry.store_file(location)
    if path is None:
        shown = registry.find_backend(location.scheme).shown(location)
        raise Invalid(
            f"{shown} is not a file; nothing was restored. A PostgreSQL server is restored by its "
            "own tools, such as pg_restore (docs/postgresql.md)."
        )
    return path
