"""`holdfast copy`: copy a whole store into another one, of the same kind or not.

It can be stopped and run again at any time. At the end both stores are read again and compared, so
it reports "the same" only after checking.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import click
import msgspec

import holdfast
from holdfast.cli.command import FILE, command
from holdfast.cli.errors import PROBLEM_FOUND, print_error
from holdfast.cli.known_stores import StoreTrust
from holdfast.cli.output.humanize import count
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.store_access import open_readonly
from holdfast.storage import registry
from holdfast.url import parse_url
from holdfast.values import CopyReport, Damage

_MAX_LISTED: Final = 20
_HASH_CHARS: Final = 16


@command(
    "holdfast copy backup.db another.db",
    'holdfast copy "$HOLDFAST_URL" another.db   # run again: adds what is new',
    "holdfast copy --json backup.db sqlite:///another.db",
    "holdfast copy --trust backup.db postgresql://holdfast_worker@db.example/agents",
)
@click.argument("origin", type=FILE, metavar="FROM")
@click.argument("to", type=FILE, metavar="TO")
@click.option("--trust", is_flag=True, help="FROM is my own, whatever its origin.")
def copy(*, origin: str, to: str, trust: bool, store: str | None, as_json: bool) -> int:
    """Copy a whole store into another one, and compare them.

    FROM and TO are paths or URLs of any kind; TO is created if it does not exist. Everything is
    copied unchanged: ids, branches, forks, turns, records, usage, drafts, queued input, files,
    times, the trash. Both may be in use. At the end both are read again and compared.

    If it is stopped, run it again: it continues with what is missing. An older copy is brought up
    to date in the same way. If TO has different data under the same ids, nothing is written.

    The exit code is 1 if TO differs from FROM in the end: FROM was written to during the copy
    (copy again), or a part of it could not be read (all the rest was copied). A turn that is open
    in FROM is open in TO, with its draft, but no process holds it there: the next turn, or
    `holdfast recover`, closes it as after a crash.

    Goals, queued input and system messages act in TO as they did in FROM. So a file that another
    person may have made is copied into a store of yours only with --trust.
    """
    if store is not None:
        raise click.UsageError("FROM and TO name the stores; omit --store.")
    if _location(origin) == _location(to):
        raise click.UsageError("FROM and TO are the same store.")
    created = registry.missing_store(parse_url(to, os.environ)) is not None
    with open_readonly(origin) as source, holdfast.open(to) as target:
        _require_trust(StoreTrust(source, origin), StoreTrust(target, to), given=trust, new=created)
        name = target.url  # Not what was typed, which may hold a password.
        with spinner(f"copying to {name}") as progress:
            report = source.copy(target, progress=progress)
    if as_json:
        print_document({"same": report.same} | msgspec.structs.asdict(report))
    else:
        _print_report(screen(), name, report)
        _print_differences(report)
    return 0 if report.same else PROBLEM_FOUND


def _require_trust(source: StoreTrust, target: StoreTrust, *, given: bool, new: bool) -> None:
    """Raise `UntrustedStore` if a store of the user's would get another person's sessions.

    A new store is as much the user's as the one that it is a copy of.
    """
    if given:
        source.accept()
    elif target.is_known():
        source.require()
    if new and source.is_known():
        target.accept()


def _location(url: str) -> tuple[object, ...]:
    """Return a store's location, equal for all names of the same file."""
    location = parse_url(url, os.environ)
    file = registry.store_file(location)
    if file is not None:
        return (os.path.realpath(file),)
    return location.scheme, location.address, location.options


def _print_report(out: Screen, to: str, report: CopyReport) -> None:
    done = [f"{count(report.added, 'session')} added"]
    if report.renewed:
        done.append(f"{report.renewed:,} brought up to date")
    if report.unchanged:
        done.append(f"{report.unchanged:,} there already")
    out.line((to, "cyan"), f": {', '.join(done)}")
    if report.same:
        held = report.target
        counts = [count(held.sessions, "session"), count(held.messages, "message")]
        records = held.records + held.store_records
        counts += [count(records, "record")] if records else []
        counts += [count(held.turns, "turn"), count(held.blobs, "file")]
        out.line(
            f"{', '.join(counts)}: ",
            ("the same on both sides", "green"),
            f" (sha256 {held.sha256[:_HASH_CHARS]}…)",
        )
    if report.interrupted:
        some = count(len(report.interrupted), "session")
        out.line(
            f"{some} with an open turn, which no process holds there: "
            f"{_join_ids(report.interrupted)}"
        )
    if report.others:
        out.line(f"{count(report.others, 'session')} there that FROM does not have")


def _join_ids(ids: Sequence[str]) -> str:
    more = len(ids) - _MAX_LISTED
    return ", ".join(ids[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")


# ------------------------------------------------------------------------------------- differences


def _print_differences(report: CopyReport) -> None:
    if report.changed:
        some = count(len(report.changed), "session")
        print_error(
            f"FROM was written to during the copy; {some} changed: {_join_ids(report.changed)}",
            "copy again to add what is new",
        )
    if report.differs:
        some = count(len(report.differs), "session")
        print_error(
            f"{some} in TO not the same, although FROM did not change: {_join_ids(report.differs)}",
            "make sure that nothing writes to TO; `holdfast doctor` checks each store",
        )
    if not (report.same or report.changed or report.differs or report.damage):
        print_error("records of the store changed during the copy", "copy again to add what is new")
    _print_damage(report.damage)


def _print_damage(damage: Sequence[Damage]) -> None:
    for item in damage[:_MAX_LISTED]:
        where = "" if item.session_id is None else f"session {item.session_id}: "
        print_error(f"{where}{item.what}")
    if damage:
        what = f"{count(len(damage), 'part')} of FROM could not be read"
        print_error(f"{what}; all the rest was copied", "`holdfast doctor` shows details")
