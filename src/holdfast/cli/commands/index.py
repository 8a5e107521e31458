"""`holdfast index`: show the state of the search index, or rebuild it.

It needs no maintenance: searches bring it up to date, and replace it if it is damaged.
"""

from __future__ import annotations

import click

from holdfast.cli.command import command
from holdfast.cli.output.humanize import count, size
from holdfast.cli.output.json_output import print_document
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.store_access import open_existing, open_readonly
from holdfast.values import IndexStatus

_MIN_TEXT_BYTES = 1_000_000
_STATE_TEXTS = {
    "ready": "up to date",
    "behind": "the next search brings it up to date",
    "missing": "the first search builds it",
    "damaged": "the next search replaces it",
    "outdated": "the next search replaces it",
    "none": "this store has no index; searches read the messages directly",
}


@command(
    "holdfast index",
    "holdfast index status --json",
    "holdfast index rebuild",
)
@click.argument("what", type=click.Choice(["status", "rebuild"]), default="status")
def index(*, what: str, store: str | None, as_json: bool) -> None:
    """Show the state of the search index, or rebuild it.

    It is a separate file beside the store, built from the store's contents, and can be deleted at
    any time: searches create it again, and while they do, they say what they have not searched.
    """
    if what == "rebuild":
        with open_existing(store) as opened, spinner("Indexing") as progress:
            status = opened.rebuild_index(progress)
    else:
        with open_readonly(store) as opened:
            status = opened.index_status()
    if as_json:
        print_document(status)
    else:
        _draw(screen(), status)


def _draw(out: Screen, status: IndexStatus) -> None:
    out.fact("  index     ", status.path or "none")
    out.fact("  state     ", f"{status.state}: {_STATE_TEXTS[status.state]}")
    behind = f", {status.behind:,} not indexed yet" if status.behind else ""
    out.fact("  messages  ", f"{status.messages:,}{behind}")
    if status.bytes:
        out.fact("  size      ", size(status.bytes) + _relative_size(status))


def _relative_size(status: IndexStatus) -> str:
    """Return the index's size relative to its text; "" for too little text to be meaningful."""
    if status.text < _MIN_TEXT_BYTES:
        return ""
    return f", {100 * status.bytes / status.text:.0f} % of the {size(status.text)} of text in it"


def status_line(status: IndexStatus) -> str:
    """Return the state of an index in one line."""
    if status.state in {"ready", "behind"}:
        behind = f", {count(status.behind, 'message')} behind" if status.behind else ""
        return f"{status.state}: {count(status.messages, 'message')}{behind}, {size(status.bytes)}"
    return f"{status.state}: {_STATE_TEXTS[status.state]}"
