"""`holdfast export`: sessions as lines of JSON, for keeping, moving, or other programs.

A file is written whole or not at all, and is nobody else's to read. What is there is replaced only
when asked. Files get around, so secrets are left out of them unless a whole copy is asked for, and
every one that was is told: with the file, or before there is one.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click

from holdfast.cli.command import ANY_REF, FILE, command
from holdfast.cli.machine import print_document
from holdfast.cli.opening import open_to_read
from holdfast.cli.problems import FOUND_A_PROBLEM, complain, hint
from holdfast.cli.screen import Column, Pipe, Screen, screen
from holdfast.cli.waiting import waiting
from holdfast.cli.wording import count, short, size
from holdfast.core.redacting.finding import ALL, CATALOGUE
from holdfast.errors import Invalid
from holdfast.records import Damage, ExportReport, Redaction, Review

_MOST_TOLD: Final = 20
_NAMES: Final = ("default", "all", *ALL)
_COLUMNS: Final = (
    Column("SESSION", whole=True),
    Column("MESSAGE", right=True),
    Column("WHERE"),
    Column("FOUND"),
    Column("BEGINS", extra=2),
    Column("DONE", extra=1),
)


class Asked(NamedTuple):
    """What is to be exported from where, and without what."""

    store: str | None
    refs: tuple[str, ...]
    redact: tuple[str, ...] | None


@command(
    "holdfast export -o everything.jsonl --no-redact",
    "holdfast export support-42 -o parcel.jsonl --force",
    "holdfast export support-42 --review   # what would not be in it",
    "holdfast export support-42 -o - --redact default --redact email | grep -c parcel",
    "holdfast export -o everything.jsonl --json",
)
@click.argument("refs", type=ANY_REF, metavar="[REF]...", nargs=-1)
@click.option(
    "--output", "-o", type=FILE, metavar="FILE", help='Where to write it; "-" is standard output.'
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there already.")
@click.option(
    "--redact",
    "names",
    type=click.Choice(_NAMES),
    metavar="NAME",
    multiple=True,
    help='Leave out what these detectors find; "default" and "all" name several. Repeatable.',
)
@click.option("--no-redact", "whole", is_flag=True, help="Write a whole copy, secrets included.")
@click.option("--review", is_flag=True, help="List what would not be in it, and write nothing.")
@click.option("--detectors", is_flag=True, help="List the detectors.")
def export(
    *,
    refs: tuple[str, ...],
    output: str | None,
    force: bool,
    names: tuple[str, ...],
    whole: bool,
    review: bool,
    detectors: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Export sessions to a file that any program can read.

    Without REF it is every session, those in the trash included. Everything is there: branches,
    forks, turns, files, usage, times. `holdfast import` reads it into any store. The exit code is 1
    if a part of the store could not be read; all the rest is in the file then.

    Keys, tokens and passwords are not: "[redacted: github token]" stands in the place of each, and
    they are listed. Signed thinking that holds one is left out. For a copy that is as good as the
    store, to keep or to move, say --no-redact.
    """
    if detectors:
        _list_detectors(as_json=as_json)
        return 0
    if whole and (names or review):
        raise click.UsageError("--no-redact cannot be combined with --redact or --review.")
    asked = Asked(store, refs, None if whole else names or ("default",))
    if review:
        return _review(asked, as_json=as_json)
    if output is None:
        raise click.UsageError("Missing option '--output' / '-o'.")
    if output == "-":
        return _print(asked, as_json=as_json)
    report, damage = _write(asked, Path(output), overwrite=force)
    if as_json:
        print_document(report)
    else:
        _say(screen(), report)
    return _complain(damage)


def _write(asked: Asked, to: Path, *, overwrite: bool) -> tuple[ExportReport, list[Damage]]:
    with (
        open_to_read(asked.store) as opened,
        waiting(f"writing {to.name}") as progress,
        hint(Invalid, "choose another FILE; --force replaces one that is there"),
    ):
        report = opened.export(
            to, *asked.refs, overwrite=overwrite, redact=asked.redact, progress=progress
        )
        return report, opened.damage


