"""Where a store is, and how it is tuned: read from its URL when asked, never at import.

`agent.db`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://host/database`,
`memory:`; options follow a question mark: `sqlite:///agent.db?lease=10&deadline=5`. Without a URL:
`$HOLDFAST_URL`, else `holdfast.db` in the user's state directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.errors import Invalid, UnknownBackend

Durability: TypeAlias = Literal["power", "process"]
_MODES: Final = ("power", "process")
_TIMES: Final = frozenset({"lease", "deadline"})
_POSTGRES: Final = frozenset({"schema", "pool", "connect", "answer", "statement", "idle"})


class Location(msgspec.Struct, frozen=True):
    """A parsed URL. `address` is the path, or all behind the scheme.

    `options` are those of one backend only, as they were written.
    """

    scheme: str
    address: str
    lease: float = 30.0
    deadline: float = 10.0
    options: tuple[tuple[str, str], ...] = ()


def default_url(environ: Mapping[str, str]) -> str:
    """Say where the user's own store is."""
    url = environ.get("HOLDFAST_URL")
    if url:
        return url
    import platformdirs  # noqa: PLC0415 - most callers name their store

    state = platformdirs.user_state_dir("holdfast", appauthor=False)
    return os.path.join(state, "holdfast.db")  # noqa: PTH118 - pathlib is slow to import


def parse(url: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Location:
    """Understand a URL or path."""
    if not isinstance(url, str):
        text = default_url(environ) if url is None else os.fspath(url)
        return parse(text, environ) if url is None else Location("sqlite", text)
    if not url or "\0" in url:
        raise UnknownBackend("a store needs a path or URL, such as agent.db or memory:")
    scheme, colon, rest = url.partition(":")
    if not colon or not scheme.isalnum() or os.path.exists(url):  # noqa: PTH110
        return Location("sqlite", url)
    from urllib.parse import unquote  # noqa: PLC0415 - most callers give a path

    if scheme in {"postgresql", "postgres"}:
        return _postgres(rest, url)
    address, _, options = rest.partition("?")
    if scheme == "sqlite":
        if not address.startswith("///") or len(address) == len("///"):
            raise UnknownBackend(
                f"{url!r} is not a store URL: use sqlite:///relative.db or sqlite:////absolute.db"
            )
        address = unquote(address.removeprefix("///"))
    times = _options(options, url)
    return msgspec.structs.replace(Location(scheme, address), **times)


def _postgres(rest: str, url: str) -> Location:
    """Take our options out of a URL; all others are the driver's."""
    from urllib.parse import parse_qsl, urlencode  # noqa: PLC0415 - as above

    address, _, text = rest.partition("?")
    if not address.startswith("//"):
        raise UnknownBackend(f"{_scheme_of(url)} is followed by //: postgresql://host/database")
    asked = parse_qsl(text, keep_blank_values=True)
    times = {
        name: _seconds(name, value, _scheme_of(url)) for name, value in asked if name in _TIMES
    }
    ours = tuple((name, value) for name, value in asked if name in _POSTGRES)
    others = [pair for pair in asked if pair[0] not in _TIMES | _POSTGRES]
    query = f"?{urlencode(others)}" if others else ""
    found = Location("postgresql", address + query, options=ours)
    return msgspec.structs.replace(found, **times)


def _scheme_of(url: str) -> str:
    """Name a URL in a message; what is behind the scheme may hold a password."""
    return f"{url.partition(':')[0]}:"


def _options(text: str, url: str) -> dict[str, float]:
    from urllib.parse import parse_qsl  # noqa: PLC0415 - as above

    found: dict[str, float] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in _TIMES:
            raise UnknownBackend(f"{url!r}: unknown option {name!r}; there are lease and deadline")
        found[name] = _seconds(name, value, repr(url))
    return found


def _seconds(name: str, value: str, where: str) -> float:
    try:
        found = float(value)
    except ValueError:
        raise UnknownBackend(f"{where}: {name} is a number of seconds") from None
    if not 0 < found < float("inf"):
        raise UnknownBackend(f"{where}: {name} is a positive number of seconds")
    return found


def check_durability(value: str) -> Durability:
    """Check a durability mode."""
    if value not in _MODES:
        raise Invalid(f"durability is 'power' or 'process', not {value!r}")
    return value  # type: ignore[return-value]
