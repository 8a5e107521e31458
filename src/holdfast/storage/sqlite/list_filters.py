"""The filters of a list of sessions, as SQL: conditions, what to bind, and where to read from.

A list reads the table `recent` in order, by the index of its scope, agent or working directory if
one of these is given. Metadata, the beginning of a key, pinned and archived sessions are looked up
in an index without that order, which is worth it where it finds few. All other filters are
conditions on the sessions that are read, the newest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast import codec
from holdfast.storage.rows import SessionFilter, prefix_range
from holdfast.storage.sqlite.metadata_table import marks_of
from holdfast.storage.sqlite.statements import SQL
from holdfast.storage.sqlite.tables import bind, unbind

# Literals: SQLite uses a partial index only if the text implies its WHERE.
IN_TRASH: Final = {
    None: "",
    True: "AND s.trashed_at IS NOT NULL",
    False: "AND s.trashed_at IS NULL",
}
NAMES: Final = ("scope", "agent", "cwd")
_FILTERS: Final = {
    "scope": "AND s.scope = :scope",
    "agent": "AND s.agent = :agent",
    "cwd": "AND s.cwd = :cwd",
    "since": "AND h.updated_at >= :since",
    "until": "AND h.updated_at < :until",
    "text": "AND ({title} OR {preview} OR {key})".format(
        # Most texts are ASCII, which SQLite folds by itself, much faster.
        **{
            column.partition(".")[2]: f"instr(iif(typeof({column}) = 'text' "
            f"AND length({column}) = length(CAST({column} AS BLOB)), lower({column}), "
            f"folded({column})), :text)"
            for column in ("s.title", "h.preview", "s.key")
        }
    ),
}


class IndexLookup(NamedTuple):
    """A filter for which there is an index: what that finds, the same as a condition, and values.

    The condition is for sessions that were found in another way.
    """

    query: str
    condition: str = ""
    values: Mapping[str, Any] = {}


def index_lookups(listing: SessionFilter) -> list[IndexLookup]:
    """Return the filters of a list that are looked up in an index without the order of lists."""
    found = [
        IndexLookup(
            SQL["find_marked"].replace(":mark", f":mark{number}"),
            SQL["is_marked"].replace(":mark", f":mark{number}"),
            {f"mark{number}": mark},
        )
        for number, mark in enumerate(sorted(marks_of(listing.metadata)))
    ]
    if listing.key_prefix is not None:
        first, last = prefix_range(codec.encode_text(listing.key_prefix))
        found.append(
            IndexLookup(
                SQL["find_trashed_keys" if listing.trashed else "find_keys"],
                SQL["has_key_prefix"],
                {"key_first": first, "key_last": last},
            )
        )
    if listing.archived:
        found.append(IndexLookup(SQL["find_archived"]))
    return found


def ordered_names(listing: SessionFilter) -> list[str]:
    """Return which of `NAMES` a list is filtered by, if the order of lists has an index of them."""
    return [] if listing.trashed else [name for name in NAMES if getattr(listing, name) is not None]


def conditions(listing: SessionFilter) -> list[str]:
    """Return the SQL conditions of a listing; `filter_values` has the values to bind."""
    conditions = [text for name, text in _FILTERS.items() if getattr(listing, name) is not None]
    # Literals for the same reason as in `IN_TRASH`.
    for name, flag in (("pinned", listing.pinned), ("archived", listing.archived)):
        if flag is not None:
            conditions.append(f"AND s.{name} = {flag:d}")
    conditions.append(IN_TRASH[listing.trashed])
    if listing.busy is not None:
        conditions.append(f"AND h.open_turn IS {'NOT ' if listing.busy else ''}NULL")
    if not listing.delegates:
        conditions.append("AND s.relation IS NOT 'delegate'")
    return conditions


def filter_values(listing: SessionFilter) -> dict[str, Any]:
    """Return the values to bind for the conditions of a listing."""
    values = {name: getattr(listing, name) for name in _FILTERS} | {"trashed": int(listing.trashed)}
    if listing.text is not None:
        values["text"] = listing.text.lower()
    return {
        name: bind(value) if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }


def folded(*values: Any) -> Any:  # noqa: ANN401 - whatever the column holds
    """Fold case as Python does: SQLite's own `lower` handles only ASCII."""
    return "" if values[0] is None else bind(unbind(values[0]).lower())
