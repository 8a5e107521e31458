"""`holdfast set`, `rename`, `pin`, `archive`: change a session's properties, never its messages.

All of them call `Session.update`; they differ in what is convenient to type. They print what
changed, so that a mistake is seen. All references are resolved before the first change: a wrong
name changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

import holdfast
from holdfast.cli import params
from holdfast.cli.command import command
from holdfast.cli.output.json_output import print_document, to_ascii_json
from holdfast.cli.output.labels import full_name
from holdfast.cli.output.screen import Screen, screen
from holdfast.cli.store_access import open_existing
from holdfast.values import SessionChanges, SessionInfo

_FIELDS: Final = ("title", "model", "scope", "cwd")


@command(
    'holdfast set support-42 --title "The lost parcel" --model gpt-9',
    "holdfast set support-42 --meta priority=high --meta channel:=8",
    "holdfast set support-42 --unset channel",
    'holdfast set support-42 --scope ""   # an empty text removes it',
)
@click.argument("ref")
@click.option("--title", type=params.UTF8_TEXT, help="The title shown in lists.")
@click.option("--model", type=params.UTF8_TEXT, help="The model that answers.")
@click.option("--scope", type=params.UTF8_TEXT, help="What it belongs to: a channel, a workspace.")
@click.option("--cwd", type=params.DIRECTORY, metavar="DIR", help="Its working directory.")
@click.option(
    "--meta", type=params.UTF8_TEXT, multiple=True, metavar="NAME=TEXT", help=params.METADATA_HELP
)
@click.option(
    "--unset",
    type=params.UTF8_TEXT,
    multiple=True,
    metavar="NAME",
    help="Remove this name from the metadata.  [repeatable]",
)
def set(
    *,
    ref: str,
    meta: tuple[str, ...],
    unset: tuple[str, ...],
    store: str | None,
    as_json: bool,
    **fields: str | None,
) -> None:
    """Change the title, model, scope, directory or metadata.

    Metadata that is not named stays. Messages are not changed.
    """
    changes = _changes(fields, meta, unset)
    if not changes:
        raise click.UsageError("Nothing to change: pass an option such as --title.")
    _update_one(store, ref, changes, as_json=as_json)


@command(
    'holdfast rename support-42 "The lost parcel"',
    'holdfast rename support-42 "The lost parcel" --json',
)
@click.argument("ref")
@click.argument("title", type=params.UTF8_TEXT)
def rename(*, ref: str, title: str, store: str | None, as_json: bool) -> None:
    """Set the title of a session.

    Its id and its key stay as they are. An empty TITLE removes the title.
    """
    _update_one(store, ref, {"title": title or None}, as_json=as_json)


@command(
    "holdfast pin support-42",
    "holdfast pin --off support-42",
)
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
@click.option("--off", is_flag=True, help="Unpin them.")
def pin(*, refs: tuple[str, ...], off: bool, store: str | None, as_json: bool) -> None:
    """Keep sessions at the top of the list."""
    outcome = "no longer pinned" if off else "pinned"
    _update_many(store, refs, {"pinned": not off}, outcome, as_json=as_json)


@command(
    "holdfast archive support-42",
    "holdfast archive --off support-42",
)
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
@click.option("--off", is_flag=True, help="Unarchive them.")
def archive(*, refs: tuple[str, ...], off: bool, store: str | None, as_json: bool) -> None:
    """Archive sessions: leave them out of the list.

    `holdfast ls` lists them only with --archived or --all.
    """
    outcome = "no longer archived" if off else "archived"
    _update_many(store, refs, {"archived": not off}, outcome, as_json=as_json)


# ------------------------------------------------------------------------------------- one session


def _changes(
    fields: dict[str, str | None], meta: tuple[str, ...], unset: tuple[str, ...]
) -> SessionChanges:
    metadata = params.parse_metadata(meta)
    both = metadata.keys() & {*unset}
    if both:
        raise click.UsageError(
            f"--meta and --unset: {min(both)!r} is named by both; nothing was stored."
        )
    metadata.update(dict.fromkeys(unset))
    changes: SessionChanges = {}
    for name in _FIELDS:
        value = fields[name]
        if value is not None:
            changes[name] = value or None
    if metadata:
        changes["metadata"] = metadata
    return changes


def _update_one(store: str | None, ref: str, changes: SessionChanges, *, as_json: bool) -> None:
    with open_existing(store) as opened:
        session = opened.get(ref)
        before = session.info()
        after = session.update(**changes)
    if as_json:
        print_document(after)
        return
    _print_differences(screen(), before, after)


def _print_differences(out: Screen, before: SessionInfo, after: SessionInfo) -> None:
    lines = list(_differences(before, after))
    out.line((full_name(after), "cyan"), ":" if lines else ": nothing to change")
    width = max((len(name) for name, _, _ in lines), default=0)
    for name, was, now in lines:
        out.line(
            (f"  {name:<{width}}  ", "dim"), was or "nothing", " → ", (now or "nothing", "bold")
        )


def _differences(before: SessionInfo, after: SessionInfo) -> Iterator[tuple[str, str, str]]:
    for field in _FIELDS:
        was, now = getattr(before, field), getattr(after, field)
        if was != now:
            yield field, was or "", now or ""
    for name in dict.fromkeys([*before.metadata, *after.metadata]):
        texts = [
            to_ascii_json(info.metadata[name]) if name in info.metadata else ""
            for info in (before, after)
        ]
        if texts[0] != texts[1]:
            yield f"meta {name}", texts[0], texts[1]


# ---------------------------------------------------------------------------------- several of them


def _update_many(
    store: str | None,
    refs: tuple[str, ...],
    changes: SessionChanges,
    outcome: str,
    *,
    as_json: bool,
) -> None:
    with open_existing(store) as opened:
        found = [session.update(**changes) for session in find_all(opened, refs)]
    if as_json:
        print_document(found)
        return
    out = screen()
    for info in found:
        out.line((full_name(info), "cyan"), f": {outcome}")


def find_all(opened: holdfast.Store, refs: tuple[str, ...]) -> list[holdfast.Session]:
    """Resolve every reference; return each session once."""
    found = {session.id: session for session in (opened.get(ref) for ref in refs)}
    return list(found.values())
