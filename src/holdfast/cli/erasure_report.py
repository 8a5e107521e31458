"""What all commands that erase share: the confirmation before, and the proof afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from holdfast.cli import errors
from holdfast.cli.output.humanize import count, size
from holdfast.cli.output.screen import Screen
from holdfast.values import Scan
from holdfast.written_files import INPUT_HISTORY


def require_confirmation(*, yes: bool, as_json: bool, done: str = "erased") -> None:
    """Raise a usage error if --yes is missing and no user can be prompted."""
    at_a_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    if not yes and (as_json or not at_a_terminal):
        raise click.UsageError(
            f"Cannot ask for confirmation here; nothing was {done}. Pass --yes to do it."
        )


def delete_input_history() -> None:
    """Delete the file in which the chat once kept what was typed; it now reads the store."""
    import platformdirs

    state = platformdirs.user_state_dir("holdfast", appauthor=False)
    (Path(state) / INPUT_HISTORY).unlink(missing_ok=True)


def print_proof(out: Screen, pending: tuple[str, ...], scan: Scan | None) -> None:
    """Print what is still pending, and what the search of all files found.

    Copies that the user made are theirs to delete: they are named and do not change the exit code.
    """
    for reason in pending:
        out.line(("  pending: ", "yellow"), reason)
    if scan is None:
        return
    if scan.problem is not None:
        label = "not proved" if scan.searchable else "not searched"
        out.line((f"  {label}: ", "yellow"), scan.problem)
    elif scan.found:
        out.line(("  still found in: ", "red"), ", ".join(scan.found))
    elif scan.fragments:
        searched = f"{count(scan.files, 'file')}, {size(scan.bytes)}"
        left = "the store has nothing left" if scan.copies else "nothing is left"
        out.line(f"  proved: {_pieces(scan.fragments)} searched for in {searched}: {left}")
    if scan.copies:
        out.line(("  copies that still hold it: ", "yellow"), ", ".join(scan.copies))


def _pieces(number: int) -> str:
    return "1 piece was" if number == 1 else f"{number} pieces were"


def exit_code(pending: tuple[str, ...], scan: Scan | None) -> int:
    """Return the exit code: 1 if erased data was found and nothing pending explains it.

    A store that cannot be searched at all, as on a server, is reported but is not a problem.
    """
    left = scan is not None and scan.searchable and not scan.clean and not pending
    return errors.PROBLEM_FOUND if left else 0
