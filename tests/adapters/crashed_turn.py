"""A process that is killed while a model's reply is streamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import holdfast

ASKED: Final = "Where is my parcel?"
HALF: Final = "It is at th"


def crash_in_a_reply(path: Path, key: str) -> None:
    """Begin a turn in another process, which is killed when half of the reply is stored."""
    root = Path(__file__).parents[2]
    variables = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, __file__, str(path), key]
    killed = subprocess.run(command, env=variables, check=False)
    assert killed.returncode == -signal.SIGKILL


def _main(path: str, key: str) -> None:
    with holdfast.open(path) as store, store.session(key).turn() as turn:
        turn.user(ASKED)
        draft = turn.stream()
        draft.write(HALF)
        draft.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main(*sys.argv[1:])