def _print(asked: Asked, *, as_json: bool) -> int:
    """Write to standard output what was written whole to a file of our own."""
    if as_json:
        raise click.UsageError("--json needs a FILE: standard output holds the export itself.")
    if sys.stdout.isatty():
        raise click.UsageError(
            "Exports are not written to a terminal; redirect the output to a file or a program."
        )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        file = Path(directory) / "export.jsonl"
        report, damage = _write(asked, file, overwrite=False)
        sys.stdout.flush()
        with file.open("rb") as source:
            shutil.copyfileobj(source, sys.stdout.buffer)
    if report.review is not None:
        _tell(Pipe(sys.stderr), report.review)
    return _complain(damage)


# -------------------------------------------------------------------------------- what was found


def _review(asked: Asked, *, as_json: bool) -> int:
    with open_to_read(asked.store) as opened, waiting("looking for secrets") as progress:
        found = opened.review(*asked.refs, redact=asked.redact, progress=progress)
        damage = opened.damage
    if as_json:
        print_document(found)
        return _complain(damage)
    out = screen()
    if found.findings:
        _table(out, found.findings)
    more = found.replaced + found.left_out + found.not_looked_into - len(found.findings)
    if more:
        out.line(f"and {more:,} more")
    out.line(_summed_up(found) or "nothing was found", "; nothing was written")
    return _complain(damage)


def _say(out: Screen, report: ExportReport) -> None:
    files = f", {count(report.blobs, 'file')}" if report.blobs else ""
    out.line(
        (report.path, "cyan"),
        f": {count(report.sessions, 'session')}, {count(report.messages, 'message')}{files}, "
        f"{size(report.size)}",
    )
    if report.review is not None:
        _tell(out, report.review)


def _tell(out: Screen, review: Review) -> None:
    """Tell what is not in the file; of what was not looked into, only that it was not."""
    summary = _summed_up(review)
    if not summary:
        return
    out.line(summary)
    done = [one for one in review.findings if one.action != "not looked into"]
    if done:
        _table(out, done[:_MOST_TOLD])
    more = review.replaced + review.left_out - min(len(done), _MOST_TOLD)
    if more:
        out.line(f"and {more:,} more; --review lists them")


def _summed_up(review: Review) -> str:
    said = []
    if review.replaced:
        said.append(f"{count(review.replaced, 'secret')} replaced")
    if review.left_out:
        said.append(f"{review.left_out:,} left out")
    if review.not_looked_into:
        said.append(f"{count(review.not_looked_into, 'file')} not looked into")
    return ", ".join(said)


def _table(out: Screen, findings: Sequence[Redaction]) -> None:
    out.table(
        _COLUMNS,
        [
            (
                (short(one.session_id), "cyan"),
                "" if one.seq is None else str(one.seq),
                one.where,
                one.detector,
                one.preview,
                one.action,
            )
            for one in findings
        ],
    )


def _list_detectors(*, as_json: bool) -> None:
    if as_json:
        print_document(
            [
                {"name": one.name, "finds": one.finds, "mark": one.mark, "default": one.default}
                for one in CATALOGUE
            ]
        )
        return
    screen().table(
        (Column("NAME", whole=True), Column("DEFAULT"), Column("FINDS")),
        [((one.name, "cyan"), "yes" if one.default else "", one.finds) for one in CATALOGUE],
    )


# ----------------------------------------------------------------------------- what went wrong


def _complain(damage: list[Damage]) -> int:
    """Tell what could not be read; the file has stand-ins in its place."""
    for item in damage[:_MOST_TOLD]:
        where = "" if item.session_id is None else f"session {item.session_id}: "
        complain(f"{where}{item.what}")
    if damage:
        what = f"{count(len(damage), 'part')} of the store could not be read"
        complain(f"{what}; all the rest was exported", "`holdfast doctor` shows details")
    return FOUND_A_PROBLEM if damage else 0
