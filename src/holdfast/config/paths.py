"""The paths of the configuration files: the user's, and the workspace's.

The user's is `holdfast.toml` in their configuration directory, or what `$HOLDFAST_CONFIG` names.
The workspace's is the nearest `holdfast.toml` from the working directory upwards, no further than
the repository's root or the home directory. Outside of both only the working directory itself is
searched: other users may be able to write to its parents, such as `/tmp`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

FILE_NAME: Final = "holdfast.toml"
PATH_VARIABLE: Final = "HOLDFAST_CONFIG"


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's file, which may not exist; `None` if it is disabled."""
    named = environ.get(PATH_VARIABLE)
    if named:
        return None if named == os.devnull else Path(named).expanduser().absolute()
    import platformdirs  # noqa: PLC0415 - slow, and needed only without the variable

    return Path(platformdirs.user_config_dir("holdfast", appauthor=False)) / FILE_NAME


def workspace_file(directory: Path | None, home: Path | None) -> Path | None:
    """Return the configuration file of the workspace that contains a directory, if any."""
    if directory is None:
        return None
    for candidate in _search_path(directory, home):
        if os.path.lexists(candidate / FILE_NAME):
            return candidate / FILE_NAME
    return None


def existing_files(
    environ: Mapping[str, str], directory: Path | None, home: Path | None
) -> list[Path]:
    """Return the files that exist or that the environment names, without reading any."""
    own, here = user_file(environ), workspace_file(directory, home)
    found = [] if own is None or not (environ.get(PATH_VARIABLE) or os.path.lexists(own)) else [own]
    return found if here is None else [*found, here]


def working_directory() -> Path | None:
    """Return the working directory; `None` if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def home_directory() -> Path | None:
    """Return the user's home directory; `None` if there is none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _search_path(directory: Path, home: Path | None) -> Iterator[Path]:
    passed = []
    for candidate in (directory, *directory.parents):
        passed.append(candidate)
        if candidate == home or os.path.lexists(candidate / ".git"):
            return iter(passed)
    return iter([directory])
