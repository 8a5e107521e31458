"""`holdfast export`: sessions as lines of JSON, for keeping, moving, or other programs.

A file is written whole or not at all, and is nobody else's to read. What is there is replaced only
when asked.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from holdfast.cli.command import ANY_REF, FILE, command
from holdfast.cli.machine import print_document
from holdfast.cli.opening import open_to_read
from holdfast.cli.problems import FOUND_A_PROBLEM, complain, hint
from holdfast.cli.screen import screen
from holdfast.cli.waiting import waiting
from holdfast.cli.wording import count, size
from holdfast.errors import Invalid
from holdfast.records import Damage, ExportReport

_MOST_TOLD: Final = 20


@command(
    "holdfast export -o everything.jsonl",
    "holdfast export support-42 -o parcel.jsonl --force",
    "holdfast export support-42 -o - | grep -c parcel",
    "holdfast export -o everything.jsonl --json",
)
@click.argument("refs", type=ANY_REF, metavar="[REF]...", nargs=-1)
@click.option(
    "--output",
    "-o",
    type=FILE,
    metavar="FILE",
    required=True,
    help='Where to write it; "-" is standard output.',
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there already.")
def export(
    *, refs: tuple[str, ...], output: str, force: bool, store: str | None, as_json: bool
) -> int:
    """Write sessions to a file that any program can read.

    Without REF it is every session, those in the trash included. Everything is there: branches,
    forks, turns, files, usage, times. `holdfast import` reads it into any store. The exit code is 1
    if a part of the store could not be read; all the rest is in the file then.
    """
    if output == "-" and as_json:
        raise click.UsageError("--json reports on a file; standard output is taken.")
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("This is not for a terminal; send it to a file or a program.")
    if output == "-":
        return _print(store, refs)
    report, damage = _write(store, refs, Path(output), overwrite=force)
    if as_json:
        print_document(report)
    else:
        _say(report)
    return _complain(damage)


def _say(report: ExportReport) -> None:
    files = f", {count(report.blobs, 'file')}" if report.blobs else ""
    screen().line(
        (report.path, "cyan"),
        f": {count(report.sessions, 'session')}, {count(report.messages, 'message')}{files}, "
        f"{size(report.size)}",
    )


def _write(
    store: str | None, refs: tuple[str, ...], to: Path, *, overwrite: bool
) -> tuple[ExportReport, list[Damage]]:
    with (
        open_to_read(store) as opened,
        waiting(f"writing {to.name}") as progress,
        hint(Invalid, "choose another FILE; --force replaces one that is there"),
    ):
        report = opened.export(to, *refs, overwrite=overwrite, progress=progress)
        return report, opened.damage


def _print(store: str | None, refs: tuple[str, ...]) -> int:
    """Write to standard output what was written whole to a file of our own."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        file = Path(directory) / "export.jsonl"
        _, damage = _write(store, refs, file, overwrite=False)
        sys.stdout.flush()
        with file.open("rb") as source:
            shutil.copyfileobj(source, sys.stdout.buffer)
    return _complain(damage)


def _complain(damage: list[Damage]) -> int:
    """Tell what could not be read; the file has stand-ins in its place."""
    for item in damage[:_MOST_TOLD]:
        where = "" if item.session_id is None else f"session {item.session_id}: "
        complain(f"{where}{item.what}")
    if damage:
        what = f"{count(len(damage), 'part')} of the store could not be read"
        complain(f"{what}; all the rest was exported", "`holdfast doctor` tells more")
    return FOUND_A_PROBLEM if damage else 0
