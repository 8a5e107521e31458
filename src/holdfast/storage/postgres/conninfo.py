"""Connection parameters from a store's URL: which database, and how long anything may take.

    postgresql://user@host/database?schema=holdfast&deadline=10&pool=10

Settings are not sent with the request for a connection: poolers refuse or drop them there. Each
connection sets them once it has one (`connection.py`).

Options that are not Holdfast's (`sslmode`, `application_name` …) go to the driver unchanged. The
redacted URL, for messages, says where the database is and nothing else: no password, under whatever
option.
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
from holdfast.url import Durability, Location, split_options, without_password

_SCHEMA: Final = re.compile(r"(?!pg_|information_schema$)[a-z_][a-z0-9_]{0,62}")
_ENDPOINT: Final = re.compile(r"(?:\[([0-9a-fA-F:.%\w]+)\]|([^\s:@,?#\[\]]+))(?::(\d{1,5}))?")
_PUBLIC_OPTIONS: Final = frozenset(
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
_URL_ONLY_OPTIONS: Final = frozenset({"ssl"})  # the driver accepts `ssl=true` only in URLs
_MIN_POOL_SIZE: Final = 2
_MIN_CONNECT_TIMEOUT_S: Final = 2  # the driver rounds one second up to two


class ConnInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A database and its timeouts, in seconds.

    `deadline` limits a write with all its attempts. A connection that does not respond within
    `answer` counts as lost, which leaves time for another attempt. `statement` is for operations
    that read or erase very much, `idle` for transactions whose client does not go on.
    """

    url: str
    redacted_url: str
    schema: str
    durability: Durability
    deadline: float
    connect: float
    answer: float
    statement: float
    idle: float
    pool: int
    listen: tuple[str, str] | None = None  # host and port of the server behind a pooler
    direct: bool = False  # connect there

    @property
    def past_pooler(self) -> ConnInfo:
        """Return the same for a connection to the server itself, if its address was given."""
        return msgspec.structs.replace(self, direct=self.listen is not None)

    @property
    def snapshot_idle_timeout(self) -> str:
        """The idle timeout of a reader, which may be longer: no writer waits for its locks."""
        return f"{_millis(max(self.idle, self.statement))}ms"

    @property
    def synchronous_commit(self) -> str:
        """What commits wait for."""
        return "on" if self.durability == "power" else "off"

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings that every transaction needs."""
        return {
            # Statements name the schema of tables and functions; nothing else of a user's is used.
            "search_path": "pg_catalog",
            "statement_timeout": _millis(self.statement),
            # Below the response timeout, so that the server reports a blocked lock before the
            # connection counts as lost.
            "lock_timeout": _millis(0.8 * self.answer),
            "idle_in_transaction_session_timeout": _millis(self.idle),
            "synchronous_commit": self.synchronous_commit,
            # A custom plan always seems cheaper than a generic one for arrays of any length, so
            # statements with an array would be planned each time, at more than they cost to run.
            "plan_cache_mode": "force_generic_plan",
            # A generic plan serves any tenant, and must not read all tenants' rows to find those
            # of one, nor hash or sort an array and scan the whole tenant for it: most pages are in
            # memory, so an index lookup costs about as much as a row of a scan.
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "max_parallel_workers_per_gather": "0",
            "enable_material": "off",
            "enable_sort": "off",
            "random_page_cost": "1.1",
            "client_min_messages": "warning",
        }

    @property
    def connection_settings(self) -> dict[str, str]:
        """Return the settings of a connection that no pooler shares among clients."""
        return {
            **self.settings,
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }

    def driver_arguments(self) -> dict[str, str]:
        """Return the driver's arguments in addition to the URL."""
        given = conninfo_to_dict(self.url)
        defaults = {
            "connect_timeout": str(max(_MIN_CONNECT_TIMEOUT_S, math.ceil(self.connect))),
            "application_name": "holdfast",
            "tcp_user_timeout": _millis(self.answer),
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
        }
        # With the encoding of the database text might arrive as bytes, or be refused.
        forced = {"client_encoding": "UTF8"}
        if self.direct and self.listen is not None:
            host, port = self.listen
            forced |= {"host": host, "hostaddr": "", "port": port}
        return {**{k: v for k, v in defaults.items() if k not in given}, **forced}


def _millis(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def parse_conninfo(location: Location, durability: Durability) -> ConnInfo:
    """Parse a store's URL; raise `UnknownBackend` if an option is invalid."""
    url = f"{location.scheme}:{location.address}"
    shown = _redact(url)
    _validate_url(url, shown)
    options = dict(location.options)
    schema = options.pop("schema", "holdfast")
    if not _SCHEMA.fullmatch(schema):
        raise UnknownBackend(
            f"{shown}: schema must be a name of lower-case letters, digits and underscores that "
            "is not reserved by the server"
        )
    limits = {
        "connect": location.deadline / 2,
        "answer": location.deadline / 2,
        "statement": 60.0,
        "idle": location.deadline / 2,
    }
    listen = _endpoint(options.pop("listen", ""), shown)
    pool = _pool_size(options.pop("pool", "10"), shown)
    limits.update({name: _seconds(name, value, shown) for name, value in options.items()})
    return ConnInfo(
        url=url,
        redacted_url=shown,
        schema=schema,
        durability=durability,
        deadline=location.deadline,
        connect=limits["connect"],
        answer=limits["answer"],
        statement=limits["statement"],
        idle=limits["idle"],
        pool=pool,
        listen=listen,
    )


def _validate_url(url: str, shown: str) -> None:
    """Refuse a URL that the driver cannot parse. Its own message may hold a password."""
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for name, _, _ in split_options(url.partition("?")[2]):
        if name not in known | _URL_ONLY_OPTIONS:
            raise UnknownBackend(
                f"{shown}: unknown option {name!r}; neither Holdfast nor the driver has it"
            )
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        raise UnknownBackend(f"{shown}: the driver cannot parse this URL") from None


def _seconds(name: str, value: str, shown: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise UnknownBackend(f"{shown}: {name} must be a positive number of seconds")
    return found


def _pool_size(value: str, shown: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value) >= _MIN_POOL_SIZE):
        raise UnknownBackend(
            f"{shown}: pool must be a number of connections, {_MIN_POOL_SIZE} or more"
        )
    return int(value)


def _endpoint(value: str, shown: str) -> tuple[str, str] | None:
    """Return a host, or the directory of a socket, and a port, which may be empty."""
    found = _ENDPOINT.fullmatch(value)
    if value and found is None:
        raise UnknownBackend(
            f"{shown}: listen must be the server's host, or host:port, where notifications arrive "
            "without a pooler in between"
        )
    return None if found is None else (found[1] or found[2], found[3] or "")


def _redact(url: str) -> str:
    base, _, query = url.partition("?")
    scheme, colon, address = base.partition(":")
    kept = [written for name, _, written in split_options(query) if name in _PUBLIC_OPTIONS]
    shown = f"{scheme}{colon}{without_password(address)}"
    return f"{shown}?{'&'.join(kept)}" if kept else shown
