"""`holdfast import`: read what `holdfast export` wrote.

A session that exists already is not changed, so the same file may be imported again. Lines that
cannot be read are reported and skipped.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from holdfast.cli.command import command
from holdfast.cli.errors import PROBLEM_FOUND, print_error
from holdfast.cli.output.humanize import count
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.store_access import open_or_create
from holdfast.values import ImportReport

_MAX_LISTED: Final = 20


@command(
    "holdfast import everything.jsonl",
    "holdfast import --store another.db everything.jsonl parcel.jsonl",
    "holdfast export --no-redact -o - | holdfast import --store another.db -",
)
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)
def import_(*, files: tuple[str, ...], store: str | None, as_json: bool) -> int:
    """Import sessions from an exported file.

    FILE is what `holdfast export` wrote; "-" is standard input. Sessions that are in the store
    already are not changed: importing a file twice adds nothing. The exit code is 1 if a part of it
    could not be read; all the rest was imported.
    """
    reports: list[tuple[str, ImportReport]] = []
    with open_or_create(store) as opened:
        for name in files:
            with _input_file(name) as path, spinner(f"reading {name}") as progress:
                reports.append((name, opened.import_(path, progress=progress)))
    if as_json:
        print_document([{"file": name, "report": report} for name, report in reports])
    else:
        out = screen()
        for name, report in reports:
            _print_report(out, name, report)
    damaged = [(name, report) for name, report in reports if report.damage]
    for name, report in [] if as_json else damaged:
        _report_damage(name, report)
    return PROBLEM_FOUND if damaged else 0


@contextmanager
def _input_file(name: str) -> Iterator[Path]:
    """Yield the file's path; standard input is copied to a temporary file."""
    if name != "-":
        yield Path(name)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        path = Path(directory) / "import.jsonl"
        with path.open("wb") as copy:
            if sys.stdin is not None:  # It may have been closed before the program started.
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield path


def _print_report(out: Screen, name: str, report: ImportReport) -> None:
    there = f"{count(len(report.skipped), 'session')} there already" if report.skipped else ""
    if report.sessions:
        added = f"{count(report.sessions, 'session')}, {count(report.messages, 'message')} added"
        result = f"{added}; {there}" if there else added
    else:
        result = f"nothing added, {there or 'it holds no session'}"
    how = " (redacted)" if report.redacted else ""
    out.line((name, "cyan"), f"{how}: {result}")


def _report_damage(name: str, report: ImportReport) -> None:
    for damage in report.damage[:_MAX_LISTED]:
        print_error(f"{name}: {damage.what}")
    if len(report.damage) > _MAX_LISTED:
        print_error(f"{name}: and {len(report.damage) - _MAX_LISTED:,} more; --json lists all")
    print_error(
        f"{name}: {count(len(report.damage), 'part')} could not be read; all the rest is there",
        "import a whole copy into another store: what is here already stays as it is",
    )
