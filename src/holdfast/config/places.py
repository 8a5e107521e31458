"""Where configuration files are: the user's own, and the one of the workspace.

The user's is `holdfast.toml` in their configuration directory, or what `$HOLDFAST_CONFIG` names.
The workspace's is the nearest `holdfast.toml` from the working directory upwards, no further than
the repository's root or the home directory. Outside of both only the directory itself is looked at:
what lies above it, such as `/tmp`, is anybody's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

NAME: Final = "holdfast.toml"
VARIABLE: Final = "HOLDFAST_CONFIG"


def users_file(environ: Mapping[str, str]) -> Path | None:
    """Return where the user's file is, there or not; `None` if there is to be none."""
    named = environ.get(VARIABLE)
    if named:
        return None if named == os.devnull else Path(named).expanduser().absolute()
    import platformdirs  # noqa: PLC0415 - only if it is not named

    return Path(platformdirs.user_config_dir("holdfast", appauthor=False)) / NAME


def workspace_file(directory: Path | None, home: Path | None) -> Path | None:
    """Find the file of the workspace that a directory lies in."""
    if directory is None:
        return None
    for place in _upwards(directory, home):
        if os.path.lexists(place / NAME):
            return place / NAME
    return None


def files(environ: Mapping[str, str], directory: Path | None, home: Path | None) -> list[Path]:
    """Find the files that are there, or that are named; without reading any."""
    own, here = users_file(environ), workspace_file(directory, home)
    found = [] if own is None or not (environ.get(VARIABLE) or os.path.lexists(own)) else [own]
    return found if here is None else [*found, here]


def here() -> Path | None:
    """Return where the program runs, if that is still there."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def home() -> Path | None:
    """Return where the user's home is, if they have one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _upwards(directory: Path, home: Path | None) -> Iterator[Path]:
    passed = []
    for place in (directory, *directory.parents):
        passed.append(place)
        if place == home or os.path.lexists(place / ".git"):
            return iter(passed)
    return iter([directory])
