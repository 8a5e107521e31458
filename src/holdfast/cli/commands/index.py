"""`holdfast index`: show the state of the search index, rebuild it, or keep it up to date.

It needs no maintenance: searches bring it up to date, and replace it if it is damaged. A process
that runs `holdfast index run` does so apart, so that no search has to.
"""

from __future__ import annotations

import sys
import time

import click

import holdfast
from holdfast.cli.command import command
from holdfast.cli.output.humanize import count, size
from holdfast.cli.output.json_output import print_document, print_line
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.output.spinner import spinner
from holdfast.cli.store_access import open_existing, open_readonly
from holdfast.errors import StoreUnavailable
from holdfast.values import IndexStatus

_POLL_INTERVAL_S = 1.0  # how soon what was written is indexed
_REPORT_INTERVAL_S = 60.0
_STALLED_AFTER_S = 30.0  # without one more message in an index that is not complete
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
    "holdfast index run",
    "holdfast index run --once --json",
)
@click.argument("what", type=click.Choice(["status", "rebuild", "run"]), default="status")
@click.option("--once", is_flag=True, help="With run: end when the index is up to date.")
def index(*, what: str, once: bool, store: str | None, as_json: bool) -> None:
    """Show, rebuild or update the search index.

    It is a separate file beside the store (on a server, tables of its own), built from the store's
    contents, and can be deleted at any time: searches create it again, and while they do, they say
    what they have not searched.

    `run` indexes what is written until it is stopped, so that searches of other processes find the
    index up to date. Several may run; one indexes at a time. It prints the state when the index is
    up to date, then once a minute if it has changed; --json prints one JSON document per line.
    Exit codes: 0 up to date (--once), 5 no index can be stored, 130 or 143 stopped.
    """
    if once and what != "run":
        raise click.UsageError("--once belongs to `holdfast index run`")
    if what == "run":
        with open_existing(store) as opened:
            _Runner(opened, as_json=as_json).run(once=once)
        return
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


class _Runner:
    """Brings the index of a store up to date again and again."""

    def __init__(self, store: holdfast.Store, *, as_json: bool) -> None:
        self._store = store
        self._as_json = as_json
        self._reported: IndexStatus | None = None
        self._reported_at = 0.0

    def run(self, *, once: bool) -> None:
        """Index until the process is stopped, or `once` until the index is complete."""
        self._wait_for_completion()
        while not once:
            time.sleep(_POLL_INTERVAL_S)
            self._store.catch_up_index()
            if time.monotonic() - self._reported_at > _REPORT_INTERVAL_S:
                self._report(self._store.index_status())

    def _wait_for_completion(self) -> None:
        """Index everything; another process may be doing some of it."""
        messages, changed_at = 0, time.monotonic()
        with spinner("Indexing") as progress:
            while not self._store.catch_up_index(progress):
                status, now = self._store.index_status(), time.monotonic()
                if not status.behind:  # a store without a message
                    break
                if status.state == "none":
                    raise StoreUnavailable("this store cannot have a search index")
                if status.messages != messages:
                    messages, changed_at = status.messages, now
                elif now - changed_at > _STALLED_AFTER_S:
                    raise StoreUnavailable("the search index cannot be stored, or stays locked")
                time.sleep(_POLL_INTERVAL_S)
        self._report(self._store.index_status())

    def _report(self, status: IndexStatus) -> None:
        self._reported_at = time.monotonic()
        if status == self._reported:
            return
        self._reported = status
        if self._as_json:
            print_line(status)
        else:
            screen().line(status_line(status))
        sys.stdout.flush()


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
