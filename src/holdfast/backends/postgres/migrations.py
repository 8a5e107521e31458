"""The schema, in numbered steps.

`meta.version` tells how many steps a store has seen. Steps are taken under a lock that one process
holds at a time, all in one transaction. A store with more steps than this program knows is refused
before anything is written to it; one that is up to date is left alone, so that a role which owns
nothing can open it. Whoever has it open meanwhile finds out with its next transaction.
"""

from __future__ import annotations

import psycopg

from holdfast.backends.postgres.failures import translate
from holdfast.backends.postgres.link import Link
from holdfast.backends.postgres.snapshot import store_lock
from holdfast.backends.postgres.target import Target
from holdfast.backends.statements import load_steps
from holdfast.errors import ReadOnly, SchemaTooNew, StoreUnavailable

Steps = dict[int, str]


def load() -> Steps:
    """Read the numbered steps."""
    return load_steps(__package__)


def settle(link: Link, target: Target, steps: Steps, *, readonly: bool) -> None:
    """Make the store, or bring it up to date, or see that it is; refuse a newer one."""
    found = version(link, target)
    if found == max(steps):
        return
    _refuse_newer(found, steps, target)
    if readonly and found is None:
        raise StoreUnavailable(
            f"{target.shown} has no store in its schema {target.schema}; nothing was made."
        )
    if readonly:
        raise ReadOnly(
            f"{target.shown} has the older format {found}; open it once for writing to bring it "
            "up to date."
        )
    _migrate(link, target, steps)


def version(link: Link, target: Target) -> int | None:
    """Tell how many steps the store has seen; `None` if there is no store."""
    row = link.ask("store_exists", (target.schema,)).fetchone()
    if row is None or not row[0]:
        return None
    found = link.ask("version").fetchone()
    return 0 if found is None else found[0]


def _refuse_newer(found: int | None, steps: Steps, target: Target) -> None:
    if found is not None and found > max(steps):
        raise SchemaTooNew(
            f"{target.shown} was written by a newer Holdfast (format {found}, this one knows "
            f"{max(steps)}); it was left untouched. Update this program to open it."
        )


def _migrate(link: Link, target: Target, steps: Steps) -> None:
    lock = store_lock(target.schema)
    try:
        link.begin("begin_writing")
        link.ask("lock_store", (lock,)).fetchone()
        place = link.ask("lacks_schema", (target.schema,))
        if place.fetchone() == (True,):
            # Its name was checked: quotes are all it needs, if it is a word of SQL.
            link.ask_once(f'CREATE SCHEMA "{target.schema}"')
        row = link.ask("store_exists", (target.schema,)).fetchone()
        found = link.ask("version").fetchone() if row and row[0] else None
        before = 0 if found is None else found[0]
        _refuse_newer(before, steps, target)
        for number, script in steps.items():
            if number > before:
                for statement in _split(script):
                    link.ask_once(statement)
                link.ask("put_version", (number,))
        link.commit()
    except psycopg.Error as error:
        raise translate(error, "the store was not made or brought up to date.") from error


def _split(script: str) -> list[str]:
    """Return the statements of a step: they end with a semicolon at the end of a line.

    One that holds others stands between dollars, and ends where these do.
    """
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    found: list[str] = []
    current: list[str] = []
    within = False
    for line in lines:
        current.append(line)
        if line.count("$$") % 2:
            within = not within
        if line.rstrip().endswith(";") and not within:
            found.append("\n".join(current).strip().removesuffix(";"))
            current = []
    return [text for text in found if text]
