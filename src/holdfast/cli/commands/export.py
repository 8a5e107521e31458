"""`holdfast export`: sessions as JSON lines, to archive, to move, or for other programs.

A file is written completely or not at all, and only its owner may read it. An existing file is
replaced only with --force. Exported files are often shared, so secrets are redacted unless a whole
copy is requested, and every redaction is listed: with the file, or beforehand with --review.
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
from holdfast.cli.errors import PROBLEM_FOUND, hint, print_error
from holdfast.cli.output.humanize import count, short_id, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import PlainScreen, Screen, TableColumn, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.store_access import open_readonly
from holdfast.errors import Invalid
from holdfast.transfer.redact.secrets import ALL_NAMES, CATALOGUE
from holdfast.values import Damage, ExportReport, Redaction, Review

_MAX_LISTED: Final = 20
_NAMES: Final = ("default", "all", *ALL_NAMES)
_COLUMNS: Final = (
    TableColumn("SESSION", whole=True),
    TableColumn("MESSAGE", right=True),
    TableColumn("WHERE"),
    TableColumn("FOUND"),
    TableColumn("BEGINS", extra=2),
    TableColumn("DONE", extra=1),
)


class ExportRequest(NamedTuple):
    """What to export, from which store, and what to redact."""

    store: str | None
    refs: tuple[str, ...]
    redact: tuple[str, ...] | None


@command(
    "holdfast export -o everything.jsonl --no-redact",
    "holdfast export support-42 -o parcel.jsonl --force",
    "holdfast export support-42 --review   # what would be redacted",
    "holdfast export support-42 -o - --redact default --redact email | grep -c parcel",
    "holdfast export -o everything.jsonl --json",
)
@click.argument("refs", type=ANY_REF, metavar="[REF]...", nargs=-1)
@click.option(
    "--output", "-o", type=FILE, metavar="FILE", help='The file to write; "-" is standard output.'
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--redact",
    "names",
    type=click.Choice(_NAMES),
    metavar="NAME",
    multiple=True,
    help='Redact what these detectors find; "default" and "all" name several. Repeatable.',
)
@click.option("--no-redact", "whole", is_flag=True, help="Write a whole copy, secrets included.")
@click.option("--review", is_flag=True, help="List what would be redacted, and write nothing.")
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

    Without REF all sessions are exported, those in the trash included, with everything: branches,
    forks, turns, records, files, usage, times; and the records of the store. `holdfast import`
    reads the file into any store. The exit code is 1 if a part of the store could not be read; all
    the rest is in the file.

    Keys, tokens and passwords are redacted: each is replaced by text such as "[redacted: github
    token]", and they are listed. Signed thinking that contains one is left out. For a complete
    copy, to archive or to move, use --no-redact.
    """
    if detectors:
        _list_detectors(as_json=as_json)
        return 0
    if whole and (names or review):
        raise click.UsageError("--no-redact cannot be combined with --redact or --review.")
    request = ExportRequest(store, refs, None if whole else names or ("default",))
    if review:
        return _review(request, as_json=as_json)
    if output is None:
        raise click.UsageError("Missing option '--output' / '-o'.")
    if output == "-":
        return _write_to_stdout(request, as_json=as_json)
    report, damage = _write(request, Path(output), overwrite=force)
    if as_json:
        print_document(report)
    else:
        _print_report(screen(), report)
    return _report_damage(damage)


def _write(
    request: ExportRequest, to: Path, *, overwrite: bool
) -> tuple[ExportReport, list[Damage]]:
    with (
        open_readonly(request.store) as opened,
        spinner(f"writing {to.name}") as progress,
        hint(Invalid, "choose another FILE; --force replaces one that is there"),
    ):
        report = opened.export(
            to, *request.refs, overwrite=overwrite, redact=request.redact, progress=progress
        )
        return report, opened.damage


def _write_to_stdout(request: ExportRequest, *, as_json: bool) -> int:
    """Export to a temporary file and, once it is complete, write it to standard output."""
    if as_json:
        raise click.UsageError("--json needs a FILE: standard output holds the export itself.")
    if sys.stdout.isatty():
        raise click.UsageError(
            "Exports are not written to a terminal; redirect the output to a file or a program."
        )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as directory:
        file = Path(directory) / "export.jsonl"
        report, damage = _write(request, file, overwrite=False)
        source = file.open("rb")
    # The file has lost its name: a process that is killed now leaves nothing of it.
    with source:
        sys.stdout.flush()
        shutil.copyfileobj(source, sys.stdout.buffer)
    if report.review is not None:
        _print_review(PlainScreen(sys.stderr), report.review)
    return _report_damage(damage)


# -------------------------------------------------------------------------------- what was found


def _review(request: ExportRequest, *, as_json: bool) -> int:
    with open_readonly(request.store) as opened, spinner("looking for secrets") as progress:
        found = opened.review(*request.refs, redact=request.redact, progress=progress)
        damage = opened.damage
    if as_json:
        print_document(found)
        return _report_damage(damage)
    out = screen()
    if found.findings:
        _table(out, found.findings)
    more = found.replaced + found.left_out + found.not_looked_into - len(found.findings)
    if more:
        out.line(f"and {more:,} more")
    out.line(_summarize(found) or "nothing was found", "; nothing was written")
    return _report_damage(damage)


def _print_report(out: Screen, report: ExportReport) -> None:
    held = [count(report.sessions, "session"), count(report.messages, "message")]
    held += [count(report.records, "record")] if report.records else []
    held += [count(report.blobs, "file")] if report.blobs else []
    out.line((report.path, "cyan"), f": {', '.join(held)}, {size(report.size)}")
    if report.review is not None:
        _print_review(out, report.review)


def _print_review(out: Screen, review: Review) -> None:
    """List what was redacted; of files that were not searched, print only the number."""
    summary = _summarize(review)
    if not summary:
        return
    out.line(summary)
    done = [one for one in review.findings if one.action != "not looked into"]
    if done:
        _table(out, done[:_MAX_LISTED])
    more = review.replaced + review.left_out - min(len(done), _MAX_LISTED)
    if more:
        out.line(f"and {more:,} more; --review lists them")


def _summarize(review: Review) -> str:
    facts = []
    if review.replaced:
        facts.append(f"{count(review.replaced, 'secret')} replaced")
    if review.left_out:
        facts.append(f"{review.left_out:,} left out")
    if review.not_looked_into:
        facts.append(f"{count(review.not_looked_into, 'file')} not looked into")
    return ", ".join(facts)


def _table(out: Screen, findings: Sequence[Redaction]) -> None:
    out.table(
        _COLUMNS,
        [
            (
                ("" if one.session_id is None else short_id(one.session_id), "cyan"),
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
        (TableColumn("NAME", whole=True), TableColumn("DEFAULT"), TableColumn("FINDS")),
        [((one.name, "cyan"), "yes" if one.default else "", one.finds) for one in CATALOGUE],
    )


# ----------------------------------------------------------------------------- what went wrong


def _report_damage(damage: list[Damage]) -> int:
    """Report what could not be read; the file has placeholders for it."""
    for item in damage[:_MAX_LISTED]:
        where = "" if item.session_id is None else f"session {item.session_id}: "
        print_error(f"{where}{item.what}")
    if damage:
        what = f"{count(len(damage), 'part')} of the store could not be read"
        print_error(f"{what}; all the rest was exported", "`holdfast doctor` shows details")
    return PROBLEM_FOUND if damage else 0
