"""Where the database is and how long anything may take, from a store's URL.

    postgresql://user@host/database?schema=holdfast&deadline=10&pool=10

What is not ours (`sslmode`, `application_name` …) goes to the driver as it is. The password never
appears in what is shown.
"""

from __future__ import annotations

import math
import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from holdfast.errors import UnknownBackend
from holdfast.settings import Durability, Location

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SECRET: Final = frozenset({"password", "sslpassword", "passfile", "sslkey"})
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

    def arguments(self) -> dict[str, str]:
        """Give what the driver is told beside the URL."""
        settings = {
            "search_path": self.schema,
            "statement_timeout": _millis(self.statement),
            # The server gives up waiting first: who hears that knows what happened.
            "lock_timeout": _millis(0.8 * self.answer),
            "idle_in_transaction_session_timeout": _millis(self.idle),
            "synchronous_commit": "on" if self.durability == "power" else "off",
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
            "client_min_messages": "warning",
        }
        asked = dict(parse_qsl(urlsplit(self.url).query))
        given = {
            "connect_timeout": str(max(_LEAST_CONNECT, math.ceil(self.connect))),
            "application_name": "holdfast",
            "tcp_user_timeout": _millis(self.answer),
            "keepalives_idle": "10",
            "keepalives_interval": "5",
            "keepalives_count": "3",
        }
        ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
        options = " ".join(filter(None, (asked.get("options"), ours)))
        return {**{k: v for k, v in given.items() if k not in asked}, "options": options}


def _millis(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def target(location: Location, durability: Durability) -> Target:
    """Read a store's URL."""
    parts = urlsplit(f"{location.scheme}:{location.address}")
    shown = _without_secrets(parts)
    options = dict(location.options)
    schema = options.pop("schema", "holdfast")
    if not _SCHEMA.fullmatch(schema):
        raise UnknownBackend(
            f"{shown}: schema is a name of lower-case letters, digits and underscores"
        )
    limits = {
        "connect": location.deadline / 2,
        "answer": location.deadline / 2,
        "statement": 60.0,
        "idle": location.deadline / 2,
        "pool": 10.0,
    }
    limits.update({name: _number(name, value, shown) for name, value in options.items()})
    return Target(
        url=urlunsplit(parts),
        shown=shown,
        schema=schema,
        durability=durability,
        deadline=location.deadline,
        connect=limits["connect"],
        answer=limits["answer"],
        statement=limits["statement"],
        idle=limits["idle"],
        pool=max(2, int(limits["pool"])),
    )


def _number(name: str, value: str, shown: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        what = "number of connections" if name == "pool" else "positive number of seconds"
        raise UnknownBackend(f"{shown}: {name} is a {what}")
    return found


def _without_secrets(parts: SplitResult) -> str:
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user.partition(':')[0]}{at}{host}"
    kept = [(k, v) for k, v in parse_qsl(parts.query) if k not in _SECRET]
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(kept, safe="/"), ""))
