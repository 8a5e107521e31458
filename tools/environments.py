"""Virtual environments for other projects' packages, named after what is installed in them.

They are in the user's cache, so that every checkout finds them: each takes hundreds of megabytes.
One that is complete has a stamp; any other is made again. One of the same name with other
requirements is removed. Processes that want the same one wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import platformdirs

_STAMP: Final = ".installed"
_HASH_CHARS: Final = 12
_INSTALL_S: Final = 900
_UNAVAILABLE: Final = (
    "No matching distribution",
    "Could not find a version",
    "Connection",
    "Max retries",
)


class NotInstalled(Exception):
    """Requirements cannot be installed; the message says why."""

    @property
    def unavailable(self) -> bool:
        """True if a package cannot be had: no registry answers, or it does not have it."""
        return any(text in str(self) for text in _UNAVAILABLE)


def environments_directory() -> Path:
    """Return the directory of all environments, in the user's cache."""
    return platformdirs.user_cache_path("holdfast") / "environments"


def interpreter(name: str, requirements: Sequence[str], parent: Path) -> Path:
    """Return the interpreter of an environment, making it in a directory of `parent` if needed.

    Without requirements it is the one that runs this. Raises `NotInstalled`.
    """
    if not requirements:
        return Path(sys.executable)
    environment = parent / f"{name}-{_digest(requirements)}"
    python = environment / "bin" / "python"
    if (environment / _STAMP).exists():
        return python
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment / _STAMP).exists():
            for other in parent.glob(f"{name}-{'[0-9a-f]' * _HASH_CHARS}"):
                shutil.rmtree(other)
            print(f"installing {' '.join(requirements)}", file=sys.stderr, flush=True)
            run_command(sys.executable, "-m", "venv", str(environment))
            pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet")
            run_command(*pip, "install", *requirements)
            (environment / _STAMP).touch()
    return python


def _digest(requirements: Sequence[str]) -> str:
    text = "\n".join((sys.version, *requirements))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


def run_command(*command: str) -> None:
    """Run a command; raise `NotInstalled` with the end of what it printed if it fails."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "WARNING" not in line]
        raise NotInstalled(lines[-1] if lines else f"pip ended with {error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
