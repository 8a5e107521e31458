"""An environment for each peer, beside the project's own, named after what is installed there.

One that is complete has a stamp; any other is made again. An environment of the same peer with
other requirements is removed: each has hundreds of megabytes.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.peers.catalog import PeerEntry

_STAMP: Final = ".installed"
_HASH_CHARS: Final = 12
_INSTALL_S: Final = 900


class NotInstalled(Exception):
    """A peer cannot be installed; the message says why."""


def interpreter(entry: PeerEntry, parent: Path) -> Path:
    """Return the interpreter that has a peer, installing it in a directory of `parent` if needed.

    Raises `NotInstalled`.
    """
    if not entry.requirements:
        return Path(sys.executable)
    environment = parent / f"{entry.driver}-{_digest(entry.requirements)}"
    python = environment / "bin" / "python"
    if not (environment / _STAMP).exists():
        for other in parent.glob(f"{entry.driver}-*"):
            shutil.rmtree(other)
        print(f"installing {' '.join(entry.requirements)}", file=sys.stderr, flush=True)
        run_command(sys.executable, "-m", "venv", str(environment))
        pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet")
        run_command(*pip, "install", *entry.requirements)
        (environment / _STAMP).touch()
    return python


def environments_directory() -> Path:
    """Return the directory of the peers' environments, in that of the project."""
    return Path(sys.prefix) / "peers"


def _digest(requirements: tuple[str, ...]) -> str:
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
