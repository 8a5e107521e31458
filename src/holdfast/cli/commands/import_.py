"""`holdfast import`: read what `holdfast export` wrote.

A session that exists already is not changed, so the same file may be imported again. Lines that
cannot be read are reported and skipped.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from holdfast.titles import shorten
from holdfast.values import Demotion, ImportReport

_MAX_LISTED: Final = 20
_MAX_NAMED: Final = 5


@command(
    "holdfast import everything.jsonl",
    "holdfast import --store another.db everything.jsonl parcel.jsonl",
    "holdfast import --trust everything.jsonl",
    "holdfast export --no-redact -o - | holdfast import --trust --store another.db -",
)
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
)
@click.option(
    "--trust", is_flag=True, help="The files are my own: import them exactly as they are."
)
def import_(*, files: tuple[str, ...], trust: bool, store: str | None, as_json: bool) -> int:
    """Import sessions from an exported file.

    FILE is what `holdfast export` wrote; "-" is standard input. Sessions that are in the store
    already are not changed: importing a file twice adds nothing. The exit code is 1 if a part of it
    could not be read; all the rest was imported.

    A file may come from a stranger, so nothing in it acts by itself: system messages become user
    messages, queued input is held, an active goal is paused, records get other kinds, and a session
    has no directory, key, scope, agent or pin of its own, until you give it one. What was changed
    is printed. --trust is for files that you exported yourself; then records of the store are
    imported, too, where it has none of the same scope, kind and key.
    """
    reports: list[tuple[str, ImportReport]] = []
    with open_or_create(store) as opened:
        for name in files:
            with _input_file(name) as path, spinner(f"reading {name}") as progress:
                reports.append((name, opened.import_(path, trust=trust, progress=progress)))
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
    """Yield the file's path; standard input is copied to a temporary file.

    That has no name in a directory, so a process that is killed leaves nothing of it.
    """
    if name != "-":
        yield Path(name)
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(f"/dev/fd/{copy.fileno()}")


def _print_report(out: Screen, name: str, report: ImportReport) -> None:
    there = f"{count(len(report.skipped), 'session')} there already" if report.skipped else ""
    if report.sessions:
        held = [count(report.sessions, "session"), count(report.messages, "message")]
        held += [count(report.records, "record")] if report.records else []
        added = f"{', '.join(held)} added"
        result = f"{added}; {there}" if there else added
    else:
        result = f"nothing added, {there or 'it holds no session'}"
    how = " (redacted)" if report.redacted else ""
    out.line((name, "cyan"), f"{how}: {result}")
    if report.store_records:
        out.fact("  records of the store added: ", f"{report.store_records:,}")
    if report.records_left_out:
        out.fact("  records of the store left out: ", f"{report.records_left_out:,}")
    if report.demotions:
        _print_demotions(out, report.demotions)


def _print_demotions(out: Screen, demotions: Sequence[Demotion]) -> None:
    """Print what was changed because the file may be a stranger's."""
    for heading, values in (
        ("no longer found by key", [one.key for one in demotions]),
        ("not in scope", [one.scope for one in demotions]),
        ("not of agent", [one.agent for one in demotions]),
        ("not in directory", [one.cwd for one in demotions]),
        ("goal paused", [one.goal for one in demotions]),
    ):
        given = list(dict.fromkeys(shorten(value) for value in values if value is not None))
        if given:
            more = f" and {len(given) - _MAX_NAMED:,} more" if len(given) > _MAX_NAMED else ""
            out.fact(f"  {heading}: ", ", ".join(given[:_MAX_NAMED]) + more)
    for heading, number in (
        ("system messages made user messages", sum(one.system for one in demotions)),
        ("queued input held", sum(one.queued for one in demotions)),
        ("no longer pinned", sum(one.pinned for one in demotions)),
        ("messages with provider data that is not sent", sum(one.raw for one in demotions)),
        ("records whose kinds begin with imported: now", sum(one.records for one in demotions)),
    ):
        if number:
            out.fact(f"  {heading}: ", f"{number:,}")
    out.line(
        ("  nothing in it acts by itself; --trust imports your own archives as they are", "dim")
    )


def _report_damage(name: str, report: ImportReport) -> None:
    for damage in report.damage[:_MAX_LISTED]:
        print_error(f"{name}: {damage.what}")
    if len(report.damage) > _MAX_LISTED:
        print_error(f"{name}: and {len(report.damage) - _MAX_LISTED:,} more; --json lists all")
    print_error(
        f"{name}: {count(len(report.damage), 'part')} could not be read; all the rest is there",
        "import a whole copy into another store: what is here already stays as it is",
    )
