"""Where the database is and how long anything may take, from a store's URL.

    postgresql://user@host/database?schema=holdfast&deadline=10&pool=10

What is not ours (`sslmode`, `application_name` …) goes to the driver as it is written. What is
shown says where the database is and nothing else: no password, whatever it is called.
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from holdfast.errors import UnknownBackend
from holdfast.settings import Durability, Location, split_options

_SCHEMA: Final = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,62}")
_SHOWN: Final = frozenset(
    {
        "application_name",
        "dbname",
        "host",
        "hostaddr",
        "port",
        "service",
        "sslmode",
        "target_session_attrs",
        "user",
    }
)
_ALSO_KNOWN: Final = frozenset({"ssl"})  # the driver takes `ssl=true` from URLs alone
_LEAST_POOL: Final = 2
_LEAST_CONNECT: Final = 2  # the driver takes one second for two


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A database, and the limits of what is asked of it (in seconds).

    All attempts at one write together have until the deadline. Within it, an answer that does not
    come in time is as good as a lost connection, and there is time for another attempt. `statement`
    is for what reads or erases very much, `idle` for transactions whose client went silent.
    """

    url: str
    shown: str
    schema: str
    durability: Durability
    deadline: float
    connect: float
    answer: float
    statement: float
    idle: float
    pool: int

    @property
    def reading(self) -> str:
        """How long somebody who only reads may be idle: nobody waits for what it holds."""
        return f"{_millis(max(self.idle, self.statement))}ms"

    @property
    def synchronous_commit(self) -> str:
        """What commits wait for."""
        return "on" if self.durability == "power" else "off"

    def arguments(self) -> dict[str, str]:
        """Return what the driver is told beside the URL."""
        settings = {
            "search_path": self.schema,
            "statement_timeout": _millis(self.statement),
            # The server gives up waiting first: who hears that knows what happened.
            "lock_timeout": _millis(0.8 * self.answer),
            "idle_in_transaction_session_timeout": _millis(self.idle),
            "synchronous_commit": self.synchronous_commit,
            # A plan for just these values looks better than one for lists of any length, so what
            # has a list would be planned anew each time, which costs more than the statement.
            "plan_cache_mode": "force_generic_plan",
            # It is one for any tenant, and must not read what all have to find what one has. Nor
            # may a list hold what it could find one by one and go through the whole tenant: to
            # find a row costs about as much as to come upon it, most of them are in memory.
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "enable_material": "off",
            "random_page_cost": "1.1",
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "client_min_messages": "warning",
        }
        asked = conninfo_to_dict(self.url)
        given = {
            "connect_timeout": str(max(_LEAST_CONNECT, math.ceil(self.connect))),
            "application_name": "holdfast",
            "tcp_user_timeout": _millis(self.answer),
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
        }
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        options = " ".join(str(text) for text in (asked.get("options"), ours) if text)
        # In a database of another encoding text would come as bytes, or not at all.
        forced = {"options": options, "client_encoding": "UTF8"}
        return {**{k: v for k, v in given.items() if k not in asked}, **forced}


def _millis(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def target(location: Location, durability: Durability) -> Target:
    """Read a store's URL."""
    url = f"{location.scheme}:{location.address}"
    shown = _without_secrets(url)
    _check(url, shown)
    options = dict(location.options)
    schema = options.pop("schema", "holdfast")
    if not _SCHEMA.fullmatch(schema):
        raise UnknownBackend(
            f"{shown}: schema is a name of lower-case letters, digits and underscores, and none of "
            "the server's own"
        )
    limits = {
        "connect": location.deadline / 2,
        "answer": location.deadline / 2,
        "statement": 60.0,
        "idle": location.deadline / 2,
    }
    pool = _pool(options.pop("pool", "10"), shown)
    limits.update({name: _number(name, value, shown) for name, value in options.items()})
    return Target(
        url=url,
        shown=shown,
        schema=schema,
        durability=durability,
        deadline=location.deadline,
        connect=limits["connect"],
        answer=limits["answer"],
        statement=limits["statement"],
        idle=limits["idle"],
        pool=pool,
    )


def _check(url: str, shown: str) -> None:
    """Refuse a URL that the driver cannot read. What it says of it may hold a password."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for name, _, _ in split_options(url.partition("?")[2]):
        if name not in known | _ALSO_KNOWN:
            raise UnknownBackend(f"{shown}: neither Holdfast nor the driver has an option {name!r}")
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        raise UnknownBackend(f"{shown}: the driver cannot read this URL") from None


def _number(name: str, value: str, shown: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise UnknownBackend(f"{shown}: {name} is a positive number of seconds")
    return found


def _pool(value: str, shown: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) >= _LEAST_POOL):
        raise UnknownBackend(f"{shown}: pool is a number of connections, {_LEAST_POOL} or more")
    return int(value)


def _without_secrets(url: str) -> str:
    place, _, query = url.partition("?")
    start, slashes, rest = place.partition("//")
    authority, slash, database = rest.partition("/")
    user, at, hosts = authority.rpartition("@")
    kept = [written for name, _, written in split_options(query) if name in _SHOWN]
    shown = f"{start}{slashes}{user.partition(':')[0]}{at}{hosts}{slash}{database}"
    return f"{shown}?{'&'.join(kept)}" if kept else shown
