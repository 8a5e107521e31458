"""Parsing store URLs: where a store is, and its options. Nothing is read at import time.

`agent.db`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://host/database`,
`memory:`, or the scheme of another package's backend; options follow a question mark:
`sqlite:///agent.db?lease=10&deadline=5`. Without a URL: `$HOLDFAST_URL`, else `holdfast.db` in the
user's state directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.errors import Invalid, UnknownBackend

Durability: TypeAlias = Literal["power", "process"]
_DURABILITIES: Final = ("power", "process")
_TIME_OPTIONS: Final = frozenset({"lease", "deadline"})
_POSTGRES_OPTIONS: Final = frozenset(
    {"schema", "pool", "connect", "answer", "statement", "idle", "listen"}
)
_HOST_PATTERN: Final = r"(\[[^\[\],]+\]|[^\[\]:,]*)(:[0-9]{0,5})?"


class Location(msgspec.Struct, frozen=True):
    """A parsed URL. `address` is the path, or everything after the scheme.

    `options` are those of a single backend, unparsed.
    """

    scheme: str
    address: str
    lease: float = 30.0
    deadline: float = 10.0
    options: tuple[tuple[str, str], ...] = ()


def default_url(environ: Mapping[str, str]) -> str:
    """Return the URL or path of the user's default store."""
    url = environ.get("HOLDFAST_URL")
    if url:
        return url
    import platformdirs  # noqa: PLC0415 - most callers pass a URL

    state = platformdirs.user_state_dir("holdfast", appauthor=False)
    return os.path.join(state, "holdfast.db")  # noqa: PTH118 - pathlib is slow to import


def parse_url(url: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Location:
    """Parse a URL or path; raise `UnknownBackend` if it is malformed."""
    if not isinstance(url, str):
        text = default_url(environ) if url is None else os.fspath(url)
        return parse_url(text, environ) if url is None else Location("sqlite", text)
    if not url or "\0" in url:
        raise UnknownBackend("a store needs a path or URL, such as agent.db or memory:")
    scheme, colon, rest = url.partition(":")
    # A path may contain a colon, and an existing file wins over a URL.
    is_path = not colon or not scheme.isalnum() or os.path.exists(url)  # noqa: PTH110
    if is_path and not _is_scheme(scheme, rest):
        return Location("sqlite", url)
    if scheme in {"postgresql", "postgres"}:
        return _parse_postgres(scheme, rest)
    if scheme not in {"sqlite", "memory"}:
        return _parse_other(scheme, rest)
    from urllib.parse import unquote  # noqa: PLC0415 - most callers pass a path

    address, _, options = rest.partition("?")
    if scheme == "sqlite":
        if not address.startswith("///") or len(address) == len("///"):
            raise UnknownBackend(
                f"{url!r} is not a store URL: use sqlite:///relative.db or sqlite:////absolute.db"
            )
        address = unquote(address.removeprefix("///"))
    times = _parse_options(options, url)
    return msgspec.structs.replace(Location(scheme, address), **times)


def _is_scheme(scheme: str, rest: str) -> bool:
    """Return whether this can only be a URL; the rest may then contain a password."""
    plain = scheme.isascii() and scheme[:1].isalpha()
    return plain and rest.startswith("//") and all(c.isalnum() or c in "+.-" for c in scheme)


def _parse_other(scheme: str, rest: str) -> Location:
    """Parse a URL of another package's backend, which gets all options but the times."""
    address, _, query = rest.partition("?")
    times: dict[str, float] = {}
    options: list[tuple[str, str]] = []
    for name, value, _ in split_options(query):
        if name in _TIME_OPTIONS:
            times[name] = _parse_seconds(name, value, scheme)
        else:
            options.append((name, value))
    found = Location(scheme, address, options=tuple(options))
    return msgspec.structs.replace(found, **times)


# ------------------------------------------------------------------------------ server URLs


def _parse_postgres(scheme: str, rest: str) -> Location:
    """Parse a PostgreSQL URL; options that are not ours are passed to the driver unchanged."""
    if not rest.startswith("//"):
        raise UnknownBackend(f"{scheme}: must be followed by //: postgresql://host/database")
    why = _why_malformed(rest)
    if why is not None:
        raise UnknownBackend(f"this {scheme}: URL cannot be parsed: {why}")
    address, _, query = rest.partition("?")
    times: dict[str, float] = {}
    ours: list[tuple[str, str]] = []
    others: list[str] = []
    for name, value, written in split_options(query):
        if name in _TIME_OPTIONS:
            times[name] = _parse_seconds(name, value, scheme)
        elif name in _POSTGRES_OPTIONS:
            ours.append((name, value))
        else:
            others.append(written)
    query = f"?{'&'.join(others)}" if others else ""
    found = Location("postgresql", address + query, options=tuple(ours))
    return msgspec.structs.replace(found, **times)


def split_options(query: str) -> list[tuple[str, str, str]]:
    """Return the options of a server's URL: name, value, and both as written.

    A plus sign is not a space, as the driver reads it.
    """
    from urllib.parse import unquote  # noqa: PLC0415 - as above

    pairs = [(written, written.partition("=")) for written in query.split("&") if written]
    return [(unquote(name), unquote(value), written) for written, (name, _, value) in pairs]


def without_password(address: str) -> str:
    """Return what follows the scheme of a URL, without the password in it."""
    if not address.startswith("//"):
        return address
    user, at, rest = address.rpartition("@")
    return f"{user.partition(':')[0]}{at}{rest}"


def _why_malformed(rest: str) -> str | None:
    """Return why a server's URL is ambiguous or malformed; `None` if it is not.

    The reason quotes nothing of it: an apparent host or option may be part of a password.
    """
    import re  # noqa: PLC0415 - as above

    address, _, query = rest.removeprefix("//").partition("?")
    _, at, hosts = address.partition("/")[0].rpartition("@")
    if rest.count("@") != len(at) or not rest.isprintable() or "#" in rest or " " in rest:
        return (
            "in a name, a password or an option, write %40 for @, %2F for /, %3F for ?, %23 for #, "
            "%25 for % and %20 for a space"
        )
    if re.search(r"%(?![0-9A-Fa-f]{2})|%00", rest):
        return "% must be followed by two hexadecimal digits; write %25 for a literal %"
    if not re.fullmatch(f"{_HOST_PATTERN}(,{_HOST_PATTERN})*", hosts):
        return "// must be followed by user:password@host:port, where port is a number"
    if not all("=" in pair for pair in query.split("&") if pair):
        return "options after ? must be name=value, separated by &"
    return None


def _parse_options(text: str, url: str) -> dict[str, float]:
    from urllib.parse import parse_qsl  # noqa: PLC0415 - as above

    found: dict[str, float] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in _TIME_OPTIONS:
            raise UnknownBackend(f"{url!r}: unknown option {name!r}; use lease or deadline")
        found[name] = _parse_seconds(name, value, repr(url))
    return found


def _parse_seconds(name: str, value: str, where: str) -> float:
    try:
        found = float(value)
    except ValueError:
        raise UnknownBackend(f"{where}: {name} must be a number of seconds") from None
    if not 0 < found < float("inf"):
        raise UnknownBackend(f"{where}: {name} must be a positive number of seconds")
    return found


def check_durability(value: str) -> Durability:
    """Check a durability mode."""
    if value not in _DURABILITIES:
        raise Invalid(f"durability must be 'power' or 'process', not {value!r}")
    return value  # type: ignore[return-value]
