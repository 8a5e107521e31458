"""`holdfast doctor`: check a store for problems.

Each result is a `HealthCheck`: a name, what was found, whether that is all right, and if not, a
hint. A section that raises an error becomes a failed check, and the other sections still run.
Checking changes nothing; with `--fix`, `doctor_fix` applies the safe fixes, and all checks run
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import click
import msgspec

import holdfast
from holdfast.cli.command import command
from holdfast.cli.commands.index import status_line
from holdfast.cli.doctor_fix import Fix, apply_fixes
from holdfast.cli.errors import PROBLEM_FOUND, hint_for, what_happened
from holdfast.cli.output.humanize import ago, count, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.store_access import NoStoreYet, open_readonly
from holdfast.clock import to_datetime
from holdfast.errors import Damaged, HoldfastError
from holdfast.operations import purge_steps
from holdfast.operations.turns import is_abandoned
from holdfast.processes import is_alive
from holdfast.storage.protocol import HealthCheck, Snapshot
from holdfast.storage.rows import SessionFilter, SessionRow, TurnRow, UnreadableSession
from holdfast.values import Damage, Stats

_PAGE_SIZE: Final = 500
_MAX_DAMAGE_SHOWN: Final = 20
_SALVAGE_HINT: Final = (
    "restore a backup (`holdfast restore-backup`), or copy all that can be read into a new store: "
    "`holdfast doctor --fix`"
)
_PURGE_HINT: Final = "`holdfast doctor --fix` finishes those that were interrupted"
_REINDEX_HINT: Final = "no data is affected; `holdfast index rebuild` replaces it"


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks, and the fixes that were applied."""

    ok: bool
    store: str | None = None
    fixed: list[Fix] = []
    checks: list[HealthCheck]
    stats: Stats | None = None
    damaged: bool = False
    damage: list[Damage] = []


@command(
    "holdfast doctor",
    "holdfast doctor --json",
    "holdfast doctor --fix",
    "holdfast doctor --store backup.db",
)
@click.option("--fix", is_flag=True, help="Apply the fixes that cannot lose data.")
def doctor(*, fix: bool, store: str | None, as_json: bool) -> int:
    """Check a store for problems.

    It shows how the store and its database are set up, who else may write or read its files, which
    turns are open and whether their holders are alive, which purges are unfinished, and reads every
    row to find damage. It changes nothing. The exit code is 1 if there is a problem; each one has a
    hint.

    With --fix it closes turns that a crash left open, keeping all of them, finishes interrupted
    purges, and removes other users' permissions on the files. Of a damaged store it copies
    everything readable into a new one beside it: the damaged file is never changed, and it is up to
    you to switch to the new one.
    """
    finding = examine(store)
    if fix and not finding.ok:
        fixed = apply_fixes(store, damaged=finding.damaged)
        finding = msgspec.structs.replace(examine(store), fixed=fixed)
    if as_json:
        print_document(finding)
    else:
        _draw(screen(), finding)
    return 0 if finding.ok else PROBLEM_FOUND


def examine(store: str | None) -> DoctorReport:
    """Run all checks on a store."""
    try:
        opened = open_readonly(store)
    except NoStoreYet as missing:
        return DoctorReport(ok=True, checks=[HealthCheck("store", str(missing))])
    except HoldfastError as error:
        damaged = isinstance(error, Damaged)
        return DoctorReport(ok=False, damaged=damaged, checks=[_failed_check("store", error)])
    with opened:
        return _examine(opened)


def _examine(opened: holdfast.Store) -> DoctorReport:
    checks: list[HealthCheck] = []
    stats: list[Stats] = []
    damage: list[Damage] = []
    damaged = False
    sections: tuple[tuple[str, Callable[[], Iterator[HealthCheck]]], ...] = (
        ("setup", lambda: iter(opened.backend.health())),
        ("contents", partial(_contents, opened, stats)),
        ("turns", partial(_turns, opened, stats)),
        ("purges", partial(_purges, opened)),
        ("damage", partial(_damage, opened, damage)),
        ("search index", partial(_index, opened)),
    )
    for name, run in sections:
        try:
            checks.extend(run())
        except HoldfastError as error:
            checks.append(_failed_check(name, error))
            damaged = damaged or isinstance(error, Damaged)
    return DoctorReport(
        ok=all(check.ok for check in checks),
        store=opened.url,
        checks=checks,
        stats=stats[0] if stats else None,
        damaged=damaged or bool(damage),
        damage=damage,
    )


def _failed_check(name: str, error: HoldfastError) -> HealthCheck:
    # An error with a note says itself what to do; a salvage would not help.
    salvageable = isinstance(error, Damaged) and not hasattr(error, "__notes__")
    hint = _SALVAGE_HINT if salvageable else hint_for(error)
    return HealthCheck(name, what_happened(error), ok=False, hint=hint)


def _contents(opened: holdfast.Store, stats: list[Stats]) -> Iterator[HealthCheck]:
    found = opened.stats()
    stats.append(found)
    amounts = [
        count(found.sessions, "session"),
        count(found.messages, "message"),
        count(found.turns, "turn"),
        f"{count(found.blobs, 'blob')} ({size(found.blob_bytes)})",
    ]
    if found.file_bytes is not None:
        amounts.append(f"{size(found.file_bytes)} on disk")
    yield HealthCheck("contents", ", ".join(amounts))


