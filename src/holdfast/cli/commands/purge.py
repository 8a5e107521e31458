"""`holdfast purge`: erase sessions for good.

It cannot be undone, so at a terminal it shows what it will erase and asks; anywhere else --yes is
required. Every name is resolved before the first session is erased; one that matches both a live
and a trashed session is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click

import holdfast
from holdfast.cli import errors
from holdfast.cli.command import ANY_REF, command
from holdfast.cli.erasure_report import (
    delete_input_history,
    exit_code,
    print_proof,
    require_confirmation,
)
from holdfast.cli.output.humanize import ago, count, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.labels import full_name
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.store_access import open_existing
from holdfast.cli.trash_lookup import find_any
from holdfast.errors import NotFound
from holdfast.values import Forks, PurgeReport, SessionInfo

_MAX_NAMED: Final = 5


@command(
    "holdfast trash support-42 && holdfast purge --yes support-42",
    "holdfast purge --yes --forks erase support-42",
    "holdfast purge --yes --json support-42",
)
@click.argument("refs", type=ANY_REF, metavar="REF...", nargs=-1, required=True)
@click.option(
    "--forks",
    type=click.Choice(["keep", "erase"]),
    default="keep",
    show_default=True,
    help="History that forks share with it: keep it for them, or erase it there too.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def purge(
    *, refs: tuple[str, ...], forks: Forks, yes: bool, store: str | None, as_json: bool
) -> int:
    """Erase sessions for good.

    Messages, turns, files and their bytes on the disk are erased and cannot be restored. Afterwards
    all files of the store are searched for pieces of the erased text. Copies made with `holdfast
    export` or `holdfast backup` are yours to delete; those beside the store that still hold the
    text are named. It asks first; where it cannot ask, --yes is required.
    """
    require_confirmation(yes=yes, as_json=as_json)
    with open_existing(store) as opened:
        opened.finish_purges()  # An interrupted one of these sessions would not be found.
        found = {session.id: session for session in (find_any(opened, ref) for ref in refs)}
        if not yes and not _confirmed(opened, list(found.values()), forks):
            screen().line("Nothing was erased.")
            return errors.DECLINED
        delete_input_history()
        return _erase(opened, list(found.values()), forks, as_json=as_json)


# ------------------------------------------------------------------------------------------- before


def _confirmed(opened: holdfast.Store, found: list[holdfast.Session], forks: Forks) -> bool:
    out = screen()
    for session in found:
        _show(out, session.info(), list(_dependants(opened, session)), forks)
    out.flush()
    what = "it" if len(found) == 1 else f"these {len(found)} sessions"
    return click.confirm(f"Erase {what} for good?", err=True)


def _show(out: Screen, info: SessionInfo, sharing: list[str], forks: Forks) -> None:
    out.line((info.title or info.preview or "(no title)", "bold"))
    where = ", in the trash" if info.trashed else ""
    out.line("  ", (full_name(info), "cyan"), where)
    amount = f"{count(info.messages, 'message')}, {count(info.turns, 'turn')}"
    out.line(f"  {amount}, active {ago(info.updated_at)}")
    if sharing and forks == "keep":
        out.line(f"  {count(len(sharing), 'fork')} will keep what is shared: {_join_ids(sharing)}")
    elif sharing:
        out.line(
            ("  what is shared is erased too", "yellow"),
            f" in {count(len(sharing), 'fork')}: {_join_ids(sharing)}",
        )


def _dependants(opened: holdfast.Store, session: holdfast.Session) -> Iterator[str]:
    """Yield the ids of sessions that share this one's history, directly or through others."""
    pending = [session]
    while pending:
        for link in pending.pop().children():
            if link.relation not in {"fork", "continue"} or not link.seq or link.state == "purged":
                continue
            yield link.session_id
            try:
                pending.append(opened.get(link.session_id))
            except NotFound:
                continue  # It was erased meanwhile.


def _join_ids(ids: Sequence[str]) -> str:
    more = len(ids) - _MAX_NAMED
    return ", ".join(ids[:_MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")


# -------------------------------------------------------------------------------------------- after


def _erase(
    opened: holdfast.Store, found: list[holdfast.Session], forks: Forks, *, as_json: bool
) -> int:
    """Erase sessions one by one; each is reported even if the next one fails."""
    reports: list[PurgeReport] = []
    try:
        for session in found:
            reports.append(opened.purge(session.id, forks=forks))
            if not as_json:
                _print_report(screen(), full_name(session), reports[-1])
    finally:
        if as_json and reports:
            print_document(reports)
    return max(exit_code(report.pending, report.scan) for report in reports)


def _print_report(out: Screen, name: str, report: PurgeReport) -> None:
    parts = [count(report.messages, "message"), count(report.turns, "turn")]
    if report.blobs:
        parts.append(f"{count(report.blobs, 'file')} ({size(report.blob_bytes)})")
    if report.queued:
        parts.append(f"{count(report.queued, 'waiting input')}")
    out.line("erased ", (name, "cyan"), f": {', '.join(parts)}")
    if report.kept:
        out.line(f"  kept for {_join_ids(report.kept_for)}: {count(report.kept, 'message')}")
    if report.erased_in:
        out.line(f"  erased also in {_join_ids(report.erased_in)}")
    print_proof(out, report.pending, report.scan)
