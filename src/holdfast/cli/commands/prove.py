"""`holdfast prove`: test the durability promise on this disk by killing writers.

The test itself is in `holdfast.proof`; this module prints one line before it, a progress bar (on a
terminal only), and a short verdict. The test uses a temporary directory, or a temporary schema on
the server of the user's store, which is removed afterwards unless a problem was found; the user's
store is never touched.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click

from holdfast.cli.command import command
from holdfast.cli.errors import PROBLEM_FOUND, print_error
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, screen
from holdfast.proof import runner, server_schema
from holdfast.proof.runner import Progress, ProofPlan, Report

_MAX_PROBLEMS: Final = 8
_SERVER: Final = "the server"
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})


@command(
    "holdfast prove",
    "holdfast prove --seconds 60 --writers 16",
    "holdfast prove --dir /mnt/data --json",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=86_400),
    default=20.0,
    show_default=True,
    help="How long to write and to kill.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to test; by default on the disk of your store, never in it.",
)
@click.option(
    "--writers",
    type=click.IntRange(2, 64),
    default=8,
    show_default=True,
    help="How many processes write at once.",
)
@click.option("--keep", is_flag=True, help="Keep the store and the log of every write.")
def prove(
    *,
    seconds: float,
    directory: Path | None,
    writers: int,
    keep: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Prove that nothing is lost on this disk.

    Processes write to a temporary store and are killed with SIGKILL at random moments; then every
    acknowledged message is checked. The exit code is 1 if one is missing, duplicated or out of
    order, or if so little happened that the test was inconclusive. Your own store is never touched:
    if it is on a PostgreSQL server, the temporary one is in a separate schema there.
    """
    where = directory or runner.nearest_directory(store, os.environ, Path.cwd())
    server = None if directory else server_schema.server_url(store, os.environ)
    plan = ProofPlan(where.absolute(), seconds, writers, keep, server)
    if not as_json:
        _announce(screen(), plan)
    report = _run(plan)
    if as_json:
        print_document(report)
    else:
        _show(screen(), report)
    return 0 if report.ok else PROBLEM_FOUND


def _run(plan: ProofPlan) -> Report:
    try:
        with _exit_on_sigterm(), _progress_bar(plan.seconds) as watch:
            return runner.run(plan, watch)
    except KeyboardInterrupt:
        print_error("interrupted; the writers were stopped and their directory was removed")
        raise


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit within the block, so that the test cleans up."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- before and meanwhile -----------------------------------------------------------------------


def _announce(out: Screen, plan: ProofPlan) -> None:
    out.line(
        (f"{plan.writers} processes", "bold"),
        " write to a temporary store ",
        *_target(plan),
        f" and are killed at random for {plan.seconds:g} s.",
    )
    out.line()
    out.flush()


def _target(plan: ProofPlan) -> tuple[str | tuple[str, str], ...]:
    if plan.server is None:
        return "in ", (str(plan.directory), "bold")
    return ("on your PostgreSQL server",)


@contextmanager
def _progress_bar(seconds: float) -> Iterator[Callable[[Progress], None] | None]:
    """Show a progress bar on a terminal; yield the function that updates it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = BarColumn(), TextColumn("{task.description}")
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seconds)

        def watch(progress: Progress) -> None:
            did = f"[green]{progress.writes:,} writes[/]  [red]{progress.kills} kills[/]"
            status = "comparing …" if progress.checking else f"{progress.elapsed:.0f} s"
            bar.update(task, completed=progress.elapsed, description=f"{did}  {status}")

        yield watch


# --- afterwards ---------------------------------------------------------------------------------


def _show(out: Screen, report: Report) -> None:
    rows = list(_findings(report))
    width = max(len(f"{count:,}") for _, count, _ in rows)
    for name, count, note in rows:
        number = (f"{count:>{width},}", "bold red" if count else "bold green")
        out.line(f"  {name:<15}", number, (f"   {note}", "dim"))
    out.line()
    for line in _figures(report):
        out.line(f"  {line}")
    out.line()
    _print_verdict(out, report)


def _findings(report: Report) -> Iterator[tuple[str, int, str]]:
    sessions = f"in {report.sessions:,} sessions"
    yield "lost", report.lost, f"of {report.acknowledged:,} acknowledged messages {sessions}"
    again = (
        f"{report.sent_again:,} writes were sent again, {report.stored_before:,} had been stored"
    )
    yield "duplicated", report.duplicated, again
    concurrency = f"{report.overlaps:,} writes overlapped, {report.reads:,} reads ran meanwhile"
    yield "reordered", report.reordered, concurrency
    yield "anything else", report.other, "gaps, torn batches, changed text, lost drafts, damage"


def _figures(report: Report) -> Iterator[str]:
    yield (
        f"{report.kills:,} kills; {report.interrupted:,} of {report.turns:,} turns interrupted and "
        f"recovered, {report.partial_replies:,} of them with half a reply"
    )
    yield (f"{report.moves:,} undos, rewinds and forks; all {report.branches:,} branches are there")
    yield (
        f"{report.commits_per_second:,.0f} commits per second, median wait "
        f"{report.median_wait_ms:.3g} ms, worst {report.worst_wait_ms:.3g} ms, on "
        f"{report.file_system}"
    )


def _print_verdict(out: Screen, report: Report) -> None:
    for problem in report.problems[:_MAX_PROBLEMS]:
        out.line(("  ✗ ", "red"), problem)
    if len(report.problems) > _MAX_PROBLEMS:
        out.line(f"    and {len(report.problems) - _MAX_PROBLEMS:,} more")
    if report.ok:
        out.line(("✓ The promise held.", "bold green"), (f"  {report.versions}", "dim"))
        out.line((f"  {_limits(report)}", "dim"))
    elif report.failed_writers == len(report.problems) > 0:
        out.line(("✗ Writers failed, so this proves nothing.", "bold red"))
    elif report.problems:
        out.line(("✗ The promise was broken.", "bold red"), (f"  {report.versions}", "dim"))
    else:
        idle = f" no {', no '.join(report.vacuous)}. Give it more --seconds or --writers."
        out.line(("✗ Inconclusive:", "bold red"), idle)
    if report.kept:
        out.line("  The store and the log of every write: ", (report.directory, "bold"))


def _limits(report: Report) -> str:
    if report.file_system == _SERVER:
        return "A kill is not a power cut: surviving one depends on the server's disk and settings."
    if report.file_system in _IN_MEMORY:
        return "This is memory, not a disk: use --dir to test a disk."
    return (
        "A kill is not a power cut: surviving one depends on the disk keeping what it has synced."
    )
