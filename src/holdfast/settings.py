"""Where a store is, and how it is tuned: read from its URL when asked, never at import.

`agent.db`, `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory:`; options follow a question
mark: `sqlite:///agent.db?lease=10&deadline=5`. Without a URL: `$HOLDFAST_URL`, else `holdfast.db`
in the user's state directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from holdfast.errors import Invalid, UnknownBackend

Durability: TypeAlias = Literal["power", "process"]
_MODES: Final = ("power", "process")


class Location(msgspec.Struct, frozen=True):
    """A parsed URL. `address` is the path, or all behind the scheme."""

    scheme: str
    address: str
    lease: float = 30.0
    deadline: float = 10.0


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

    address, _, options = rest.partition("?")
    if scheme == "sqlite":
        if not address.startswith("///") or len(address) == len("///"):
            raise UnknownBackend(
                f"{url!r} is not a store URL: use sqlite:///relative.db or sqlite:////absolute.db"
            )
        address = unquote(address.removeprefix("///"))
    return Location(scheme, address, **_options(options, url))


def _options(text: str, url: str) -> dict[str, float]:
    from urllib.parse import parse_qsl  # noqa: PLC0415 - as above

    found: dict[str, float] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in {"lease", "deadline"}:
            raise UnknownBackend(f"{url!r}: unknown option {name!r}; there are lease and deadline")
        try:
            found[name] = float(value)
        except ValueError:
            raise UnknownBackend(f"{url!r}: {name} is a number of seconds") from None
        if not 0 < found[name] < float("inf"):
            raise UnknownBackend(f"{url!r}: {name} is a positive number of seconds")
    return found


def check_durability(value: str) -> Durability:
    """Check a durability mode."""
    if value not in _MODES:
        raise Invalid(f"durability is 'power' or 'process', not {value!r}")
    return value  # type: ignore[return-value]
