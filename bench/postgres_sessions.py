"""Lists of few and of very many sessions on PostgreSQL, side by side.

The sessions are copies of one, made by the server for two tenants of a store: each has a title and
a message of its own, and one in a thousand is of the scope `rare`. A list may not depend on how
many there are. A text that no session has is compared with all of them, and bounded by the
deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import holdfast
from bench import postgres
from bench.measure import TIMES, Result, Times, alternate, median, millis, ratio, timed
from bench.plan import KEY, Plan
from holdfast import Message, Store
from holdfast.errors import StoreUnavailable
from holdfast.storage.postgres.conversion import mark
from holdfast.storage.postgres.snapshot import Tenant

if TYPE_CHECKING:
    import psycopg

_BAR: Final = 1.5
_SHARE: Final = 1_000  # one session in so many is of the rare scope
_ROWS: Final = 10  # of that scope: as many as the smaller tenant has
_REPEAT: Final = 5
_RARE: Final = "rare"
_NUMBERS: Final = "$2 + i"
_SCOPE_MARK: Final = f"CASE WHEN i % {_SHARE} = 0 THEN '{mark(_RARE)}'::uuid ELSE c.scope_mark END"
# What a copy has of its own, by column; i is its number, $2 the last session number before it.
_OWN: Final = {
    "sessions": {
        "n": _NUMBERS,
        "id": "convert_to(left(convert_from(c.id, 'UTF8'), 10) || lpad(i::text, 12, '0'), 'UTF8')",
        "key": "NULL",
        "key_mark": "NULL",
        "key_start": "NULL",
        "title": "convert_to('Parcel ' || i, 'UTF8')",
        "title_mark": "md5('t' || i)::uuid",
        "loose": "convert_to('parcel ' || i, 'UTF8')",
        "loose_mark": "md5('l' || i)::uuid",
        "scope": f"CASE WHEN i % {_SHARE} = 0 THEN '{_RARE}'::bytea ELSE c.scope END",
        "scope_mark": _SCOPE_MARK,
    },
    "branches": {"session": _NUMBERS},
    "messages": {"session": _NUMBERS, "id_mark": f"md5('m' || {_NUMBERS})::uuid"},
    "heads": {"session": _NUMBERS, "activity": "64 * i", "recency": "64 * i"},
    "recent": {"session": _NUMBERS, "recency": "64 * i", "scope_mark": _SCOPE_MARK},
}
_COLUMNS: Final = """
SELECT array_agg(attname::text) FROM pg_attribute
WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""


def postgres_sessions(plan: Plan) -> Iterator[Result]:
    """List, find the newest, filter by scope and by a text."""
    with ExitStack() as stack:
        try:
            admin = stack.enter_context(postgres.server(plan))
        except ModuleNotFoundError:
            yield Result(name=_NAME, what="PostgreSQL", value=0, figure="there is no server")
            return
        url = postgres.store_url(postgres.prepared(admin))
        few, many = plan.sizes.sessions_on_server
        stores = [stack.enter_context(holdfast.open(url, tenant=str(n))) for n in (few, many)]
        for store, count in zip(stores, (few, many), strict=True):
            _fill(admin, store, count)
        postgres.settle(admin)
        for what, work in _LISTS.items():
            found = alternate(plan.sizes.rounds, *(_repeated(partial(work, s)) for s in stores))
            yield _judged(f"{what} of {many:,} sessions", few, *found)
        yield _with_text(many, *stores)


_NAME: Final = "postgres-sessions"


def _latest(store: Store) -> None:
    store.get("@latest")


def _page(store: Store) -> None:
    store.sessions(limit=50)


def _rare(store: Store) -> None:
    store.sessions(limit=_ROWS - 1, scope=_RARE)


_LISTS: Final[dict[str, Callable[[Store], None]]] = {
    "list 50": _page,
    "@latest": _latest,
    "a scope that 0.1 % have": _rare,
}


def _fill(admin: str, store: Store, count: int) -> None:
    """Make a session and its copies; the scope of the newest is not the rare one."""
    import psycopg  # noqa: PLC0415 - only where it is installed

    store.session(KEY, scope="common", agent="bench", title="Parcel").append(Message.user("hello"))
    tenant = Tenant(store.backend.tenant, "").mark
    options = f"-c search_path={postgres.SCHEMA}"
    with psycopg.connect(
        admin, autocommit=True, cursor_factory=psycopg.RawCursor, options=options
    ) as superuser:
        row = superuser.execute("SELECT nextval('session_numbers')").fetchone()
        assert row is not None
        for table in _OWN:
            _copy(superuser, table, (tenant, row[0], count))
        superuser.execute("SELECT setval('session_numbers', $1)", (row[0] + count,))


def _copy(superuser: psycopg.Connection, table: str, values: tuple[object, ...]) -> None:
    """Insert the copies of a tenant's only session into a table."""
    row = superuser.execute(_COLUMNS, (table,)).fetchone()
    assert row is not None
    columns = ", ".join(row[0])
    selected = ", ".join(_OWN[table].get(name, f"c.{name}") for name in row[0])
    superuser.execute(
        f"INSERT INTO {table} ({columns}) SELECT {selected} FROM {table} c"  # noqa: S608 - names of ours
        " CROSS JOIN generate_series(1, $3::bigint - 1) AS i"
        " WHERE c.tenant = $1 AND $2::bigint IS NOT NULL",
        values,
    )


def _repeated(work: Callable[[], object]) -> Callable[[], Times]:
    return lambda: [timed(work) for _ in range(_REPEAT)]


def _judged(what: str, few: int, ours: list[Times], theirs: list[Times]) -> Result:
    growth = ratio(theirs, ours)
    return Result(
        name=_NAME,
        what=f"PostgreSQL: {what}",
        value=median(theirs),
        figure=f"{millis(median(theirs))} (of {few:,}: {millis(median(ours))})",
        ratio=growth,
        of=f"of {few:,}",
        bar=f"≤ {_BAR} {TIMES} of {few:,}",
        met=growth <= _BAR,
    )


def _with_text(many: int, few_store: Store, store: Store) -> Result:
    few = timed(partial(few_store.sessions, text="nowhere"))
    ended = True

    def search() -> None:
        nonlocal ended
        try:
            store.sessions(text="nowhere")
        except StoreUnavailable:
            ended = False

    seconds, bound = timed(search), 1.5 * store.backend.deadline
    outcome = "all compared" if ended else "ended by the deadline"
    return Result(
        name=_NAME,
        what=f"PostgreSQL: a text that none of {many:,} titles has",
        value=seconds,
        figure=f"{millis(seconds)}, {outcome} ({millis(few)} for few)",
        bar=f"≤ {bound:g} s: the deadline",
        met=seconds <= bound,
    )
