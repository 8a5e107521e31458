"""Statements by name, read from `statements.sql`, with their lists of columns filled in.

The files name tables and functions without their schema. `qualify` adds that of a store before a
statement is sent, so that no statement depends on the `search_path` of whichever connection of the
server a pooler runs it on.

`add_messages_4` and the like insert that many messages with one bound value for each column of
each: for few messages this costs half as much as binding arrays.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any, Final

from holdfast.storage.postgres.tables import TABLES, PostgresTable
from holdfast.storage.sql_files import load_migrations, load_statements

_LOG: Final = "statements.sql"
_PLACEHOLDER: Final = re.compile(r"\{([\w.*]+)(?:\+(\d+))?\}")
_UNROLLED_ROWS: Final = range(2, 9)
_VALUES_CLAUSE: Final = re.compile(r"VALUES \((.*)\)")
_SHARED_COLUMNS: Final = 3  # tenant, session and branch
_CREATED: Final = re.compile(
    r"^CREATE (?:OR REPLACE |UNLOGGED )?(TABLE|VIEW|SEQUENCE|FUNCTION) (\w+)", re.MULTILINE
)
_MAX_QUALIFIED: Final = 2_000  # statements; lists and searches have many forms


def _lists(name: str, table: PostgresTable[Any]) -> dict[str, str]:
    """Return the lists of a table's columns, by the placeholders that stand for them."""
    numbers = {column: f"${number}" for number, column in enumerate(table.columns, 1)}
    rest = [column for column in table.columns if column not in table.key]
    counts = [column for column in rest if column in table.counts]
    return {
        f"{table.alias}.*": ", ".join(table.expressions),
        f"{name}.columns": ", ".join(table.columns),
        f"{name}.values": ", ".join(numbers.values()),
        f"{name}.update": ", ".join(f"{column} = {numbers[column]}" for column in rest),
        f"{name}.replace": ", ".join(f"{column} = excluded.{column}" for column in rest),
        f"{name}.increase": ", ".join(
            f"{column} = {table.alias}.{column} + excluded.{column}" for column in counts
        ),
    }


def load(file: str = _LOG) -> dict[str, str]:
    """Return the statements of a file, filled in, except those that are only parts of others.

    Parts may also be in `statements.sql`.
    """
    found = load_statements(__package__, file)
    pieces = {**load_statements(__package__, _LOG), **found}
    for name, table in TABLES.items():
        pieces |= _lists(name, table)
    used = {match[1] for text in found.values() for match in _PLACEHOLDER.finditer(text)}

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(piece, text)

    def piece(match: re.Match[str]) -> str:
        name, offset = match.groups()
        if offset is not None:
            return f"${len(TABLES[name].columns) + int(offset)}"
        return fill(pieces[name]) if name in pieces else match[0]

    return {name: fill(text) for name, text in found.items() if name not in used}


@cache
def _store_names() -> re.Pattern[str]:
    """Return the pattern of what a schema goes before: the migrations tell tables and functions."""
    created = _CREATED.findall("\n".join(load_migrations(__package__).values()))
    functions = "|".join({name for kind, name in created if kind == "FUNCTION"})
    relations = "|".join({name for kind, name in created if kind != "FUNCTION"})
    return re.compile(
        rf"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|COPY|ANALYZE)\s+(?=(?:{relations})\b)"
        rf"|\b(?:nextval|to_regclass)\('(?=(?:{relations})')"
        rf"|(?<![\w.])(?=(?:{functions})\()"
    )


@lru_cache(_MAX_QUALIFIED)
def qualify(text: str, schema: str) -> str:
    """Return a statement with the schema before each table and function of the store."""
    # The name was validated; the quotes are for names that are keywords of SQL.
    return _store_names().sub(lambda match: f'{match[0]}"{schema}".', text)


def _unrolled(text: str, rows: int) -> str:
    """Return an INSERT of one row as one of several; they share the values of the first columns."""
    columns = len(_VALUES_CLAUSE.findall(text)[0].split(","))
    shared, own = range(1, _SHARED_COLUMNS + 1), columns - _SHARED_COLUMNS
    values = []
    for row in range(rows):
        first = _SHARED_COLUMNS + 1 + row * own
        parameters = [*shared, *range(first, first + own)]
        values.append(f"({', '.join(f'${number}' for number in parameters)})")
    return _VALUES_CLAUSE.sub(lambda _: f"VALUES {', '.join(values)}", text)


SQL: Final = load()
SQL.update((f"add_messages_{rows}", _unrolled(SQL["add_message"], rows)) for rows in _UNROLLED_ROWS)
