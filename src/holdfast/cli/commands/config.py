"""`holdfast config`: the settings in effect, and where each is set.

It works with invalid files too, because that is when users need it. After the settings it lists
what is ignored of a workspace's file, then the problems, with which the exit code is 1.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from holdfast.cli import errors
from holdfast.cli.command import command
from holdfast.cli.output.json_output import print_document, to_ascii_json
from holdfast.cli.output.screen import Screen, Span, TableColumn, screen
from holdfast.config import loader, paths, schema
from holdfast.config.file import ConfigProblem
from holdfast.config.loader import Config, Option, ValueOrigin

_COLUMNS: Final = (TableColumn("KEY", whole=True), TableColumn("VALUE"), TableColumn("FROM"))
_HINT: Final = "`holdfast config --path` prints the path of your file"


@command(
    "holdfast config",
    "holdfast config retry window.max_tokens",
    "holdfast config --check",
    "holdfast config --json",
    'mkdir -p "$(dirname "$(holdfast config --path)")"   # where your file belongs',
    configured=False,
)
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--path", is_flag=True, help="Print the path of your own file, even if it does not exist."
)
@click.option("--check", is_flag=True, help="Print only the problems.")
def config(
    *, keys: tuple[str, ...], path: bool, check: bool, store: str | None, as_json: bool
) -> int:
    """Show the settings in effect, and where each is set.

    Your own file is holdfast.toml in your configuration directory, or what $HOLDFAST_CONFIG names;
    a workspace may have its own, in this directory or above. Later sources win: your file, the
    workspace's file, the environment ($HOLDFAST_MODEL, $HOLDFAST_URL, $HOLDFAST_SCOPE), the options
    of a command.

    KEY is a key or a table, such as retry.attempts or retry; without one, all are shown. The exit
    code is 1 if there are problems.
    """
    if path:
        _print_path(as_json=as_json)
        return 0
    wanted = _select_keys(keys)
    found = current_config({} if store is None else {"session.store": Option("--store", store)})
    if as_json:
        print_document(_document(found, wanted))
    elif check:
        _print_check(found)
    else:
        _draw(screen(), found, wanted)
        _print_problems(found.problems)
    return errors.PROBLEM_FOUND if found.problems else 0


def current_config(options: Mapping[str, Option]) -> Config:
    """Return the settings in effect for this process, in this directory."""
    return loader.load_with_problems(
        os.environ, paths.working_directory(), home=paths.home_directory(), options=options
    )


def _print_path(*, as_json: bool) -> None:
    path = paths.user_file(os.environ)
    if as_json:
        print_document({"path": None if path is None else str(path)})
    else:
        screen().line(os.devnull if path is None else str(path))


def _select_keys(names: Sequence[str]) -> list[str]:
    known = list(schema.all_keys())
    if not names:
        return known
    found: list[str] = []
    for name in names:
        inside = [key for key in known if key == name or key.startswith(f"{name}.")]
        if not inside:
            near = difflib.get_close_matches(name, [*known, *schema.tables()], n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"There is no key {name!r}.{hint}")
        found += inside
    return list(dict.fromkeys(found))


def _document(found: Config, wanted: Sequence[str]) -> dict[str, object]:
    values = dict(loader.settings_by_key(found.settings))
    return {
        "user": None if found.user is None else str(found.user),
        "workspace": None if found.workspace is None else str(found.workspace),
        "settings": {key: _setting_document(values[key], found.origin(key)) for key in wanted},
        "problems": found.problems,
        "ignored": found.ignored,
    }


def _setting_document(value: object, source: ValueOrigin) -> dict[str, object]:
    return {"value": value, "from": source.kind, "where": source.where, "line": source.line}


# ---------------------------------------------------------------------------------------- drawing


def _draw(out: Screen, found: Config, wanted: Sequence[str]) -> None:
    values = dict(loader.settings_by_key(found.settings))
    out.fact("your file         ", _file(found.user))
    out.fact("the workspace's   ", _file(found.workspace))
    out.line()
    out.table(_COLUMNS, [_row(key, values[key], found.origin(key)) for key in wanted])
    if found.ignored:
        out.line()
    for one in found.ignored:
        out.body(str(one), style="yellow")
    out.flush()


def _file(path: Path | None) -> str:
    if path is None:
        return "none"
    return str(path) if path.exists() else f"{path} (does not exist)"


def _row(key: str, value: object, source: ValueOrigin) -> list[Span]:
    style = "dim" if source.kind == "default" else ""
    return [(key, style or "cyan"), (_format_value(value), style), (str(source), style)]


def _format_value(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else to_ascii_json(msgspec.to_builtins(value))


def _print_check(found: Config) -> None:
    _print_problems(found.problems)
    if found.problems:
        return
    read = [str(path) for path in (found.user, found.workspace) if path and path.exists()]
    screen().line(f"no problems in {' and '.join(read) or 'the settings'}")


def _print_problems(wrong: Sequence[ConfigProblem]) -> None:
    if wrong:
        errors.print_error(
            "some settings are invalid and were ignored", _HINT, [str(p) for p in wrong]
        )