def _index(opened: holdfast.Store) -> Iterator[HealthCheck]:
    """Compare the search index with the contents of the store."""
    problems = opened.check_index()
    if problems:
        more = f", and {len(problems) - 1:,} more" if len(problems) > 1 else ""
        yield HealthCheck("search index", f"{problems[0]}{more}", ok=False, hint=_REINDEX_HINT)
        return
    yield HealthCheck("search index", status_line(opened.index_status()))


def _purges(opened: holdfast.Store) -> Iterator[HealthCheck]:
    """Find unfinished purges: their sessions are gone, but not all of their bytes."""
    left = opened.backend.read(purge_steps.unfinished())
    if left:
        what = f"{count(len(left), 'purge')} unfinished: still running, or interrupted"
        yield HealthCheck("purges", what, ok=False, hint=_PURGE_HINT)


# ----------------------------------------------------------------------------------------- turns


def _turns(opened: holdfast.Store, stats: list[Stats]) -> Iterator[HealthCheck]:
    if stats and not stats[0].open_turns:
        yield HealthCheck("open turns", "none")
        return
    for listing in (SessionFilter(), SessionFilter(trashed=True)):
        before: int | None = None
        while True:
            query = partial(_open_turns, listing=listing, before=before)
            found, before = opened.backend.read(query)
            yield from map(_turn_check, found)
            if before is None:
                break


class _OpenTurn(msgspec.Struct, frozen=True):
    """An open turn, as it is stored."""

    session: SessionRow
    number: int
    turn: TurnRow | None
    abandoned: bool


def _open_turns(
    snapshot: Snapshot, *, listing: SessionFilter, before: int | None
) -> tuple[list[_OpenTurn], int | None]:
    """Return the open turns of a page of sessions, and the start of the next page."""
    page = snapshot.list_sessions(listing, before=before, limit=_PAGE_SIZE)
    readable = [item for item in page if not isinstance(item, UnreadableSession)]
    found = [
        _read_open_turn(snapshot, row, head.open_turn)
        for row, head in readable
        if head.open_turn is not None
    ]
    if len(page) < _PAGE_SIZE:
        return found, None
    last = page[-1]
    return found, last.activity if isinstance(last, UnreadableSession) else last[1].activity


def _read_open_turn(snapshot: Snapshot, row: SessionRow, number: int) -> _OpenTurn:
    turn = snapshot.turn(row.n, number)
    return _OpenTurn(row, number, turn, turn is None or is_abandoned(snapshot, turn))


def _turn_check(one: _OpenTurn) -> HealthCheck:
    name = f"turn {one.number} of {one.session.key or one.session.id}"
    return HealthCheck(
        name,
        _holder_text(one),
        ok=not one.abandoned,
        hint=f"holdfast recover {one.session.id}" if one.abandoned else None,
    )


def _holder_text(one: _OpenTurn) -> str:
    if one.turn is None:
        return "open, but its row is missing"
    holder = f"pid {one.turn.holder.pid} on {one.turn.holder.host}"
    started = f"started {ago(to_datetime(one.turn.started_at))}"
    alive = is_alive(one.turn.holder)
    if one.abandoned:
        gone = "is gone" if alive is False else "did not renew its lease in time"
        return f"{started}, interrupted: {holder} {gone}"
    seen = "which is alive" if alive else "which cannot be checked from this machine"
    return f"{started}, held by {holder}, {seen}"


# ---------------------------------------------------------------------------------------- damage


def _damage(opened: holdfast.Store, damage: list[Damage]) -> Iterator[HealthCheck]:
    damage.extend(opened.verify())
    if not damage:
        yield HealthCheck("damage", "none: every row was read")
        return
    amount = count(len(damage), "damaged item")
    yield HealthCheck("damage", amount, ok=False, hint=_SALVAGE_HINT)


# --------------------------------------------------------------------------------------- drawing


def _draw(out: Screen, finding: DoctorReport) -> None:
    _draw_fixed(out, finding.fixed)
    last_hint: str | None = None
    for check in finding.checks:
        mark = (" ok  ", "green") if check.ok else ("WRONG", "bold red")
        out.line(mark, "  ", (f"{check.name}: ", "dim"), check.value)
        if not check.ok and check.hint not in (None, last_hint):
            out.line("         hint: ", check.hint or "")
            last_hint = check.hint
    for one in finding.damage[:_MAX_DAMAGE_SHOWN]:
        out.line("       ", (_where(one), "cyan"), one.what)
    if len(finding.damage) > _MAX_DAMAGE_SHOWN:
        out.line(f"       … and {len(finding.damage) - _MAX_DAMAGE_SHOWN:,} more; --json lists all")
    out.line()
    wrong = sum(not check.ok for check in finding.checks)
    out.line(
        (f"{count(wrong, 'problem')} found", "bold red")
        if wrong
        else ("No problems found", "green")
    )


def _draw_fixed(out: Screen, fixed: list[Fix]) -> None:
    for one in fixed:
        mark = ("FIXED", "bold green") if one.ok else ("NOT FIXED", "bold red")
        out.line(mark, "  ", one.what)
        for hint in one.next:
            out.line("         ", hint)
    if fixed:
        out.line()


def _where(damage: Damage) -> str:
    if damage.session_id is None:
        return ""
    return f"{damage.session_id}{'' if damage.seq is None else f' #{damage.seq}'}  "
