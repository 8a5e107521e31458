"""`holdfast prune`: move old sessions to the trash by rules, and empty the trash.

It previews what would be removed and why, and changes nothing without --apply. With --apply it asks
first, like `purge`; where it cannot ask, --yes is required.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from holdfast.cli import errors
from holdfast.cli.command import FILE, command
from holdfast.cli.erasure_report import (
    delete_input_history,
    exit_code,
    print_proof,
    require_confirmation,
)
from holdfast.cli.errors import hint
from holdfast.cli.output.humanize import ago, count, short_id, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, TableColumn, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.params import UTF8_TEXT
from holdfast.cli.store_access import open_existing, open_readonly
from holdfast.errors import Invalid
from holdfast.values import Plan, PlanItem, RetentionReport, Spared

_SIZE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?([kmgt]?)(i?)b?", re.IGNORECASE)
_UNIT_PREFIXES: Final = " kmgt"
_MAX_SPARED: Final = 20
_COLUMNS: Final = (
    TableColumn("ID", whole=True),
    TableColumn("ACTION", whole=True),
    TableColumn("ACTIVE", extra=1),
    TableColumn("SIZE", extra=2, right=True),
    TableColumn("WHY", whole=True),
    TableColumn("TITLE"),
)


def _parse_size(text: str) -> int:
    """Return the bytes of a size: `500MB`, `1.5 GiB`, `1000000`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r}: expected a size such as 500MB or 2GiB.")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** _UNIT_PREFIXES.index(found[2].lower() or " "))


@command(
    "holdfast prune --older-than 90d",
    "holdfast prune --idle 30d --keep-last 100 --scope telegram",
    "holdfast prune --max-bytes 500MB --archive old.jsonl --apply --yes",
    "holdfast prune --empty-trash 30d --apply --yes",
    "holdfast prune --idle 1y --json",
)
@click.option(
    "--older-than", metavar="TIME", help="Created, and last written to, longer ago than this."
)
@click.option("--idle", metavar="TIME", help="Not written to for this long, whenever created.")
@click.option(
    "--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the N most recent ones."
)
@click.option("--scope", type=UTF8_TEXT, help="Only those of this scope.")
@click.option(
    "--max-bytes",
    type=_parse_size,
    metavar="SIZE",
    help="The oldest, until the rest fits into this size.",
)
@click.option(
    "--empty-trash", metavar="TIME", help="Erase for good what has been in the trash for this long."
)
@click.option(
    "--archive", type=FILE, metavar="FILE", help="Export them first, and verify the file."
)
@click.option("--apply", "do_it", is_flag=True, help="Do it; without this nothing is changed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def prune(
    *,
    older_than: str | None,
    idle: str | None,
    keep_last: int | None,
    scope: str | None,
    max_bytes: int | None,
    empty_trash: str | None,
    archive: str | None,
    do_it: bool,
    yes: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Clean up old sessions, by rules that you give.

    Without --apply it only shows what would be removed, and why. Removed sessions are moved to the
    trash; only --empty-trash erases. Pinned sessions, open ones, and those that others were forked
    from stay. Age is the time since a session was last written to; with --idle, --older-than is the
    time since it was created. --keep-last alone removes all others. TIME is 12h, 30d, 8w, 6m or 1y.
    """
    rules: dict[str, Any] = {
        "older_than": older_than,
        "idle": idle,
        "keep_last": keep_last,
        "max_bytes": max_bytes,
        "empty_trash": empty_trash,
    }
    if all(rule is None for rule in rules.values()):
        raise click.UsageError("Give at least one rule, such as --older-than or --idle.")
    if do_it:
        require_confirmation(yes=yes, as_json=as_json, done="changed")
    with open_existing(store) if do_it else open_readonly(store) as opened:
        plan = opened.retention(scope=scope, **rules)
        if not do_it:
            _show(plan, as_json=as_json)
            return 0
        if not plan.items or not (yes or _confirmed(plan)):
            return _change_nothing(plan, as_json=as_json)
        if plan.purge:
            delete_input_history()
        with (
            spinner("pruning") as progress,
            hint(Invalid, "choose another FILE for --archive"),
        ):
            report = opened.apply(plan, archive=archive, progress=progress)
    if as_json:
        print_document(report)
    else:
        _print_report(screen(), report)
    return exit_code(report.pending, report.scan)


def _change_nothing(plan: Plan, *, as_json: bool) -> int:
    """Change nothing, because no session matches or the user declined."""
    if plan.items:
        screen().line("Nothing was changed.")
        return errors.DECLINED
    if as_json:
        nothing: tuple[str, ...] = ()
        print_document(
            RetentionReport(
                trashed=nothing,
                purged=nothing,
                spared=plan.spared,
                frees=0,
                archive=None,
                pending=nothing,
                scan=None,
            )
        )
    else:
        _show(plan, as_json=False)
    return 0


# ------------------------------------------------------------------------------------------- before


def _show(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_document(plan)
        return
    out = screen()
    _draw(out, plan)
    if plan.items:
        out.line("Preview only: add --apply to do it.")


def _draw(out: Screen, plan: Plan) -> None:
    if plan.items:
        out.table(_COLUMNS, [_row(item) for item in plan.items])
    for line in _totals(plan):
        out.line(line)
    _print_spared(out, plan.spared)


def _row(item: PlanItem) -> list[str]:
    return [
        short_id(item.session_id),
        item.action,
        ago(item.last_activity),
        size(item.bytes),
        item.why,
        item.title or "(no title)",
    ]


def _totals(plan: Plan) -> list[str]:
    if not plan.items:
        return ["No session would be removed."]
    lines = []
    if plan.trash:
        amount = sum(item.bytes for item in plan.trash)
        lines.append(f"{count(len(plan.trash), 'session')} to the trash, about {size(amount)}")
    if plan.purge:
        amount = sum(item.bytes for item in plan.purge)
        lines.append(f"{count(len(plan.purge), 'session')} to be erased, about {size(amount)}")
    if plan.keeps is not None:
        lines.append(f"about {size(plan.keeps)} stay")
    return lines


def _print_spared(out: Screen, spared: Sequence[Spared]) -> None:
    for one in spared[:_MAX_SPARED]:
        name = "a session" if one.session_id is None else short_id(one.session_id)
        out.line("stays: ", (name, "cyan"), f" ({one.title or 'no title'}): {one.why}")
    if len(spared) > _MAX_SPARED:
        out.line(f"and {len(spared) - _MAX_SPARED:,} more stay")


def _confirmed(plan: Plan) -> bool:
    out = screen()
    _draw(out, plan)
    out.flush()
    sys.stdout.flush()
    erased = " and erase those already there" if plan.purge else ""
    what = f"Move these to the trash{erased}?" if plan.trash else "Erase these for good?"
    return click.confirm(what, err=True)


# -------------------------------------------------------------------------------------------- after


def _print_report(out: Screen, report: RetentionReport) -> None:
    if report.archive is not None:
        kept = f"{count(report.archive.sessions, 'session')}, {size(report.archive.size)}"
        out.line((report.archive.path, "cyan"), f": {kept}, read back and verified")
    if report.trashed:
        thrown = count(len(report.trashed), "session")
        out.line(f"{thrown} in the trash; `holdfast restore` brings each back")
    if report.purged:
        out.line(f"erased {count(len(report.purged), 'session')}, about {size(report.frees)}")
    _print_spared(out, report.spared)
    print_proof(out, report.pending, report.scan)
