"""What all commands that erase have in common: they ask first, and show the proof afterwards."""

from __future__ import annotations

import sys

import click

from holdfast.cli import problems
from holdfast.cli.screen import Screen
from holdfast.cli.wording import count, size
from holdfast.records import Scan


def refuse_unasked(*, yes: bool, as_json: bool, done: str = "erased") -> None:
    """Refuse to go on where nobody can be asked and nobody said yes."""
    at_a_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if not yes and (as_json or not at_a_terminal):
        raise click.UsageError(f"Nobody can be asked here; nothing was {done}. Say --yes to do it.")


def say_proof(out: Screen, pending: tuple[str, ...], scan: Scan | None) -> None:
    """Return what still waits, and what the search through all files found."""
    for reason in pending:
        out.line(("  pending: ", "yellow"), reason)
    if scan is None:
        return
    if scan.problem is not None:
        said = "not proved" if scan.searchable else "not searched"
        out.line((f"  {said}: ", "yellow"), scan.problem)
    elif scan.found:
        out.line(("  still found in: ", "red"), ", ".join(scan.found))
    elif scan.fragments:
        searched = f"{count(scan.files, 'file')}, {size(scan.bytes)}"
        out.line(f"  proved: {_pieces(scan.fragments)} looked for in {searched}: nothing is left")


def _pieces(number: int) -> str:
    return "1 piece was" if number == 1 else f"{number} pieces were"


def exit_code(pending: tuple[str, ...], scan: Scan | None) -> int:
    """Return the exit code: something that is left, and that nothing explains, is a problem.

    That a store cannot be searched at all, as on a server, is said, and is none.
    """
    left = scan is not None and scan.searchable and not scan.clean and not pending
    return problems.FOUND_A_PROBLEM if left else 0
